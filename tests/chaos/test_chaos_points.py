"""Workers and clients that die at the one moment that matters: each at another point of a trial's life."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.chaos.evidence import Scene
from benchflow_client.chaos.mailbox import CHORD_PREFIX
from benchflow_client.ledger import scripts
from benchflow_client.store.layout import result_key
from tests.chaos_rig import Battle, ChaosFleet, committed_twice
from tests.forked_workers import ForkedWorker
from tests.waiting import until
from tests.wire import Rule, Wire, sha_of, wire_to
from tests.worlds import write_task

DIES_S = 60.0
LOOKS_S = 0.001
"""A folder is there for some tens of milliseconds before the next phase begins."""

SLOW_TASK = {
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nRUN sleep 1\n",
    "tests/test.sh": "#!/bin/sh\nsleep 0.5\necho 1 > /logs/verifier/reward.txt\n",
}
SLOW_TOML = '\n[environment]\nsetup_commands = [{command = "sleep 0.5"}]\n'
SLOW_AGENT = "#!/bin/sh\nsleep 0.5\nhead -c 2000000 /dev/zero > /logs/agent/large\n"

Act = Callable[[], object]


@dataclass(frozen=True)
class Point:
    """A moment of a trial's life, found by the command that passes to Redis then."""

    name: str
    arm: Callable[[Wire, Act], Rule]
    costs_attempt: bool = True  # the trial has to run again


def in_phase(name: str) -> Point:
    return Point(name, lambda wire, act: wire.after(sha_of(scripts.PHASE), name, act=act))


POINTS = (
    Point("claimed", lambda wire, act: wire.after(sha_of(scripts.CLAIM), act=act)),
    in_phase("building"),
    in_phase("setup"),
    in_phase("agent"),
    in_phase("verifying"),
    Point("stored and not committed", lambda wire, act: wire.before(sha_of(scripts.COMMIT), act=act)),
    Point(
        "committed and not returned",
        lambda wire, act: wire.after(sha_of(scripts.COMMIT), act=act),
        costs_attempt=False,
    ),
    Point(
        "returned and not counted",
        lambda wire, act: wire.before("EVAL", f"{CHORD_PREFIX}", act=act),
        costs_attempt=False,
    ),
    Point(
        "counted and not acknowledged",
        lambda wire, act: wire.after("EVAL", f"{CHORD_PREFIX}", act=act),
        costs_attempt=False,
    ),
)
COLLECTING = "collecting"


def slow_task(folder: Path) -> tuple[Path, Path]:
    """Write a task and an agent every phase of which takes long enough to be seen."""
    agent = folder / "slow-agent.sh"
    agent.write_text(SLOW_AGENT)
    return write_task(folder / "slow", toml=SLOW_TOML, files=SLOW_TASK), agent


def kill_while_collecting(fleet: ChaosFleet, process: ForkedWorker) -> threading.Event:
    """Kill a worker as soon as it copies files out of a sandbox; the event tells that it was done."""
    done, scratch = threading.Event(), fleet.folder / "state" / "scratch" / str(process.pid)

    def look() -> None:
        deadline = time.monotonic() + DIES_S
        while time.monotonic() < deadline and process.poll() is None:
            if scratch.is_dir() and any(scratch.iterdir()):
                process.kill()
                done.set()
                return
            threading.Event().wait(LOOKS_S)

    threading.Thread(target=look, daemon=True).start()
    return done


@pytest.mark.root
def test_a_worker_that_dies_at_any_point_costs_a_trial_an_attempt_at_most(
    fleet: ChaosFleet, battle: Battle
) -> None:
    """One worker for each point; what they leave is taken up by two others."""
    task, agent = slow_task(fleet.folder)
    fired: dict[str, threading.Event] = {}
    with ExitStack() as stack:
        doomed: dict[str, ForkedWorker] = {}
        for point in POINTS:
            wire = stack.enter_context(wire_to(fleet.url))
            process = fleet.launch(slots=1, BENCHFLOW_BROKER_URL=wire.url, BENCHFLOW_LEDGER_URL=wire.url)
            doomed[point.name] = process
            fired[point.name] = point.arm(wire, process.kill).fired
        doomed[COLLECTING] = fleet.launch(slots=1)
        fired[COLLECTING] = kill_while_collecting(fleet, doomed[COLLECTING])
        fleet.wait_for(*doomed.values())

        scene = battle.open_spec(
            tasks=str(task), agent=[str(agent)], tries=len(doomed) + 1, concurrency=64, sandbox="local"
        )
        until(lambda: all(process.poll() is not None for process in doomed.values()), seconds=DIES_S)
        assert [name for name, event in fired.items() if not event.is_set()] == []
        first = {name: first_trial(process) for name, process in doomed.items()}
        assert is_stored(fleet, scene, first["stored and not committed"])

        fleet.launch(slots=6)
        fleet.launch(slots=6)
        battle.wait()

    battle.assert_sound()
    attempts = {receipt.trial_index: receipt.attempts for receipt in fleet.receipts(scene.handle)}
    twice = {name for name, index in first.items() if index is not None and attempts[index] == 2}
    # One that dies at its claim is never told which trial it has: it shows in the sum alone.
    assert twice | {"claimed"} == {point.name for point in POINTS if point.costs_attempt} | {COLLECTING}
    assert sorted(attempts.values()) == [1] * (len(attempts) - 7) + [2] * 7
    assert committed_twice(fleet) == []


def first_trial(process: ForkedWorker) -> int | None:
    """Return which trial a worker started, as its log says; None = none."""
    found = re.search(r"trial \S+\.(\d+) started", process.log.read_text(errors="replace"))
    return None if found is None else int(found[1]) - 1


def is_stored(fleet: ChaosFleet, scene: Scene, index: int | None) -> bool:
    """Return whether the first attempt of a trial has a result."""
    assert index is not None
    return scene.fleet.store.exists(result_key(scene.plan.job, scene.plan.trial(index).folder(1)))
