"""A real Flower for tests, with the fleet's configuration, and short questions to it."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import until
from tests.worker_fleets import ROOT, WorkerFleet

CONFIG = ROOT / "deploy/flower/flowerconfig.py"
LOGIN = "ana:s3cret"


def ask_flower(
    port: int, path: str, *, login: str = "", method: str = "GET", **headers: str
) -> tuple[int, bytes]:
    """Return status and body; (0, nothing) = nobody listens."""
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except urllib.error.URLError:
        return 0, b""


@dataclass(frozen=True)
class Flower:
    """A running Flower."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Its address, login included."""
        return f"http://{LOGIN}@127.0.0.1:{self.port}"

    def ask(self, path: str, *, login: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes]:
        """Return status and body; (0, nothing) = nobody listens."""
        return ask_flower(self.port, path, login=login, method=method, **headers)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return its rows by the ids of their trials."""
        status, body = self.ask("/api/tasks", login=LOGIN)
        assert status == 200, body
        return dict(json.loads(body))

    def stop(self) -> None:
        """End it; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=30)


@contextmanager
def running_flower(fleet: WorkerFleet, *options: str, **variables: str) -> Generator[Flower, None, None]:
    """Start Flower as deploy/ does, on a fleet; `options` and `variables` are more of Flower's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [sys.executable, "-m", "celery", "-A", "benchflow_workers.app:app", "flower"]
    argv += [f"--conf={CONFIG}", f"--port={port}", "--address=127.0.0.1", *options]
    log = fleet.folder / f"flower-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env={**fleet.environ, "FLOWER_BASIC_AUTH": LOGIN, **variables},
            stdout=output,
            stderr=output,
            cwd=fleet.folder,
        )
    flower = Flower(port, process)
    try:
        until(lambda: flower.ask("/healthcheck")[0] == 200, what=lambda: Path(log).read_text())
        yield flower
    finally:
        flower.stop()
