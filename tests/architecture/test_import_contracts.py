"""The dependency rule: the contracts in pyproject.toml hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_import_contract_is_kept() -> None:
    program = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports"

    run = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
