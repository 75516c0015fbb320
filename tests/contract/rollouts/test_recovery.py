"""What an agent left outlives its attempt: a later one verifies it again, and no agent runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.recovery import SOLVER_COMPLETE
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, SandboxProvider, SandboxSpec
from tests.rollouts import Ran, Rollouts
from tests.worlds import write_task

TASKS = Path(__file__).parents[2] / "assets" / "tasks"
LOCAL = pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.root)], indirect=True)
"""What is decided on the worker, whatever the sandbox."""

DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN echo old > kept && echo old > gone\n"
TEST = '#!/bin/sh\n[ -e gone ] || [ "$(cat kept)" != new ] || echo 1 > /logs/verifier/reward.txt\n'
AGENT = "#!/bin/sh\necho ran; echo new > kept; rm gone\n"


class Dying:
    """A sandbox that is lost as soon as the tests begin."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exec(self, command: Command) -> Completed:
        if "benchflow-verify" in command.argv:
            raise SandboxError("sandbox.lost", "The host is gone.")
        return await self._inner.exec(command)


class FirstDies:
    """A provider whose first sandbox is lost when the tests begin."""

    def __init__(self, inner: SandboxProvider) -> None:
        self._inner = inner
        self.opened = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, spec: SandboxSpec) -> Any:
        self.opened += 1
        sandbox = await self._inner.open(spec)
        return Dying(sandbox) if self.opened == 1 else sandbox


@pytest.fixture
def rollouts(provider: SandboxProvider, kind: str, tmp_path: Path) -> Rollouts:
    dies: Any = FirstDies(provider)
    return Rollouts(dies, kind, tmp_path)


def recovery(ran: Ran) -> dict[str, Any]:
    (file,) = ran.folder.glob("verifier-recovery/*/recovery.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


async def test_workspace_is_verified_again_after_its_sandbox_was_lost_and_the_agent_does_not_run(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    task = write_task(
        tmp_path / "again",
        toml="[verifier]\nworkspace_recovery = true\n",
        files={"environment/Dockerfile": DOCKERFILE, "tests/test.sh": TEST},
    )

    first = await rollouts.run(task, AGENT, job="again")
    second = await rollouts.run(task, AGENT, job="again", number=2)

    assert [failure.code for failure in first.result.failures] == ["verifier.sandbox_lost"]
    assert (first.rollout.agent_log, first.rollout.is_solver_kept) == (b"ran\n", True)
    assert (second.result.reward, second.rollout.agent_log) == (1.0, b""), second.said()
    assert second.result.agent_exit_code == first.result.agent_exit_code == 0
    said = recovery(second)
    assert (said["status"], said["solver_replayed"], said["recovered_rewards"]) == (
        "complete",
        False,
        {"reward": 1.0},
    )
    assert (said["solver_folder"], said["original_error"]) == (
        first.result.rollout_name,
        "The host is gone.",
    )
    assert f"left in attempt {first.result.rollout_name} was verified again" in second.result.warnings[-1]


async def test_only_submission_files_are_kept_and_put_back(rollouts: Rollouts) -> None:
    first = await rollouts.run(TASKS / "submission-files", job="files")
    second = await rollouts.run(TASKS / "submission-files", job="files", number=2)

    assert second.result.reward == 1.0, second.said()
    assert second.rollout.test_output == b"answer.txt\n"
    manifest = json.loads((first.folder / "evidence" / "manifest.json").read_text(encoding="utf-8"))
    assert [line["path"] for line in manifest["files"] if "sha256" in line] == [
        "app/answer.txt",
        "srv/out/notes.md",
    ]
    done = json.loads((first.folder / SOLVER_COMPLETE).read_text(encoding="utf-8"))
    assert (done["frozen"]["is_whole"], done["frozen"]["missing"]) == (False, ["/app/optional.txt"])


@LOCAL
async def test_submission_is_what_a_sandbox_of_the_tests_own_is_given_too(rollouts: Rollouts) -> None:
    first = await rollouts.run(TASKS / "submission-files", job="apart", separate_verifier=True)

    assert first.result.reward == 1.0, first.said()


@LOCAL
async def test_work_of_an_attempt_whose_worker_died_is_found_and_that_of_an_unfinished_one_is_not(
    rollouts: Rollouts,
) -> None:
    first = await rollouts.run(TASKS / "submission-files", job="died")
    (first.folder / "result.json").unlink()

    second = await rollouts.run(TASKS / "submission-files", job="died", number=2)
    for folder in (first.folder, second.folder):
        (folder / SOLVER_COMPLETE).unlink()
    third = await rollouts.run(TASKS / "submission-files", job="died", number=3)

    assert (second.result.reward, recovery(second)["original_error"]) == (1.0, None)
    assert (third.result.reward, third.rollout.recovery) == (1.0, None)
    assert third.rollout.test_output == b"answer.txt\nscratch.txt\n"
