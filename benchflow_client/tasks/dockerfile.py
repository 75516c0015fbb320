"""Find what COPY and ADD lines take from the build context, and which sources do not exist below it.

Only what is certain is reported: sources with variables, wildcards, other stages,
URLs and inline content are left to the builder. `without_sources` writes such lines anew.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COPY = re.compile(r"[ \t]*(?:COPY|ADD)[ \t]+(.*)", re.IGNORECASE | re.DOTALL)
_HEREDOC = re.compile(r"<<-?([\"']?)([A-Za-z_][A-Za-z0-9_]*)\1")
_BACKTICK_ESCAPES = re.compile(r"(#.*\n)*#[ \t]*escape[ \t]*=[ \t]*`", re.IGNORECASE)
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|git@|[\w.-]+\.git(?:#|$)", re.IGNORECASE)
_UNCERTAIN = re.compile(r"[$*?\[\\]")


@dataclass(frozen=True, slots=True)
class MissingSource:
    """A source a Dockerfile copies and the context lacks."""

    line: int
    instruction: str
    source: str


@dataclass(frozen=True, slots=True)
class CopiedSource:
    """A path a Dockerfile copies.

    Attributes:
        line: First line of its instruction.
        last_line: Last line of its instruction, or one with nothing else in it.
        source: The path as it is written.
    """

    line: int
    last_line: int
    source: str


def copied_sources(text: str) -> tuple[CopiedSource, ...]:
    """Return the plain paths a Dockerfile copies, in order of their lines."""
    return tuple(
        CopiedSource(line, end, source)
        for line, end, instruction in _spans(text)
        if (match := _COPY.fullmatch(instruction))
        for source in _sources(match[1])
    )


def without_sources(text: str, is_gone: Callable[[str], bool]) -> str:
    """Return a Dockerfile that copies nothing of what is gone; what copies nothing else goes with it.

    Args:
        text: The Dockerfile.
        is_gone: Whether a source is, as it is written.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    changes = []
    for line, end, instruction in _spans(text):
        match = _COPY.fullmatch(instruction)
        flags, paths, target = _parts(match[1]) if match else ([], [], "")
        left = [path for path in paths if not is_gone(path)]
        if len(left) < len(paths):
            new = [" ".join([instruction.split()[0], *flags, json.dumps([*left, target])])] if left else []
            changes.append((line - 1, end, new))
    for begin, end, new in reversed(changes):
        lines[begin:end] = new
    return "\n".join(lines)


def missing_sources(text: str, context: Path) -> tuple[MissingSource, ...]:
    """Return the sources that make a build fail, in order of their lines.

    Args:
        text: The Dockerfile.
        context: Folder its paths are relative to.
    """
    found = []
    for line, instruction in _instructions(text):
        match = _COPY.fullmatch(instruction)
        for source in _sources(match[1]) if match else ():
            if not _is_there(context, source):
                found.append(MissingSource(line, " ".join(instruction.split()), source))
    return tuple(found)


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the first and the last line of each instruction, and its text."""
    instructions = list(_instructions(text))
    ends = [line - 1 for line, _ in instructions[1:]] + [text.count("\n") + 1]
    for (line, instruction), end in zip(instructions, ends, strict=False):
        yield line, end, instruction


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with its first line: comments out, continued lines joined, heredocs skipped."""
    mark = "`" if _BACKTICK_ESCAPES.match(text) else "\\"
    lines = iter(enumerate(text.replace("\r\n", "\n").split("\n"), start=1))
    for number, line in lines:
        if not _is_code(line):
            continue
        parts = [line]
        while parts[-1].rstrip().endswith(mark):
            parts[-1] = parts[-1].rstrip().removesuffix(mark)
            parts.append(next((later for _, later in lines if _is_code(later)), ""))
        instruction = " ".join(parts)
        for _, word in _HEREDOC.findall(instruction):
            next((later for _, later in lines if later.strip() == word), None)
        yield number, instruction


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _sources(arguments: str) -> list[str]:
    """Return the sources of a COPY that are plain paths of the context."""
    return [path for path in _parts(arguments)[1] if not _UNCERTAIN.search(path) and not _REMOTE.match(path)]


def _parts(arguments: str) -> tuple[list[str], list[str], str]:
    """Return flags, sources and destination of a COPY; none where the sources are not of the context."""
    words = [] if "<<" in arguments else _words(arguments)
    flags = [word for word in words if word.startswith("--")]
    if len(words) - len(flags) < 2 or any(flag.startswith(("--from", "--parents")) for flag in flags):
        return [], [], ""
    return flags, words[len(flags) : -1], words[-1]


def _words(arguments: str) -> list[str]:
    """Return flags, sources and destination, from either form of the instruction."""
    flags: list[str] = []
    rest = arguments.strip()
    while match := re.match(r"(--\S+)\s+", rest):
        flags.append(match[1])
        rest = rest[match.end() :]
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except (ValueError, RecursionError):
        return []
    return [*flags, *words] if all(isinstance(word, str) for word in words) else []


def _is_there(context: Path, source: str) -> bool:
    """Return whether a source exists; paths above the context mean the context itself, as builders read them."""
    inside = posixpath.normpath("/" + source).lstrip("/")
    return os.path.lexists(os.path.join(context, inside))
