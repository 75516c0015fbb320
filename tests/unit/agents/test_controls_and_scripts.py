"""What agents need before they run, and what is refused before any sandbox exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.catalog.agents import AGENTS, find_agent, list_agents
from benchflow_client.errors import AgentError, UnknownAgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.nop import NopAgent
from benchflow_workers.agents.oracle import OracleAgent
from benchflow_workers.agents.registry import agent_of, kind_of
from benchflow_workers.agents.script import ScriptAgent
from benchflow_workers.shell_scripts import interpreter_of


def context(
    root: Path, *, oracle_dir: str | None = "solution", name: str = "oracle", script: Path | None = None
) -> AgentContext:
    task = Task(
        name="fetch-note",
        form="task.toml",
        instruction="",
        config=TaskConfig(),
        verifier_dir="tests",
        oracle_dir=oracle_dir,
        has_dockerfile=True,
        has_compose=False,
    )
    return AgentContext(
        task=task,
        task_dir=root,
        spec=AgentSpec(name=name),
        script=script,
        env={},
        oracle_env={},
        timeout_s=5,
        user="agent",
        prompts=("",),
    )


def script_context(root: Path, content: bytes, *, name: str = "bots/bot", copy: str = "bot") -> AgentContext:
    script = root / copy
    script.write_bytes(content)
    return context(root, name=name, script=script)


def test_the_list_shows_names_in_order_and_then_the_script() -> None:
    assert [entry.name for entry in list_agents()] == [
        *sorted(AGENTS),
        "probe:TRICK",
        "factory:NAME",
        "acp:PATH",
        "PATH",
    ]
    controls = {entry.name for entry in list_agents() if entry.is_control}
    assert controls == {"nop", "oracle", "probe:TRICK"}


def test_a_known_name_is_found() -> None:
    assert find_agent("oracle") is AGENTS["oracle"]


@pytest.mark.parametrize(("typed", "meant"), [("orcale", "oracle"), ("Oracle", "oracle"), ("noop", "nop")])
def test_an_unknown_name_gets_the_nearest_one_suggested(typed: str, meant: str) -> None:
    with pytest.raises(UnknownAgentError, match=repr(typed)) as caught:
        find_agent(typed)

    assert f"Did you mean '{meant}'?" in caught.value.hint
    assert "`bench agents`" in caught.value.hint


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("xyzzy")

    assert "Did you mean" not in caught.value.hint
    assert "./xyzzy" in caught.value.hint


def test_every_listed_agent_can_be_made() -> None:
    made = {
        name: agent_of(kind_of(AgentSpec(name=name), entry.definition)) for name, entry in AGENTS.items()
    } | {"script": agent_of("script"), "factory:any": agent_of("factory:any")}

    assert isinstance(made["nop"], NopAgent)
    assert isinstance(made["oracle"], OracleAgent)
    assert isinstance(made["script"], ScriptAgent)
    assert {name: (agent.is_control, agent.runs_as_user) for name, agent in made.items()} == {
        "nop": (True, False),
        "oracle": (True, False),
        "script": (False, True),
        "factory:any": (False, True),
        **{name: (False, True) for name, entry in AGENTS.items() if entry.definition is not None},
    }


def test_an_unknown_agent_cannot_be_made() -> None:
    with pytest.raises(UnknownAgentError):
        agent_of("clade")


def test_nop_needs_no_files(tmp_path: Path) -> None:
    assert NopAgent().uploads(context(tmp_path)) == ()


def test_a_solution_is_placed_locked_with_unix_line_ends(tmp_path: Path) -> None:
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_bytes(b"#!/bin/bash\r\ntrue\r\n")

    folder, script = OracleAgent().uploads(context(tmp_path))

    assert (folder.target, folder.mode) == ("/solution", 0o700)
    assert (script.target, script.content) == ("/solution/solve.sh", b"#!/bin/bash\ntrue\n")


@pytest.mark.parametrize("oracle_dir", [None, "oracle"])
def test_a_task_without_a_solution_is_told_so(tmp_path: Path, oracle_dir: str | None) -> None:
    with pytest.raises(AgentError, match=r"'fetch-note' has no (oracle|solution)/solve\.sh") as caught:
        OracleAgent().uploads(context(tmp_path, oracle_dir=oracle_dir))

    assert caught.value.code == "agent.no_solution"


def test_a_program_is_placed_read_only_under_the_name_the_user_gave(tmp_path: Path) -> None:
    (upload,) = ScriptAgent().uploads(
        script_context(tmp_path, b"print('x')\r\n", name="bots/my-bot.py", copy="0123abcd")
    )

    assert upload.target == "/opt/benchflow/agent/my-bot.py"
    assert upload.source == tmp_path / "0123abcd"
    assert upload.mode == 0o555


def test_a_shell_program_is_placed_with_unix_line_ends(tmp_path: Path) -> None:
    (upload,) = ScriptAgent().uploads(script_context(tmp_path, b"#!/bin/sh\r\ntrue\r\n"))

    assert upload.content == b"#!/bin/sh\ntrue\n"


def test_a_compiled_program_is_placed_as_it_is(tmp_path: Path) -> None:
    (upload,) = ScriptAgent().uploads(script_context(tmp_path, b"\x7fELF\x02\x01"))

    assert upload.source == tmp_path / "bot"


def test_a_file_nothing_can_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"neither a \.py file nor a program") as caught:
        ScriptAgent().uploads(script_context(tmp_path, b"do something"))

    assert caught.value.code == "agent.not_runnable"
    assert "#!/bin/sh" in caught.value.hint


@pytest.mark.parametrize("script", [None, Path("/nowhere/bot")])
def test_a_program_that_is_not_there_is_refused(tmp_path: Path, script: Path | None) -> None:
    with pytest.raises(AgentError, match="'bots/bot' names a program that is not there"):
        ScriptAgent().uploads(context(tmp_path, name="bots/bot", script=script))


@pytest.mark.parametrize(
    ("head", "interpreter"),
    [
        (b"#!/bin/bash -e\nx", "/bin/bash"),
        (b"#! /bin/sh\r\n", "/bin/sh"),
        (b"#!/usr/bin/env python3\n", "python3"),
        (b"#!/usr/bin/env -S node --x\n", "node"),
        (b"#!/usr/bin/env A=1 perl\n", "perl"),
        (b"#!/usr/bin/env\n", "/usr/bin/env"),
        (b"#!", None),
        (b"#!\n", None),
        (b"# a comment\n", None),
        (b"", None),
    ],
)
def test_the_interpreter_of_a_script_is_the_program_its_first_line_names(
    head: bytes, interpreter: str | None
) -> None:
    assert interpreter_of(head) == interpreter
