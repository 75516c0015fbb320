"""The conformance tasks about lists of hosts and URLs, run whole in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import pack
from benchflow_workers.agents.registry import agent_of
from benchflow_workers.sandbox.base import SandboxProvider
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.prepare import Parts
from benchflow_workers.trial.recorder import result_of, write_attempt
from benchflow_workers.trial.records import Attempt, Rollout
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.verifiers.registry import verifier_of
from tests.web_server import WebServer, web_server

pytestmark = pytest.mark.root

TASKS = Path(__file__).parents[2] / "assets" / "tasks"


@dataclass(frozen=True)
class Ran:
    """One attempt: its rollout, and its folder in the store."""

    rollout: Rollout
    folder: Path

    def refused(self) -> list[dict[str, Any]]:
        """Return what the log says without the times, several of one kind once."""
        lines = (self.folder / "trajectory" / "egress_denylist.jsonl").read_text().splitlines()
        entries = [{key: value for key, value in json.loads(line).items() if key != "time"} for line in lines]
        return [entry for at, entry in enumerate(entries) if entry not in entries[:at]]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    with web_server(tls_folder=tmp_path_factory.mktemp("tls")) as server:
        yield server


@pytest.fixture
def provider(web_provider: SandboxProvider) -> SandboxProvider:
    return web_provider


async def ran(task: Path, provider: SandboxProvider, folder: Path) -> Ran:
    """Run a task's own solution and keep what it leaves."""
    store, scratch = FileStore(folder / "store"), folder / "scratch"
    bundle = pack(task, folder / "bundle.tar")
    store.put_file(bundle_key(bundle.digest), folder / "bundle.tar")
    agent = AgentSpec(name="oracle")
    plan = Plan(
        job=f"conformance-{task.name}",
        created_at=utc_now(),
        spec=JobSpec(tasks="tasks", agent=(agent,)),
        sandbox=provider.kind,
        source=SourceInfo(path="tasks"),
        tasks=(PlannedTask(name=task.name, slug=task.name, digest=bundle.digest),),
        agents=(PlannedAgent(label="oracle", slug="oracle", spec=agent),),
    )
    parts = Parts(
        bundles=BundleCache(store, folder / "bundles"), provider=lambda _: provider, agent=agent_of,
        verifier=verifier_of, environ={}, fleet="tests", host_locks=HostLocks(folder / "locks"),
    )  # fmt: skip
    attempt = Attempt(plan, plan.trial(0), 1, 1, "box/1", utc_now())
    scratch.mkdir()
    rollout, _ = await run_attempt(attempt, parts, scratch, lambda phase: None)
    result = result_of(attempt, rollout, Redactor())
    write_attempt(store, result, rollout, folder=scratch, redactor=Redactor())
    return Ran(rollout, folder / "store" / plan.job / attempt.folder)


async def test_allowlist_answers_for_its_names_and_keeps_what_it_refused(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    done = await ran(TASKS / "network-allowlist", provider, tmp_path)

    assert done.rollout.rewards == {"reward": 1.0}, done.rollout
    assert done.refused() == [
        {"host": "sub.web.example", "port": 53, "rule": "dns-not-allowlisted"},
        {"host": "other.example", "port": 53, "rule": "dns-not-allowlisted"},
        {"host": "private.example", "url": "http://private.example/page", "rule": "private-address"},
    ]


async def test_denylist_blocks_pages_of_a_host_in_plain_and_inside_tls(
    provider: SandboxProvider, web: WebServer, tmp_path: Path
) -> None:
    done = await ran(TASKS / "network-denylist", provider, tmp_path)

    assert done.rollout.rewards == {"reward": 1.0}, done.rollout
    assert done.refused() == [
        {"host": "web.example", "url": "http://web.example/answers/1", "rule": "denied-url"},
        {"host": "blocked.web.example", "port": 53, "rule": "denied-host"},
        {"host": "web.example", "url": "https://web.example/answers", "rule": "denied-url"},
    ]
    assert not any("answers" in path for path in web.asked)


@pytest.mark.docker
async def test_service_of_a_task_keeps_to_the_list_of_its_agent(web: WebServer, tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state", egress=web.egress))

    done = await ran(TASKS / "network-services", provider, tmp_path)

    assert done.rollout.rewards == {"reward": 1.0}, done.rollout
    refused = {"host": "other.example", "port": 53, "rule": "dns-not-allowlisted"}
    assert {**refused, "service": "store"} in done.refused()
    assert refused in done.refused()
