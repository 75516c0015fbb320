"""The task and the agent of a chaos job: a word to write, some time to take."""

from __future__ import annotations

from pathlib import Path

REWARD = 1.0
"""What every trial that is scored has earned."""

_FILES = {
    "task.toml": 'version = "1.0"\n\n[verifier]\ntimeout_sec = 120.0\n',
    "instruction.md": "Write the word done to out.txt.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
    "tests/test.sh": "#!/bin/sh\n"
    "grep -qx done /app/out.txt && reward=1 || reward=0\n"
    "echo $reward > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\necho done > /app/out.txt\n",
}


def write_task(folder: Path) -> Path:
    """Write the task into a folder of its own and return it."""
    task = folder / "chaos"
    for name, text in _FILES.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return task


def write_agent(folder: Path, *, trial_s: float, canary: str | None) -> Path:
    """Write the agent, a script that takes its time, and return its path.

    Args:
        folder: Where to.
        trial_s: Seconds its turn takes.
        canary: Variable whose value it prints, as careless agents do; None = none.
    """
    lines = ["#!/bin/sh", f"sleep {trial_s:g}", "echo done > /app/out.txt"]
    if canary is not None:
        lines.insert(1, f'echo "${canary}"')
    script = folder / "chaos-agent.sh"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    script.chmod(0o755)
    return script
