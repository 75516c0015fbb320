"""The test-script verifier in real sandboxes: what it runs, what it removes, what it says."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError, VerifierError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.oracle import OracleAgent
from benchflow_workers.agents.script import ScriptAgent
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload
from benchflow_workers.sandbox.process import Process
from benchflow_workers.verifiers.base import Verdict, VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]
MakeTask = Callable[..., Task]

PASS = "echo 1 > /logs/verifier/reward.txt\n"


class Watched:
    """A sandbox that passes everything on, counts commands, and wedges, answers or loses the first ones."""

    def __init__(
        self, real: Sandbox, *, wedged: frozenset[int] = frozenset(), answers: Sequence[Completed] = ()
    ) -> None:
        self.real, self.wedged, self.answers = real, wedged, list(answers)
        self.commands: list[Command] = []

    @property
    def id(self) -> str:
        return self.real.id

    @property
    def workdir(self) -> str:
        return self.real.workdir

    async def exec(self, command: Command) -> Completed:
        self.commands.append(command)
        if len(self.commands) in self.wedged:
            await asyncio.Event().wait()
        if self.answers:
            return self.answers.pop(0)
        return await self.real.exec(command)

    def attach(self, command: Command) -> AbstractAsyncContextManager[Process]:
        return self.real.attach(command)

    async def kill(self, user: str | int) -> None:
        await self.real.kill(user)

    async def put(self, uploads: Sequence[Upload]) -> None:
        await self.real.put(uploads)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        return await self.real.get(path, target, limit_bytes=limit_bytes)

    async def close(self) -> None:
        await self.real.close()


class Unkillable(Watched):
    """A sandbox in which a process cannot be killed."""

    def __init__(self, real: Sandbox, code: str) -> None:
        super().__init__(real)
        self.code = code

    async def kill(self, user: str | int) -> None:
        raise SandboxError(self.code, f"a process of {user} is left")


def answer(exit_code: int, stderr: bytes, *, timed_out: bool = False) -> Completed:
    return Completed(exit_code, b"", stderr, 0, len(stderr), timed_out, oom_killed=False, duration_s=0.1)


def about(task: Task, root: Path, **changes: Any) -> VerifyContext:
    fields = {"env": {}, "timeout_s": 30.0, "setup_timeout_s": 120.0, "agent_user": None}
    return VerifyContext(task=task, task_dir=root, **{**fields, **changes})


def place_tests(task: Task, root: Path, script: str | Path) -> None:
    """Put a test script, or a case's tests, into a task's folder."""
    folder = root / str(task.verifier_dir)
    if isinstance(script, Path):
        shutil.copytree(script, folder, dirs_exist_ok=True)
        return
    folder.mkdir(exist_ok=True)
    (folder / "test.sh").write_text(script, encoding="utf-8", newline="")


async def verify(sandbox: Sandbox, context: VerifyContext, logs: Path) -> tuple[Completed, Verdict]:
    """Run the tests, collect and judge as a trial does."""
    run = await ScriptVerifier().run(sandbox, context)
    await sandbox.get("/logs/verifier", logs)
    return run, ScriptVerifier().judge(context, run, logs)


async def agent_ready(sandbox: Sandbox, shell: Shell) -> None:
    await prepare_user(sandbox, "agent", sandbox.workdir, timeout_s=60)
    # An inode's change time has the clock's grain: what an agent does comes later than the mark.
    await shell(
        sandbox,
        "while touch /tmp/later; ! find /tmp/later -newer /opt/benchflow/agent-started | grep -q .; do :; done",
    )


async def test_a_control_is_verified_in_one_command(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    task = make_task()
    shutil.copytree(cases / "16-plain" / "solution", tmp_path / "solution")
    place_tests(task, tmp_path, cases / "16-plain" / "tests")
    oracle = AgentContext(task, tmp_path, AgentSpec(name="oracle"), None, {}, {}, 30, "root", ("",))
    await sandbox.put(OracleAgent().uploads(oracle))
    await OracleAgent().run(sandbox, oracle)
    watched = Watched(sandbox)

    run, verdict = await verify(watched, about(task, tmp_path), tmp_path / "logs")

    assert verdict == Verdict({"reward": 1.0}, None)
    assert run.exit_code == 0
    assert len(watched.commands) == 1


async def test_an_agent_that_did_nothing_gets_a_zero(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path, shell: Shell
) -> None:
    place_tests(make_task(), tmp_path, cases / "16-plain" / "tests")
    await agent_ready(sandbox, shell)

    _, verdict = await verify(sandbox, about(make_task(), tmp_path, agent_user="agent"), tmp_path / "logs")

    assert verdict.rewards == {"reward": 0.0}


@pytest.mark.parametrize(
    ("case", "rewards", "code"),
    [
        ("02-bare-number", {"reward": 0.75}, None),
        ("04-stops-before-reward", None, "verifier.no_reward"),
        ("08-metrics-only", None, "verifier.invalid_reward"),
        ("12-tools-not-there", {"reward": 0.0}, None),
        ("22-binary-output", {"reward": 1.0}, None),
    ],
)
async def test_a_known_fault_is_scored_or_named(
    sandbox: Sandbox,
    make_task: MakeTask,
    tmp_path: Path,
    cases: Path,
    case: str,
    rewards: dict[str, float] | None,
    code: str | None,
) -> None:
    place_tests(make_task(), tmp_path, cases / case / "tests")

    _, verdict = await verify(sandbox, about(make_task(), tmp_path), tmp_path / "logs")

    assert verdict.rewards == rewards
    assert (verdict.failure.code if verdict.failure else None) == code
    if verdict.failure:
        assert "exit code" in verdict.failure.message
        assert "reward" in verdict.failure.message


async def test_a_zero_because_no_tool_could_be_fetched_is_suspected(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    place_tests(make_task(), tmp_path, cases / "12-tools-not-there" / "tests")

    _, verdict = await verify(sandbox, about(make_task(), tmp_path), tmp_path / "logs")

    assert ["verifier may be broken" in warning for warning in verdict.warnings] == [True]


@pytest.mark.parametrize("case", ["14-tests-never-end", "20-silent-and-slow"])
async def test_tests_that_never_end_are_stopped_and_are_no_zero(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path, case: str, shell: Shell
) -> None:
    place_tests(make_task(), tmp_path, cases / case / "tests")
    watched, began = Watched(sandbox), time.monotonic()

    run, verdict = await verify(watched, about(make_task(), tmp_path, timeout_s=3), tmp_path / "logs")

    assert run.timed_out
    assert 3 <= time.monotonic() - began < 20
    assert verdict.rewards is None
    assert verdict.failure is not None
    assert verdict.failure.code == "verifier.timeout"
    assert "'fetch-note' timed out after 3 s" in verdict.failure.message
    assert len(watched.commands) == 1
    left = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c '^sleep 313' || true"
    assert await shell(sandbox, left) == "0\n"


@pytest.mark.parametrize(
    ("verifier", "wedged", "commands"),
    [({}, 1, 3), ({"user": "nobody"}, 1, 3), ({"user": "nobody"}, 2, 4)],
    ids=["one command", "preparing", "testing"],
)
async def test_a_dead_channel_is_tried_once_more_without_the_agent(
    sandbox: Sandbox,
    make_task: MakeTask,
    tmp_path: Path,
    verifier: dict[str, str],
    wedged: int,
    commands: int,
) -> None:
    task = make_task(verifier=verifier)
    place_tests(task, tmp_path, PASS)
    watched = Watched(sandbox, wedged=frozenset({wedged}))

    _, verdict = await verify(
        watched, about(task, tmp_path, timeout_s=4, setup_timeout_s=4), tmp_path / "logs"
    )

    assert verdict.rewards == {"reward": 1.0}
    assert len(watched.commands) == commands


async def test_a_channel_that_stays_dead_is_the_sandboxs_fault(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    place_tests(make_task(), tmp_path, PASS)
    context = about(make_task(), tmp_path, timeout_s=1, setup_timeout_s=1)

    run = await ScriptVerifier().run(Watched(sandbox, wedged=frozenset({1, 2})), context)
    verdict = ScriptVerifier().judge(context, run, tmp_path)

    assert verdict.failure is not None
    assert verdict.failure.code == "verifier.sandbox_lost"


async def test_much_output_is_bounded_with_head_tail_and_a_marker(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    place_tests(make_task(), tmp_path, cases / "24-much-output" / "tests")

    run, verdict = await verify(sandbox, about(make_task(), tmp_path, timeout_s=60), tmp_path / "logs")

    assert verdict.rewards == {"reward": 1.0}
    assert run.stdout_bytes == 60_000_009
    assert len(run.stdout) < 1_100_000
    assert b"bytes truncated" in run.stdout
    assert run.stdout.endswith(b"\nTHE-END\n")


async def test_nothing_of_the_agent_acts_while_the_tests_run(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path, shell: Shell
) -> None:
    case = cases / "40-agent-leaves-writer"
    place_tests(make_task(), tmp_path, case / "tests")
    agent = AgentContext(
        make_task(), tmp_path, AgentSpec(name="bots/agent.sh"), case / "agent.sh", {}, {}, 20, "agent", ("",)
    )
    await agent_ready(sandbox, shell)
    await sandbox.put(ScriptAgent().uploads(agent))
    await ScriptAgent().run(sandbox, agent)

    _, verdict = await verify(sandbox, about(make_task(), tmp_path, agent_user="agent"), tmp_path / "logs")

    assert verdict.rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    ("code", "raised"), [("sandbox.exec_failed", "verifier.harden_failed"), ("sandbox.lost", "sandbox.lost")]
)
async def test_an_agent_that_cannot_be_stopped_gets_no_verdict(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, code: str, raised: str
) -> None:
    place_tests(make_task(), tmp_path, PASS)

    with pytest.raises((SandboxError, VerifierError)) as caught:
        await ScriptVerifier().run(
            Unkillable(sandbox, code), about(make_task(), tmp_path, agent_user="agent")
        )

    assert caught.value.code == raised


async def test_what_an_agent_planted_is_gone_and_what_the_image_brought_is_there(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    sandbox = await open_sandbox((
        Upload("/app/conftest.py", content=b"# the author's\n"),
        Upload("/tmp/author.py", content=b"# the author's\n"),
        Upload("/app/image-link", link_to="/etc/hostname"),
    ))
    await agent_ready(sandbox, shell)
    plant = (
        "mkdir -p /app/deep /app/real; touch /app/deep/conftest.py /tmp/evil.py /home/agent/conftest.py; "
        "echo kept > /app/real/file; ln -s real/file /app/inner; ln -s /app/real /app/inner2; "
        "ln -s /tests /app/outer; ln -s /logs/verifier/reward.txt /app/outer2; ln -s ../home/agent/x /app/outer3; "
        "ln -s /usr/bin/env /app/system; ln -s gone/later /app/dangling; ln -s ../../gone/x /app/dangling2; "
        "echo 1 > /logs/verifier/reward.txt; echo x > /logs/verifier/.hidden"
    )
    await shell(sandbox, plant, user="agent")
    place_tests(
        make_task(),
        tmp_path,
        "ls -A /app /app/deep /tmp /home/agent /logs/verifier; stat -c %U /app/real/file\n",
    )

    run, verdict = await verify(sandbox, about(make_task(), tmp_path, agent_user="agent"), tmp_path / "logs")

    lines = run.stdout.decode().split()
    assert {"conftest.py", "image-link", "author.py", "inner", "inner2", "system", "dangling"} <= set(lines)
    assert not {"evil.py", "outer", "outer2", "outer3", "dangling2", ".hidden", "reward.txt"} & set(lines)
    assert lines.count("conftest.py") == 1
    assert lines[-1] == "root"
    assert verdict.failure is not None
    assert verdict.failure.code == "verifier.no_reward"


async def test_native_tests_are_found_under_both_names(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task(native=True)
    place_tests(task, tmp_path, "#!/bin/sh\necho $0 $BENCHFLOW_VERIFIER_DIR $(readlink /tests); " + PASS)

    run, verdict = await verify(sandbox, about(task, tmp_path), tmp_path / "logs")

    assert run.stdout == b"/verifier/test.sh /verifier /verifier\n"
    assert verdict.rewards == {"reward": 1.0}


@pytest.mark.parametrize("agent_user", [None, "agent"])
async def test_tests_run_as_the_user_the_task_names(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell, agent_user: str | None
) -> None:
    task = make_task(verifier={"user": "nobody"})
    await agent_ready(sandbox, shell)
    place_tests(task, tmp_path, "id -un; umask; pwd; " + PASS)

    run, verdict = await verify(sandbox, about(task, tmp_path, agent_user=agent_user), tmp_path / "logs")

    assert run.stdout == b"nobody\n0022\n/app\n"
    assert verdict.rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/bash\r\nset -e\r\n[[ -n $BASH ]]\r\n" + PASS.replace("\n", "\r\n"),
        "#!/usr/bin/env bash\n[[ -n $BASH ]] && " + PASS,
        "#!/opt/none/zsh\n[[ -n $BASH ]] && " + PASS,
        "[[ -n $BASH ]] && " + PASS,
    ],
    ids=["windows line ends", "env", "missing interpreter", "no interpreter"],
)
async def test_a_test_script_is_run_by_what_can_run_it(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, script: str
) -> None:
    place_tests(make_task(), tmp_path, script)

    _, verdict = await verify(sandbox, about(make_task(), tmp_path), tmp_path / "logs")

    assert verdict.rewards == {"reward": 1.0}


async def test_streams_come_in_order_and_standard_input_is_empty(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    place_tests(make_task(), tmp_path, "cat; echo one; echo two >&2; echo three; " + PASS)

    run, _ = await verify(sandbox, about(make_task(), tmp_path), tmp_path / "logs")

    assert run.stdout == b"one\ntwo\nthree\n"


async def test_tests_see_their_variables_and_trusted_programs_only(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    script = "echo $PATH; echo [$PYTHONPATH] $TOKEN $BENCHFLOW_TASK_ID $BENCHFLOW_AGENT_CWD $HOME\n"
    place_tests(make_task(), tmp_path, script)

    run, _ = await verify(sandbox, about(make_task(), tmp_path, env={"TOKEN": "t"}), tmp_path / "logs")

    path, rest = run.stdout.decode().splitlines()
    assert "/usr/bin" in path.split(":")
    assert len(path.split(":")) == len(set(path.split(":")))
    assert rest == "[] t fetch-note /app /root"


async def test_a_task_may_set_its_own_search_paths(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    env = {"PATH": "/opt/tools:/usr/bin:/bin", "PYTHONPATH": "/app/lib"}
    place_tests(make_task(), tmp_path, "echo $PATH $PYTHONPATH\n")

    run, _ = await verify(sandbox, about(make_task(), tmp_path, env=env), tmp_path / "logs")

    assert run.stdout == b"/opt/tools:/usr/bin:/bin /app/lib\n"


@pytest.mark.parametrize("agent_user", [None, "agent"])
async def test_a_deleted_workspace_is_made_again_for_the_tests(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell, agent_user: str | None
) -> None:
    await agent_ready(sandbox, shell)
    await sandbox.exec(Command(("rm", "-rf", "/app"), timeout_s=30, workdir="/"))
    place_tests(make_task(), tmp_path, "pwd; ls -A; " + PASS)

    run, verdict = await verify(
        sandbox, about(make_task(), tmp_path, agent_user=agent_user), tmp_path / "logs"
    )

    assert run.stdout == b"/app\n"
    assert verdict.rewards == {"reward": 1.0}


async def test_large_tests_go_by_the_sandboxs_own_transfer(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    place_tests(make_task(), tmp_path, "stat -c %s /tests/data; " + PASS)
    (tmp_path / "tests" / "data").write_bytes(bytes(9 << 20))
    watched = Watched(sandbox)

    run, verdict = await verify(watched, about(make_task(), tmp_path), tmp_path / "logs")

    assert run.stdout == b"9437184\n"
    assert verdict.rewards == {"reward": 1.0}
    assert all(command.stdin is None for command in watched.commands)


async def test_an_image_without_tar_gets_its_tests_all_the_same(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(sandbox, "rm -f /bin/tar /usr/bin/tar")
    place_tests(make_task(), tmp_path, PASS)

    _, verdict = await verify(sandbox, about(make_task(), tmp_path), tmp_path / "logs")

    assert verdict.rewards == {"reward": 1.0}


async def test_a_sandbox_without_programs_is_lost_and_no_zero(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    place_tests(make_task(), tmp_path, cases / "16-plain" / "tests")
    script = (cases / "50-removes-programs" / "solution" / "solve.sh").read_text(encoding="utf-8")
    await sandbox.exec(Command(("sh", "-c", script), timeout_s=30))
    context = about(make_task(), tmp_path)

    try:
        run = await ScriptVerifier().run(sandbox, context)
        failure = ScriptVerifier().judge(context, run, tmp_path / "logs").failure
        code = failure.code if failure else ""
    except (SandboxError, VerifierError) as error:
        code = error.code

    assert code in {"sandbox.lost", "sandbox.exec_failed", "verifier.sandbox_lost", "verifier.harden_failed"}


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"benchflow-verify: begun\nbenchflow-verify: failed disk\n", "verifier.sandbox_lost"),
        (b"benchflow-verify: begun\nbenchflow-verify: failed workspace\n", "verifier.sandbox_lost"),
        (b"benchflow-verify: begun\nbenchflow-verify: failed logs\n", "verifier.harden_failed"),
    ],
)
@pytest.mark.parametrize("agent_user", [None, "root"])
async def test_a_step_that_fails_before_the_tests_is_named(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, said: bytes, code: str, agent_user: str | None
) -> None:
    place_tests(make_task(), tmp_path, PASS)
    watched = Watched(sandbox, answers=[answer(97, said)])

    with pytest.raises(VerifierError, match="'fetch-note'") as caught:
        await ScriptVerifier().run(watched, about(make_task(), tmp_path, agent_user=agent_user))

    assert caught.value.code == code


async def test_preparation_that_takes_too_long_is_no_wedge(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    place_tests(make_task(), tmp_path, PASS)
    watched = Watched(sandbox, answers=[answer(137, b"benchflow-verify: begun\n", timed_out=True)])

    with pytest.raises(VerifierError, match="120 s for set-up") as caught:
        await ScriptVerifier().run(watched, about(make_task(), tmp_path, agent_user="root"))

    assert caught.value.code == "verifier.harden_failed"
