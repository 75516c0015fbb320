"""A folder of the worker in a container, also where the engine does not see what the worker sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.root]

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, secrets, sys
from pathlib import Path
from benchflow_workers.sandbox.base import Command, Mount, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes

async def main():
    folder, state = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir()
    (folder / "tool").write_text("#!/bin/sh\\necho here\\n")
    (folder / "tool").chmod(0o755)
    name = f"mounts-{secrets.token_hex(6)}"
    spec = SandboxSpec(
        name=name, labels={"bf.trial": name}, image="debian:bookworm-slim", build_context=None, build_digest="",
        memory_mb=256, mounts=(Mount(folder, "/opt/shown"),),
    )
    sandbox = await DockerSandboxes(DockerOptions(state_dir=state)).open(spec)
    try:
        done = await sandbox.exec(Command(("/opt/shown/tool",), timeout_s=60))
        found = await sandbox.exec(Command(("grep", "-c", " /opt/shown ", "/proc/mounts"), timeout_s=60))
        print(done.stdout.decode().strip(), found.stdout.decode().strip())
    finally:
        await sandbox.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(("hides", "said"), [("true", "here 1"), ("mount -t tmpfs none {place}", "here 0")])
def test_a_folder_is_shown_or_copied(tmp_path: Path, hides: str, said: str) -> None:
    """In the second case the worker has a mount of its own there, as in a container beside the engine's socket."""
    place = tmp_path / "place"
    place.mkdir()
    script = f'{hides.format(place=place)} && exec "$@"'
    program = [sys.executable, "-c", PROGRAM, place / "program", tmp_path / "state"]

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr
