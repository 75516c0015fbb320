"""Services of an environment manifest: started in the agent's sandbox before it, and waited for."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from benchflow_client.errors import SandboxError
from benchflow_client.schema.manifest import Manifest, ManifestService
from benchflow_workers.sandbox.base import Command, Completed, Sandbox
from benchflow_workers.trial.manifest_programs import LAST_WORDS, PROBE, START
from benchflow_workers.trial.records import Prepared

__all__ = ["start_services"]

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0
_ROUND_TIMEOUT_S: Final = 60.0
_NO_PROGRAM: Final = 96  # exit code of PROBE: nothing in the image can ask


async def start_services(prepared: Prepared, sandbox: Sandbox) -> tuple[str, ...]:
    """Start the services of a task's manifest and wait until all that must answer does.

    A service whose program the task's image lacks is left out: one manifest serves tasks
    with different images. What services print is in `/logs/services`.

    Returns:
        What a reader of the result should know, as sentences.

    Raises:
        SandboxError: `sandbox.start_failed`: none could be started, one ended, or they were
            not ready in time; with the end of what it printed.
    """
    manifest = prepared.folder.task.manifest
    if manifest is None:
        return ()
    work = _Services(prepared, sandbox, manifest)
    started = await work.start()
    await work.until_ready(started)
    missing = [service.name for service in manifest.services if service not in started]
    absent = [name for name in manifest.forward_env.keys if name not in prepared.services_env]
    return (
        *(f"Service {name!r} was not started: the image has no program of it." for name in missing),
        *(f"Services did not get {name}, which is not set on the worker." for name in absent),
    )


@dataclass(frozen=True, slots=True)
class _Services:
    prepared: Prepared
    sandbox: Sandbox
    manifest: Manifest

    async def start(self) -> list[ManifestService]:
        """Start all in one command; returns those whose program is there."""
        services = self.manifest.services
        words = [word for item in services for word in (item.name, _program(item.command), item.command)]
        done = await self._run(START, words, self.prepared.services_env)
        if done.exit_code != 0 or done.timed_out:
            said = (done.stdout + done.stderr).decode("utf-8", "replace")[-1000:]
            raise self._failed(f"did not start.\n{said}")
        names = done.stdout.decode("utf-8", "replace").split()
        started = [service for service in services if service.name in names]
        if services and not started:
            raise self._failed("has no service whose program is in the image of the task")
        return started

    async def until_ready(self, started: Sequence[ManifestService]) -> None:
        """Ask again and again until all answers; one that ended with a failure ends the wait."""
        readiness, delay_s = self.manifest.readiness, _FIRST_WAIT_S
        words = self._questions(started)
        left = "nothing was asked"
        try:
            async with asyncio.timeout(readiness.timeout_sec):
                while words and (left := await self._unready(words)):
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, _LONGEST_WAIT_S)
        except TimeoutError as error:
            words_said = await self._last_words()
            raise self._failed(
                f"was not ready after {readiness.timeout_sec:g} s: {left} did not answer.{words_said}"
            ) from error

    def _questions(self, started: Sequence[ManifestService]) -> list[str]:
        """Return what is asked, three words each: host, port, and path; no path = only whether one listens."""
        urls = self.manifest.readiness.http or tuple(
            f"http://localhost:{service.port}{service.health_path}" for service in started
        )
        words = []
        for url in map(urlsplit, urls):
            path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
            words += [url.hostname or "localhost", str(url.port or 80), path]
        for port in self.manifest.readiness.tcp:
            words += ["localhost", str(port), ""]
        return words

    async def _unready(self, words: Sequence[str]) -> str:
        """Return the first that does not answer yet; empty = all did."""
        done = await self._run(PROBE, words)
        said = done.stdout.decode("utf-8", "replace").strip()
        if done.exit_code == _NO_PROGRAM:
            raise self._failed("cannot be asked: the image has none of curl, wget, python3 and bash")
        if said.startswith("ended "):
            name, code = said.split()[1:3]
            raise self._failed(f"lost its service {name!r}: exit code {code}.{await self._last_words()}")
        return "" if done.exit_code == 0 else said or "the sandbox"

    async def _last_words(self) -> str:
        done = await self._run(LAST_WORDS, ())
        said = done.stdout.decode("utf-8", "replace").strip()
        return f"\n{said[-1500:]}" if said else ""

    async def _run(
        self, program: str, words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Completed:
        argv = ("sh", "-c", program, "benchflow-services", *words)
        return await self.sandbox.exec(Command(argv, timeout_s=_ROUND_TIMEOUT_S, env=env or {}))

    def _failed(self, reason: str) -> SandboxError:
        return SandboxError(
            "sandbox.start_failed",
            f"Environment {self.manifest.name!r} of task {self.prepared.folder.task.name!r} {reason}",
            hint="See services/*.log of the trial, and the manifest's commands and readiness.",
        )


def _program(command: str) -> str:
    """Return the program a command begins with; empty = it begins with something else."""
    try:
        first = (shlex.split(command) or [""])[0]
    except ValueError:
        return ""
    return "" if "=" in first else first
