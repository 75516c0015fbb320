"""Starts a sandbox: its folders, limits, root and first process, or nothing at all."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.holder.commands import DEFAULT_PATH
from benchflow_workers.sandbox.local.cgroups import ControlGroup, Limits, make_group, remove_groups
from benchflow_workers.sandbox.local.execution import Surroundings
from benchflow_workers.sandbox.local.holder_client import Holder, Nursery
from benchflow_workers.sandbox.local.host_root import Root, Slot
from benchflow_workers.sandbox.local.network import LocalNetwork
from benchflow_workers.sandbox.local.options import LocalOptions, Mode
from benchflow_workers.sandbox.local.places import Places, Record
from benchflow_workers.sandbox.local.sandbox import LocalSandbox, Made
from benchflow_workers.sandbox.network_links import GATEWAY

PYTHON_FOLDER = "/opt/benchflow-python"
"""Where the worker's own interpreter is shown when the host has no other."""

_MAX_FILES = 1 << 16


@dataclass(frozen=True, slots=True)
class Image:
    """A root with the layers of a build on it, and what the build says of commands.

    Attributes:
        root: Read-only base.
        layers: Folders of layers, topmost first; each holds a folder for each slot it changes.
        env: Variables of every command.
        workdir: Workspace; `/root` where the image names none.
        folders: Made at the start of every sandbox, in order.
        notes: What differs from the same image in Docker.
    """

    root: Root
    layers: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/root"
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Python:
    """How sandboxes find a `python3` where the host's system has none.

    Attributes:
        folder: Added at the end of PATH; None = nothing is added.
        bind: (source, target) to show read-only; None = it is visible as it is.
    """

    folder: str | None = None
    bind: tuple[str, str] | None = None


def find_python(prefix: Path, *, system_bins: Sequence[Path], visible: frozenset[str]) -> Python:
    """Return how the interpreter below `prefix` is shown; a python3 of the system wins."""
    if any((folder / "python3").exists() for folder in system_bins):
        return Python()
    if not os.access(prefix / "bin" / "python3", os.X_OK):
        return Python()
    if prefix.parts[1] in visible:
        return Python(folder=str(prefix / "bin"))
    return Python(folder=f"{PYTHON_FOLDER}/bin", bind=(str(prefix), PYTHON_FOLDER))


class Launcher:
    """Starts sandboxes of one mode.

    Args:
        options: Settings of the provider.
        places: Its folders.
        nursery: Where first processes come from.
        mode: How they are made.
        python: Interpreter to show on the host's root.
    """

    def __init__(
        self, options: LocalOptions, places: Places, nursery: Nursery, *, mode: Mode, python: Python
    ) -> None:
        self.mode = mode
        self._options = options
        self._places = places
        self._nursery = nursery
        self._python = python

    async def launch(self, spec: SandboxSpec, image: Image) -> LocalSandbox:
        """Start a sandbox; its uploads are not placed yet.

        Guarantees: what was half made is removed when this raises or is cancelled.

        Raises:
            SandboxError: `sandbox.start_failed`, `sandbox.unavailable`.
        """
        work = asyncio.ensure_future(asyncio.to_thread(self.launch_blocking, spec, image))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The thread cannot be stopped; it ends within start_timeout_s.
            await asyncio.wait({work})
            if not work.cancelled() and work.exception() is None:
                await work.result().close()
            raise

    def launch_blocking(self, spec: SandboxSpec, image: Image) -> LocalSandbox:
        """Do what `launch` does, in a thread."""
        sandbox_id = f"{spec.name}-{secrets.token_hex(3)}"
        group = make_group(self._options.cgroup_root, sandbox_id, Limits.of(spec))
        record = Record(sandbox_id, dict(spec.labels), groups=tuple(map(str, group.folders)))
        with ExitStack() as stack:
            stack.callback(remove_groups, group.folders)
            folder = self._places.claim(record)
            stack.callback(self._places.remove, sandbox_id)
            around = self._surroundings(spec, image, group)
            request = self._request(spec, image, folder) | {
                "cgroup_procs": [str(path) for path in group.procs]
            }
            request["root"]["folders"] = [*image.folders, around.workdir]
            holder = self._start(request, spec)
            stack.callback(holder.end)
            record = self._places.started(record, holder.pid)
            stack.pop_all()
        network = LocalNetwork(holder, self._options.egress) if spec.has_changing_network else None
        return LocalSandbox(
            Made(record, holder, self._places, around, image.notes, network, bool(request["cuts_network"]))
        )

    def _surroundings(self, spec: SandboxSpec, image: Image, group: ControlGroup) -> Surroundings:
        env = {**image.env, **spec.env}
        if self._python.folder is not None:
            env["PATH"] = f"{env.get('PATH', DEFAULT_PATH)}:{self._python.folder}"
        return Surroundings(
            env=env,
            workdir=spec.workdir or image.workdir,
            rlimits=_rlimits(spec, group),
            has_users=self.mode == "namespaces",
            group=group,
        )

    def _request(self, spec: SandboxSpec, image: Image, folder: Path) -> dict[str, Any]:
        is_single_user = self.mode == "rootless"
        host_name = spec.name.replace("_", "-")[:63]
        return {
            "cuts_network": spec.network == "no-network" or spec.has_changing_network,
            "has_users": not is_single_user,
            "root": {
                "root": str(folder / "root"),
                "overlays": [_overlay(slot, image.layers, folder) for slot in image.root.slots],
                "overlay_options": "volatile,userxattr" if is_single_user else "volatile,index=off",
                "binds": self._binds(spec),
                "hostname": host_name,
                "files": _identity_files(host_name, resolver=_resolver(spec)),
            },
        }

    def _binds(self, spec: SandboxSpec) -> list[tuple[str, str]]:
        """Return what is shown read-only: (source, target)."""
        own = [self._python.bind] if self._python.bind else []
        return [*own, *((str(mount.source), mount.target) for mount in spec.mounts)]

    def _start(self, request: Mapping[str, Any], spec: SandboxSpec) -> Holder:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as stack:
            stack.callback(ours.close)
            with theirs:
                channel = self._nursery.open_channel()
                stack.callback(channel.close)
                channel.send_blocking(request, [theirs.fileno()])
            try:
                born, fds = channel.receive_blocking(spec.start_timeout_s)
                if born is None or not fds:
                    raise _not_started(spec, born)
                holder = Holder(ours, channel, fds[0], born["pid"])
                stack.pop_all()
                stack.callback(holder.end)
                ready, _ = channel.receive_blocking(spec.start_timeout_s)
            except TimeoutError as error:
                raise _not_started(spec, {"error": f"not ready in {spec.start_timeout_s:g} s"}) from error
            if ready is None or "ready" not in ready:
                raise _not_started(spec, ready)
            stack.pop_all()
            return holder


def _overlay(slot: Slot, layers: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Make the writable folders of a slot and return its overlay."""
    upper, work = folder / "upper" / slot.key, folder / "work" / slot.key
    upper.mkdir(parents=True)
    work.mkdir(parents=True)
    changed = [str(layer / slot.key) for layer in layers if (layer / slot.key).is_dir()]
    lowers = [*changed, *slot.lowers]
    state = os.stat(lowers[0])  # the writable folder's own mode and owner are what shows
    upper.chmod(stat.S_IMODE(state.st_mode))
    if os.geteuid() == 0:
        os.chown(upper, state.st_uid, state.st_gid)
    return {"target": slot.target, "lowers": lowers, "upper": str(upper), "work": str(work)}


def _identity_files(host_name: str, *, resolver: str | None) -> list[tuple[str, str]]:
    """Return the files that say who and where a sandbox is; they are the host's in no sandbox."""
    hosts = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{host_name}\n"
    files = [("/etc/hosts", hosts), ("/etc/hostname", f"{host_name}\n")]
    return files if resolver is None else [*files, ("/etc/resolv.conf", resolver)]


def _resolver(spec: SandboxSpec) -> str | None:
    """Return the text that says who answers DNS; None = nobody."""
    if spec.has_changing_network:
        return f"nameserver {GATEWAY}\n"
    if spec.network == "no-network":
        return None
    try:
        return Path("/etc/resolv.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _rlimits(spec: SandboxSpec, group: ControlGroup) -> dict[str, int]:
    """Return the limits of each process; they stand in for control groups that cannot be written.

    RLIMIT_DATA and not RLIMIT_AS for memory: runtimes reserve far more address space than they use.
    """
    limits = {"RLIMIT_NOFILE": _MAX_FILES}
    if spec.storage_mb is not None:
        limits["RLIMIT_FSIZE"] = spec.storage_mb << 20
    if "memory" not in group.limited and spec.memory_mb is not None:
        limits["RLIMIT_DATA"] = spec.memory_mb << 20
    if "pids" not in group.limited:
        limits["RLIMIT_NPROC"] = spec.pids
    return limits


def _not_started(spec: SandboxSpec, answer: Mapping[str, Any] | None) -> SandboxError:
    reason = (answer or {}).get("error") or "its first process ended at once"
    return SandboxError(
        "sandbox.start_failed",
        f"Local sandbox {spec.name} did not start: {reason}.",
        hint="Run `bench doctor`: it tries each step on this host and says what is missing.",
    )
