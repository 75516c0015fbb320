"""A reward kit's criteria decide which metrics it must write, and what reward they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.sandbox.base import Completed
from benchflow_workers.verifiers.base import Verdict, VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

TWO = '[[criterion]]\nname = "form"\nweight = 3\n[[criterion]]\nid = "tone"\n'
RUN = Completed(
    exit_code=0, stdout=b"", stderr=b"benchflow-verify: begun\nbenchflow-verify: started\n",
    stdout_bytes=0, stderr_bytes=0, timed_out=False, oom_killed=False, duration_s=1.0,
)  # fmt: skip
KIT = {"name": "main", "type": "reward-kit", "criteria": "criteria.toml"}


def judged(folder: Path, answer: str, criteria: str = TWO, **strategy: Any) -> Verdict:
    """Return the verdict on what a kit wrote."""
    (folder / "verifier").mkdir()
    (folder / "verifier" / "criteria.toml").write_text(criteria, encoding="utf-8")
    (folder / "logs").mkdir()
    (folder / "logs" / "reward.json").write_text(answer, encoding="utf-8")
    task = Task(
        name="fetch-note", form="task.md", instruction="", config=TaskConfig(), verifier_dir="verifier",
        oracle_dir=None, has_dockerfile=True, has_compose=False,
        document={"verifier_strategy": strategy or KIT},
    )  # fmt: skip
    context = VerifyContext(
        task=task, task_dir=folder, env={}, timeout_s=3, setup_timeout_s=60, agent_user=None
    )
    return ScriptVerifier().judge(context, RUN, folder / "logs")


def test_the_weights_of_the_criteria_make_the_reward(tmp_path: Path) -> None:
    found = judged(tmp_path, '{"metrics": {"form": 1, "tone": 0.5}}')

    assert found.rewards == {"reward": 0.875, "metrics": {"form": 1.0, "tone": 0.5}}


def test_a_threshold_of_the_criteria_makes_a_whole_reward(tmp_path: Path) -> None:
    criteria = TWO + '[scoring]\naggregation = "threshold"\nthreshold = 0.9\n'

    found = judged(tmp_path, '{"metrics": {"form": 1, "tone": 0.5}}', criteria)

    assert (found.rewards or {})["reward"] == 0.0


@pytest.mark.parametrize(
    ("answer", "criteria", "reason"),
    [
        ('{"metrics": {"form": 1}}', TWO, "aggregate.weights names 'tone', which has no number"),
        ('{"metrics": {"form": 1, "tone": 1, "x": 1}}', TWO, "its criteria are form, tone"),
        ('{"reward": 0.5, "metrics": {"form": 1}}', TWO, "its criteria are form, tone"),
        ('{"reward": 1, "metrics": {"form": 1, "tone": 0.5}}', TWO, "its criteria make 0.875 of its metrics"),
        ("0.5", TWO, "wrote the metrics 'none'"),
        ("1", "criterion = 3", "declare no [[criterion]]"),
        ("1", '[[criterion]]\nname = "a"\n[[criterion]]\nname = "a"\n', "name one criterion twice"),
        ("1", "[[criterion]]\nweight = 1\n", "has no name"),
        ("1", "[[", "cannot be read"),
        ("1", '[[criterion]]\nname = "a"\n[scoring]\naggregation = "best"\n', "aggregate.method is 'best'"),
    ],
)
def test_metrics_that_do_not_fit_the_criteria_are_no_verdict(
    tmp_path: Path, answer: str, criteria: str, reason: str
) -> None:
    found = judged(tmp_path, answer, criteria)

    assert (found.rewards, found.failure is not None) == (None, True)
    assert found.failure is not None
    assert found.failure.code == "verifier.invalid_reward"
    assert reason in found.failure.message


def test_a_policy_of_the_document_makes_a_reward_of_metrics(tmp_path: Path) -> None:
    strategy = {"name": "main", "command": "./x.sh", "aggregate_policy": {"method": "mean"}}

    found = judged(tmp_path, '{"metrics": {"a": 1, "b": 0}}', **strategy)

    assert (found.rewards or {})["reward"] == 0.5
