"""The services of a task beside its sandbox, on a Docker engine: one private network per trial.

Everything carries the trial's labels from its creation on, so that whatever a killed
worker leaves is found and removed by them.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchflow_client.schema.compose import MAIN_SERVICE, Mount, Service
from benchflow_client.tasks.compose import MAIN_IMAGE
from benchflow_workers.sandbox.archive import pack
from benchflow_workers.sandbox.base import SandboxSpec, Upload
from benchflow_workers.sandbox.docker_build import BuildSource
from benchflow_workers.sandbox.docker_compose_bodies import (
    NO_NAME_SERVER,
    attached,
    main_body,
    merged,
    side_body,
)
from benchflow_workers.sandbox.docker_compose_parts import (
    NETWORK,
    VOLUME,
    make_network,
    make_volume,
    remove_part,
)
from benchflow_workers.sandbox.docker_compose_plugin import Wanted, check_plugin, create_by_plugin
from benchflow_workers.sandbox.docker_compose_start import Starter, engine_errors, read_logs
from benchflow_workers.sandbox.docker_http import EngineHttp, Request
from benchflow_workers.sandbox.docker_images import DockerImages, ReadyImage
from benchflow_workers.sandbox.docker_network import ContainerNetwork, Wiring
from benchflow_workers.sandbox.docker_outside import Outside, name_servers, reaching_outside
from benchflow_workers.sandbox.docker_sandbox import DockerSandbox, place_request, remove_container
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.network_egress import EgressOptions
from benchflow_workers.sandbox.services_spec import ServicesSpec

_DEFAULT: Final = "default"
_NAME_LENGTH: Final = 63
_SEED_DIR: Final = "/bf-seed"


Maker = Callable[[Mapping[str, Any]], Awaitable[str]]
"""Makes a container from the engine's description of it and returns its id."""


class ServiceGroup:
    """All that one trial has beside its sandbox.

    Args:
        http: Client of the engine.
        images: Brings images to this host.
        spec: What the rollout asks for; `services` is set.
        labels: On everything that is made.
        egress: How listed names are reached; None = networks cannot change here.
    """

    def __init__(
        self,
        http: EngineHttp,
        images: DockerImages,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        *,
        egress: EgressOptions | None,
    ) -> None:
        if spec.services is None:
            raise TypeError("a sandbox without services has no group")
        self._http = http
        self._images = images
        self._spec = spec
        self._services: ServicesSpec = spec.services
        self._labels = labels
        self._prefix = f"{spec.name[:32]}-{secrets.token_hex(4)}"
        self._networks: dict[str, str] = {}
        self._volumes: dict[str, str] = {}
        self._starter = Starter(http, spec)
        self._egress = egress
        self._outside = self._way_outside() if spec.has_changing_network and egress is not None else None
        self.sandboxes: dict[str, DockerSandbox] = {}

    async def prepare(self) -> ReadyImage:
        """Make all but the agent's container, nothing started, and return that one's image.

        Raises:
            SandboxError: As a provider's `open`.
        """
        await check_plugin(self._images.plugins, self._spec.name, self._services.needs_plugin)
        main = await self._main_image()
        side = {name: await self._side_image(service, main) for name, service in self._services.side.items()}
        async with engine_errors(self._spec):
            await self._make_networks()
            await self._make_volumes(main)
            for name, image in side.items():
                await self._make_service(name, image)
        return main

    def main_changes(self) -> dict[str, Any]:
        """Return what differs in the agent's container from that of a task without services."""
        service = self._services.compose.main
        body = merged(
            main_body(service),
            attached(self._names(MAIN_SERVICE), name_servers=self._name_servers(MAIN_SERVICE)),
        )
        return merged(body, {"HostConfig": {"Mounts": self._mounts(service)}})

    async def start_before_main(self) -> None:
        """Start the services that come before the agent's, each when what it waits for is there."""
        await self._start(before=True)
        await self._starter.until_startable(MAIN_SERVICE)

    async def start_after_main(self, main: DockerSandbox) -> None:
        """Put the agent's container on its other networks, start the rest, wait until all are ready."""
        async with engine_errors(self._spec):
            await self._join(MAIN_SERVICE, main.id)
        self._starter.add(MAIN_SERVICE, main.id)
        await self._start(before=False)
        await self._starter.until_ready()

    def network_of(self, name: str, container_id: str) -> ContainerNetwork | None:
        """Return the network of a service's container; None = the worker cannot reach into it."""
        if self._egress is None:
            return None
        way = self._outside if self._outside is not None and name in self._outside.services else None
        wiring = Wiring(
            outside="" if way is None else way.network,
            is_outside=self._outside is None and not self._is_cut if way is None else way.is_open,
            inner=len(self._network_names(name)),
            may_end=name != MAIN_SERVICE,
        )
        return ContainerNetwork(self._http, container_id, wiring, self._egress)

    async def connect_outside(self, name: str, container_id: str) -> None:
        """Put a container that is not started yet on the network that leads outside, where it starts on it."""
        if self._outside is None or not self._outside.is_open or name not in self._outside.services:
            return
        path = f"/networks/{self._outside.network}/connect"
        await self._http.call(Request("POST", path, body={"Container": container_id}))

    def switched(self, main: DockerSandbox) -> dict[str, DockerSandbox] | None:
        """Return the services whose network changes, by name; None = none can here."""
        if self._outside is None:
            return None
        boxes = {MAIN_SERVICE: main, **self.sandboxes}
        return {name: box for name, box in boxes.items() if name in self._outside.services}

    async def place_files(self, service: str, container_id: str) -> None:
        """Place the single files of the task that a service is given."""
        uploads = [
            Upload(mount.target, source=self._path(mount))
            for mount in self._services.compose.services[service].volumes
            if mount.type == "bind" and self._path(mount).is_file()
        ]
        await self._place(container_id, uploads)

    async def logs(self) -> dict[str, bytes]:
        """Return what each side service printed, its end where it is long."""
        return {name: await read_logs(self._http, box.id) for name, box in self.sandboxes.items()}

    async def remove(self) -> None:
        """Remove everything; safe to call twice."""
        await asyncio.gather(*(box.close() for box in self.sandboxes.values()))
        outside = () if self._outside is None else (self._outside.network,)
        await asyncio.gather(
            *(remove_part(self._http, f"{NETWORK}{item}") for item in (*self._networks.values(), *outside)),
            *(remove_part(self._http, f"{VOLUME}{item}") for item in self._volumes.values()),
        )

    @property
    def _is_cut(self) -> bool:
        return self._spec.network != "public"

    def _name_servers(self, name: str) -> Sequence[str] | None:
        """Return whom the engine asks for names outside, where it must not be whom it likes."""
        if self._outside is None:
            return (NO_NAME_SERVER,) if self._is_cut else None
        return name_servers() if name in self._outside.services else (NO_NAME_SERVER,)

    def _way_outside(self) -> Outside:
        services = reaching_outside(self._services.compose)
        return Outside(self._named("out"), services, is_open=not self._is_cut)

    async def _start(self, *, before: bool) -> None:
        order = self._services.compose.order
        at = order.index(MAIN_SERVICE)
        for name in order[:at] if before else order[at + 1 :]:
            await self._starter.until_startable(name)
            async with engine_errors(self._spec):
                await self.sandboxes[name].start()

    async def _main_image(self) -> ReadyImage:
        service = self._services.compose.main
        if service.build is not None:
            return await self._built(service)
        if service.image and service.image != MAIN_IMAGE:
            return await self._images.ready(self._http, replace(self._spec, image=service.image))
        return await self._images.ready(self._http, self._spec)

    async def _side_image(self, service: Service, main: ReadyImage) -> ReadyImage:
        if service.build is not None:
            return await self._built(service)
        if service.image == MAIN_IMAGE:
            return main
        return await self._images.ready(self._http, replace(self._spec, image=service.image))

    async def _built(self, service: Service) -> ReadyImage:
        build = service.build
        if build is None:
            raise TypeError("the service is not built")
        inside = posixpath.normpath(build.context)
        known = self._services.env[MAIN_SERVICE]
        args = {name: known.get(name, "") if value is None else value for name, value in build.args.items()}
        source = BuildSource(
            folder=self._services.folder / inside,
            dockerfile=build.dockerfile,
            args=args,
            target=build.target,
            digest="" if inside.startswith("..") else f"{self._services.digest} {inside}",
            timeout_s=self._spec.build_timeout_s,
        )
        return await self._images.built(self._http, source)

    async def _make_networks(self) -> None:
        compose = self._services.compose
        used = dict.fromkeys(name for service in compose.services for name in self._network_names(service))
        for name in used:
            declared = compose.networks.get(name)
            is_internal = (
                self._is_cut or self._outside is not None or (declared is not None and declared.internal)
            )
            self._networks[name] = self._named(f"n{len(self._networks)}")
            await make_network(self._http, self._networks[name], self._labels, is_internal=is_internal)
        if self._outside is not None:
            await make_network(self._http, self._outside.network, self._labels, is_internal=False)

    def _network_names(self, name: str) -> Sequence[str]:
        service = self._services.compose.services[name]
        return () if service.network_mode == "none" else tuple(service.networks) or (_DEFAULT,)

    def _names(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the names of a service on each of its networks, by the network's name in the engine."""
        service = self._services.compose.services[name]
        own = (name, service.container_name) if service.container_name else (name,)
        found = {}
        for network in self._network_names(name):
            attachment = service.networks.get(network)
            found[self._networks[network]] = (*own, *(attachment.aliases if attachment else ()))
        return found

    async def _make_volumes(self, main: ReadyImage) -> None:
        """Make the volumes; folders of the task become volumes that all services of the trial share."""
        mounts = [item for service in self._services.compose.services.values() for item in service.volumes]
        seeds: dict[str, Path] = {}
        for mount in mounts:
            key = self._volume_key(mount)
            if key and key not in self._volumes:
                self._volumes[key] = self._named(f"v{len(self._volumes)}")
                await make_volume(self._http, self._volumes[key], self._labels)
                if mount.type == "bind":
                    seeds[key] = self._path(mount)
        if seeds:
            await self._seed(main, seeds)

    def _volume_key(self, mount: Mount) -> str:
        """Return what names a volume of this trial; empty = the mount needs none."""
        if mount.type == "volume":
            return mount.source
        is_folder = mount.type == "bind" and self._path(mount).is_dir()
        return posixpath.normpath(f"./{mount.source}") + "/" if is_folder else ""

    def _path(self, mount: Mount) -> Path:
        return self._services.folder / mount.source

    async def _seed(self, image: ReadyImage, seeds: Mapping[str, Path]) -> None:
        """Copy folders of the task into their volumes, through a container that never runs."""
        targets = {key: f"{_SEED_DIR}/{index}" for index, key in enumerate(seeds)}
        mounts = [_volume_mount(self._volumes[key], target) for key, target in targets.items()]
        body = {
            "Image": image.id,
            "Entrypoint": ["true"],
            "Labels": dict(self._labels),
            "HostConfig": {"Mounts": mounts, "NetworkMode": "none"},
        }
        seeding = await self._create("seed", body)
        try:
            await self._place(seeding, [Upload(targets[key], source=path) for key, path in seeds.items()])
        finally:
            await finish(remove_container(self._http, seeding))

    def _mounts(self, service: Service) -> list[dict[str, Any]]:
        mounts: list[dict[str, Any]] = []
        for mount in service.volumes:
            if mount.type == "tmpfs":
                mounts.append({"Type": "tmpfs", "Target": mount.target})
            elif key := self._volume_key(mount):
                has_content = mount.type == "bind"
                mounts.append(
                    _volume_mount(
                        self._volumes[key], mount.target, read_only=mount.read_only, has_content=has_content
                    )
                )
            elif mount.type == "volume":
                mounts.append({"Type": "volume", "Target": mount.target, "ReadOnly": mount.read_only})
        return mounts

    async def _make_service(self, name: str, image: ReadyImage) -> None:
        service = self._services.side[name]
        limited = service
        if not service.mem_limit and self._spec.memory_mb:
            limited = service.model_copy(update={"mem_limit": self._spec.memory_mb << 20})
        body = side_body(
            limited,
            image=image.id,
            env=self._services.env[name],
            labels={**self._labels, "bf.service": name},
            pids=self._spec.pids,
        )
        body = merged(body, attached(self._names(name), name_servers=self._name_servers(name)))
        body = merged(body, {"HostConfig": {"Mounts": self._mounts(service)}})
        container_id = await self._create(name, body)
        workdir = service.working_dir or image.workdir or "/"
        network = self.network_of(name, container_id)
        self.sandboxes[name] = DockerSandbox(self._http, container_id, workdir, network=network)
        self._starter.add(name, container_id)
        await self._join(name, container_id)
        await self.connect_outside(name, container_id)
        await self.place_files(name, container_id)

    def maker(self, name: str) -> Maker | None:
        """Return what makes the container of a service; None = the engine alone does."""
        if name not in self._services.by_plugin:
            return None
        return partial(self._create_by_plugin, name)

    async def _create_by_plugin(self, name: str, body: Mapping[str, Any]) -> str:
        wanted = Wanted(self._named(name), body, self._services.by_plugin[name], f"{self._prefix}-{name}")
        return await create_by_plugin(self._images.plugins, self._http, wanted)

    async def _create(self, name: str, body: Mapping[str, Any]) -> str:
        if (make := self.maker(name)) is not None:
            return await make(body)
        query = {"name": self._named(name)}
        try:
            made = await finish(
                self._http.call(Request("POST", "/containers/create", query=query, body=body))
            )
        except asyncio.CancelledError:
            await finish(remove_container(self._http, query["name"]))
            raise
        return str(made["Id"])

    async def _join(self, name: str, container_id: str) -> None:
        """Put a container on its networks beyond the first."""
        for network, aliases in list(self._names(name).items())[1:]:
            body = {"Container": container_id, "EndpointConfig": {"Aliases": list(aliases)}}
            await self._http.call(Request("POST", f"/networks/{network}/connect", body=body))

    async def _place(self, container_id: str, uploads: Sequence[Upload]) -> None:
        if uploads:
            with await asyncio.to_thread(pack, uploads) as archive:
                await self._http.call(
                    place_request(container_id, archive), timeout_s=self._spec.build_timeout_s
                )

    def _named(self, part: str) -> str:
        return f"{self._prefix}-{part}"[:_NAME_LENGTH].rstrip("-_.")


def _volume_mount(
    volume: str, target: str, *, read_only: bool = False, has_content: bool = True
) -> dict[str, Any]:
    """Return a mount; an empty volume takes what the image has at that place, one with content does not."""
    return {
        "Type": "volume",
        "Source": volume,
        "Target": target,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": has_content},
    }
