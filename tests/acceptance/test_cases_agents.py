"""Agents that broke runners, through a whole job: client, broker, worker process, sandbox, store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.api import Client
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import TrialResult
from tests.fleets import PLAIN, embedded_fleet
from tests.worlds import write_task

AGENT = Path(__file__).parents[1] / "assets" / "agents" / "acp.sh"
WAIT_S = 120.0
SIZES = (65535, 65536, 65537, 200_000, 5_000_000)
TOKEN = "made-up-" + "token-0123456789"

KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))

ENDINGS: Mapping[str, tuple[str, float | None, str, str | None]] = {
    "big": ("passed", 1.0, "", None),
    "noise": ("passed", 1.0, "", None),
    "late": ("passed", 1.0, "agent.timeout", "timeout"),
    "survivor": ("failed", 0.0, "agent.timeout", "timeout"),
    "limited": ("errored", None, "agent.rate_limited", "provider_rate_limit"),
    "dies": ("errored", None, "agent.disconnected", "pipe_closed"),
    "silent": ("errored", None, "agent.silent", "suspected_api_error"),
    "secrets": ("passed", 1.0, "", None),
}
"""What an agent does -> outcome, reward, failure code and category."""

STOPPED = {"late", "survivor"}


@dataclass(frozen=True)
class Finished:
    """A closed job, one agent a behaviour."""

    folder: Path
    summary: Summary
    trials: Mapping[str, PublishedTrial]  # by behaviour

    def result(self, act: str) -> TrialResult:
        found = self.trials[act].result
        assert found is not None
        return found

    def events(self, act: str) -> list[dict[str, Any]]:
        file = self.folder / self.result(act).rollout_name / "trajectory" / "acp_trajectory.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    halves = {"BOT_TOKEN_FIRST": TOKEN[:11], "BOT_TOKEN_REST": TOKEN[11:]}
    with embedded_fleet(home, BENCHFLOW_RECONCILE_S="0.5", BOT_TOKEN=TOKEN, **halves) as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def finished(request: pytest.FixtureRequest, client: Client, home: Path) -> Finished:
    task = write_task(home / f"task-{request.param}", files=PLAIN)
    agents = tuple(
        AgentSpec(
            name=f"acp:{AGENT}",
            env=(
                f"ACT={act}",
                *(("BOT_TOKEN", "BOT_TOKEN_FIRST", "BOT_TOKEN_REST") if act == "secrets" else ()),
            ),
            timeout_s=3 if act in STOPPED else None,
        )
        for act in ENDINGS
    )
    handle = client.submit(
        JobSpec(tasks=str(task), agent=agents, sandbox=str(request.param), max_attempts=2, concurrency=4)
    )
    summary = handle.wait(timeout_s=WAIT_S)
    plan = handle.results().plan
    acts = dict(zip((agent.label for agent in plan.agents), ENDINGS, strict=True))
    trials = {acts[plan.trial(trial.receipt.trial_index).agent.label]: trial for trial in handle.trials()}
    return Finished(home / "jobs" / handle.name, summary, trials)


def test_each_agent_ends_in_its_own_way(finished: Finished) -> None:
    endings = {
        act: (
            trial.receipt.outcome,
            trial.receipt.reward,
            trial.receipt.code,
            finished.result(act).error_category,
        )
        for act, trial in finished.trials.items()
    }

    assert endings == ENDINGS


def test_every_update_is_recorded_however_long_its_line(finished: Finished) -> None:
    (message,) = [event for event in finished.events("big") if event["type"] == "agent_message"]

    assert (message["n_chunks"], message["text"]) == (len(SIZES), "x" * sum(SIZES))


def test_noise_is_in_the_log_and_not_in_the_trajectory(finished: Finished) -> None:
    folder = finished.folder / finished.result("noise").rollout_name
    (log,) = (folder / "agent").glob("*.txt")

    assert "npm notice New version" in log.read_text("utf-8")
    assert {event["type"] for event in finished.events("noise")} == {
        "user_message",
        "agent_message",
        "turn_end",
    }


def test_the_trajectory_goes_up_to_the_deadline(finished: Finished) -> None:
    assert [event["type"] for event in finished.events("late")] == [
        "user_message",
        "agent_message",
        "agent_timeout",
    ]


def test_a_rate_limit_costs_as_many_requests_as_attempts_and_waits_as_asked(finished: Finished) -> None:
    result = finished.result("limited")
    attempts = sorted(
        (found for found in results_of(finished.folder) if found["trial"] == result.trial),
        key=lambda found: found["attempt"],
    )

    assert [found["attempt"] for found in attempts] == [1, 2]
    assert [found["agent_result"]["n_prompts"] for found in attempts] == [1, 1]
    first, second = (found["failures"][0] for found in attempts)
    assert first["retry_after_s"] == second["retry_after_s"] == 1.0
    pause = moment(attempts[1]["started_at"]) - moment(attempts[0]["finished_at"])
    assert pause.total_seconds() >= 1.0


def test_what_an_agent_says_in_pieces_is_redacted_as_a_whole(finished: Finished) -> None:
    folder = finished.folder / finished.result("secrets").rollout_name

    texts = [path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()]

    assert not any(TOKEN in text for text in texts)
    assert any("readable" in text for text in texts)


def results_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*/result.json")]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
