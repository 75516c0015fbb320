"""The oracle, nop and script agents in real sandboxes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun
from benchflow_workers.agents.events import EVENTS_PATH, parse_events
from benchflow_workers.agents.nop import NopAgent
from benchflow_workers.agents.oracle import OracleAgent
from benchflow_workers.agents.script import ScriptAgent
from benchflow_workers.agents.user import AgentUser, prepare_user
from benchflow_workers.sandbox.base import Command, Sandbox, Upload

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]
MakeTask = Callable[..., Task]

USER = "agent"


def context(task: Task, root: Path, *, script: Path | None = None, **changes: Any) -> AgentContext:
    name = "oracle" if script is None else str(script)
    made = AgentContext(
        task=task, task_dir=root, spec=AgentSpec(name=name), script=script,
        env={}, oracle_env={}, timeout_s=30, user=USER, prompts=("",),
    )  # fmt: skip
    return replace(made, **changes)


async def solve(sandbox: Sandbox, task: Task, root: Path, script: bytes | str, **changes: Any) -> AgentRun:
    folder = root / str(task.oracle_dir)
    folder.mkdir(exist_ok=True)
    (folder / "solve.sh").write_bytes(script if isinstance(script, bytes) else script.encode())
    about = context(task, root, **changes)
    await sandbox.put(OracleAgent().uploads(about))
    return await OracleAgent().run(sandbox, about)


async def work(
    sandbox: Sandbox, task: Task, root: Path, script: bytes | str, *, name: str = "bot", **changes: Any
) -> AgentRun:
    """Run a script agent as a trial does: user, program, turn."""
    path = root / name
    path.write_bytes(script if isinstance(script, bytes) else script.encode())
    about = context(task, root, script=path, **changes)
    await prepare_user(sandbox, about.user, sandbox.workdir, timeout_s=60)
    await sandbox.put(ScriptAgent().uploads(about))
    return await ScriptAgent().run(sandbox, about)


async def test_the_oracle_runs_the_solution_as_root_in_the_workspace(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    script = (
        "pwd; id -u; echo $DEBIAN_FRONTEND $TOKEN; ps() { :; }; [[ -n $BASH ]] && echo bash; echo x > out.txt"
    )

    run = await solve(sandbox, make_task(), tmp_path, script, oracle_env={"TOKEN": "t"})

    assert run.exit_code == 0
    assert run.log == b"/app\n0\nnoninteractive t\nbash\n"
    assert run.events == (
        {
            "type": "oracle",
            "command": "bash /solution/solve.sh",
            "return_code": 0,
            "stdout": "/app\n0\nnoninteractive t\nbash",
        },
    )
    assert await shell(sandbox, "cat /app/out.txt") == "x\n"


async def test_a_failing_solution_is_recorded_with_both_streams_in_order(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    run = await solve(sandbox, make_task(native=True), tmp_path, "echo one; echo two >&2; echo three; exit 9")

    assert (run.exit_code, run.timed_out) == (9, False)
    assert run.log == b"one\ntwo\nthree\n"
    assert run.events[0]["command"] == "bash /oracle/solve.sh"


async def test_a_solution_is_stopped_at_its_own_deadline(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    began = time.monotonic()

    run = await solve(sandbox, make_task(oracle={"timeout_sec": 1}), tmp_path, "echo before; sleep 60")

    assert run.timed_out
    assert run.exit_code is None
    assert run.log == b"before\n"
    assert time.monotonic() - began < 20


async def test_a_child_that_holds_the_output_does_not_hold_the_turn(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    script = (cases / "42-child-holds-pipe" / "solution" / "solve.sh").read_bytes()
    began = time.monotonic()

    run = await solve(sandbox, make_task(), tmp_path, script)

    assert (run.exit_code, run.timed_out) == (0, False)
    assert time.monotonic() - began < 12


async def test_output_that_is_no_text_is_kept_raw(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    script = (cases / "22-binary-output" / "solution" / "solve.sh").read_bytes()

    run = await solve(sandbox, make_task(), tmp_path, script)

    assert run.exit_code == 0
    assert run.log.startswith(b"\xff\x00\x1b[31m\r\b\n")
    assert len(run.log) == 5010


async def test_nop_touches_nothing(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    run = await NopAgent().run(sandbox, context(make_task(), tmp_path))

    assert run == AgentRun(exit_code=None, timed_out=False)
    assert await shell(sandbox, "ls -A /app /logs/agent") == "/app:\n\n/logs/agent:\n"


async def test_a_script_runs_unprivileged_in_its_workspace_and_knows_its_places(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    script = (
        "#!/bin/sh\nid -un; pwd; echo $HOME $USER; echo $BENCHFLOW_INSTRUCTION $BENCHFLOW_WORKDIR; "
        "echo $BENCHFLOW_EVENTS $MODE\ncat $BENCHFLOW_INSTRUCTION\n"
        'echo x > out.txt; echo y > $HOME/y; echo z > /logs/artifacts/z; echo \'{"type": "note"}\' >> $BENCHFLOW_EVENTS\n'
        "echo err >&2; exit 4\n"
    )

    run = await work(sandbox, make_task(), tmp_path, script, env={"MODE": "fast"})

    assert run.log.decode() == (
        "agent\n/app\n/home/agent agent\n/instruction.md /app\n/logs/agent/events.jsonl fast\n"
        "Write finished into out.txt.\nerr\n"
    )
    assert run.exit_code == 4
    assert run.events[0]["type"] == "script"
    assert run.events[0]["command"] == "/opt/benchflow/agent/bot"
    assert await shell(sandbox, "stat -c %U /app/out.txt /home/agent/y /logs/artifacts/z") == "agent\n" * 3
    await sandbox.get(EVENTS_PATH, tmp_path / "events.jsonl")
    assert parse_events((tmp_path / "events.jsonl").read_bytes()) == [{"type": "note"}]


async def test_a_home_the_job_sets_is_the_home(sandbox: Sandbox, make_task: MakeTask, tmp_path: Path) -> None:
    run = await work(sandbox, make_task(), tmp_path, "#!/bin/sh\necho $HOME\n", env={"HOME": "/tmp"})

    assert run.log == b"/tmp\n"


async def test_an_agent_sees_no_solution_and_no_tests_and_cannot_change_its_program(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path
) -> None:
    sandbox = await open_sandbox((
        Upload("/solution/solve.sh", content=b"secret\n"),
        Upload("/tests/expected", content=b"secret\n"),
        Upload("/oracle", link_to="/etc"),
    ))
    script = "#!/bin/sh\nfor d in /solution /tests; do ls $d && cat $d/*; done 2>/dev/null; echo x >> $0; rm -f $0; ls /oracle/passwd; ls $0\n"

    run = await work(sandbox, make_task(), tmp_path, script)

    assert b"secret" not in run.log
    assert run.log.endswith(b"/oracle/passwd\n/opt/benchflow/agent/bot\n")


async def test_a_very_long_prompt_arrives_unchanged_by_file(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path, cases: Path, shell: Shell
) -> None:
    prompt = (
        b"$(touch /tmp/pwned) `id` \"double\" 'single' \\ {{ x }} %s \xc3\xa9\n" + b"a long line\n" * 30_000
    )
    sandbox = await open_sandbox((Upload(INSTRUCTION_PATH, content=prompt),))

    await work(sandbox, make_task(), tmp_path, (cases / "44-long-prompt" / "agent.sh").read_bytes())

    assert (await shell(sandbox, "cat /app/out.txt")).split()[0] == hashlib.sha256(prompt).hexdigest()
    assert await shell(sandbox, "ls /tmp/pwned 2>/dev/null || echo none") == "none\n"


async def test_a_python_agent_runs_where_there_is_python_and_is_refused_where_there_is_none(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    has_python = await shell(sandbox, "command -v python3 >/dev/null && echo yes || echo no") == "yes\n"
    script = "import os\nprint(os.environ['BENCHFLOW_WORKDIR'])\n"

    if has_python:
        assert (await work(sandbox, make_task(), tmp_path, script, name="bot.py")).log == b"/app\n"
        return
    with pytest.raises(AgentError, match="it has no python3") as caught:
        await work(sandbox, make_task(), tmp_path, script, name="bot.py")
    assert caught.value.code == "agent.not_runnable"
    assert "'fetch-note'" in caught.value.message


async def test_a_script_whose_interpreter_is_missing_is_not_runnable(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    with pytest.raises(AgentError, match="it has no /opt/none/lua") as caught:
        await work(sandbox, make_task(), tmp_path, "#!/opt/none/lua\n")

    assert caught.value.code == "agent.not_runnable"


async def test_a_script_that_ends_with_127_ran_all_the_same(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    run = await work(sandbox, make_task(), tmp_path, "#!/bin/sh\nno-such-program\n")

    assert run.exit_code == 127
    assert b"no-such-program" in run.log


async def test_a_script_is_stopped_at_its_deadline(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    run = await work(
        sandbox, make_task(), tmp_path, "#!/bin/sh\ntrap '' TERM\necho on\nsleep 60 & wait\n", timeout_s=1
    )

    assert run.timed_out
    assert run.exit_code is None
    assert run.log == b"on\n"


async def test_a_user_is_made_once_and_found_again(sandbox: Sandbox, shell: Shell) -> None:
    first = await prepare_user(sandbox, USER, "/app", timeout_s=60)
    second = await prepare_user(sandbox, USER, "/app", timeout_s=60)

    assert first == second
    assert first.uid >= 1000
    assert first.home == "/home/agent"
    assert await shell(sandbox, "grep -c '^agent:' /etc/passwd") == "1\n"


async def test_a_user_of_the_image_keeps_number_and_home(sandbox: Sandbox) -> None:
    assert await prepare_user(sandbox, "games", "/app", timeout_s=60) == AgentUser(5, 60, "/usr/games")


async def test_a_number_is_a_user_too(sandbox: Sandbox, shell: Shell) -> None:
    assert await prepare_user(sandbox, "4321", "/app", timeout_s=60) == AgentUser(
        4321, 4321, "/home/user4321"
    )
    assert await shell(sandbox, "id -un; touch /app/x", user=4321) == "user4321\n"


async def test_a_user_is_added_after_a_last_line_without_its_end(sandbox: Sandbox, shell: Shell) -> None:
    await shell(sandbox, "printf 'last:x:999:999::/:/bin/sh' >> /etc/passwd")

    await prepare_user(sandbox, USER, "/app", timeout_s=60)

    assert await shell(sandbox, "tail -n 2 /etc/passwd | cut -d: -f1") == "last\nagent\n"


async def test_links_in_the_workspace_are_given_and_their_targets_are_not(
    sandbox: Sandbox, shell: Shell
) -> None:
    await shell(sandbox, "ln -s /etc/hostname /app/link; mkdir -p /app/sub; touch /app/sub/file")

    await prepare_user(sandbox, USER, "/app", timeout_s=60)

    assert await shell(sandbox, "stat -c %U /app/link /app/sub/file /etc/hostname") == "agent\nagent\nroot\n"


async def test_root_needs_no_user_but_gets_its_folders(sandbox: Sandbox, shell: Shell) -> None:
    assert await prepare_user(sandbox, "root", "/app/deep", timeout_s=60) == AgentUser(0, 0, "/root")
    assert await shell(sandbox, "stat -c %U /app/deep /logs/agent") == "root\nroot\n"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x:0", "UPPER"])
async def test_a_name_that_is_no_user_name_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(AgentError, match="is not a name of a user") as caught:
        await prepare_user(sandbox, name, "/app", timeout_s=60)

    assert caught.value.code == "agent.not_runnable"


async def test_an_image_that_takes_no_user_says_why(sandbox: Sandbox) -> None:
    await sandbox.exec(Command(("sh", "-c", "rm -rf /home && touch /home"), timeout_s=60))

    with pytest.raises(AgentError, match="home /home/agent cannot be made") as caught:
        await prepare_user(sandbox, USER, "/app", timeout_s=60)

    assert caught.value.code == "agent.not_runnable"
