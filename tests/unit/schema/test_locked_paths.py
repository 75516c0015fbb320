"""What a job may say about the paths no agent may enter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.locked_paths import all_locked

USUAL = ("/oracle", "/solution", "/verifier", "/tests", "/testbed_verify")


def spec(paths: str | Sequence[str] | None) -> JobSpec:
    return JobSpec.model_validate({"tasks": "t", "agent": "nop", "sandbox_locked_paths": paths})


@pytest.mark.parametrize(
    ("asked", "locked"),
    [
        (None, USUAL),
        ("/data", (*USUAL, "/data")),
        (["/data", "/srv/a+b@c-d_1.d", "/tests"], (*USUAL, "/data", "/srv/a+b@c-d_1.d")),
        (["/...", "/.hidden", "/a..b"], (*USUAL, "/...", "/.hidden", "/a..b")),
        ([], ()),
        ("none", ()),
    ],
    ids=str,
)
def test_paths_are_added_to_the_usual_ones_and_an_empty_list_locks_nothing(
    asked: str | Sequence[str] | None, locked: tuple[str, ...]
) -> None:
    assert all_locked(spec(asked).sandbox_locked_paths) == locked


@pytest.mark.parametrize(
    "path",
    ["", "/", "data", "./data", "/data/", "//data", "/data//x", "/../x", "/a/..", "/a/./b", "/.", "/a b", "/a\n",
     "/$(id)", "/a;b", "/a*", "~/a", "/é"],
)  # fmt: skip
def test_a_path_that_is_not_plain_and_absolute_is_refused_by_value(path: str) -> None:
    with pytest.raises(ValidationError, match="is not an absolute path") as caught:
        spec(path)

    assert repr(path) in str(caught.value)


def test_nothing_and_a_path_together_are_refused() -> None:
    with pytest.raises(ValidationError, match="'none' is not an absolute path"):
        spec(["none", "/data"])
