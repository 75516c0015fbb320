"""Looks at a job while it runs and at what is left of it: reads everything, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.chaos.invariants import Evidence
from benchflow_client.chaos.mailbox import CHORD_PREFIX, Mailbox
from benchflow_client.chaos.secret_search import (
    EventListener,
    Needle,
    search_files,
    search_redis,
    search_store,
)
from benchflow_client.doctor import ask_host
from benchflow_client.errors import BenchflowError, BrokerError, WorkerError
from benchflow_client.handle import Fleet, JobHandle
from benchflow_client.ledger.base import JobHeader, JobProgress, JobState
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.results.receipts import stored_receipts
from benchflow_client.schema.plan import Plan
from benchflow_client.spending import account_of
from benchflow_client.store.layout import job_prefix, summary_key

_POLL_S = 0.1
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Scene:
    """A job under fire, and everything needed to look at it.

    Attributes:
        fleet: Where it runs.
        handle: The job.
        header: The job, as the ledger has it.
        plan: The job's plan.
        broker: The broker's Redis.
        ledger: The ledger's Redis; often the same.
        environ: Variables with which a process of the workers' side joins the fleet.
        state_dir: Folder in which workers of this host keep sandboxes.
        reward: Reward every scored trial has earned; None = the sandboxes give none.
        mounts: Mounts below that folder before the job was submitted.
    """

    fleet: Fleet
    handle: JobHandle
    header: JobHeader
    plan: Plan
    broker: RedisConnection
    ledger: RedisConnection
    environ: Mapping[str, str]
    state_dir: Path
    reward: float | None
    mounts: frozenset[str]

    @property
    def mailbox(self) -> Mailbox:
        """Return the job's messages."""
        return Mailbox(self.broker, self.ledger, self.header, self.plan)

    def is_closed(self) -> bool:
        """Return whether the job is closed; an unreachable ledger says nothing."""
        try:
            return self.handle.progress().state is JobState.CLOSED
        except BrokerError:
            return False


@dataclass(slots=True)
class Observer:
    """Reads the counts again and again and notes what does not add up."""

    handle: JobHandle
    problems: list[str] = field(default_factory=list)
    looks: int = 0
    _finished: int = 0

    def look(self) -> JobProgress | None:
        """Look once; None = the ledger does not answer."""
        try:
            progress = self.handle.progress()
        except BrokerError:
            return None
        self.looks += 1
        total, parts = progress.header.total, (progress.running, progress.waiting, progress.released)
        if progress.finished + progress.running + progress.waiting != total or min(parts) < 0:
            self.problems.append(
                f"{progress.finished} ended, {progress.running} run, {progress.waiting} wait, of {total}"
            )
        if progress.released > progress.waiting:
            self.problems.append(f"{progress.released} released, but only {progress.waiting} wait")
        if progress.finished < self._finished:
            self.problems.append(f"{self._finished} had ended, then {progress.finished}")
        self._finished = progress.finished
        return progress


@dataclass(frozen=True, slots=True)
class Canary:
    """A secret the workers gave to the agents, and where it must not be.

    Attributes:
        needle: The secret.
        events: What heard the fleet's events meanwhile.
        logs: Log files to search.
    """

    needle: Needle
    events: EventListener
    logs: Sequence[Path]


def collect(scene: Scene, observer: Observer, *, canary: Canary | None, settle_s: float) -> Evidence:
    """Look at a closed job once all has settled, or after `settle_s` as it is then.

    Asks for the summary again, which must change nothing.

    Raises:
        BenchflowError: Ledger, broker or store do not answer.
    """
    store, job = scene.fleet.store, scene.plan.job
    before = store.get(summary_key(job))
    scene.fleet.dispatcher.gather(scene.header)
    deadline = time.monotonic() + settle_s
    messages = settled(scene.mailbox.left, deadline)
    settled(lambda: _records(scene), deadline)
    sandboxes = settled(lambda: _sandboxes(scene), deadline)
    found = scene.handle.results()
    if found.summary is None:
        raise BenchflowError(f"Job {job!r} is closed and has no summary.", hint="Look at the workers' logs.")
    trials, progress = tuple(scene.handle.trials()), scene.handle.progress()
    return Evidence(
        plan=scene.plan,
        progress=progress,
        receipts=tuple(scene.fleet.ledger.receipts(job)),
        trials=trials,
        summary=found.summary,
        rows=stored_receipts(store, found),
        summaries=(before, store.get(summary_key(job))),
        observed=tuple(observer.problems),
        account=account_of(progress),
        reward=scene.reward,
        messages=messages or (),
        sandboxes=sandboxes,
        mounts=sorted(mounts_below(scene.state_dir) - scene.mounts),
        secrets=None if canary is None else tuple(_secrets(scene, canary)),
    )


def settled(look: Callable[[], Sequence[str] | None], deadline: float) -> Sequence[str] | None:
    """Look until nothing is found or the deadline has come; return what is found then."""
    while True:
        found = look()
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def mounts_below(folder: Path) -> frozenset[str]:
    """Return the mount points of this host below a folder; none where the kernel does not list them."""
    if not _MOUNTS.exists():
        return frozenset()
    points = (line.split(" ")[4] for line in _MOUNTS.read_text(errors="replace").splitlines())
    return frozenset(point for point in points if point.startswith(f"{folder.resolve()}/"))


def _records(scene: Scene) -> Sequence[str]:
    book = RedisSandboxBook(scene.ledger)
    return tuple(f"{record.name} on record" for record in book.read() if record.job == scene.plan.job)


def _sandboxes(scene: Scene) -> Sequence[str] | None:
    """Return what exists or is recorded of the job; None = this host cannot look and nothing is recorded."""
    records = _records(scene)
    try:
        rows = ask_host(["sandboxes", "audit"], scene.environ)
    except WorkerError:
        return records or None
    return (
        *records,
        *(f"{row['kind']} {row['id'][:20]} {row['state']}" for row in rows if _is_own(row, scene)),
    )


def _is_own(row: Mapping[str, Any], scene: Scene) -> bool:
    trial = str(row["trial"])
    own = {scene.plan.trial(index).id for index in range(scene.plan.size)}
    return trial in own or trial.startswith(f"{scene.plan.job} #")


def _secrets(scene: Scene, canary: Canary) -> list[str]:
    job = scene.plan.job
    patterns = (
        *(f"*{name}*" for name in (job, scene.header.body_id, f"{CHORD_PREFIX}{scene.header.group_id}")),
        "unacked*", "bf:sandboxes", "bf:worker:*", *scene.mailbox.queues,
    )  # fmt: skip
    places = sorted({
        *search_redis(scene.broker, canary.needle, patterns),
        *search_redis(scene.ledger, canary.needle, patterns),
    })
    places += search_store(scene.fleet.store, canary.needle, job_prefix(job))
    places += search_files(canary.logs, canary.needle)
    if canary.events.found:
        places.append(f"{canary.events.found} of {canary.events.heard} events")
    return places
