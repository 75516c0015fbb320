"""Agents on a login of the worker's user, in real sandboxes: what the agent finds, and what is left of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Launch, Login
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.cli_text import plain_text
from benchflow_workers.agents.login import LoginAgent, LoginFiles
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.trial.logins import LoginPlaces, login_for, on_login

TOKEN = "an-account-" + "token-0123456789"
SWITCH = {"BENCHFLOW_SUBSCRIPTION_AUTH": "on"}
TINY = AgentDefinition(
    name="tiny",
    protocol="text",
    install=InSandbox(
        script="true", command='stat -c "%a %U" ~/.tiny/auth.json; cat ~/.tiny/auth.json; echo; echo "$MODE"'
    ),
    dialects=("anthropic-messages",),
    launch=Launch(env={"MODE": "key"}),
    login=Login(
        detect=".tiny/auth.json",
        files=(".tiny/auth.json", ".tiny/not-there.json"),
        variables={"TINY_AUTH_JSON": ".tiny/auth.json"},
        hosts=("tiny.example",),
        launch=Launch(env={"MODE": "account ${BENCHFLOW_PROVIDER_MODEL}"}),
    ),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home folder of a worker's user who is logged in."""
    folder = tmp_path / "home" / ".tiny"
    folder.mkdir(parents=True)
    (folder / "auth.json").write_text(json.dumps({"plan": "max", "tokens": {"access": TOKEN}}))
    return folder.parent


@pytest.fixture
def take(
    sandbox: Sandbox, make_task: Callable[..., Task], tmp_path: Path
) -> Callable[..., Awaitable[AgentRun]]:
    async def run(
        agent: LoginAgent,
        network: NetworkPolicy | None = None,
        definition: AgentDefinition = TINY,
        timeout_s: float = 60.0,
    ) -> AgentRun:
        context = AgentContext(
            task=make_task(), task_dir=tmp_path, spec=AgentSpec(name="tiny", model="claude-x"), script=None, env={},
            oracle_env={}, timeout_s=timeout_s, user="agent", prompts=("Work.",), definition=definition,
            network=network or NetworkPolicy(),
        )  # fmt: skip
        await prepare_user(sandbox, "agent", sandbox.workdir, timeout_s=60)
        await sandbox.put(agent.uploads(context))
        return await agent.run(sandbox, context)

    return run


def login_of(
    worker: dict[str, str], job: dict[str, str], definition: AgentDefinition = TINY
) -> LoginFiles | None:
    assert TINY.login is not None
    return login_for(definition, "anthropic/claude-x", job, LoginPlaces(worker, {"tiny": TINY.login}))


def agent(variables: dict[str, str]) -> LoginAgent:
    login = login_of(variables, {})
    assert login is not None
    return on_login(plain_text(), login, "anthropic/claude-x")


async def test_the_agent_alone_can_read_the_login_and_nothing_of_it_is_left(
    take: Callable[..., Awaitable[AgentRun]],
    sandbox: Sandbox,
    home: Path,
    shell: Callable[..., Awaitable[str]],
) -> None:
    made = agent({**SWITCH, "HOME": str(home)})

    run = await take(made)

    lines = run.log.decode().splitlines()
    assert lines[0] == "600 agent"
    assert json.loads(lines[1])["tokens"]["access"] == TOKEN
    assert lines[2] == "account claude-x"
    assert made.login.secrets == {TOKEN}
    left = await shell(sandbox, "ls -A /home/agent/.tiny; ls -d /opt/benchflow/login 2>&1 || true")
    assert "auth.json" not in left
    assert "No such file" in left


async def test_an_agent_that_did_nothing_to_the_end_of_its_time_is_not_scored(
    take: Callable[..., Awaitable[AgentRun]], home: Path
) -> None:
    made = agent({**SWITCH, "HOME": str(home)})
    silent = TINY.model_copy(update={"install": InSandbox(script="true", command="sleep 60")})

    run = await take(made, definition=silent, timeout_s=1.5)

    assert (run.timed_out, run.is_broken) == (True, True)
    assert [failure.code for failure in run.failures] == ["agent.silent"]


async def test_a_variable_of_the_worker_stands_in_for_the_file(
    take: Callable[..., Awaitable[AgentRun]], tmp_path: Path
) -> None:
    made = agent({**SWITCH, "HOME": str(tmp_path), "TINY_AUTH_JSON": json.dumps({"access": TOKEN})})

    run = await take(made)

    assert json.loads(run.log.decode().splitlines()[1]) == {"access": TOKEN}
    assert TOKEN not in repr(made)


async def test_a_network_that_keeps_it_from_its_provider_is_refused_before_its_turn(
    take: Callable[..., Awaitable[AgentRun]], home: Path
) -> None:
    made = agent({**SWITCH, "HOME": str(home)})

    with pytest.raises(AgentError, match=r"tiny\.example") as caught:
        await take(made, NetworkPolicy("no-network"))

    assert caught.value.code == "agent.not_runnable"


@pytest.mark.parametrize(
    "more",
    [
        {"BENCHFLOW_SUBSCRIPTION_AUTH": "off"},
        {"ANTHROPIC_API_KEY": "k", **SWITCH},
        {"BENCHFLOW_PROVIDER_BASE_URL": "http://127.0.0.1:1/v1", **SWITCH},
    ],
)
def test_a_login_is_used_only_where_the_worker_allows_it_and_there_is_no_key(
    home: Path, more: dict[str, str]
) -> None:
    assert login_of({"HOME": str(home), **more}, {}) is None


def test_a_job_can_neither_allow_logins_nor_say_whose(home: Path) -> None:
    job = {**SWITCH, "HOME": str(home), "TINY_AUTH_JSON": "{}"}

    assert login_of({}, job) is None
    assert login_of({"HOME": str(home)}, job) is None
    assert login_of({**SWITCH, "HOME": "/nonexistent"}, job) is None


def test_a_jobs_own_key_comes_before_a_login(home: Path) -> None:
    assert login_of({**SWITCH, "HOME": str(home)}, {"ANTHROPIC_API_KEY": "k"}) is None


def test_what_a_login_is_made_of_is_the_workers_word_and_not_the_plans(home: Path) -> None:
    (home / "private").write_text("nobody's business")
    wanted = Login(detect="private", files=("private",), variables={"PATH": ""}, hosts=())
    worker = {**SWITCH, "HOME": str(home), "PATH": "/bin"}

    found = login_of(worker, {}, TINY.model_copy(update={"login": wanted}))

    assert found is not None
    assert list(found.files) == [".tiny/auth.json"]
    assert found.env == {}
    assert login_of(worker, {}, TINY.model_copy(update={"name": "other", "login": wanted})) is None


async def test_a_home_that_leads_elsewhere_gets_root_to_write_and_remove_nothing_there(
    take: Callable[..., Awaitable[AgentRun]],
    sandbox: Sandbox,
    home: Path,
    shell: Callable[..., Awaitable[str]],
) -> None:
    made = agent({**SWITCH, "HOME": str(home)})
    await take(made)
    await shell(sandbox, "mkdir -m 755 /opt/roots && echo mine >/opt/roots/auth.json")
    await shell(sandbox, "rm -rf ~agent/.tiny && ln -s /opt/roots ~agent/.tiny", user="agent")

    with pytest.raises(AgentError, match="cannot be placed"):
        await take(made)

    assert await shell(sandbox, "cat /opt/roots/auth.json; stat -c %U /opt/roots/auth.json") == "mine\nroot\n"


@pytest.mark.parametrize(
    ("model", "is_used"),
    [("anthropic/x", True), ("a-name-nobody-knows", True), ("deepseek/v4", False), ("gpt-5", False)],
)
def test_a_login_is_good_at_its_own_provider_only(home: Path, model: str, is_used: bool) -> None:
    places = LoginPlaces({"HOME": str(home), **SWITCH}, {"tiny": TINY.login})

    assert (login_for(TINY, model, {}, places) is not None) == is_used


def test_a_login_that_is_too_large_is_refused(home: Path) -> None:
    (home / ".tiny" / "auth.json").write_bytes(b"x" * ((1 << 20) + 1))

    with pytest.raises(AgentError, match="larger than") as caught:
        login_of({**SWITCH, "HOME": str(home)}, {})

    assert caught.value.code == "agent.env_missing"
