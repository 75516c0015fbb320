"""Which way of making sandboxes works on this host, found by trying it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.local.options import LocalOptions, Mode

_TRY = """
import os, sys
sys.path.append(sys.argv[1])
from benchflow_workers.sandbox.holder import kernel
folder, is_rootless = sys.argv[2], sys.argv[3] == "rootless"
step = "namespaces"
try:
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare((kernel.NEWUSER if is_rootless else 0) | kernel.NEWNS | kernel.NEWPID | kernel.NEWNET)
    if is_rootless:
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
        open("/proc/self/gid_map", "w").write(f"0 {gid} 1")
    kernel.mount("none", "/", None, flags=kernel.REC | kernel.PRIVATE)
    step = "overlay"
    lower = "/usr/bin" if is_rootless else "/"
    options = "userxattr" if is_rootless else "index=off"
    data = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work,volatile,{options}"
    kernel.mount("overlay", f"{folder}/root", "overlay", data=data)
    step = "proc"
    pid = os.fork()
    if pid == 0:
        kernel.mount("proc", "/proc", "proc")
        os._exit(0)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("a new /proc cannot be mounted")
except OSError as error:
    sys.exit(f"{step}: {error}")
"""
_TRY_S = 20.0

_FIXES = {
    "overlay": "Put the worker's state folder on ext4, xfs, btrfs or a tmpfs (overlayfs and NFS cannot hold an overlay), on Linux 5.11 or newer.",
    "proc": "The worker's own container hides parts of /proc; start it with `--security-opt systempaths=unconfined`.",
    "namespaces": (
        "As root give the worker CAP_SYS_ADMIN (a container needs --privileged); as a user allow user "
        "namespaces: sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces above 0."
    ),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying one mode; an empty problem means that it works."""

    mode: Mode
    problem: str = ""

    @property
    def fix(self) -> str:
        """What to do about the problem."""
        return _FIXES.get(self.problem.partition(":")[0], _FIXES["namespaces"]) if self.problem else ""


def try_mode(mode: Mode, state_dir: Path) -> Trial:
    """Make namespaces and mount an overlay in a process that ends at once; takes about 30 ms."""
    if mode == "namespaces" and os.geteuid() != 0:
        return Trial(mode, "namespaces: the worker does not run as root")
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=state_dir, prefix=".try-") as folder:
            for name in ("upper", "work", "root"):
                (Path(folder) / name).mkdir()
            problem = _run(mode, folder)
            for rest in Path(folder, "work").iterdir():
                rest.chmod(0o700)  # overlayfs leaves a folder nobody may read
    except OSError as error:
        return Trial(mode, f"overlay: {error}")
    return Trial(mode, problem)


def _run(mode: Mode, folder: str) -> str:
    package_root = str(Path(__file__).parents[3])
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _TRY, package_root, folder, mode]
    try:
        done = subprocess.run(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"namespaces: no answer in {_TRY_S:g} s"
    if done.returncode == 0:
        return ""
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"


def choose_mode(options: LocalOptions) -> Mode:
    """Return the mode that the options ask for, or the best that works.

    Raises:
        SandboxError: `sandbox.unavailable` with what to change on this host.
    """
    wanted: tuple[Mode, ...] = ("namespaces", "rootless") if options.mode == "auto" else (options.mode,)
    trials = []
    for mode in wanted:
        trial = try_mode(mode, options.state_dir)
        if not trial.problem:
            return mode
        trials.append(trial)
    raise SandboxError(
        "sandbox.unavailable",
        "Local sandboxes cannot be made on this host: "
        + "; ".join(f"{trial.mode} fails at {trial.problem}" for trial in trials)
        + ".",
        hint=trials[-1].fix,
    )
