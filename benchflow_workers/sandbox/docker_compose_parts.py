"""Networks and volumes of one trial on a Docker engine: made with the trial's labels, found and removed by them."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import SandboxRef
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.docker_removal import remove_stubborn
from benchflow_workers.sandbox.finishing import finish

logger = logging.getLogger(__name__)

NETWORK: Final = "network:"
"""Before the id of a network, where sandboxes are listed."""

VOLUME: Final = "volume:"
"""Before the name of a volume, where sandboxes are listed."""

POOL_WAITS_S: Final = (2.0, 5.0, 10.0, 20.0)
"""Waits for a free network: those of other trials go away with them. Each is up to half shorter or longer,
so that trials which met the limit together do not ask together again."""

_POOL_PHRASES: Final = (
    "non-overlapping ipv4 address pool",
    "address pools have been fully subnetted",
    "networks have overlapping ipv4",  # 20.10 gives a range away again before the one who had it is gone
)
_NO_ADDRESS_OF_HOST: Final = {"com.docker.network.bridge.inhibit_ipv4": "true"}


async def make_network(
    http: EngineHttp,
    name: str,
    labels: Mapping[str, str],
    *,
    is_internal: bool,
    waits_s: Sequence[float] = POOL_WAITS_S,
) -> None:
    """Make a bridge; a cancelled creation is awaited, so that its name can be removed.

    An internal one leads nowhere: the worker's host has no address on it either, or every
    service of the host would be in reach.

    Raises:
        SandboxError: `sandbox.network_exhausted`: the engine has no free range of addresses left.
        EngineError: It refused for another reason.
    """
    body = {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": is_internal,
        "Labels": dict(labels),
        "Options": _NO_ADDRESS_OF_HOST if is_internal else {},
    }
    for wait_s in (*waits_s, None):
        try:
            await finish(http.call(Request("POST", "/networks/create", body=body)))
        except EngineError as error:
            if not is_pool_exhausted(error.message):
                raise
            if wait_s is None:
                raise _no_network_left(error) from error
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
        else:
            break


def is_pool_exhausted(message: str) -> bool:
    """Return whether an engine says that it has no range of addresses free; engines 20.10 and 23 to 28."""
    return any(phrase in message.lower() for phrase in _POOL_PHRASES)


def _no_network_left(error: EngineError) -> SandboxError:
    return SandboxError(
        "sandbox.network_exhausted",
        f"The Docker engine has no network left for the services of the task: {error.message}.",
        hint="Run fewer such trials at once, remove unused networks (docker network prune), or widen "
        '"default-address-pools" in /etc/docker/daemon.json.',
    )


async def make_volume(http: EngineHttp, name: str, labels: Mapping[str, str]) -> None:
    """Make an empty volume; a cancelled creation is awaited, so that its name can be removed."""
    body = {"Name": name, "Labels": dict(labels)}
    await finish(http.call(Request("POST", "/volumes/create", body=body)))


async def list_parts(http: EngineHttp, kind: str, labels: Mapping[str, str]) -> list[SandboxRef]:
    """Return the networks, then the volumes, that carry all the labels."""
    query = {"filters": json.dumps({"label": [f"{name}={value}" for name, value in labels.items()]})}
    networks: list[dict[str, Any]] = await http.call(Request("GET", "/networks", query=query))
    volumes: dict[str, Any] = await http.call(Request("GET", "/volumes", query=query))
    return [
        *(SandboxRef(kind, f"{NETWORK}{item['Id']}", item["Labels"]) for item in networks),
        *(SandboxRef(kind, f"{VOLUME}{item['Name']}", item["Labels"]) for item in volumes["Volumes"] or ()),
    ]


def is_part(ref_id: str) -> bool:
    """Return whether an id of the listing is a network's or a volume's."""
    return ref_id.startswith((NETWORK, VOLUME))


async def remove_part(http: EngineHttp, ref_id: str) -> None:
    """Remove a network or a volume, however often the engine must be asked.

    Returns after 30 seconds at the latest; what is left then is logged, and the
    reaper finds it by its labels.
    """
    path = f"/networks/{ref_id.removeprefix(NETWORK)}"
    if ref_id.startswith(VOLUME):
        path = f"/volumes/{ref_id.removeprefix(VOLUME)}"
    if reason := await remove_stubborn(http, path):
        logger.error("%s could not be removed: %s", ref_id, reason, extra={"action": "service_part_left"})
