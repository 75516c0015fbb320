"""The steps between agent and tests: their order, and what each leaves in a real sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.harden import STEPS, hardening_program, steps_for
from benchflow_workers.verifiers.harden_baseline import take_baseline
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
MakeTask = Callable[..., Task]

TOUCH_LATER = (
    "while touch /tmp/later; ! find /tmp/later -newer /opt/benchflow/agent-started | grep -q .; do :; done; "
)
"""Waits until a change has another time than the agent's start."""


async def output(
    sandbox: Sandbox, task: Task, root: Path, script: str, agent_user: str | None = "agent"
) -> str:
    folder = root / str(task.verifier_dir)
    folder.mkdir(exist_ok=True)
    (folder / "test.sh").write_text(script, encoding="utf-8")
    context = VerifyContext(
        task=task, task_dir=root, env={}, timeout_s=60.0, setup_timeout_s=120.0, agent_user=agent_user
    )
    return (await ScriptVerifier().run(sandbox, context)).stdout.decode()


def test_the_thirteen_steps_stand_in_their_order() -> None:
    assert [step.name for step in STEPS] == [
        "processes",
        "logs",
        "reclaim",
        "restore",
        "links",
        "bytecode",
        "owner",
        "conftests",
        "temporary",
        "startup",
        "path",
        "environment",
        "fresh",
    ]


def test_a_program_calls_the_steps_in_the_same_order(make_task: MakeTask) -> None:
    verifier = make_task(verifier={"hardening": {"restore_workspace": True}}).config.verifier

    lines = hardening_program(verifier, "agent").splitlines()

    called = [line.removeprefix("step_") for line in lines if line.startswith("step_") and "(" not in line]
    assert called == [step.name for step in STEPS if step.script]


@pytest.mark.parametrize(
    ("hardening", "agent_user", "left_out"),
    [
        ({}, "agent", {"restore"}),
        ({"restore_workspace": True}, "agent", set()),
        ({"cleanup_conftests": False}, "agent", {"restore", "conftests"}),
        ({"restore_workspace": True}, None, {step.name for step in STEPS} - {"logs", "restore"}),
        ({}, None, {step.name for step in STEPS} - {"logs"}),
    ],
)
def test_an_author_can_leave_out_two_steps_and_a_control_needs_few(
    make_task: MakeTask, hardening: dict[str, Any], agent_user: str | None, left_out: set[str]
) -> None:
    verifier = make_task(verifier={"hardening": hardening}).config.verifier

    due = {step.name for step in steps_for(verifier, agent_user)}

    assert due == {step.name for step in STEPS} - left_out


async def test_a_workspace_comes_back_as_it_was_where_the_task_wants_it(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    task = make_task(verifier={"hardening": {"restore_workspace": True}})
    await shell(
        sandbox, "cd /app; echo all: > Makefile; echo one > kept; echo x > conftest.py; mkdir d; ln -s kept l"
    )
    await take_baseline(sandbox, "/app", timeout_s=60)
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    changes = "cd /app; echo evil > Makefile; echo evil > setup.py; rm kept; echo two > new; rmdir d; echo y > .hidden"
    await shell(sandbox, TOUCH_LATER + changes, user="agent")
    refused = await shell(
        sandbox, "ls /testbed_verify /opt/benchflow/build-snapshot 2>&1 || true", user="agent"
    )

    said = await output(sandbox, task, tmp_path, "ls -A; cat Makefile kept l; stat -c %U . kept\n")

    assert "kept" not in refused
    assert said == "Makefile\nconftest.py\nd\nkept\nl\nall:\none\none\nroot\nroot\n"


async def test_a_control_keeps_to_the_same_workspace(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    task = make_task(verifier={"hardening": {"restore_workspace": True}})
    await shell(sandbox, "echo one > /app/kept")
    await take_baseline(sandbox, "/app", timeout_s=60)
    await shell(sandbox, "echo two > /app/kept; echo answer > /output")

    said = await output(sandbox, task, tmp_path, "cat kept /output\n", agent_user=None)

    assert said == "one\nanswer\n"


async def test_a_workspace_that_cannot_be_copied_starts_no_agent(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match=r"'/not-there' could not be copied") as caught:
        await take_baseline(sandbox, "/not-there", timeout_s=60)

    assert caught.value.code == "sandbox.start_failed"


async def test_byte_code_modules_and_jobs_an_agent_left_are_gone(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(
        sandbox,
        "mkdir -p /app/old/__pycache__ /var/spool/cron/crontabs; echo ours > /app/old/__pycache__/a.pyc; "
        "echo job > /var/spool/cron/crontabs/root; chmod 1777 /var/spool/cron/crontabs",
    )
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    planted = (
        "cd /app; mkdir -p new/__pycache__ ~/.cache/pip; echo x > new/__pycache__/b.pyc; echo x > old/usercustomize.py; "
        "echo x > /tmp/os.py; echo x > /dev/shm/os.py; echo x > /home/agent/.cache/pip/wheel; "
        "echo job > /var/spool/cron/crontabs/agent"
    )
    await shell(sandbox, TOUCH_LATER + "export HOME=/home/agent; " + planted, user="agent")

    look = "find /app /tmp /dev/shm /var/spool/cron/crontabs /home/agent/.cache ! -type d | sort\n"
    said = await output(sandbox, make_task(), tmp_path, look)

    assert said.split() == ["/app/old/__pycache__/a.pyc", "/tmp/later", "/var/spool/cron/crontabs/root"]


async def test_only_who_runs_the_tests_writes_where_verdicts_are_read(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    await shell(sandbox, "cd /logs/verifier; echo 1 > reward.txt; mkdir .d; ln -s /app l", user="agent")
    script = "ls -A /logs/verifier; stat -c '%A %U' /logs/verifier; : > /logs/verifier/mine && echo written\n"

    as_root = await output(sandbox, make_task(), tmp_path, script)
    as_user = await output(sandbox, make_task(verifier={"user": "nobody"}), tmp_path, script)

    assert as_root == "drwxr-xr-x root\nwritten\n"
    assert as_user == "drwxr-xr-x nobody\nwritten\n"
