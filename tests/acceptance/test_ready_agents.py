"""Ready-made agents, really installed: each works on a task against a scripted model, with and without a network.

What they ask and are answered is the script's; the program, its protocol, its sandbox, the gateway
and the numbers are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.api import Client
from benchflow_client.catalog.agents import AGENTS
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import Npm
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.trial import TrialResult
from benchflow_workers.agents.toolbox import Toolbox
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from tests.fleets import PLAIN, embedded_fleet
from tests.worlds import write_task

pytestmark = [pytest.mark.npm, pytest.mark.timeout(900)]

KEY = "the-providers-" + "secret-0123456789"
MODEL = "vllm/large-1"
WAIT_S = 300.0
READY = tuple(
    name
    for name, entry in AGENTS.items()
    if entry.definition is not None and isinstance(entry.definition.install, Npm)
)
THOROUGH = ("claude-agent-acp", "claude-code", "codex-cli")
"""Those that work in every kind of sandbox with and without a network; each other one in one of the four."""

SKILLS = Path(__file__).parents[2] / "examples/skills"
SKILL = "house-dates"
"""The only one there; agents tell their model of those they find, by name at least."""

NETWORKS = {"open": "", "closed": '[environment]\nnetwork_mode = "no-network"\n'}
KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))

SEARCH = (
    f"found=finished; if printf %s '{KEY[::-1]}' | rev | "
    'grep -rqsaF -f - /proc/[0-9]*/environ /proc/[0-9]*/cmdline "$HOME" /tmp /app /logs; '
    "then found=leaked; fi; echo $found > out.txt"
)
"""What the model asks the agent to run: the work, unless the key is anywhere in the sandbox."""


@dataclass(frozen=True)
class Finished:
    """Closed jobs of ready-made agents on tasks with and without a network."""

    folders: Mapping[tuple[str, str], Path]  # by agent and task
    trials: Mapping[tuple[str, str], PublishedTrial]  # by agent and task

    def result(self, agent: str, task: str) -> TrialResult:
        found = self.trials[agent, task].result
        assert found is not None
        return found

    def lines(self, agent: str, task: str, name: str) -> list[dict[str, Any]]:
        file = self.folders[agent, task] / self.result(agent, task).rollout_name / "trajectory" / name
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def models() -> Iterator[ScriptedModels]:
    with scripted_models(Script(command=SEARCH)) as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ready")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    toolbox = Toolbox(home / "state" / "toolbox")
    for name in READY:
        definition = AGENTS[name].definition
        assert definition is not None
        assert toolbox.prepared(definition).is_dir()
    prices = home / "prices.json"
    prices.write_text(json.dumps({"large-1": {"input": 2, "output": 10, "cache_read": 1}}))
    with embedded_fleet(
        home, BENCHFLOW_RECONCILE_S="0.5", BENCHFLOW_PROVIDER_API_KEY=KEY, BENCHFLOW_PRICES=str(prices)
    ) as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def finished(request: pytest.FixtureRequest, client: Client, home: Path, models: ScriptedModels) -> Finished:
    tasks = home / f"tasks-{request.param}"
    for name, toml in NETWORKS.items():
        write_task(tasks / name, files=PLAIN, toml=toml)
    jobs = [client.submit(job(request.param, tasks, THOROUGH, models))]
    if request.param == "docker":
        others = tuple(name for name in READY if name not in THOROUGH)
        jobs.append(client.submit(job(request.param, tasks / "closed", others, models)))
    folders, trials = {}, {}
    for handle in jobs:
        handle.wait(timeout_s=WAIT_S)
        plan = handle.results().plan
        for trial in handle.trials():
            planned = plan.trial(trial.receipt.trial_index)
            pair = planned.agent.spec.name, planned.task.name
            folders[pair], trials[pair] = home / "jobs" / handle.name, trial
    return Finished(folders, trials)


def job(kind: str, tasks: Path, names: Sequence[str], models: ScriptedModels) -> JobSpec:
    return JobSpec(
        tasks=str(tasks), agent=tuple(agent(name, models) for name in names), model=MODEL,
        sandbox=kind, concurrency=2, max_attempts=2, agent_timeout_s=120,
        skill_mode="with-skill", skills_dir=str(SKILLS),
    )  # fmt: skip


def agent(name: str, models: ScriptedModels) -> AgentSpec:
    definition = AGENTS[name].definition
    assert definition is not None
    dialect = definition.dialects[0]
    url = models.url if dialect.startswith("openai") else models.host
    address = (f"BENCHFLOW_PROVIDER_BASE_URL={url}", f"BENCHFLOW_PROVIDER_PROTOCOL={dialect}")
    return AgentSpec(name=name, env=(*address, "BENCHFLOW_PROVIDER_API_KEY"))


def test_every_agent_solves_the_task_and_finds_no_key(finished: Finished) -> None:
    endings = {
        pair: (trial.receipt.outcome, trial.receipt.reward, trial.receipt.code)
        for pair, trial in finished.trials.items()
    }

    assert {pair: ending for pair, ending in endings.items() if ending != ("passed", 1.0, "")} == {}
    assert endings.keys() >= {(name, task) for name in THOROUGH for task in NETWORKS}
    if finished.result("codex-cli", "open").sandbox == "docker":
        assert {name for name, _ in endings} == set(READY)


CALL_USD = (90 * 2 + 10 * 1 + 7 * 10) / 1e6
"""What a call costs: of 100 tokens asked 10 come from a cache, 7 are answered."""


def test_tokens_and_cost_are_those_the_server_told(finished: Finished) -> None:
    for name, task in finished.trials:
        calls = finished.lines(name, task, "llm_trajectory.jsonl")
        usage = finished.result(name, task).agent_result

        assert len(calls) >= 2
        assert {call["status"] for call in calls} == {200}
        assert {call["served_model"] for call in calls} == {"large-1"}
        assert (usage.n_input_tokens, usage.n_output_tokens) == (100 * len(calls), 7 * len(calls))
        assert usage.usage_source == "provider_response"
        assert usage.cost_usd == pytest.approx(len(calls) * CALL_USD)
        assert {call["price_source"] for call in calls} == {"own table"}


def test_the_trajectory_tells_prompt_tool_and_answer(finished: Finished) -> None:
    for name, task in finished.trials:
        events = finished.lines(name, task, "acp_trajectory.jsonl")
        kinds = [event["type"] for event in events]

        assert kinds[0] == "user_message"
        assert [event["status"] for event in events if event["type"] == "tool_call"] == ["completed"]
        assert "All done." in "".join(
            event.get("text", "") for event in events if event["type"] == "agent_message"
        )


def test_every_agent_tells_its_model_of_the_skills_it_finds(finished: Finished) -> None:
    for name, task in finished.trials:
        asked = [call["request"] for call in finished.lines(name, task, "llm_trajectory.jsonl")]

        assert any(SKILL in json.dumps(request) for request in asked), name


def test_the_result_says_which_version_worked(finished: Finished) -> None:
    for name, task in finished.trials:
        definition = AGENTS[name].definition
        assert definition is not None
        assert finished.result(name, task).agent_version.startswith(definition.version)


def test_no_file_of_the_job_holds_the_key(finished: Finished, models: ScriptedModels) -> None:
    files = [
        path for folder in set(finished.folders.values()) for path in folder.rglob("*") if path.is_file()
    ]

    assert len(files) > 20
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert {asked.key for asked in models.asked} == {KEY}


ROLES = """\
---
schema_version: "1.3"
metadata: {}
verifier: {timeout_sec: 60}
agents:
  roles:
    writer: {agent: claude-code, model: vllm/large-1, env: {BENCHFLOW_PROVIDER_BASE_URL: HOST, BENCHFLOW_PROVIDER_PROTOCOL: anthropic-messages, BENCHFLOW_PROVIDER_API_KEY: "${BENCHFLOW_PROVIDER_API_KEY}"}}
    critic: {agent: codex-cli, model: vllm/large-1, reasoning_effort: high, env: {BENCHFLOW_PROVIDER_BASE_URL: HOST/v1, BENCHFLOW_PROVIDER_API_KEY: "${BENCHFLOW_PROVIDER_API_KEY}"}}
scenes:
  - name: work
    turns:
      - {role: writer, prompt: "Write it."}
      - {role: critic, prompt: "Look at it."}
---

Make the build pass.
"""


@pytest.mark.root
def test_ready_made_agents_play_roles_together(client: Client, home: Path, models: ScriptedModels) -> None:
    task = write_task(home / "roles", files={**PLAIN, "task.md": ROLES.replace("HOST", models.host)})
    (task / "task.toml").unlink()
    (task / "instruction.md").unlink()
    asked = len(models.asked)

    handle = client.submit(
        JobSpec(tasks=str(task), agent=(agent("claude-code", models),), model=MODEL, sandbox="local")
    )
    handle.wait(timeout_s=WAIT_S)

    (trial,) = handle.trials()
    assert trial.result is not None
    assert (trial.receipt.outcome, trial.result.error) == ("passed", None)
    assert [(one.role, one.agent) for one in trial.result.sessions] == [
        ("writer", "claude-code@vllm/large-1"),
        ("critic", "codex-cli@vllm/large-1"),
    ]
    efforts = [one.body.get("reasoning", {}).get("effort") for one in models.asked[asked:]]
    assert efforts == [None, None, "high", "high"]


@pytest.mark.root
@pytest.mark.litellm
def test_an_agent_whose_provider_speaks_otherwise_is_served_in_other_words(
    client: Client, home: Path, models: ScriptedModels
) -> None:
    task = write_task(home / "translated", files=PLAIN)
    address = (
        f"BENCHFLOW_PROVIDER_BASE_URL={models.url}",
        "BENCHFLOW_PROVIDER_API_KEY",
        "BENCHFLOW_PROVIDER_PROTOCOL=openai-completions",
    )
    claude = AgentSpec(name="claude-code", model=MODEL, env=address)

    handle = client.submit(JobSpec(tasks=str(task), agent=(claude,), sandbox="local"))
    handle.wait(timeout_s=WAIT_S)

    (trial,) = handle.trials()
    assert trial.result is not None
    assert (trial.receipt.outcome, trial.receipt.code) == ("passed", "")
    assert trial.result.agent_result.total_tokens
    assert models.asked[-1].path.endswith("/chat/completions")
