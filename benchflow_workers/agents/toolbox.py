"""Programs of ready-made agents on a worker's host: installed once, shown read-only to every sandbox."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent_definition import AgentDefinition, Npm
from benchflow_workers.sandbox.base import Mount

__all__ = ["TOOLBOX_DIR", "Toolbox", "toolbox_argv"]

TOOLBOX_DIR: Final = "/opt/benchflow/toolbox"
"""Where folders of programs are seen in a sandbox."""

INSTALL_TIMEOUT_S: Final = 900.0
_TAIL_CHARS: Final = 600
_DIGEST_CHARS: Final = 32
_NPM: Final = (
    "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel=error",
)  # fmt: skip
"""No script of a package is run on the host."""

_NPM_MACHINES: Final = {"x86_64": "x64", "aarch64": "arm64"}
"""Kinds of machine, as `uname -m` and as npm packages call them."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """A folder of installed programs, shared by the workers of a host.

    Attributes:
        folder: The folder; made when something is installed.
    """

    folder: Path

    def prepared(self, definition: AgentDefinition) -> Path:
        """Return the folder of a program, installed where it is not there yet; others wait for whoever installs.

        Raises:
            AgentError: `agent.install_failed`: it cannot be installed here.
        """
        build = _build_of(definition)
        place = self.folder / _name_of(definition, build)
        if place.is_dir():
            return place
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(place.with_name(f"{place.name}.lock")):
                if not place.is_dir():
                    self._install(definition, build, place)
        except OSError as error:
            raise _failed(definition, f"{self.folder}: {error.strerror or error}") from error
        return place

    def mounts(self, definition: AgentDefinition | None) -> tuple[Mount, ...]:
        """Return what a sandbox must be shown of a program, which is installed first.

        Raises:
            AgentError: As `prepared`.
        """
        if definition is None or not isinstance(definition.install, Npm):
            return ()
        place = self.prepared(definition)
        return (Mount(place, f"{TOOLBOX_DIR}/{place.name}"),)

    def _install(self, definition: AgentDefinition, build: _Build, place: Path) -> None:
        made = Path(tempfile.mkdtemp(prefix=".installing-", dir=self.folder))
        try:
            _run_npm(definition, build, made)
            missing = [path for path in build.argv if not (made / path).is_file()]
            if missing:
                raise _failed(definition, f"{build.packages[0]} brings no {missing[0]}")
            made.chmod(0o755)
            made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def toolbox_argv(definition: AgentDefinition) -> Sequence[str]:
    """Return the command line that starts a program of the toolbox in a sandbox."""
    build = _build_of(definition)
    return [f"{TOOLBOX_DIR}/{_name_of(definition, build)}/{path}" for path in build.argv]


def _name_of(definition: AgentDefinition, build: _Build) -> str:
    """Return the folder of a program; no plan, which may call its agent as it likes, finds packages that give another's name."""
    digest = hashlib.sha256("\n".join(build.packages).encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{definition.name}-{definition.version}-{digest}"


@dataclass(frozen=True, slots=True)
class _Build:
    """A program for this kind of machine: packages, and files below the folder they are installed in."""

    packages: tuple[str, ...]
    argv: tuple[str, ...]


def _build_of(definition: AgentDefinition) -> _Build:
    machine, install = platform.machine(), definition.install
    if not isinstance(install, Npm):
        raise _failed(definition, "it is installed in each sandbox")
    if machine not in _NPM_MACHINES:
        raise _failed(definition, f"there is none for {machine}, only for {', '.join(_NPM_MACHINES)}")
    words = {"version": definition.version, "npm": _NPM_MACHINES[machine], "machine": machine}
    packages, argv = (
        tuple(Template(text).safe_substitute(words) for text in texts)
        for texts in (install.packages, install.argv)
    )
    return _Build(packages, argv)


def _run_npm(program: AgentDefinition, build: _Build, folder: Path) -> None:
    command = [*_NPM, "--", *build.packages]
    try:
        # Where npm finds one it installs there; its `--prefix` would leave out the host's own npm settings.
        (folder / "package.json").write_text("{}")
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise _failed(program, "there is no `npm` on this host") from error
    except subprocess.TimeoutExpired as error:
        raise _failed(program, f"npm was not over after {INSTALL_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise _failed(program, f"npm ended with {done.returncode}: {done.stderr.strip()[-_TAIL_CHARS:]}")


@contextmanager
def _locked(file: Path) -> Generator[None, None, None]:
    """Hold a lock that all processes of this host share; it goes with its process."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _failed(program: AgentDefinition, reason: str) -> AgentError:
    return AgentError(
        "agent.install_failed",
        f"{program.name} {program.version} cannot be installed on this worker's host: {reason}.",
        hint="Install Node with npm there, and let it reach the package registry; "
        "`bench agents prepare NAME` on that host tries it.",
    )
