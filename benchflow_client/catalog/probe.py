"""The tricks of the built-in cheating agent, as data: one shell script a trick, beside this module.

A trick's name is its file's; its first line says what it tries. `_begin.sh` goes before each.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from benchflow_client.errors import UnknownAgentError

__all__ = ["BASELINE", "PREFIX", "Trick", "find_trick", "list_tricks"]

PREFIX: Final = "probe:"
"""What the agent of a trick is called by: `probe:TRICK`."""

BASELINE: Final = "nothing"
"""The trick that does nothing; a task that gives something for it shows nothing about the others."""

_FOLDER: Final = "probe_tricks"
_BEGIN: Final = "_begin.sh"
_SUFFIX: Final = ".sh"
_CLOSE_ENOUGH = 0.5  # difflib ratio, as for agents


@dataclass(frozen=True, slots=True)
class Trick:
    """One way to score without doing the work."""

    name: str
    text: str  # one sentence: what it tries
    script: str  # run by the `sh` of the sandbox, as the agent's user, in the workspace

    @property
    def agent(self) -> str:
        """The name `--agent` takes."""
        return PREFIX + self.name


@cache
def list_tricks() -> Sequence[Trick]:
    """Return all tricks: the one that does nothing, then the others by name."""
    folder = files(__package__) / _FOLDER
    begin = (folder / _BEGIN).read_text(encoding="utf-8")
    texts = {
        item.name.removesuffix(_SUFFIX): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(_SUFFIX) and item.name != _BEGIN
    }
    names = sorted(texts, key=lambda name: (name != BASELINE, name))
    return tuple(
        Trick(name, texts[name].partition("\n")[0].removeprefix("# "), begin + texts[name]) for name in names
    )


def find_trick(name: str) -> Trick:
    """Return a trick.

    Args:
        name: With or without `probe:`.

    Raises:
        UnknownAgentError: There is none of that name; the hint names the nearest.
    """
    wanted = name.removeprefix(PREFIX)
    tricks = {trick.name: trick for trick in list_tricks()}
    if wanted in tricks:
        return tricks[wanted]
    nearest = difflib.get_close_matches(wanted, tricks, n=1, cutoff=_CLOSE_ENOUGH)
    suggestion = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise UnknownAgentError(
        f"Trick {wanted!r} of the probe is not known.", hint=f"{suggestion}`bench probe --list` names all."
    )
