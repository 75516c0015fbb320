"""Sandboxes as Docker containers, over the Engine API.

A container is created, gets its uploads, and is started: three calls before the
first command, and one to remove it. No bind mounts, no silent pulls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_workers.sandbox import network_links
from benchflow_workers.sandbox.archive import pack
from benchflow_workers.sandbox.base import Capabilities, SandboxRef, SandboxSpec
from benchflow_workers.sandbox.docker_compose import ServiceGroup
from benchflow_workers.sandbox.docker_compose_bodies import merged
from benchflow_workers.sandbox.docker_compose_parts import is_part, list_parts, remove_part
from benchflow_workers.sandbox.docker_compose_sandbox import ComposedSandbox
from benchflow_workers.sandbox.docker_engine import connect, find_endpoint
from benchflow_workers.sandbox.docker_gate import StartGate
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.docker_images import MANAGED_LABEL, DockerImages, PullPolicy, ReadyImage
from benchflow_workers.sandbox.docker_mounts import (
    MountsElsewhereError,
    check_mounts,
    mount_bodies,
    with_copies,
)
from benchflow_workers.sandbox.docker_network import ContainerNetwork, Wiring
from benchflow_workers.sandbox.docker_plugins import DOCKER_PROGRAM, DockerPlugins
from benchflow_workers.sandbox.docker_processes import KEEPER
from benchflow_workers.sandbox.docker_sandbox import (
    DockerSandbox,
    place_request,
    remove_container,
    split_by_mount,
)
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.network import LISTS
from benchflow_workers.sandbox.network_egress import EgressOptions

__all__ = ["DockerOptions", "DockerSandboxes"]

KIND = "docker"
"""Name used by `--sandbox` and by queues."""

_NETWORKS: Mapping[str, str] = {"public": "bridge", "no-network": "none"}
_CAPABILITIES = Capabilities(
    networks=frozenset(_NETWORKS),
    has_users=True,
    has_compose=True,
    has_gpus=False,
    isolates=("files", "processes", "users", "network", "memory", "cpus"),
    does_not_isolate=("the kernel", "disk space"),
)
_KIND_LABEL = "bf.kind"
_NAME_LENGTH = 54  # with the suffix that keeps attempts apart: 63, as long as a host name may be
_CPU_PERIOD_US = 100_000
_STARTS_PER_CORE = (
    2  # dockerd is saturated by then: 3.7 life cycles a second on 2 cores, whatever comes on top
)


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """How the provider reaches Docker.

    Attributes:
        state_dir: Folder for locks between the worker processes of this host.
        base_url: `unix://` or `tcp://` address of the engine; None = DOCKER_HOST, else the default socket.
        extra_ca: PEM certificate that every image trusts on top of its own; None = none.
        pull: When registries are asked for ready images.
        start_slots: Containers that start at the same time; None = two per core.
        egress: How listed names are reached.
        gpus: Devices containers may be given.
        gpu_types: Names of what these are.
        program: The docker program whose plugins are used where they are installed.
    """

    state_dir: Path
    base_url: str | None = None
    extra_ca: Path | None = None
    pull: PullPolicy = "missing"
    start_slots: int | None = None
    egress: EgressOptions = field(default_factory=EgressOptions)
    gpus: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    program: str = DOCKER_PROGRAM


class DockerSandboxes:
    """Makes containers; safe to share between threads with an event loop each.

    Nothing is asked of Docker before the first call.
    """

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._plugins = DockerPlugins(options.program)
        self._images = DockerImages(
            state_dir=options.state_dir,
            pull=options.pull,
            extra_ca=options.extra_ca,
            plugins=self._plugins,
        )
        self._gate = StartGate(options.start_slots or _STARTS_PER_CORE * (os.cpu_count() or 1))
        self._http: EngineHttp | None = None

    @property
    def kind(self) -> str:
        """The name `docker`."""
        return KIND

    @property
    def capabilities(self) -> Capabilities:
        """What containers can do; lists of names need a worker as root beside the engine."""
        return replace(
            _CAPABILITIES,
            networks=_CAPABILITIES.networks | (LISTS if self._can_switch else frozenset()),
            has_gpus=bool(self._options.gpus),
            gpu_types=frozenset(self._options.gpu_types),
        )

    @cached_property
    def _can_switch(self) -> bool:
        """Whether the network of a container can be changed while it runs, found by trying once."""
        try:
            is_beside = bool(find_endpoint(self._options.base_url).unix_path)
        except SandboxError:
            return False
        return is_beside and not network_links.problem()

    async def check(self) -> None:
        """Ask the engine for its containers; see the protocol."""
        await self.list({})

    async def place(self) -> str:
        """Return the engine's own id; see the protocol."""
        info = await (await self._connect()).call(Request("GET", "/info"))
        return str(info["ID"])

    async def open(self, spec: SandboxSpec) -> DockerSandbox | ComposedSandbox:
        """Find or build the image and start a container; see the protocol."""
        if spec.network not in _NETWORKS:
            raise SandboxError(
                "task.unsupported",
                f"Sandbox 'docker' cannot be opened with network {spec.network!r}.",
                hint=f"It opens with {' or '.join(sorted(_NETWORKS))}; a list of names is set on a running sandbox.",
            )
        http = await self._connect()
        spec = self._without_other_gpus(spec)
        if http.endpoint.unix_path:
            with contextlib.suppress(MountsElsewhereError):
                return await self._open(http, spec)
        return await self._open(http, with_copies(spec))

    async def _open(self, http: EngineHttp, spec: SandboxSpec) -> DockerSandbox | ComposedSandbox:
        on_disk, in_memory = split_by_mount(spec.uploads)
        with contextlib.ExitStack() as archives:
            placed = [
                archives.enter_context(await asyncio.to_thread(pack, part)) if part else None
                for part in (on_disk, in_memory)
            ]
            if spec.services is not None:
                return await self._start_with_services(http, spec, placed)
            image = await self._images.ready(http, spec)
            try:
                return await self._start(http, spec, image, placed)
            except _ImageGoneError:
                self._images.forget(image)
            return await self._start(http, spec, await self._images.ready(http, spec), placed)

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the containers that carry all the labels; see the protocol."""
        http = await self._connect()
        # Without the kind, containers that people start from our images would be found too: they inherit labels.
        wanted = {**labels, MANAGED_LABEL: "1", _KIND_LABEL: KIND}
        filters = json.dumps({"label": [f"{name}={value}" for name, value in wanted.items()]})
        try:
            found = await http.call(
                Request("GET", "/containers/json", query={"all": "1", "filters": filters})
            )
        except EngineError as error:
            raise SandboxError(
                "sandbox.unavailable",
                f"The Docker daemon at {http.endpoint} cannot list containers: {error.message}.",
                hint="See the daemon's log.",
            ) from error
        # Containers first: a network goes only after what is on it.
        containers = [SandboxRef(KIND, item["Id"], item["Labels"]) for item in found]
        return [*containers, *await list_parts(http, KIND, wanted)]

    async def remove(self, ref: SandboxRef) -> None:
        """Remove a container, or a network or volume of its services; see the protocol."""
        http = await self._connect()
        removal = remove_part(http, ref.id) if is_part(ref.id) else remove_container(http, ref.id)
        await finish(removal)

    async def remove_image(self, name: str) -> bool:
        """Remove an image that was built for a task.

        Returns:
            False when there is none of that name, or it was not built here.
        """
        return await self._images.remove(await self._connect(), name)

    async def close(self) -> None:
        """Do nothing: no connection is kept."""

    async def _connect(self) -> EngineHttp:
        if self._http is None:
            self._http = await connect(find_endpoint(self._options.base_url))
        return self._http

    def _without_other_gpus(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a spec whose container sees none of the host's GPUs, unless it is given some.

        Where `nvidia` is the engine's default runtime, a variable that all CUDA images set shows them all.
        """
        if spec.devices or not self._options.gpus:
            return spec
        return replace(spec, env={**spec.env, "NVIDIA_VISIBLE_DEVICES": "void"})

    async def _start_with_services(
        self, http: EngineHttp, spec: SandboxSpec, archives: Sequence[IO[bytes] | None]
    ) -> ComposedSandbox:
        group = ServiceGroup(http, self._images, spec, _labels(spec), egress=self._egress)
        try:
            image = await group.prepare()
            await group.start_before_main()
            main = await self._start(http, spec, image, archives, group=group)
        except BaseException:
            await finish(group.remove())
            raise
        sandbox = ComposedSandbox(main, group)
        try:
            await group.start_after_main(main)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _start(
        self,
        http: EngineHttp,
        spec: SandboxSpec,
        image: ReadyImage,
        archives: Sequence[IO[bytes] | None],
        *,
        group: ServiceGroup | None = None,
    ) -> DockerSandbox:
        workdir = spec.workdir or (image.workdir if image.workdir not in {"", "/"} else "/root")
        on_disk, in_memory = archives
        async with self._gate:
            container_id = await _create(http, spec, image, workdir, group=group)
            network = self._network_of(http, spec, container_id, group)
            sandbox = DockerSandbox(http, container_id, workdir, network=network)
            try:
                async with asyncio.timeout(spec.start_timeout_s):
                    if on_disk is not None:
                        await http.call(place_request(sandbox.id, on_disk), timeout_s=spec.start_timeout_s)
                    if group is not None:
                        await group.place_files(MAIN_SERVICE, container_id)
                        await group.connect_outside(MAIN_SERVICE, container_id)
                    await sandbox.start()
                    if in_memory is not None:
                        await sandbox.put_in_memory(in_memory)
            except BaseException as error:
                await finish(sandbox.close())
                if isinstance(error, EngineError):
                    raise _not_started(spec, error.message) from error
                if isinstance(error, TimeoutError):
                    raise _not_started(spec, f"it took more than {spec.start_timeout_s:.0f} s") from error
                raise
        return sandbox

    @property
    def _egress(self) -> EgressOptions | None:
        """How listed names are reached; None = networks cannot change here."""
        return self._options.egress if self._can_switch else None

    def _network_of(
        self, http: EngineHttp, spec: SandboxSpec, container_id: str, group: ServiceGroup | None
    ) -> ContainerNetwork | None:
        if group is not None:
            return group.network_of(MAIN_SERVICE, container_id)
        wiring = Wiring(is_outside=spec.network == "public")
        return None if self._egress is None else ContainerNetwork(http, container_id, wiring, self._egress)


class _ImageGoneError(Exception):
    """The image was removed from the host after it was found."""


async def _create(
    http: EngineHttp,
    spec: SandboxSpec,
    image: ReadyImage,
    workdir: str,
    *,
    group: ServiceGroup | None,
) -> str:
    """Create a container and return its id; a cancelled creation is awaited and undone."""
    name = f"{spec.name[:_NAME_LENGTH]}-{secrets.token_hex(4)}"
    body = merged(_container(spec, image, workdir), {} if group is None else group.main_changes())
    if group is not None and (make := group.maker(MAIN_SERVICE)) is not None:
        return await make(body)
    try:
        made = await finish(http.call(Request("POST", "/containers/create", query={"name": name}, body=body)))
    except asyncio.CancelledError:
        await finish(remove_container(http, name))
        raise
    except EngineError as error:
        if error.status == 404:
            raise _ImageGoneError from error
        check_mounts(spec, error)
        raise _not_started(spec, error.message) from error
    return str(made["Id"])


def _container(spec: SandboxSpec, image: ReadyImage, workdir: str) -> dict[str, Any]:
    """Return the engine's description of the container."""
    memory_bytes = (spec.memory_mb or 0) << 20
    return {
        "Image": image.id,
        **_program(spec),
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "WorkingDir": workdir,  # made by the engine when the image lacks it
        "Labels": _labels(spec),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Init": True,  # reaps orphans, passes signals on
            "NetworkMode": _NETWORKS[spec.network],
            # As a quota: by NanoCpus the engine refuses more cores than the host has.
            "CpuPeriod": _CPU_PERIOD_US if spec.cpus else 0,
            "CpuQuota": max(int((spec.cpus or 0) * _CPU_PERIOD_US), 1000) if spec.cpus else 0,
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,  # equal = no swap
            "PidsLimit": spec.pids,
            "Ulimits": _file_limits(spec.storage_mb),
            "LogConfig": {"Type": "none", "Config": {}},
            "Mounts": mount_bodies(spec),
            **_gpus(spec.devices),
        },
    }


def _gpus(devices: Sequence[str]) -> dict[str, Any]:
    """Return the request for these GPUs and no others; a container without one sees none."""
    if not devices:
        return {}
    request = {"Driver": "nvidia", "DeviceIDs": list(devices), "Capabilities": [["gpu"]]}
    return {"DeviceRequests": [request]}


def _program(spec: SandboxSpec) -> dict[str, Any]:
    if spec.keeps_entrypoint:
        return {"Cmd": list(KEEPER)}
    return {"Entrypoint": list(KEEPER), "Cmd": [], "User": "0"}


def _labels(spec: SandboxSpec) -> dict[str, str]:
    return {**spec.labels, MANAGED_LABEL: "1", _KIND_LABEL: KIND}


def _file_limits(storage_mb: int | None) -> list[dict[str, Any]]:
    """Return the limit of a single file: a quota of all files needs a storage driver that few hosts have."""
    if storage_mb is None:
        return []
    size_bytes = storage_mb << 20
    return [{"Name": "fsize", "Soft": size_bytes, "Hard": size_bytes}]


def _not_started(spec: SandboxSpec, why: str) -> SandboxError:
    hint = "Check the limits the task asks for, and that its image has `sleep` on PATH."
    if spec.devices:
        hint += (
            f" It was to have GPU {', '.join(spec.devices)} (BENCHFLOW_GPUS): the engine needs the NVIDIA Container "
            "Toolkit, and `nvidia-smi -L` shows what there is."
        )
    message = f"Container of sandbox {spec.name!r} did not start: {why}."
    return SandboxError("sandbox.start_failed", message, hint=hint)
