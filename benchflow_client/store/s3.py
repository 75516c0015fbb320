"""A store on any S3-compatible service; the only file that knows `obstore`.

A document appears whole because S3 makes an object visible only when its upload is complete.
Error texts of the service may quote what was sent, so they are never chained to our errors nor
passed on as they are: see `ServiceErrors`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from benchflow_client.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from benchflow_client.store.keys import check_key, check_prefix, join, relative_to
from benchflow_client.store.local import (
    FileFacts,
    SourceFile,
    disk_errors,
    is_current,
    keep_facts,
    open_source,
    place_below,
    regular_files,
    temp_beside,
)
from benchflow_client.store.options import S3Options
from benchflow_client.store.s3_errors import ServiceErrors

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

T = TypeVar("T")
U = TypeVar("U")

_PART_BYTES = 8 * 1024 * 1024
"""Size of a part of a large upload; the 10,000 parts S3 allows make 80 GiB."""

_PARTS_AT_ONCE = 4
"""Parts of one file in flight; with `_PART_BYTES` at most 32 MiB of memory a file."""

_FILES_AT_ONCE = 8
"""Threads of one tree; small files are bound by round trips, not by the CPU."""

_BATCH = 1000
"""Keys deleted by one request (the limit of DeleteObjects), and files handed out at once."""

_CONNECT_S = 5
_STALL_S = 60
_REQUEST_S = 3600
"""Seconds: to connect, without a byte of answer, and for one whole request."""

_NONCE = "benchflow-write"
_EXECUTABLE = "benchflow-executable"
"""Names of the metadata that mark who created an object, and that a file was executable."""


class ObjectStore:
    """A `Store` whose keys are objects below a prefix of a bucket.

    Permission to execute is kept as metadata. A bucket in which somebody else made a key that
    no folder can hold (`a//b`, `a/../b`) cannot be listed: `StoreError`.

    Args:
        url: ``s3://bucket`` or ``s3://bucket/prefix``, without credentials.
        options: Endpoint and credentials; None = AWS with the credentials found there.
        retries: Repetitions of a request that failed for a passing reason.

    Raises:
        StoreError: The address or the endpoint cannot be used.
    """

    def __init__(self, url: str, options: S3Options | None = None, *, retries: int = 5) -> None:
        settings = options or S3Options()
        bucket, prefix = _parse(url)
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._errors = ServiceErrors(self._url, settings.secret_values())
        self._objects = S3Store(
            bucket,
            prefix=prefix or None,
            config=_config(settings),
            client_options=_client(settings),
            retry_config=_retry(retries),
            credential_provider=_credentials(settings),
        )

    @property
    def url(self) -> str:
        """Return the address of the bucket and prefix."""
        return self._url

    def put(self, key: str, data: bytes) -> None:
        """Write a whole document, replacing what is there."""
        self._upload(check_key(key), io.BytesIO(data), FileFacts(len(data), 0, is_executable=False))

    def create(self, key: str, data: bytes) -> None:
        """Write a document that must not exist yet; of several writers one wins.

        Raises:
            ObjectExistsError: Somebody wrote it before; theirs stands.
        """
        check_key(key)
        nonce = uuid4().hex

        def send() -> bool:
            try:
                obstore.put(self._objects, key, data, mode="create", attributes={_NONCE: nonce})
            except AlreadyExistsError:
                # A repeated request whose first answer was lost meets its own object.
                return self._head(key).attributes.get(_NONCE) == nonce
            return True

        if not self._call(f"write {key!r}", send):
            raise ObjectExistsError(
                f"{key!r} is already written in the store {self._url}.",
                hint="Choose another name, or keep what is there.",
            )

    def get(self, key: str) -> bytes:
        """Return a whole document.

        Raises:
            ObjectNotFoundError: There is none.
        """
        check_key(key)
        return self._call(
            f"read {key!r}", lambda: bytes(obstore.get(self._objects, key).bytes()), missing=key
        )

    def exists(self, key: str) -> bool:
        """Return whether a document is there."""
        check_key(key)
        try:
            self._call(f"look for {key!r}", lambda: self._head(key), missing=key)
        except ObjectNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[str]:
        """Yield every key below a folder-like prefix."""
        for found in self._listed(check_prefix(prefix)):
            yield found["path"]

    def put_file(self, key: str, source: Path) -> None:
        """Write a regular file of any size as a document, in parts; a symlink is refused."""
        check_key(key)
        with open_source(source) as (stream, facts):
            self._upload(key, stream, facts)

    def get_file(self, key: str, target: Path) -> None:
        """Copy a document of any size to a local file; `target` appears whole.

        Raises:
            ObjectNotFoundError: There is none.
        """
        action = f"read {check_key(key)!r}"
        answer = self._call(action, lambda: obstore.get(self._objects, key), missing=key)
        facts = FileFacts(
            answer.meta["size"], _modified_ns(answer.meta), answer.attributes.get(_EXECUTABLE) == "1"
        )
        chunks = iter(answer.stream(min_chunk_size=_PART_BYTES))
        with disk_errors(f"copy {key!r}", target.parent), temp_beside(target) as (temp, stream):
            while chunk := self._call(action, lambda: next(chunks, b"")):
                stream.write(chunk)
            received = stream.tell()
            stream.close()
            keep_facts(temp, facts)
            if received != facts.size:
                raise _cut_short(key, self._url, received, facts.size)
            temp.replace(target)

    def put_tree(self, prefix: str, folder: Path) -> None:
        """Write every regular file below a folder under `prefix`, several at once."""
        bare = check_prefix(prefix)

        def send(source: SourceFile) -> None:
            self.put_file(join(bare, source.relative), source.path)

        for _ in _at_once(send, regular_files(folder, prefix=bare)):
            pass

    def get_tree(self, prefix: str, folder: Path) -> int:
        """Copy every document below `prefix` into a folder, several at once.

        Returns:
            Number of documents now in the folder, those already there included.
        """
        bare = check_prefix(prefix)

        def bring(found: ObjectMeta) -> bool:
            return self._bring(found, place_below(folder, relative_to(bare, found["path"])))

        return sum(_at_once(bring, self._listed(bare)))

    def delete_tree(self, prefix: str) -> None:
        """Remove every document below a prefix; none there is fine."""
        keys = (found["path"] for found in self._listed(check_key(check_prefix(prefix))))
        while batch := list(islice(keys, _BATCH)):
            self._call(f"remove {prefix!r}", partial(obstore.delete, self._objects, batch))

    def _bring(self, found: ObjectMeta, target: Path | None) -> bool:
        facts = FileFacts(found["size"], _modified_ns(found), is_executable=False)
        if target is None:
            return False
        if not is_current(target, facts):
            try:
                self.get_file(found["path"], target)
            except ObjectNotFoundError:
                return False  # removed since it was listed, or a console's mark of an empty folder
        return True

    def _upload(self, key: str, stream: BinaryIO, facts: FileFacts) -> None:
        def send() -> None:
            obstore.put(
                self._objects,
                key,
                stream,
                attributes={_EXECUTABLE: "1"} if facts.is_executable else None,
                use_multipart=facts.size > _PART_BYTES,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

        self._call(f"write {key!r}", send)

    def _call(self, action: str, function: Callable[[], T], *, missing: str | None = None) -> T:
        """Return what one call of the library returns, with its errors turned into ours.

        Args:
            action: What is tried, for the message.
            function: The call.
            missing: Key whose absence the call may find; None = absence is a failure.
        """
        _RUNTIME.enter(action)
        try:
            return function()
        except (BaseError, OSError, ValueError) as error:
            is_absent = isinstance(error, FileNotFoundError)
            text = str(error)
        # Raised after the block, so that no traceback shows the foreign text.
        if is_absent and missing is not None and not self._errors.is_bucket_missing(text):
            raise self._errors.absent(missing)
        raise self._errors.explain(action, text)

    def _head(self, key: str) -> GetResult:
        return obstore.get(self._objects, key, options={"head": True})

    def _listed(self, prefix: str) -> Iterator[ObjectMeta]:
        action = f"list {prefix!r}"
        chunks = self._call(action, lambda: iter(obstore.list(self._objects, prefix=prefix or None)))
        while chunk := self._call(action, lambda: next(chunks, ())):
            yield from chunk


class _Runtime:
    """The threads of `obstore` (0.12), of which a forked child has none: its calls never end."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def enter(self, action: str) -> None:
        """Refuse a call in a child of the process that made the first one."""
        self._pid = self._pid or os.getpid()
        if self._pid != os.getpid():
            raise StoreError(
                f"Cannot {action}: this process was forked from one that had used an s3:// store.",
                hint="Use threads, start processes by spawn, or fork before the store is used.",
            )


_RUNTIME = _Runtime()


def _parse(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.hostname or parts.username or parts.port or parts.query:
        raise StoreError(
            "The address of an S3 store has no bucket, or more than a bucket and a prefix.",
            hint="Write s3://bucket/prefix; endpoint and keys are settings of their own.",
        )
    return parts.netloc, check_prefix(parts.path.strip("/"))


def _config(options: S3Options) -> S3Config:
    config: S3Config = {"region": options.region}
    if options.endpoint is not None:
        # Under this name the setting also beats a variable AWS_ENDPOINT_URL_S3 of the machine.
        config["aws_endpoint_url_s3"] = options.endpoint
    return config


def _client(options: S3Options) -> ClientConfig:
    return {
        "allow_http": _is_http_allowed(options),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "read_timeout": timedelta(seconds=_STALL_S),
        "timeout": timedelta(seconds=_REQUEST_S),
    }


def _is_http_allowed(options: S3Options) -> bool:
    """Return whether the endpoint is plain HTTP; refuse it where others could listen."""
    if options.endpoint is None:
        return False
    parts = urlsplit(options.endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
        raise StoreError(
            "The S3 endpoint is not an http(s) address without credentials.",
            hint="Write https://host:port; the keys are settings of their own.",
        )
    if parts.scheme == "http" and not (options.allow_http or _is_loopback(parts.hostname)):
        raise StoreError(
            f"The S3 endpoint at {parts.hostname} is not encrypted and not on this machine.",
            hint="Use https://, or allow plain HTTP for the store in the settings.",
        )
    return parts.scheme == "http"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _credentials(options: S3Options) -> Callable[[], S3Credential] | None:
    """Return the given keys as a provider, which keeps them out of the client's own settings."""
    if options.access_key_id is None or options.secret_access_key is None:
        return None
    credential: S3Credential = {
        "access_key_id": options.access_key_id.get_secret_value(),
        "secret_access_key": options.secret_access_key.get_secret_value(),
        "token": options.session_token.get_secret_value() if options.session_token else None,
        "expires_at": None,
    }
    return lambda: credential


def _retry(retries: int) -> RetryConfig:
    return {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=_STALL_S * 2),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }


def _modified_ns(meta: ObjectMeta) -> int:
    return int(meta["last_modified"].timestamp()) * 1_000_000_000


def _at_once(function: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
    """Yield the results over all items, a bounded number of them in flight."""
    remaining = iter(items)
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="store") as pool:
        while batch := list(islice(remaining, _BATCH)):
            yield from pool.map(function, batch)


def _cut_short(key: str, url: str, received: int, size: int) -> StoreError:
    return StoreError(
        f"Cannot read {key!r} in the store {url}: {received} of {size} bytes arrived.",
        hint="Check the network, then try again; nothing incomplete was kept.",
    )
