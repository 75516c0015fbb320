"""What local sandboxes can do on this host, for `bench doctor`."""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import dataclass

from benchflow_workers.sandbox.local.cgroups import CONTROLLERS, Limits, make_group, remove_groups
from benchflow_workers.sandbox.local.modes import try_mode
from benchflow_workers.sandbox.local.options import LocalOptions


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        is_ok: It works, or nothing needs it.
        detail: What was seen.
        fix: What to do; empty when it works.
    """

    name: str
    is_ok: bool
    detail: str
    fix: str = ""


def probe(options: LocalOptions) -> list[Finding]:
    """Try each part on this host; takes about 100 ms and leaves nothing behind."""
    if platform.system() != "Linux":
        return [
            Finding(
                "local sandboxes",
                is_ok=False,
                detail=f"{platform.system()} has no namespaces",
                fix="Use --sandbox docker.",
            )
        ]
    trials = [try_mode("namespaces", options.state_dir), try_mode("rootless", options.state_dir)]
    works = [trial for trial in trials if not trial.problem]
    findings = []
    for trial in trials:
        is_needed = options.mode in {"auto", trial.mode} and not (options.mode == "auto" and works)
        findings.append(
            Finding(
                f"local sandboxes, {trial.mode}",
                is_ok=not (trial.problem and is_needed),
                detail=trial.problem or "works",
                fix=trial.fix,
            )
        )
    return [*findings, _limits(options), *_rootfs(options)]


def _limits(options: LocalOptions) -> Finding:
    limits = Limits(memory_bytes=1 << 26, pids=16, cpus=1.0)
    group = make_group(options.cgroup_root, f"probe-{os.getpid()}-{uuid.uuid4().hex[:6]}", limits)
    remove_groups(group.folders)
    missing = [name for name in CONTROLLERS if name not in group.limited]
    if not missing:
        return Finding("local limits", is_ok=True, detail=f"control groups for {', '.join(CONTROLLERS)}")
    return Finding(
        "local limits",
        is_ok=False,
        detail=f"no control group for {', '.join(missing)}: only limits of each process hold",
        fix="Let the worker write its control groups (systemd: Delegate=yes; a container: --privileged).",
    )


def _rootfs(options: LocalOptions) -> list[Finding]:
    return [
        Finding(
            f"local image {name}",
            is_ok=(folder / "etc").is_dir(),
            detail=str(folder) if (folder / "etc").is_dir() else f"{folder} is no root folder",
            fix="" if (folder / "etc").is_dir() else "Unpack the image there, or remove its name.",
        )
        for name, folder in options.rootfs.items()
    ]
