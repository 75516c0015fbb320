"""What a strategy of verifier/verifier.md runs in place of test.sh, or why it is not run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from benchflow_client.schema.task import Task

__all__ = ["Strategy", "refusal", "strategy_of"]

DEFAULT_COMMAND: Final = "test.sh"
"""What a script strategy without a command runs, from the workspace as without any strategy."""

DEFAULT_ROOT: Final = "reward_kit"
DEFAULT_ENTRYPOINT: Final = "reward.py"

_OTHERS: Final = ("llm-judge", "agent-judge", "ors-episode")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A program of the verifier's folder, run from there.

    Attributes:
        name: Its name in the document.
        command: Shell text; empty = `test.sh`, from the workspace.
        kit_root: Folder of a reward kit below the verifier's; empty = it is none.
        entrypoint: The kit's program below its folder; empty = it is none.
        criteria: File below the verifier's folder that names the kit's metrics; empty = none.
    """

    name: str
    command: str = ""
    kit_root: str = ""
    entrypoint: str = ""
    criteria: str = ""

    @property
    def is_kit(self) -> bool:
        """Whether it is a reward kit."""
        return bool(self.entrypoint)


def strategy_of(task: Task) -> Strategy | None:
    """Return the strategy of a task that is run in place of `test.sh`; None = there is none."""
    declared = task.document.get("verifier_strategy")
    if declared is None or refusal(declared):
        return None
    name = str(declared.get("name", ""))
    if _type(declared) == "reward-kit":
        return Strategy(
            name,
            kit_root=_kit_path(declared, "root", DEFAULT_ROOT),
            entrypoint=_kit_path(declared, "entrypoint", DEFAULT_ENTRYPOINT),
            criteria=_kit_path(declared, "criteria", ""),
        )
    command = str(declared.get("command") or "").strip()
    if command == DEFAULT_COMMAND:
        command = f"./{DEFAULT_COMMAND}"  # no name without a slash is looked for in the current folder
    return Strategy(name, command) if command else None


def refusal(declared: Mapping[str, Any]) -> str:
    """Return why a strategy is not run; empty = it is."""
    name, kind = declared.get("name"), _type(declared)
    if kind == "script":
        return _script_refusal(declared.get("command"), name)
    if kind != "reward-kit":
        known = f"{kind} is not run by this version" if kind in _OTHERS else f"{kind!r} is no type"
        return f"strategy {name!r}: {known}; only script and reward-kit are"
    for key in ("root", "entrypoint", "criteria"):
        value = declared.get(key)
        if value is not None and not _is_below(value):
            return f"strategy {name!r}: {key} = {value!r}: expected a path below the verifier's folder"
    return ""


def _type(declared: Mapping[str, Any]) -> str:
    return str(declared.get("type", "script")).replace("_", "-")


def _script_refusal(command: Any, name: Any) -> str:
    if command is None:
        return ""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        words = []
    if not words:
        return f"strategy {name!r}: command = {command!r}: expected a command line"
    if "/" in words[0] and not _is_below(words[0]):
        return f"strategy {name!r}: command {words[0]!r}: expected a path below the verifier's folder"
    return ""


def _is_below(value: Any) -> bool:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        return False
    path = PurePosixPath(value)
    return not path.is_absolute() and ".." not in path.parts


def _kit_path(declared: Mapping[str, Any], key: str, default: str) -> str:
    value = declared.get(key)
    return default if value is None else str(PurePosixPath(value))
