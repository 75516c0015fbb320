"""A `.env` file that people write by hand: every line is understood, or told by its number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchflow_client.tasks.compose_variables import Lookup, TemplateError, VariableError, env_value

__all__ = ["EnvLineError", "read_env_lines"]

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*')\s*(#.*)?""", re.DOTALL)
_OPEN = re.compile(r"""(?:"(?:[^"\\]|\\.)*\\?|'[^']*)""", re.DOTALL)


class EnvLineError(Exception):
    """A line that cannot be read; the text says why and quotes nothing of it, since it may be a secret."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def read_env_lines(text: str, lookup: Lookup) -> dict[str, str]:
    """Return the variables of a `.env` file; a value in quotes may have several lines.

    Args:
        text: The file.
        lookup: Values of other variables, which `$NAME` in a value refers to before the file's own.

    Raises:
        EnvLineError: A line is neither empty, nor a comment, nor `NAME=VALUE`.
    """
    found: dict[str, str] = {}

    def known(name: str) -> str | None:
        given = lookup(name)
        return found.get(name) if given is None else given

    for number, name, value in _assignments(text):
        try:
            found[name] = env_value(value, known)
        except (VariableError, TemplateError):
            raise EnvLineError(
                number,
                "a `$` in it names no variable that is set: put the value in single quotes, or write `$$`",
            ) from None
    return found


def _assignments(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and value of each line that sets a variable."""
    lines = iter(enumerate(re.split(r"\r?\n", text.removeprefix("\ufeff")), start=1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise EnvLineError(number, "it is not of the form NAME=VALUE")
        value = match[2].strip()
        while _OPEN.fullmatch(value):
            _, more = next(lines, (0, None))
            if more is None:
                raise EnvLineError(number, "the quote before its value is never closed")
            value = f"{value}\n{more}"
        if value[:1] in {"'", '"'} and not _QUOTED.fullmatch(value):
            raise EnvLineError(number, "something follows the quote after its value")
        yield number, match[1], value
