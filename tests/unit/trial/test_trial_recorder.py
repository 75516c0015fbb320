"""What an attempt leaves in the store: config.json first, result.json last, no secret, no broken JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import StoreError, StoreFullError
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.documents import read_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key
from benchflow_workers.trial.recorder import (
    outcome_of,
    result_of,
    write_attempt,
    write_config,
)
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.redact import Redactor
from tests.worlds import World

NAN, INFINITE = float("nan"), float("inf")
TIMEOUT = Failure(code="agent.timeout", message="too long")
NO_REWARD = Failure(code="verifier.no_reward", message="none")
LOST = Failure(code="sandbox.lost", message="gone")


class Journal(FileStore):
    """A folder that remembers the order of writes, and can be full at a key."""

    def __init__(self, root: Path, *, full_at: str = "") -> None:
        super().__init__(root)
        self.written: list[str] = []
        self.full_at = full_at

    def put(self, key: str, data: bytes) -> None:
        self._note(key)
        super().put(key, data)

    def put_tree(self, prefix: str, folder: Path) -> None:
        self._note(prefix)
        super().put_tree(prefix, folder)

    def _note(self, key: str) -> None:
        if self.full_at and key.endswith(self.full_at):
            raise StoreFullError(f"No space for {key!r}.")
        self.written.append(key)


@pytest.mark.parametrize(
    ("rewards", "failures", "outcome"),
    [
        ({"reward": 1.0}, (), Outcome.PASSED),
        ({"reward": 1}, (), Outcome.PASSED),
        ({"reward": 1.5}, (), Outcome.PASSED),
        ({"reward": 0.99}, (), Outcome.FAILED),
        ({"reward": -1.0}, (), Outcome.FAILED),
        ({"reward": 1.0}, (TIMEOUT,), Outcome.PASSED),
        ({"reward": 0.0}, (TIMEOUT, NO_REWARD), Outcome.FAILED),
        (None, (), Outcome.UNSCORED),
        ({"speed": 3.0}, (), Outcome.UNSCORED),
        ({"reward": None}, (), Outcome.UNSCORED),
        ({"reward": NAN}, (), Outcome.UNSCORED),
        ({"reward": INFINITE}, (), Outcome.UNSCORED),
        ({"reward": True}, (), Outcome.UNSCORED),
        ({"reward": "1.0"}, (), Outcome.UNSCORED),
        (None, (TIMEOUT,), Outcome.ERRORED),
        (None, (LOST,), Outcome.ERRORED),
        (None, (NO_REWARD,), Outcome.VERIFIER_ERRORED),
        (None, (TIMEOUT, NO_REWARD), Outcome.VERIFIER_ERRORED),
    ],
)
def test_every_end_of_a_rollout_has_one_outcome(
    world: World, rewards: Any, failures: tuple[Failure, ...], outcome: Outcome
) -> None:
    rollout = Rollout(rewards=rewards, failures=failures)

    result = result_of(world.attempt(), rollout, Redactor())

    assert outcome_of(rollout) == outcome
    assert (result.reward is not None) == (outcome in {Outcome.PASSED, Outcome.FAILED})


def test_result_says_what_was_run_and_how_it_ended(world: World) -> None:
    attempt = world.attempt(number=2, fence=5)

    result = result_of(attempt, Rollout(sandbox_id="sb-1", rewards={"reward": 1.0}), Redactor())

    assert result.trial == f"{world.plan.job}.fix-build.solver.1"
    assert (result.index, result.attempt, result.try_number) == (0, 2, 1)
    assert (result.task_name, result.agent, result.worker) == ("fix-build", "solver", "box/1")
    assert result.rollout_name == attempt.folder
    assert result.sandbox == world.plan.sandbox
    assert result.timing.total is not None
    assert result.finished_at >= result.started_at


def test_each_side_reports_its_first_failure(world: World) -> None:
    failures = (TIMEOUT, LOST, NO_REWARD, Failure(code="verifier.timeout", message="slow"))

    result = result_of(world.attempt(), Rollout(failures=failures), Redactor())

    assert (result.error, result.error_category) == ("too long", "timeout")
    assert (result.verifier_error, result.verifier_error_category) == ("none", "verifier_failure")
    assert Receipt.of(result).code == "agent.timeout"


def test_no_secret_reaches_the_result(world: World) -> None:
    failure = Failure(code="sandbox.lost", message="m hunter22", hint="h hunter22", detail="d hunter22")
    rollout = Rollout(
        failures=(failure,),
        warnings=("w hunter22",),
        rewards={"reward": 0.5, "details": {"hunter22": ["hunter22"]}},
    )

    result = result_of(world.attempt(), rollout, Redactor(["hunter22"]))

    assert "hunter22" not in result.model_dump_json()
    assert result.rewards == {"reward": 0.5, "details": {"[redacted]": ["[redacted]"]}}


def test_numbers_without_a_word_in_json_become_null(world: World) -> None:
    store = FileStore(world.folder / "out")
    rewards = {"reward": 0.5, "speed": NAN, "list": (1, INFINITE), "deep": {"x": -INFINITE}}
    rollout = Rollout(rewards=rewards, events=({"cost": NAN},))
    result = result_of(world.attempt(), rollout, Redactor())
    folder = world.scratch

    write_attempt(store, result, rollout, folder=folder, redactor=Redactor())

    read = read_document(store, result_key(world.plan.job, result.rollout_name), TrialResult)
    assert read.rewards == {"reward": 0.5, "speed": None, "list": [1, None], "deep": {"x": None}}
    assert (folder / "trajectory" / "acp_trajectory.jsonl").read_text() == '{"cost": null}\n'


def test_lone_surrogates_are_written_as_something_else(world: World) -> None:
    store = FileStore(world.folder / "out")
    failure = Failure(code="sandbox.lost", message="bad \ud800 name")
    rollout = Rollout(
        rewards={"reward": 1.0, "n\udc80": "\udfff"}, failures=(failure,), events=({"x": "\ud800"},)
    )
    result = result_of(world.attempt(), rollout, Redactor())

    write_attempt(store, result, rollout, folder=world.scratch, redactor=Redactor())

    read = read_document(store, result_key(world.plan.job, result.rollout_name), TrialResult)
    assert read.reward == 1.0
    assert "bad" in (read.error or "")


def test_event_that_is_no_json_is_written_as_text(world: World) -> None:
    folder = world.scratch
    rollout = Rollout(events=({"path": Path("/app"), 3: [{"x": 1}]},))
    result = result_of(world.attempt(), rollout, Redactor())

    write_attempt(FileStore(world.folder / "out"), result, rollout, folder=folder, redactor=Redactor())

    line = (folder / "trajectory" / "acp_trajectory.jsonl").read_text()
    assert json.loads(line) == {"path": "/app", "3": [{"x": 1}]}


def test_config_is_first_artifacts_follow_and_result_is_last(world: World) -> None:
    store, folder = Journal(world.folder / "out"), world.scratch
    attempt = world.attempt()
    (folder / "agent").mkdir()
    (folder / "agent" / "own.log").write_text("hunter22")
    rollout = Rollout(
        agent_log=b"I am hunter22", test_output=b"1 passed", events=({"a": 1},), rewards={"reward": 1.0}
    )
    result = result_of(attempt, rollout, Redactor(["hunter22"]))

    write_config(store, attempt)
    write_attempt(store, result, rollout, folder=folder, redactor=Redactor(["hunter22"]))

    prefix = f"{world.plan.job}/{attempt.folder}/"
    assert store.written == [prefix + name for name in ("config.json", "", "result.json")]
    assert sorted(key.removeprefix(prefix) for key in store.list(prefix)) == [
        "agent/own.log",
        "agent/solver.txt",
        "config.json",
        "result.json",
        "results.jsonl",
        "rewards.jsonl",
        "timing.json",
        "trajectory/acp_trajectory.jsonl",
        "verifier/test-stdout.txt",
    ]
    assert store.get(prefix + "agent/solver.txt") == b"I am [redacted]"
    assert store.get(prefix + "agent/own.log") == b"[redacted]"
    assert json.loads(store.get(prefix + "rewards.jsonl"))["value"] == 1.0


def test_each_criterion_of_a_rubric_is_an_event_before_the_reward(world: World, tmp_path: Path) -> None:
    rubric = [{"name": "form", "score": 1.0}, {"score": 0.5, "space": "action"}]
    rollout = Rollout(rewards={"reward": 0.75, "rubric": rubric}, test_output=b"")
    result = result_of(world.attempt(), rollout, Redactor())

    write_attempt(world.store, result, rollout, folder=tmp_path / "files", redactor=Redactor())

    lines = world.store.get(f"{result.job}/{result.rollout_name}/rewards.jsonl").splitlines()
    events = [json.loads(line) for line in lines]
    assert [(event["type"], event["value"], event["space"]) for event in events] == [
        ("dense", 1.0, "output"),
        ("dense", 0.5, "action"),
        ("terminal", 0.75, "output"),
    ]
    assert (events[0]["name"], events[1]["name"]) == ("form", None)


@pytest.mark.parametrize("full_at", ["/", "result.json"])
def test_store_that_fails_on_the_way_leaves_no_result(world: World, full_at: str) -> None:
    store = Journal(world.folder / "out", full_at=full_at)
    rollout = Rollout(agent_log=b"log", rewards={"reward": 1.0})
    result = result_of(world.attempt(), rollout, Redactor())

    with pytest.raises(StoreError):
        write_attempt(store, result, rollout, folder=world.scratch, redactor=Redactor())

    assert not store.exists(result_key(world.plan.job, result.rollout_name))


def test_config_names_variables_and_holds_no_value(make: Callable[..., World]) -> None:
    world = make(agent_spec={"env": ("API_KEY", "MODE=very-fast-mode")})

    write_config(world.store, world.attempt())

    text = world.store.get(f"{world.plan.job}/{world.attempt().folder}/config.json")
    assert json.loads(text)["agent_env"] == ["API_KEY", "MODE"]
    assert b"very-fast-mode" not in text


def test_attempt_that_left_nothing_still_has_a_result(world: World) -> None:
    result = result_of(world.attempt(), Rollout(failures=(LOST,)), Redactor())

    write_attempt(world.store, result, Rollout(), folder=world.folder / "missing", redactor=Redactor())

    assert world.store.exists(result_key(world.plan.job, result.rollout_name))


def test_folders_a_sandbox_left_in_the_place_of_our_files_give_way(world: World) -> None:
    """An agent that makes /logs/agent/solver.txt a folder must not cost its own trial the result."""
    store, folder = FileStore(world.folder / "out"), world.scratch
    (folder / "agent" / "solver.txt" / "x").mkdir(parents=True)
    (folder / "trajectory").write_text("a file")
    (folder / "rewards.jsonl").mkdir()
    rollout = Rollout(agent_log=b"log", events=({"a": 1},), rewards={"reward": 0.0})
    result = result_of(world.attempt(), rollout, Redactor())

    write_attempt(store, result, rollout, folder=folder, redactor=Redactor())

    prefix = f"{world.plan.job}/{result.rollout_name}/"
    assert store.get(prefix + "agent/solver.txt") == b"log"
    assert store.get(prefix + "trajectory/acp_trajectory.jsonl") == b'{"a": 1}\n'
    assert store.exists(prefix + "result.json")


def test_disk_of_the_worker_that_fails_is_an_error_of_the_store(world: World) -> None:
    rollout = Rollout(agent_log=b"log")
    result = result_of(world.attempt(), rollout, Redactor())
    blocked = world.scratch / "file"
    blocked.write_text("not a folder")

    with pytest.raises(StoreError, match="cannot be put together"):
        write_attempt(world.store, result, rollout, folder=blocked / "x", redactor=Redactor())
