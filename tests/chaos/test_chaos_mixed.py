"""Everything goes wrong at once, in an order that a seed decides, and every promise holds."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow_client.chaos.evidence import Scene
from benchflow_client.chaos.faults import (
    EarlyBody,
    Fault,
    LostChord,
    LostMessage,
    Pause,
    RepeatedDelivery,
    ResetConnections,
)
from tests.brokers import PrivateRedis, private_redis
from tests.chaos_rig import (
    ChaosFleet,
    FrozenRedis,
    FrozenWorker,
    KilledWorker,
    RestartedRedis,
    battle_on,
    chaos_fleet,
)
from tests.forked_workers import ForkedWorker, WorkerSource

WORKERS = 3
SHIFTS_S = (0.0, 3600.0, -3600.0)
"""How far the workers' clocks are off."""

QUICK_PER_S, REAL_PER_S = 6, 8
"""Trials of each job for a second of faults: more than the workers manage, so that no fault comes too late.
The rest of the second job is cancelled in the end."""

LONG_S = 60.0
"""Only a run that lasts so long loses messages too: a lost one is missed after seconds, which a short run lacks."""


def faults_of(scene: Scene) -> list[Fault]:
    return [
        RepeatedDelivery(scene.mailbox),
        LostChord(scene.mailbox),
        EarlyBody(scene.fleet.dispatcher, scene.header),
        Pause(scene.handle),
    ]


def faults_on(
    fleet: ChaosFleet, server: PrivateRedis, scene: Scene, start: Callable[[], object]
) -> list[Fault]:
    return [
        *faults_of(scene),
        ResetConnections(scene.mailbox),
        KilledWorker(fleet, signal.SIGKILL, start),
        KilledWorker(fleet, signal.SIGTERM, start),
        FrozenWorker(fleet),
        RestartedRedis(server),
        FrozenRedis(server),
    ]


@pytest.mark.root
@pytest.mark.timeout(3600)
def test_no_trial_is_lost_or_counted_twice_whatever_goes_wrong(
    tmp_path: Path, source: WorkerSource, chaos_seconds: float, chaos_seed: int
) -> None:
    shifts = itertools.cycle(SHIFTS_S)
    with (
        private_redis(tmp_path / "redis") as server,
        chaos_fleet(tmp_path, server.url, source, BENCHFLOW_NULL_EXEC_S="0.5") as fleet,
        battle_on(fleet) as battle,
    ):

        def start() -> ForkedWorker:
            return fleet.launch(shift_s=next(shifts))

        fleet.wait_for(*(start() for _ in range(WORKERS)))
        quick = battle.open(sandbox="null", trials=int(QUICK_PER_S * chaos_seconds), concurrency=6)
        real = battle.open(
            sandbox="local", trials=int(REAL_PER_S * chaos_seconds), concurrency=4, trial_s=0.5
        )
        faults = faults_on(fleet, server, quick, start) + faults_of(real)
        expected = {fault.name for fault in faults}
        if chaos_seconds >= LONG_S:
            faults.append(LostMessage(real.mailbox))  # where one waits

        done = battle.fight(faults, seed=chaos_seed, every_s=chaos_seconds / 24, for_s=chaos_seconds)
        real.handle.cancel(by="ana", reason="that is enough")
        battle.wait()

        battle.assert_sound(note=f"--chaos-seed {chaos_seed} --chaos-seconds {chaos_seconds:g}")
        assert expected - done == set(), f"--chaos-seed {chaos_seed}"
        assert quick.handle.progress().outcomes["unscored"] == quick.plan.size
        assert real.handle.progress().outcomes["passed"] > 0
