"""Names and identifiers: safe everywhere, and no two things share one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.schema.ids import (
    JOB_NAME_PATTERN,
    attempt_folder,
    new_job_name,
    short_digest,
    slug,
    trial_id,
)

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")
NAMES = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="abAB01-_. é", max_size=60),
    st.from_regex(r"[a-z]{1,8}(-[0-9a-f]{8}){1,2}", fullmatch=True),
)


@given(name=NAMES, limit=st.integers(16, 63))
def test_every_text_has_a_slug_that_is_safe_and_short_enough(name: str, limit: int) -> None:
    found = slug(name, limit=limit)

    assert SLUG.fullmatch(found)
    assert len(found) <= limit
    assert found[-1] not in "-_"


@given(one=NAMES, other=NAMES)
def test_two_names_never_share_a_slug(one: str, other: str) -> None:
    assert (slug(one) == slug(other)) is (one == other)


@given(name=NAMES)
def test_a_name_that_looks_like_the_slug_of_another_gets_one_of_its_own(name: str) -> None:
    """A folder may be called as the slug of its neighbour: `Foo` beside `foo-1cbec737`."""
    derived = slug(name)

    assert name == derived or slug(derived) != derived


def test_a_plain_name_is_its_own_slug() -> None:
    assert slug("fix-median_2") == "fix-median_2"
    assert slug("a" * 40) == "a" * 40


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("Fix Median", "fix-median-"),
        ("über", "uber-"),
        ("日本", "x-"),
        ("", "x-"),
        ("--", "x-"),
        ("a" * 41, "a" * 31 + "-"),
        ("\udcff", "x-"),
    ],
)
def test_a_changed_name_ends_with_its_own_digest(name: str, start: str) -> None:
    assert slug(name) == f"{start}{short_digest(name)}"


def test_digest_tells_where_one_part_ends_and_the_next_begins() -> None:
    assert short_digest("ab", "c") != short_digest("a", "bc")
    assert short_digest("ab") == short_digest("ab")
    assert re.fullmatch(r"[0-9a-f]{8}", short_digest(""))


def test_new_job_names_are_readable_allowed_and_differ() -> None:
    names = {new_job_name() for _ in range(200)}

    assert all(re.fullmatch(r"[a-z]+-[a-z]+-[0-9a-f]{4}", name) for name in names)
    assert all(re.match(JOB_NAME_PATTERN, name) for name in names)
    assert len(names) > 190


def test_a_trial_keeps_its_id_and_each_attempt_has_a_folder_of_its_own() -> None:
    trial = trial_id("calm-otter-7f3a", "fix-build", "claude", 2)

    assert trial == "calm-otter-7f3a.fix-build.claude.2"
    assert re.fullmatch(r"fix-build__[0-9a-f]{8}", attempt_folder("fix-build", trial, 1))
    assert attempt_folder("fix-build", trial, 1) != attempt_folder("fix-build", trial, 2)
