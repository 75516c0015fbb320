"""Users that are installed on this worker: entry points of the group `benchflow.users`."""

from __future__ import annotations

import difflib
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from benchflow_client.errors import TrialError
from benchflow_workers.users.base import DEFAULT_ROUNDS, RoundResult

__all__ = ["GROUP", "InstalledUser", "installed_user"]

GROUP: Final = "benchflow.users"
"""Each entry point is called without arguments, once for each trial, and returns a user."""


class InstalledUser:
    """Somebody else's user, made when it is first needed, with what it may leave out filled in.

    Whatever its code raises comes out of these methods.
    """

    def __init__(self, point: EntryPoint) -> None:
        self._point = point

    @cached_property
    def _own(self) -> Any:
        return self._point.load()()

    @property
    def max_rounds(self) -> int:
        """Its rounds, else the default; what is no count is one round."""
        rounds = getattr(self._own, "max_rounds", DEFAULT_ROUNDS)
        return max(1, rounds) if isinstance(rounds, int) else DEFAULT_ROUNDS

    @property
    def oracle_access(self) -> bool:
        """Whether it asks for the solution."""
        return getattr(self._own, "oracle_access", False) is True

    def setup(self, instruction: str, solution: str | None) -> object:
        """Pass on what the task is, to a user that wants to know."""
        begin = getattr(self._own, "setup", None)
        if begin is None:
            return None
        return begin(instruction) if solution is None else begin(instruction, solution)

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> object:
        """Ask it."""
        return self._own.run(round, instruction, round_result)


def installed_user(name: str) -> InstalledUser:
    """Return a new user of a name.

    Raises:
        TrialError: `user.unknown` when none of that name is installed here.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        known = f"there are {', '.join(sorted(found))}" if found else "none is installed"
        raise TrialError(
            "user.unknown",
            f"User {name!r} is not installed on this worker: {known}.",
            hint=(f"Did you mean {near[0]!r}? " if near else "")
            + f"Install a package with an entry point {name!r} in the group {GROUP} where the workers run.",
        )
    return InstalledUser(found[name])
