"""The sandbox contract: the records and protocols every provider implements.

The trial, the agents and the verifiers know only this module. A provider shows
that it keeps the contract by passing `benchflow_workers.sandbox.conformance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from benchflow_client.schema.task import NetworkMode
from benchflow_workers.sandbox.process import Process
from benchflow_workers.sandbox.services_spec import ServicesSpec

OUTPUT_LIMIT_BYTES = 1 << 20
"""Bytes kept of each output stream by default: half from its start, half from its end."""

ROOT = "root"
"""The user of every step that is not the agent's."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command to run in a sandbox.

    Attributes:
        argv: Program and arguments; run as they are, no shell added.
        timeout_s: Seconds until the whole process tree is killed.
        user: Name or numeric id the command runs as.
        env: Variables on top of the sandbox's own; never visible in any argv.
        workdir: Absolute folder; None = the sandbox's workspace.
        stdin: Bytes for standard input, which is then closed; None = empty input.
        output_limit_bytes: Bytes kept of each stream.
    """

    argv: Sequence[str]
    timeout_s: float
    user: str | int = ROOT
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    stdin: bytes | None = None
    output_limit_bytes: int = OUTPUT_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command left.

    Attributes:
        exit_code: Exit code; 128 + signal when killed, 127 for a program that
            does not exist, 126 for one that cannot be started (bad workdir,
            unknown user, not executable) with the reason on `stderr`.
        stdout: Kept bytes of standard output, raw.
        stderr: Kept bytes of standard error, raw.
        stdout_bytes: Bytes the command wrote to standard output in all.
        stderr_bytes: Bytes the command wrote to standard error in all.
        timed_out: The deadline ended it.
        oom_killed: The kernel killed a process of it for memory.
        duration_s: Wall clock in seconds.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    timed_out: bool
    oom_killed: bool
    duration_s: float


@dataclass(frozen=True, slots=True)
class Upload:
    """One file, folder or link to place in a sandbox.

    Exactly one of `content`, `source` and `link_to` is set, or none of them for
    an empty folder. Missing parent folders are made, owned by root, mode 0755.

    Attributes:
        target: Absolute path in the sandbox.
        content: Bytes of a regular file.
        source: File or folder on the worker; a folder is placed with all it
            holds, exec bits kept, symlinks inside it kept as links.
        link_to: Target of a symbolic link.
        mode: Permission bits of `target` itself; None = as `source`, else 0644/0755.
        uid: Numeric owner of everything placed.
        gid: Numeric group of everything placed.
    """

    target: str
    content: bytes | None = None
    source: Path | None = None
    link_to: str | None = None
    mode: int | None = None
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the worker's host that a sandbox sees and cannot change.

    Attributes:
        source: The folder; it must not change while a sandbox lives.
        target: Absolute path in the sandbox.
    """

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a rollout asks of a provider.

    Attributes:
        name: Readable, unique, already safe for any provider: `[a-z0-9][a-z0-9_-]*`, <= 63.
        labels: Who it belongs to: fleet, job, trial, fence, worker.
        image: Ready image; None = build `build_context`.
        build_context: Folder with a Dockerfile on this host; None = `image` is used.
        build_digest: Digest of the build context; the same digest is built once per host.
        build_timeout_s: Seconds for pull or build.
        start_timeout_s: Seconds from a ready image to a running sandbox.
        cpus: Processor cores; None = no limit.
        memory_mb: Memory in MiB, swap off; None = no limit.
        storage_mb: Disk in MiB, kept where the provider can; None = no limit.
        gpus: GPUs it needs.
        devices: The GPUs it is given, as their host names them; they are nobody else's while it lives.
        pids: Processes at most.
        network: What the sandbox may reach when it is opened: `public` or `no-network`.
        has_changing_network: `set_network` will be called before anything else.
        keeps_entrypoint: The image's entry point is run, with a command that keeps the sandbox alive.
        env: Variables of every command in it.
        workdir: Workspace; None = the image's own, `/root` where that is `/`.
        uploads: Placed before the first command.
        mounts: Shown read-only; a provider whose host is another one places copies.
        services: What runs beside it; None = nothing.
    """

    name: str
    labels: Mapping[str, str]
    image: str | None
    build_context: Path | None
    build_digest: str
    build_timeout_s: float = 600.0
    start_timeout_s: float = 120.0
    cpus: float | None = 1.0
    memory_mb: int | None = 2048
    storage_mb: int | None = 10240
    gpus: int = 0
    devices: tuple[str, ...] = ()
    pids: int = 4096
    network: NetworkMode = "public"
    has_changing_network: bool = False
    keeps_entrypoint: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    uploads: Sequence[Upload] = ()
    mounts: Sequence[Mount] = ()
    services: ServicesSpec | None = None

    @property
    def all_cpus(self) -> float | None:
        """Cores of the sandbox and its services together; None = no limit."""
        extra = 0.0 if self.services is None else self.services.cpus
        return None if self.cpus is None else self.cpus + extra

    @property
    def all_memory_mb(self) -> int | None:
        """Memory of the sandbox and its services together, in MiB; None = no limit."""
        extra = 0 if self.services is None else self.services.memory_mb
        return None if self.memory_mb is None else self.memory_mb + extra


@dataclass(frozen=True, slots=True)
class SandboxRef:
    """A sandbox as the provider lists it, whoever made it."""

    kind: str
    id: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do; the gate reads it before anything is started."""

    networks: frozenset[str]  # NetworkMode values it enforces
    has_users: bool  # can tell the agent's user from root
    has_compose: bool  # runs side services
    has_gpus: bool
    isolates: tuple[str, ...]  # what it keeps apart, for people
    does_not_isolate: tuple[str, ...]  # what it says plainly it does not
    runs_commands: bool = True  # False = nothing is run, so nothing can be scored
    gpu_types: frozenset[str] = frozenset()  # names of what its GPUs are


class Sandbox(Protocol):
    """A running sandbox, owned by one trial.

    All methods may raise `SandboxError`: `sandbox.lost` when the sandbox is gone
    or unusable, `sandbox.exec_failed` when the provider refused, `sandbox.transfer_failed`
    when files could not be moved.
    """

    @property
    def id(self) -> str:
        """The provider's id, enough to find and remove the sandbox from outside."""
        ...

    @property
    def workdir(self) -> str:
        """The workspace: where commands without a workdir run."""
        ...

    async def exec(self, command: Command) -> Completed:
        """Run a command and wait for its end.

        Guarantees: returns within a few seconds of `timeout_s`, with every
        process the command started killed, those in sessions of their own
        included, when the deadline ended it. A background child that holds an
        output pipe does not delay the return by more than two seconds. Memory
        on the worker is bounded by the output limit. A command that fails is a
        `Completed`, not an exception. Several commands may run at once.
        """
        ...

    def attach(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """Start a program and talk to it within the block; `stdin` and `timeout_s` of the command are not used.

        Guarantees: when the block is left, however, every process the program started is
        killed, those in sessions of their own included. A program that cannot be started
        ends at once with 126 or 127 and the reason on one of its streams.
        """
        ...

    async def kill(self, user: str | int) -> None:
        """Kill every process of a user, those that ignore signals included.

        Guarantees: none is left on return.

        Raises:
            SandboxError: `sandbox.exec_failed` when one cannot be killed.
        """
        ...

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Place files in one transfer, tmpfs paths included, replacing what is there."""
        ...

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Copy a file or folder out of the sandbox to `target` on the worker.

        A folder's content lands in `target` (made when missing); a file becomes
        `target`. Modes are kept (set-id bits dropped, the worker can always read
        and delete), owners are not; links, devices and anything that would land
        outside `target` are left out, and so is what cannot be copied because of
        its own name, depth (more than 100 folders or 1024 bytes of path) or rights,
        or because it vanished meanwhile.

        Returns:
            False when `path` does not exist in the sandbox, or is itself a link.

        Raises:
            SandboxError: `sandbox.transfer_failed` when more than `limit_bytes` would be written.
        """
        ...

    async def close(self) -> None:
        """Remove the sandbox and all it holds; safe to call twice and while commands run."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind on this host; one per worker process."""

    @property
    def kind(self) -> str:
        """Name used by `--sandbox` and by queues."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this provider can do here."""
        ...

    async def check(self) -> None:
        """Find out whether this provider works on this host, without making a sandbox.

        Raises:
            SandboxError: `sandbox.unavailable`, with what to install, start or allow.
        """
        ...

    async def place(self) -> str:
        """Name where its sandboxes live; the same for every worker whose `list` finds the same ones.

        Raises:
            SandboxError: `sandbox.unavailable`.
        """
        ...

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Build or find the image, start a sandbox, place its uploads.

        Guarantees: what was half made is removed when this raises or is cancelled.

        Raises:
            SandboxError: `sandbox.build_failed` with the failing line and the tail of the
                build's output, `sandbox.image_missing`, `sandbox.start_failed`,
                `sandbox.unavailable`, `task.unsupported`.
        """
        ...

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the live sandboxes that carry all the labels, from any process."""
        ...

    async def remove(self, ref: SandboxRef) -> None:
        """Remove a sandbox found by `list`; one that is already gone is fine."""
        ...

    async def close(self) -> None:
        """Give back what the provider itself holds; sandboxes are not touched."""
        ...


def path_below(root: Path, relative: PurePosixPath) -> Path | None:
    """Return `root / relative`, or None where that would leave `root`.

    Purely lexical: the caller must not have placed links below `root`.
    """
    if relative.is_absolute() or ".." in relative.parts:
        return None
    return root.joinpath(*relative.parts)
