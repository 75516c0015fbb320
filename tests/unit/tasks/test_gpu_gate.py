"""Tasks that ask for GPUs, or for GPUs of some type, are let through where these can be."""

from __future__ import annotations

import pytest

from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.read import read_task

ASKS = '[environment]\ngpus = 2\ngpu_types = ["H100", "a100"]\n'


@pytest.fixture
def reasons(make_task):
    def of(toml: str, *, has_gpus: bool, types: frozenset[str] | None = None) -> tuple[str, ...]:
        task = read_task(make_task({"task.toml": toml}))
        return unsupported(
            task, networks=frozenset({"public"}), has_compose=False, has_gpus=has_gpus, gpu_types=types
        )

    return of


def test_only_kinds_that_can_have_gpus_let_such_a_task_through() -> None:
    assert {name for name, entry in SANDBOXES.items() if entry.has_gpus} == {"docker"}


def test_client_knows_no_types_and_leaves_them_to_the_worker(reasons) -> None:
    assert reasons(ASKS, has_gpus=True) == ()
    assert reasons(ASKS, has_gpus=False) == ("sandbox.gpus: 2 asked for, and this sandbox has none",)


@pytest.mark.parametrize("types", [{"h100"}, {"T4", "A100"}])
def test_one_type_of_several_is_enough_whatever_its_case(reasons, types: set[str]) -> None:
    assert reasons(ASKS, has_gpus=True, types=frozenset(types)) == ()


def test_worker_whose_gpus_are_of_another_type_says_what_it_has(reasons) -> None:
    assert reasons(ASKS, has_gpus=True, types=frozenset({"T4"})) == (
        "sandbox.gpu_types: H100, a100 asked for, and this worker has T4 (BENCHFLOW_GPU_TYPES)",
    )
    assert reasons(ASKS, has_gpus=True, types=frozenset()) == (
        "sandbox.gpu_types: H100, a100 asked for, and this worker does not say what its GPUs are (BENCHFLOW_GPU_TYPES)",
    )


def test_types_of_no_gpus_ask_for_nothing(reasons) -> None:
    assert reasons('[environment]\ngpu_types = ["H100"]\n', has_gpus=False) == ()
