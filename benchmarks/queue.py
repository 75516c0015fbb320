"""Measure the queue alone: trials that run nothing, then trials that sleep.

python -m benchmarks.queue                 10,000 trials through one worker, then scaling
python -m benchmarks.queue --trials 100000
"""

from __future__ import annotations

import argparse
import time

from benchflow_client import JobSpec
from benchmarks.fleet import BenchFleet, bench_fleet, write_tasks
from benchmarks.processes import cpu_s

SLEEP_S = 0.5
SLEEPING_SLOTS = 8
SLEEPERS_PER_SLOT = 12


def measure_empty(fleet: BenchFleet, trials: int, window: int, slots: int) -> None:
    """Send trials that run nothing through one worker."""
    fleet.start_workers(1, slots=slots, queues="null,control")
    tasks = write_tasks(fleet.folder / "tasks", 100)
    spec = JobSpec(tasks=str(tasks), agent=["nop"], tries=trials // 100, concurrency=window, sandbox="null")
    idle_mb, idle_cpu_s = fleet.rss_mb(), cpu_s(fleet.workers[0])
    with fleet.client as client:
        client.workers()
        start = time.monotonic()
        handle = client.submit(spec)
        submitted_s = time.monotonic() - start
        peak_mb = idle_mb
        while handle.progress().finished < trials:
            peak_mb = max(peak_mb, fleet.rss_mb())
            time.sleep(0.2)
        finished_s = time.monotonic() - start
        worker_ms = 1000 * (cpu_s(fleet.workers[0]) - idle_cpu_s) / trials
        summary = handle.wait()
        closed_s = time.monotonic() - start
    redis_mb = fleet.redis.info("memory")["used_memory_peak"] / 1e6
    print(f"trials              {trials} (window {window}, 1 worker, {slots} slots)")
    print(f"submit to prompt    {submitted_s:.2f} s")
    print(f"rate                {trials / finished_s:.0f} trials/s")
    print(
        f"CPU a trial         {worker_ms:.1f} ms worker, {1000 * cpu_s(fleet.server.pid) / trials:.1f} ms Redis"
    )
    print(f"summary after last  {closed_s - finished_s:.2f} s")
    print(f"Redis peak          {redis_mb:.0f} MB")
    print(f"worker RSS          {idle_mb:.0f} MB idle, {peak_mb:.0f} MB peak")
    assert summary.planned == trials, summary.planned
    fleet.stop_workers()


def measure_scaling(fleet: BenchFleet) -> None:
    """Send sleeping trials through 1, 2 and 4 workers and compare with the ideal."""
    tasks = write_tasks(fleet.folder / "sleepers", 1)
    for workers in (1, 2, 4):
        fleet.start_workers(
            workers, slots=SLEEPING_SLOTS, queues="null,control", BENCHFLOW_NULL_EXEC_S=str(SLEEP_S)
        )
        slots = workers * SLEEPING_SLOTS
        trials = slots * SLEEPERS_PER_SLOT
        spec = JobSpec(tasks=str(tasks), agent=["oracle"], tries=trials, concurrency=slots, sandbox="null")
        with fleet.client as client:
            start = time.monotonic()
            client.submit(spec).wait(poll_s=0.02)
            took_s = time.monotonic() - start
        ideal_s = SLEEPERS_PER_SLOT * SLEEP_S
        print(
            f"{workers} workers x {SLEEPING_SLOTS} slots  {trials} trials of {SLEEP_S} s: {took_s:.1f} s, "
            f"ideal {ideal_s:.1f} s, efficiency {ideal_s / took_s:.0%}"
        )
        fleet.stop_workers()


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=10_000, help="trials that run nothing; a multiple of 100"
    )
    parser.add_argument("--window", type=int, default=64, help="concurrency of the job")
    parser.add_argument("--slots", type=int, default=16, help="slots of the worker")
    parser.add_argument("--no-scaling", action="store_true", help="leave the sleeping trials out")
    options = parser.parse_args()
    with bench_fleet() as fleet:
        measure_empty(fleet, options.trials, options.window, options.slots)
        if not options.no_scaling:
            measure_scaling(fleet)


if __name__ == "__main__":
    main()
