"""Records of sandboxes, over every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchflow_client.errors import BrokerError
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import MemorySandboxBook, SandboxBook, SandboxRecord


@pytest.fixture(params=["memory", "redis"])
def book(request: pytest.FixtureRequest) -> Iterator[SandboxBook]:
    if request.param == "memory":
        yield MemorySandboxBook()
        return
    with connect(request.getfixturevalue("redis_url")) as client:
        client.flushdb()
        yield RedisSandboxBook(RedisConnection(client))


def record(name: str, *, created_at: float, id: str = "") -> SandboxRecord:
    return SandboxRecord(name, "docker", "engine", id, "j", 3, 2, "box/1", created_at)


def test_records_come_oldest_first_and_are_replaced_by_name(book: SandboxBook) -> None:
    book.write(record("b", created_at=2.0))
    book.write(record("a", created_at=1.0))
    book.write(record("b", created_at=2.0, id="c0ffee"))

    assert list(book.read()) == [record("a", created_at=1.0), record("b", created_at=2.0, id="c0ffee")]


def test_erased_record_is_gone_and_erasing_twice_is_fine(book: SandboxBook) -> None:
    book.write(record("a", created_at=1.0))

    book.erase("a")
    book.erase("a")

    assert list(book.read()) == []


def test_unreachable_book_is_a_clear_error() -> None:
    with pytest.raises(BrokerError, match="does not answer"):
        RedisSandboxBook(RedisConnection.at("redis://127.0.0.1:1/0")).read()
