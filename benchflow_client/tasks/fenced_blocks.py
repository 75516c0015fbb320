"""Take a task.md apart that begins with its prompt and ends with fenced blocks, the last of them `toml task`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`]*?)[ \t]*")
_CONFIG = "toml task"
_TYPED = re.compile(r"(toml task|notes|user)|(stage|role) +\S+")
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        info: What stands behind the fence: `toml task`, `notes`, `json`.
        text: Its lines.
        line: Line of the file at which its text starts.
        is_closed: Whether a fence ends it.
    """

    info: str
    text: str
    line: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class FencedDocument:
    """A task.md of this form.

    Attributes:
        prompt: The Markdown above the typed blocks, without a comment at its top.
        blocks: The typed blocks in order.
        stray_line: First line with text between or below the typed blocks; None = there is none.
    """

    prompt: str
    blocks: tuple[Block, ...]
    stray_line: int | None


def is_fenced(text: str) -> bool:
    """Return whether a task.md is of this form: no front matter, and a `toml task` block."""
    if text.startswith("---") or _CONFIG not in text:
        return False
    return any(block.info == _CONFIG for block in take_apart(text).blocks)


def take_apart(text: str) -> FencedDocument:
    """Return the parts of a task.md; any text has some."""
    lines = text.replace("\r\n", "\n").split("\n")
    blocks: list[Block] = []
    prompt_end, stray = len(lines), None
    for number, block in _parts(lines):
        is_typed = block is not None and _TYPED.fullmatch(block.info)
        if block is not None and is_typed:
            prompt_end = number if not blocks else prompt_end
            blocks.append(block)
        elif blocks and stray is None and (block is not None or lines[number].strip()):
            stray = number + 1
    prompt = _COMMENT.sub("", "\n".join(lines[:prompt_end]), count=1) if _starts_with_comment(lines) else None
    whole = "\n".join(lines[:prompt_end]) if prompt is None else prompt
    return FencedDocument(f"{whole.strip()}\n" if whole.strip() else "", tuple(blocks), stray)


def _starts_with_comment(lines: list[str]) -> bool:
    return next((line for line in lines if line.strip()), "").lstrip().startswith("<!--")


def _parts(lines: list[str]) -> Iterator[tuple[int, Block | None]]:
    """Yield each plain line as None and each fenced block, with the index of its first line."""
    index = 0
    while index < len(lines):
        opening = _FENCE.fullmatch(lines[index])
        if opening is None:
            yield index, None
            index += 1
            continue
        end = next((at for at in range(index + 1, len(lines)) if _closes(lines[at], opening[1])), None)
        stop = len(lines) if end is None else end
        text = "\n".join(lines[index + 1 : stop])
        yield index, Block(" ".join(opening[2].split()), text, index + 2, end is not None)
        index = stop + 1


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and not text.strip(fence[0]) and len(line) - len(line.lstrip(" ")) <= 3
