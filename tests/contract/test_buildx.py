"""Dockerfiles that only BuildKit builds, through the plugin of the docker program."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes

pytestmark = [pytest.mark.docker, pytest.mark.buildx]

FEATURES = """FROM debian:bookworm-slim
ARG MARK=%s
RUN --mount=type=cache,target=/var/cache/mine echo kept >/var/cache/mine/note && echo $MARK >/mark
COPY --chmod=0751 note.txt /note.txt
"""


def spec(folder: Path, dockerfile: str, **changes: float) -> SandboxSpec:
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "note.txt").write_text("a note\n")
    labels = {"bf.fleet": f"buildx-{os.getpid()}", "bf.trial": "t"}
    return SandboxSpec("bf-buildx", labels, None, folder, secrets.token_hex(32), **changes)


async def test_features_of_buildkit_are_built_labelled_and_built_once(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state"))
    wanted = spec(tmp_path / "context", FEATURES % secrets.token_hex(8))

    sandbox = await provider.open(wanted)
    seen = await sandbox.exec(
        Command(("sh", "-c", "stat -c %a /note.txt; ls -A /var/cache/mine; wc -c </mark"), timeout_s=60)
    )
    await sandbox.close()
    again = await provider.open(wanted)
    await again.close()

    assert seen.stdout.split() == [b"751", b"17"], seen
    assert await provider.remove_image(f"bf/{wanted.build_digest[:12]}")


async def test_a_step_that_fails_is_named_with_its_line_and_its_words(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state"))
    failing = "FROM debian:bookworm-slim\n\nRUN --mount=type=tmpfs,target=/t echo telling; exit 7\n"

    with pytest.raises(SandboxError, match="Dockerfile line 3") as caught:
        await provider.open(spec(tmp_path / "context", failing))

    assert caught.value.code == "sandbox.build_failed"
    assert "exit code: 7" in caught.value.message
    assert "telling" in caught.value.message
    assert "install" not in (caught.value.hint or "")


async def test_a_base_image_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state"))
    text = "FROM bf-no-such.invalid/base:1\nRUN --mount=type=tmpfs,target=/t true\n"

    with pytest.raises(SandboxError, match=r"bf-no-such\.invalid/base:1") as caught:
        await provider.open(spec(tmp_path / "context", text))

    assert caught.value.code == "sandbox.image_missing"


async def test_a_build_that_takes_too_long_leaves_no_program_behind(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state"))
    text = "FROM debian:bookworm-slim\nRUN --mount=type=tmpfs,target=/t sleep 600\n"
    wanted = spec(tmp_path / "context", text, build_timeout_s=3.0)

    with pytest.raises(SandboxError, match="was not built within 3 s"):
        await provider.open(wanted)

    listed = await asyncio.to_thread(
        subprocess.run, ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    )
    assert f"bf/{wanted.build_digest[:12]}" not in listed.stdout
