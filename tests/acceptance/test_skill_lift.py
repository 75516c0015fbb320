"""A skill is evaluated as a user does it: its questions with it and without, a lift at the end, and by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import Done, enter_home, runner

EXAMPLES = Path(__file__).parents[2] / "examples"
SKILL = EXAMPLES / "skills/house-dates"
AGENT = EXAMPLES / "agents/skilled_agent.sh"

pytestmark = pytest.mark.root


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_home(tmp_path, monkeypatch, PYTHONPATH=str(EXAMPLES.parent))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], home: Path) -> Callable[..., Done]:
    return runner(capsys)


def test_the_lift_of_a_skill_is_measured_by_its_own_questions_and_found_again_by_hand(
    run: Callable[..., Done], home: Path
) -> None:
    flags = ("--agent", AGENT, "--sandbox", "local", "--job-name", "dates", "--tries", "2", "--json")

    done = run("skills", "eval", SKILL, *flags)

    told = json.loads(done.out)
    (agent,) = told["agents"]
    assert (done.code, told["jobs"]) == (0, ["dates-with", "dates-without"]), done.err
    assert (agent["with_skill"]["passed"], agent["with_skill"]["scored"]) == (4, 4)
    assert (agent["baseline"]["passed"], agent["baseline"]["scored"], agent["lift"]) == (0, 4, 1.0)
    assert (agent["with_skill"]["used"], agent["baseline"]["used"]) == (4, 0)
    assert 0 < agent["interval"][0] < agent["interval"][1] == 1.0
    assert [task["task"] for task in agent["tasks"]] == ["first-of-march", "leap-year"]
    summary = json.loads((home / "jobs/dates-with/summary.json").read_text())
    assert (summary["total_skill_invocations"], summary["settings"]["skill_mode"]) == (4, "with-skill")
    again = run("skills", "lift", "dates-with", "dates-without", "--json")
    assert json.loads(again.out)["agents"] == told["agents"]
    assert again.err.count("LIFT") == 2
    other = run("skills", "lift", "dates-with", "dates-with")
    assert "the interval of the lift holds 0" in other.err


def test_an_evaluation_that_cannot_be_one_is_refused(run: Callable[..., Done], home: Path) -> None:
    folder = home / "mine"
    (folder / "evals").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mine\ndescription: Mine.\n---\n")
    case = {"question": "Which?", "ground_truth": "this", "expected_behavior": ["It asks."]}
    (folder / "evals/evals.json").write_text(json.dumps({"cases": [case]}))

    judged = run("skills", "eval", folder, "--agent", AGENT)
    nothing = run("skills", "eval", EXAMPLES / "skills", "--agent", AGENT)
    job = home / "job.yaml"
    job.write_text("skill_mode: self-gen\n")
    modes = run("skills", "eval", SKILL, "--agent", AGENT, "--file", job)

    assert (judged.code, nothing.code, modes.code) == (2, 2, 2)
    assert "graded by a judge, which this version has not: case-1" in judged.err
    assert "--exact-match" in judged.err
    assert "has no SKILL.md" in nothing.err
    assert "sets --skill-mode itself" in modes.err
