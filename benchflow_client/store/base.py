"""The store contract: durable documents and artifacts under plain keys.

A key is a relative POSIX path such as ``calm-otter-7f3a/spec.json``. Workers and
clients need no shared disk: any S3-compatible store behind the same protocol will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Documents and artifacts by key; safe to use from several threads.

    All methods raise `StoreError` when the store cannot be reached or refuses,
    and `StoreFullError` when it has no space left.
    """

    @property
    def url(self) -> str:
        """Address of the store, without any credential."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write a whole document, replacing what is there.

        Guarantees: a reader sees the old or the new document, never a part; after
        a failed write the old one stands.
        """
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write a document that must not exist yet.

        Raises:
            ObjectExistsError: Somebody wrote it before; theirs stands.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return a whole document.

        Raises:
            ObjectNotFoundError: There is none.
        """
        ...

    def exists(self, key: str) -> bool:
        """Return whether a document is there."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield every key below a folder-like prefix, in no promised order."""
        ...

    def put_file(self, key: str, source: Path) -> None:
        """Write a file of any size as a document, streaming; atomic like `put`."""
        ...

    def get_file(self, key: str, target: Path) -> None:
        """Copy a document of any size to a local file, streaming; `target` appears whole.

        Raises:
            ObjectNotFoundError: There is none.
        """
        ...

    def put_tree(self, prefix: str, folder: Path) -> None:
        """Write every regular file below a folder under `prefix`; symlinks are left out."""
        ...

    def get_tree(self, prefix: str, folder: Path) -> int:
        """Copy every document below `prefix` into a folder and return how many.

        Documents already there with the same size and a newer time are not copied again.
        Keys that would land outside `folder` are left out.
        """
        ...

    def delete_tree(self, prefix: str) -> None:
        """Remove every document below a prefix; none there is fine."""
        ...
