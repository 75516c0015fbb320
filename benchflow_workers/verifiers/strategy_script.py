"""The script that runs a strategy of verifier.md: a few lines of shell, placed beside the tests."""

from __future__ import annotations

import json
import shlex
from typing import Final

from benchflow_client.tasks.strategies import Strategy
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR

__all__ = ["STRATEGY_SCRIPT", "strategy_script"]

STRATEGY_SCRIPT: Final = ".benchflow-strategy.sh"
"""Its name in the folder of the tests: no task brings one of that name."""

MANIFEST: Final = f"{VERIFIER_LOGS_DIR}/reward-kit-manifest.json"
"""What a reward kit is told about itself."""

MANIFEST_VERSION: Final = "benchflow.reward-kit.v1"


def strategy_script(strategy: Strategy, tests: str) -> bytes:
    """Return the script.

    Args:
        strategy: What to run.
        tests: Folder of the tests in the sandbox.
    """
    lines = [f"cd {shlex.quote(tests)} || exit 97"]
    lines += _kit(strategy, tests) if strategy.is_kit else _command(strategy.command)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _command(command: str) -> list[str]:
    program = shlex.split(command)[0]
    executable = [f"chmod +x {shlex.quote(program)} 2>/dev/null"] if "/" in program else []
    return [*executable, command]


def _kit(strategy: Strategy, tests: str) -> list[str]:
    manifest = {
        "version": MANIFEST_VERSION,
        "strategy": {
            "name": strategy.name,
            "type": "reward-kit",
            "root": strategy.kit_root,
            "entrypoint": strategy.entrypoint,
            "criteria": strategy.criteria or None,
        },
        "paths": {"verifier_dir": tests, "root": f"{tests}/{strategy.kit_root}", "logs": VERIFIER_LOGS_DIR},
    }
    variables = {
        "BENCHFLOW_REWARD_KIT_ROOT": f"{tests}/{strategy.kit_root}",
        "BENCHFLOW_REWARD_KIT_MANIFEST": MANIFEST,
        **({"BENCHFLOW_REWARD_KIT_CRITERIA": f"{tests}/{strategy.criteria}"} if strategy.criteria else {}),
    }
    program = shlex.quote(f"{strategy.kit_root}/{strategy.entrypoint}")
    return [
        f"printf '%s\\n' {shlex.quote(json.dumps(manifest))} >{MANIFEST}",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        "for python in python3 python; do",
        f'  if command -v "$python" >/dev/null 2>&1; then exec "$python" {program}; fi',
        "done",
        "echo 'python3: not found'",
        "exit 127",
    ]
