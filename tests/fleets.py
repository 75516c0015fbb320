"""A real fleet for tests: the embedded one, server and worker process, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchflow_client import settings
from benchflow_client.api import Client
from benchflow_client.broker import make_app
from benchflow_client.embedded.fleet import Instance
from tests.worlds import write_task

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "assets" / "cases"

PLAIN_TEST = (CASES / "16-plain/tests/test.sh").read_text(encoding="utf-8")
PLAIN_SOLUTION = (CASES / "16-plain/solution/solve.sh").read_text(encoding="utf-8")
PLAIN = {"tests/test.sh": PLAIN_TEST, "solution/solve.sh": PLAIN_SOLUTION}
"""Files of a task that its solution solves; for `write_task`."""


@contextmanager
def embedded_fleet(
    folder: Path, *, jobs_dir: Path | None = None, **variables: str
) -> Generator[Client, None, None]:
    """Start a fleet when its first job is submitted and stop it at the end.

    Args:
        folder: Where everything goes: `jobs` and `state`.
        jobs_dir: Another folder for jobs.
        variables: More variables of the worker.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BENCHFLOW_")]:
            patch.delenv(name)
        patch.setenv("PYTHONPATH", str(ROOT))
        for name, value in variables.items():
            patch.setenv(name, value)
        mine = settings.load({"BENCHFLOW_STATE_DIR": str(folder / "state"), "BENCHFLOW_USER": "ana"})
        with Client(jobs_dir=jobs_dir or folder / "jobs", settings=mine) as client:
            yield client


@contextmanager
def recorded_events(url: str) -> Generator[list[Mapping[str, Any]], None, None]:
    """Collect the events a fleet sends while the block runs: what Flower sees."""
    app, events, is_over = make_app(url), list[Mapping[str, Any]](), threading.Event()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})

        def receive() -> None:
            for _ in receiver.consume(limit=None, timeout=0.2, wakeup=False):
                if is_over.is_set():
                    return

        def keep_receiving() -> None:
            while not is_over.is_set():
                try:
                    receive()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=keep_receiving)
        thread.start()
        try:
            yield events
        finally:
            is_over.set()
            thread.join(30)


def instance_of(folder: Path) -> Instance:
    """Return what is known of the running fleet below a folder."""
    (path,) = (folder / "state" / "embedded").glob("*/instance.json")
    return Instance(**json.loads(path.read_text(encoding="utf-8")))


def case_task(tasks: Path, case: str, *, toml: str = "") -> Path:
    """Write a task with what the case's folder brings; the rest is plain."""
    task = write_task(tasks / case, toml=toml, files=PLAIN)
    for part in ("tests", "solution"):
        if (CASES / case / part).is_dir():
            shutil.copytree(CASES / case / part, task / part, dirs_exist_ok=True)
    return task


def run_bench(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, as a user with an empty home and no fleet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    places = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": str(ROOT)}
    program = "import sys; from benchflow_client.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=home,
        env=kept | places,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
