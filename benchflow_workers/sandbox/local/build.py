"""Builds an image for local sandboxes: runs a Dockerfile's steps in sandboxes and freezes each as a layer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import posixpath
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Completed, SandboxSpec, Upload
from benchflow_workers.sandbox.local import dockerfile
from benchflow_workers.sandbox.local.context import BuildContext
from benchflow_workers.sandbox.local.dockerfile import Instruction
from benchflow_workers.sandbox.local.host_root import Root
from benchflow_workers.sandbox.local.launch import Image, Launcher
from benchflow_workers.sandbox.local.layers import LayerCache
from benchflow_workers.sandbox.local.places import Places
from benchflow_workers.sandbox.local.sandbox import LocalSandbox

_Act = Callable[[LocalSandbox], Awaitable[None]]  # what a step does in its sandbox
_TAIL_BYTES = 2000
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_NEEDS_USERS = re.compile(r"\b(apt|apt-get|dpkg|apk|dnf|yum|useradd|adduser|groupadd|chown|su|sudo)\b")


@dataclass
class _State:
    """What the instructions so far say; the builder's own, changed as it goes."""

    root: Root
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    folders: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)

    def variables(self) -> dict[str, str]:
        """Return what `$NAME` means: an ENV wins over an ARG."""
        return {**self.arguments, **self.env}

    def key(self, *step: object) -> str:
        """Return the name of the layer that a step makes on top of the layers so far."""
        facts = [self.root.identity, self.layers[-1:], self.folders, *map(repr, step)]
        return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogateescape")).hexdigest()[:24]


class Builder:
    """Builds one Dockerfile.

    Args:
        launcher: Starts the sandboxes that steps run in.
        places: Folders of this host.
        spec: The sandbox the image is for; its labels mark the build's sandboxes too.
        notes: What is known of the base already.
    """

    def __init__(
        self, launcher: Launcher, places: Places, spec: SandboxSpec, *, notes: Sequence[str]
    ) -> None:
        self._launcher = launcher
        self._places = places
        self._cache = LayerCache(places)
        self._notes = list(notes)
        self._deadline = time.monotonic() + spec.build_timeout_s
        assert spec.build_context is not None
        self._context = BuildContext(spec.build_context)
        self._spec = replace(
            spec,
            name=f"{spec.name[:50]}-build",
            network="public",
            env={},
            workdir="/",
            uploads=(),
            memory_mb=None,
        )

    async def build(self, instructions: Sequence[Instruction], root: Root) -> Image:
        """Run the instructions on a root.

        Raises:
            SandboxError: `sandbox.build_failed` with the line, the command and the end of
                its output; `task.unsupported`.
        """
        state = _State(root)
        for item in instructions:
            await self._step(item, state)
        if state.ignored:
            self._notes.append(f"local: {', '.join(sorted(state.ignored))} ignored")
        return self._image(state)

    def _image(self, state: _State) -> Image:
        return Image(
            root=state.root,
            layers=tuple(self._places.layers / key for key in reversed(state.layers)),
            env=dict(state.env),
            workdir="/root" if state.workdir == "/" else state.workdir,
            folders=tuple(state.folders),
            notes=tuple(self._notes),
        )

    async def _step(self, item: Instruction, state: _State) -> None:
        match item.keyword:
            case "RUN":
                await self._run(item, state)
            case "COPY" | "ADD":
                await self._copy(item, state)
            case "ARG":
                state.arguments.update(_argument(item, state))
            case "ENV":
                state.env.update(dockerfile.assignments(item, state.variables()))
            case "WORKDIR":
                path = " ".join(dockerfile.split(item, _expander(state)))
                state.workdir = posixpath.normpath(posixpath.join(state.workdir, path))
                state.folders.append(state.workdir)
            case "USER":
                state.user = dockerfile.expand(item.text, state.variables())
            case "SHELL":
                state.shell = tuple(item.words() or state.shell)
            case keyword if keyword in dockerfile.IGNORED:
                state.ignored.add(keyword)

    async def _run(self, item: Instruction, state: _State) -> None:
        argv = item.words() or [*state.shell, item.text]
        env = {**state.arguments, **state.env}
        key = state.key("RUN", argv, sorted(env.items()), state.workdir, state.user)

        async def act(sandbox: LocalSandbox) -> None:
            command = Command(
                argv, max(0.001, self._deadline - time.monotonic()), state.user, env, state.workdir
            )
            done = await sandbox.exec(command)
            if done.exit_code != 0 or done.timed_out:
                raise self._failed(item, done)

        await self._layer(key, state, act)

    def _failed(self, item: Instruction, done: Completed) -> SandboxError:
        end = f"was stopped after build_timeout_sec = {self._spec.build_timeout_s:g}"
        if not done.timed_out:
            end = f"ended with exit code {done.exit_code}"
        tail = (done.stdout + done.stderr)[-_TAIL_BYTES:].decode(errors="replace").strip()
        hint = "Fix the line, or run the task with --sandbox docker if it needs another base image."
        if self._launcher.mode == "rootless" and _NEEDS_USERS.search(item.text):
            hint = (
                "Rootless local sandboxes have a single user, so package managers, chown and new users "
                "cannot work: use --sandbox docker, or run the worker as root."
            )
        return SandboxError(
            "sandbox.build_failed", f"Dockerfile line {item.line}: RUN {item.text} {end}.\n{tail}", hint=hint
        )

    async def _copy(self, item: Instruction, state: _State) -> None:
        words = item.words() or dockerfile.split(item, _expander(state))
        if len(words) < 2:
            raise SandboxError(
                "sandbox.build_failed",
                f"Dockerfile line {item.line}: {item.keyword} {item.text} names no target.",
                hint="Write source and target.",
            )
        sources = await asyncio.to_thread(self._context.sources, words[:-1], item.line)
        if item.keyword == "ADD" and any(path.name.endswith(_ARCHIVES) for path in sources):
            raise dockerfile.unsupported(item.line, "ADD of an archive, which Docker would unpack")
        target = posixpath.normpath(posixpath.join(state.workdir, words[-1]))
        is_folder = words[-1].endswith(("/", "/.")) or words[-1] in {".", ".."} or len(sources) > 1
        # Read for every build: the digest must be that of the files, not of their names.
        plain = await asyncio.to_thread(self._context.copy, sources, target, into_folder=False)
        key = state.key(item.keyword, plain.digest, target, is_folder, sorted(item.flags.items()))

        async def act(sandbox: LocalSandbox) -> None:
            into = is_folder or await _is_folder(sandbox, target)
            copy = self._context.copy(sources, target, into_folder=into)
            owner = await _owner(sandbox, item)
            mode = int(item.flags["chmod"], 8) if item.flags.get("chmod") else None
            needs_folder = into or any(source.is_dir() for source in sources)
            parent = [Upload(target)] if needs_folder and not await _is_folder(sandbox, target) else []
            await sandbox.put([
                replace(upload, uid=owner[0], gid=owner[1], mode=upload.mode if mode is None else mode)
                for upload in (*parent, *copy.uploads)
            ])

        await self._layer(key, state, act)

    async def _layer(self, key: str, state: _State, act: _Act) -> None:
        """Find the layer of a step, or make it: run the step in a sandbox and freeze what it wrote."""
        if self._cache.find(key) is None:
            image = replace(self._image(state), workdir="/")
            async with AsyncExitStack() as stack:
                sandbox = await self._launcher.launch(self._spec, image)
                stack.push_async_callback(sandbox.close)
                await act(sandbox)
                await asyncio.to_thread(sandbox.stop_blocking)
                await asyncio.to_thread(
                    self._cache.freeze, key, self._places.sandboxes / sandbox.id / "upper"
                )
        state.layers.append(key)


def _expander(state: _State) -> Callable[[str], str]:
    variables = state.variables()
    return lambda text: dockerfile.expand(text, variables)


def _argument(item: Instruction, state: _State) -> dict[str, str]:
    """Return the default of an ARG; one without a default is empty, since no value is given from outside."""
    found: dict[str, str] = {}
    for word in dockerfile.split(item, _expander(state)):
        name, _, value = word.partition("=")
        found[name] = value
    return found


async def _is_folder(sandbox: LocalSandbox, path: str) -> bool:
    done = await sandbox.exec(Command(("test", "-d", path), timeout_s=60))
    return done.exit_code == 0


async def _owner(sandbox: LocalSandbox, item: Instruction) -> tuple[int, int]:
    """Return the numeric owner that `--chown` asks for; root without it."""
    if "chown" not in item.flags:
        return 0, 0
    user, _, group = item.flags["chown"].partition(":")
    script = (
        'u=$1; g=$2; case $u in *[!0-9]*) u=$(id -u "$1") || exit 1; [ "$g" ] || g=$(id -g "$1");; esac; '
        'case $g in "") g=$u;; *[!0-9]*) g=$(grep "^$g:" /etc/group | cut -d: -f3);; esac; echo "$u $g"'
    )
    done = await sandbox.exec(Command(("sh", "-c", script, "sh", user, group), timeout_s=60))
    found = done.stdout.split()
    if done.exit_code != 0 or len(found) != 2:
        raise SandboxError(
            "sandbox.build_failed",
            f"Dockerfile line {item.line}: --chown={item.flags['chown']} names nobody in the image.",
            hint="Make the user with RUN before it, or give numbers.",
        )
    return int(found[0]), int(found[1])
