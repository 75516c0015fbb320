"""What the conformance checks stand on: the bench a provider is put on, and its small tools."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, SandboxProvider, SandboxSpec

Ability = Literal[
    "users",  # runs commands as other users than root
    "limits",  # enforces memory and process limits
    "no-network",  # can cut the network off
    "lists",  # enforces lists of names, and changes the network of a running sandbox
    "tmpfs",  # the sandbox has a tmpfs at /dev/shm
    "own-init",  # its first process can be killed from inside
    "background",  # a process may outlive the command that started it
    "scripting",  # the sandbox has bash, and python3 or perl
    "images",  # starts from named images
]
"""What a check may need that not every provider has."""

SLACK_S = 10.0
"""Seconds a busy test machine may add to any promise about time."""


class ConformanceError(AssertionError):
    """A provider does not keep the sandbox contract."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A provider under test.

    Attributes:
        provider: The provider.
        make_spec: Returns a valid spec with a fresh name and labels; its image
            (or host root) has a POSIX shell, coreutils and `setsid`.
        scratch: Empty folder on this host, owned by the caller.
        shared: Sandbox for checks that leave it usable; None = a new one for each.
        abilities: What the provider has; checks that need more are not run.
        web_name: For "lists": a name that an HTTP server answers at on port 80; the provider
            must reach it and give `private.example` an address of the host itself.
    """

    provider: SandboxProvider
    make_spec: Callable[[], SandboxSpec]
    scratch: Path
    shared: Sandbox | None = None
    abilities: frozenset[Ability] = field(default_factory=frozenset)
    web_name: str = ""

    @asynccontextmanager
    async def sandbox(self) -> AsyncGenerator[Sandbox, None]:
        """Yield a sandbox the check leaves usable for others."""
        if self.shared is not None:
            yield self.shared
            return
        async with self.fresh(self.make_spec()) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def fresh(self, spec: SandboxSpec) -> AsyncGenerator[Sandbox, None]:
        """Yield a sandbox of its own, closed at the end."""
        sandbox = await self.provider.open(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract and the function that tests it."""

    run: Callable[[Bench], Awaitable[None]]
    needs: frozenset[Ability]

    @property
    def name(self) -> str:
        """The promise as words with dashes, fit for a test id."""
        return self.run.__name__.removeprefix("check_").replace("_", "-")

    def missing(self, bench: Bench) -> frozenset[Ability]:
        """Return the abilities the check needs and the bench lacks; empty = run it."""
        return self.needs - bench.abilities


def check(run: Callable[[Bench], Awaitable[None]], *needs: Ability) -> Check:
    """Return the check of a function and its needs."""
    return Check(run, frozenset(needs))


def expect_equal(actual: object, expected: object, what: str) -> None:
    """Raise ConformanceError unless both are equal."""
    if actual != expected:
        raise ConformanceError(f"{what}: expected {_short(expected)}, got {_short(actual)}.")


def expect_in(part: Any, whole: Any, what: str) -> None:
    """Raise ConformanceError unless `whole` contains `part`."""
    if part not in whole:
        raise ConformanceError(f"{what}: {_short(part)} is not in {_short(whole)}.")


def expect_at_most(actual: float, limit: float, what: str) -> None:
    """Raise ConformanceError when a number is above its limit."""
    if actual > limit:
        raise ConformanceError(f"{what}: {actual:.6g} is above {limit:.6g}.")


async def expect_code(call: Awaitable[object], code: str, what: str) -> SandboxError:
    """Await a call that must raise SandboxError with the code, and return the error."""
    try:
        result = await asyncio.wait_for(call, timeout=60)
    except SandboxError as error:
        expect_equal(error.code, code, f"{what}: failure code")
        return error
    raise ConformanceError(f"{what}: expected SandboxError {code}, got {_short(result)}.")


async def sh(
    sandbox: Sandbox, script: str, *, user: str | int = "root", env: Mapping[str, str] | None = None
) -> Completed:
    """Run a shell script and return what it left."""
    command = Command(("sh", "-c", script), timeout_s=60, user=user, env=env or {})
    return await sandbox.exec(command)


async def output(sandbox: Sandbox, script: str, *, user: str | int = "root") -> str:
    """Run a shell script that must succeed and return its output, stripped."""
    done = await sh(sandbox, script, user=user)
    if done.exit_code != 0:
        raise ConformanceError(f"Script {script!r} ended with {done.exit_code}: {done.stderr!r}.")
    return done.stdout.decode(errors="replace").strip()


async def wait_until(sandbox: Sandbox, test: str) -> None:
    """Poll a shell test inside the sandbox until it is true."""
    deadline = time.monotonic() + 30
    while (await sh(sandbox, test)).exit_code != 0:
        if time.monotonic() > deadline:
            raise ConformanceError(f"{test!r} did not become true inside the sandbox in 30 s.")
        await asyncio.sleep(0.05)


async def wait_for_processes(sandbox: Sandbox, marker: str, count: int) -> None:
    """Wait until that many live processes carry a marker in their command line."""
    deadline = time.monotonic() + 30
    while (seen := await count_processes(sandbox, marker)) < count:
        if time.monotonic() > deadline:
            raise ConformanceError(f"Only {seen} of {count} processes {marker!r} came up in 30 s.")
        await asyncio.sleep(0.05)


async def count_processes(sandbox: Sandbox, marker: str) -> int:
    """Return how many live processes carry a marker in their command line."""
    # The marker is split with '' so that the scan does not find its own shell.
    pattern = f"{marker[:1]}''{marker[1:]}"
    script = (
        f"n=0; for p in /proc/[0-9]*; do "
        f"c=$(tr '\\0' ' ' <$p/cmdline 2>/dev/null); case $c in *{pattern}*) n=$((n+1));; esac; done; echo $n"
    )
    return int(await output(sandbox, script))


async def add_user(sandbox: Sandbox, uid: int) -> str:
    """Create a user by its line in /etc/passwd and return its name."""
    name = f"bfu{uid}"
    await output(
        sandbox,
        f"grep -q '^{name}:' /etc/passwd || "
        f"{{ echo '{name}:x:{uid}:{uid}::/tmp:/bin/sh' >>/etc/passwd; echo '{name}:x:{uid}:' >>/etc/group; }}",
    )
    return name


def fresh_path() -> str:
    """Return an absolute path in the sandbox that nobody else uses."""
    return f"/tmp/bf-{uuid.uuid4().hex[:12]}"


def _short(value: object) -> str:
    """Return a printable form of at most 300 characters."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
