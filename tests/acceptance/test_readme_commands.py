"""The README's first command, literally, in a fresh clone. `.ci/run` runs the second one in another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import refuse

ROOT = Path(__file__).parents[2]
INSTALL_AND_RUN_S = 1200.0


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not (ROOT / ".git").exists() or shutil.which("git") is None or shutil.which("make") is None:
        refuse("needs git, make and a checkout to clone")
    target = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True, timeout=120)
    return target


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]


def processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in environ and command:
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.timeout(INSTALL_AND_RUN_S)
def test_demo_in_a_fresh_clone_gives_the_right_numbers_and_leaves_nothing(
    clone: Path, tmp_path: Path
) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    home = tmp_path / "home"
    home.mkdir()
    environ = {**own, "BENCHFLOW_STATE_DIR": str(home / "state"), "DOCKER_HOST": "unix:///nonexistent.sock"}

    done = subprocess.run(
        ["make", "demo"], cwd=clone, env=environ, capture_output=True, text=True,
        timeout=INSTALL_AND_RUN_S - 60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"^ oracle +6/6 +1\.00 ", done.stderr, re.MULTILINE), done.stderr[-4000:]
    assert re.search(r"^ nop +0/6 +0\.00 ", done.stderr, re.MULTILINE)
    place, job = re.findall(r"results (\S+) · next: bench results (\S+)", done.stderr)[-1]
    assert (clone / place / "summary.json").is_file()
    assert "sandbox local" in done.stderr
    assert mounts_below(tmp_path) == []
    assert processes_below(home) == []
    shown = subprocess.run(
        [".venv/bin/bench", "results", job], cwd=clone, env=environ, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (shown.returncode, "oracle" in shown.stderr) == (0, True)
