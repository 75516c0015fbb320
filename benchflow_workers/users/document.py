"""The user a task.md declares, played without a model: what it says in a round follows from the task alone.

It first gives the prompts of all turns (the task's prompt where there are none), one a
round. From then on, while the tests are not content, a round is the task's last prompt and,
below a line, what the user says: the next quotation of the persona (lines of Markdown that
begin with `>`; without any left: that the work is not finished), then the next private fact
as `name: value`, in the order of the file. It ends when the tests give 1, or its rounds are over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from benchflow_workers.users.base import RoundResult

__all__ = ["DocumentUser", "quotations"]

_NOT_FINISHED: Final = "This is not finished yet. Look again at what was asked for."


class DocumentUser:
    """A scripted user.

    Args:
        persona: Text of `## user-persona`.
        facts: Its private facts, in order.
        max_rounds: Rounds at most.
        n_turns: Turns of the task's scenes; 1 where it has none.
    """

    oracle_access = False

    def __init__(self, persona: str, facts: Mapping[str, Any], *, max_rounds: int, n_turns: int) -> None:
        self.max_rounds = max_rounds
        self._quotes = quotations(persona)
        self._facts = [f"{name}: {_text(value)}" for name, value in facts.items()]
        self._n_turns = n_turns

    def setup(self, instruction: str, solution: str | None) -> None:
        """Need nothing: the document tells all."""

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:
        """Return the turn's prompt, later a nudge behind it; None when the tests are content."""
        nudge = round - self._n_turns
        if nudge < 0:
            return instruction
        if round_result is not None and round_result.is_solved:
            return None
        quote = self._quotes[nudge] if nudge < len(self._quotes) else _NOT_FINISHED
        fact = self._facts[nudge : nudge + 1]
        return "\n\n".join((instruction.rstrip("\n"), "---", quote, *fact))


def quotations(persona: str) -> list[str]:
    """Return the block quotations of a Markdown text, in order, without their marks."""
    blocks: list[list[str]] = []
    is_open = False
    for line in persona.split("\n"):
        text = line.lstrip(" ")
        is_quote = text.startswith(">") and len(line) - len(text) <= 3
        if is_quote and not is_open:
            blocks.append([])
        if is_quote:
            blocks[-1].append(text[1:].removeprefix(" ").rstrip())
        is_open = is_quote
    said = ("\n".join(block).strip("\n") for block in blocks)
    return [text for text in said if text]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
