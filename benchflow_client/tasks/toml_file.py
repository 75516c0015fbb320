"""Parse task.toml, and find the line of each key when a problem has to be shown."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile

from benchflow_client.tasks.findings import Findings, place
from benchflow_client.tasks.raw import KeyPath, NotPlainError, Raw, plain

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_DOTTED})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#.*|[\[\]{}]')


def parse_toml(text: str, file: str, findings: Findings) -> Raw | None:
    """Return the parsed file, or None when a problem was added."""
    try:
        data = plain(tomllib.loads(text))
    except (NotPlainError, RecursionError):
        findings.problem(f"{place(file)}: the tables nest too deeply")
        return None
    except ValueError as error:
        findings.problem(_syntax_problem(text, file, error))
        return None
    return Raw(file, data, lambda: dict(_key_lines(text)), {})


def _syntax_problem(text: str, file: str, error: ValueError) -> str:
    """Return the parser's words with the line it names in front."""
    message = str(error)
    named = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)", message)
    if named is None:
        return f"{place(file)}: not valid TOML: {message}"
    line = int(named[1]) if named[1] else text.count("\n") + 1
    return f"{place(file, line)}: not valid TOML: {message[: named.start()]}"


def _key_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Yield every table and key with its line; inline tables count as their key's line."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    named = set[KeyPath]()
    state = _Open()
    for number, line in enumerate(text.split("\n"), start=1):
        if state.is_open:
            state.read(line)
        elif header := _HEADER.match(line):
            table = _numbered(_parts(header[2]), counts, is_item=header[1] == "[[")
            yield from ((table[:end], number) for end in range(1, len(table)) if table[:end] not in named)
            yield table, number
            named.update(table[:end] for end in range(1, len(table) + 1))
        elif assignment := _ASSIGNMENT.match(line):
            yield (*table, *_parts(assignment[1])), number
            state.read(line[assignment.end() :])


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def _numbered(parts: tuple[str, ...], counts: dict[KeyPath, int], *, is_item: bool) -> KeyPath:
    """Return a header's path with the positions of the lists of tables it passes through."""
    path: KeyPath = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if is_item and index == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


class _Open:
    """Whether a value goes on in the next line: an open bracket or a text of several lines."""

    def __init__(self) -> None:
        self._brackets = 0
        self._quote = ""

    @property
    def is_open(self) -> bool:
        return bool(self._quote) or self._brackets > 0

    def read(self, line: str) -> None:
        """Take in one line of a value."""
        position = 0
        while position < len(line):
            if self._quote:
                position = self._end_of_text(line, position)
                continue
            token = _TOKEN.search(line, position)
            if token is None:
                return
            position = token.end()
            if token[0] in {'"""', "'''"}:
                self._quote = token[0]
            else:
                self._brackets += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)

    def _end_of_text(self, line: str, position: int) -> int:
        end = line.find(self._quote, position)
        while end > 0 and self._quote == '"""' and _is_escaped(line, end):
            end = line.find(self._quote, end + 1)
        if end < 0:
            return len(line)
        self._quote = ""
        return end + 3


def _is_escaped(line: str, position: int) -> bool:
    return len(list(takewhile(lambda mark: mark == "\\", reversed(line[:position])))) % 2 == 1
