"""Admission in one process's memory: the twin of `admission_scripts`, rule by rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchflow_client.ledger.admission import (
    SMALL_JOB_BOOST,
    SMALL_JOB_ROUNDS,
    Admission,
    AdmittedTrial,
    Cause,
    Limit,
    Room,
)
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.memory_jobs import Job
from benchflow_client.ledger.memory_rates import MemoryRates
from benchflow_client.schema.ids import kind_of_queue


@dataclass
class Round:
    """One look at all jobs at one moment.

    Attributes:
        now: Seconds since the epoch.
        limits: By bucket.
        used_until: By bucket, the moment up to which its starts are taken; changed.
        rates: What calls of models use.
        wake: The next moment at which time alone admits more.
        live: Trials in flight by bucket.
    """

    now: float
    limits: Mapping[str, Limit]
    used_until: dict[str, float]
    rates: MemoryRates
    wake: float | None = None
    live: Counter[str] = field(default_factory=Counter)

    def count(self, jobs: Iterable[Job]) -> None:
        """Count what is in flight by bucket."""
        for job in jobs:
            for index in (*job.leases, *job.released):
                self.live.update(buckets_of(job, index))

    def wake_at(self, moment: float) -> None:
        """Note a moment at which more may be possible."""
        self.wake = moment if self.wake is None else min(self.wake, moment)

    def limit_on(self, job: Job, lane: int) -> str:
        """Return which limit stops a lane; empty = none."""
        for bucket in buckets_of(job, lane):
            limit = self.limits.get(bucket, Limit())
            if limit.live is not None and self.live[bucket] >= limit.live:
                return f"limit {bucket}"
            free_at = self.rates.free_at(bucket, limit)
            if limit.starts_per_s is not None:
                ahead = max(0.0, 1.0 - 1.0 / limit.starts_per_s)
                free_at = max(free_at, self.used_until.get(bucket, 0.0) - ahead)
            if free_at > self.now:
                self.wake_at(free_at)
                return f"limit {bucket}"
        return ""

    def take(self, job: Job, lane: int) -> None:
        """Use the limits of a lane once."""
        for bucket in buckets_of(job, lane):
            self.live[bucket] += 1
            if (per_s := self.limits.get(bucket, Limit()).starts_per_s) is not None:
                used = max(self.used_until.get(bucket, 0.0), self.now)
                self.used_until[bucket] = used + 1.0 / per_s

    def budget_on(self, job: Job, ahead: int = 0) -> str:
        """Return which cap stops a job of which some more are spoken for; empty = none."""
        if job.deadline_at is not None:
            if self.now >= job.deadline_at:
                return Cause.DEADLINE
            self.wake_at(job.deadline_at)
        budget = job.header.budget
        caps = (
            (Cause.COST, budget.cost_usd, job.spent.cost_usd, "cost_usd", budget.trial_cost_usd),
            (Cause.TOKENS, budget.tokens, job.spent.tokens, "tokens", budget.trial_tokens),
            (Cause.SANDBOX, budget.sandbox_s, job.spent.sandbox_s, "sandbox_s", None),
        )
        for cause, cap, spent, name, each in caps:
            if cap is not None:
                largest = job.largest.get(name, 0) if job.settled else cap
                if spent + (job.in_flight + ahead) * (largest if each is None else each) >= cap:
                    return cause
        return ""

    def choose(self, job: Job, ahead: int) -> tuple[int | None, str]:
        """Return the trial of a job that would start next, or None and why."""
        if why := self.budget_on(job, ahead):
            return None, why
        if job.in_flight + ahead >= job.header.concurrency:
            return None, Cause.CONCURRENCY
        due: list[int] = []
        fresh: list[int] = []
        for lane in range(len(job.header.lanes)):
            if blocked := self.limit_on(job, lane):
                why = why or blocked
                continue
            if (index := self._returned(job, lane)) is not None:
                due.append(index)
            elif trials_on(job):
                why = Cause.TRIALS
            elif (index := next(job.fresh(lane), None)) is not None:
                fresh.append(index)
        best = min(due or fresh, default=None)
        return (None, why or Cause.RETRY) if best is None else (best, "")

    def _returned(self, job: Job, lane: int) -> int | None:
        has_new = not trials_on(job)
        at, index = next(((at, i) for at, i in job.back(lane) if has_new or not job.is_new(i)), (None, None))
        if at is not None and at > self.now:
            self.wake_at(at)
            return None
        return index


def admit(jobs: Mapping[str, Job], room: Room, look: Round, *, limit: int, only: str) -> Admission:
    """Choose trials; see `Ledger.admit`."""
    look.count(jobs.values())
    mine = {name: job for name, job in jobs.items() if job.header.queue == room.queue}
    in_flight = sum(job.in_flight for job in mine.values())
    open_jobs = {name: job for name, job in mine.items() if job.state is JobState.OPEN and job.waiting}
    ahead: Counter[str] = Counter()  # places that others deserve and the caller may not take
    turns = {name: job.served for name, job in open_jobs.items()}
    turn = max((job.served for job in mine.values()), default=0)
    taken: list[AdmittedTrial] = []
    stopped: list[str] = []
    while open_jobs and len(taken) < limit:
        name = min(
            open_jobs, key=lambda name: _rank(name, open_jobs[name], ahead[name], room=room, turn=turns[name])
        )
        job = open_jobs[name]
        index, why = look.choose(job, ahead[name])
        if index is None:
            _stop(name, job, why, ahead=ahead[name], stopped=stopped)
            del open_jobs[name]
            continue
        if in_flight >= room.messages:
            break
        turn += 1
        turns[name] = turn
        if only in {"", name}:
            job.served = turn
            _start(job, index, look)
            taken.append(AdmittedTrial(name, job.header.group_id, index))
        else:
            ahead[name] += 1
        in_flight += 1
        if job.waiting <= ahead[name]:
            del open_jobs[name]
    for name, job in open_jobs.items():
        _stop(name, job, look.budget_on(job, ahead[name]), ahead=ahead[name], stopped=stopped)
    wait_s = None if look.wake is None else max(1, math.ceil((look.wake - look.now) * 1000)) / 1000
    return Admission(taken, stopped, wait_s)


def waiting(jobs: Mapping[str, Job], job: Job, room: Room, look: Round) -> Mapping[str, int]:
    """Return how many trials wait for what; see `Ledger.waiting`."""
    del room
    look.count(jobs.values())
    counts: Counter[str] = Counter({Cause.SLOTS: len(job.released)})
    left = job.waiting
    whole = {JobState.PAUSED: Cause.PAUSED, JobState.OPEN: look.budget_on(job)}
    if cause := whole.get(job.state, Cause.STOPPING):
        return +(counts + Counter({cause: left}))
    width = len(job.header.lanes)
    for lane in range(width):
        returned = [at for i, at in job.returned.items() if i % width == lane]
        fresh = sum(1 for _ in job.fresh(lane))
        delayed = sum(at > look.now for at in returned)
        counts[Cause.RETRY] += delayed
        left -= delayed
        is_full = job.in_flight >= job.header.concurrency
        if why := Cause.CONCURRENCY if is_full else look.limit_on(job, lane):
            counts[why] += len(returned) - delayed + fresh
            left -= len(returned) - delayed + fresh
        elif trials_on(job):
            counts[Cause.TRIALS] += fresh
            left -= fresh
    counts[Cause.SLOTS] += left
    return +counts


def buckets_of(job: Job, index: int) -> tuple[str, ...]:
    """Return the buckets of a trial, or of a lane."""
    return (f"sandbox:{kind_of_queue(job.header.queue)}", *job.header.lanes[index % len(job.header.lanes)])


def trials_on(job: Job) -> bool:
    """Return whether as many trials were started as the budget allows."""
    cap = job.header.budget.trials
    return cap is not None and job.spent.trials >= cap


def _rank(name: str, job: Job, ahead: int, *, room: Room, turn: int) -> tuple[int, float, int, float, str]:
    unfinished = job.waiting + job.in_flight
    boost = SMALL_JOB_BOOST if unfinished <= room.messages * SMALL_JOB_ROUNDS else 1
    share = (job.in_flight + ahead) / (job.header.weight * boost)
    return -job.header.priority, share, turn, job.header.created_at, name


def _stop(name: str, job: Job, why: str, *, ahead: int, stopped: list[str]) -> None:
    """End a job whose budget nothing in flight can free any more."""
    is_over = why == Cause.DEADLINE or (why.startswith("budget ") and not job.in_flight + ahead)
    is_retrying = any(not job.is_new(index) for index in job.returned)
    if is_over and not (why == Cause.TRIALS and is_retrying):
        job.state, job.stop_cause = JobState.STOPPING, why
        stopped.append(name)


def _start(job: Job, index: int, look: Round) -> None:
    if job.is_new(index):
        job.count_started(1)
    if job.returned.pop(index, None) is None:
        job.move_cursor(index)
    job.released[index] = look.now
    look.take(job, index % len(job.header.lanes))
