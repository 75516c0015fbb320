"""Conformance checks of `Sandbox.exec` and `Sandbox.kill`."""

from __future__ import annotations

import asyncio
import resource
import time
import uuid
from dataclasses import replace
from pathlib import Path

from benchflow_workers.sandbox.base import OUTPUT_LIMIT_BYTES, Command
from benchflow_workers.sandbox.conformance_bench import (
    SLACK_S,
    Bench,
    Check,
    ConformanceError,
    add_user,
    check,
    count_processes,
    expect_at_most,
    expect_equal,
    expect_in,
    fresh_path,
    output,
    sh,
    wait_for_processes,
    wait_until,
)


async def check_output_and_exit_code_come_back(bench: Bench) -> None:
    """Both streams, their sizes and the exit code are those of the command."""
    async with bench.sandbox() as sandbox:
        done = await sh(sandbox, "printf out; printf problem >&2; exit 3")

    expect_equal((done.stdout, done.stderr), (b"out", b"problem"), "streams")
    expect_equal((done.stdout_bytes, done.stderr_bytes), (3, 7), "bytes written")
    expect_equal(done.exit_code, 3, "exit code")
    expect_equal((done.timed_out, done.oom_killed), (False, False), "timed_out, oom_killed")


async def check_arguments_are_not_read_by_a_shell(bench: Bench) -> None:
    """Arguments arrive as they are: spaces, quotes, dollars, line breaks, empty ones."""
    arguments = ("a b", '"q"', "$HOME", "*", "", "line\nbreak", "ü")
    async with bench.sandbox() as sandbox:
        done = await sandbox.exec(Command(("printf", "[%s]", *arguments), timeout_s=30))

    expected = "".join(f"[{argument}]" for argument in arguments).encode()
    expect_equal(done.stdout, expected, "arguments")


async def check_output_bytes_are_raw(bench: Bench) -> None:
    """Bytes that are no UTF-8 arrive unchanged."""
    async with bench.sandbox() as sandbox:
        done = await sh(sandbox, r"printf '\377\376\000\r\n'")

    expect_equal(done.stdout, b"\xff\xfe\x00\r\n", "raw output")


async def check_signal_death_is_128_plus_signal(bench: Bench) -> None:
    """A command killed by a signal ends with 128 + its number, and is not taken for out of memory."""
    async with bench.sandbox() as sandbox:
        killed = await sh(sandbox, "kill -KILL $$")
        ended = await sh(sandbox, "kill -TERM $$")

    expect_equal((killed.exit_code, ended.exit_code), (137, 143), "exit codes after KILL and TERM")
    expect_equal(killed.oom_killed, False, "oom_killed after a plain KILL")


async def check_missing_program_is_127(bench: Bench) -> None:
    """A program that does not exist is exit 127 with its name on stderr."""
    async with bench.sandbox() as sandbox:
        bare = await sandbox.exec(Command(("bf-no-such-program",), timeout_s=30))
        full = await sandbox.exec(Command(("/opt/bf-no-such-program", "x"), timeout_s=30))

    expect_equal((bare.exit_code, full.exit_code), (127, 127), "exit codes")
    expect_in(b"bf-no-such-program", bare.stderr, "reason on stderr")
    expect_equal(bare.stdout, b"", "standard output")


async def check_file_without_exec_bit_is_126(bench: Bench) -> None:
    """A file that is not executable is exit 126 with the reason on stderr."""
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"echo '#!/bin/sh' >{path}; chmod 644 {path}")
        done = await sandbox.exec(Command((path,), timeout_s=30))

    expect_equal(done.exit_code, 126, "exit code")
    expect_in(b"denied", done.stderr, "reason on stderr")


async def check_missing_workdir_is_126(bench: Bench) -> None:
    """A workdir that does not exist is exit 126 with its path on stderr."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.exec(Command(("true",), timeout_s=30, workdir="/no/such/folder"))

    expect_equal(done.exit_code, 126, "exit code")
    expect_in(b"/no/such/folder", done.stderr, "reason on stderr")


async def check_unknown_user_is_126(bench: Bench) -> None:
    """A user that does not exist is exit 126 with the name on stderr."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.exec(Command(("true",), timeout_s=30, user="bf-nobody-knows"))

    expect_equal(done.exit_code, 126, "exit code")
    expect_in(b"bf-nobody-knows", done.stderr, "reason on stderr")


async def check_command_runs_as_its_user(bench: Bench) -> None:
    """A user is found by name, by id, and by an id that has no name."""
    async with bench.sandbox() as sandbox:
        name = await add_user(sandbox, 4242)
        by_name = await output(sandbox, "id -u; id -g", user=name)
        by_id = await output(sandbox, "id -u", user=4242)
        nameless = await output(sandbox, "id -u", user=54321)
        root = await output(sandbox, "id -u")

    expect_equal(by_name.split(), ["4242", "4242"], "uid and gid by name")
    expect_equal((by_id, nameless, root), ("4242", "54321", "0"), "uids")


async def check_workdir_is_the_current_folder(bench: Bench) -> None:
    """The workspace is the default folder; a command's own workdir wins."""
    async with bench.sandbox() as sandbox:
        default = await output(sandbox, "pwd")
        chosen = await sandbox.exec(Command(("pwd",), timeout_s=30, workdir="/etc"))

    expect_equal(default, sandbox.workdir, "default folder")
    expect_equal(chosen.stdout.strip(), b"/etc", "chosen folder")


async def check_env_reaches_the_command(bench: Bench) -> None:
    """The command's variables are set, on top of the sandbox's own, byte for byte."""
    spec = replace(bench.make_spec(), env={"BF_SPEC": "from spec", "BF_BOTH": "spec"})
    async with bench.fresh(spec) as sandbox:
        env = {"BF_BOTH": "command", "BF_ODD": "a=b 'c' $d\nü"}
        done = await sh(sandbox, 'printf "%s|%s|%s|%s" "$BF_SPEC" "$BF_BOTH" "$BF_ODD" "${PATH:+p}"', env=env)

    expect_equal(done.stdout.decode(), "from spec|command|a=b 'c' $d\nü|p", "variables")


async def check_env_is_in_no_argv(bench: Bench) -> None:
    """A value in `env` shows in no command line, neither inside nor on this host."""
    secret = f"s3cret-{uuid.uuid4().hex}"
    async with bench.sandbox() as sandbox:
        flag = fresh_path()
        script = f'echo >{flag}.up; while [ ! -e {flag}.stop ]; do sleep 0.1; done; printf %s "$BF_SECRET"'
        running = asyncio.create_task(sh(sandbox, script, env={"BF_SECRET": secret}))
        await wait_until(sandbox, f"[ -e {flag}.up ]")
        inside = await output(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true")
        outside = _host_command_lines()
        await output(sandbox, f"echo >{flag}.stop")
        done = await running

    expect_equal(done.stdout, secret.encode(), "the value as the command sees it")
    for place, text in (("inside the sandbox", inside), ("on this host", outside)):
        if secret in text:
            raise ConformanceError(f"A value passed by env is visible in a command line {place}.")


def _host_command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().decode(errors="replace"))
        except OSError:  # the process ended between listing and reading
            continue
    return "\n".join(lines)


async def check_large_stdin_arrives_and_is_closed(bench: Bench) -> None:
    """5 MB of standard input arrive whole, then end of file."""
    async with bench.sandbox() as sandbox:
        command = Command(("wc", "-c"), timeout_s=60, stdin=b"\x00\xff\n!x" * 1_000_000)
        done = await sandbox.exec(command)

    expect_equal(done.stdout.strip(), b"5000000", "bytes counted by wc")


async def check_unread_stdin_is_no_error(bench: Bench) -> None:
    """A command that ends without reading its input ends normally."""
    async with bench.sandbox() as sandbox:
        done = await sandbox.exec(Command(("true",), timeout_s=60, stdin=b"x" * 5_000_000))

    expect_equal((done.exit_code, done.timed_out), (0, False), "exit code, timed_out")


async def check_stdin_is_empty_by_default(bench: Bench) -> None:
    """A command that reads its input meets the end of file at once."""
    async with bench.sandbox() as sandbox:
        none = await sandbox.exec(Command(("cat",), timeout_s=20))
        empty = await sandbox.exec(Command(("cat",), timeout_s=20, stdin=b""))

    expect_equal((none.exit_code, none.stdout), (0, b""), "without stdin")
    expect_equal((empty.exit_code, empty.stdout), (0, b""), "with empty stdin")


async def check_huge_output_is_cut_in_the_middle(bench: Bench) -> None:
    """Of 100 MB the start and the end are kept, the total is exact, memory stays bounded."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with bench.sandbox() as sandbox:
        done = await sh(sandbox, "printf START; head -c 100000000 /dev/zero; printf END; printf e >&2")

    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    expect_equal(done.stdout_bytes, 100_000_008, "bytes written")
    expect_equal((done.stdout[:5], done.stdout[-3:]), (b"START", b"END"), "first and last bytes")
    expect_at_most(len(done.stdout), OUTPUT_LIMIT_BYTES, "bytes kept")
    expect_equal((done.stderr, done.exit_code), (b"e", 0), "stderr, exit code")
    expect_at_most(grown_mb, 64, "memory growth in MB")


async def check_output_limit_is_the_commands_own(bench: Bench) -> None:
    """`output_limit_bytes` holds for each stream: half from the start, half from the end."""
    script = "printf %05000d 1; printf %05000d 2; printf %03000d 7 >&2"
    async with bench.sandbox() as sandbox:
        done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=30, output_limit_bytes=100))

    expect_equal(done.stdout, b"0" * 50 + b"0" * 49 + b"2", "kept of stdout")
    expect_equal(done.stderr, b"0" * 99 + b"7", "kept of stderr")
    expect_equal((done.stdout_bytes, done.stderr_bytes), (10_000, 3_000), "bytes written")


async def check_timeout_kills_the_whole_tree(bench: Bench) -> None:
    """At the deadline children, and those in sessions of their own, are killed; earlier output is kept."""
    script = "sleep 98761 & setsid sleep 98761 & trap '' TERM INT HUP; echo early; sleep 98761"
    async with bench.sandbox() as sandbox:
        started = time.monotonic()
        done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=1.5))
        elapsed_s = time.monotonic() - started
        left = await count_processes(sandbox, "98761")

    expect_equal(done.timed_out, True, "timed_out")
    expect_equal(done.stdout, b"early\n", "output before the deadline")
    expect_equal(left, 0, "processes left")
    expect_at_most(elapsed_s, 1.5 + SLACK_S, "seconds until the return")
    expect_equal(done.exit_code, 137, "exit code")


async def check_timeout_leaves_other_commands_alone(bench: Bench) -> None:
    """A deadline of one command does not touch another one."""
    async with bench.sandbox() as sandbox:
        slow = sandbox.exec(Command(("sleep", "98762"), timeout_s=1))
        other = sh(sandbox, "sleep 3; echo alive")
        timed_out, done = await asyncio.gather(slow, other)

    expect_equal(timed_out.timed_out, True, "timed_out of the first")
    expect_equal((done.exit_code, done.stdout), (0, b"alive\n"), "the other command")


async def check_background_child_does_not_delay_the_return(bench: Bench) -> None:
    """A child that holds the output pipe costs two seconds at most."""
    async with bench.sandbox() as sandbox:
        done = await sh(sandbox, "sleep 40 & echo started")

    expect_equal((done.exit_code, done.stdout, done.timed_out), (0, b"started\n", False), "result")
    expect_at_most(done.duration_s, 2 + SLACK_S, "seconds until the return")


async def check_background_process_outlives_its_command(bench: Bench) -> None:
    """A service started in the background is there for the next command."""
    async with bench.sandbox() as sandbox:
        await output(sandbox, "sleep 98763 >/dev/null 2>&1 &")
        alive = await count_processes(sandbox, "98763")

    expect_equal(alive, 1, "background processes alive")


async def check_commands_run_at_once(bench: Bench) -> None:
    """Several commands run at the same time, each with its own output."""
    async with bench.sandbox() as sandbox:
        flag = fresh_path()
        # Each waits for all others: run one after the other, none would ever end.
        script = f"echo >{flag}.$0; while [ $(ls {flag}.* | wc -l) -lt 5 ]; do sleep 0.1; done; echo $0"
        commands = [Command(("sh", "-c", script, str(n)), timeout_s=60) for n in range(5)]
        done = await asyncio.gather(*(sandbox.exec(command) for command in commands))

    expect_equal([d.stdout for d in done], [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"], "outputs")


async def check_kill_leaves_no_process_of_the_user(bench: Bench) -> None:
    """All processes of a user end, also those that ignore signals or have sessions of their own."""
    async with bench.sandbox() as sandbox:
        name = await add_user(sandbox, 4343)
        script = "trap '' TERM INT HUP; sleep 98764 & setsid sleep 98764 & wait"
        running = asyncio.create_task(sh(sandbox, script, user=name))
        await output(sandbox, "sleep 98765 >/dev/null 2>&1 &", user=4344)
        await wait_for_processes(sandbox, "98764", 3)
        await sandbox.kill(name)
        left = await count_processes(sandbox, "98764")
        others = await count_processes(sandbox, "98765")
        done = await running
        await sandbox.kill(4344)
        left_by_id = await count_processes(sandbox, "98765")

    expect_equal((left, left_by_id), (0, 0), "processes left after kill by name and by id")
    expect_equal(others, 1, "processes of another user")
    expect_equal(done.exit_code, 137, "exit code of the killed command")


async def check_kill_of_an_idle_user_is_fine(bench: Bench) -> None:
    """Killing a user without processes does nothing."""
    async with bench.sandbox() as sandbox:
        name = await add_user(sandbox, 4545)
        await sandbox.kill(name)
        await sandbox.kill(name)


async def check_kill_of_root_keeps_the_sandbox(bench: Bench) -> None:
    """Killing root's processes ends what commands started and leaves the sandbox usable."""
    async with bench.fresh(bench.make_spec()) as sandbox:
        await output(sandbox, "setsid sleep 98766 >/dev/null 2>&1 &")
        await sandbox.kill("root")
        left = await count_processes(sandbox, "98766")
        alive = await output(sandbox, "echo alive")

    expect_equal((left, alive), (0, "alive"), "processes left, next command")


async def check_out_of_memory_is_told(bench: Bench) -> None:
    """A process killed for memory sets `oom_killed`, and the sandbox goes on."""
    async with bench.fresh(replace(bench.make_spec(), memory_mb=48)) as sandbox:
        done = await sandbox.exec(Command(("tail", "/dev/zero"), timeout_s=60))
        after = await sh(sandbox, "kill -KILL $$")

    expect_equal((done.exit_code, done.oom_killed), (137, True), "exit code, oom_killed")
    expect_equal((after.exit_code, after.oom_killed), (137, False), "a later plain KILL")


async def check_process_limit_holds(bench: Bench) -> None:
    """No more processes than `pids` can be made."""
    async with bench.fresh(replace(bench.make_spec(), pids=40)) as sandbox:
        script = "i=0; while [ $i -lt 100 ]; do sleep 3 >/dev/null 2>&1 & i=$((i+1)); done"
        done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=30))

    if done.exit_code == 0:
        raise ConformanceError("100 processes were started under a limit of 40.")


EXEC_CHECKS: tuple[Check, ...] = (
    check(check_output_and_exit_code_come_back),
    check(check_arguments_are_not_read_by_a_shell),
    check(check_output_bytes_are_raw),
    check(check_signal_death_is_128_plus_signal),
    check(check_missing_program_is_127),
    check(check_file_without_exec_bit_is_126),
    check(check_missing_workdir_is_126),
    check(check_unknown_user_is_126, "users"),
    check(check_command_runs_as_its_user, "users"),
    check(check_workdir_is_the_current_folder),
    check(check_env_reaches_the_command),
    check(check_env_is_in_no_argv),
    check(check_large_stdin_arrives_and_is_closed),
    check(check_unread_stdin_is_no_error),
    check(check_stdin_is_empty_by_default),
    check(check_huge_output_is_cut_in_the_middle),
    check(check_output_limit_is_the_commands_own),
    check(check_timeout_kills_the_whole_tree),
    check(check_timeout_leaves_other_commands_alone),
    check(check_background_child_does_not_delay_the_return),
    check(check_background_process_outlives_its_command, "background"),
    check(check_commands_run_at_once),
    check(check_kill_leaves_no_process_of_the_user, "users"),
    check(check_kill_of_an_idle_user_is_fine, "users"),
    check(check_kill_of_root_keeps_the_sandbox, "background"),
    check(check_out_of_memory_is_told, "limits"),
    check(check_process_limit_holds, "limits"),
)
"""Checks of running and killing commands."""
