"""Conformance checks of opening, finding, losing and closing sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxRef, Upload
from benchflow_workers.sandbox.conformance_bench import (
    SLACK_S,
    Bench,
    Check,
    ConformanceError,
    check,
    expect_at_most,
    expect_code,
    expect_equal,
    expect_in,
    output,
)


async def check_provider_that_works_says_so(bench: Bench) -> None:
    """`check` finds nothing wrong where sandboxes can be opened."""
    await bench.provider.check()


async def check_workdir_of_the_spec_is_made(bench: Bench) -> None:
    """A workspace that the image lacks is made and used."""
    async with bench.fresh(replace(bench.make_spec(), workdir="/bf/deep/workspace")) as sandbox:
        where = await output(sandbox, "pwd; touch here; ls")

    expect_equal(sandbox.workdir, "/bf/deep/workspace", "sandbox.workdir")
    expect_equal(where.split(), ["/bf/deep/workspace", "here"], "current folder and its content")


async def check_sandboxes_do_not_share_files(bench: Bench) -> None:
    """What one sandbox writes, another does not see."""
    async with bench.fresh(bench.make_spec()) as one, bench.fresh(bench.make_spec()) as two:
        await output(one, "echo mine >/etc/bf-mine; mkdir -p /bf-mine")
        seen = await output(two, "ls -d /etc/bf-mine /bf-mine 2>/dev/null; true")

    expect_equal(seen, "", "files of the other sandbox")
    if one.id == two.id:
        raise ConformanceError(f"Two sandboxes share the id {one.id!r}.")


async def check_close_twice_is_fine(bench: Bench) -> None:
    """Closing again, also at the same time, does nothing."""
    sandbox = await bench.provider.open(bench.make_spec())
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()


async def check_closed_sandbox_is_lost(bench: Bench) -> None:
    """After close every method says `sandbox.lost`."""
    sandbox = await bench.provider.open(bench.make_spec())
    await sandbox.close()

    await _expect_lost(bench, sandbox)


async def check_close_ends_running_commands(bench: Bench) -> None:
    """Closing while a command runs ends both soon."""
    sandbox = await bench.provider.open(bench.make_spec())
    running = asyncio.create_task(sandbox.exec(Command(("sleep", "98770"), timeout_s=300)))
    await output(sandbox, "true")
    started = time.monotonic()

    await sandbox.close()
    with contextlib.suppress(SandboxError):
        await asyncio.wait_for(running, timeout=60)

    expect_at_most(time.monotonic() - started, 3 * SLACK_S, "seconds to close under a running command")


async def check_cancelled_command_returns_soon(bench: Bench) -> None:
    """Cancelling `exec` ends the wait, and the sandbox goes on."""
    async with bench.fresh(bench.make_spec()) as sandbox:
        running = asyncio.create_task(sandbox.exec(Command(("sleep", "98771"), timeout_s=300)))
        await output(sandbox, "true")
        started = time.monotonic()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        expect_at_most(time.monotonic() - started, SLACK_S, "seconds to cancel a command")
        alive = await output(sandbox, "echo alive")

    expect_equal(alive, "alive", "next command")


async def check_death_of_the_sandbox_is_told(bench: Bench) -> None:
    """When the first process of the sandbox dies, running and killing say `sandbox.lost`; files may still be read."""
    async with bench.fresh(bench.make_spec()) as sandbox:
        script = "kill -TERM 1; kill -KILL -1; kill -KILL $$"
        with contextlib.suppress(SandboxError):
            await sandbox.exec(Command(("sh", "-c", script), timeout_s=20))
        await _wait_until_lost(sandbox)
        await _expect_dead(sandbox)


async def _wait_until_lost(sandbox: Sandbox) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            await sandbox.exec(Command(("true",), timeout_s=10))
        except SandboxError as error:
            expect_equal(error.code, "sandbox.lost", "failure code of exec in a dead sandbox")
            return
        await asyncio.sleep(0.1)
    raise ConformanceError("The sandbox still ran commands 30 s after its first process was killed.")


async def _expect_dead(sandbox: Sandbox) -> None:
    lost = "sandbox.lost"
    await expect_code(sandbox.exec(Command(("true",), timeout_s=10)), lost, "exec")
    await expect_code(sandbox.kill("root"), lost, "kill")


async def _expect_lost(bench: Bench, sandbox: Sandbox) -> None:
    lost = "sandbox.lost"
    await _expect_dead(sandbox)
    await expect_code(sandbox.put([Upload("/tmp/x", b"x")]), lost, "put")
    await expect_code(sandbox.get("/etc", bench.scratch / "lost"), lost, "get")


async def check_removal_from_outside_is_lost(bench: Bench) -> None:
    """A sandbox that the reaper removed is `sandbox.lost` to its owner, and closes quietly."""
    spec = bench.make_spec()
    async with bench.fresh(spec) as sandbox:
        for ref in await bench.provider.list(spec.labels):
            await bench.provider.remove(ref)
        await _expect_lost(bench, sandbox)


async def check_list_finds_by_labels_and_remove_removes(bench: Bench) -> None:
    """Live sandboxes are found by all of their labels, by nobody else's, and removed from outside."""
    spec, other = bench.make_spec(), bench.make_spec()
    async with bench.fresh(spec) as sandbox, bench.fresh(other):
        refs = await bench.provider.list(spec.labels)
        expect_equal([ref.id for ref in refs], [sandbox.id], "sandboxes with all labels")
        expect_equal(refs[0].kind, bench.provider.kind, "kind of the ref")
        for item in spec.labels.items():
            expect_in(item, refs[0].labels.items(), "labels of the ref")
        mixed = {**spec.labels, "bf.check": "not there"}
        expect_equal(await _listed(bench, mixed), [], "sandboxes with a label that none has")
        await bench.provider.remove(refs[0])
        await bench.provider.remove(refs[0])
        expect_equal(await _listed(bench, spec.labels), [], "sandboxes after remove")
        expect_equal(len(await _listed(bench, other.labels)), 1, "the other sandbox")


async def check_removing_what_never_was_is_fine(bench: Bench) -> None:
    """A ref whose sandbox does not exist is removed without an error."""
    await bench.provider.remove(SandboxRef(bench.provider.kind, "bf-never-was-0123456789", {}))


async def check_close_leaves_nothing(bench: Bench) -> None:
    """After close the sandbox is not listed."""
    spec = bench.make_spec()
    async with bench.fresh(spec):
        pass

    expect_equal(await _listed(bench, spec.labels), [], "sandboxes after close")


async def check_cancelled_open_leaves_nothing(bench: Bench) -> None:
    """Wherever `open` is cancelled, nothing is left when it returns."""
    for delay_s in (0.0, 0.02, 0.1, 0.25, 0.5):
        spec = bench.make_spec()
        opening = asyncio.create_task(bench.provider.open(spec))
        await asyncio.wait({opening}, timeout=delay_s)
        opening.cancel()
        try:
            await (await opening).close()
        except asyncio.CancelledError:
            expect_equal(await _listed(bench, spec.labels), [], f"sandboxes after a cancel at {delay_s} s")


async def check_failed_open_leaves_nothing(bench: Bench) -> None:
    """An upload that cannot be read fails `open`, and nothing is left."""
    spec = bench.make_spec()
    spec = replace(spec, uploads=(*spec.uploads, Upload("/bf/x", source=bench.scratch / "not-there")))

    await expect_code(bench.provider.open(spec), "sandbox.transfer_failed", "open with a missing source")

    expect_equal(await _listed(bench, spec.labels), [], "sandboxes after a failed open")


async def check_missing_image_is_told(bench: Bench) -> None:
    """An image that nobody has is `sandbox.image_missing` with the image's name."""
    spec = replace(bench.make_spec(), image="bf-no-such-image.invalid/nothing:1", build_context=None)

    error = await expect_code(bench.provider.open(spec), "sandbox.image_missing", "open")

    expect_in("bf-no-such-image.invalid/nothing:1", error.message, "message")


async def check_provider_serves_several_event_loops(bench: Bench) -> None:
    """Trials run in threads, each with an event loop of its own, over one provider."""

    async def trial(number: int) -> str:
        async with bench.fresh(bench.make_spec()) as sandbox:
            return await output(sandbox, f"echo {number}")

    threads = [asyncio.to_thread(asyncio.run, trial(number)) for number in range(3)]
    expect_equal(await asyncio.gather(*threads), ["0", "1", "2"], "outputs")


async def _listed(bench: Bench, labels: Mapping[str, str]) -> list[str]:
    return [ref.id for ref in await bench.provider.list(labels)]


LIFE_CHECKS: tuple[Check, ...] = (
    check(check_provider_that_works_says_so),
    check(check_workdir_of_the_spec_is_made),
    check(check_sandboxes_do_not_share_files),
    check(check_close_twice_is_fine),
    check(check_closed_sandbox_is_lost),
    check(check_close_ends_running_commands),
    check(check_cancelled_command_returns_soon),
    check(check_death_of_the_sandbox_is_told, "own-init"),
    check(check_removal_from_outside_is_lost),
    check(check_list_finds_by_labels_and_remove_removes),
    check(check_removing_what_never_was_is_fine),
    check(check_close_leaves_nothing),
    check(check_cancelled_open_leaves_nothing),
    check(check_failed_open_leaves_nothing),
    check(check_missing_image_is_told, "images"),
    check(check_provider_serves_several_event_loops),
)
"""Checks of the life of a sandbox."""
