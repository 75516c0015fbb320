"""A private fleet for one benchmark: server, workers, store, all on loopback and removed afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis

from benchflow_client import Client
from benchflow_client.embedded.process import end, has_ended, spawn_detached
from benchflow_client.embedded.server import Server, find_server, start_server
from benchflow_client.settings import load
from benchmarks.processes import resident_mb

START_TIMEOUT_S = 60.0


@dataclass
class BenchFleet:
    """One server and the workers started on it."""

    folder: Path
    server: Server
    environ: dict[str, str]
    workers: list[int] = field(default_factory=list)

    @property
    def client(self) -> Client:
        return Client(settings=load(self.environ))

    @property
    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.server.url)

    def start_workers(self, count: int, *, slots: int, queues: str, **variables: str) -> None:
        """Start workers and wait until each has announced itself."""
        expected = len(self.workers) + count
        for _ in range(count):
            self.spawn_worker(slots=slots, queues=queues, **variables)
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.client as client:
            while len(client.workers()) < expected:
                if time.monotonic() > deadline:
                    raise SystemExit(f"workers did not start; see {self.folder}")
                time.sleep(0.05)

    def spawn_worker(self, *, slots: int, queues: str, **variables: str) -> None:
        """Start a worker and return at once."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        argv = [sys.executable, "-m", "benchflow_workers", "worker", "--slots", str(slots)]
        argv += ["--queues", queues, "--log-level", "WARNING"]
        self.workers.append(spawn_detached(argv, environ={**self.environ, **variables}, log=log))

    def stop_workers(self) -> None:
        for pid in self.workers:
            end(pid)
        self.workers.clear()

    def kill_worker(self, pid: int, *, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """Send a worker a signal that ends it, now or soon."""
        self.workers.remove(pid)
        os.kill(pid, with_signal)

    def restart_server(self) -> None:
        """Kill the server and bring it back at once, with its data, at the same address."""
        os.kill(self.server.pid, signal.SIGKILL)
        parts, folder = urlsplit(self.server.url), self.folder / "server"
        config = (
            f"bind 127.0.0.1\nport {parts.port}\nrequirepass {parts.password}\n"
            f'dir "{folder}"\nappendonly yes\nsave ""\n'
        )
        while not has_ended(self.server.pid):
            time.sleep(0.002)
        pid = spawn_detached(
            [str(find_server()), "-"], environ={}, log=folder / "server.log", stdin=config.encode()
        )
        self.server = Server(self.server.url, pid)

    def rss_mb(self) -> float:
        """Largest resident memory of the workers, in MB."""
        return max(map(resident_mb, self.workers), default=0.0)


@contextlib.contextmanager
def bench_fleet() -> Generator[BenchFleet, None, None]:
    """Yield a fleet without workers; everything is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-fleet-"))
    server = start_server(folder / "server")
    environ = {
        **os.environ,
        "BENCHFLOW_BROKER_URL": server.url,
        "BENCHFLOW_STORE_URL": str(folder / "store"),
        "BENCHFLOW_STATE_DIR": str(folder / "state"),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
        ),
    }
    (folder / "store").mkdir()
    fleet = BenchFleet(folder, server, environ)
    try:
        yield fleet
    finally:
        fleet.stop_workers()
        end(fleet.server.pid)
        shutil.rmtree(folder, ignore_errors=True)


def write_tasks(folder: Path, count: int) -> Path:
    """Write one-line tasks: the oracle writes a word, the test looks for it."""
    for number in range(count):
        task = folder / f"line-{number:03d}"
        for part in ("environment", "solution", "tests"):
            (task / part).mkdir(parents=True)
        (task / "task.toml").write_text('version = "1.0"\n[verifier]\ntimeout_sec = 60.0\n')
        (task / "instruction.md").write_text("Write the word done to /app/out.txt.\n")
        (task / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\n")
        (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho done > /app/out.txt\n")
        test = "#!/bin/sh\ngrep -q done /app/out.txt && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
        (task / "tests" / "test.sh").write_text(test)
    return folder
