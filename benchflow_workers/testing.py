"""Sandboxes in memory that do what a test tells them: for tests of agents, verifiers and trials.

sandboxes = ScriptedSandboxes()
sandboxes.on("os-release", completed(stdout=b"Debian"))   # commands whose argv contains this text
sandboxes.on("sleep", takes_s=60)                         # slow: the command's deadline ends it
sandbox = await sandboxes.open(spec)
assert sandboxes.commands[0].user == "agent"
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox import base
from benchflow_workers.sandbox.base import Capabilities, Command, Completed, SandboxRef, SandboxSpec, Upload
from benchflow_workers.sandbox.output import CappedOutput

__all__ = ["ScriptedProcess", "ScriptedSandbox", "ScriptedSandboxes", "completed"]


_ABILITIES = Capabilities(
    frozenset({"public", "no-network"}), has_users=True, has_compose=False, has_gpus=False,
    isolates=(), does_not_isolate=("anything: nothing runs",),
)  # fmt: skip


def completed(exit_code: int = 0, stdout: bytes = b"", stderr: bytes = b"") -> Completed:
    """Return what a command left that ended by itself."""
    sizes = (len(stdout), len(stderr))
    return Completed(exit_code, stdout, stderr, *sizes, timed_out=False, oom_killed=False, duration_s=0.0)


@dataclass(frozen=True, slots=True)
class _Rule:
    text: str
    answer: Completed
    takes_s: float
    raises: Exception | None
    files: Mapping[str, bytes]
    then: Callable[[], object]


@dataclass
class ScriptedSandboxes:
    """Makes scripted sandboxes; every one follows the same rules.

    Attributes:
        capabilities: What the provider says it can do.
        open_error: Raised by `open`; `close_error` likewise by a sandbox's `close`.
        open_takes_s: Seconds `open` takes; `close_takes_s` likewise, many = it hangs.
        commands: Every command of every sandbox, in order.
        events: open, exec, kill, put, get and close of every sandbox, in order.
        opened: Every sandbox, in order.
    """

    kind: str = "scripted"
    capabilities: Capabilities = _ABILITIES
    open_error: Exception | None = None
    open_takes_s: float = 0.0
    close_error: Exception | None = None
    close_takes_s: float = 0.0
    commands: list[Command] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    opened: list[ScriptedSandbox] = field(default_factory=list)
    rules: list[_Rule] = field(default_factory=list)

    def on(
        self,
        text: str,
        answer: Completed | None = None,
        *,
        takes_s: float = 0.0,
        raises: Exception | None = None,
        files: Mapping[str, bytes] | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Say what happens to commands; the last rule that fits counts, without one they succeed.

        Args:
            text: Text in the joined argv; empty = every command.
            answer: What is left; None = success without output.
            takes_s: Seconds until then; more than the deadline = it times out.
            raises: Raised instead.
            files: Absolute path -> content of files that are written.
            then: Called at the beginning.
        """
        self.rules.append(_Rule(text, answer or completed(), takes_s, raises, files or {}, then))

    async def check(self) -> None:
        """Work everywhere."""

    async def place(self) -> str:
        """Name this object: nobody else finds its sandboxes."""
        return f"memory {id(self):x}"

    async def open(self, spec: SandboxSpec) -> ScriptedSandbox:
        """Return a sandbox that holds the spec's uploads."""
        await asyncio.sleep(self.open_takes_s)
        if self.open_error is not None:
            raise self.open_error
        self.events.append("open")
        self.opened.append(ScriptedSandbox(self, spec))
        return self.opened[-1]

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the open sandboxes that carry all the labels."""
        live = (box for box in self.opened if not box.is_closed)
        refs = (SandboxRef(self.kind, box.id, box.spec.labels) for box in live)
        return [ref for ref in refs if labels.items() <= ref.labels.items()]

    async def remove(self, ref: SandboxRef) -> None:
        """Take a sandbox away; whatever is done with it from now on raises `sandbox.lost`."""
        for sandbox in self.opened:
            sandbox.is_closed = sandbox.is_closed or sandbox.id == ref.id

    async def close(self) -> None:
        """Do nothing: nothing is held."""


class ScriptedProcess:
    """A program of a scripted sandbox; `written` is all it was told."""

    def __init__(self, answer: Completed) -> None:
        self.written = b""
        self.stderr = CappedOutput(base.OUTPUT_LIMIT_BYTES)
        self.stderr.write(answer.stderr)
        self._answer = answer
        self._left = answer.stdout

    async def read(self) -> bytes:
        """Return all it prints, once."""
        output, self._left = self._left, b""
        return output

    async def write(self, data: bytes) -> bool:
        """Keep what it is told."""
        self.written += data
        return True

    async def wait(self) -> int:
        """Return its exit code."""
        return self._answer.exit_code


class ScriptedSandbox:
    """A sandbox of `ScriptedSandboxes`; `files` maps absolute paths to what is in it."""

    def __init__(self, provider: ScriptedSandboxes, spec: SandboxSpec) -> None:
        self.spec, self.id, self.workdir = spec, spec.name, spec.workdir or "/root"
        self.is_closed = False
        self.uploads: list[Upload] = []
        self.files: dict[str, bytes] = {}
        self.attached: list[ScriptedProcess] = []
        self._provider = provider
        self._place(spec.uploads)

    async def exec(self, command: Command) -> Completed:
        """Record the command and do what its rule says."""
        self._begin("exec")
        self._provider.commands.append(command)
        line = " ".join(command.argv)
        rule = next((rule for rule in reversed(self._provider.rules) if rule.text in line), None)
        if rule is None:
            return completed()
        rule.then()
        await asyncio.sleep(min(rule.takes_s, command.timeout_s))
        if rule.raises is not None:
            raise rule.raises
        if rule.takes_s > command.timeout_s:
            return replace(completed(137), timed_out=True, duration_s=command.timeout_s)
        self.files.update(rule.files)
        return rule.answer

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[ScriptedProcess, None]:
        """Yield a program that has printed what its rule says, and ended; what it is told is in `written`."""
        process = ScriptedProcess(await self.exec(command))
        self.attached.append(process)
        yield process

    async def kill(self, user: str | int) -> None:
        """Record that the processes of a user were killed."""
        self._begin(f"kill {user}")

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Keep the files."""
        self._begin("put")
        self._place(uploads)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Write what is kept at or below a path to the worker; False when nothing is."""
        self._begin("get")
        inside = (data for name, data in self.files.items() if PurePosixPath(name).is_relative_to(path))
        if sum(map(len, inside)) > limit_bytes:
            raise SandboxError("sandbox.transfer_failed", f"More than {limit_bytes} bytes would be written.")
        return _write(self.files, path, target)

    async def close(self) -> None:
        """Close, as slowly and as badly as the provider says."""
        self._provider.events.append("close")
        await asyncio.sleep(self._provider.close_takes_s)
        if self._provider.close_error is not None:
            raise self._provider.close_error
        self.is_closed = True

    def _place(self, uploads: Sequence[Upload]) -> None:
        self.uploads.extend(uploads)
        for upload in uploads:
            if upload.content is not None:
                self.files[upload.target] = upload.content
            if (source := upload.source) is not None:
                for path in filter(Path.is_file, (source, *source.rglob("*"))):
                    self.files[str(PurePosixPath(upload.target, path.relative_to(source)))] = (
                        path.read_bytes()
                    )

    def _begin(self, event: str) -> None:
        self._provider.events.append(event)
        if self.is_closed:
            raise SandboxError("sandbox.lost", f"The scripted sandbox {self.id} is gone.")


def _write(files: Mapping[str, bytes], path: str, target: Path) -> bool:
    found = {name: data for name, data in files.items() if name == path or name.startswith(f"{path}/")}
    for name, data in found.items():
        place = base.path_below(target, PurePosixPath(name).relative_to(path))
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    return bool(found)
