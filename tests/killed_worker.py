"""A worker that opens a sandbox and is killed with it, and what the reaper then does."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.sandboxes import MemorySandboxBook
from benchflow_workers.reaper import Reaper
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes

_ROOT = Path(__file__).parents[1]
_WORKER = """
import asyncio, importlib, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
asyncio.run(importlib.import_module(sys.argv[2]).opened(Path(sys.argv[3]), sys.argv[4]))
"""


def check_that_the_reaper_removes_all(module: str, folder: Path, fleet: str) -> None:
    """Kill a worker whose sandbox has a service and a volume; fail unless the reaper removes each part.

    Args:
        module: Its `opened(folder, fleet)` opens the sandbox, prints `opened` and waits.
    """
    provider = DockerSandboxes(DockerOptions(folder))
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(_ROOT), module, str(folder), fleet],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    with worker:
        said = worker.stdout.readline()
        worker.send_signal(signal.SIGKILL)
    left = asyncio.run(provider.list({"bf.fleet": fleet}))
    ledger = MemoryLedger()
    ledger.open_job(JobHeader("j", 2, 2, 3, "ana", "docker", "g", "b", "t", 0.0))

    removed = Reaper([provider], ledger, MemorySandboxBook(), fleet=fleet, interval_s=60).sweep()

    assert said == "opened\n"
    kinds = [ref.id.partition(":")[0] if ":" in ref.id else "container" for ref in left]
    assert kinds == ["container", "container", "network", "volume"]
    assert removed == 4
    assert asyncio.run(provider.list({"bf.fleet": fleet})) == []
