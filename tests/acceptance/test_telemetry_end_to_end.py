"""Spans of a real worker at a real collector: trial, phases, turn and calls, all there when the worker has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_workers.testing_models import scripted_models
from tests.collectors import collector
from tests.fleets import PLAIN, embedded_fleet
from tests.worlds import write_task

AGENT = Path(__file__).parents[1] / "assets" / "agents" / "asks_model.sh"
KEY = "the-providers-" + "own-key-0123456789"
WAIT_S = 120.0


@pytest.mark.root
def test_a_trial_is_a_tree_of_spans_down_to_each_call(tmp_path: Path) -> None:
    """They are sent an hour later, or when the worker ends: what is here was handed over at its end."""
    task = write_task(tmp_path / "task", files=PLAIN)
    with collector() as seen, scripted_models() as models:
        variables = {
            "BENCHFLOW_PROVIDER_BASE_URL": models.url,
            "BENCHFLOW_PROVIDER_API_KEY": KEY,
            "OTEL_EXPORTER_OTLP_ENDPOINT": seen.url,
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        with embedded_fleet(tmp_path, **variables) as client:
            agent = AgentSpec(name=str(AGENT), model="vllm/large-1")
            spec = JobSpec(tasks=str(task), agent=(agent,), sandbox="local", max_attempts=1)
            handle = client.submit(spec)
            handle.wait(timeout_s=WAIT_S)
            (trial,) = handle.trials()

    assert trial.result is not None
    (root,) = [span for span in seen.spans if not span.parent]
    assert root.name == "trial"
    assert {span.trace for span in seen.spans} == {root.trace}
    about = {"bf.job": handle.name, "bf.trial": trial.result.trial, "bf.attempt": 1, "bf.task": "task"}
    assert all(about.items() <= span.attributes.items() for span in seen.spans)
    assert (root.attributes["bf.outcome"], root.attributes["bf.reward"]) == ("passed", 1.0)
    phases = seen.below(root)
    assert [phase.name for phase in phases] == [
        "preparing", "building", "setup", "agent", "verifying", "collecting",
    ]  # fmt: skip
    (turn,) = seen.below(phases[3])
    assert (turn.name, turn.attributes["gen_ai.operation.name"]) == (
        "invoke_agent asks_model.sh",
        "invoke_agent",
    )
    (call,) = seen.below(turn)
    assert (call.name, call.attributes["gen_ai.provider.name"]) == ("chat large-1", "custom")
    assert call.attributes["gen_ai.usage.output_tokens"] == 7
    assert not any(KEY.encode() in body for body in seen.bodies)


@pytest.mark.root
def test_a_collector_that_is_not_there_costs_no_trial(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", files=PLAIN)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with embedded_fleet(tmp_path, **variables) as client:
        handle = client.submit(JobSpec(tasks=str(task), agent="oracle", sandbox="local", tries=3))
        handle.wait(timeout_s=WAIT_S)

        assert [trial.receipt.outcome for trial in handle.trials()] == ["passed"] * 3
