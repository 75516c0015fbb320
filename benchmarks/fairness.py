"""Measure how a fleet is shared: a small job behind a big one, then two equal jobs side by side.

python -m benchmarks.fairness              10 trials behind 1,000, trials of 0.5 s on 4 slots

The last line is JSON with the same figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from benchflow_client import Client, JobSpec
from benchflow_client.handle import JobHandle
from benchmarks.fleet import BenchFleet, bench_fleet, write_tasks

SLOTS = 4
GOAL_RATIO = 2.0
DEADLINE_S = 300.0
EQUAL_TRIALS = 60


def measure_small(client: Client, make: Callable[[int], JobSpec], big: int, small: int) -> dict[str, float]:
    """Run a small job alone, then behind a big one; returns seconds, ratio and what the big one did meanwhile."""
    alone_s = _seconds(client.submit(make(small)))
    first = client.submit(make(big))
    _until(lambda: first.progress().finished >= 2 * SLOTS)
    before = first.progress().finished
    behind_s = _seconds(client.submit(make(small)))
    meanwhile = first.progress().finished - before
    first.cancel(by="benchmark", reason="measured")
    first.wait()
    ratio = behind_s / alone_s
    print(f"{small} trials alone            {alone_s:.1f} s")
    print(f"{small} trials behind {big:<10} {behind_s:.1f} s, x{ratio:.2f} (goal <= x{GOAL_RATIO:g})")
    print(f"meanwhile the big job     {meanwhile} trials")
    return {
        "alone_s": round(alone_s, 2),
        "behind_s": round(behind_s, 2),
        "ratio": round(ratio, 2),
        "big_meanwhile": meanwhile,
    }


def measure_equal(client: Client, make: Callable[[int], JobSpec], trials: int) -> dict[str, float]:
    """Run two equal jobs at once; returns the share of the one that was first, when half of all is done."""
    jobs = [client.submit(make(trials)) for _ in range(2)]
    _until(lambda: sum(job.progress().finished for job in jobs) >= trials)
    done = [job.progress().finished for job in jobs]
    share = done[0] / sum(done)
    for job in jobs:
        job.cancel(by="benchmark", reason="measured")
        job.wait()
    print(f"two equal jobs            {done[0]} and {done[1]} trials, {share:.0%} and {1 - share:.0%}")
    return {"equal_first_share": round(share, 3)}


def _seconds(job: JobHandle) -> float:
    """Return the seconds from a job's opening to the end of its last trial, by the ledger's clock."""
    job.wait(timeout_s=DEADLINE_S, poll_s=0.02)
    progress = job.progress()
    return progress.last_finished_at - progress.header.created_at


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the fleet made no progress in {DEADLINE_S:g} s")
        time.sleep(0.05)


def _maker(fleet: BenchFleet) -> Callable[[int], JobSpec]:
    tasks: Path = write_tasks(fleet.folder / "tasks", 1)
    return lambda trials: JobSpec(
        tasks=str(tasks), agent=["oracle"], tries=trials, concurrency=trials, sandbox="null"
    )


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--big", type=int, default=1000, help="trials of the big job")
    parser.add_argument("--small", type=int, default=10, help="trials of the small job")
    parser.add_argument("--sleep-s", type=float, default=0.5, help="seconds of a trial")
    options = parser.parse_args()
    with bench_fleet() as fleet:
        fleet.start_workers(1, slots=SLOTS, queues="null,control", BENCHFLOW_NULL_EXEC_S=str(options.sleep_s))
        make = _maker(fleet)
        with fleet.client as client:
            figures = {
                **measure_small(client, make, options.big, options.small),
                **measure_equal(client, make, EQUAL_TRIALS),
            }
    print(json.dumps({"benchmark": "fairness", "slots": SLOTS, **figures}))


if __name__ == "__main__":
    main()
