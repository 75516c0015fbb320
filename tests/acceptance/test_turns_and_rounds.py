"""Tasks with several turns, run as people run them: roles in scenes on every kind of sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = enter_home(tmp_path, monkeypatch, PYTHONPATH=str(ROOT))
    (home / "obey.sh").write_text(OBEY)
    return home


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    run = runner(capsys)
    yield run
    run("down")


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
    done = bench(*run, "--agent", "./obey.sh", "--job-name", "played")
    controls = bench(*run, "--agent", "oracle", "--agent", "nop", "--job-name", "controls")

    assert done.code == 0, done.err
    played = trial(home / "jobs/played")
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
        read(path)["agent"]: read(path)["rewards"] for path in (home / "jobs/controls").glob("*/result.json")
    }
    assert rewards == {"oracle": {"reward": 1.0}, "nop": {"reward": 0.0}}
