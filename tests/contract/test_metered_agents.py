"""What is told of a turn whose calls the worker's own gateway did not pass on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import aiohttp
import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.metered import MeteredAgent
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.testing_models import scripted_models
from benchflow_workers.trial.redact import Redactor

ASKS = {"model": "large-1", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Prices())
    yield made
    made.close()


@dataclass
class Asking:
    """Code on the worker that asks its model each of some things."""

    bodies: Sequence[dict[str, Any]]

    is_control: ClassVar = False
    runs_as_user: ClassVar = False
    is_on_worker: ClassVar = True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        headers = {"Authorization": f"Bearer {context.env['OPENAI_API_KEY']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for body in self.bodies:
                async with session.post(
                    f"{context.env['OPENAI_BASE_URL']}/chat/completions", json=body
                ) as answer:
                    await answer.read()
        return AgentRun(exit_code=1, timed_out=False)


async def turn(gateway: Gateway, folder: Path, *bodies: dict[str, Any]) -> AgentRun:
    task = Task(
        name="ask", form="task.toml", instruction="Ask.", config=TaskConfig(), verifier_dir="tests",
        oracle_dir="solution", has_dockerfile=True, has_compose=False,
    )  # fmt: skip
    context = AgentContext(
        task=task, task_dir=folder, spec=AgentSpec(name="asks"), script=None, env={}, oracle_env={}, timeout_s=60,
        user="root", prompts=("",), network=NetworkPolicy("no-network"),
    )  # fmt: skip
    with scripted_models() as models:
        target = Target("custom", "large-1", {"openai-completions": models.url}, None)
        agent = MeteredAgent(
            Asking(bodies), gateway, target, Purse(Allowance()), folder / "calls.jsonl", Redactor()
        )
        return await agent.run(cast("Sandbox", None), context)


async def test_a_turn_whose_every_call_was_refused_here_says_why(gateway: Gateway, tmp_path: Path) -> None:
    run = await turn(gateway, tmp_path, {**ASKS, "web_search_options": {}})

    (failure,) = run.failures
    assert failure.code == "agent.rejected"
    assert "web_search_options" in failure.message
    assert not run.is_broken


async def test_a_turn_with_a_call_that_was_answered_tells_of_no_refusal(
    gateway: Gateway, tmp_path: Path
) -> None:
    run = await turn(gateway, tmp_path, {**ASKS, "web_search_options": {}}, ASKS)

    assert (tuple(run.failures), run.usage.total_tokens) == ((), 107)
