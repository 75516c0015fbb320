"""The subset of the Dockerfile language that local sandboxes build.

Refuses by name what would give another image than Docker gives; ignores, with a
note, what says how a container is started.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchflow_client.errors import SandboxError

IGNORED = frozenset({
    "ENTRYPOINT", "CMD", "EXPOSE", "LABEL", "HEALTHCHECK", "STOPSIGNAL", "MAINTAINER", "VOLUME", "ONBUILD",
})  # fmt: skip
"""Instructions without a meaning for a sandbox whose commands are given one by one."""

KNOWN = IGNORED | {"FROM", "WORKDIR", "ENV", "ARG", "COPY", "ADD", "RUN", "USER", "SHELL"}
"""Every instruction of the language."""

_FLAGS: Mapping[str, frozenset[str]] = {
    "COPY": frozenset({"chown", "chmod", "link"}),
    "ADD": frozenset({"chown", "chmod", "link"}),
}
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*")
_FLAG = re.compile(r"--(\w[\w-]*)(?:=(\S*))?\s*")
_HEREDOC = re.compile(r"(?:^|\s)<<-?[\"']?\w+")
_VARIABLE = re.compile(
    r"\\(?P<escaped>\$)|\$(?P<name>\w+)|\$\{(?P<braced>\w+)(?:(?P<rule>:?[-+])(?P<word>[^{}]*))?\}"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        line: Number of its first line.
        keyword: Upper case.
        text: What follows the keyword and the flags, lines joined.
        flags: `--name=value` before the text.
    """

    line: int
    keyword: str
    text: str
    flags: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> list[str] | None:
        """Return the exec form `["a", "b"]` as a list; None = the text is a shell's."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return [str(word) for word in words]
        return None


def parse(text: str) -> list[Instruction]:
    """Read a Dockerfile.

    Raises:
        SandboxError: `sandbox.build_failed` for what is no Dockerfile,
            `task.unsupported` for what only Docker can do; both name the line.
    """
    instructions = [_instruction(line, statement) for line, statement in _statements(text)]
    stages = [item for item in instructions if item.keyword == "FROM"]
    if not stages:
        raise _broken(1, "it has no FROM instruction", "Start it with FROM and an image.")
    if len(stages) > 1:
        raise unsupported(stages[1].line, "more than one FROM (a multi-stage build)")
    early = next((item for item in instructions if item.keyword not in {"ARG", "FROM"}), stages[0])
    if early.line < stages[0].line:
        raise _broken(early.line, f"{early.keyword} stands before FROM", "Move it below FROM.")
    return instructions


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, statement) with continuation lines joined and comments gone."""
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape_character(lines)
    start, parts = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#") or (parts and not line.strip()):
            continue
        if not parts and not line.strip():
            continue
        start = start if parts else number
        body = line.rstrip()
        if body.endswith(escape):
            parts.append(body[:-1])
            continue
        parts.append(body)
        yield start, "".join(parts).strip()
        parts = []
    if parts:
        yield start, "".join(parts).strip()


def _escape_character(lines: list[str]) -> str:
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            return "\\"
        if match[1].lower() == "escape":
            return match[2]
    return "\\"


def _instruction(line: int, statement: str) -> Instruction:
    keyword, _, text = statement.partition(" ")
    if "\t" in keyword:
        keyword, _, text = statement.partition("\t")
    keyword, text = keyword.upper(), text.strip()
    if keyword not in KNOWN:
        raise _broken(line, f"{keyword} is no instruction", "Fix the spelling.")
    if not text:
        raise _broken(line, f"{keyword} has no arguments", "Give them, or remove the line.")
    flags: dict[str, str] = {}
    if keyword in {"FROM", "RUN", "COPY", "ADD"}:
        while match := _FLAG.match(text):
            if match[1] not in _FLAGS.get(keyword, ()):
                raise unsupported(line, f"{keyword} --{match[1]}")
            flags[match[1]] = match[2] or ""
            text = text[match.end() :]
    if keyword in {"RUN", "COPY", "ADD"} and _HEREDOC.search(text) and _is_heredoc(keyword, text):
        raise unsupported(line, f"a heredoc in {keyword}")
    return Instruction(line, keyword, text, flags)


def _is_heredoc(keyword: str, text: str) -> bool:
    """Return whether `<<` opens a heredoc of the Dockerfile; one inside quotes is the shell's affair."""
    if keyword != "RUN":
        return True
    unquoted = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"", "", text)
    return _HEREDOC.search(unquoted) is not None


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Put variables in: `$A`, `${A}`, `${A:-word}`, `${A:+word}`; unknown ones are empty."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        found = variables.get(match["name"] or match["braced"])
        rule, word = match["rule"], match["word"] or ""
        if rule is None:
            return found or ""
        is_set = bool(found) if rule.startswith(":") else found is not None
        if rule.endswith("-"):
            return (found or "") if is_set else word
        return word if is_set else ""

    return _VARIABLE.sub(value, text)


def assignments(item: Instruction, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what an ENV sets: `A=b C="d e"`, or the old form `A b c`.

    Raises:
        SandboxError: `sandbox.build_failed` when it cannot be read.
    """
    first = item.text.split(None, 1)
    if "=" not in first[0]:
        if len(first) < 2:
            raise _broken(item.line, f"{item.keyword} {item.text} has no value", "Write NAME=value.")
        return {first[0]: expand(first[1], variables)}
    found: dict[str, str] = {}
    for word in split(item, _keep_dollars(variables)):
        name, sign, value = word.partition("=")
        if not sign:
            raise _broken(item.line, f"{word!r} is not NAME=value", "Quote values that hold spaces.")
        found[name] = value
    return found


def _keep_dollars(variables: Mapping[str, str]) -> Callable[[str], str]:
    return lambda text: expand(text, variables)


def split(item: Instruction, transform: Callable[[str], str] = str) -> list[str]:
    """Return the words of an instruction, quotes removed; words in single quotes are not expanded.

    Raises:
        SandboxError: `sandbox.build_failed` when a quote is not closed.
    """
    pieces = re.split(r"('[^']*')", item.text)
    text = "".join(piece if piece.startswith("'") else _protected(transform, piece) for piece in pieces)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise _broken(item.line, f"{item.text!r}: {error}", "Close the quote.") from error


def _protected(transform: Callable[[str], str], text: str) -> str:
    """Expand a text so that blanks and quotes in a value do not split words."""
    return _VARIABLE.sub(lambda match: _quoted(transform(match[0]), text, match.start()), text)


def _quoted(value: str, text: str, position: int) -> str:
    is_inside = text[:position].replace('\\"', "").count('"') % 2 == 1
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return escaped if is_inside else f'"{escaped}"'


def unsupported(line: int, feature: str) -> SandboxError:
    """Return the error for what only Docker can do."""
    return SandboxError(
        "task.unsupported",
        f"Dockerfile line {line}: local sandboxes do not know {feature}.",
        hint="Run the task with --sandbox docker, or write the line without it.",
    )


def _broken(line: int, reason: str, fix: str) -> SandboxError:
    return SandboxError("sandbox.build_failed", f"Dockerfile line {line}: {reason}.", hint=fix)


def base_image(instructions: Sequence[Instruction]) -> str:
    """Return the image that FROM names, arguments before it put in.

    Raises:
        SandboxError: `sandbox.build_failed` when it names none.
    """
    variables: dict[str, str] = {}
    for item in instructions:
        if item.keyword == "FROM":
            words = expand(item.text, variables).split()
            if words:
                return words[0]
            raise _broken(item.line, f"FROM {item.text} names no image", "Give the ARG before it a default.")
        name, _, value = item.text.partition("=")
        variables[name.strip()] = expand(value.strip().strip("\"'"), variables)
    raise _broken(1, "it has no FROM instruction", "Start it with FROM and an image.")
