"""The embedded fleet: one private server and one worker per jobs folder, shared by its users.

Users hold a lock file each; the last one to leave stops the fleet, unless `bench up`
keeps it. The kernel drops the locks of a killed process, so a crash leaves nothing
that the next start does not find and clean.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchflow_client.embedded.process import end, has_ended, spawn_detached, writers_of
from benchflow_client.embedded.server import start_server
from benchflow_client.errors import BrokerError, WorkerError
from benchflow_client.ledger.base import WorkerRecord
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.ids import short_digest

WORKER_START_TIMEOUT_S = 60.0
"""A worker imports, checks its sandboxes and announces itself; a busy machine gets a minute."""

_REMOVAL_TIMEOUT_S = 120.0

_MARK = "BENCHFLOW_EMBEDDED"
"""Variable that tells our processes from others with the same process id."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A running embedded fleet; the file that holds it can be read by its owner only."""

    url: str
    store: str
    server_pid: int
    worker_pid: int
    slots: int
    started_at: str


class EmbeddedFleet:
    """The embedded fleet of one jobs folder.

    Args:
        state_dir: Folder for the files of all embedded fleets.
        jobs_dir: Folder whose results it writes; it is the fleet's store.
        environ: Variables the worker gets besides its address and store.
    """

    def __init__(self, state_dir: Path, jobs_dir: Path, environ: Mapping[str, str]) -> None:
        self._store = str(jobs_dir.resolve())
        self._state_dir = state_dir
        self._folder = state_dir / "embedded" / short_digest(self._store)
        self._environ = dict(environ)
        self._user: IO[bytes] | None = None

    @property
    def own_environ(self) -> dict[str, str]:
        """Variables that make a process of the workers' side see this fleet's sandboxes, and no others."""
        return {
            "BENCHFLOW_STATE_DIR": str(self._state_dir),
            "BENCHFLOW_FLEET": f"embedded-{self._folder.name}",
        }

    def running(self) -> Instance | None:
        """Return the fleet if it runs."""
        instance = self._read()
        return instance if instance is not None and self._is_alive(instance) else None

    def join(self, *, slots: int) -> Instance:
        """Use the fleet, starting it when it does not run.

        Args:
            slots: Trials at once, when it has to be started.

        Raises:
            BrokerError: No server program, or it did not start.
            WorkerError: The worker did not start; says what its log says.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise WorkerError(
                f"The state folder {str(self._state_dir)!r} cannot be used: {error.strerror}.",
                hint="Set BENCHFLOW_STATE_DIR to a folder you can write.",
            ) from error
        with self._locked():
            instance = self.running()
            if instance is None:
                self._clean()
                instance = self._start(slots)
            self._user = self._sign_in()
        return instance

    def leave(self) -> None:
        """Stop using the fleet; the last user stops it unless it is kept. Safe to call twice."""
        if self._user is None:
            return
        with self._locked():
            self._user.close()
            self._user = None
            if not self._is_kept() and not any(self._users()):
                self._clean()

    def keep(self) -> None:
        """Let the fleet run on without users."""
        (self._folder / "kept").touch()

    def stop(self) -> bool:
        """Stop the fleet whoever uses it; returns whether it ran."""
        if not self._folder.is_dir():
            return False
        with self._locked():
            was_running = self.running() is not None
            self._clean()
        return was_running

    @property
    def log(self) -> Path:
        """Return the log file of the present worker; that of the one before is beside it, `.1`."""
        return self._folder / "worker.log"

    def _start(self, slots: int) -> Instance:
        # A Ctrl-C may come between any two steps, so that cleaning relies on no variable of this function.
        try:
            server = start_server(self._folder / "server")
            worker_pid = self._spawn_worker(server.url, slots)
            instance = Instance(
                server.url,
                self._store,
                server.pid,
                worker_pid,
                slots,
                utc_now().isoformat(timespec="seconds"),
            )
            self._write(instance)
            self._until_announced(server.url, worker_pid)
        except BaseException:
            self._clean()
            raise
        return instance

    def _spawn_worker(self, url: str, slots: int) -> int:
        environ = {
            **self._environ,
            "BENCHFLOW_BROKER_URL": url,
            "BENCHFLOW_STORE_URL": self._store,
            **self.own_environ,
            _MARK: str(self._folder),
        }
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        return spawn_detached(
            [sys.executable, "-m", "benchflow_workers", "worker", "--slots", str(slots)],
            environ=environ,
            log=self.log,
        )

    def _until_announced(self, url: str, worker_pid: int) -> None:
        ledger, deadline = RedisLedger.at(url), time.monotonic() + WORKER_START_TIMEOUT_S
        while not ledger.workers():
            if has_ended(worker_pid) or time.monotonic() > deadline:
                raise WorkerError(
                    f"The embedded worker did not start. {self._log_tail()}".rstrip(),
                    hint="`bench doctor` checks this machine.",
                )
            time.sleep(0.02)

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        errors = [line for line in lines if line.startswith("error")]
        return (errors or lines or [""])[-1].removeprefix("error").strip()

    def _clean(self) -> None:
        """End what a former fleet left and remove its files; the log stays for the curious."""
        instance = self._read()
        if instance is not None:
            try:
                if self._is_ours(instance.worker_pid):
                    end(instance.worker_pid)
                else:
                    self._remove_sandboxes()
            finally:
                # Also after a second Ctrl-C: the worker was asked, and ends without being waited for.
                if self._answers(instance):
                    end(instance.server_pid)
        else:
            self._end_unrecorded()
        for name in ("instance.json", "kept"):
            (self._folder / name).unlink(missing_ok=True)
        for name in ("server", "users"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _end_unrecorded(self) -> None:
        """End the processes of a start that did not come to its record, the worker before its server."""
        for log in (self.log, self._folder / "server" / "server.log"):
            for pid in writers_of(log):
                end(pid)

    def _remove_sandboxes(self) -> None:
        """Remove what a worker that was killed left; one that ended by itself closed its sandboxes."""
        argv = [sys.executable, "-m", "benchflow_workers", "remove-sandboxes"]
        environ = {**self._environ, **self.own_environ}
        # Best effort: what cannot be removed now is found again by its label.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, env=environ, capture_output=True, timeout=_REMOVAL_TIMEOUT_S, check=False)

    def _is_alive(self, instance: Instance) -> bool:
        return self._is_ours(instance.worker_pid) and self._answers(instance)

    def _is_ours(self, pid: int) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{_MARK}={self._folder}".encode() in environ.split(b"\0")

    @staticmethod
    def _answers(instance: Instance) -> bool:
        try:
            RedisLedger.at(instance.url).ping()
        except BrokerError:
            return False
        return True

    def _read(self) -> Instance | None:
        try:
            return Instance(**json.loads((self._folder / "instance.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, instance: Instance) -> None:
        path = self._folder / "instance.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(instance), file)

    def _is_kept(self) -> bool:
        return (self._folder / "kept").exists()

    def _sign_in(self) -> IO[bytes]:
        users = self._folder / "users"
        users.mkdir(exist_ok=True)
        file = (users / f"{os.getpid()}-{id(self):x}").open("wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def _users(self) -> Iterator[Path]:
        """Yield the lock files somebody holds; those of ended processes are removed."""
        users = self._folder / "users"
        for path in users.iterdir() if users.is_dir() else ():
            with path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    yield path
                else:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None, None, None]:
        with (self._folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def describe(workers: list[WorkerRecord]) -> str:
    """Return how many workers and slots there are, for people."""
    slots = sum(worker.slots for worker in workers)
    plural = "" if len(workers) == 1 else "s"
    return f"{len(workers)} worker{plural}, {slots} slots"
