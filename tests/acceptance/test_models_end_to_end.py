"""A trial whose agent asks a model: through the gateway, with and without a network, the key outside."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.api import Client
from benchflow_client.handle import JobHandle
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from tests.fleets import PLAIN, embedded_fleet
from tests.worlds import write_task

AGENT = Path(__file__).parents[1] / "assets" / "agents" / "asks_model.sh"
KEY = "the-providers-" + "own-key-0123456789"
WAIT_S = 120.0
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin")
BENCH = "import sys; from benchflow_client.cli.main import main; sys.exit(main())"
KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))
NETWORKS = {"public": "", "no-network": '[environment]\nnetwork_mode = "no-network"\n'}


@pytest.fixture(scope="module")
def models() -> Iterator[ScriptedModels]:
    with scripted_models() as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def client(home: Path, models: ScriptedModels) -> Iterator[Client]:
    prices = home / "prices.json"
    prices.write_text('{"custom/large-1": {"input": 2.5, "output": 10, "cache_read": 1}}')
    variables = {
        "BENCHFLOW_PROVIDER_BASE_URL": models.url,
        "BENCHFLOW_PROVIDER_API_KEY": KEY,
        "BENCHFLOW_PRICES": str(prices),
    }
    with embedded_fleet(home, BENCHFLOW_RECONCILE_S="0.5", **variables) as made:
        yield made


def run(client: Client, home: Path, *, sandbox: str, toml: str = "", **changes: object) -> JobHandle:
    task = write_task(home / f"task-{sandbox}-{len(toml)}", files=PLAIN, toml=toml)
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    env = ("BENCHFLOW_PROVIDER_API_KEY", f"FORBIDDEN_DIGEST={digest}")
    agent = AgentSpec(name=str(AGENT), model="vllm/large-1", env=env)
    handle = client.submit(
        JobSpec(tasks=str(task), agent=(agent,), sandbox=sandbox, max_attempts=1, **changes)
    )
    handle.wait(timeout_s=WAIT_S)
    return handle


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_an_agent_asks_its_model_and_never_sees_the_key(
    client: Client, home: Path, models: ScriptedModels, kind: str, network: str
) -> None:
    models.script, before = Script(), len(models.asked)

    handle = run(client, home, sandbox=kind, toml=NETWORKS[network])

    (trial,) = handle.trials()
    result = trial.result
    assert result is not None
    assert (result.outcome, result.reward, result.failures) == ("passed", 1.0, ())
    asked = models.asked[before:]
    assert [(one.key, one.body["model"]) for one in asked] == [(KEY, "large-1")]
    usage = result.agent_result
    assert usage.endpoint_kind == "loopback"
    assert (usage.n_input_tokens, usage.n_output_tokens, usage.usage_source) == (100, 7, "provider_response")
    assert usage.cost_usd == pytest.approx((90 * 2.5 + 10 * 1 + 7 * 10) / 1e6)
    assert (trial.receipt.tokens, trial.receipt.cost_usd) == (107, usage.cost_usd)
    folder = home / "jobs" / handle.name / result.rollout_name
    (call,) = map(json.loads, (folder / "trajectory" / "llm_trajectory.jsonl").read_text().splitlines())
    assert (call["served_model"], call["tokens"]["cache_read"]) == ("large-1", 10)
    log = next((folder / "agent").glob("*.txt")).read_text()
    assert f"FORBIDDEN_DIGEST={hashlib.sha256(KEY.encode()).hexdigest()}" in log
    assert all(KEY not in path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.root
def test_a_job_that_wants_tokens_has_them_in_the_record_of_each_call(
    client: Client, home: Path, models: ScriptedModels
) -> None:
    models.script = Script()

    handle = run(client, home, sandbox="local", capture_tokens="auto")

    (trial,) = handle.trials()
    assert trial.result is not None
    record = home / "jobs" / handle.name / trial.result.rollout_name / "trajectory" / "llm_trajectory.jsonl"
    (call,) = map(json.loads, record.read_text().splitlines())
    assert call["token_capture"]["token_ids"] == [201, 202, 203, 204, 205, 206, 207]
    assert (len(call["token_capture"]["logprobs"]), call["token_capture"]["unavailable"]) == (7, {})


@pytest.mark.root
def test_calls_that_all_fail_are_the_providers_and_no_zero(
    client: Client, home: Path, models: ScriptedModels
) -> None:
    models.script = Script(statuses=[401] * (len(models.asked) + 9))

    handle = run(client, home, sandbox="local")

    (trial,) = handle.trials()
    assert trial.result is not None
    assert (trial.receipt.outcome, trial.receipt.reward, trial.receipt.code) == (
        "errored",
        None,
        "agent.provider_auth",
    )
    assert trial.result.error_category == "provider_auth"


@pytest.mark.root
def test_requests_the_provider_would_not_take_are_the_agents_own_doing(
    client: Client, home: Path, models: ScriptedModels
) -> None:
    models.script = Script(statuses=[400] * (len(models.asked) + 9))

    handle = run(client, home, sandbox="local")

    (trial,) = handle.trials()
    assert (trial.receipt.outcome, trial.receipt.reward, trial.receipt.code) == (
        "failed",
        0.0,
        "agent.rejected",
    )


@pytest.mark.root
def test_a_model_of_no_known_provider_is_told_before_any_sandbox(client: Client, home: Path) -> None:
    task = write_task(home / "task-unknown", files=PLAIN)
    agent = AgentSpec(name=str(AGENT), model="opus-9", env=("BENCHFLOW_PROVIDER_BASE_URL=",))

    handle = client.submit(JobSpec(tasks=str(task), agent=(agent,), sandbox="local"))
    handle.wait(timeout_s=WAIT_S)

    (trial,) = handle.trials()
    assert trial.result is not None
    assert (trial.receipt.code, trial.result.sandbox_id) == ("agent.env_missing", None)
    assert "ANTHROPIC_API_KEY" in (trial.result.error or "")


def test_where_nothing_is_run_no_model_is_needed(client: Client, home: Path) -> None:
    handle = run(client, home, sandbox="null")

    (trial,) = handle.trials()
    assert (trial.receipt.outcome, trial.receipt.code) == ("unscored", "")


@pytest.mark.docker
@pytest.mark.root
@pytest.mark.parametrize("network", NETWORKS)
def test_a_worker_that_may_not_enter_its_containers_gives_models_all_the_same(
    tmp_path: Path, network: str
) -> None:
    """As the one of docker-compose.yml, a container itself: root, without a right over networks."""
    task = write_task(tmp_path / "task", files=PLAIN, toml=NETWORKS[network])
    request = (
        "run",
        str(task),
        "--agent",
        str(AGENT),
        "--model",
        "vllm/large-1",
        "--sandbox",
        "docker",
        "--json",
    )
    with scripted_models() as models:
        variables = {"BENCHFLOW_PROVIDER_BASE_URL": models.url, "BENCHFLOW_PROVIDER_API_KEY": KEY}
        bench = (*WITHOUT_RIGHTS, sys.executable, "-c", BENCH)
        environ = {
            **os.environ,
            **variables,
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        done = subprocess.run(
            [*bench, *request, "--agent-env", "FORBIDDEN_DIGEST=none"],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "jobs").rglob("result.json")
    result = json.loads(path.read_text())
    assert (result["outcome"], [one.key for one in models.asked]) == ("passed", [KEY])
    used = result["agent_result"]
    assert (used["endpoint_kind"], used["total_tokens"]) == ("relay", 107)
