"""Variables in a compose file: `$X`, `${X}`, `${X:-default}`, `${X:?message}`, `${X:+other}`, `$$`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}

Lookup = Callable[[str], str | None]
"""Returns a variable's value, None where it has none."""


class VariableError(Exception):
    """A variable has no value and no default; the text says which and what the file says of it."""

    def __init__(self, name: str, message: str = "") -> None:
        super().__init__(message or "it has no value and no default")
        self.name = name


class TemplateError(Exception):
    """A `$` that starts no variable."""


def fill_in(value: Any, lookup: Lookup) -> Any:
    """Return plain data with the variables in all its texts (not its keys) filled in.

    Raises:
        VariableError: One has no value.
        TemplateError: A text is no template; `$$` means a plain `$`.
    """
    try:
        return _fill_in(value, lookup)
    except RecursionError:
        raise TemplateError("variables stand in the defaults of variables too deeply") from None


def _fill_in(value: Any, lookup: Lookup) -> Any:
    if isinstance(value, dict):
        return {key: _fill_in(item, lookup) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in(item, lookup) for item in value]
    return _filled(value, lookup) if isinstance(value, str) and "$" in value else value


def _filled(text: str, lookup: Lookup) -> str:
    parts, position = [], 0
    while (mark := text.find("$", position)) >= 0:
        parts.append(text[position:mark])
        part, position = _variable(text, mark + 1, lookup)
        parts.append(part)
    return "".join((*parts, text[position:]))


def _variable(text: str, start: int, lookup: Lookup) -> tuple[str, int]:
    """Return what stands for the variable after a `$`, and where the text goes on."""
    if text[start : start + 1] == "$":
        return "$", start + 1
    if text[start : start + 1] == "{":
        end = _closing(text, start + 1)
        return _braced(text[start + 1 : end], lookup), end + 1
    name = _NAME.match(text, start)
    if name is None:
        raise TemplateError(f"{text!r} has a `$` before no name; write `$$` for a plain `$`")
    return _required(name[0], lookup(name[0])), name.end()


def _closing(text: str, start: int) -> int:
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": text[index - 1] == "$", "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise TemplateError(f"{text!r} has a `${{` without its `}}`")


def _braced(inner: str, lookup: Lookup) -> str:
    name = _NAME.match(inner)
    if name is None:
        raise TemplateError(f"`${{{inner}}}` names no variable")
    value, rest = lookup(name[0]), inner[name.end() :]
    if not rest:
        return _required(name[0], value)
    operator = rest[:2] if rest[:1] == ":" else rest[:1]
    argument = rest[len(operator) :]
    is_given = bool(value) if operator.startswith(":") else value is not None
    if operator in {"-", ":-"}:
        return value or "" if is_given else _filled(argument, lookup)
    if operator in {"+", ":+"}:
        return _filled(argument, lookup) if is_given else ""
    if operator not in {"?", ":?"}:
        raise TemplateError(f"`${{{inner}}}` is no form of a variable")
    if not is_given:
        raise VariableError(name[0], _filled(argument, lookup))
    return value or ""


def _required(name: str, value: str | None) -> str:
    if value is None:
        raise VariableError(name)
    return value


def read_env_file(text: str, lookup: Lookup) -> dict[str, str]:
    """Return the variables of a `.env` file; lines that set none are left out.

    Raises:
        VariableError: As `fill_in`; in single quotes nothing is filled in.
        TemplateError: Likewise.
    """
    found: dict[str, str] = {}

    def known(name: str) -> str | None:
        given = lookup(name)
        return found.get(name) if given is None else given

    for line in text.lstrip("\ufeff").splitlines():
        if (match := _LINE.fullmatch(line)) is not None:
            found[match[1]] = env_value(match[2].strip(), known)
    return found


def env_value(text: str, lookup: Lookup) -> str:
    """Return the value of a variable as it stands in a `.env` file.

    Raises:
        VariableError: As `fill_in`; in single quotes nothing is filled in.
        TemplateError: Likewise.
    """
    if text[:1] == "'" and (end := text.find("'", 1)) > 0:
        return text[1:end]
    if quoted := re.match(r'"((?:[^"\\]|\\.)*)"', text):
        plain = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted[1])
        return _filled(plain, lookup)
    return _filled(re.split(r"\s+#", f" {text}", maxsplit=1)[0].strip(), lookup)


def over(*tables: Mapping[str, str]) -> Lookup:
    """Return a lookup in several tables; an earlier one wins."""
    return lambda name: next((table[name] for table in tables if name in table), None)
