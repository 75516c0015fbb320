"""What a trial leaves behind, and the closed list of ways it fails."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.catalog.agents import SCRIPT, find_agent, list_agents
from benchflow_client.catalog.failures import FAILURES
from benchflow_client.catalog.sandboxes import AUTO_ORDER, SANDBOXES
from benchflow_client.errors import UnknownAgentError
from benchflow_client.schema.failure import Failure, Fault
from benchflow_client.schema.ids import attempt_folder, slug
from benchflow_client.schema.job import SandboxKind
from benchflow_client.schema.trial import SCORED, AgentUsage, Outcome, Receipt, Timing, TrialResult

ROOT = Path(__file__).parents[3]
ERRORS = {"TrialError", "SandboxError", "AgentError", "VerifierError"}
CODE = re.compile(r"(task|sandbox|agent|skills|user|verifier|store|broker|worker|trial)\.[a-z_]+")


def make_result(**changes: object) -> TrialResult:
    values = {
        "job": "j", "trial": "j.t.a.1", "index": 7, "attempt": 2, "try_number": 1, "task_name": "t",
        "task_digest": "0" * 64, "rollout_name": "t__0badcafe", "agent": "a", "sandbox": "null",
        "worker": "w/1", "outcome": Outcome.PASSED, "rewards": {"reward": 1},
        "started_at": datetime(2026, 11, 29, tzinfo=UTC), "finished_at": datetime(2026, 11, 29, tzinfo=UTC),
    }  # fmt: skip
    return TrialResult.model_validate({**values, **changes})


FINITE = st.floats(allow_nan=False, allow_infinity=False)
RECEIPTS = st.builds(
    Receipt,
    trial_index=st.integers(0, 10**9),
    outcome=st.sampled_from([outcome.value for outcome in Outcome]),
    reward=st.none() | FINITE,
    code=st.sampled_from(["", *FAILURES]),
    attempts=st.integers(0, 20),
    wall_s=FINITE,
    cost_usd=st.none() | FINITE,
    tokens=st.none() | st.integers(0, 10**15),
    folder=st.text(max_size=300).map(lambda name: attempt_folder(slug(name), name, 20)),
    skill_uses=st.none() | st.integers(0, 10**6),
)


@given(receipt=RECEIPTS)
def test_a_receipt_is_small_and_comes_back_as_it_was(receipt: Receipt) -> None:
    text = receipt.to_json()

    assert len(text.encode()) <= 400
    assert Receipt.from_json(text) == receipt
    assert Receipt.from_json(text.encode()) == receipt


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_receipt_carries_no_number_that_json_lacks(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Receipt(0, "passed", number, "", 1, 0.0, None, None, "").to_json()


def test_a_receipt_says_what_the_summary_needs() -> None:
    result = make_result(
        agent_result=AgentUsage(cost_usd=0.5, total_tokens=1200, n_skill_invocations=3),
        timing=Timing(total=3.5),
        failures=(Failure(code="sandbox.lost", message="m"), Failure(code="agent.timeout", message="n")),
    )

    assert Receipt.of(result) == (7, "passed", 1.0, "sandbox.lost", 2, 3.5, 0.5, 1200, "t__0badcafe", 3)


def test_a_receipt_of_a_trial_that_knows_little_has_no_invented_numbers() -> None:
    receipt = Receipt.of(make_result(rewards=None, outcome=Outcome.UNSCORED))

    assert receipt == (7, "unscored", None, "", 2, 0.0, None, None, "t__0badcafe", 0)


def test_receipts_of_older_and_newer_versions_are_read() -> None:
    older = '[7,"passed",1.0,"",1,2.0,null,null,"t__1"]'
    newer = '[7,"passed",1.0,"",1,2.0,null,null,"t__1",2,"more"]'

    assert Receipt.from_json(older) == (7, "passed", 1.0, "", 1, 2.0, None, None, "t__1", None)
    assert Receipt.from_json(newer) == (7, "passed", 1.0, "", 1, 2.0, None, None, "t__1", 2)


@pytest.mark.parametrize(
    "rewards",
    [
        None,
        {},
        {"reward": None},
        {"reward": True},
        {"reward": "1"},
        {"reward": float("nan")},
        {"reward": float("-inf")},
    ],
    ids=str,
)
def test_what_is_no_number_is_no_verdict(rewards: dict[str, object] | None) -> None:
    assert make_result(rewards=rewards).reward is None


def test_a_reward_is_a_number_between_anything() -> None:
    assert make_result(rewards={"reward": 0.25}).reward == 0.25
    assert frozenset({"passed", "failed"}) == SCORED


def test_the_part_that_failed_is_the_first_word_of_the_code() -> None:
    assert Failure(code="sandbox.start_failed", message="m").boundary == "sandbox"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def codes_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.fullmatch(part.value):
            yield part.value


def codes_used() -> dict[str, str]:
    """Return every code an error or a failure is made with -> the file that does."""
    found: dict[str, str] = {}
    for package in ("benchflow_client", "benchflow_workers"):
        for path in (ROOT / package).rglob("*.py"):
            for name, call in calls(ast.parse(path.read_text())):
                places: list[ast.expr] = [word.value for word in call.keywords if word.arg == "code"]
                if name in ERRORS:
                    places += call.args[:1]
                for place in places:
                    found.update(dict.fromkeys(codes_in(place), str(path.relative_to(ROOT))))
    return found


def test_every_failure_that_is_raised_is_in_the_catalog() -> None:
    used = codes_used()

    assert len(used) >= 10
    assert {code: place for code, place in used.items() if code not in FAILURES} == {}


def test_every_failure_of_the_catalog_can_happen() -> None:
    source = "".join(
        path.read_text()
        for package in ("benchflow_client", "benchflow_workers")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "failures.py"
    )

    assert [code for code in FAILURES if f'"{code}"' not in source] == []


@pytest.mark.parametrize("code", FAILURES)
def test_every_failure_says_who_acts_and_how(code: str) -> None:
    kind = FAILURES[code]

    advice = kind.next_step.format(job="calm-otter-7f3a", task="fix-build")

    assert CODE.fullmatch(code)
    assert advice
    assert "{" not in advice
    assert kind.label
    assert kind.fault in Fault
    assert (kind.side == "verifier_error") is kind.category.startswith("verifier")


def test_only_what_another_attempt_can_change_is_retried() -> None:
    """An agent that failed is a result; running it again would be choosing among results."""
    retried = {code for code, kind in FAILURES.items() if kind.is_retried}

    assert {FAILURES[code].fault for code in retried} <= {Fault.INFRASTRUCTURE, Fault.TASK}
    assert "agent.timeout" not in retried
    assert "sandbox.lost" in retried


def test_every_kind_of_sandbox_a_job_may_name_is_described() -> None:
    kinds = set(SandboxKind.__args__)  # type: ignore[attr-defined]

    assert kinds == {"auto", *SANDBOXES}
    assert set(AUTO_ORDER) <= set(SANDBOXES)


def test_an_agent_is_found_by_name_or_the_nearest_is_named() -> None:
    assert find_agent("oracle").is_control
    assert [entry.name for entry in list_agents()][-4:] == ["probe:TRICK", "factory:NAME", "acp:PATH", "PATH"]
    assert not SCRIPT.is_control
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("orcale")
    assert "Did you mean 'oracle'?" in caught.value.hint
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("zzzzzz")
    assert "Did you mean" not in caught.value.hint


def test_a_result_is_plain_json() -> None:
    result = make_result()

    assert TrialResult.model_validate(json.loads(result.model_dump_json())) == result
