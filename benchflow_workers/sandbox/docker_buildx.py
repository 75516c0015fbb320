"""Builds images by the buildx plugin: Dockerfiles with features that only BuildKit knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_build import Build, Progress, raise_failed
from benchflow_workers.sandbox.docker_plugins import DockerPlugins

__all__ = ["BUILDX", "build_by_plugin"]

BUILDX: Final = "buildx"
"""Name of the plugin."""

_STEP: Final = re.compile(r"(?:#\d+| >) \[(?:\S+ )?(?P<at>\d+)/(?P<of>\d+)\] (?P<instruction>.*?):?$")
_BASE: Final = re.compile(r"(?:#\d+| >) \[(?:\S+ )?internal\] load metadata for (?P<image>\S+?):?$")
_FAILED: Final = re.compile(r"ERROR: (?P<reason>.+)$")


async def build_by_plugin(
    plugins: DockerPlugins,
    endpoint: str,
    build: Build,
    context: IO[bytes],
    *,
    labels: Mapping[str, str],
    pull: bool,
) -> None:
    """Build an image into the engine; cancelled, the engine stops the build.

    Args:
        plugins: The program.
        endpoint: Address of the engine.
        build: What to build.
        context: Its context as a tar.
        labels: On the image.
        pull: Ask registries for the base images even where they are here.

    Raises:
        SandboxError: `sandbox.build_failed`, `sandbox.image_missing`.
    """
    said = _Said()
    words = [
        *("--host", endpoint, BUILDX, "build"),
        *_options(build, labels),
        *(("--pull",) if pull else ()),
        "-",
    ]
    try:
        code = await plugins.run(words, said.take, stdin=context)
    except OSError as error:
        raise SandboxError(
            "sandbox.build_failed",
            f"The docker program that should build {build.place} did not start: {error}.",
            hint="Install it with its buildx plugin on the worker's host.",
        ) from error
    if code != 0:
        raise_failed(build, said.progress, said.reason or f"buildx ended with exit code {code}")


def _options(build: Build, labels: Mapping[str, str]) -> list[str]:
    return [
        *("--load", "--progress", "plain", "--tag", build.tag, "--file", "Dockerfile"),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *(word for name, value in build.args.items() for word in ("--build-arg", f"{name}={value}")),
        *(("--target", build.target) if build.target else ()),
    ]


class _Said:
    """What the plugin printed so far: the step it is at, its last lines, why it failed."""

    def __init__(self) -> None:
        self.progress = Progress(by_buildkit=True)
        self.reason = ""

    def take(self, line: str) -> None:
        """Take one line."""
        if found := _STEP.match(line):
            self.progress.step = f"{found['at']}/{found['of']} : {found['instruction']}"
        elif found := _BASE.match(line):
            self.progress.step = f"1/1 : FROM {found['image']}"
        elif found := _FAILED.match(line):
            self.reason = found["reason"]
        else:
            self.progress.note(line)
