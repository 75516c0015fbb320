"""Worlds for trials: a task, a plan and scripted sandboxes below the test's own folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds import World, make_world

MakeWorld = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> MakeWorld:
    """Make a world; the arguments are those of `make_world`."""

    def made(**arguments: object) -> World:
        return make_world(tmp_path, **arguments)

    return made


@pytest.fixture
def world(make: MakeWorld) -> World:
    return make()
