"""From an address to a store: the one list of kinds of store."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchflow_client.errors import MissingExtraError, StoreError
from benchflow_client.store.base import Store
from benchflow_client.store.files import FileStore
from benchflow_client.store.options import S3Options

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def open_store(url: str, *, s3: S3Options | None = None) -> Store:
    """Return the store at an address; nothing is read or written yet.

    Args:
        url: A folder, ``file:///folder`` or ``s3://bucket/prefix``.
        s3: Endpoint and credentials of an S3 service; None = AWS and what its tools find.

    Raises:
        StoreError: The address is empty, of an unknown kind, or cannot be used.
        MissingExtraError: The kind needs an extra that is not installed.
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return _open_folder(url)
    kind = scheme[1].lower()
    if kind == "file":
        return _open_file_url(url)
    if kind == "s3":
        return _open_s3(url, s3)
    raise StoreError(
        f"Stores of the kind {kind!r} are not known.",
        hint="Give a folder, file:///folder or s3://bucket/prefix.",
    )


def _open_folder(path: str) -> Store:
    if not path.strip() or "\0" in path:
        raise StoreError(f"{path!r} is no address of a store.", hint="Give a folder or s3://bucket/prefix.")
    return FileStore(Path(path))


def _open_file_url(url: str) -> Store:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise StoreError(
            f"{url!r} is not a folder of this machine.", hint="Write file:///folder with three slashes."
        )
    return _open_folder(unquote(parts.path))


def _open_s3(url: str, options: S3Options | None) -> Store:
    try:
        from benchflow_client.store.s3 import ObjectStore  # ruff: ignore[import-outside-top-level]
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "obstore":
            raise
        raise MissingExtraError("An s3:// store", "s3") from error
    return ObjectStore(url, options)
