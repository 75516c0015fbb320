"""Tests that look on while an agent is not done: what they see, and what the agent sees of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
SCRIPT = """#!/bin/sh
ls conftest.py sub/sitecustomize.py "$BENCHFLOW_VERIFIER_DIR/answer.txt" 2>/dev/null
if [ -e done.txt ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
sleep 400 </dev/null >/dev/null 2>&1 &
echo '{"results": {"summary": {"tests": 2, "passed": 1, "failed": 1}}}' >/logs/verifier/ctrf.json
"""


RUNNING = "for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' 2>/dev/null <$each | grep -x 'sleep [34]00 '; done; true"


@pytest.fixture
async def context(sandbox: Sandbox, make_task: Callable[..., Task], tmp_path: Path) -> VerifyContext:
    """Place tests on the worker, and an agent's user with planted files in the sandbox."""
    folder = tmp_path / "task"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests/test.sh").write_text(SCRIPT)
    (folder / "tests/answer.txt").write_text("42\n")
    await prepare_user(sandbox, "agent", sandbox.workdir, 60.0)
    return VerifyContext(make_task(), folder, {}, timeout_s=60.0, setup_timeout_s=60.0, agent_user="agent")


async def test_soft_run_purges_hooks_and_leaves_the_agent_its_work_and_its_processes(
    sandbox: Sandbox, context: VerifyContext, shell: Shell, tmp_path: Path
) -> None:
    plant = "mkdir -p sub && touch done.txt conftest.py sub/sitecustomize.py && (sleep 300 </dev/null >/dev/null 2>&1 & echo $! >pid)"
    await shell(sandbox, plant, user="agent")
    logs = tmp_path / "logs"
    logs.mkdir()

    run = await ScriptVerifier().check(sandbox, context, logs)
    verdict = ScriptVerifier().judge(context, run, logs)

    assert run.stdout == b"/tests/answer.txt\n"
    assert verdict.rewards is not None
    assert verdict.rewards["reward"] == 1.0
    assert (logs / "ctrf.json").is_file()
    assert await shell(
        sandbox, "stat -c %U done.txt . sub; kill -0 $(cat pid) && echo lives", user="agent"
    ) == ("agent\nagent\nagent\nlives\n")
    assert await shell(sandbox, RUNNING) == "sleep 300 \n"
    await shell(sandbox, "kill $(cat pid)", user="agent")


async def test_soft_runs_leave_nothing_and_the_verdict_is_that_of_the_hardened_run(
    sandbox: Sandbox, context: VerifyContext, shell: Shell, tmp_path: Path
) -> None:
    for number in range(2):
        logs = tmp_path / f"logs-{number}"
        logs.mkdir()
        await ScriptVerifier().check(sandbox, context, logs)
        assert await shell(sandbox, "ls -d /tests 2>/dev/null; ls -A /logs/verifier; true") == ""
        assert (
            await shell(sandbox, "ls /logs/verifier 2>/dev/null || echo closed", user="agent") == "closed\n"
        )
    await shell(sandbox, "touch done.txt conftest.py", user="agent")

    run = await ScriptVerifier().run(sandbox, context)

    assert run.stdout == b"/tests/answer.txt\n"
    assert await shell(sandbox, "cat /logs/verifier/reward.txt; stat -c %U done.txt") == "1\nroot\n"


async def test_sandbox_whose_tests_cannot_be_taken_away_is_not_fit_for_another_round(
    sandbox: Sandbox, context: VerifyContext, tmp_path: Path
) -> None:
    (context.task_dir / "tests/test.sh").write_text(
        "#!/bin/sh\nmv /bin/rm /bin/gone || mv /usr/bin/rm /usr/bin/gone\n"
    )
    logs = tmp_path / "logs"
    logs.mkdir()

    with pytest.raises(VerifierError) as caught:
        await ScriptVerifier().check(sandbox, context, logs)

    assert caught.value.code == "verifier.harden_failed"
