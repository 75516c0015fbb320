"""The conformance suite finds what it is there to find, seen on a provider that runs nothing."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.conformance import CHECKS, Bench, Check, ConformanceError
from benchflow_workers.sandbox.conformance_bench import (
    expect_at_most,
    expect_code,
    expect_equal,
    expect_in,
    output,
)
from benchflow_workers.sandbox.null import NullSandboxes

# What a provider can keep that runs no command and stores no file: promises about lives, labels and refusals.
KEPT_BY_DOING_NOTHING = {
    "unread-stdin-is-no-error",
    "stdin-is-empty-by-default",
    "get-of-nothing-is-false",
    "get-of-a-link-is-false",
    "provider-that-works-says-so",
    "network-it-cannot-enforce-is-refused",
    "network-that-cannot-change-is-told",
    "no-network-reaches-no-service-of-the-host",
    "close-twice-is-fine",
    "closed-sandbox-is-lost",
    "close-ends-running-commands",
    "cancelled-open-leaves-nothing",
    "removal-from-outside-is-lost",
    "list-finds-by-labels-and-remove-removes",
    "removing-what-never-was-is-fine",
    "close-leaves-nothing",
    "sandboxes-do-not-share-files",
    "kill-of-an-idle-user-is-fine",
    "nobody-reads-what-is-written-after-the-end",
    "unread-output-fills-no-memory",
}
# These wait for processes to come up; with none ever coming they take their deadline of 30 s.
SLOW_WITHOUT_PROCESSES = {"kill-leaves-no-process-of-the-user", "death-of-the-sandbox-is-told"}

numbers = itertools.count()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    def make_spec() -> SandboxSpec:
        name = f"null-{next(numbers)}"
        return SandboxSpec(name, {"bf.trial": name}, "image", None, "", network="no-network")

    return Bench(NullSandboxes(), make_spec, tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_provider_that_does_nothing_is_found_out(check: Check, bench: Bench) -> None:
    if check.name in SLOW_WITHOUT_PROCESSES:
        assert check.missing(bench)
        return
    try:
        await check.run(bench)
    except (ConformanceError, OSError, ValueError, IndexError):
        assert check.name not in KEPT_BY_DOING_NOTHING
    else:
        assert check.name in KEPT_BY_DOING_NOTHING


def test_every_check_has_its_own_name_and_says_what_it_promises() -> None:
    names = [check.name for check in CHECKS]

    assert len(names) == len(set(names))
    assert all(check.run.__doc__ for check in CHECKS)


def test_check_is_not_run_where_its_needs_are_not_met(bench: Bench) -> None:
    needs = {check.name: check.missing(bench) for check in CHECKS}

    assert needs["process-limit-holds"] == {"limits"}
    assert needs["close-twice-is-fine"] == frozenset()


async def test_shared_sandbox_is_used_and_stays_open(bench: Bench) -> None:
    shared = await bench.provider.open(bench.make_spec())
    sharing = Bench(bench.provider, bench.make_spec, bench.scratch, shared=shared)

    async with sharing.sandbox() as sandbox:
        assert sandbox is shared

    assert await output(shared, "true") == ""


def test_broken_expectations_name_both_sides() -> None:
    with pytest.raises(ConformanceError, match=r"exit code: expected 0, got 3\."):
        expect_equal(3, 0, "exit code")
    with pytest.raises(ConformanceError, match=r"reason: 'x' is not in 'abc'\."):
        expect_in("x", "abc", "reason")
    with pytest.raises(ConformanceError, match=r"seconds: 3.5 is above 2\."):
        expect_at_most(3.5, 2, "seconds")
    with pytest.raises(ConformanceError, match="…"):
        expect_equal(b"x" * 1000, b"", "output")


async def test_expected_failure_must_come_with_its_code() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise SandboxError("sandbox.lost", "gone")

    assert (await expect_code(fail(), "sandbox.lost", "exec")).message == "gone"
    with pytest.raises(ConformanceError, match=r"failure code: expected 'task\.unsupported'"):
        await expect_code(fail(), "task.unsupported", "exec")
    with pytest.raises(ConformanceError, match=r"expected SandboxError sandbox\.lost, got None"):
        await expect_code(asyncio.sleep(0), "sandbox.lost", "exec")
