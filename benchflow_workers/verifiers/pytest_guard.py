"""The guard of pytest's plugins, seen from the worker: what goes into the sandbox, and what comes back.

The plugin itself is `pytest_guard_plugin`. Its name, its folder and the key of its lines
are new in every run, so that nothing an agent left can know them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from benchflow_workers.agents.user import AGENT_STARTED
from benchflow_workers.sandbox.base import Completed, Upload
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR

__all__ = [
    "Guard",
    "GuardReport",
    "guard_of",
    "guard_warnings",
    "is_missing",
    "new_guard",
    "read_report",
    "with_guard",
]

MARKERS: Final = "pytest-guard.log"
"""File of the guard's lines, where the tests' own files are collected."""

MARKERS_LIMIT_BYTES: Final = 1 << 20
"""Bytes of it that are read; a session takes two lines."""

LOGS_READ: Final = 100
"""Files of the tests that are searched for word of a guard that could not be loaded."""

LOG_LIMIT_BYTES: Final = 1 << 20
"""Bytes that are read of each."""

_RECEIPT: Final = b"benchflow-guard: "

_PLUGIN: Final = "pytest_guard_plugin.py"

_MISSING: Final = ("Error importing plugin", "No module named")
"""What pytest and Python say before the name of a plugin that cannot be loaded; pytest 6 to 9."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One run's guard.

    Attributes:
        run: Hex digits that no other run has.
        key: What its lines are sealed with.
    """

    run: str
    key: str

    @property
    def module(self) -> str:
        """Return what pytest loads it by."""
        return f"guard_{self.run}"

    @property
    def place(self) -> str:
        """Return its folder in the sandbox."""
        return f"/_benchflow_guard_{self.run}"

    def uploads(self, workdir: str) -> Sequence[Upload]:
        """Return its file, made for a workspace: readable for whoever runs the tests, written by root only."""
        text = (files(__package__) / _PLUGIN).read_text(encoding="utf-8")
        markers = f"{VERIFIER_LOGS_DIR}/{MARKERS}"
        named = {"started": AGENT_STARTED, "workspace": workdir, "markers": markers, "key": self.key}
        call = f"\n\ninstall({self.place!r}, **{named!r})\n"
        return (Upload(f"{self.place}/{self.module}.py", content=(text + call).encode(), mode=0o644),)


def new_guard() -> Guard:
    """Return a guard with a name and a key of its own."""
    return Guard(secrets.token_hex(8), secrets.token_hex(16))


def with_guard(run: Completed, guard: Guard) -> Completed:
    """Return a run with word of its guard behind its receipts, where only the worker writes."""
    return replace(
        run, stderr=b"%s\n%s%s %s\n" % (run.stderr, _RECEIPT, guard.run.encode(), guard.key.encode())
    )


def guard_of(run: Completed) -> Guard | None:
    """Return the guard of a run; None = its tests had none."""
    _, found, words = run.stderr.rpartition(_RECEIPT)
    return Guard(*words.decode().split()) if found else None


@dataclass(frozen=True, slots=True)
class GuardReport:
    """What the sessions of one run said.

    Attributes:
        begun: Sessions that began.
        ended: Sessions that came to their own end.
        cut: Sessions that something in them tried to end early as a success.
        refused: Plugins that were refused, each with the file the agent can have written.
        is_forged: There is a line that the guard did not write.
    """

    begun: int = 0
    ended: int = 0
    cut: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    is_forged: bool = False

    @property
    def is_broken_off(self) -> bool:
        """Whether no session that began came to its end."""
        return self.begun > 0 and self.ended == 0


def read_report(guard: Guard, logs: Path) -> GuardReport:
    """Return what the guard left; whatever else stands in its file is a forgery, never an error."""
    lines = list(_lines(logs / MARKERS))
    facts = [_opened(guard, line) for line in lines]
    words = [str(fact["word"]) for fact in facts if fact]
    return GuardReport(
        begun=words.count("begun"),
        ended=words.count("ended"),
        cut=words.count("cut"),
        refused=tuple(
            (str(fact.get("plugin")), str(fact.get("file")))
            for fact in facts
            if fact and fact["word"] == "refused"
        ),
        is_forged=None in facts,
    )


def guard_warnings(report: GuardReport) -> tuple[str, ...]:
    """Return what a reader of the number should know of the sessions."""
    refused = [
        f"pytest refused plugin {plugin!r}: the agent can have written {file}"
        for plugin, file in dict.fromkeys(report.refused)
    ]
    if report.cut:
        refused.append("something that ran in a session of pytest tried to end it early as a success")
    if report.is_forged:
        refused.append(f"{MARKERS} has lines that the plugin guard did not write")
    return tuple(refused)


def is_missing(guard: Guard, output: bytes, logs: Path | None) -> bool:
    """Return whether pytest said, to the output or into a file of the tests, that it cannot load the guard.

    Args:
        guard: The run's.
        output: What the tests printed.
        logs: What they left; None = a session began with the guard, so their files need no search.
    """
    said = re.compile(rf"(?:{'|'.join(_MISSING)})\W+{guard.module}\b".encode())
    others = (path for path in (logs.rglob("*") if logs else ()) if path.name != MARKERS)
    texts = (_start(path, LOG_LIMIT_BYTES) for path in islice(others, LOGS_READ))
    return any(said.search(text) for text in chain((output,), texts))


def _lines(path: Path) -> Iterator[str]:
    yield from _start(path, MARKERS_LIMIT_BYTES).decode("utf-8", "replace").splitlines()


def _opened(guard: Guard, line: str) -> Mapping[str, Any] | None:
    """Return the facts of a line; None = its seal is not the guard's."""
    seal, _, text = line.partition(" ")
    expected = hmac.new(guard.key.encode(), text.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(seal.encode(), expected.encode()):
        return None
    facts: Mapping[str, Any] = json.loads(text)
    return facts


def _start(path: Path, limit_bytes: int) -> bytes:
    """Return the beginning of a regular file; anything else is empty."""
    if path.is_symlink() or not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(limit_bytes)
