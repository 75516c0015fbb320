"""What a trial copies out of its sandbox: the logs, and the declared artifacts with a manifest.

What the agent left costs no verdict: too much of it is kept in part, and what cannot be
kept is a line of the manifest. Links are never followed: a sandbox hands out files only.
"""

from __future__ import annotations

import asyncio
import posixpath
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_client.schema.task import Artifact
from benchflow_client.store.documents import json_document
from benchflow_workers.sandbox.base import Sandbox, path_below
from benchflow_workers.sandbox.services import service_sandbox
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR
from benchflow_workers.verifiers.reward import CTRF_JSON, REWARD_JSON, REWARD_TEXT
from benchflow_workers.verifiers.reward_files import CTRF_LIMIT_BYTES, FILE_LIMIT_BYTES

__all__ = ["ARTIFACTS_DIR", "MANIFEST", "collect_artifacts", "collect_logs", "collect_tests"]

ARTIFACTS_DIR: Final = "/logs/artifacts"
"""What a task leaves here is kept."""

MANIFEST: Final = "manifest.json"
"""File below `artifacts/` that says what was kept; one of that name from the sandbox goes."""

_VERDICT: Final = VERIFIER_LOGS_DIR.rpartition("/")[2]
"""Folder below the attempt's that the tests' files are kept in."""

_LOGS_LIMIT_BYTES: Final = 1 << 30
"""Bytes collected from `/logs`, or as one artifact."""

_PART_LIMIT_BYTES: Final = 256 << 20
"""Bytes collected from each folder below `/logs` when together they are too large: less than all at once."""

_TAKEN: Final = (FileExistsError, NotADirectoryError, IsADirectoryError)
"""What placing an artifact raises where another one is in the way."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the manifest."""

    source: str
    destination: str
    type: str  # file, directory
    status: str  # ok, failed (missing, a link, in part, its place is taken), empty
    service: str = MAIN_SERVICE  # whose file it was

    def document(self) -> dict[str, str]:
        """Return the line as it is written: the service only where it is another than the agent's."""
        line = asdict(self)
        return {key: value for key, value in line.items() if (key, value) != ("service", MAIN_SERVICE)}


async def collect_logs(sandbox: Sandbox, folder: Path, *, judged_in: str = MAIN_SERVICE) -> tuple[str, ...]:
    """Copy `/logs` into the attempt's folder on this host.

    Args:
        sandbox: Where they are.
        folder: The attempt's folder.
        judged_in: Service the tests ran in; what they left is taken from there alone.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost, or what the tests left cannot be copied.
    """
    warnings: list[str] = []
    if await _copied_in_part(sandbox, "/logs", folder):
        warnings = await _collect_parts(sandbox, folder)
    if judged_in != MAIN_SERVICE:
        await asyncio.to_thread(_remove, folder / _VERDICT)
        warnings += await _collect_verdict(service_sandbox(sandbox, judged_in), folder)
    return tuple(warnings)


async def collect_tests(sandbox: Sandbox, folder: Path) -> tuple[str, ...]:
    """Copy what the tests left into the attempt's folder; what another sandbox had in that place goes.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost, or what the tests left cannot be copied.
    """
    await asyncio.to_thread(_remove, folder / _VERDICT)
    return tuple(await _collect_verdict(sandbox, folder))


async def collect_artifacts(sandbox: Sandbox, declared: Sequence[Artifact], folder: Path) -> tuple[str, ...]:
    """Copy declared artifacts below `folder`, and write the manifest where there is anything to say.

    A relative source is one of the workspace of its service. A source that is not there is
    a line of the manifest and no failure.

    Args:
        sandbox: Where they are.
        declared: What the task wants kept.
        folder: The attempt's `artifacts` folder, which holds what was in `/logs/artifacts`.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost; a service beside it may have ended.
    """
    entries, warnings = list(_conventional(folder)), list[str]()
    for artifact in declared:
        origin = service_sandbox(sandbox, artifact.service)
        source = posixpath.join(origin.workdir, artifact.source)
        place = _destination(artifact.destination or source)
        target = None if place is None else path_below(folder, place)
        status, said = ("failed", []) if target is None else await _kept(origin, source, target, artifact)
        is_folder = target is not None and target.is_dir()
        warnings += said
        entries.append(
            _Entry(
                source=artifact.source,
                destination=f"artifacts/{place}" if place else "",
                type="directory" if is_folder else "file",
                status=status,
                service=artifact.service,
            )
        )
    if entries:
        await asyncio.to_thread(_write_manifest, folder, entries)
    return tuple(warnings)


async def _kept(sandbox: Sandbox, source: str, target: Path, artifact: Artifact) -> tuple[str, list[str]]:
    """Copy one artifact; returns its status in the manifest, and warnings."""
    try:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        is_there = await sandbox.get(source, target, limit_bytes=_LOGS_LIMIT_BYTES)
    except _TAKEN:
        return "failed", []
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed" and artifact.service == MAIN_SERVICE:
            raise
        return "failed", [_in_part(source, error)]
    await asyncio.to_thread(_prune, target, artifact.exclude)
    if not is_there:
        return "failed", []
    return "empty" if await asyncio.to_thread(_is_empty, target) else "ok", []


def _destination(path: str) -> PurePosixPath | None:
    """Return a path below the artifacts; None = it would be all of them, or outside."""
    place = PurePosixPath(path.lstrip("/"))
    return None if place.parts == () or ".." in place.parts else place


def _prune(folder: Path, patterns: Sequence[str]) -> None:
    """Remove what a pattern matches: by its path below the artifact, or by its name alone."""
    if not patterns or not folder.is_dir():
        return
    for path in sorted(folder.rglob("*"), reverse=True):
        name = path.relative_to(folder).as_posix()
        if any(
            fnmatchcase(tried, pattern.rstrip("/")) for pattern in patterns for tried in (name, path.name)
        ):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _conventional(folder: Path) -> Iterable[_Entry]:
    """Yield the line of what the task left where everything is kept."""
    if folder.is_dir() and any(folder.iterdir()):
        yield _Entry(ARTIFACTS_DIR, "artifacts", "directory", "ok")


def _is_empty(target: Path) -> bool:
    return target.is_dir() and not any(path.is_file() for path in target.rglob("*"))


def _write_manifest(folder: Path, entries: Sequence[_Entry]) -> None:
    if folder.is_file():
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / MANIFEST
    _remove(place)
    place.write_bytes(json_document([entry.document() for entry in entries]))


def _remove(path: Path) -> None:
    """Remove what a sandbox left in the place of something else."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


async def _collect_parts(sandbox: Sandbox, folder: Path) -> list[str]:
    """Copy the logs again one by one: the verdict's must come, of the others as much as comes."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    warnings = await _collect_verdict(sandbox, folder)
    for source in ("agent", "artifacts"):
        warnings += await _copied_in_part(
            sandbox, f"/logs/{source}", folder / source, limit_bytes=_PART_LIMIT_BYTES
        )
    return warnings


async def _collect_verdict(sandbox: Sandbox, folder: Path) -> list[str]:
    """Copy what the tests left; where it is too much, at least the files of the verdict."""
    try:
        await sandbox.get(VERIFIER_LOGS_DIR, folder / _VERDICT, limit_bytes=_PART_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        for file in (REWARD_TEXT, REWARD_JSON, CTRF_JSON):
            await _collect_verdict_file(sandbox, f"{VERIFIER_LOGS_DIR}/{file}", folder / _VERDICT / file)
        return [_in_part(VERIFIER_LOGS_DIR, error)]
    return []


async def _collect_verdict_file(sandbox: Sandbox, source: str, target: Path) -> None:
    """Copy a file of the verdict; of one that is too large enough comes for the verifier to refuse it."""
    try:
        await sandbox.get(source, target, limit_bytes=CTRF_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        if not await asyncio.to_thread(_is_refused, target):
            raise


def _is_refused(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > FILE_LIMIT_BYTES


async def _copied_in_part(
    sandbox: Sandbox, source: str, target: Path, *, limit_bytes: int = _LOGS_LIMIT_BYTES
) -> list[str]:
    """Copy a path and return a warning when not all of it came."""
    try:
        await sandbox.get(source, target, limit_bytes=limit_bytes)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        return [_in_part(source, error)]
    return []


def _in_part(source: str, error: SandboxError) -> str:
    return f"Not all of {source} was kept. {error.message}"
