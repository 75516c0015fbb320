"""What each kind of sandbox can do, as data: plans are checked against it before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SandboxKindEntry:
    """Abilities of one kind; a provider's own capabilities may be less on a given host."""

    name: str
    description: str
    networks: frozenset[str]  # NetworkMode values it enforces
    has_compose: bool = False  # runs side services
    has_gpus: bool = False  # some host may have GPUs for it
    runs_commands: bool = True  # False = every task "fits", nothing is scored


_ALL_NETWORKS = frozenset({"public", "no-network", "allowlist", "denylist"})

SANDBOXES: dict[str, SandboxKindEntry] = {
    entry.name: entry
    for entry in (
        SandboxKindEntry(
            "docker", "A container per trial.", _ALL_NETWORKS, has_compose=True, has_gpus=True
        ),
        SandboxKindEntry(
            "local", "Namespaces on the worker's host; for trusted tasks.", _ALL_NETWORKS
        ),
        SandboxKindEntry(
            "null", "Runs nothing; for measuring the queue.",
            _ALL_NETWORKS, runs_commands=False,
        ),
    )
}  # fmt: skip
"""Every kind, best first for `auto`."""

AUTO_ORDER = ("docker", "local")
"""What `auto` tries, in order."""
