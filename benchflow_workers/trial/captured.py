"""Folders that setup commands leave for what comes after them: `capture_dir` and its two variables.

What is captured is given on as a base64 tar.gz archive of the folder's files, links and
devices left out, and kept with the attempt unless a variable's name says that it is a secret.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.task import SetupCommand
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.trial.records import Prepared, captured_room
from benchflow_workers.trial.session import Session
from benchflow_workers.trial.variables import secret_values, template

__all__ = ["CAPTURED", "Captured", "capture", "place_captured", "with_captured"]

CAPTURED: Final = "setup"
"""Folder of an attempt for what was captured, by the number of its command; one of that name from the sandbox goes."""

PLACE: Final = "/opt/benchflow/captured"
"""Folder in a sandbox for archives whose path is given on."""

FOLDER_LIMIT_BYTES: Final = 64 << 20
"""Bytes of a captured folder."""

VARIABLE_LIMIT_BYTES: Final = 96 << 10
"""Bytes of an archive that is given on in a variable: the kernel takes 128 KiB, name and all. A secret may
not be longer either, or it could not be found in what is kept."""

FILE_LIMIT_BYTES: Final = 4 << 20
"""Bytes of an archive that is given on as a file."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What setup commands have left so far for those after them and for the agent.

    Attributes:
        env: Variables.
        files: Archives whose paths are in `env`.
        secrets: Values that must not appear in anything that is written.
        warnings: What a reader of the result should know.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Upload, ...] = ()
    secrets: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def fill_in(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a command's variables on top of what was captured, `${NAME}` of it filled in."""
        known = {template(name): value for name, value in self.env.items()}
        return {**self.env, **{name: known.get(value, value) for name, value in env.items()}}


async def capture(
    command: SetupCommand, sandbox: Sandbox, before: Captured, *, number: int, attempt_folder: Path
) -> Captured:
    """Return what there is after a command, with the folder it asks to have captured.

    Args:
        command: The command, which has ended well.
        sandbox: Where it ran.
        before: What there was.
        number: Its place among the commands, from 1.
        attempt_folder: The attempt's; beside it the folder is kept for `place_captured`.

    Raises:
        SandboxError: `sandbox.start_failed`: there is no such folder, or it is too large;
            what the sandbox raises.
    """
    if command.capture_dir is None:
        return before
    with tempfile.TemporaryDirectory(dir=attempt_folder.parent, prefix="captured-") as room:
        tree = Path(room) / "tree"
        await _copy(command, sandbox, tree)
        encoded = await asyncio.to_thread(_encoded, tree)
        after = _given_on(command, before, encoded)
        if encoded not in after.secrets:
            await asyncio.to_thread(_keep, tree, captured_room(attempt_folder) / str(number))
    return after


def with_captured(prepared: Prepared, captured: Captured) -> Prepared:
    """Return the rollout's plan in which the agents of all turns know what was captured."""
    if not captured.env:
        return prepared
    context = prepared.agent_context
    context = replace(
        context, env={**captured.env, **context.env}, oracle_env={**captured.env, **context.oracle_env}
    )
    steps = tuple(replace(step, prepared=with_captured(step.prepared, captured)) for step in prepared.steps)
    sessions, talk = _told(prepared.sessions, captured), prepared.talk
    if talk is not None:
        talk = replace(talk, sessions=_told(talk.sessions, captured))
    return replace(prepared, agent_context=context, steps=steps, sessions=sessions, talk=talk)


def _told(sessions: tuple[Session, ...], captured: Captured) -> tuple[Session, ...]:
    return tuple(
        replace(item, context=replace(item.context, env={**captured.env, **item.context.env}))
        for item in sessions
    )


def place_captured(folder: Path) -> None:
    """Move what was captured into the attempt's folder; what a sandbox left in its place goes."""
    room, target = captured_room(folder), folder / CAPTURED
    if not room.is_dir():
        return
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.move(room, target)


async def _copy(command: SetupCommand, sandbox: Sandbox, tree: Path) -> None:
    try:
        is_there = await sandbox.get(str(command.capture_dir), tree, limit_bytes=FOLDER_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        raise _refused(command, f"cannot be captured: {error.message}") from error
    if not is_there or not await asyncio.to_thread(tree.is_dir):
        raise _refused(command, "is no folder")


def _given_on(command: SetupCommand, before: Captured, encoded: str) -> Captured:
    name, file_variable = command.capture_dir_b64_env, command.capture_dir_b64_env_file_var
    given = {variable: encoded for variable in (name, file_variable) if variable is not None}
    secrets = secret_values(given, by_reference=(), environ={})
    limit_bytes = VARIABLE_LIMIT_BYTES if name is not None or secrets else FILE_LIMIT_BYTES
    if given and len(encoded) > limit_bytes:
        raise _refused(
            command,
            f"is an archive of {len(encoded)} bytes; in {' and '.join(given)} at most {limit_bytes} fit",
        )
    env, files = {**before.env, **given}, before.files
    if file_variable is not None:
        env[file_variable] = f"{PLACE}/{file_variable}"
        files = (*files, Upload(env[file_variable], content=encoded.encode("ascii")))
    return Captured(env, files, before.secrets | secrets)


def _encoded(tree: Path) -> str:
    """Return a folder as base64 of a tar.gz archive; the same files make the same text."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path in sorted(tree.rglob("*")):
            archive.add(path, path.relative_to(tree).as_posix(), recursive=False, filter=_anonymous)
    return base64.b64encode(gzip.compress(plain.getvalue(), mtime=0)).decode("ascii")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(mtime=0, uid=0, gid=0, uname="root", gname="root", deep=False)


def _keep(tree: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(tree, target)


def _refused(command: SetupCommand, why: str) -> SandboxError:
    return SandboxError(
        "sandbox.start_failed",
        f"{command.capture_dir} after setup command {command.command[:80]!r} {why}.",
        hint="Correct capture_dir of the command, or let the command leave less there.",
    )
