#!/usr/bin/env python3
"""A script agent in one file: it reads the prompt, does the text task, and says what it did.

Run it with::

    bench run examples/tasks/write-release-note --agent examples/agents/hello_agent.py

It runs in the task's sandbox, in the workspace, as an unprivileged user, so it may use
what the task's image brings: here, Python. `hello_agent.sh` is the same for images that
have no Python.
"""

import json
import os
import sys
from pathlib import Path

NOTE = """\
# Release 1.4.0

- BREAKING: the flag `--fast` is now called `--quick`.
- The first start is twice as quick.
- Broken settings are named with file and line.
"""


def tell(event: dict[str, str]) -> None:
    """Add one line to the trial's trajectory; the trial also runs without such lines."""
    if path := os.environ.get("BENCHFLOW_EVENTS"):
        with Path(path).open("a", encoding="utf-8") as events:
            events.write(json.dumps(event) + "\n")


def main() -> int:
    """Take the turn; the exit code says whether the agent worked, not whether it was right."""
    prompt = Path(os.environ["BENCHFLOW_INSTRUCTION"]).read_text(encoding="utf-8")
    tell({"type": "agent_thought", "text": f"The prompt has {len(prompt.splitlines())} lines."})
    if "/app/note.md" not in prompt:
        print("This agent only knows how to write a release note.")
        return 0
    Path("/app/note.md").write_text(NOTE, encoding="utf-8")
    tell({"type": "agent_message", "text": "Wrote /app/note.md."})
    print("Wrote /app/note.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
