"""Records as canonical JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from benchflow_client.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from benchflow_client.schema.base import Document
from benchflow_client.store.documents import (
    create_document,
    decode,
    encode,
    json_lines,
    read_document,
    write_document,
)
from benchflow_client.store.files import FileStore


class Note(Document):
    """A document of the tests."""

    title: str = Field(description="Any text.")
    score: float | None = Field(default=None, description="Any number.")
    weight: float = Field(default=1.0, description="A number that must be one.")
    extra: dict[str, Any] = Field(default_factory=dict, description="Anything.")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_document_is_read_as_written(store: FileStore) -> None:
    note = Note(title="Ünïcode 漢", score=0.25, extra={"deep": [1, {"a": None}]})

    write_document(store, "job/note.json", note)

    assert read_document(store, "job/note.json", Note) == note


def test_bytes_are_utf8_indented_in_field_order_with_a_last_newline() -> None:
    assert (
        encode(Note(title="é", extra={"b": 1, "a": 2}))
        == (
            "{\n"
            '  "schema_version": 1,\n'
            '  "title": "é",\n'
            '  "score": null,\n'
            '  "weight": 1.0,\n'
            '  "extra": {\n'
            '    "b": 1,\n'
            '    "a": 2\n'
            "  }\n"
            "}\n"
        ).encode()
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_number_without_json_becomes_null(number: float) -> None:
    data = encode(Note(title="x", score=number, extra={"list": [number, 1.5], "tuple": (number,)}))

    read = decode(data, Note, place="here")
    assert read.score is None
    assert read.extra == {"list": [None, 1.5], "tuple": [None]}


def test_null_that_nobody_could_read_is_refused_when_writing() -> None:
    with pytest.raises(StoreError, match="weight"):
        encode(Note(title="x", weight=float("nan")))


def test_half_of_a_character_is_replaced() -> None:
    data = encode(Note(title="cut \ud83d here", extra={"k\udcff": "v\udc80"}))

    read = decode(data, Note, place="here")
    assert read.title == "cut � here"
    assert list(read.extra.values()) == ["v�"]


def test_created_document_is_not_overwritten(store: FileStore) -> None:
    create_document(store, "job/note.json", Note(title="first"))

    with pytest.raises(ObjectExistsError):
        create_document(store, "job/note.json", Note(title="second"))
    assert read_document(store, "job/note.json", Note).title == "first"


def test_absent_document_is_not_found(store: FileStore) -> None:
    with pytest.raises(ObjectNotFoundError):
        read_document(store, "job/none.json", Note)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "EOF"),
        (b'{"title": "cut', "EOF"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"\0" * 64, "Invalid JSON"),
        (b"[]", "object"),
        (b"{}", "title: Field required"),
        (b'{"title": 1}', "title: Input should be a valid string"),
    ],
)
def test_corrupt_document_names_key_store_and_reason(store: FileStore, data: bytes, reason: str) -> None:
    store.put("job/note.json", data)

    with pytest.raises(StoreError, match=r"job/note\.json") as caught:
        read_document(store, "job/note.json", Note)

    assert store.url in caught.value.message
    assert "Note" in caught.value.message
    assert reason in caught.value.message
    assert not isinstance(caught.value, ObjectNotFoundError)


def test_document_of_a_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(StoreError, match="version 2") as caught:
        decode(b'{"schema_version": 2, "title": "x"}', Note, place="'k'")

    assert "Upgrade" in caught.value.hint


def test_unknown_keys_of_the_same_version_are_ignored() -> None:
    assert decode(b'{"title": "x", "later": 1}', Note, place="'k'") == Note(title="x")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": "é", "b": [1, None]}, '{"a": "é", "b": [1, null]}'),
        ({"a": "x\u2028y\u2029z\x85"}, '{"a": "x\\u2028y\\u2029z\\u0085"}'),
        ({"a": float("inf"), "b": "x\u2028"}, '{"a": null, "b": "x\\u2028"}'),
        ({"a": "\ud800"}, '{"a": "�"}'),
        ({"a": Path("x")}, '{"a": "x"}'),
    ],
)
def test_a_value_is_one_line_for_every_reader(value: Any, line: str) -> None:
    assert json_lines([value]).decode() == line + "\n"
