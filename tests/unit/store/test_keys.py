"""Keys as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.errors import StoreError
from benchflow_client.store.keys import (
    check_key,
    check_prefix,
    file_name_key,
    is_safe,
    join,
    relative_to,
)


def test_prefix_may_end_with_a_slash_or_be_empty() -> None:
    assert check_prefix("job/trial/") == "job/trial"
    assert check_prefix("job/trial") == "job/trial"
    assert check_prefix("") == ""


@pytest.mark.parametrize("prefix", ["/", "//", "/etc", "job//", "../", "job/./x"])
def test_prefix_that_starts_no_key_is_refused(prefix: str) -> None:
    with pytest.raises(StoreError, match="cannot be a key"):
        check_prefix(prefix)


def test_refused_key_is_quoted_with_its_reason() -> None:
    with pytest.raises(StoreError) as caught:
        check_key("a/../b")

    assert caught.value.message == "'a/../b' cannot be a key of a store: it has a part '.' or '..'."
    assert "calm-otter-7f3a/spec.json" in caught.value.hint


def test_name_of_an_unfinished_file_is_no_key() -> None:
    with pytest.raises(StoreError, match="still being written"):
        check_key("job/.benchflow-tmp-1/x")


def test_empty_prefix_joins_to_the_path_alone() -> None:
    assert join("", "a/b") == "a/b"
    assert join("job", "a/b") == "job/a/b"
    assert relative_to("", "a/b") == "a/b"
    assert relative_to("job", "job/a/b") == "a/b"


def test_plain_names_stay_as_they_are() -> None:
    assert file_name_key("Ünïcode name (1).txt") == "Ünïcode name (1).txt"


@given(st.binary(min_size=1, max_size=30).filter(lambda raw: b"/" not in raw and b"\0" not in raw))
def test_every_file_name_has_a_key(raw: bytes) -> None:
    """Only `.`, `..` and unfinished files have none, and no folder walk yields those."""
    name = file_name_key(raw.decode("utf-8", "surrogateescape"))

    assert is_safe(name) or name in {".", ".."} or name.startswith(".benchflow-tmp-")


@given(st.binary(min_size=250, max_size=255).filter(lambda raw: b"/" not in raw and b"\0" not in raw))
def test_key_of_a_name_is_no_longer_than_a_name_may_be(raw: bytes) -> None:
    assert len(file_name_key(raw.decode("utf-8", "surrogateescape")).encode()) <= 255


def test_long_odd_names_that_differ_at_their_end_have_different_keys() -> None:
    assert file_name_key("\x01" * 254 + "a") != file_name_key("\x01" * 254 + "b")
