"""One build of an image: what goes into it, what it said, and how its failure is told."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_dockerfile import buildkit_features, line_of_feature, line_of_step
from benchflow_workers.sandbox.docker_engine import ContextFile

_TAIL_LINES = 20
_LINE_LENGTH = 400


@dataclass(frozen=True, slots=True)
class BuildSource:
    """An image of a service.

    Attributes:
        folder: Build context.
        dockerfile: File in it.
        args: Build arguments.
        target: Stage to stop at; None = the last.
        digest: Names what the context holds; empty = found by reading it.
        timeout_s: Seconds for the build.
    """

    folder: Path
    dockerfile: str
    args: Mapping[str, str]
    target: str | None
    digest: str
    timeout_s: float


_BUSY = re.compile(
    r"toomanyrequests|rate.?limit|\b429\b|\b50[0234]\b|TLS handshake timeout|i/o timeout|connection reset",
    re.I,
)
"""What engines and registries say of pulls that may succeed later."""


@dataclass(frozen=True, slots=True)
class Build:
    """One image to build: folder, Dockerfile as it is built, and what is added to the context."""

    key: str
    folder: Path | None
    dockerfile: str
    extra: tuple[ContextFile, ...]
    place: str  # for messages
    timeout_s: float
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None

    @property
    def tag(self) -> str:
        """Return the image's name."""
        return f"bf/{self.key[:12]}"


@dataclass
class Progress:
    """What a build said so far."""

    by_buildkit: bool = False
    step: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))

    def note(self, text: str) -> None:
        """Keep the step and the last lines of a piece of output."""
        for line in text.splitlines():
            if line.startswith("Step "):
                self.step = line[5:].strip()
            if line.strip():
                self.lines.append(line.rstrip()[:_LINE_LENGTH])


def raise_missing(name: str, why: str) -> NoReturn:
    """Raise `sandbox.image_missing`, or `sandbox.registry_busy` where a registry would answer later."""
    _raise_if_busy(f"Image {name!r} is not on this host, {why}.")
    raise SandboxError(
        "sandbox.image_missing",
        f"Image {name!r} is not on this host, {why}.",
        hint=f"Check the name, or load it on the worker's host: docker pull {name}",
    )


def raise_failed(build: Build, progress: Progress, reason: str) -> NoReturn:
    """Raise `sandbox.build_failed` with the step, its line and the last lines of output."""
    counter, _, instruction = progress.step.partition(" : ")
    number = counter.partition("/")[0]  # the engine counts its own steps for labels into the total
    tail = "\n".join(f"  | {line}" for line in progress.lines)
    if instruction.upper().startswith("FROM "):
        what = f"The base image of {build.place} cannot be used: {instruction}: {reason.strip()}"
        _raise_if_busy(what)
        raise SandboxError(
            "sandbox.image_missing",
            what,
            hint="Check the FROM line, or load the image on the worker's host with docker pull.",
        )
    has_own_lines = not build.extra[:-1]  # a certificate to trust is put in as lines of its own
    line = line_of_step(build.dockerfile, instruction) if has_own_lines else None
    where = f" at step {number} `{instruction[:_LINE_LENGTH]}`" if instruction else ""
    where += f" (Dockerfile line {line})" if line is not None else ""
    features = buildkit_features(build.dockerfile)
    hint = "Fix the Dockerfile; the last lines of its output are above."
    if features and not progress.by_buildkit:
        named = [_with_line(build.dockerfile, name) if has_own_lines else name for name in features]
        hint = f"{', '.join(named)}: only BuildKit builds this; "
        hint += "install the docker buildx plugin on the worker's host, or write it without."
    raise SandboxError(
        "sandbox.build_failed",
        f"Building the image of {build.place} failed{where}: {reason.strip()}"
        + (f"\n{tail}" if tail else ""),
        hint=hint,
    )


def _raise_if_busy(what: str) -> None:
    if _BUSY.search(what):
        raise SandboxError(
            "sandbox.registry_busy",
            what,
            hint="Log the worker's host in at the registry, use a mirror, or load the image beforehand.",
        )


def _with_line(text: str, feature: str) -> str:
    return f"line {line_of_feature(text, feature)}: {feature}"
