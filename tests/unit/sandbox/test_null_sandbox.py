"""The null provider runs nothing, keeps nothing, and costs nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxProvider, SandboxRef, SandboxSpec, Upload
from benchflow_workers.sandbox.null import NullOptions, NullSandboxes

TRUE = Command(("true",), timeout_s=5)


def spec(name: str = "s1", **changes: object) -> SandboxSpec:
    fields = {"labels": {"trial": name}, "image": "x", "build_context": None, "build_digest": "", **changes}
    return SandboxSpec(name=name, **fields)  # type: ignore[arg-type]


async def test_every_command_succeeds_without_output() -> None:
    provider: SandboxProvider = NullSandboxes()
    sandbox = await provider.open(spec())

    done = await sandbox.exec(Command(("false",), timeout_s=5))

    assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (0, b"", b"", False)
    assert provider.kind == "null"
    await provider.check()
    assert await provider.place() == f"process {os.getpid()}"
    await provider.close()


async def test_nothing_placed_can_be_collected_so_no_trial_gets_a_verdict(tmp_path: Path) -> None:
    sandbox = await NullSandboxes().open(spec())

    await sandbox.put([Upload("/logs/verifier/reward.txt", b"1")])
    await sandbox.kill("root")

    assert await sandbox.get("/logs/verifier", tmp_path / "logs") is False
    assert not (tmp_path / "logs").exists()


async def test_a_command_takes_as_long_as_the_options_say() -> None:
    sandbox = await NullSandboxes(NullOptions(exec_s=0.05)).open(spec())
    started = time.monotonic()

    done = await sandbox.exec(TRUE)

    assert time.monotonic() - started >= 0.05
    assert done.duration_s == 0.05


async def test_a_command_slower_than_its_deadline_times_out() -> None:
    sandbox = await NullSandboxes(NullOptions(exec_s=30)).open(spec())

    done = await sandbox.exec(Command(("true",), timeout_s=0.01))

    assert (done.exit_code, done.timed_out) == (137, True)


async def test_workdir_is_the_specs_or_root() -> None:
    provider = NullSandboxes()

    assert (await provider.open(spec("a"))).workdir == "/root"
    assert (await provider.open(spec("b", workdir="/app"))).workdir == "/app"


async def test_sandboxes_are_listed_by_labels_until_closed_or_removed() -> None:
    provider = NullSandboxes()
    one, two = await provider.open(spec("one")), await provider.open(spec("two"))

    assert await provider.list({"trial": "one"}) == [SandboxRef("null", "one", {"trial": "one"})]
    assert len(await provider.list({})) == 2

    await one.close()
    await one.close()
    await provider.remove(SandboxRef("null", two.id, {}))
    assert await provider.list({}) == []


async def test_a_closed_sandbox_is_lost(tmp_path: Path) -> None:
    sandbox = await NullSandboxes().open(spec())
    await sandbox.close()

    for call in (sandbox.exec(TRUE), sandbox.put([]), sandbox.kill("root"), sandbox.get("/x", tmp_path)):
        with pytest.raises(SandboxError) as caught:
            await call
        assert caught.value.code == "sandbox.lost"


async def test_a_network_with_hosts_is_refused() -> None:
    with pytest.raises(SandboxError) as caught:
        await NullSandboxes().open(spec(network="allowlist"))

    assert caught.value.code == "task.unsupported"


def test_it_says_that_it_runs_no_commands() -> None:
    assert NullSandboxes().capabilities.runs_commands is False
