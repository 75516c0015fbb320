"""Images of sandboxes: found, pulled, or built once per host and digest.

Only images that carry the build label were made here, and only those are ever removed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.docker_build import Build, BuildSource, Progress, raise_failed, raise_missing
from benchflow_workers.sandbox.docker_buildx import BUILDX, build_by_plugin
from benchflow_workers.sandbox.docker_dockerfile import (
    CA_BUNDLE,
    CA_FILE,
    base_images,
    buildkit_features,
    trusting,
)
from benchflow_workers.sandbox.docker_engine import (
    ContextFile,
    build_headers,
    pack_context,
    pull_headers,
    split_image,
)
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.docker_plugins import DockerPlugins

PullPolicy = Literal["missing", "always", "never"]
"""When an image is asked of its registry: when this host lacks it, before every use, not at all."""

MANAGED_LABEL = "bf.managed"
"""Label of everything made here."""

BUILD_LABEL = "bf.build"
"""Label of an image built here; its value is the key of the build."""


@dataclass(frozen=True, slots=True)
class ReadyImage:
    """An image on this host: its id, and its own workspace, empty when it has none."""

    id: str
    workdir: str


class DockerImages:
    """Brings images to this host; safe to share between threads.

    Args:
        state_dir: Folder for locks between the processes of this host.
        pull: When registries are asked.
        extra_ca: PEM certificate that every image trusts on top of its own; None = none.
        plugins: Builds what only BuildKit builds, where its plugin is installed.
    """

    def __init__(
        self, *, state_dir: Path, pull: PullPolicy, extra_ca: Path | None, plugins: DockerPlugins
    ) -> None:
        self._locks = state_dir / "builds"
        self._pull = pull
        self._extra_ca = extra_ca
        self.plugins = plugins
        self._ready: dict[str, ReadyImage] = {}

    async def ready(self, http: EngineHttp, spec: SandboxSpec) -> ReadyImage:
        """Return the image of a sandbox, pulled or built when it is not there.

        Raises:
            SandboxError: `sandbox.image_missing`, `sandbox.build_failed`, `sandbox.unavailable`.
        """
        name = spec.image or ""
        if name:
            image = await self._prebuilt(http, name, spec.build_timeout_s)
            if self._extra_ca is None:
                return image
            build = self._build(f"image {image.id}", None, f"FROM {name}\n", spec.build_timeout_s)
            return await self._built(http, build)
        return await self._built(http, self._context_build(spec))

    async def built(self, http: EngineHttp, source: BuildSource) -> ReadyImage:
        """Return the image of a service, built when it is not there.

        Raises:
            SandboxError: As `ready`.
        """
        text = _dockerfile_text(source.folder / source.dockerfile)
        digest = source.digest or await asyncio.to_thread(_digest_of, source.folder)
        choices = json.dumps([source.dockerfile, sorted(source.args.items()), source.target])
        build = self._build(f"{digest} {choices}", source.folder, text, source.timeout_s)
        return await self._built(http, replace(build, args=source.args, target=source.target))

    def forget(self, image: ReadyImage) -> None:
        """Look for an image anew next time: it was removed from this host."""
        self._ready = {key: kept for key, kept in self._ready.items() if kept != image}

    async def remove(self, http: EngineHttp, name: str) -> bool:
        """Remove an image that was built here; False when it is not there or not ours."""
        found = await _inspect(http, name)
        if found is None or BUILD_LABEL not in _labels(found):
            return False
        self.forget(_ready_image(found))
        await http.call(Request("DELETE", f"/images/{name}"))
        return True

    async def _prebuilt(self, http: EngineHttp, name: str, timeout_s: float) -> ReadyImage:
        if self._pull != "always":
            if name in self._ready:
                return self._ready[name]
            found = await _inspect(http, name)
        else:
            found = None
        if found is None:
            if self._pull == "never":
                raise_missing(name, "and the pull policy is 'never'")
            await _pull(http, name, timeout_s)
            found = await _inspect(http, name)
        if found is None:
            raise_missing(name, "even after a pull")
        self._ready[name] = _ready_image(found)
        return self._ready[name]

    def _context_build(self, spec: SandboxSpec) -> Build:
        folder = spec.build_context
        if folder is None:
            raise SandboxError(
                "sandbox.build_failed",
                f"Sandbox {spec.name!r} has neither an image nor a build context.",
                hint="Set environment.docker_image of the task or add environment/Dockerfile.",
            )
        text = _dockerfile_text(folder / "Dockerfile")
        return self._build(spec.build_digest or _digest_of(folder), folder, text, spec.build_timeout_s)

    def _build(self, source: str, folder: Path | None, text: str, timeout_s: float) -> Build:
        extra: tuple[ContextFile, ...] = ()
        if self._extra_ca is not None:
            certificate = self._extra_ca.read_text(encoding="ascii", errors="replace")
            text = trusting(text)
            extra = (
                ContextFile(CA_FILE, certificate),
                ContextFile(CA_BUNDLE, _system_certificates() + certificate),
            )
        key = source.removeprefix("sha256:")
        if extra or not re.fullmatch(r"[0-9a-f]{12,}", key):
            key = hashlib.sha256("\0".join([source, *(item.content for item in extra)]).encode()).hexdigest()
        place = str(folder) if folder is not None else text.splitlines()[0]
        return Build(key, folder, text, (*extra, ContextFile("Dockerfile", text)), place, timeout_s)

    async def _built(self, http: EngineHttp, build: Build) -> ReadyImage:
        if build.key in self._ready:
            return self._ready[build.key]
        try:
            async with asyncio.timeout(build.timeout_s):
                image = await self._find_or_build(http, build)
        except TimeoutError as error:
            raise SandboxError(
                "sandbox.build_failed",
                f"The image of {build.place} was not built within {build.timeout_s:.0f} s.",
                hint="Raise environment.build_timeout_sec of the task, or make the image smaller.",
            ) from error
        self._ready[build.key] = image
        return image

    async def _find_or_build(self, http: EngineHttp, build: Build) -> ReadyImage:
        if (found := await _inspect_build(http, build)) is not None:
            return found
        async with _exclusive(self._locks / f"{build.key[:12]}.lock"):
            if (found := await _inspect_build(http, build)) is not None:
                return found
            if self._pull == "never":
                for name in base_images(build.dockerfile):
                    if await _inspect(http, name) is None:
                        raise_missing(name, "and the pull policy is 'never'")
            await self._run(http, build)
            found = await _inspect_build(http, build)
        if found is None:
            raise SandboxError(
                "sandbox.build_failed",
                f"The engine built {build.place} but has no image {build.tag}.",
                hint="Something else on the host may remove images: run the job again.",
            )
        return found

    async def _run(self, http: EngineHttp, build: Build) -> None:
        progress = Progress()

        def take(event: dict[str, Any]) -> None:
            progress.note(str(event.get("stream", "")))
            if "error" in event:
                raise_failed(build, progress, str(event["error"]))

        context = await asyncio.to_thread(pack_context, build.folder, build.extra)
        pull = self._pull == "always"
        try:
            if buildkit_features(build.dockerfile) and await self.plugins.has(BUILDX):
                labels = _build_labels(build)
                await build_by_plugin(
                    self.plugins, str(http.endpoint), build, context, labels=labels, pull=pull
                )
                return
            request = _build_request(build, context, pull=pull)
            await _each_event(http, request, take)
        except EngineError as error:
            raise_failed(build, progress, error.message)
        finally:
            context.close()


def _dockerfile_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SandboxError(
            "sandbox.build_failed",
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Add environment/Dockerfile to the task or set its docker_image.",
        ) from error


def _build_request(build: Build, context: IO[bytes], *, pull: bool) -> Request:
    query = {
        "t": build.tag,
        "rm": "1",
        "forcerm": "1",  # or the container of a failed step would stay
        "labels": json.dumps(_build_labels(build)),
        **({"pull": "1"} if pull else {}),
        **({"buildargs": json.dumps(dict(build.args))} if build.args else {}),
        **({"target": build.target} if build.target else {}),
    }
    return Request("POST", "/build", query=query, body=context, headers=build_headers())


def _build_labels(build: Build) -> dict[str, str]:
    return {MANAGED_LABEL: "1", BUILD_LABEL: build.key}


async def _pull(http: EngineHttp, name: str, timeout_s: float) -> None:
    repository, tag = split_image(name)
    query = {"fromImage": repository, "tag": tag}

    def take(event: dict[str, Any]) -> None:
        if "error" in event:
            raise_missing(name, f"and the pull failed: {event['error']}")

    request = Request("POST", "/images/create", query=query, headers=pull_headers(name))
    try:
        async with asyncio.timeout(timeout_s):
            await _each_event(http, request, take)
    except EngineError as error:
        raise_missing(name, f"and the pull failed: {error.message}")
    except TimeoutError:
        raise_missing(name, f"and the pull took more than {timeout_s:.0f} s")


async def _each_event(http: EngineHttp, request: Request, take: Callable[[dict[str, Any]], None]) -> None:
    """Give every JSON line of a long answer to `take`; an exception makes the engine stop the work."""
    async with http.stream(request) as answer:
        rest = b""
        async with aclosing(answer.chunks()) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.strip():
                        take(json.loads(line))
        if rest.strip():
            take(json.loads(rest))


async def _inspect(http: EngineHttp, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await http.call(Request("GET", f"/images/{name}/json"))
    except EngineError as error:
        if error.status in {400, 404}:  # 400: no valid image name, so no image either
            return None
        raise SandboxError(
            "sandbox.unavailable",
            f"The Docker daemon at {http.endpoint} cannot look up image {name!r}: {error.message}.",
            hint="See the daemon's log.",
        ) from error
    return found


async def _inspect_build(http: EngineHttp, build: Build) -> ReadyImage | None:
    found = await _inspect(http, build.tag)
    return _ready_image(found) if found is not None and _labels(found).get(BUILD_LABEL) == build.key else None


def _labels(found: dict[str, Any]) -> dict[str, str]:
    return found["Config"].get("Labels") or {}


def _ready_image(found: dict[str, Any]) -> ReadyImage:
    return ReadyImage(found["Id"], found["Config"].get("WorkingDir") or "")


@asynccontextmanager
async def _exclusive(path: Path) -> AsyncGenerator[None, None]:
    """Hold a lock file against other processes and other threads of this one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        delay_s = 0.01
        while not _try_lock(handle):
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 0.5)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest_of(folder: Path) -> str:
    with pack_context(folder, ()) as context:
        return hashlib.file_digest(context, "sha256").hexdigest()  # type: ignore[arg-type]


def _system_certificates() -> str:
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_text(encoding="utf-8", errors="replace") + "\n" if file else ""
