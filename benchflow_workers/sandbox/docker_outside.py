"""The way outside of services whose network changes: a bridge that is pulled and plugged while they run.

Their own networks lead nowhere, so that they reach one another by name in every phase; what
leads outside is one more network, or a cable to the worker's gateway for each container.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import Compose
from benchflow_workers.sandbox.base import Command
from benchflow_workers.sandbox.docker_sandbox import DockerSandbox
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_links import GATEWAY

_RESOLVER_FILES: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
_PUBLIC_RESOLVER: Final = "8.8.8.8"
"""What the engine itself gives containers where its host asks only itself for names."""

_GATEWAY_LINE: Final = f"nameserver {GATEWAY}"
_HASTE_LINE: Final = "options timeout:1 attempts:1"

_NAMES: Final = """
kept=
while read -r line; do
  case $line in "$2"|"$3") ;; *) kept="$kept$line
";; esac
done < /etc/resolv.conf
printf '%s' "$kept$1" > /etc/resolv.conf
"""
_ASK_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Outside:
    """What leads outside for the services of one trial.

    Attributes:
        network: Name of the engine's network.
        services: Services on it; the others have no way out in any phase.
        is_open: They are on it from their start.
    """

    network: str
    services: frozenset[str]
    is_open: bool


def reaching_outside(compose: Compose) -> frozenset[str]:
    """Return the services that a file gives a network which leads outside."""
    return frozenset(
        name
        for name, service in compose.services.items()
        if service.network_mode != "none"
        and (
            not service.networks
            or any(
                item not in compose.networks or not compose.networks[item].internal
                for item in service.networks
            )
        )
    )


def name_servers(files: Iterable[Path] = _RESOLVER_FILES) -> tuple[str, ...]:
    """Return who answers for names outside, as containers reach them: no loopback of the host.

    A container is asked to ask them itself. Of a loopback's the engine asks on the container's
    behalf, from the host, where no list holds.
    """
    for file in files:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        named = [words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver"]
        if found := tuple(server for server in named if _is_reachable(server)):
            return found
    return (_PUBLIC_RESOLVER,)


async def tell_about_names(sandbox: DockerSandbox, policy: NetworkPolicy) -> None:
    """Let a container ask for names so that it has an answer soon, whatever its network is.

    With a list it asks the gateway for those the engine does not answer for: engines from 23.0.11,
    25.0.5 and 26.0 on pass no question on from a container all of whose networks are internal. Without
    a network it waits a second: older engines do not say that they can ask nobody. Who has no shell,
    or has ended, is left as it is, and finds the others by name all the same.
    """
    added = f"{_GATEWAY_LINE}\n" if policy.is_filtered else ""
    added += f"{_HASTE_LINE}\n" if policy.mode == "no-network" else ""
    argv = ("sh", "-c", _NAMES, "benchflow-names", added, _GATEWAY_LINE, _HASTE_LINE)
    with contextlib.suppress(SandboxError):
        await sandbox.exec(Command(argv, timeout_s=_ASK_S, workdir="/"))


def _is_reachable(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server.partition("%")[0])
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)
