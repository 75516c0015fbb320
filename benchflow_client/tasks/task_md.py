"""Split task.md into front matter and prompts.

The grammar: `---`, YAML, `---`, Markdown. Reserved level-2 headings divide the
Markdown into the base prompt and the prompts of roles, scenes and the user; a
backslash in front of such a heading makes it plain text.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_client.tasks.findings import Findings, place, shown_name
from benchflow_client.tasks.text import PROMPT_LIMIT_BYTES, read_text

_HEADING = re.compile(
    r"(?P<escape>\\?)##[ \t]+(?:(?P<plain>prompt|user-persona)|(?P<kind>role|scene):(?P<name>[A-Za-z0-9_.-]+))[ \t]*",
    re.IGNORECASE,
)
_SIDE_FILE = re.compile(r"(?:(?P<plain>user-persona)|(?P<kind>role|scene)\.(?P<name>[A-Za-z0-9_.-]+))\.md")

Section = tuple[str, str]
"""Kind (`prompt`, `role`, `scene`, `user-persona`) and name, empty where the kind has none."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A task.md in two.

    Attributes:
        front_matter: The YAML between the two `---` lines.
        body: The Markdown below.
        body_line: Line at which the body starts.
    """

    front_matter: str
    body: str
    body_line: int


@dataclass(frozen=True, slots=True)
class Prompts:
    """What a task.md and its prompts/ folder say to whom."""

    base: str
    roles: dict[str, str] = field(default_factory=dict)
    scenes: dict[str, str] = field(default_factory=dict)
    user_persona: str = ""


def split(text: str, findings: Findings, *, file: str = "task.md") -> Parts | None:
    """Return the two parts of a document with front matter, or None when a problem was added."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0] != "---":
        findings.problem(f"{place(file, 1)}: the first line must be exactly `---`, then YAML, then `---`")
        return None
    try:
        end = lines.index("---", 1)
    except ValueError:
        findings.problem(f"{place(file, 1)}: the YAML that starts here is never ended by a line `---`")
        return None
    return Parts("\n".join(lines[1:end]), "\n".join(lines[end + 1 :]), end + 2)


def read_prompts(folder: Path, parts: Parts, findings: Findings) -> Prompts:
    """Return the prompts of the body, those of prompts/ in their place where both exist."""
    preamble, sections = _sections(parts, findings)
    sections |= _side_files(folder, findings)
    named: dict[str, dict[str, str]] = {"role": {}, "scene": {}}
    for (kind, name), prompt in sections.items():
        if kind in named:
            named[kind][name] = prompt
    base = sections.get(("prompt", ""), preamble)
    return Prompts(base, named["role"], named["scene"], sections.get(("user-persona", ""), ""))


def _sections(parts: Parts, findings: Findings) -> tuple[str, dict[Section, str]]:
    """Return the text before the first reserved heading, and each section's text."""
    preamble: list[str] = []
    sections: dict[Section, list[str]] = {}
    current = preamble
    for number, line in enumerate(parts.body.split("\n"), start=parts.body_line):
        heading = _HEADING.fullmatch(line)
        if heading is None:
            current.append(line)
        elif heading["escape"]:
            current.append(line[1:])
        else:
            section = _section(heading)
            if section in sections:
                findings.problem(f"{place('task.md', number)}: section {line.strip()!r} is given twice")
            current = sections[section] = []
    return _trimmed(preamble), {section: _trimmed(lines) for section, lines in sections.items()}


def _section(match: re.Match[str]) -> Section:
    if match["plain"]:
        return match["plain"].lower(), ""
    return match["kind"].lower(), match["name"]


def _trimmed(lines: list[str]) -> str:
    """Return text without blank lines around it."""
    text = "\n".join(lines).strip("\n")
    return text if text.strip() else ""


def _side_files(folder: Path, findings: Findings) -> dict[Section, str]:
    """Return the prompts that stand in files of their own."""
    try:
        names = sorted(os.listdir(folder / "prompts"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        findings.problem(f"prompts: cannot be read: {error.strerror or error}")
        return {}
    found: dict[Section, str] = {}
    for name in names:
        match = _SIDE_FILE.fullmatch(name)
        if match is None:
            findings.warning(
                f"prompts/{shown_name(name)}: not read; names are role.<name>.md, scene.<name>.md, user-persona.md"
            )
            continue
        text = read_text(folder, f"prompts/{name}", findings, limit_bytes=PROMPT_LIMIT_BYTES)
        found[_section(match)] = (text or "").replace("\r\n", "\n")
    return found
