"""Tasks with several turns, run as people run them: roles in scenes, users, loops, on every kind of sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.cli.main import run_command
from tests.commands import Done, enter_home, runner
from tests.fleets import ROOT

KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))
TASKS = ROOT / "tests/assets/tasks"
OBEY = """#!/bin/sh
sed -n 's/^run: //p' "$BENCHFLOW_INSTRUCTION" >"$HOME/orders"
cat "$HOME/orders"
echo '{"type": "tool_call", "name": "sh"}' >>"$BENCHFLOW_EVENTS"
sh "$HOME/orders"
"""


MENDER = """#!/bin/sh
# Makes the first file that a failed test is named after.
name=$(sed -n 's/^- makes //p' "$BENCHFLOW_INSTRUCTION" | head -n 1)
if [ -n "$name" ]; then touch "$name"; fi
"""
PATIENT = """
class Patient:
    oracle_access = True

    def setup(self, instruction, solution):
        self.solution = solution

    def run(self, round, instruction, round_result):
        if round_result is not None and round_result.rewards["reward"] == 1:
            return None
        return "run: true" if round == 0 else "run: " + self.solution.splitlines()[-1]
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the home of a user whose fleet is up, with a user of the product installed on its worker."""
    folder = tmp_path_factory.mktemp("turns")
    installed = folder / "installed"
    (installed / "patience-1.0.dist-info").mkdir(parents=True)
    (installed / "patience-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: patience\nVersion: 1.0\n"
    )
    (installed / "patience-1.0.dist-info/entry_points.txt").write_text(
        "[benchflow.users]\npatient = patience:Patient\n"
    )
    (installed / "patience.py").write_text(PATIENT)
    with pytest.MonkeyPatch.context() as patch:
        home = enter_home(folder, patch, PYTHONPATH=os.pathsep.join((str(ROOT), str(installed))))
        (home / "obey.sh").write_text(OBEY)
        (home / "mender.sh").write_text(MENDER)
        assert run_command(["up"]) == 0
        yield home
        run_command(["down"])


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    return runner(capsys)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trial(job: Path) -> Path:
    """Return the folder of the one trial of a job."""
    (result,) = job.glob("*/result.json")
    return result.parent


@pytest.mark.parametrize("kind", KINDS)
def test_scenes_are_played_by_the_job_and_by_scripts_of_the_task(
    home: Path, bench: Callable[..., Done], kind: str
) -> None:
    run = ("run", TASKS / "scenes-roles", "--sandbox", kind)
    done = bench(*run, "--agent", "./obey.sh", "--job-name", f"played-{kind}")
    controls = bench(*run, "--agent", "oracle", "--agent", "nop", "--job-name", f"controls-{kind}")

    assert done.code == 0, done.err
    played = trial(home / f"jobs/played-{kind}")
    result = read(played / "result.json")
    assert result["rewards"] == {"reward": 1.0}, (played / "verifier/test-stdout.txt").read_text()
    told = [(item["scene"], item["role"], item["agent"], item["turns"]) for item in result["sessions"]]
    assert told == [
        ("draft", "writer", "obey", ["scene-1-turn-1-writer", "scene-1-turn-2-writer"]),
        ("review", "critic", "critic", ["scene-2-turn-1-critic"]),
        ("review", "writer", "obey", ["scene-2-turn-2-writer"]),
    ]
    assert [item["n_tool_calls"] for item in result["sessions"]] == [2, 0, 1]
    assert result["agent_result"]["n_tool_calls"] == 3
    events = [event["type"] for event in lines(played / "trajectory/acp_trajectory.jsonl")]
    assert [kind for kind in events if kind != "script"] == [
        "session", "tool_call", "tool_call", "session", "agent_message", "session", "tool_call",
    ]  # fmt: skip
    assert "== scene-1-turn-1-writer ==\necho one" in (played / "agent/obey.txt").read_text()
    assert controls.code == 0, controls.err
    rewards = {
        read(path)["agent"]: read(path)["rewards"]
        for path in (home / f"jobs/controls-{kind}").glob("*/result.json")
    }
    assert rewards == {"oracle": {"reward": 1.0}, "nop": {"reward": 0.0}}


@pytest.mark.parametrize("kind", KINDS)
def test_scripted_user_asks_for_more_until_the_tests_are_content(
    home: Path, bench: Callable[..., Done], kind: str
) -> None:
    done = bench(
        "run", TASKS / "user-rounds", "--sandbox", kind, "--agent", "./obey.sh", "--agent", "oracle", "--job-name", f"asked-{kind}"
    )  # fmt: skip

    assert done.code == 0, done.err
    folders = {
        read(path)["agent"]: path.parent for path in (home / f"jobs/asked-{kind}").glob("*/result.json")
    }
    asked = folders["obey"]
    result = read(asked / "result.json")
    assert result["rewards"] == {"reward": 1.0}, (asked / "verifier/test-stdout.txt").read_text()
    rounds = lines(asked / "user_rounds.jsonl")
    assert [(row["round"], row["rewards"], row["verifier_error"]) for row in rounds] == [
        (0, {"reward": 0.0}, None),
        (1, {"reward": 0.0}, None),
        (2, {"reward": 1.0}, None),
    ]
    assert rounds[1]["prompt"].endswith('---\n\nrun: echo "first wish" >>notes.txt\n\ncolour: blue')
    assert [row["n_tool_calls"] for row in rounds] == [1, 1, 1]
    assert result["loop"]["strategy"] == "single-shot"
    assert result["timing"]["soft_verifier"] > 0
    assert not (folders["oracle"] / "user_rounds.jsonl").exists()
    assert read(folders["oracle"] / "result.json")["rewards"] == {"reward": 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_retries_hear_which_tests_failed_and_only_the_last_verdict_counts(
    home: Path, bench: Callable[..., Done], kind: str
) -> None:
    run = ("run", TASKS / "loop-retry", "--sandbox", kind, "--agent", "./mender.sh")
    named = bench(*run, "--loop", "verify-retry:k=3", "--job-name", f"named-{kind}")
    counted = bench(*run, "--loop", "verify-retry:k=1,feedback=counts", "--job-name", f"counted-{kind}")
    reviewed = bench(*run, "--loop", "self-review:k=1", "--job-name", f"reviewed-{kind}")

    assert named.code == 0, named.err
    found = trial(home / f"jobs/named-{kind}")
    assert [(row["round"], row["rewards"], row["feedback_level"]) for row in lines(found / "loop/iterations.jsonl")] == [
        (0, {"reward": 0.0, "details": ctrf(0)}, "names"),
        (1, {"reward": 0.0, "details": ctrf(1)}, "names"),
        (2, {"reward": 0.0, "details": ctrf(2)}, "names"),
        (3, {"reward": 1.0, "details": ctrf(3)}, "names"),
    ]  # fmt: skip
    result = read(found / "result.json")
    assert result["rewards"]["reward"] == 1.0
    assert without_version(result["loop"]) == {
        "strategy": "verify-retry", "k": 3, "feedback": "names",
        "iterations": 4, "converged": True, "stop_reason": "passed",
    }  # fmt: skip
    block = {"strategy": "verify-retry", "k": 3, "feedback": "names"}
    assert read(found / "config.json")["loop"] == block
    assert read(home / f"jobs/named-{kind}/summary.json")["loop"] == block
    told = {
        name: read(trial(home / "jobs" / f"{name}-{kind}") / "result.json")["loop"]["stop_reason"]
        for name in ("counted", "reviewed")
    }
    assert told == {"counted": "iterations_used", "reviewed": "iterations_used"}
    assert (counted.code, reviewed.code) == (0, 0), counted.err + reviewed.err


@pytest.mark.root
def test_user_that_is_installed_on_the_workers_knows_what_the_agent_does_not(
    home: Path, bench: Callable[..., Done]
) -> None:
    run = ("run", TASKS / "loop-retry", "--sandbox", "local", "--agent", "./obey.sh")
    done = bench(*run, "--user", "patient", "--job-name", "patient")
    missing = bench(*run, "--user", "patent", "--job-name", "patent")

    assert done.code == 0, done.err
    rounds = lines(trial(home / "jobs/patient") / "user_rounds.jsonl")
    assert [row["prompt"] for row in rounds] == ["run: true", "run: touch one two three"]
    (failure,) = read(trial(home / "jobs/patent") / "result.json")["failures"]
    assert failure["code"] == "user.unknown"
    assert "there are patient" in failure["message"]
    assert missing.code == 1


def ctrf(passed: int) -> dict[str, Any]:
    return {"ctrf": {"tests": 3, "passed": passed, "failed": 3 - passed}}


def without_version(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "schema_version"}


def test_loop_and_user_of_a_task_are_refused_before_anything_starts(
    home: Path, bench: Callable[..., Done]
) -> None:
    run = ("run", TASKS / "user-rounds", "--agent", "./obey.sh", "--job-name", "refused")
    both = bench(*run, "--sandbox", "local", "--loop", "verify-retry")
    named = bench(*run, "--loop", "verify-retry", "--user", "patient")
    unknown = bench(*run, "--loop", "verify-rety")

    assert both.code == named.code == unknown.code == 2
    assert "user: a loop does not go together with the user of a task; leave --loop out" in both.err
    assert "a user does not go together with a loop; give one of the two" in named.err
    assert "there are single-shot, verify-retry, self-review" in unknown.err
    assert not list((home / "jobs").glob("refused*"))
