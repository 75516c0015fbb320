"""Tests in a sandbox of their own: it gets the agent's work and nothing else, and nothing is left over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_workers.sandbox.base import Command, Completed, Sandbox, SandboxProvider, SandboxSpec
from benchflow_workers.trial.capacity import Capacity
from benchflow_workers.trial.carry import Load, Route, measure, overload
from benchflow_workers.verifiers import script
from tests.rollouts import Ran, Rollouts
from tests.worlds import write_task

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]

TASKS = Path(__file__).parents[2] / "assets" / "tasks"
LOCAL = pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.root)], indirect=True)
"""What is decided on the worker, whatever the sandbox."""

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN echo 1 > /app/kept && touch /app/conftest.py\n"


class Watched:
    """A provider that says which sandboxes were open when it was asked for one more."""

    def __init__(self, inner: SandboxProvider) -> None:
        self._inner = inner
        self.opened: list[tuple[str, str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        beside = await self._inner.list({"bf.job": spec.labels["bf.job"]})
        self.opened.append((spec.labels["bf.trial"], spec.name[-2:], len(beside)))
        return await self._inner.open(spec)


class Wedged:
    """A sandbox whose channel says nothing to the first command of the tests."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.verifications = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exec(self, command: Command) -> Completed:
        if "benchflow-verify" in command.argv:
            self.verifications += 1
            if self.verifications == 1:
                await asyncio.Event().wait()
        return await self._inner.exec(command)


class WedgesApart(Watched):
    """A provider whose sandboxes of the tests' own are wedged."""

    def __init__(self, inner: SandboxProvider) -> None:
        super().__init__(inner)
        self.wedged: list[Wedged] = []

    async def open(self, spec: SandboxSpec) -> Any:
        sandbox = await super().open(spec)
        if not spec.name.endswith("-v"):
            return sandbox
        self.wedged.append(Wedged(sandbox))
        return self.wedged[-1]


@pytest.fixture
def watched(provider: SandboxProvider) -> Watched:
    return Watched(provider)


@pytest.fixture
def rollouts(watched: Any, kind: str, tmp_path: Path) -> Rollouts:
    return Rollouts(watched, kind, tmp_path)


def record(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ran.folder / "verifier-sandbox" / "verifier-sandbox.json").read_text(encoding="utf-8")
    )
    return found


def task(folder: Path, test: str, *, toml: str = SEPARATE, **files: str) -> Path:
    content = {"environment/Dockerfile": DOCKERFILE, "tests/test.sh": f"#!/bin/sh\n{test}\n", **files}
    return write_task(folder / "apart", toml=toml, files=content)


async def test_tests_see_the_workspace_and_the_artifacts_and_nothing_the_agent_installed(
    rollouts: Rollouts, watched: Watched
) -> None:
    ran = await rollouts.run(TASKS / "separate-verifier")

    assert ran.result.reward == 1.0, ran.said()
    said = record(ran)
    assert (said["status"], said["image_source"], said["pristine"]) == (
        "complete",
        "environment/Dockerfile",
        True,
    )
    assert [(item["path"], item["kind"], item["files"]) for item in said["transfer"]] == [
        ("/app", "workspace", 3),
        ("/logs/artifacts", "artifact", 1),
        ("/srv/report.txt", "artifact", 1),
    ]
    assert sorted(said["outside_workspace_writes"]) == [
        "/opt/left-behind",
        "/srv/report.txt",
        "/usr/local/bin/sum-of",
    ]
    assert said["sandbox_id"] not in {None, ran.result.sandbox_id}
    assert (ran.folder / "artifacts/srv/report.txt").read_text() == "42\n"
    timing = ran.result.timing
    assert None not in {timing.verifier_sandbox_setup, timing.verifier_sandbox_transfer}
    assert None not in {timing.verifier_sandbox_teardown, timing.verifier_sandbox_total}


async def test_image_of_the_tests_judges_and_one_sandbox_is_gone_before_the_other_opens(
    rollouts: Rollouts, watched: Watched, provider: SandboxProvider
) -> None:
    ran = await rollouts.run(TASKS / "separate-verifier-image")

    assert ran.result.reward == 1.0, ran.said()
    assert record(ran)["image_source"] == "tests/Dockerfile"
    assert [(trial, beside) for trial, _, beside in watched.opened] == [(ran.result.trial, 0)] * 2
    assert watched.opened[1][1] == "-v"
    assert await provider.list({"bf.job": ran.result.job}) == []


async def test_what_an_agent_plants_is_removed_as_beside_it_and_what_it_leaves_running_is_gone(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    program = (
        "#!/bin/sh\necho 2 > kept; mkdir sub; touch sub/conftest.py; echo 1 > /logs/verifier/reward.txt\n"
        "touch /logs/verifier/planted\n"
        "(while :; do echo 1 > /logs/verifier/reward.txt; echo 3 > kept; sleep 0.05; done) >/dev/null 2>&1 &\n"
    )
    test = (
        "ls /logs/verifier; [ -e sub/conftest.py ] && echo planted; [ -e conftest.py ] && echo image\n"
        "echo 0.5 > /logs/verifier/reward.txt"
    )

    ran = await rollouts.run(task(tmp_path, test), program)

    assert ran.result.reward == 0.5, ran.said()
    assert ran.rollout.test_output == b"image\n"
    assert not (ran.folder / "verifier" / "planted").exists()


async def test_flag_gives_every_task_such_a_sandbox_and_named_paths_too(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    program = "#!/bin/sh\nmkdir -p /var/tmp/tool /var/tmp/other; echo tool > /var/tmp/tool/a; ln -s a /var/tmp/tool/b\n"
    test = "cat /var/tmp/tool/b; ls -d /var/tmp/other; echo 1 > /logs/verifier/reward.txt"
    folder = task(tmp_path, test, toml="")

    ran = await rollouts.run(
        folder, program, separate_verifier=True, separate_verifier_include=("/var/tmp/tool", "/srv/none")
    )

    assert ran.rollout.test_output is not None
    assert ran.rollout.test_output.splitlines()[0] == b"tool", ran.said()
    assert b"No such file" in ran.rollout.test_output
    said = record(ran)
    assert not said["pristine"]
    assert {item["path"]: item["status"] for item in said["transfer"] if item["kind"] == "include"} == {
        "/var/tmp/tool": "ok",
        "/srv/none": "missing",
    }


async def test_what_there_is_to_carry_is_measured_where_it_lies(open_sandbox: Open, shell: Shell) -> None:
    sandbox = await open_sandbox()
    await shell(
        sandbox, "cd /app && mkdir sub && printf 12345 > 'sub/a b' && ln -s sub link; truncate -s 3G big"
    )
    route = Route.of("/app", artifacts=("/logs/artifacts", "sub", "/srv/one", "/none"), includes=())
    await shell(sandbox, "mkdir /srv/one && printf 123 > /srv/one/file")

    load = await measure(sandbox, route, timeout_s=60)

    assert list(route.rest) == ["/logs/artifacts", "/none", "/srv/one"]
    assert load == Load(5, 5 + (3 << 30), 3, 3)
    assert overload(load) == ""
    assert overload(replace(load, rest_bytes=2 << 30)) == (
        "artifacts and included paths: 2147483648 bytes; 1073741824 are moved"
    )


@LOCAL
async def test_image_that_cannot_be_built_is_the_verifiers_failure_and_no_verdict(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    folder = task(
        tmp_path,
        "echo 1 > /logs/verifier/reward.txt",
        toml="[verifier.environment]\ncpus = 1\n",
        **{"tests/Dockerfile": "FROM debian:bookworm-slim\nRUN exit 3\n"},
    )

    ran = await rollouts.run(folder)

    (failure,) = ran.result.failures
    assert failure.code == "verifier.separate_unfit"
    assert failure.message.startswith("separate verifier: ")
    assert (ran.result.reward, ran.result.verifier_error_category) == (None, "verifier_infra")
    assert record(ran)["status"] == "sandbox_failed"


@LOCAL
async def test_dead_channel_is_tried_once_more_without_another_sandbox_or_the_agent(
    provider: SandboxProvider, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "LATENESS_LIMIT_S", 1.0)
    wedging: Any = WedgesApart(provider)
    files = {"solution/solve.sh": "#!/bin/sh\necho ran >> runs\n"}
    test = '[ "$(cat runs)" != ran ] || echo 1 > /logs/verifier/reward.txt'
    folder = task(tmp_path, test, toml=f"{SEPARATE}timeout_sec = 4\n", **files)

    ran = await Rollouts(wedging, kind, tmp_path).run(folder)

    assert ran.result.reward == 1.0, ran.said()
    assert [sandbox.verifications for sandbox in wedging.wedged] == [3]


@LOCAL
async def test_larger_of_the_two_sandboxes_is_what_the_worker_must_have_room_for(
    watched: Any, kind: str, tmp_path: Path
) -> None:
    capacity = Capacity()
    capacity.limit(cpus=4, memory_mb=2048)
    rollouts = Rollouts(watched, kind, tmp_path, capacity)
    toml = "[environment]\nmemory_mb = 512\n[verifier.environment]\nmemory_mb = 4096\n"

    ran = await rollouts.run(task(tmp_path, "echo 1 > /logs/verifier/reward.txt", toml=toml))

    assert [failure.code for failure in ran.result.failures] == ["sandbox.too_large"]
    assert watched.opened == []
