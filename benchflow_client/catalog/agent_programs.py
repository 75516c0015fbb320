"""The programs behind ready-made agents, as data: pinned packages, and what they speak to models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchflow_client.catalog.providers import Dialect

__all__ = ["CLAUDE_ACP", "CLAUDE_CODE", "CODEX", "Build", "Program"]


@dataclass(frozen=True, slots=True)
class Build:
    """A program for one kind of machine.

    Attributes:
        packages: Packages of the npm registry with their exact versions.
        argv: What is run: files below the folder the packages are installed in.
    """

    packages: tuple[str, ...]
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is installed once on a worker's host and shown read-only to its sandboxes.

    Attributes:
        name: Readable, safe as the name of a folder.
        version: Version of the agent itself.
        builds: Machine, as `uname -m` says it -> what is installed there.
        dialects: What it can speak to its model, best first.
    """

    name: str
    version: str
    builds: Mapping[str, Build]
    dialects: tuple[Dialect, ...]


_NODE: Final = "24.19.0"


def _native(package: str, version: str, binaries: Mapping[str, str]) -> dict[str, Build]:
    return {machine: Build((f"{package}@{version}",), (binary,)) for machine, binary in binaries.items()}


def _on_node(package: str, version: str, script: str) -> dict[str, Build]:
    """Return builds with a Node of their own, so that images need none."""
    builds = {}
    for machine, system in (("x86_64", "linux-x64"), ("aarch64", "linux-arm64")):
        packages = (f"{package}@{version}", f"node-{system}@{_NODE}")
        builds[machine] = Build(
            packages, (f"node_modules/node-{system}/bin/node", f"node_modules/{package}/{script}")
        )
    return builds


CLAUDE_CODE: Final = Program(
    name="claude-code",
    version="2.1.197",
    builds=_native(
        "@anthropic-ai/claude-code",
        "2.1.197",
        {
            "x86_64": "node_modules/@anthropic-ai/claude-code-linux-x64/claude",
            "aarch64": "node_modules/@anthropic-ai/claude-code-linux-arm64/claude",
        },
    ),
    dialects=("anthropic-messages",),
)
"""A native program for images with glibc."""

CODEX: Final = Program(
    name="codex",
    version="0.171.0",
    builds=_native(
        "@openai/codex",
        "0.171.0",
        {
            "x86_64": "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
            "aarch64": "node_modules/@openai/codex-linux-arm64/vendor/aarch64-unknown-linux-musl/bin/codex",
        },
    ),
    dialects=("openai-responses",),
)
"""A static program, for any image."""

CLAUDE_ACP: Final = Program(
    name="claude-agent-acp",
    version="0.101.0",
    builds=_on_node("@agentclientprotocol/claude-agent-acp", "0.101.0", "dist/index.js"),
    dialects=("anthropic-messages",),
)
"""Claude behind the Agent Client Protocol, for images with glibc."""
