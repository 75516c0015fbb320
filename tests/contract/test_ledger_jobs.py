"""Pausing, reopening and restoring jobs, over every implementation of the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchflow_client.errors import JobExistsError, JobNotFoundError
from benchflow_client.ledger.base import ClaimStatus, JobState, Ledger, RenewStatus
from tests.ledgers import TTL_S, adds_up, claim, header, receipt, release


def test_paused_job_releases_nothing_and_its_running_trials_go_on(ledger: Ledger) -> None:
    ledger.open_job(header(total=4, concurrency=2))
    release(ledger, "j", limit=2)
    claim(ledger, 0)

    assert ledger.pause("j", by="ana", reason="quota")

    assert ledger.pause("j", by="li", reason="") is False
    assert release(ledger, "j", limit=5) == []
    assert claim(ledger, 1).status is ClaimStatus.PAUSED
    assert ledger.renew("j", 0, fence=1, ttl_s=TTL_S) is RenewStatus.HELD
    progress = ledger.progress("j")
    assert (progress.state, progress.paused_by, progress.pause_reason) == (JobState.PAUSED, "ana", "quota")
    assert (progress.running, progress.waiting, progress.released) == (1, 3, 0)


def test_resumed_job_goes_on_where_it_was(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=2))
    release(ledger, "j", limit=2)
    ledger.pause("j", by="ana", reason="")
    claim(ledger, 0)

    assert ledger.resume("j")

    assert ledger.resume("j") is False
    assert ledger.progress("j").paused_by == ""
    assert release(ledger, "j", limit=5) == [0]
    assert adds_up(ledger)


def test_paused_job_can_be_cancelled(ledger: Ledger) -> None:
    ledger.open_job(header())
    ledger.pause("j", by="ana", reason="")

    assert ledger.cancel("j", by="li", reason="enough")
    assert ledger.sweep("j", limit=9) == 3


@pytest.mark.parametrize("ask", ["pause", "resume"])
def test_pause_and_resume_need_a_known_job(ledger: Ledger, ask: str) -> None:
    with pytest.raises(JobNotFoundError):
        ledger.pause("nothing", by="", reason="") if ask == "pause" else ledger.resume("nothing")


def closed_job(ledger: Ledger) -> None:
    """Two trials of three scored, one errored, all committed."""
    ledger.open_job(header(total=3, concurrency=3))
    release(ledger, "j", limit=3)
    for index, outcome, reward in ((0, "passed", 1.0), (1, "errored", None), (2, "failed", 0.25)):
        claim(ledger, index)
        ledger.commit("j", receipt(index, outcome=outcome, reward=reward), fence=1)
    ledger.close_job("j")


def test_reopened_trials_wait_again_and_the_others_keep_their_receipts(ledger: Ledger) -> None:
    closed_job(ledger)

    assert ledger.reopen("j", [1, 2, 7], group_id="g2") == 2

    progress = ledger.progress("j")
    assert (progress.state, progress.waiting, progress.finished) == (JobState.OPEN, 2, 1)
    assert progress.outcomes["errored"] == progress.outcomes["failed"] == 0
    assert progress.reward_sum == 1.0
    assert (progress.header.group_id, progress.header.epoch) == ("g2", 1)
    assert sorted(release(ledger, "j", limit=9)) == [1, 2]
    again = claim(ledger, 1)
    assert (again.status, again.attempt, again.group_id) == (ClaimStatus.GRANTED, 1, "g2")
    assert claim(ledger, 0).receipt == receipt(0)


def test_only_a_closed_job_is_reopened(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0)
    ledger.commit("j", receipt(0), fence=1)

    assert ledger.reopen("j", [0], group_id="g2") == 0
    assert ledger.reopen("nothing", [0], group_id="g2") == 0
    ledger.close_job("j")
    assert ledger.reopen("j", [2], group_id="g2") == 0
    assert ledger.progress("j").state is JobState.CLOSED


def test_restored_job_runs_only_what_is_not_finished(ledger: Ledger) -> None:
    done = [receipt(0), receipt(2, outcome="errored", reward=None)]

    ledger.restore_job(header(total=4, concurrency=9), done)

    progress = ledger.progress("j")
    assert (progress.state, progress.waiting, progress.finished) == (JobState.PAUSED, 2, 2)
    assert progress.reward_sum == 1.0
    assert list(ledger.receipts("j")) == done
    ledger.resume("j")
    assert sorted(release(ledger, "j", limit=9)) == [1, 3]
    assert release(ledger, "j", limit=9) == []
    with pytest.raises(JobExistsError):
        ledger.restore_job(replace(header(), group_id="other"), [])


def test_opening_a_job_whose_answer_was_lost_is_not_taken_for_another_job(ledger: Ledger) -> None:
    ledger.open_job(header())

    ledger.open_job(header())

    with pytest.raises(JobExistsError):
        ledger.open_job(replace(header(), group_id="other"))


def test_ledger_gives_its_fleet_one_name(ledger: Ledger) -> None:
    name = ledger.fleet_id()

    assert name
    assert ledger.fleet_id() == name


def test_only_jobs_that_are_not_closed_are_open(ledger: Ledger) -> None:
    closed_job(ledger)
    ledger.open_job(header("b"))
    ledger.open_job(header("a"))
    ledger.pause("a", by="ana", reason="")
    assert ledger.open_jobs() == ["a", "b"]

    ledger.reopen("j", [1], group_id="g2")
    ledger.forget_job("b")

    assert ledger.open_jobs() == ["a", "j"]
