"""Messages and chords that are lost, come too often or come to nobody; clients that die while they submit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from benchflow_client.chaos.faults import DELIVERIES
from benchflow_client.chaos.mailbox import CHORD_PREFIX
from benchflow_client.ledger import job_scripts
from tests.chaos_rig import CLOSES_S, Battle, ChaosFleet, committed_twice
from tests.waiting import until
from tests.wire import Rule, Wire, sha_of, wire_to
from tests.worlds import write_task

SUBMIT = "import sys; from benchflow_client.cli.main import main; sys.exit(main())"
MISSED_S = 60.0
"""A message is missed after less than this."""

Act = Callable[[], object]

MOMENTS: dict[str, Callable[[Wire, Act], Rule]] = {
    "before the job is recorded": lambda wire, act: wire.before(sha_of(job_scripts.OPEN), act=act),
    "when the job is recorded": lambda wire, act: wire.after(sha_of(job_scripts.OPEN), act=act),
    "before the first message": lambda wire, act: wire.before("LPUSH", act=act),
}
"""When a client dies that submits a job."""


def submit_and_die(fleet: ChaosFleet, arm: Callable[[Wire, Act], Rule], job: str) -> None:
    """Submit a job with a client that is killed at a moment."""
    with wire_to(fleet.url) as wire:
        task = write_task(fleet.folder / "fix-build")
        flags = ["--agent", "nop", "--tries", "6", "--sandbox", "null", "--job-name", job]
        with subprocess.Popen(
            [sys.executable, "-c", SUBMIT, "submit", str(task), *flags],
            env={**fleet.environ, "BENCHFLOW_BROKER_URL": wire.url, "BENCHFLOW_LEDGER_URL": wire.url},
            cwd=fleet.folder,
        ) as client:
            rule = arm(wire, client.kill)
            client.wait(timeout=CLOSES_S)
        assert rule.fired.is_set()


@pytest.mark.parametrize("moment", MOMENTS)
def test_job_of_a_client_that_died_while_it_submitted_runs(fleet: ChaosFleet, moment: str) -> None:
    fleet.wait_for(fleet.launch())

    submit_and_die(fleet, MOMENTS[moment], "calm-otter")

    with fleet.client() as client:
        if moment == "before the job is recorded":
            assert client.jobs() == []
            client.recover("calm-otter")
        else:
            fleet.skip("calm-otter", MISSED_S)
        summary = fleet.closed(client.job("calm-otter"))
    assert (summary.planned, summary.unscored) == (6, 6)


def test_job_whose_chord_loses_its_size_is_gathered_by_a_worker_whose_clock_is_a_day_slow(
    fleet: ChaosFleet, battle: Battle
) -> None:
    """As when no part came for as long as a chord lives."""
    fleet.wait_for(fleet.launch(shift_s=-86_400.0, BENCHFLOW_NULL_EXEC_S="0.1"))
    scene = battle.open(sandbox="null", trials=10, concurrency=2)
    until(lambda: 3 <= scene.handle.progress().finished < 10, seconds=CLOSES_S)

    assert fleet.redis.delete(f"{CHORD_PREFIX}{scene.header.group_id}.s") == 1

    battle.wait()
    battle.assert_sound()
    assert {receipt.attempts for receipt in fleet.receipts(scene.handle)} == {1}


def test_trial_whose_copies_were_ignored_is_counted_when_its_worker_dies(
    fleet: ChaosFleet, battle: Battle
) -> None:
    """The copies came while it ran and are gone: nobody is left to return it but the one who takes it up."""
    doomed = fleet.launch(slots=4, BENCHFLOW_NULL_EXEC_S="3600")
    fleet.wait_for(doomed)
    scene = battle.open(sandbox="null", trials=4, concurrency=4)
    until(lambda: len(fleet.ledger.running(scene.plan.job)) == 4, seconds=CLOSES_S)
    fleet.wait_for(fleet.launch())

    assert scene.mailbox.copy_all(DELIVERIES - 1) == 8
    until(lambda: fleet.redis.llen("null") == 0, seconds=CLOSES_S)
    doomed.kill()

    battle.wait()
    battle.assert_sound()
    assert {receipt.attempts for receipt in fleet.receipts(scene.handle)} == {2}
    assert committed_twice(fleet) == []


def test_trial_whose_message_is_lost_runs(fleet: ChaosFleet, battle: Battle) -> None:
    scene = battle.open(sandbox="null", trials=4, concurrency=4)
    assert scene.mailbox.lose_one()

    fleet.wait_for(fleet.launch())
    until(lambda: scene.handle.progress().finished == 3, seconds=CLOSES_S)
    fleet.skip(scene.plan.job, MISSED_S)

    battle.wait()
    battle.assert_sound()
    assert {receipt.attempts for receipt in fleet.receipts(scene.handle)} == {1}
