"""One running container as a sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import posixpath
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.archive import pack, sandbox_path, spool, unpack
from benchflow_workers.sandbox.base import Command, Completed, Upload
from benchflow_workers.sandbox.docker_cgroup import ContainerCgroup
from benchflow_workers.sandbox.docker_exec import (
    TAG_VARIABLE,
    DockerExec,
    is_for_an_ended_container,
    is_refusal,
    refusal_code,
    split_parts,
)
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.docker_network import ContainerNetwork
from benchflow_workers.sandbox.docker_process import DockerProcess
from benchflow_workers.sandbox.docker_processes import KEEPER, ContainerProcesses
from benchflow_workers.sandbox.docker_removal import remove_stubborn
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.listener import Door, Target
from benchflow_workers.sandbox.network import NOT_ENFORCED, NetworkPolicy, not_enforced
from benchflow_workers.sandbox.output import CappedOutput

logger = logging.getLogger(__name__)

_KILLED = 128 + 9
_NEWS_S = 2.0  # how long the engine may go on calling a container running that has ended
_NOT_FOUND = 127
_TRANSFER_TIMEOUT_S = 900.0
_TMPFS = ("/dev", "/proc", "/sys")  # mounts of every container; the engine's archive calls look beneath them
_NOT_THERE = 44  # exit code of the script below, used by no `tar`
_PACK = 'if [ -L "$1" ] || [ ! -e "$1" ]; then exit 44; fi; exec tar -cf - -C "$2" "./$3"'


class DockerSandbox:
    """A container; made by the provider, used by one trial."""

    def __init__(
        self, http: EngineHttp, container_id: str, workdir: str, *, network: ContainerNetwork | None = None
    ) -> None:
        self._http = http
        self._id = container_id
        self._workdir = workdir
        self._network = network
        self._processes = ContainerProcesses(http, container_id, None)
        self._removal: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def id(self) -> str:
        """The full id of the container."""
        return self._id

    @property
    def workdir(self) -> str:
        """The workspace: where commands without a workdir run."""
        return self._workdir

    async def start(self) -> None:
        """Start the container that was created."""
        await self._http.call(Request("POST", f"/containers/{self._id}/start"))
        cgroup = ContainerCgroup.find(self._id, TAG_VARIABLE)
        self._processes = ContainerProcesses(self._http, self._id, cgroup)

    async def exec(self, command: Command) -> Completed:
        """Run a command; see the protocol."""
        started = time.monotonic()
        stdout, stderr = CappedOutput(command.output_limit_bytes), CappedOutput(command.output_limit_bytes)
        stdin = split_parts(command.stdin) if command.stdin else None
        mark = self._processes.oom_mark()
        async with self._guard("run a command", "sandbox.exec_failed"):
            code = await self._run(command, stdout, stderr, stdin)
            oom_killed = code != 0 and await self._processes.has_new_oom_kill(
                mark, _KILLED if code is None else code
            )
        if code == _KILLED:
            await self._check_alive()
        out, err, totals = stdout.kept(), stderr.kept(), (stdout.total_bytes, stderr.total_bytes)
        if code is not None and is_for_an_ended_container(code, out):
            await self._wait_for_its_end()
        if code is not None and is_refusal(code, out):
            code, out, err, totals = refusal_code(out), b"", out, (0, len(out))
        return Completed(
            exit_code=_KILLED if code is None else code,
            stdout=out,
            stderr=err,
            stdout_bytes=totals[0],
            stderr_bytes=totals[1],
            timed_out=code is None,
            oom_killed=oom_killed,
            duration_s=time.monotonic() - started,
        )

    async def _run(
        self, command: Command, stdout: CappedOutput, stderr: CappedOutput, stdin: Iterable[bytes] | None
    ) -> int | None:
        """Run a command to its end and return its exit code, None when its deadline ended it."""
        execution = await DockerExec.create(self._http, self._id, command, has_stdin=stdin is not None)
        try:
            await execution.start(stdout.write, stderr.write, stdin)
            code = await execution.follow(command.timeout_s)
            if code is None:
                await self._end_late(execution)
        except EngineError as error:
            # Newer engines refuse to start with a status instead of writing to the output.
            reason = error.message.encode()
            if not is_refusal(126, reason):
                raise
            stderr.write(reason)
            return refusal_code(reason)
        finally:
            await execution.close()
        return code

    async def _end_late(self, execution: DockerExec) -> None:
        if await self._processes.kill_tagged(execution.tag) and await execution.has_ended():
            return
        await self._http.call(Request("POST", f"/containers/{self._id}/kill"))
        raise SandboxError(
            "sandbox.lost",
            f"A command in container {self._id[:12]} ran past its deadline and its processes could not be killed, "
            "so the container was.",
            hint="Where the worker does not run as root beside the daemon, the image needs sh and grep.",
        )

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[DockerProcess, None]:
        """Start a program and talk to it; see the protocol."""
        async with self._guard("start a program", "sandbox.exec_failed"):
            execution = await DockerExec.create(self._http, self._id, command, has_stdin=True)
            reader, writer = await execution.connect()
        try:
            yield DockerProcess(execution, reader, writer)
        except BaseException:
            with suppress(SandboxError):
                await finish(self._end_program(execution))
            raise
        await finish(self._end_program(execution))

    async def _end_program(self, execution: DockerExec) -> None:
        await execution.close()
        if self._is_closed or await self._processes.kill_tagged(execution.tag):
            return
        await self._check_alive()
        raise SandboxError(
            "sandbox.exec_failed",
            f"What a program started in container {self._id[:12]} could not be killed.",
            hint="Where the worker does not run as root beside the daemon, the image needs sh and grep.",
        )

    async def kill(self, user: str | int) -> None:
        """Kill every process of a user; see the protocol."""
        async with self._guard("kill processes", "sandbox.exec_failed"):
            await self._check_alive()
            is_done = await self._processes.kill_user(user)
        if not is_done:
            raise SandboxError(
                "sandbox.exec_failed",
                f"Processes of user {user!r} in container {self._id[:12]} could not be killed.",
                hint="Where the worker does not run as root beside the daemon, the image needs sh, cat and tr.",
            )

    async def set_network(self, policy: NetworkPolicy) -> str:
        """Change what every process reaches, from outside; see `NetworkSwitch`."""
        if self._network is None:
            raise not_enforced(policy, "this container keeps the network it was opened with")
        async with self._guard("change its network", NOT_ENFORCED):
            return await self._network.set(policy)

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen on the container's loopback; see `ListensInside`."""
        if self._network is None:
            raise SandboxError(
                "task.unsupported",
                f"The worker cannot listen inside container {self._id[:12]}: it does not share its engine's host.",
                hint="Run the worker as root with CAP_SYS_ADMIN and CAP_NET_ADMIN beside the engine.",
            )
        async with self._guard("open a port", "sandbox.exec_failed"):
            return await self._network.open_door(port, target)

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what its network refused since the last time; see `KeepsRefusals`."""
        return () if self._network is None else self._network.take_refusals()

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Place files; see the protocol."""
        on_disk, in_memory = split_by_mount(uploads)
        if on_disk:
            with await asyncio.to_thread(pack, on_disk) as archive:
                async with self._guard("place files", "sandbox.transfer_failed"):
                    await self._http.call(place_request(self._id, archive), timeout_s=_TRANSFER_TIMEOUT_S)
        if in_memory:
            with await asyncio.to_thread(pack, in_memory) as archive:
                await self.put_in_memory(archive)

    async def put_in_memory(self, archive: IO[bytes]) -> None:
        """Unpack an archive at `/` from inside, by the image's own `tar`."""
        errors = CappedOutput(2000)
        command = Command(("tar", "-xpf", "-", "-C", "/"), timeout_s=_TRANSFER_TIMEOUT_S, workdir="/")
        async with self._guard("place files", "sandbox.transfer_failed"):
            code = await self._run(command, errors, errors, iter(lambda: archive.read(1 << 18), b""))
        if code != 0:
            raise _tar_failed("place files in a tmpfs", code, errors)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Copy a file or folder out; see the protocol."""
        path = sandbox_path(path)
        # An archive is at most twice as long as what `limit_bytes` lets through: headers count, padding does not.
        archive = LimitedFile(2 * limit_bytes + (1 << 20))
        with archive.file:
            async with self._guard("copy files out", "sandbox.transfer_failed"):
                is_there = await (self._pack_inside if _is_in_memory(path) else self._pack)(path, archive)
            if not is_there:
                return False
            archive.file.seek(0)
            return await asyncio.to_thread(unpack, archive.file, target, limit_bytes=limit_bytes)

    async def _pack(self, path: str, archive: LimitedFile) -> bool:
        request = Request("GET", f"/containers/{self._id}/archive", query={"path": path})
        try:
            async with asyncio.timeout(_TRANSFER_TIMEOUT_S), self._http.stream(request) as answer:
                facts = json.loads(base64.b64decode(answer.headers["x-docker-container-path-stat"]))
                if facts["linkTarget"]:
                    return False
                async with aclosing(answer.chunks()) as parts:
                    async for part in parts:
                        archive.write(part)
                        if archive.is_full:  # what was read is enough for unpacking to meet the limit
                            break
        except EngineError as error:
            # A file where a folder should be is an internal error of engine 20.10.
            if error.status != 404 and "not a directory" not in error.message:
                raise
            await self._check_alive()
            return False
        return True

    async def _pack_inside(self, path: str, archive: LimitedFile) -> bool:
        errors = CappedOutput(2000)
        folder, name = posixpath.split(path)
        command = Command(("sh", "-c", _PACK, "sh", path, folder, name), timeout_s=_TRANSFER_TIMEOUT_S)
        execution = await DockerExec.create(self._http, self._id, command)
        try:
            await execution.start(archive.write, errors.write)
            code = await execution.follow(command.timeout_s)
        finally:
            await execution.close()
        if code not in {0, _NOT_THERE}:
            raise _tar_failed(f"copy {path} out of a tmpfs", code, errors)
        return code == 0

    async def close(self) -> None:
        """Remove the container; see the protocol."""
        self._is_closed = True
        if self._removal is None:
            self._removal = asyncio.create_task(self._remove())
        await finish(self._removal)

    async def _remove(self) -> None:
        await remove_container(self._http, self._id)
        if self._network is not None:
            await self._network.close()

    @asynccontextmanager
    async def _guard(self, action: str, code: str) -> AsyncGenerator[None, None]:
        """Turn the engine's refusals into the contract's errors; a dead container is `sandbox.lost`."""
        if self._is_closed:
            raise self._lost("it was closed")
        try:
            yield
        except EngineError as error:
            await self._check_alive()
            raise SandboxError(
                code,
                f"The Docker daemon refused to {action} in container {self._id[:12]}: {error.message}.",
                hint="See the daemon's log.",
            ) from error
        except TimeoutError as error:
            raise SandboxError(
                code,
                f"The Docker daemon took too long to {action} in container {self._id[:12]}.",
                hint="The host may be overloaded: lower the number of trials at once.",
            ) from error
        except SandboxError as error:
            if error.code != "sandbox.unavailable":
                raise
            raise self._lost(error.message) from error

    async def _check_alive(self) -> None:
        """Raise `sandbox.lost` unless the container runs."""
        try:
            found = await self._http.call(Request("GET", f"/containers/{self._id}/json"))
        except EngineError as error:
            raise self._lost(error.message) from error
        state = found["State"]
        if not state["Running"]:
            if state.get("ExitCode") == _NOT_FOUND:
                raise SandboxError(
                    "sandbox.start_failed",
                    f"Container {self._id[:12]} ended at once: its image has no program {KEEPER[0]!r} on PATH.",
                    hint="The program keeps the container alive; add it to the image.",
                )
            memory = ", out of memory" if state.get("OOMKilled") else ""
            raise self._lost(f"it ended with exit code {state.get('ExitCode')}{memory}")

    async def _wait_for_its_end(self) -> None:
        """Raise why the container ended, as soon as the engine knows; it may be a moment behind.

        Returns where it runs on: then the words were those of a command.
        """
        deadline = time.monotonic() + _NEWS_S
        while time.monotonic() < deadline:
            await self._check_alive()
            await asyncio.sleep(0.02)

    def _lost(self, why: str) -> SandboxError:
        return SandboxError(
            "sandbox.lost",
            f"Container {self._id[:12]} is gone: {why}.",
            hint="It may have been removed from outside, or its first process was killed.",
        )


class LimitedFile:
    """A spooled file that takes bytes up to a limit and drops the rest."""

    def __init__(self, limit_bytes: int) -> None:
        self.file = spool()
        self.is_full = False
        self._room = limit_bytes

    def write(self, data: bytes) -> None:
        """Take the next bytes; `is_full` tells when some were dropped."""
        self.is_full = self.is_full or len(data) > self._room
        self.file.write(data[: self._room])
        self._room -= min(len(data), self._room)


def place_request(container_id: str, archive: IO[bytes]) -> Request:
    """Return the request that unpacks an archive at `/`, in a container that runs or is yet to start."""
    return Request("PUT", f"/containers/{container_id}/archive", query={"path": "/"}, body=archive)


def split_by_mount(uploads: Sequence[Upload]) -> tuple[list[Upload], list[Upload]]:
    """Return the uploads the engine can place, and those that lie in a tmpfs."""
    on_disk = [upload for upload in uploads if not _is_in_memory(upload.target)]
    return on_disk, [upload for upload in uploads if _is_in_memory(upload.target)]


def _is_in_memory(path: str) -> bool:
    path = sandbox_path(path)
    return any(path == mount or path.startswith(f"{mount}/") for mount in _TMPFS)


def _tar_failed(action: str, code: int | None, errors: CappedOutput) -> SandboxError:
    reason = errors.kept().decode(errors="replace").strip() or f"exit code {code}"
    return SandboxError(
        "sandbox.transfer_failed",
        f"`tar` inside the sandbox could not {action}: {reason}.",
        hint="The image needs sh and tar to move files to or from a tmpfs; other paths need neither.",
    )


async def remove_container(http: EngineHttp, container_id: str) -> None:
    """Remove a container with its volumes, however often the engine must be asked.

    Returns after 30 seconds at the latest; what is left then is logged, and the
    reaper finds it by its labels.
    """
    query = {"force": "1", "v": "1"}
    if reason := await remove_stubborn(http, f"/containers/{container_id}", query=query):
        logger.error(
            "container %s could not be removed: %s", container_id, reason,
            extra={"action": "container_left", "container": container_id},
        )  # fmt: skip
