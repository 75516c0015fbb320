"""Runs one command in a process forked by the first process of a sandbox.

Lines marked "no cover" run in processes no coverage tool can follow into; the contract tests run them.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from benchflow_workers.sandbox.holder import kernel, users, wire

ROOT_CAPABILITIES = frozenset({
    0,  # CHOWN
    1,  # DAC_OVERRIDE
    3,  # FOWNER
    4,  # FSETID
    5,  # KILL
    6,  # SETGID
    7,  # SETUID
    8,  # SETPCAP
    10,  # NET_BIND_SERVICE
    13,  # NET_RAW
    18,  # SYS_CHROOT
    29,  # AUDIT_WRITE
    31,  # SETFCAP
})
"""What root of a sandbox may do: Docker's default set without MKNOD."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for when no variable says so."""

_CANNOT_START, _NOT_FOUND = 126, 127
_OOM_SCORE = b"500"  # the kernel then picks a command, never the first process of the sandbox


class _RefusedError(Exception):
    """The command cannot be started."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


def run(channel: socket.socket) -> None:  # pragma: no cover
    """Become the command that the channel asks for, or say on it why that cannot be."""
    request, fds = wire.receive(channel)
    try:
        _become(request, fds)
    except _RefusedError as refusal:
        wire.send(channel, {"error": str(refusal), "exit": refusal.exit_code})


def _become(request: Mapping[str, Any], fds: list[int]) -> NoReturn:  # pragma: no cover
    user = users.find(request["user"], Path("/etc"))
    if user is None:
        raise _RefusedError(_CANNOT_START, f"no user {request['user']!r} in the sandbox's /etc/passwd")
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python and the server ignore them; programs expect them
    _connect(fds, has_stdin=request["has_stdin"])
    _limit(request["rlimits"])
    try:
        os.chdir(
            request["workdir"]
        )  # with root's rights, as container runtimes do: /root is closed to others
    except OSError as error:
        raise _RefusedError(_CANNOT_START, f"workdir {request['workdir']}: {error.strerror}") from error
    _drop_rights(user, has_users=request["has_users"])
    os.umask(0o022)
    env = {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8", "HOME": user.home, **request["env"]}
    _execute(request["argv"], env)


def _connect(fds: list[int], *, has_stdin: bool) -> None:  # pragma: no cover
    """Put the passed descriptors in the place of the standard streams."""
    stdin = fds[2] if has_stdin else os.open("/dev/null", os.O_RDONLY)
    for target, source in enumerate((stdin, fds[0], fds[1])):
        os.dup2(source, target)


def _limit(limits: Mapping[str, int]) -> None:  # pragma: no cover
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, value in limits.items():
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    try:
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
    except OSError:
        return  # the host's own score is higher already, which serves as well


def _drop_rights(user: users.User, *, has_users: bool) -> None:  # pragma: no cover
    """Become the user; only root keeps capabilities, and only those of `ROOT_CAPABILITIES`."""
    keep = ROOT_CAPABILITIES if user.uid == 0 or not has_users else frozenset[int]()
    kernel.limit_bounding_set(keep)
    if has_users:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    kernel.keep_capabilities(keep)
    if not has_users or user.uid != 0:
        kernel.forbid_new_privileges()


def _execute(argv: list[str], env: Mapping[str, str]) -> NoReturn:  # pragma: no cover
    """Start the program, trying the folders of PATH as a shell does."""
    denied: OSError | None = None
    for path in _candidates(argv[0], env["PATH"]):
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            denied = denied or (error if isinstance(error, OSError) else OSError(22, str(error)))
    if denied is None:
        raise _RefusedError(_NOT_FOUND, f"{argv[0]}: no such program or its interpreter is missing")
    raise _RefusedError(_CANNOT_START, f"{argv[0]}: {denied.strerror}".lower())


def _candidates(program: str, path: str) -> Iterator[str]:  # pragma: no cover
    if "/" in program or not program:
        yield program
        return
    for folder in path.split(":"):
        yield os.path.join(folder or ".", program)
