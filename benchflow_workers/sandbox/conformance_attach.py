"""Conformance checks of `Sandbox.attach`: programs that are talked to."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
import uuid
from dataclasses import replace

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command
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
    sh,
    wait_for_processes,
)
from benchflow_workers.sandbox.listener import LOOPBACK, LoopbackTarget
from benchflow_workers.sandbox.process import Process
from benchflow_workers.sandbox.relay import relayed

_ECHO = 'while read -r line; do echo "got $line"; done'


def _program(script: str) -> Command:
    return Command(("sh", "-c", script), timeout_s=60)


async def _read_until(process: Process, text: bytes) -> bytes:
    """Return what is read up to a text that must come."""
    output = b""
    async with asyncio.timeout(60):
        while text not in output:
            part = await process.read()
            if not part:
                raise ConformanceError(f"Output ended before {text!r}: {output[-300:]!r}.")
            output += part
    return output


async def check_a_program_is_talked_to(bench: Bench) -> None:
    """What is written is read at once, and what it answers as well, many times over."""
    async with bench.sandbox() as sandbox, sandbox.attach(_program(_ECHO)) as process:
        for number in range(20):
            expect_equal(await process.write(f"{number}\n".encode()), True, "is it read")
            await _read_until(process, f"got {number}\n".encode())


async def check_end_of_a_program_is_told(bench: Bench) -> None:
    """Exit code and standard error come at the end, apart from standard output."""
    async with (
        bench.sandbox() as sandbox,
        sandbox.attach(_program("echo out; echo err >&2; exit 5")) as process,
    ):
        output = await _read_until(process, b"out\n")
        rest = await process.read()
        code = await process.wait()

    expect_equal((output, rest), (b"out\n", b""), "standard output")
    expect_equal((code, process.stderr.kept()), (5, b"err\n"), "exit code, standard error")


async def check_a_long_line_passes_both_ways(bench: Bench) -> None:
    """Five megabytes without a line break arrive whole, while both sides write."""
    line = b"x" * (5 << 20) + b"\n"
    async with bench.sandbox() as sandbox, sandbox.attach(_program("exec cat")) as process:
        writing = asyncio.ensure_future(process.write(line))
        output = await _read_until(process, b"\n")
        expect_equal(await writing, True, "is it read")

    expect_equal(len(output), len(line), "bytes that came back")


async def check_leaving_kills_the_whole_tree(bench: Bench) -> None:
    """What a program started is gone with the block, also in sessions of its own."""
    marker = f"bf{uuid.uuid4().hex[:10]}"
    script = f"setsid sh -c 'sleep 300; : {marker}' & sh -c 'sleep 300; : {marker}'"
    async with bench.sandbox() as sandbox:
        async with sandbox.attach(_program(script)):
            await wait_for_processes(sandbox, marker, 2)
        left = await count_processes(sandbox, marker)

    expect_equal(left, 0, "processes left")


async def check_cancelling_kills_the_whole_tree(bench: Bench) -> None:
    """Whoever is stopped while reading leaves nothing running."""
    marker = f"bf{uuid.uuid4().hex[:10]}"
    async with bench.sandbox() as sandbox:

        async def read() -> None:
            async with sandbox.attach(_program(f"sleep 300; : {marker}")) as process:
                await process.read()

        reading = asyncio.ensure_future(read())
        await wait_for_processes(sandbox, marker, 1)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        left = await count_processes(sandbox, marker)

    expect_equal(left, 0, "processes left")


async def check_a_child_that_holds_the_pipe_does_not_hide_the_end(bench: Bench) -> None:
    """Output ends with the program, whoever else could still write."""
    async with bench.sandbox() as sandbox, sandbox.attach(_program("sleep 300 & exit 3")) as process:
        started = time.monotonic()
        output = await process.read()
        code = await process.wait()

    expect_equal((output, code), (b"", 3), "output, exit code")
    expect_at_most(time.monotonic() - started, 3 + SLACK_S, "seconds until the end was seen")


async def check_nobody_reads_what_is_written_after_the_end(bench: Bench) -> None:
    """Writing to a program that ended is told, and is no error."""
    async with bench.sandbox() as sandbox, sandbox.attach(_program("exit 0")) as process:
        await process.wait()
        deadline = time.monotonic() + 30
        while await process.write(b"x" * 65536):
            if time.monotonic() > deadline:
                raise ConformanceError("Writing to a program that ended went on for 30 s.")


async def check_a_program_that_is_missing_ends_at_once(bench: Bench) -> None:
    """It ends with 126 or 127, as a command does."""
    command = Command(("bf-no-such-program",), timeout_s=60)
    async with bench.sandbox() as sandbox, sandbox.attach(command) as process:
        async with asyncio.timeout(60):
            code = await process.wait()

    expect_in(code, (126, 127), "exit code")


async def check_unread_output_fills_no_memory(bench: Bench) -> None:
    """A program that prints for ever waits for its reader."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with bench.sandbox() as sandbox, sandbox.attach(_program("exec yes")) as process:
        await process.read()
        await sh(sandbox, "sleep 1")  # time to print, which nobody reads

    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    expect_at_most(grown_mb, 32, "memory growth in MB")


async def check_a_flood_of_output_leaves_time_for_others(bench: Bench) -> None:
    """While a program prints faster than it is read, time limits of the same loop come."""
    async with bench.sandbox() as sandbox:
        for script in ("exec yes", "yes >&2 & exec yes"):
            async with sandbox.attach(_program(script)) as process:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        while await process.read():
                            pass
                        raise ConformanceError("The output of a program that prints for ever ended.")


async def check_a_program_runs_as_its_user(bench: Bench) -> None:
    """User, variables and folder are the command's."""
    async with bench.sandbox() as sandbox:
        user = await add_user(sandbox, 4321)
        script = _program('echo "$(id -u) $WORD $(pwd)."')
        command = replace(script, user=user, env={"WORD": "a b"}, workdir="/tmp")
        async with sandbox.attach(command) as process:
            output = await _read_until(process, b".\n")

    expect_equal(output, b"4321 a b /tmp.\n", "user, variable, folder")


async def check_connections_are_carried_to_the_worker(bench: Bench) -> None:
    """A megabyte goes to a server of the worker's and one comes back, over the streams of a relay."""
    size = 1_000_000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(size)
        writer.write(b"x" * size)
        writer.close()

    script = f'exec 3<>"/dev/tcp/${{0%:*}}/${{0#*:}}" && head -c {size} /dev/zero >&3 && wc -c <&3'
    async with await asyncio.start_server(answer, LOOPBACK, 0) as server, bench.sandbox() as sandbox:
        target = LoopbackTarget(server.sockets[0].getsockname()[1])
        try:
            async with relayed(sandbox, target) as relay:
                done = await sandbox.exec(Command(("bash", "-c", script, relay.address), timeout_s=60))
                expect_equal(relay.failure, None, "why the relay ended")
        except SandboxError as error:
            raise ConformanceError(f"A relay did not run: {error}") from error

    expect_equal(done.stdout.strip(), str(size).encode(), "bytes that came back")


ATTACH_CHECKS: tuple[Check, ...] = (
    check(check_a_program_is_talked_to),
    check(check_end_of_a_program_is_told),
    check(check_a_long_line_passes_both_ways),
    check(check_leaving_kills_the_whole_tree),
    check(check_cancelling_kills_the_whole_tree),
    check(check_a_child_that_holds_the_pipe_does_not_hide_the_end),
    check(check_nobody_reads_what_is_written_after_the_end),
    check(check_a_program_that_is_missing_ends_at_once),
    check(check_unread_output_fills_no_memory),
    check(check_a_flood_of_output_leaves_time_for_others),
    check(check_a_program_runs_as_its_user, "users"),
    check(check_connections_are_carried_to_the_worker, "scripting"),
)
"""Checks of programs that are talked to."""
