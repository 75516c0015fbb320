"""Parse YAML from strangers: no tags, no bombs, no duplicate keys, and the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from benchflow_client.tasks.findings import Findings, place, shown_value
from benchflow_client.tasks.raw import DEPTH_LIMIT, KeyPath, NotPlainError, Raw, plain

TEXT_LIMIT = 256 << 10
"""Characters of YAML that are read; front matter is a few kB."""

_NODE_LIMIT = 20_000
"""Values after aliases are written out; an alias bomb has billions."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times faster


class _RefusedError(Exception):
    """The text is YAML, but not of the kind a task file needs."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


def parse_yaml(text: str, file: str, findings: Findings, *, first_line: int) -> Raw | None:
    """Return the mapping a YAML text holds, or None when a problem was added.

    Args:
        text: The YAML.
        file: Where it stands, for messages.
        findings: Gets the problems.
        first_line: Line of `file` at which the text starts.
    """
    try:
        node, data = _load(text)
    except _RefusedError as error:
        line = None if error.line is None else error.line + first_line
        findings.problem(f"{place(file, line)}: {error}")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + first_line
        reason = getattr(error, "problem", None) or "unexpected content"
        findings.problem(f"{place(file, line)}: not valid YAML: {reason}")
    except (NotPlainError, RecursionError):
        findings.problem(f"{place(file)}: the YAML nests too deeply")
    except (ValueError, OverflowError) as error:
        findings.problem(f"{place(file)}: not valid YAML: {error}")
    else:
        if isinstance(data, dict):
            return Raw(file, data, lambda: dict(_key_lines(node, (), first_line)), {})
        findings.problem(f"{place(file, first_line)}: expected `key: value` lines, not {shown_value(data)}")
    return None


def _load(text: str) -> tuple[Any, Any]:
    """Return the node tree and the plain data of a text that is known to be harmless."""
    if len(text) > TEXT_LIMIT:
        raise _RefusedError(f"more than {TEXT_LIMIT >> 10} KiB of YAML")
    _refuse_bombs(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _refuse_duplicates(node)
        return node, plain(loader.construct_document(node))
    finally:
        loader.dispose()


class _Size:
    """Counts values as if every alias were written out."""

    def __init__(self) -> None:
        self._open: list[tuple[str | None, int]] = [(None, 0)]
        self._anchors: dict[str, int] = {}

    def begin(self, anchor: str | None, line: int) -> None:
        """Enter a list or mapping; from here to its end its anchor stands for nothing complete."""
        if anchor is not None:
            self._anchors.pop(anchor, None)
        self._open.append((anchor, 1))
        if len(self._open) > DEPTH_LIMIT:
            raise _RefusedError("the YAML nests too deeply", line)

    def add(self, count: int, line: int) -> None:
        """Count values in the innermost list or mapping."""
        anchor, size = self._open[-1]
        self._open[-1] = (anchor, size + count)
        if size + count > _NODE_LIMIT:
            raise _RefusedError(f"more than {_NODE_LIMIT} values, aliases written out", line)

    def end(self, line: int) -> None:
        """Leave the innermost list or mapping."""
        anchor, size = self._open.pop()
        self.remember(anchor, size)
        self.add(size, line)

    def remember(self, anchor: str | None, size: int) -> None:
        """Keep the size of an anchored value."""
        if anchor is not None:
            self._anchors[anchor] = size

    def of(self, anchor: str | None, line: int) -> int:
        """Return the size an alias stands for."""
        if anchor is None or anchor not in self._anchors:
            raise _RefusedError(f"alias *{anchor} stands for nothing that is complete", line)
        return self._anchors[anchor]


def _refuse_bombs(text: str) -> None:
    """Refuse tags, deep nesting and aliases that multiply, without building anything."""
    size = _Size()
    event: Any  # the stubs know neither tags nor marks of an event
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line
        if getattr(event, "tag", None) is not None:
            raise _RefusedError(f"tag {event.tag!r} is not read", line)
        if isinstance(event, yaml.CollectionStartEvent):
            size.begin(event.anchor, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            size.end(line)
        elif isinstance(event, yaml.ScalarEvent):
            size.remember(event.anchor, 1)
            size.add(1, line)
        elif isinstance(event, yaml.AliasEvent):
            size.add(size.of(event.anchor, line), line)


def _refuse_duplicates(root: Any) -> None:
    """Refuse a mapping that gives one key twice: the parser would silently keep the last."""
    pending, seen = [root], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
            continue
        keys = set[str]()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise _RefusedError(f"key {key.value!r} is given twice", key.start_mark.line)
            keys.add(str(key.value))
            pending.append(value)


def _key_lines(node: Any, path: KeyPath, first_line: int) -> Iterator[tuple[KeyPath, int]]:
    """Yield every key and list item with its line."""
    if path:
        yield path, node.start_mark.line + first_line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value)), key.start_mark.line + first_line
            for found, line in _key_lines(value, (*path, str(key.value)), first_line):
                if len(found) > len(path) + 1:
                    yield found, line
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _key_lines(value, (*path, index), first_line)
