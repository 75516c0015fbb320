"""Typed documents in a store: pydantic records as canonical JSON.

Canonical means UTF-8, fields in the order of the record, two spaces of indent and a newline at
the end, so that the same record is the same bytes and a person can read and compare them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from benchflow_client.errors import StoreError
from benchflow_client.schema.base import SCHEMA_VERSION
from benchflow_client.store.base import Store

M = TypeVar("M", bound=BaseModel)

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LINE_ENDS = {end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Unicode's line ends, which many readers split at; JSON escapes the others itself."""


def read_document(store: Store, key: str, model: type[M]) -> M:
    """Return the record stored under a key.

    Raises:
        ObjectNotFoundError: There is none.
        StoreError: It is not readable as that record, or of a newer version.
    """
    return decode(store.get(key), model, place=f"{key!r} in the store {store.url}")


def write_document(store: Store, key: str, document: BaseModel) -> None:
    """Store a record under a key, replacing what is there."""
    store.put(key, encode(document))


def create_document(store: Store, key: str, document: BaseModel) -> None:
    """Store a record under a key that must be free.

    Raises:
        ObjectExistsError: Somebody wrote it before; theirs stands.
    """
    store.create(key, encode(document))


def encode(document: BaseModel) -> bytes:
    """Return a record as canonical JSON.

    NaN and infinite numbers become null, lone surrogates become U+FFFD.

    Raises:
        StoreError: A number that became null may not be null, so nobody could read it again.
    """
    raw = document.model_dump(mode="json")
    plain = plain_json(raw)
    if plain != raw:  # true for NaN as well, which equals nothing
        _validate(type(document), plain)
    return json_document(plain)


def json_document(value: Any) -> bytes:
    """Return a JSON value as canonical JSON."""
    return (json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


def json_lines(values: Iterable[Any]) -> bytes:
    """Return values one a line, whichever line ends a reader knows; what JSON has no word for is text."""
    return b"".join(_line(value) + b"\n" for value in values)


def decode(data: bytes, model: type[M], *, place: str) -> M:
    """Return the record that canonical (or any) JSON holds.

    Args:
        data: The JSON text.
        model: The record to read it as.
        place: Where it comes from, for the message.

    Raises:
        StoreError: It is not that record, or was written by a newer version.
    """
    try:
        document = model.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(
            f"The document {place} is no valid {model.__name__}: {_first_problem(error)}.",
            hint="It was cut off or changed by hand: restore it, or run what it belongs to again.",
        ) from error
    version = getattr(document, "schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The document {place} has version {version}, but this program reads up to {SCHEMA_VERSION}.",
            hint="Upgrade it: pip install --upgrade benchflow",
        )
    return document


def plain_json(value: Any) -> Any:
    """Return a JSON value without what JSON cannot hold: see `encode`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return _SURROGATE.sub("�", value)
    if isinstance(value, Mapping):
        return {plain_json(str(key)): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return value


def _line(value: Any) -> bytes:
    """Return a value as one line; what is plain JSON already, as nearly all is, is not walked through before."""
    try:
        return _one_line(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError):
        return _one_line(json.dumps(plain_json(value), ensure_ascii=False, allow_nan=False, default=str))


def _one_line(text: str) -> bytes:
    for end, escaped in _LINE_ENDS.items():
        text = text.replace(end, escaped)
    return text.encode()


def _validate(model: type[BaseModel], plain: Any) -> None:
    try:
        model.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        raise StoreError(
            f"A {model.__name__} cannot be stored: {_first_problem(error)} (NaN and infinity have no JSON).",
            hint="This is a bug: report it with the log.",
        ) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
