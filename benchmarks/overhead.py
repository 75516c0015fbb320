"""Measure what the runner adds to the bare cost of a sandbox.

    python -m benchmarks.overhead                 local, and docker where a daemon answers
    python -m benchmarks.overhead --sandbox local

Three figures for 16 one-line tasks, oracle, 4 at once: the bare calls of such a trial
(create, start, 2 uploads, 2 commands, 1 download, remove), the same tasks through a running
fleet, and the same from a cold `bench run`. All in one run on one machine, so the ratios hold.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker

from benchflow_client import JobSpec
from benchflow_workers.sandbox.base import Command, SandboxSpec, Upload
from benchflow_workers.sandbox.registry import SandboxRegistry
from benchflow_workers.settings import WorkerSettings
from benchmarks.fleet import BenchFleet, bench_fleet, write_tasks

TASKS, AT_ONCE = 16, 4
PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier", "collect", "total")


def bare_docker() -> float:
    """Return the seconds of 16 bare life cycles by the Docker SDK, 4 at once."""
    engine = docker.DockerClient(max_pool_size=16)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("file.txt")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    blob = archive.getvalue()

    def cycle(_: int) -> None:
        container = engine.containers.create(
            "debian:bookworm-slim", ["sleep", "1000"], init=True, network_mode="bridge"
        )
        try:
            container.start()
            container.put_archive("/root", blob)
            container.exec_run(["sh", "-c", "echo done > /root/out.txt"])
            container.put_archive("/root", blob)
            container.exec_run(["sh", "-c", "grep -q done /root/out.txt"])
            b"".join(container.get_archive("/root")[0])
        finally:
            container.remove(force=True, v=True)

    return _timed(cycle)


def bare_local() -> float:
    """Return the seconds of 16 bare life cycles of the local provider, 4 at once."""
    with tempfile.TemporaryDirectory() as state:
        provider = SandboxRegistry(WorkerSettings(), state_dir=Path(state)).get("local")

        async def life() -> None:
            spec = SandboxSpec(
                name=f"bare-{uuid.uuid4().hex[:8]}", labels={}, image="debian:bookworm-slim",
                build_context=None, build_digest="", uploads=(Upload("/root/file.txt", content=b"abc"),),
            )  # fmt: skip
            sandbox = await provider.open(spec)
            try:
                await sandbox.exec(Command(("sh", "-c", "echo done > /root/out.txt"), timeout_s=60))
                await sandbox.put((Upload("/root/file2.txt", content=b"abc"),))
                await sandbox.exec(Command(("sh", "-c", "grep -q done /root/out.txt"), timeout_s=60))
                with tempfile.TemporaryDirectory() as folder:
                    await sandbox.get("/root", Path(folder))
            finally:
                await sandbox.close()

        seconds = _timed(lambda _: asyncio.run(life()))
        asyncio.run(provider.close())
        return seconds


BARE: dict[str, Callable[[], float]] = {"docker": bare_docker, "local": bare_local}


def _timed(cycle: Callable[[int], None]) -> float:
    cycle(0)  # the first one loads what the others find loaded
    start = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(cycle, range(TASKS)))
    return time.monotonic() - start


def running(fleet: BenchFleet, tasks: Path, sandbox: str) -> tuple[float, dict[str, float]]:
    """Return seconds through a running fleet, and the median of each phase."""
    spec = JobSpec(tasks=str(tasks), agent=["oracle"], concurrency=AT_ONCE, sandbox=sandbox)
    with fleet.client as client:
        client.run(spec.model_copy(update={"limit": 1}))  # builds the image
        start = time.monotonic()
        handle = client.submit(spec)
        summary = handle.wait(poll_s=0.02)
        seconds = time.monotonic() - start
        if summary.all_without_verdict or summary.passed != TASKS:
            raise SystemExit(f"not all tasks passed: {summary.passed} of {TASKS}")
        timings = [trial.result.timing for trial in handle.trials() if trial.result]
    medians = {
        phase: statistics.median(getattr(timing, phase) or 0.0 for timing in timings) for phase in PHASES
    }
    return seconds, medians


def cold(tasks: Path, sandbox: str) -> float:
    """Return the seconds of a cold `bench run`, embedded fleet and all."""
    code = "from benchflow_client.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "run", str(tasks), "--agent", "oracle", "--sandbox", sandbox]
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ,
            "BENCHFLOW_STATE_DIR": f"{folder}/state",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        argv += ["--jobs-dir", f"{folder}/jobs", "--concurrency", str(AT_ONCE)]
        start = time.monotonic()
        subprocess.run(argv, env=environ, check=True, capture_output=True)
        return time.monotonic() - start


def main() -> None:
    """Measure the asked sandboxes and print a table each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sandbox", choices=sorted(BARE), action="append", help="what to measure; default both"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median is printed")
    options = parser.parse_args()
    with bench_fleet() as fleet:
        kinds = options.sandbox or sorted(BARE)
        fleet.start_workers(1, slots=AT_ONCE, queues=",".join([*kinds, "control"]))
        tasks = write_tasks(fleet.folder / "tasks", TASKS)
        for kind in kinds:
            rounds = [
                (BARE[kind](), *running(fleet, tasks, kind), cold(tasks, kind)) for _ in range(options.rounds)
            ]
            bare_s, running_s, cold_s = (statistics.median(r[i] for r in rounds) for i in (0, 1, 3))
            ratio = statistics.median(r[1] / r[0] for r in rounds)
            print(f"{kind}: {TASKS} one-line tasks, oracle, {AT_ONCE} at once, median of {options.rounds}")
            print(
                f"  bare calls {bare_s:.2f} s · running fleet {running_s:.2f} s (x{ratio:.2f}) · cold {cold_s:.2f} s"
            )
            phases = ", ".join(f"{phase} {1000 * value:.0f}" for phase, value in rounds[-1][2].items())
            print(f"  median ms by phase: {phases}", flush=True)
        print(f"worker RSS {fleet.rss_mb():.0f} MB with {AT_ONCE} slots")


if __name__ == "__main__":
    main()
