"""From what the ledger says, time after time, to what a watcher sees: progress, pace, events."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchflow_client.spending import stop_text
from benchflow_client.wording import clock, plural

if TYPE_CHECKING:  # only read here; importing them costs a watcher's start
    from benchflow_client.ledger.base import JobProgress, RunningTrial
    from benchflow_client.schema.summary import AgentGroup

__all__ = ["AgentLine", "Snapshot", "Watch", "WatchView", "events", "status_parts"]

_WINDOW_S = 600.0  # the pace of a job is that of its last ten minutes ...
_WINDOW_FINISHES = 10  # ... once so many trials ended in them
_MIN_ELAPSED_S = 1.0  # no forecast before: the first trials of a job start together
_HEARTBEAT_S = 60.0  # between two lines when nothing changes
_MILESTONES = 10  # parts of a job whose completion is worth a line


class Snapshot(NamedTuple):
    """What was asked of the ledger at one moment."""

    progress: JobProgress
    running: Sequence[RunningTrial]
    taken_at: float  # seconds since the epoch, on the ledger's clock if it is known
    waiting_for: str = ""  # what the waiting trials wait for; empty = say what the counts say
    agents: Sequence[AgentGroup] = ()  # groups of a partial summary; empty = not asked
    main_cause: str = ""  # what most of the waiting trials wait for; empty = as `waiting_for`


class AgentLine(NamedTuple):
    """How one agent stands."""

    agent: str
    passed: int
    counted: int  # trials that ended and that nobody stopped
    score: float | None


class WatchView(NamedTuple):
    """All that a watcher sees of a job at one moment."""

    job: str
    state: str  # open, cancelling, closed
    total: int
    finished: int
    running: int
    waiting: int
    phases: tuple[tuple[str, int], ...]  # (phase, running trials in it), most first
    waiting_for: str  # empty = nothing waits
    outcomes: tuple[tuple[str, int], ...]  # (name for people, trials), only those there are
    retried: int  # executions beyond the first of each trial
    agents: tuple[AgentLine, ...]
    elapsed_s: float  # since the first trial started
    eta_s: float | None  # None = no forecast
    cancelled: str  # who cancelled and why, or why it stopped by itself; empty = neither
    taken_at: float
    main_cause: str = ""  # what most of the waiting trials wait for, without counts; empty = nothing waits

    @property
    def fraction(self) -> float:
        """Part of the trials that finished, 0..1; an empty job is all finished."""
        return self.finished / self.total if self.total else 1.0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state == "closed"


class Watch:
    """Remembers the pace of one job between observations."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, int, float]] = deque()  # (when, finished, work)

    def observe(self, snapshot: Snapshot) -> WatchView:
        """Return what to show for a new snapshot."""
        progress = snapshot.progress
        return WatchView(
            job=progress.header.job,
            state=str(progress.state),
            total=progress.header.total,
            finished=progress.finished,
            running=progress.running,
            waiting=progress.waiting,
            phases=tuple(Counter(trial.phase for trial in snapshot.running).most_common()),
            waiting_for=_waiting_for(snapshot),
            outcomes=tuple(_outcomes(progress)),
            retried=progress.retried,
            agents=tuple(
                AgentLine(group.agent, group.passed, group.counted, group.score) for group in snapshot.agents
            ),
            elapsed_s=_elapsed(snapshot),
            eta_s=self._forecast(snapshot),
            cancelled=_cancelled(progress),
            taken_at=snapshot.taken_at,
            main_cause=snapshot.main_cause or _waiting_for(snapshot),
        )

    def _forecast(self, snapshot: Snapshot) -> float | None:
        """Return the seconds to the end at the present pace.

        Running trials count as half done: at the start, when several run and few have
        ended, the ended ones alone would make the pace look much too slow.
        """
        progress, now = snapshot.progress, snapshot.taken_at
        work = progress.finished + progress.running / 2
        self._remember(now, progress.finished, work)
        if progress.state != "open" or not progress.finished:
            return None
        oldest_at, oldest_finished, oldest_work = self._history[0]
        if progress.finished - oldest_finished >= _WINDOW_FINISHES:
            spent, gained = now - oldest_at, work - oldest_work
        else:
            spent, gained = _elapsed(snapshot), work
        if spent < _MIN_ELAPSED_S or gained <= 0:
            return None
        return (progress.header.total - work) * spent / gained

    def _remember(self, now: float, finished: int, work: float) -> None:
        if not self._history or now - self._history[-1][0] >= 1:
            self._history.append((now, finished, work))
        while len(self._history) > 1 and now - self._history[0][0] > _WINDOW_S:
            self._history.popleft()


def status_parts(view: WatchView) -> tuple[str, ...]:
    """Return the counts as short pieces: ``running 4 (agent 2, verifying 2)``, ``passed 9``, ..."""
    parts: list[str] = []
    if view.running:
        phases = ", ".join(f"{phase} {number}" for phase, number in view.phases)
        parts.append(f"running {view.running}" + (f" ({phases})" if phases else ""))
    if view.waiting:
        parts.append(f"waiting {view.waiting} ({view.waiting_for})")
    parts.extend(f"{name} {number}" for name, number in view.outcomes)
    if view.retried:
        parts.append(f"retried {view.retried}x")
    if view.state in {"cancelling", "stopping"}:
        parts.append(view.cancelled)
    return tuple(parts)


def events(previous: WatchView | None, current: WatchView) -> tuple[str, ...]:
    """Return the plain lines a change is worth; usually none.

    A line tells a change of state or that another tenth of the job is finished. When
    nothing else is to tell, a heartbeat comes once a minute.
    """
    if previous is None:
        return (_status(current),)
    if current.is_over:
        return () if previous.is_over else (f"{_status(current)}  finished",)
    lines = list(_changes(previous, current))
    if lines or _stage(previous) != _stage(current) or _is_minute_over(previous, current):
        return (*lines, _status(current))
    return ()


def _changes(previous: WatchView, current: WatchView) -> Iterator[str]:
    job = current.job
    if current.state != previous.state:
        yield f"{job}  {current.cancelled or current.state}"
    if current.retried > previous.retried:
        number = current.retried - previous.retried
        yield f"{job}  {plural(number, 'execution')} lost to infrastructure, started again"
    # Counts of causes change with every trial; only another main cause is news.
    if current.main_cause and previous.main_cause and current.main_cause != previous.main_cause:
        yield f"{job}  now waiting for: {current.waiting_for}"


def _stage(view: WatchView) -> tuple[bool, int]:
    """Return whether it began, and how many tenths are finished."""
    return view.running > 0 or view.finished > 0, int(view.fraction * _MILESTONES)


def _is_minute_over(previous: WatchView, current: WatchView) -> bool:
    return previous.taken_at // _HEARTBEAT_S != current.taken_at // _HEARTBEAT_S


def _status(view: WatchView) -> str:
    eta = [f"eta {clock(view.eta_s)}"] if view.eta_s is not None else []
    parts = [view.job, f"{view.finished}/{view.total}", *status_parts(view), clock(view.elapsed_s), *eta]
    return "  ".join(parts)


def _waiting_for(snapshot: Snapshot) -> str:
    """Return the given reason, else what the counts say."""
    progress = snapshot.progress
    if not progress.waiting:
        return ""
    if snapshot.waiting_for:
        return snapshot.waiting_for
    return "slots" if progress.running or progress.released else "release"


def _outcomes(progress: JobProgress) -> Iterator[tuple[str, int]]:
    for name in ("passed", "failed"):
        if progress.finished:
            yield name, progress.outcomes.get(name, 0)
    lost = sum(progress.outcomes.get(name, 0) for name in ("errored", "verifier_errored", "unscored"))
    if lost:
        yield "no verdict", lost
    if stopped := progress.outcomes.get("cancelled", 0):
        yield "cancelled", stopped
    if missing := progress.outcomes.get("not_started", 0):
        yield "not started", missing


def _elapsed(snapshot: Snapshot) -> float:
    progress = snapshot.progress
    if not progress.first_started_at:
        return 0.0
    is_closed = progress.state == "closed" and progress.last_finished_at
    end = progress.last_finished_at if is_closed else max(snapshot.taken_at, progress.last_finished_at)
    return max(0.0, end - progress.first_started_at)


def _cancelled(progress: JobProgress) -> str:
    if not progress.cancelled_by:
        return f"stopped: {stop_text(progress)}" if progress.stop_cause else ""
    reason = f": {progress.cancel_reason}" if progress.cancel_reason else ""
    return f"cancelled by {progress.cancelled_by}{reason}"
