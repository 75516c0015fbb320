"""Sandbox providers by name; imported when they are first asked for."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchflow_client.errors import MissingExtraError, SandboxError
from benchflow_client.ledger.sandboxes import SandboxBook
from benchflow_workers.sandbox.base import SandboxProvider
from benchflow_workers.sandbox.network_egress import EgressOptions, TlsAuthority
from benchflow_workers.sandbox.recorded import RecordedSandboxes
from benchflow_workers.settings import WorkerSettings

KINDS: Final = ("docker", "local", "null")
"""Every kind, best first; a worker without a queue list serves those that work on its host."""

_EXTRAS: Final = {"docker": ("docker", "docker")}
"""Kind -> (module its extra brings, name of the extra)."""


def _docker(settings: WorkerSettings, state_dir: Path) -> SandboxProvider:
    module: Any = importlib.import_module("benchflow_workers.sandbox.docker")
    options = module.DockerOptions(
        base_url=settings.docker_host,
        state_dir=state_dir,
        extra_ca=settings.extra_ca,
        pull=settings.docker_pull,
        egress=egress_of(settings),
        gpus=settings.gpu_ids(),
        gpu_types=settings.gpu_type_names(),
    )
    provider: SandboxProvider = module.DockerSandboxes(options)
    return provider


def _local(settings: WorkerSettings, state_dir: Path) -> SandboxProvider:
    module: Any = importlib.import_module("benchflow_workers.sandbox.local")
    options = module.LocalOptions(
        state_dir=state_dir / "local",
        rootfs=settings.rootfs(),
        mode=settings.local_mode,
        egress=egress_of(settings),
    )
    provider: SandboxProvider = module.LocalSandboxes(options)
    return provider


def _null(settings: WorkerSettings, state_dir: Path) -> SandboxProvider:
    del state_dir
    module: Any = importlib.import_module("benchflow_workers.sandbox.null")
    provider: SandboxProvider = module.NullSandboxes(module.NullOptions(exec_s=settings.null_exec_s))
    return provider


def egress_of(settings: WorkerSettings) -> EgressOptions:
    """Return how sandboxes reach what their lists permit."""
    return EgressOptions(
        private=settings.private_servers(),
        authority=_authority if opens_tls() else None,
        extra_ca=settings.extra_ca,
    )


def opens_tls() -> bool:
    """Return whether this worker can open TLS, as `blocked_urls` need it."""
    return find_spec("cryptography") is not None


def _authority(hosts: frozenset[str]) -> TlsAuthority:
    module: Any = importlib.import_module("benchflow_workers.sandbox.network_authority")
    authority: TlsAuthority = module.Authority(hosts)
    return authority


_MAKERS: Final[dict[str, Callable[[WorkerSettings, Path], SandboxProvider]]] = {
    "docker": _docker,
    "local": _local,
    "null": _null,
}


class SandboxRegistry:
    """Makes each provider once.

    Args:
        settings: The worker's settings.
        state_dir: Folder for what providers keep on this host.
        book: Where each sandbox is written down; None = nowhere, for checks that make none.
    """

    def __init__(self, settings: WorkerSettings, *, state_dir: Path, book: SandboxBook | None = None) -> None:
        self._book = book
        self._settings = settings
        self._state_dir = state_dir
        self._made: dict[str, SandboxProvider] = {}
        self._lock = threading.Lock()

    def get(self, kind: str) -> SandboxProvider:
        """Return the provider of a kind.

        Raises:
            SandboxError: `sandbox.unavailable`: no such kind.
            MissingExtraError: Its extra is not installed.
        """
        with self._lock:
            if kind not in self._made:
                self._made[kind] = self._make(kind)
            return self._made[kind]

    def _make(self, kind: str) -> SandboxProvider:
        maker = _MAKERS.get(kind)
        if maker is None:
            raise SandboxError(
                "sandbox.unavailable",
                f"There is no sandbox of kind {kind!r}.",
                hint=f"Kinds: {', '.join(KINDS)}.",
            )
        try:
            provider = maker(self._settings, self._state_dir)
        except ModuleNotFoundError as error:
            module, extra = _EXTRAS.get(kind, ("", ""))
            if not module or error.name != module:
                raise
            raise MissingExtraError(f"sandbox {kind!r}", extra) from error
        if self._book is None or not provider.capabilities.runs_commands:
            return provider
        return RecordedSandboxes(provider, self._book)
