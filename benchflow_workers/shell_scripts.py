"""Shell scripts that authors wrote on another system: what must change before a sandbox runs them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from benchflow_workers.sandbox.base import Upload

__all__ = ["interpreter_of", "is_shell_script", "unix_copies", "unix_text"]

HEAD_BYTES = 256
"""The kernel reads no more of a `#!` line."""

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})


def interpreter_of(head: bytes) -> str | None:
    """Return the program a `#!` line names; None where there is no such line.

    With `env` it is the program `env` looks up, found on PATH.
    """
    if not head.startswith(b"#!"):
        return None
    words = head[2:HEAD_BYTES].splitlines()[0].decode("utf-8", "replace").split() if head[2:] else []
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word] or words
    return words[0] if words else None


def is_shell_script(name: str, head: bytes) -> bool:
    """Return whether a file is one for a shell, by its `#!` line or else by its name."""
    interpreter = interpreter_of(head)
    if interpreter is None:
        return name.endswith((".sh", ".bash"))
    return PurePosixPath(interpreter).name in _SHELLS


def unix_text(content: bytes) -> bytes:
    """Return a script with LF line ends, which is what every shell expects."""
    return content.replace(b"\r\n", b"\n")


def unix_copies(folder: Path, target: str) -> list[Upload]:
    """Return replacements for the shell scripts of a folder that have CRLF line ends.

    Placed after the folder itself. Only shell scripts are touched: other files may
    need their bytes as they are.

    Args:
        folder: Folder on the worker.
        target: Where it is placed in the sandbox.
    """
    copies = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if not is_shell_script(path.name, head) or b"\r\n" not in (content := head + file.read()):
                continue
        mode = path.stat().st_mode & 0o777 | 0o600
        copies.append(
            Upload(f"{target}/{path.relative_to(folder).as_posix()}", content=unix_text(content), mode=mode)
        )
    return copies
