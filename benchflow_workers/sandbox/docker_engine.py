"""What is taken from the `docker` package: where the engine is, credentials, the context of a build."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import docker.auth
import docker.utils
import docker.utils.build

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.archive import spool
from benchflow_workers.sandbox.docker_http import Endpoint, EngineError, EngineHttp, Request

_NEWEST_API = (1, 47)  # the newest version whose answers were read when this was written
_FIXED_TIME = 1577836800  # 2020-01-01; times before 1980 break zip files made in the image
_DEFAULT_URL = "unix:///var/run/docker.sock"


def find_endpoint(base_url: str | None) -> Endpoint:
    """Return where the engine listens; None = DOCKER_HOST, else the default socket.

    Raises:
        SandboxError: `sandbox.unavailable` for a form of URL that is not served.
    """
    settings = docker.utils.kwargs_from_env()
    url = base_url or settings.get("base_url") or _DEFAULT_URL
    parts = urlsplit(url)
    uses_tls = parts.scheme == "https" or (base_url is None and settings.get("tls"))
    if parts.scheme in {"unix", "http+unix"} and parts.path:
        return Endpoint(unix_path=parts.path)
    if parts.scheme in {"tcp", "http"} and parts.hostname and not uses_tls:
        return Endpoint(host=parts.hostname, port=parts.port or 2375)
    raise SandboxError(
        "sandbox.unavailable",
        f"Docker at {url!r} cannot be used: only unix:// and tcp:// without TLS are served.",
        hint="Tunnel it to a local socket: ssh -nNT -L /run/bf-docker.sock:/var/run/docker.sock HOST, "
        "then DOCKER_HOST=unix:///run/bf-docker.sock; or run a worker beside the daemon.",
    )


async def connect(endpoint: Endpoint) -> EngineHttp:
    """Ask the engine for its version and return a client that speaks it.

    Raises:
        SandboxError: `sandbox.unavailable` when it does not answer as a Docker engine.
    """
    try:
        version = await EngineHttp(endpoint, "").call(Request("GET", "/version"), timeout_s=20)
        major, minor = str(version["ApiVersion"]).split(".")
        spoken = min((int(major), int(minor)), _NEWEST_API)
    except (EngineError, ValueError, TypeError, KeyError) as error:
        raise SandboxError(
            "sandbox.unavailable",
            f"What listens at {endpoint} is no Docker engine: {error!r}.",
            hint="Check DOCKER_HOST.",
        ) from error
    return EngineHttp(endpoint, f"{spoken[0]}.{spoken[1]}")


def pull_headers(image: str) -> dict[str, str]:
    """Return the credentials for one image's registry, as `docker login` left them."""
    registry, _ = docker.auth.resolve_repository_name(image)
    found = docker.auth.load_config().resolve_authconfig(registry)
    return {"X-Registry-Auth": _encoded(found)} if found else {}


def build_headers() -> dict[str, str]:
    """Return the credentials for all registries, as `docker login` left them."""
    found = docker.auth.load_config().get_all_credentials()
    return {"X-Registry-Config": _encoded(found)} if found else {}


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def split_image(image: str) -> tuple[str, str]:
    """Return the repository and the tag or digest of an image name, `latest` where it has none."""
    repository, tag = docker.utils.parse_repository_tag(image)
    return repository, tag or "latest"


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file put into a build context on top of what its folder holds."""

    name: str
    content: str


def pack_context(folder: Path | None, extra: Sequence[ContextFile]) -> IO[bytes]:
    """Return a build context as a tar without what .dockerignore names; None = an empty folder.

    The caller closes it.

    Guarantees: the same files give the same bytes on every host: order, owners
    and times are fixed.

    Raises:
        SandboxError: `sandbox.build_failed` when a file cannot be read.
    """
    file = spool()
    replaced = {item.name for item in extra}
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name in _context_names(folder):
                if folder is not None and name not in replaced:
                    _add(archive, folder / name, name)
            for item in extra:
                content = item.content.encode()
                entry = tarfile.TarInfo(item.name)
                entry.size, entry.mtime = len(content), _FIXED_TIME
                archive.addfile(entry, io.BytesIO(content))
            end = archive.offset
    except OSError as error:
        file.close()
        raise SandboxError(
            "sandbox.build_failed",
            f"The build context {folder} cannot be read: {error.strerror or error} ({error.filename}).",
            hint="Check the files and their permissions.",
        ) from error
    # The engine stops reading at the end mark. With padding behind it the request would never be
    # read to its end, and then engine 20.10 does not notice that the client gave up the build.
    file.truncate(end + 2 * tarfile.BLOCKSIZE)
    file.seek(0)
    return file


def _context_names(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    return sorted(docker.utils.build.exclude_paths(str(folder), _ignore_patterns(folder)))


def _ignore_patterns(folder: Path) -> list[str]:
    try:
        lines = (folder / ".dockerignore").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = archive.gettarinfo(path, arcname=name)
    if entry is None:  # a socket
        return
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = _FIXED_TIME
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    else:
        archive.addfile(entry)
