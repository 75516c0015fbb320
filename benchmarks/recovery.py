"""Measure how soon a fleet is itself again: after a worker's death, a broker's restart, a drain.

python -m benchmarks.recovery              three kills, three restarts, three drains; a table
python -m benchmarks.recovery --json       the same as JSON on stdout
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchflow_client import JobSpec
from benchflow_client.embedded.process import has_ended
from benchflow_client.errors import BrokerError
from benchflow_client.handle import JobHandle
from benchflow_client.ledger.redis import RedisLedger
from benchmarks.fleet import BenchFleet, bench_fleet, write_tasks

LEASE_TTL_S = 4.0
RECONCILE_S = 0.5
SLOTS = 4
DEADLINE_S = 120.0
HOURS = "3600"
SHORT_S = "0.1"
WINDOW_S = 2.0
"""Seconds over which a rate is taken."""

FULL_SPEED = 0.9
"""Share of the rate before at which a fleet counts as itself again."""


@dataclass(frozen=True)
class Recovery:
    """What was measured, each number the median of the rounds.

    Attributes:
        rounds: How often each thing was done.
        lease_ttl_s: Life of a lease.
        rerun_s: From kill -9 of a worker to the claim of the last of its trials by another one.
        rerun_ttls: The same as a multiple of the lease's life.
        restart_s: From kill -9 of the broker, which comes back at once, to full speed.
        restart_rate_ratio: Trials a second after the restart / before it, in the same run.
        drain_s: From SIGTERM to the end of a worker whose trials would take an hour.
        drain_rerun_s: From SIGTERM to the claim of the last of its trials by another worker.
    """

    rounds: int
    lease_ttl_s: float
    rerun_s: float
    rerun_ttls: float
    restart_s: float
    restart_rate_ratio: float
    drain_s: float
    drain_rerun_s: float


def measure_holders(fleet: BenchFleet, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Kill, then drain, whoever holds the trials of a job, again and again.

    Returns:
        Seconds to the re-run after each kill, to the end of each drained worker, to the re-run after it.
    """
    tasks = write_tasks(fleet.folder / "holders", 1)
    spec = JobSpec(
        tasks=str(tasks), agent=["oracle"], tries=SLOTS, concurrency=SLOTS, sandbox="null", max_attempts=20
    )
    holder = start_worker(fleet, HOURS)
    with fleet.client as client:
        handle, kills, drains, reruns = client.submit(spec), list[float](), list[float](), list[float]()
        until(lambda: holds_all(fleet, handle, holder))
        for _ in range(rounds):
            successor = start_worker(fleet, HOURS)
            start = time.monotonic()
            fleet.kill_worker(holder)
            kills.append(seconds_until(start, lambda at=successor: holds_all(fleet, handle, at)))
            holder = successor
        for _ in range(rounds):
            successor = start_worker(fleet, HOURS)
            start, leaving = time.monotonic(), holder
            fleet.kill_worker(leaving, with_signal=signal.SIGTERM)
            reruns.append(seconds_until(start, lambda at=successor: holds_all(fleet, handle, at)))
            drains.append(seconds_until(start, lambda pid=leaving: has_ended(pid)))
            holder = successor
        handle.cancel(by="recovery", reason="measured")
        handle.wait(timeout_s=DEADLINE_S)
    fleet.stop_workers()
    return kills, drains, reruns


def measure_restarts(fleet: BenchFleet, rounds: int) -> tuple[list[float], list[float]]:
    """Kill the broker while short trials run and bring it back at once.

    Returns:
        Seconds to full speed after each restart; the rate reached / the rate before.
    """
    for _ in range(2):
        start_worker(fleet, SHORT_S)
    tasks = write_tasks(fleet.folder / "short", 1)
    spec = JobSpec(
        tasks=str(tasks), agent=["oracle"], tries=1000, concurrency=2 * SLOTS, sandbox="null", max_attempts=20
    )
    seconds, ratios = list[float](), list[float]()
    for _ in range(rounds):
        with fleet.client as client:
            handle = client.submit(spec)
            until(lambda at=handle: at.progress().finished > 4 * SLOTS)
            before = rate(handle)
            start = time.monotonic()
            fleet.restart_server()
            after, took_s = full_speed(handle, before, start)
            seconds.append(took_s)
            ratios.append(after / before)
            handle.cancel(by="recovery", reason="measured")
            handle.wait(timeout_s=DEADLINE_S)
    fleet.stop_workers()
    return seconds, ratios


def start_worker(fleet: BenchFleet, exec_s: str) -> int:
    """Start a worker, wait until it is ready, and return its process."""
    fleet.spawn_worker(
        slots=SLOTS,
        queues="null,control",
        BENCHFLOW_NULL_EXEC_S=exec_s,
        BENCHFLOW_LEASE_TTL_S=str(LEASE_TTL_S),
        BENCHFLOW_RECONCILE_S=str(RECONCILE_S),
    )
    pid = fleet.workers[-1]
    ledger = RedisLedger.at(fleet.server.url)
    until(lambda: name_of(pid) in {worker.name for worker in ledger.workers()})
    return pid


def name_of(pid: int) -> str:
    return f"{os.uname().nodename}/{pid}"


def holds_all(fleet: BenchFleet, handle: JobHandle, pid: int) -> bool:
    """Return whether a worker holds every trial of a job."""
    owners = [trial.owner for trial in RedisLedger.at(fleet.server.url).running(handle.name)]
    return owners == [name_of(pid)] * SLOTS


def rate(handle: JobHandle) -> float:
    """Return trials a second, over a window from now; an unreachable broker finishes none."""
    start, first = time.monotonic(), finished(handle)
    time.sleep(WINDOW_S)
    last = finished(handle)
    return 0.0 if first is None or last is None else (last - first) / (time.monotonic() - start)


def finished(handle: JobHandle) -> int | None:
    try:
        return handle.progress().finished
    except BrokerError:
        return None


def full_speed(handle: JobHandle, before: float, start: float) -> tuple[float, float]:
    """Return the rate of the first window at full speed, and the seconds to its beginning."""
    best = 0.0
    while time.monotonic() - start < DEADLINE_S:
        begun = time.monotonic() - start
        best = max(best, now := rate(handle))
        if now >= FULL_SPEED * before:
            return now, begun
    return best, DEADLINE_S


def seconds_until(start: float, condition: Callable[[], bool]) -> float:
    until(condition)
    return time.monotonic() - start


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"still not so after {DEADLINE_S:g} s")
        time.sleep(0.01)


def show(found: Recovery) -> None:
    """Print a table for people."""
    print(f"median of {found.rounds}; lease {found.lease_ttl_s:g} s, reconciler every {RECONCILE_S:g} s")
    print(f"kill -9 of a worker to the re-run    {found.rerun_s:6.2f} s  {found.rerun_ttls:.2f} x lease TTL")
    print(
        f"kill -9 of the broker to full speed  {found.restart_s:6.2f} s  rate {found.restart_rate_ratio:.2f} x before"
    )
    print(f"SIGTERM to the end of the worker     {found.drain_s:6.2f} s")
    print(f"SIGTERM to the re-run elsewhere      {found.drain_rerun_s:6.2f} s")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each thing is done")
    parser.add_argument("--json", action="store_true", help="write JSON to stdout")
    options = parser.parse_args()
    with bench_fleet() as fleet:
        kills, drains, reruns = measure_holders(fleet, options.rounds)
        restarts, ratios = measure_restarts(fleet, options.rounds)
    middle = statistics.median
    found = Recovery(
        rounds=options.rounds,
        lease_ttl_s=LEASE_TTL_S,
        rerun_s=round(middle(kills), 3),
        rerun_ttls=round(middle(kills) / LEASE_TTL_S, 3),
        restart_s=round(middle(restarts), 3),
        restart_rate_ratio=round(middle(ratios), 3),
        drain_s=round(middle(drains), 3),
        drain_rerun_s=round(middle(reruns), 3),
    )
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
