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
from typing import Final

from benchflow_client.catalog.agent_programs import Build, Program
from benchflow_client.errors import AgentError

__all__ = ["TOOLBOX_DIR", "Toolbox", "argv_of"]

TOOLBOX_DIR: Final = "/opt/benchflow/toolbox"
"""Where the program's folder is seen in a sandbox."""

INSTALL_TIMEOUT_S: Final = 900.0
_TAIL_CHARS: Final = 600
_NPM: Final = (
    "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", "--loglevel=error",
)  # fmt: skip
"""No script of a package is run on the host."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """A folder of installed programs, shared by the workers of a host.

    Attributes:
        folder: The folder; made when something is installed.
    """

    folder: Path

    def prepared(self, program: Program) -> Path:
        """Return the folder of a program, installed where it is not there yet; others wait for whoever installs.

        Raises:
            AgentError: `agent.install_failed`: it cannot be installed here.
        """
        build = _build_of(program)
        digest = hashlib.sha256("\n".join(build.packages).encode()).hexdigest()[:8]
        place = self.folder / f"{program.name}-{program.version}-{digest}"
        if place.is_dir():
            return place
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(place.with_name(f"{place.name}.lock")):
                if not place.is_dir():
                    self._install(program, build, place)
        except OSError as error:
            raise _failed(program, f"{self.folder}: {error.strerror or error}") from error
        return place

    def _install(self, program: Program, build: Build, place: Path) -> None:
        made = Path(tempfile.mkdtemp(prefix=".installing-", dir=self.folder))
        try:
            _run_npm(program, build, made)
            missing = [path for path in build.argv if not (made / path).is_file()]
            if missing:
                raise _failed(program, f"{build.packages[0]} brings no {missing[0]}")
            made.chmod(0o755)
            made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def argv_of(program: Program) -> Sequence[str]:
    """Return the command line that starts a program in a sandbox."""
    return [f"{TOOLBOX_DIR}/{path}" for path in _build_of(program).argv]


def _build_of(program: Program) -> Build:
    machine = platform.machine()
    if machine not in program.builds:
        raise _failed(program, f"there is none for {machine}, only for {', '.join(program.builds)}")
    return program.builds[machine]


def _run_npm(program: Program, build: Build, folder: Path) -> None:
    command = [*_NPM, *build.packages]
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


def _failed(program: Program, reason: str) -> AgentError:
    return AgentError(
        "agent.install_failed",
        f"{program.name} {program.version} cannot be installed on this worker's host: {reason}.",
        hint="Install Node with npm there, and let it reach the package registry; "
        "`bench agents prepare NAME` on that host tries it.",
    )
