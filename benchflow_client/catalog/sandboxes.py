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
    has_gpus: bool = False
    runs_commands: bool = True  # False = every task "fits", nothing is scored


SANDBOXES: dict[str, SandboxKindEntry] = {
    entry.name: entry
    for entry in (
        SandboxKindEntry("docker", "A container per trial.", frozenset({"public", "no-network"})),
        SandboxKindEntry(
            "local", "Namespaces on the worker's host; for trusted tasks.", frozenset({"public", "no-network"})
        ),
        SandboxKindEntry(
            "null", "Runs nothing; for measuring the queue.",
            frozenset({"public", "no-network", "allowlist", "denylist"}), runs_commands=False,
        ),
    )
}  # fmt: skip
"""Every kind, best first for `auto`."""

AUTO_ORDER = ("docker", "local")
"""What `auto` tries, in order."""
