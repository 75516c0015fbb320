"""The sandboxes users test their agents with do what they are told, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxProvider, SandboxSpec, Upload
from benchflow_workers.testing import ScriptedSandboxes, completed


def spec(name: str = "s", *uploads: Upload, **labels: str) -> SandboxSpec:
    return SandboxSpec(
        name=name, labels=labels, image=None, build_context=Path(), build_digest="d", uploads=uploads
    )


def command(*argv: str, timeout_s: float = 5.0) -> Command:
    return Command(argv, timeout_s=timeout_s, user="agent")


async def test_commands_are_recorded_and_the_last_rule_that_fits_counts() -> None:
    sandboxes = ScriptedSandboxes()
    sandboxes.on("", completed(1))
    sandboxes.on("os-release", completed(0, b"Debian", b"note"))
    sandbox = await sandboxes.open(spec())

    done = await sandbox.exec(command("cat", "/etc/os-release"))

    assert (done.exit_code, done.stdout, done.stderr, done.stdout_bytes, done.stderr_bytes) == (
        0,
        b"Debian",
        b"note",
        6,
        4,
    )
    assert (await sandbox.exec(command("other"))).exit_code == 1
    assert [command.user for command in sandboxes.commands] == ["agent", "agent"]


async def test_command_without_a_rule_succeeds_and_a_slow_one_meets_its_deadline() -> None:
    sandboxes = ScriptedSandboxes()
    sandboxes.on("sleep", takes_s=60, files={"/never": b""})
    sandbox = await sandboxes.open(spec())

    assert (await sandbox.exec(command("true"))).exit_code == 0
    late = await sandbox.exec(command("sleep", timeout_s=0.01))

    assert (late.timed_out, late.exit_code) == (True, 137)
    assert sandbox.files == {}


async def test_files_go_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "a").write_bytes(b"A")
    sandboxes = ScriptedSandboxes()
    sandbox = await sandboxes.open(spec("s", Upload("/etc/one", content=b"1"), Upload("/empty")))
    await sandbox.put([
        Upload("/opt/all", source=tmp_path / "source"),
        Upload("/opt/single", source=tmp_path / "source" / "deep" / "a"),
    ])

    assert sandbox.files == {"/etc/one": b"1", "/opt/all/deep/a": b"A", "/opt/single": b"A"}
    assert await sandbox.get("/opt/all", tmp_path / "out")
    assert await sandbox.get("/etc/one", tmp_path / "file")
    assert not await sandbox.get("/nothing", tmp_path / "nothing")
    assert (tmp_path / "out" / "deep" / "a").read_bytes() == b"A"
    assert (tmp_path / "file").read_bytes() == b"1"
    assert not (tmp_path / "nothing").exists()


async def test_sandbox_that_was_taken_away_is_lost() -> None:
    sandboxes: SandboxProvider = ScriptedSandboxes()
    await sandboxes.check()
    mine = await sandboxes.open(spec("mine", **{"bf.job": "a"}))
    other = await sandboxes.open(spec("other", **{"bf.job": "b"}))

    (ref,) = await sandboxes.list({"bf.job": "a"})
    await sandboxes.remove(ref)

    with pytest.raises(SandboxError) as caught:
        await mine.exec(command("true"))
    assert caught.value.code == "sandbox.lost"
    assert [ref.id for ref in await sandboxes.list({})] == [other.id]
    await other.close()
    await other.close()
    assert await sandboxes.list({}) == []
    await sandboxes.close()


async def test_what_should_fail_fails() -> None:
    gone = SandboxError("sandbox.start_failed", "No.")

    with pytest.raises(SandboxError):
        await ScriptedSandboxes(open_error=gone).open(spec())
    stays = await ScriptedSandboxes(close_error=gone).open(spec())
    with pytest.raises(SandboxError):
        await stays.close()


async def test_two_objects_are_two_places() -> None:
    one, two = ScriptedSandboxes(), ScriptedSandboxes()

    assert await one.place() != await two.place()


async def test_a_program_prints_what_its_rule_says_and_keeps_what_it_is_told() -> None:
    sandboxes = ScriptedSandboxes()
    sandboxes.on("talker", completed(3, b"hello\n", b"bye"))
    sandbox = await sandboxes.open(spec())

    async with sandbox.attach(command("talker")) as process:
        assert await process.write(b"one")
        assert (await process.read(), await process.read()) == (b"hello\n", b"")
        assert (await process.wait(), process.stderr.kept()) == (3, b"bye")

    assert sandbox.attached[0].written == b"one"
