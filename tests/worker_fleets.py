"""Real workers for tests: processes of `python -m benchflow_workers worker` on a real Redis, null sandboxes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from benchflow_client import Client, JobSpec
from benchflow_client.handle import JobHandle
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import Receipt
from benchflow_client.settings import load
from tests.waiting import until
from tests.worlds import write_task

ROOT = Path(__file__).parents[1]
START_S = 60.0
CLOSES_S = 90.0
"""Seconds for a job to close on a busy machine; each takes some seconds on an idle one."""

QUEUE = "null"


@dataclass
class WorkerFleet:
    """Workers, started and ended one by one, and what a client needs to reach them."""

    folder: Path
    url: str
    broker: str | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        """Variables of clients and workers."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
        return {
            **own,
            "PYTHONPATH": str(ROOT),
            "BENCHFLOW_BROKER_URL": self.broker or self.url,
            "BENCHFLOW_LEDGER_URL": self.url,
            "BENCHFLOW_STORE_URL": str(self.folder / "store"),
            "BENCHFLOW_STATE_DIR": str(self.folder / "state"),
            "BENCHFLOW_LEASE_TTL_S": "2",
            "BENCHFLOW_RECONCILE_S": "0.5",
        }

    @property
    def redis(self) -> Any:
        return redis.Redis.from_url(self.url)

    @property
    def ledger(self) -> RedisLedger:
        return RedisLedger.at(self.url)

    def client(self) -> Client:
        return Client(settings=load(self.environ))

    def start(
        self, *, slots: int = 4, exec_s: float = 0.0, queues: str = f"{QUEUE},control", **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it has announced itself."""
        log = self.folder / f"worker-{len(self.processes)}.log"
        argv = [sys.executable, "-m", "benchflow_workers", "worker", "--slots", str(slots)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*argv, "--queues", queues],
                env={**self.environ, "BENCHFLOW_NULL_EXEC_S": str(exec_s), **variables},
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        self.processes.append(process)
        until(
            lambda: self.name_of(process) in {worker.name for worker in self.ledger.workers()},
            seconds=START_S,
        )
        return process

    def closed(self, handle: JobHandle, *, within_s: float = CLOSES_S) -> Summary:
        """Wait for the end of a job, check that every trial counts once, and return its summary."""
        try:
            summary = handle.wait(timeout_s=within_s, poll_s=0.05)
        except TimeoutError:
            pytest.fail(f"{handle.progress()}\n{self.logs()[-6000:]}")
        receipts = self.receipts(handle)
        assert [receipt.trial_index for receipt in receipts] == list(range(summary.planned))
        outcomes = handle.progress().outcomes
        assert sum(outcomes.values()) == summary.planned
        groups = {name: sum(getattr(group, name) for group in summary.groups) for name in outcomes}
        assert groups == dict(outcomes)
        return summary

    def owner_of(self, handle: JobHandle) -> subprocess.Popen[bytes]:
        """Wait until a worker runs the job's only trial and return its process."""
        found: list[subprocess.Popen[bytes]] = []

        def is_held() -> bool:
            owners = {trial.owner for trial in self.ledger.running(handle.name)}
            found[:] = [
                process
                for process in self.processes
                if process.poll() is None and self.name_of(process) in owners
            ]
            return bool(found)

        until(is_held, what=self.logs)
        return found[0]

    def is_healthy(self) -> bool:
        """Return whether the health check of this host finds a worker that can take work."""
        argv = [sys.executable, "-m", "benchflow_workers", "worker", "--health"]
        done = subprocess.run(
            argv, env=self.environ, cwd=self.folder, capture_output=True, timeout=START_S, check=False
        )
        return done.returncode == 0

    def refused(self, *, queues: str = f"{QUEUE},control", **variables: str) -> tuple[int, str]:
        """Start a worker that is expected to refuse; returns its exit code and what it says."""
        argv = [sys.executable, "-m", "benchflow_workers", "worker", "--queues", queues]
        done = subprocess.run(
            argv,
            env={**self.environ, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        return done.returncode, done.stderr

    def name_of(self, process: subprocess.Popen[bytes]) -> str:
        return f"{os.uname().nodename}/{process.pid}"

    def running_on(self, handle: JobHandle, process: subprocess.Popen[bytes]) -> int:
        """Return how many trials of a job a worker holds."""
        return sum(trial.owner == self.name_of(process) for trial in self.ledger.running(handle.name))

    def spec(self, **spec: Any) -> JobSpec:
        """Return a job of one task that the oracle takes on, several times."""
        tasks = self.folder / "tasks"
        if not tasks.is_dir():
            write_task(tasks / "fix-build")
        return JobSpec(**{"tasks": str(tasks), "agent": ["oracle"], "sandbox": QUEUE, **spec})

    def receipts(self, handle: JobHandle) -> list[Receipt]:
        return list(self.ledger.receipts(handle.name))

    def logs(self) -> str:
        """Return what all workers logged, for a test that fails."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.folder.glob("worker-*.log"))
        )

    def values(self) -> Generator[tuple[str, bytes], None, None]:
        """Yield every key in Redis with all that stands under it."""
        client = self.redis
        readers = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1),
        }
        for key in client.scan_iter(count=1000):
            kind = client.type(key)
            if kind != b"none":  # gone since it was listed
                yield key.decode(), repr(readers[kind](key)).encode()


@contextmanager
def worker_fleet(folder: Path, url: str, *, broker: str | None = None) -> Generator[WorkerFleet, None, None]:
    """Empty the database, and end every worker afterwards.

    Args:
        folder: For the store, logs and tasks.
        url: The Redis of the ledger.
        broker: What carries the messages; None = the same Redis.
    """
    (folder / "store").mkdir()
    fleet = WorkerFleet(folder, url, broker)
    fleet.redis.flushdb()
    try:
        yield fleet
    finally:
        for process in fleet.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
        fleet.redis.flushdb()
