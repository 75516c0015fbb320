"""Where tasks come from: a local folder, or a folder of a Git repository at one commit.

The grammar of a source:

    a path that exists               always wins
    org/repo[/folder][@ref]          a repository on GitHub
    URL[@ref][//folder]              https://, http://, ssh://, file://
    user@host:path[@ref][//folder]   ssh, the short form
    clone[/folder][@ref]             a local clone; read at the ref, not as checked out

`ref` is a branch, a tag or a commit and stands after the last `@`; without it the
default branch is read. `clone@ref//folder` and `org/repo@ref//folder` say the same
as their short forms.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import SecretStr

from benchflow_client.errors import SourceError
from benchflow_client.schema.plan import SourceInfo
from benchflow_client.tasks.findings import is_utf8, shown_name, suggestion
from benchflow_client.tasks.git import Checkout, checkout

DEADLINE_S = 600.0
"""Seconds for everything a source needs from the network; large repositories take minutes."""

_SCHEMES = ("https", "http", "ssh", "file")
_SHORT_SSH = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^:].*")
_GITHUB = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]{0,38})/([A-Za-z0-9_.-]{1,100})((?:/[^/]+)*)")
_REF = re.compile(r"(?!-)[^\x00-\x20\x7f~^:?*\[\\]{1,250}")

_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_USE = f"Use a folder, org/repo/folder@ref, or a URL with {', '.join(_SCHEMES)}."


@dataclass(frozen=True, slots=True)
class GitSource:
    """A folder of a repository.

    Attributes:
        url: Address given to Git, without any credential.
        ref: Branch, tag or commit; None = default branch.
        folder: Path in the repository, empty for its top.
        credential: Value of an Authorization header; None = none was given.
    """

    url: str
    ref: str | None
    folder: str
    credential: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A source as a folder on this machine, and what to remember about it."""

    path: Path
    info: SourceInfo


def resolve(text: str, *, cache_dir: Path, deadline_s: float = DEADLINE_S) -> ResolvedSource:
    """Return the folder a source stands for, fetching it when it is not local.

    Guarantees: a fetched folder holds one commit and is never changed afterwards, so
    that any number of processes may resolve and read at once; a credential in an
    address is neither stored nor shown.

    Args:
        text: A source in the grammar above.
        cache_dir: Folder for fetched repositories; made when missing.
        deadline_s: Seconds until a fetch is given up.

    Raises:
        SourceError: It does not exist, cannot be understood, or cannot be fetched.
    """
    local = Path(os.path.expanduser(text))
    if text.strip() and os.path.lexists(local):
        return ResolvedSource(local, SourceInfo(path=text if is_utf8(text) else shown_name(text)))
    source = parse_source(text)
    found = checkout(
        Checkout(source.url, source.ref, source.credential),
        cache_dir=cache_dir / "git",
        deadline_s=deadline_s,
    )
    path = _folder_in(found.path, source)
    info = SourceInfo(path=source.folder or ".", repo=source.url, ref=source.ref, commit=found.commit)
    return ResolvedSource(path, info)


def parse_source(text: str) -> GitSource:
    """Return what a source that is no local path means.

    Raises:
        SourceError: It follows no line of the grammar.
    """
    if not text.strip() or "\0" in text or not is_utf8(text):
        raise SourceError(
            "The task source is empty, or no text a path can have.",
            hint="Give a folder of tasks, or org/repo/folder@ref.",
        )
    scheme, separator, _ = text.partition("://")
    if separator:
        return _from_url(text, scheme)
    if "::" in text:
        raise SourceError(f"Task source {_shown(text)} names a transport that is never run.", hint=_USE)
    if _SHORT_SSH.fullmatch(text):
        return _from_short_ssh(text)
    source = _from_clone(text) or _from_github(text)
    if source is None:
        raise _no_such_folder(text)
    return source


def _from_url(text: str, scheme: str) -> GitSource:
    if scheme not in _SCHEMES:
        raise SourceError(f"Task source {_shown(text)} has an address that is never fetched.", hint=_USE)
    rest = text.removeprefix(f"{scheme}://")
    authority, slash, path = rest.partition("/")
    path, _, folder = path.partition("//")
    path, ref = _split_ref(path)
    try:
        url = urlsplit(f"{scheme}://{authority}{slash}{path}")
        port = f":{url.port}" if url.port else ""
    except ValueError as error:
        raise SourceError(f"Task source {_shown(text)} has no valid address.", hint=_USE) from error
    host = f"{url.hostname or ''}{port}"
    if ":" in (url.hostname or ""):
        host = f"[{url.hostname}]{port}"
    if scheme == "ssh" and url.username:
        host = f"{url.username}@{host}"
    clean = urlunsplit((scheme, host, url.path, url.query, ""))
    return GitSource(
        clean, _checked_ref(ref), _checked_folder(folder), _credential(url.username, url.password, scheme)
    )


def _credential(user: str | None, password: str | None, scheme: str) -> SecretStr | None:
    """Return the header for the user and password of an address."""
    if scheme not in {"http", "https"} or user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return SecretStr(f"Basic {base64.b64encode(pair.encode()).decode()}")


def _from_short_ssh(text: str) -> GitSource:
    host, _, path = text.partition(":")
    path, _, folder = path.partition("//")
    path, ref = _split_ref(path)
    if host.startswith("-") or path.startswith("-"):
        raise SourceError(f"Task source {_shown(text)} has no valid address.", hint=_USE)
    return GitSource(f"{host}:{path}", _checked_ref(ref), _checked_folder(folder))


def _from_clone(text: str) -> GitSource | None:
    """Return the source inside the nearest clone the path names or leads through.

    The folder the caller stands in counts only for a path that says so (`./tasks@v1`):
    inside any checkout, `org/repo@v1` still means GitHub.
    """
    before, ref, folder = _split_all(text)
    if ref is None:
        return None
    path = Path(os.path.abspath(os.path.expanduser(before)))
    is_anchored = before.startswith((".", "/", "~"))
    candidates = [
        clone for clone in (path, *path.parents) if is_anchored or clone.is_relative_to(_first(before))
    ]
    for clone in candidates:
        if _is_clone(clone):
            inner = path.relative_to(clone).as_posix()
            folder = folder or ("" if inner == "." else inner)
            return GitSource(f"file://{quote(str(clone))}", _checked_ref(ref), _checked_folder(folder))
    return None


def _first(path: str) -> Path:
    """Return the first folder a relative path names."""
    return Path(os.path.abspath(path.partition("/")[0] or "/"))


def _is_clone(folder: Path) -> bool:
    is_bare = os.path.isfile(folder / "HEAD") and os.path.isdir(folder / "objects")
    return is_bare or os.path.lexists(folder / ".git")


def _from_github(text: str) -> GitSource | None:
    before, ref, folder = _split_all(text)
    match = _GITHUB.fullmatch(before)
    if match is None or (ref is None and os.path.isdir(match[1])):
        return None  # a path whose first folder exists is a misspelt path
    url = f"https://github.com/{match[1]}/{match[2].removesuffix('.git')}.git"
    return GitSource(url, _checked_ref(ref), _checked_folder(folder or match[3].strip("/")))


def _split_all(text: str) -> tuple[str, str | None, str]:
    """Return what stands before the ref, the ref, and the folder after `//`."""
    address, separator, folder = text.partition("//")
    before, ref = _split_ref(address if separator and "@" in address else text)
    return before, ref, folder if separator and "@" in address else ""


def _split_ref(text: str) -> tuple[str, str | None]:
    before, separator, ref = text.rpartition("@")
    return (before, ref) if separator else (text, None)


def _checked_ref(ref: str | None) -> str | None:
    if ref is None:
        return None
    if not _REF.fullmatch(ref) or ".." in ref or "@{" in ref:
        raise SourceError(f"{ref!r} is no name of a branch, tag or commit.", hint="Give it after the last @.")
    return ref.lower() if _COMMIT.fullmatch(ref) else ref


def _checked_folder(folder: str) -> str:
    parts = PurePosixPath(folder.strip("/")).parts
    if ".." in parts or ".git" in parts:
        raise SourceError(
            f"Folder {shown_name(folder)!r} leaves the repository.", hint="Give a path without '..'."
        )
    return "/".join(parts)


def _folder_in(tree: Path, source: GitSource) -> Path:
    """Return the folder asked for; links that lead out of the checkout are not followed."""
    path = tree / source.folder
    root, real = os.path.realpath(tree), os.path.realpath(path)
    if os.path.isdir(path) and (real == root or real.startswith(f"{root}/")):
        return path
    there = sorted(
        f"{PurePosixPath(source.folder).parent / child.name}"
        for child in _listed(path.parent)
        if child.is_dir()
    )
    at = f" at {source.ref}" if source.ref else ""
    hint = f"There are: {', '.join(there[:10])}." if there else "Check the path below the repository."
    raise SourceError(
        f"There is no folder {source.folder!r} in {source.url}{at}.",
        hint=suggestion(source.folder, there) + hint,
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _no_such_folder(text: str) -> SourceError:
    path = Path(os.path.abspath(os.path.expanduser(text)))
    there = [child.name for child in _listed(path.parent) if child.is_dir()]
    return SourceError(f"There is no folder {_shown(text)}.", hint=suggestion(path.name, there) + _USE)


def _shown(text: str) -> str:
    """Return a source fit to be shown: no credential, one line."""
    return repr(re.sub(r"(://)[^/@\s]*@", r"\1…@", shown_name(text)))
