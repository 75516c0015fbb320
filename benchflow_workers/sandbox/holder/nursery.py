"""The process that forks sandboxes: started once by a worker, ends with it.

For each sandbox it forks a keeper, which makes the namespaces, forks the first
process into them, and waits for its end. The first process serves commands until
the worker's end of its control socket is closed, by intent or by the worker's death;
the kernel then kills everything in the sandbox with it.

Lines marked "no cover" run in processes no coverage tool can follow into; the contract tests run them.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_workers.sandbox.holder import commands, files, kernel, killing, root, users, wire
from benchflow_workers.sandbox.holder.server import Server

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # linux/sockios.h, linux/if.h
_BACKLOG = 128


def main(control_fd: int) -> None:  # pragma: no cover
    """Serve sandboxes over an inherited control socket."""
    kernel.set_name("bf-nursery")
    os.umask(0o022)
    gc.disable()  # a collection would copy the pages that all forks share
    control = socket.socket(fileno=control_fd)
    control.send(b"ready")
    Server(control, {b"s": keep}).serve()


def keep(channel: socket.socket) -> None:  # pragma: no cover
    """Make one sandbox and wait for its end; answers its pid, then whether it is ready."""
    request, fds = wire.receive(channel)
    control = socket.socket(fileno=fds[0])
    kernel.set_name("bf-keeper")
    os.setsid()
    _leave_namespaces(request)
    ready, ready_writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(ready_writer)
        _live(channel, control, request, ready)
        os._exit(0)
    os.close(ready)
    control.close()
    pidfd = os.pidfd_open(pid)
    wire.send(channel, {"pid": pid}, [pidfd])
    os.close(pidfd)
    try:
        for path in request["cgroup_procs"]:
            Path(path).write_text(str(pid), encoding="ascii")
        os.write(ready_writer, b"1")
    except OSError as error:
        wire.send(channel, {"error": f"cgroup: {error}"})
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for path in request["cgroup_procs"]:
        _remove_cgroup(os.path.dirname(path))


def _leave_namespaces(request: Mapping[str, Any]) -> None:  # pragma: no cover
    flags = kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS
    if request["cuts_network"]:
        flags |= kernel.NEWNET
    if request["has_users"]:
        kernel.unshare(flags)
        return
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(flags | kernel.NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1", encoding="ascii")


def _live(
    channel: socket.socket, control: socket.socket, request: Mapping[str, Any], ready: int
) -> None:  # pragma: no cover
    """Be the first process of the sandbox."""
    try:
        kernel.set_name("bf-init")
        if request["cuts_network"]:
            _raise_loopback()
        kernel.unshare(
            kernel.NEWNS
        )  # here, not in the keeper: pivot_root moves all processes of the namespace
        root.build(request["root"])
        if os.read(ready, 1) != b"1":
            return
        os.close(ready)
        wire.send(channel, {"ready": True})
    except OSError as error:
        wire.send(channel, {"error": str(error), "errno": error.errno})
        return
    channel.close()
    operations = {b"e": commands.run, b"p": files.put, b"g": files.get, b"l": listen}
    Server(control, operations, {b"k": kill}).serve()


def _raise_loopback() -> None:  # pragma: no cover
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def kill(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    """Kill the processes of a command (`tag`) or of a user (`user`)."""
    if "tag" in request:
        matches = killing.by_tag(request["tag"])
    else:
        user = users.find(request["user"], Path("/etc"))
        if user is None:
            return {"left": []}
        matches = killing.by_uid(user.uid if request["has_users"] else 0)

    def exempt() -> frozenset[int]:
        server.reap()
        return server.own_pids

    return {"left": killing.kill_all(matches, exempt=exempt, deadline_s=request["deadline_s"])}


def listen(channel: socket.socket) -> None:  # pragma: no cover
    """Answer a socket that listens on the sandbox's loopback."""
    request, _ = wire.receive(channel)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", request["port"]))
        listener.listen(_BACKLOG)
        wire.send(channel, {"done": True}, [listener.fileno()])


def _remove_cgroup(folder: str) -> None:  # pragma: no cover
    try:
        os.rmdir(folder)
    except OSError:
        return  # the worker or the reaper was faster, or will be asked again
