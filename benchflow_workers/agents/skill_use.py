"""Recognises in a trajectory that an agent used a skill: by a tool for it, or by reading its files.

Programs differ: some have a tool for skills and say so in its name, its title, the id of the
call or how its result begins; others read `SKILL.md` like any file.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow_workers.agents.base import SkillSet

__all__ = ["marked_uses"]

_TOOL: Final = re.compile(
    r"(?:load(?:ed)?|use|activate|invoke)?[ _-]?skill(?:\s*[:(](.*))?", re.I | re.DOTALL
)
"""A tool's name or title: `Skill` (Claude Code), `Load skill: x` (its adapter), `skill` (OpenCode), `Skill: ...` (Qwen)."""

_CALL: Final = "activate_skill"
"""How the id of a call begins (Gemini), whose title is the skill's description."""

_RESULTS: Final = re.compile(r"\s*(?:<skill_content\s+name=\"([^\"]+)\"|Skill \*\*([^*]+)\*\* activated)")
"""How the result of such a tool begins (OpenCode, Gemini)."""

_NAMED: Final = re.compile(r"[\"']?([A-Za-z0-9][A-Za-z0-9._-]{0,63})[\"']?(?::|$)")
_NAME: Final = "([A-Za-z0-9][A-Za-z0-9._-]{0,63})"
_ARGUMENTS: Final = (
    *("raw_input", "rawInput", "input", "arguments", "args", "parameters", "command", "path"),
    "locations",
)
_ANSWERS: Final = frozenset({"aggregated_output", "output", "result"})
"""Keys among a call's arguments that hold what came of it (Codex)."""

_CHANGES: Final = frozenset({
    *("edit", "delete", "move", "write", "multiedit", "write_file", "replace", "apply_patch", "file_change"),
    *("create", "notebookedit"),
})  # fmt: skip
"""Kinds and names of tools that change files; a skill that is written is not used."""

_OTHER_KINDS: Final = frozenset({"execute", "search", "fetch"})
"""Kinds of tools that are no tool for skills, whatever they are titled."""


def marked_uses(
    events: Sequence[Mapping[str, Any]], skills: SkillSet | None
) -> tuple[Sequence[Mapping[str, Any]], int]:
    """Return events with `skill` on each call that used one, and how many these are.

    A call of a tool for skills gets the kind `skill` besides. A call counts once, whatever it reads.

    Args:
        events: A trajectory.
        skills: Skills the agent had; None = none, so that only tools for skills are looked for.
    """
    places = None if skills is None else _places(skills)
    found, n_uses = [], 0
    for event in events:
        mark = _mark(event, places) if event.get("type") == "tool_call" else {}
        n_uses += bool(mark)
        found.append({**event, **mark} if mark else event)
    return (found, n_uses) if n_uses else (events, 0)


def _mark(event: Mapping[str, Any], places: re.Pattern[str] | None) -> dict[str, str]:
    """Return what is added to a call; empty = it used no skill."""
    kind = str(event.get("kind") or "").casefold()
    titles = [
        text for key in ("title", "name", "tool", "tool_name") if isinstance(text := event.get(key), str)
    ]
    if kind in _CHANGES or any(title.strip().casefold() in _CHANGES for title in titles):
        return {}
    if kind not in _OTHER_KINDS and _is_tool(event, kind, titles):
        return {"kind": "skill", "skill": _name(event, titles)}
    read = places.search(_said(event)) if places is not None else None
    return {} if read is None else {"skill": read[1]}


def _is_tool(event: Mapping[str, Any], kind: str, titles: Sequence[str]) -> bool:
    return (
        kind == "skill"
        or any(_TOOL.fullmatch(title.strip()) for title in titles)
        or str(event.get("tool_call_id") or "").startswith(_CALL)
        or _result(event) is not None
    )


def _name(event: Mapping[str, Any], titles: Sequence[str]) -> str:
    """Return the name of the skill a tool was called for; empty = it does not say."""
    given = [event[key] for key in _ARGUMENTS if isinstance(event.get(key), Mapping)]
    for arguments, key in itertools.product(given, ("skill", "name", "skill_name", "command")):
        if isinstance(value := arguments.get(key), str):
            return value
    result = _result(event)
    if result is not None:
        return str(result[1] or result[2])
    return next(filter(None, map(_named, titles)), "")


def _named(title: str) -> str:
    """Return the skill that a title names; empty = none."""
    text: str | None = title.strip()
    while text and (tool := _TOOL.fullmatch(text)):
        text = tool[1] and tool[1].strip()
    found = _NAMED.match(text or "")
    return "" if found is None else found[1]


def _result(event: Mapping[str, Any]) -> re.Match[str] | None:
    """Return the beginning of a skill's text in the result of a call that says no other kind."""
    if event.get("kind") not in (None, "", "other"):  # any JSON value
        return None
    content = event.get("content")
    parts = content if isinstance(content, list) else []
    bodies = (part.get("content") for part in parts if isinstance(part, Mapping))
    texts = [str(body.get("text")) for body in bodies if isinstance(body, Mapping)]
    return next(filter(None, map(_RESULTS.match, (*texts, str(event.get("raw_output") or "")))), None)


def _said(event: Mapping[str, Any]) -> str:
    """Return what a call was asked to do, as one text."""
    given = {key: event[key] for key in _ARGUMENTS if key in event}
    for key, value in given.items():
        if isinstance(value, Mapping):
            given[key] = {name: item for name, item in value.items() if name not in _ANSWERS}
    return json.dumps(given, ensure_ascii=False, default=str)


def _places(skills: SkillSet) -> re.Pattern[str]:
    """Return what matches the path of a skill, or of anything in it, where the agent may read it."""
    folders = [re.escape(skills.target)]
    for path in skills.paths:
        below = path.removeprefix("$HOME/").removeprefix("$WORKSPACE/")
        # A hidden folder is known from anywhere; any other one would be found in many paths.
        folders.append(re.escape(below if below.startswith(".") else path))
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(folders)})/{_NAME}")
