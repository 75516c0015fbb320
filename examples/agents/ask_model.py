#!/usr/bin/env python3
"""A script agent with a model, in one file: it asks once and says what it was answered.

Run it with a model::

    bench run examples/tasks/convert-units --agent examples/agents/ask_model.py --model openai/gpt-5

It needs no key: `OPENAI_BASE_URL` is the gateway of the worker, `OPENAI_API_KEY` a token that is good
until the turn ends. Any client that reads these two variables works the same way.
"""

import json
import os
import urllib.request
from pathlib import Path


def ask(prompt: str) -> str:
    """Return the model's answer to a prompt."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps({
            "model": os.environ["BENCHFLOW_PROVIDER_MODEL"],
            "messages": [{"role": "user", "content": prompt}],
        }).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def main() -> None:
    """Ask, and leave the answer in the workspace."""
    prompt = Path(os.environ["BENCHFLOW_INSTRUCTION"]).read_text(encoding="utf-8")
    Path("answer.md").write_text(ask(prompt), encoding="utf-8")


if __name__ == "__main__":
    main()
