"""The provider of local sandboxes: chooses the mode, finds or builds images, opens, lists and removes."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox import network_links
from benchflow_workers.sandbox.base import Capabilities, SandboxRef, SandboxSpec
from benchflow_workers.sandbox.local import dockerfile
from benchflow_workers.sandbox.local.build import Builder
from benchflow_workers.sandbox.local.holder_client import Nursery
from benchflow_workers.sandbox.local.host_root import (
    SYSTEM_FOLDERS,
    Root,
    Survey,
    hidden_paths,
    make_root,
)
from benchflow_workers.sandbox.local.launch import Image, Launcher, find_python
from benchflow_workers.sandbox.local.layers import LayerCache
from benchflow_workers.sandbox.local.modes import choose_mode
from benchflow_workers.sandbox.local.options import LocalOptions, Mode
from benchflow_workers.sandbox.local.places import Places
from benchflow_workers.sandbox.local.sandbox import LocalSandbox
from benchflow_workers.sandbox.network import LISTS

_NETWORKS = frozenset({"public", "no-network"})
_SYSTEM_BINS = (Path("/usr/bin"), Path("/usr/local/bin"))
_SHARED = (
    "the kernel: there is no seccomp filter, and a program may make user namespaces of its own",
    "the host's packages and system folders, read-only: scores are not comparable with Docker's",
    "what root may read of the host's /etc and /var, for commands that run as root",
    "disk space: there is no quota, only a largest size of one file",
    "the host's network, its loopback services included, where the network is public",
)


class LocalSandboxes:
    """Sandboxes on this host without a container engine, for trusted tasks.

    Args:
        options: Settings.
    """

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._places = Places(options.state_dir)
        self._nursery = Nursery()
        self._lock = threading.Lock()
        self._made_launcher: Launcher | None = None
        self._roots: dict[Path, Root] = {}
        self._images: dict[str, Image] = {}

    @property
    def kind(self) -> str:
        """Name used by `--sandbox` and by queues."""
        return "local"

    @property
    def mode(self) -> Mode:
        """How sandboxes are made here.

        Raises:
            SandboxError: `sandbox.unavailable` when they cannot be made at all.
        """
        return self._launcher().mode

    @property
    def capabilities(self) -> Capabilities:
        """What this provider can do here.

        Raises:
            SandboxError: `sandbox.unavailable` when no sandbox can be made on this host.
        """
        has_users = self.mode == "namespaces"
        users = () if has_users else ("the agent's user from the tests' user: there is a single one",)
        return Capabilities(
            networks=_NETWORKS | LISTS if self._can_switch else _NETWORKS,
            has_users=has_users,
            has_compose=False,
            has_gpus=False,
            isolates=(
                "files",
                "processes",
                "users" if has_users else "the worker's user",
                "network when it is cut",
            ),
            does_not_isolate=(*users, *_SHARED),
        )

    @cached_property
    def _can_switch(self) -> bool:
        """Whether the network of a sandbox can be changed while it runs, found by trying once."""
        return self.mode == "namespaces" and not network_links.problem()

    def _launcher(self) -> Launcher:
        with self._lock:
            if self._made_launcher is None:
                self._places.prepare()
                python = find_python(Path(sys.base_prefix), system_bins=_SYSTEM_BINS, visible=SYSTEM_FOLDERS)
                self._made_launcher = Launcher(
                    self._options,
                    self._places,
                    self._nursery,
                    mode=choose_mode(self._options),
                    python=python,
                )
            return self._made_launcher

    async def check(self) -> None:
        """Find out whether a sandbox can be made here, by making its namespaces and an overlay once.

        Raises:
            SandboxError: `sandbox.unavailable` with what to change on this host.
        """
        await asyncio.to_thread(self._launcher)

    async def place(self) -> str:
        """Return this host and the folder its sandboxes are in."""
        return f"{socket.gethostname()}:{self._options.state_dir}"

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        """Build or find the image, start a sandbox, place its uploads; see the contract."""
        if spec.network not in _NETWORKS:
            raise SandboxError(
                "task.unsupported",
                f"Local sandboxes cannot be opened with network {spec.network!r}.",
                hint="They open with public or no-network; a list of names is set on a running sandbox.",
            )
        if spec.has_changing_network and not self._can_switch:
            raise SandboxError(
                "task.unsupported",
                "The network of a local sandbox cannot be changed on this host.",
                hint="Run the worker as root with CAP_SYS_ADMIN and CAP_NET_ADMIN.",
            )
        launcher = await asyncio.to_thread(self._launcher)
        image = await self._image(launcher, spec)
        async with AsyncExitStack() as stack:
            sandbox = await launcher.launch(spec, image)
            stack.push_async_callback(sandbox.close)
            if spec.uploads:
                await sandbox.put(spec.uploads)
            stack.pop_all()
        return sandbox

    async def _image(self, launcher: Launcher, spec: SandboxSpec) -> Image:
        if spec.image is not None:
            folder, notes = self._base(spec.image)
            return Image(await asyncio.to_thread(self._root, launcher, folder), notes=notes)
        if spec.build_context is None:
            root = await asyncio.to_thread(self._root, launcher, Path("/"))
            return Image(root, notes=("local: no image named (host root used)",))
        instructions = dockerfile.parse(await asyncio.to_thread(_read_dockerfile, spec.build_context))
        folder, notes = self._base(dockerfile.base_image(instructions))
        root = await asyncio.to_thread(self._root, launcher, folder)
        key = hashlib.sha256(f"{root.identity} {spec.build_digest}".encode()).hexdigest()[:24]
        known = self._images.get(key)
        if known is not None and all(layer.is_dir() for layer in known.layers):
            return known
        async with LayerCache(self._places).building(key, spec.build_timeout_s):
            builder = Builder(launcher, self._places, spec, notes=notes)
            image = await builder.build(instructions, root)
        if spec.build_digest:
            self._images[key] = image
        return image

    def _base(self, name: str) -> tuple[Path, tuple[str, ...]]:
        """Return the root folder an image name stands for, and what to note of it."""
        for known in (name, name.removesuffix(":latest"), f"{name}:latest"):
            if known in self._options.rootfs:
                return self._options.rootfs[known], ()
        return Path("/"), (f"local: image {name} ignored (host root used)",)

    def _root(self, launcher: Launcher, folder: Path) -> Root:
        with self._lock:
            if folder not in self._roots:
                if not (folder / "etc").is_dir():
                    raise SandboxError(
                        "sandbox.image_missing",
                        f"The root folder {folder} of a local image does not exist or has no /etc.",
                        hint="Unpack the image there, or remove the name from the worker's local_rootfs.",
                    )
                hidden = hidden_paths((self._options.state_dir, *self._options.hidden))
                survey = Survey(
                    folder.resolve(),
                    str(self._options.state_dir.resolve()),
                    hidden if folder == Path("/") else (),
                    is_single_user=launcher.mode == "rootless",
                )
                self._roots[folder] = make_root(survey, self._places.bases)
            return self._roots[folder]

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the sandboxes of this host that carry all the labels, those of dead workers included."""
        records = await asyncio.to_thread(self._places.records, labels)
        return [SandboxRef(self.kind, record.id, dict(record.labels)) for record in records]

    async def remove(self, ref: SandboxRef) -> None:
        """Remove a sandbox found by `list`; one that is already gone is fine."""
        await asyncio.shield(asyncio.to_thread(self._places.remove, ref.id))

    async def close(self) -> None:
        """End the helper process; sandboxes are not touched. Safe to call twice."""
        await asyncio.to_thread(self._nursery.close)


def _read_dockerfile(context: Path) -> str:
    try:
        return (context / "Dockerfile").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SandboxError(
            "sandbox.build_failed",
            f"{context / 'Dockerfile'} cannot be read: {error}.",
            hint="Put a Dockerfile there, or name a docker_image in the task.",
        ) from error
