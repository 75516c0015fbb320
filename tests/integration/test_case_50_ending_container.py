"""A container that ends in the very moment a command is started is lost, and not a command that failed."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxProvider, SandboxSpec
from benchflow_workers.sandbox.docker_exec import is_for_an_ended_container
from benchflow_workers.sandbox.registry import SandboxRegistry
from benchflow_workers.settings import WorkerSettings


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    made = SandboxRegistry(WorkerSettings(), state_dir=tmp_path).get("docker")
    yield made
    await made.close()


@pytest.fixture
async def sandbox(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    name = f"ending-{uuid.uuid4().hex[:8]}"
    spec = SandboxSpec(
        name=name, labels={"bf.test": name}, image="debian:bookworm-slim", build_context=None, build_digest=""
    )
    opened = await provider.open(spec)
    yield opened
    await opened.close()


@pytest.mark.docker
async def test_commands_after_the_end_of_the_first_process_find_the_sandbox_lost(sandbox: Sandbox) -> None:
    """Started one after the other, so that some of them meet a container the engine still believes in."""
    endings: list[int | str | None] = []
    deadline = time.monotonic() + 60

    for command in itertools.chain(["kill -9 -1; kill -TERM 1"], itertools.repeat("true")):
        try:
            done = await sandbox.exec(Command(("sh", "-c", command), timeout_s=30))
            endings.append(done.exit_code)
        except SandboxError as error:
            endings.append(error.code)
        if endings[-1] == "sandbox.lost" or time.monotonic() > deadline:
            break

    assert endings[-1] == "sandbox.lost"
    assert 126 not in endings


@pytest.mark.docker
async def test_command_that_prints_the_engines_words_is_a_command(sandbox: Sandbox) -> None:
    script = "echo cannot exec in a stopped container; exit 126"

    done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=30))

    assert (done.exit_code, done.stdout) == (126, b"cannot exec in a stopped container\n")


@pytest.mark.parametrize(
    "words",
    [
        b"cannot exec in a deleted state: unknown\r\n",
        b"cannot exec in a stopped state: unknown\r\n",
        b"OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown",
        b"OCI runtime exec failed: exec failed: cannot exec a container that has stopped: unknown",
        b"task " + b"b5" * 32 + b" not found: not found\r\n",
        b"ttrpc: closed: unknown\r\n",
        b"OCI runtime exec failed: exec failed: unable to start container process: error executing setns "
        b"process: exit status 1: unknown\r\n",
    ],
)
def test_words_for_an_ended_container_are_known(words: bytes) -> None:
    assert is_for_an_ended_container(126, words)
    assert not is_for_an_ended_container(1, words)
    assert not is_for_an_ended_container(126, words + b"." * 400)
