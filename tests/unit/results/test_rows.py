"""Rows of trials: flat for CSV, and in the shape of Verifiers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from benchflow_client.results.read import PublishedTrial
from benchflow_client.results.rows import (
    COLUMNS,
    named_numbers,
    published_row,
    receipt_row,
    to_row,
    write_csv,
)
from benchflow_client.results.verifiers_row import to_verifiers_row
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import AgentUsage, Outcome, Receipt, TrialResult
from benchflow_client.store.documents import json_lines

MakeResult = Callable[..., TrialResult]
MakeReceipt = Callable[..., Receipt]

REWARDS: dict[str, Any] = {
    "reward": 0.5,
    "style": 0.25,
    "is_fast": True,
    "huge": float("inf"),
    "rubric": [{"name": "clear", "score": 1}, {"score": 0.5}, "no criterion"],
    "metrics": {"lines": 12},
    "details": {"why": "half of the tests passed"},
}


def verifier_failure(make_result: MakeResult) -> TrialResult:
    return make_result(
        0,
        outcome=Outcome.VERIFIER_ERRORED,
        rewards=None,
        verifier_error="tests/test.sh wrote no reward",
        verifier_error_category="verifier_failure",
        failures=(Failure(code="verifier.no_reward", message="tests/test.sh wrote no reward"),),
    )


def test_row_of_a_passed_trial(make_result: MakeResult, plan: Plan) -> None:
    assert to_row(make_result(3, 2)) == {
        "task": "fix-build",
        "agent": "nop",
        "model": None,
        "try": 1,
        "outcome": "passed",
        "reward": 1.0,
        "error_category": None,
        "code": None,
        "attempt": 2,
        "seconds": 2.25,
        "agent_seconds": 1.5,
        "verifier_seconds": 0.5,
        "input_tokens": None,
        "output_tokens": None,
        "tokens": None,
        "cost_usd": None,
        "skill_uses": 0,
        "started_at": "2026-11-29T10:00:00+00:00",
        "finished_at": "2026-11-29T10:00:02.250000+00:00",
        "folder": plan.trial(3).folder(2),
        "trial": "calm-otter-7f3a.fix-build.nop.1",
        "index": 3,
    }


def test_trial_without_a_verdict_has_no_reward_and_a_cause(make_result: MakeResult) -> None:
    row = to_row(verifier_failure(make_result))

    assert row["reward"] is None
    assert (row["outcome"], row["error_category"], row["code"]) == (
        "verifier_errored",
        "verifier_failure",
        "verifier.no_reward",
    )


def test_known_usage_is_in_the_row(make_result: MakeResult) -> None:
    usage = AgentUsage(n_input_tokens=900, n_output_tokens=100, total_tokens=1000, cost_usd=0.12)

    row = to_row(make_result(0, agent_result=usage))

    assert (row["input_tokens"], row["output_tokens"], row["tokens"], row["cost_usd"]) == (
        900,
        100,
        1000,
        0.12,
    )


def test_named_numbers_are_columns_and_nothing_else_is() -> None:
    assert named_numbers(REWARDS) == {
        "rewards.style": 0.25,
        "metrics.lines": 12,
        "rubric.clear": 1,
        "rubric.1": 0.5,
    }
    assert named_numbers(None) == {}
    assert named_numbers({"reward": 1.0, "rubric": None, "metrics": "none", "n": 10**400}) == {
        "rewards.n": 10**400
    }


def test_receipt_alone_makes_a_row_with_the_same_columns(plan: Plan, make_receipt: MakeReceipt) -> None:
    receipt = make_receipt(2, 3, outcome="errored", reward=None, code="worker.lost", folder="")

    row = receipt_row(plan, receipt)

    assert tuple(row) == COLUMNS
    assert (row["task"], row["agent"], row["try"]) == ("fix-build", "oracle", 1)
    assert (row["outcome"], row["reward"], row["attempt"]) == ("errored", None, 3)
    assert (row["error_category"], row["code"]) == ("infra_failure", "worker.lost")
    assert row["folder"] is None
    assert row["started_at"] is None


def test_published_trial_is_told_by_its_result_else_by_its_receipt(
    plan: Plan, make_result: MakeResult, make_receipt: MakeReceipt
) -> None:
    receipt, result = make_receipt(1), make_result(1)

    assert published_row(plan, PublishedTrial(receipt, result)) == to_row(result)
    assert published_row(plan, PublishedTrial(receipt, None)) == receipt_row(plan, receipt)


def test_csv_has_all_columns_and_empty_cells_for_no_value(make_result: MakeResult) -> None:
    stream = io.StringIO()

    write_csv([to_row(make_result(0)), to_row(make_result(1, rewards=REWARDS))], stream)

    header, first, second = csv.reader(io.StringIO(stream.getvalue()))
    assert header == [*COLUMNS, "metrics.lines", "rewards.style", "rubric.1", "rubric.clear"]
    assert first[header.index("model")] == ""
    assert first[header.index("rewards.style")] == ""
    assert second[header.index("rewards.style")] == "0.25"
    assert "\r" not in stream.getvalue()


def test_csv_of_no_trials_is_a_header() -> None:
    stream = io.StringIO()

    write_csv([], stream)

    assert stream.getvalue() == ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-x", "@SUM", "\tx"])
def test_csv_never_starts_a_cell_with_a_formula(make_result: MakeResult, name: str) -> None:
    stream = io.StringIO()

    write_csv([to_row(make_result(0, task_name=name, rewards={"reward": -1.0}))], stream)

    row = next(csv.DictReader(io.StringIO(stream.getvalue())))
    assert row["task"] == f"'{name}"
    assert row["reward"] == "-1.0"


def test_verifiers_row_of_a_scored_trial(make_result: MakeResult, plan: Plan) -> None:
    folder = plan.trial(0).folder(1)

    row = to_verifiers_row(make_result(0, rewards=REWARDS, outcome=Outcome.FAILED), example_id=4)

    assert row["info"] == {
        "task_id": "fetch-note",
        "task_name": "fetch-note",
        "rollout_name": folder,
        "environment": "local",
        "agent": "oracle",
        "agent_name": "oracle",
        "model": None,
        "source": "benchflow",
        "rollout_dir": folder,
        "training_ready": False,
        "training_ready_reason": "missing_healthy_structured_llm_trajectory",
        "reward_details": {"why": "half of the tests passed"},
    }
    assert row["metrics"] == {
        "n_tool_calls": 3,
        "n_skill_invocations": 0,
        "n_prompts": 1,
        "style": 0.25,
        "lines": 12,
        "clear": 1,
        "1": 0.5,
        "reward": 0.5,
    }
    assert (row["example_id"], row["reward"], row["score"], row["passed"]) == (4, 0.5, 0.5, False)
    assert (row["is_completed"], row["stop_condition"], row["error"]) == (True, "agent_completed", None)
    assert row["timing"]["agent_execution"] == 1.5
    assert "schema_version" not in row["timing"]


def test_verifiers_row_without_a_verdict_has_null_and_not_zero(make_result: MakeResult) -> None:
    row = to_verifiers_row(verifier_failure(make_result), example_id=0)

    assert row["schema_version"] == 2
    assert (row["reward"], row["score"], row["passed"]) == (None, None, None)
    assert "reward" not in row["metrics"]
    assert row["error"] == {
        "error": "verifier_error",
        "error_chain_str": "tests/test.sh wrote no reward",
        "error_chain_repr": "'tests/test.sh wrote no reward'",
    }
    assert (row["is_completed"], row["stop_condition"]) == (False, "verifier_error")
    assert row["info"]["training_ready_reason"] == "verifier_error"


def test_error_of_the_agent_comes_before_that_of_the_verifier(make_result: MakeResult) -> None:
    result = make_result(0, error="out of time", verifier_error="no reward", rewards=None)

    assert to_verifiers_row(result, example_id=0)["stop_condition"] == "agent_error"


def test_rows_are_json_lines_that_any_reader_accepts(make_result: MakeResult) -> None:
    result = make_result(
        0, rewards={"reward": 1.0, "details": {"x": float("nan"), "s": "\udc80é\x85\u2028."}}
    )
    rows = [to_verifiers_row(result, example_id=0), to_verifiers_row(make_result(1), example_id=0)]

    first, second = json_lines(rows).decode("utf-8").splitlines()

    assert json.loads(first)["info"]["reward_details"] == {"x": None, "s": "�é\x85\u2028."}
    assert json.loads(second)["info"]["agent"] == "nop"
