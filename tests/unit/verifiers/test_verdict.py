"""What is said about a run of the tests, given what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.sandbox.base import Completed
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

STARTED = b"benchflow-verify: begun\nbenchflow-verify: started\n"


def context(*, config: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> VerifyContext:
    task = Task(
        name="fetch-note",
        form="task.toml",
        instruction="",
        config=TaskConfig.model_validate(config or {}),
        verifier_dir="tests",
        oracle_dir=None,
        has_dockerfile=True,
        has_compose=False,
    )
    return VerifyContext(
        task=task, task_dir=Path("/nowhere"), env=env or {}, timeout_s=3, setup_timeout_s=60, agent_user=None
    )


def ended(**changes: Any) -> Completed:
    fields = {
        "exit_code": 0, "stdout": b"", "stderr": STARTED, "stdout_bytes": 0, "stderr_bytes": 0,
        "timed_out": False, "oom_killed": False, "duration_s": 1.0,
    }  # fmt: skip
    return Completed(**{**fields, **changes})


def test_a_valid_reward_is_a_verdict_whatever_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("0.5", encoding="utf-8")

    verdict = ScriptVerifier().judge(context(), ended(exit_code=7), tmp_path)

    assert verdict.rewards == {"reward": 0.5}
    assert verdict.failure is None
    assert verdict.warnings == ()


def test_no_reward_names_the_task_the_exit_code_and_the_last_lines(tmp_path: Path) -> None:
    verdict = ScriptVerifier().judge(context(), ended(exit_code=2, stdout=b"first\nlast words\n"), tmp_path)

    assert verdict.rewards is None
    assert verdict.failure is not None
    assert verdict.failure.code == "verifier.no_reward"
    assert "'fetch-note'" in verdict.failure.message
    assert "exit code 2" in verdict.failure.message
    assert verdict.failure.detail.endswith("last words")


def test_an_invalid_reward_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("nan", encoding="utf-8")

    failure = ScriptVerifier().judge(context(), ended(), tmp_path).failure

    assert failure is not None
    assert failure.code == "verifier.invalid_reward"
    assert "'nan'" in failure.message


def test_a_timeout_is_no_zero_even_beside_a_reward(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1", encoding="utf-8")

    verdict = ScriptVerifier().judge(context(), ended(timed_out=True, exit_code=137), tmp_path)

    assert verdict.rewards is None
    assert verdict.failure is not None
    assert verdict.failure.code == "verifier.timeout"
    assert "'fetch-note' timed out after 3 s" in verdict.failure.message


def test_silence_until_the_deadline_is_the_sandboxs_fault(tmp_path: Path) -> None:
    failure = ScriptVerifier().judge(context(), ended(timed_out=True, stderr=b""), tmp_path).failure

    assert failure is not None
    assert failure.code == "verifier.sandbox_lost"
    assert FAILURES[failure.code].category == "verifier_infra"


def test_a_sandbox_without_a_shell_is_no_verdict(tmp_path: Path) -> None:
    failure = (
        ScriptVerifier().judge(context(), ended(exit_code=127, stderr=b"sh: not found"), tmp_path).failure
    )

    assert failure is not None
    assert failure.code == "verifier.sandbox_lost"
    assert failure.detail == "sh: not found"


def test_a_failed_installation_is_named_without_quoting_the_log(tmp_path: Path) -> None:
    output = b"curl: (6) Could not resolve host: example.invalid\nsecret line\n"

    failure = ScriptVerifier().judge(context(), ended(exit_code=1, stdout=output), tmp_path).failure

    assert failure is not None
    assert failure.code == "verifier.dep_install"
    assert failure.detail == ""
    assert "secret" not in failure.message + failure.hint


def test_a_zero_after_a_failed_installation_stands_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("0", encoding="utf-8")

    verdict = ScriptVerifier().judge(context(), ended(stdout=b"test.sh: 2: uvx: not found\n"), tmp_path)

    assert verdict.rewards == {"reward": 0.0}
    assert "verifier may be broken" in verdict.warnings[0]


@pytest.mark.parametrize("reward", ["1", "0.5"])
def test_a_score_above_zero_is_not_suspected(tmp_path: Path, reward: str) -> None:
    (tmp_path / "reward.txt").write_text(reward, encoding="utf-8")

    assert ScriptVerifier().judge(context(), ended(stdout=b"uvx: not found\n"), tmp_path).warnings == ()


def test_a_zero_with_a_test_report_is_not_suspected(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("0", encoding="utf-8")
    (tmp_path / "ctrf.json").write_text("{}", encoding="utf-8")

    assert ScriptVerifier().judge(context(), ended(stdout=b"uvx: not found\n"), tmp_path).warnings == ()


def test_a_kill_for_memory_is_told(tmp_path: Path) -> None:
    failure = ScriptVerifier().judge(context(), ended(exit_code=137, oom_killed=True), tmp_path).failure

    assert failure is not None
    assert "for memory" in failure.message


def test_the_tasks_range_rule_and_leniency_are_used(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"metrics": {"a": 4, "b": 0}, "note": "x"}', encoding="utf-8")
    config = {"verifier": {"reward_range": [0, 5]}, "reward": {"aggregate": {"method": "mean"}}}

    verdict = ScriptVerifier().judge(
        context(config=config, env={"BENCHFLOW_REWARD_LENIENT": "1"}), ended(), tmp_path
    )

    assert verdict.rewards == {"reward": 2.0, "metrics": {"a": 4.0, "b": 0.0}}


def test_a_detail_is_text_that_any_record_and_terminal_can_take(tmp_path: Path) -> None:
    failure = ScriptVerifier().judge(context(), ended(stdout=b"\xff\x00\x1b[31m end"), tmp_path).failure

    assert failure is not None
    assert failure.detail == "\ufffd\ufffd\ufffd[31m end"
