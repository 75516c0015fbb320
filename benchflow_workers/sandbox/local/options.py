"""Settings of local sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchflow_workers.sandbox.network_egress import EgressOptions

Mode = Literal["namespaces", "rootless"]
"""How sandboxes are made: by real root with several users, or inside a user namespace with one."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Settings of `LocalSandboxes`.

    Attributes:
        state_dir: Folder for sandboxes and cached layers; not on overlayfs or NFS.
        mode: "auto" = namespaces where this process may, else rootless.
        rootfs: Image name -> unpacked root folder, which must not change while it is
            used; a name that is not here means the root of the host.
        hidden: Absolute paths of the host that no sandbox shows, besides the usual ones.
        cgroup_root: Where the control groups are mounted.
        egress: How listed names are reached.
    """

    state_dir: Path
    mode: Literal["auto", "namespaces", "rootless"] = "auto"
    rootfs: Mapping[str, Path] = field(default_factory=dict)
    hidden: tuple[Path, ...] = ()
    cgroup_root: Path = Path("/sys/fs/cgroup")
    egress: EgressOptions = field(default_factory=EgressOptions)
