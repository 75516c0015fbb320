"""What scripted users, loops and installed users say in a round."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.errors import TrialError
from benchflow_client.schema.loop import LoopStrategy, loop_report, parse_loop
from benchflow_client.schema.turns import RoundRow
from benchflow_workers.users.base import RoundResult, TestReport
from benchflow_workers.users.document import DocumentUser, quotations
from benchflow_workers.users.feedback import FEEDBACK_LIMIT_CHARS, feedback_text
from benchflow_workers.users.loops import loop_user
from benchflow_workers.users.registry import installed_user

LEVELS = st.sampled_from(["none", "counts", "names", "raw"])


def went(
    reward: float | None = 0.0, *, output: str | None = None, report: TestReport | None = None
) -> RoundResult:
    return RoundResult(
        round=0,
        trajectory=(),
        rewards=None if reward is None else {"reward": reward},
        verifier_output=output,
        verifier_error=None,
        n_tool_calls=0,
        report=report or TestReport(),
    )


@given(LEVELS, st.text(max_size=9000), st.lists(st.text(max_size=200), max_size=60))
def test_feedback_is_never_longer_than_its_limit(level, output, names):
    report = TestReport(passed=1, total=1 + len(names), failed_names=tuple(names))

    assert len(feedback_text(went(output=output, report=report), level)) <= FEEDBACK_LIMIT_CHARS


@given(st.text(max_size=9000), st.lists(st.text(max_size=99), max_size=9))
def test_no_feedback_tells_nothing_whatever_the_tests_said(output, names):
    assert feedback_text(went(output=output, report=TestReport(0, 9, tuple(names))), "none") == ""


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("counts", "2 of 4 tests pass."),
        ("names", "2 of 4 tests pass.\nThese do not:\n- adds\n- divides"),
        ("raw", "E assert 1 == 2"),
    ],
)
def test_each_level_tells_more(level, expected):
    last = went(output="E assert 1 == 2\n", report=TestReport(2, 4, ("adds", "divides")))

    assert feedback_text(last, level) == expected


@pytest.mark.parametrize("level", ["counts", "names"])
def test_tests_without_a_report_tell_no_counts(level):
    assert feedback_text(went(output="secret of the tests"), level) == ""


def test_long_output_keeps_its_beginning_and_its_end():
    said = feedback_text(went(output="a" * 5000 + "z" * 5000), "raw")

    assert (said[:3], said[-3:]) == ("aaa", "zzz")
    assert "[…]" in said


def test_retry_begins_with_the_task_and_ends_when_the_tests_are_content():
    user = loop_user(parse_loop("verify-retry:k=2,feedback=counts"))

    assert user is not None
    assert user.max_rounds == 3
    assert user.run(0, "Do it.\n", None) == "Do it.\n"
    retry = user.run(1, "Do it.\n", went(0.9, report=TestReport(2, 3)))
    assert isinstance(retry, str)
    assert retry.startswith("Do it.\n\nYour work so far is in the workspace.")
    assert retry.endswith("2 of 3 tests pass.")
    assert user.run(2, "Do it.\n", went(1.0)) is None


def test_review_goes_on_to_its_end_and_tells_nothing_of_the_tests():
    user = loop_user(parse_loop("self-review:k=1"))

    assert user is not None
    assert user.max_rounds == 2
    assert user.run(0, "Do it.", None) == "Do it."
    assert user.run(1, "Do it.", went(1.0, output="secret")) == user.run(1, "Do it.", went(None))


def test_single_shot_needs_no_user():
    assert loop_user(parse_loop("single-shot")) is None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("single-shot", "single-shot"),
        ("verify-retry", "verify-retry:k=3,feedback=names"),
        (" verify-retry: feedback = raw , k=5 ", "verify-retry:k=5,feedback=raw"),
        ("self-review:k=1", "self-review:k=1"),
    ],
)
def test_strategies_are_written_out_and_read_back(text, canonical):
    assert str(parse_loop(text)) == canonical
    assert parse_loop(canonical) == parse_loop(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("retry", "there are single-shot, verify-retry, self-review"),
        ("single-shot:k=1", "single-shot takes no parameters, each once; 'k' is none"),
        ("verify-retry:k=0", "k is a whole number from 1 to 50"),
        ("verify-retry:k=²", "k is a whole number from 1 to 50"),
        ("verify-retry:k=9999999999999", "k is a whole number from 1 to 50"),
        ("verify-retry:k=1,k=2", "verify-retry takes k, feedback, each once; 'k' is none"),
        ("verify-retry:feedback=all", "feedback is one of none, counts, names, raw"),
        ("self-review:feedback=raw", "self-review takes k, each once; 'feedback' is none"),
        ("verify-retry:", "verify-retry takes k, feedback, each once; '' is none"),
    ],
)
def test_bad_strategies_say_what_there_is(text, reason):
    with pytest.raises(ValueError, match="^" + reason.replace(".", r"\.")):
        parse_loop(text)


@given(st.text(max_size=40))
def test_reading_a_strategy_raises_nothing_else(text):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_loop(text), LoopStrategy)


def rows(*rewards: float) -> list[RoundRow]:
    return [
        RoundRow(round=number, scene=None, role=None, prompt="x", rewards={"reward": reward}, wall_sec=1.0)
        for number, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("text", "rewards", "expected"),
    [
        ("single-shot", (), (None, None, None)),
        ("verify-retry:k=2", (0.0, 1.0), (2, True, "passed")),
        ("verify-retry:k=1", (0.0, 0.5), (2, False, "iterations_used")),
        ("verify-retry:k=2", (0.0,), (1, False, "failed")),
        ("self-review:k=1", (1.0, 1.0), (2, None, "iterations_used")),
    ],
)
def test_report_of_a_loop_says_how_it_ended(text, rewards, expected):
    report = loop_report(parse_loop(text), rows(*rewards))

    assert (report.iterations, report.converged, report.stop_reason) == expected


PERSONA = """Ana, who asks.

> Use colours.
>
> Please.

Not said.
    > code, not said
> Be quick.
"""


def test_quotations_of_a_persona_are_what_the_user_says():
    assert quotations(PERSONA) == ["Use colours.\n\nPlease.", "Be quick."]
    assert quotations("") == []


def test_document_user_gives_turns_then_quotations_then_facts_until_the_tests_are_content():
    user = DocumentUser(PERSONA, {"colour": "blue", "sizes": [1, None], "x": 0}, max_rounds=9, n_turns=2)

    said = [user.run(number, f"Turn {number}.\n", went(0.0)) for number in range(6)]

    assert said == [
        "Turn 0.\n",
        "Turn 1.\n",
        "Turn 2.\n\n---\n\nUse colours.\n\nPlease.\n\ncolour: blue",
        "Turn 3.\n\n---\n\nBe quick.\n\nsizes: [1, null]",
        "Turn 4.\n\n---\n\nThis is not finished yet. Look again at what was asked for.\n\nx: 0",
        "Turn 5.\n\n---\n\nThis is not finished yet. Look again at what was asked for.",
    ]
    assert user.run(1, "Turn 1.", went(1.0)) == "Turn 1."
    assert user.run(2, "Turn 1.", went(1.0)) is None


PATIENT = """
class Patient:
    max_rounds = 2
    oracle_access = True

    def setup(self, instruction, solution=None):
        self.known = solution

    async def run(self, round, instruction, round_result=None):
        return f"{instruction} {self.known}" if round < 2 else None


class Plain:
    def run(self, round, instruction, round_result=None):
        return None
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with users the way pip leaves one."""
    (tmp_path / "patience.py").write_text(PATIENT)
    info = tmp_path / "patience-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patience\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[benchflow.users]\npatient = patience:Patient\nplain = patience:Plain\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
async def test_installed_users_are_found_by_name_and_new_for_each_trial():
    one, other = installed_user("patient"), installed_user("patient")

    one.setup("Do it.", "cp answer .")

    assert (one.max_rounds, one.oracle_access) == (2, True)
    assert (installed_user("plain").max_rounds, installed_user("plain").oracle_access) == (5, False)
    assert installed_user("plain").setup("Do it.", None) is None
    other.setup("Do it.", None)
    assert await one.run(0, "Do it.", None) == "Do it. cp answer ."
    assert await other.run(0, "Do it.", None) == "Do it. None"


@pytest.mark.usefixtures("installed")
def test_user_that_is_not_installed_is_named_with_those_that_are():
    with pytest.raises(TrialError) as caught:
        installed_user("patent")

    assert caught.value.code == "user.unknown"
    assert caught.value.message == "User 'patent' is not installed on this worker: there are patient, plain."
    assert caught.value.hint.startswith("Did you mean 'patient'?")
