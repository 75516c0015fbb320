"""Who is told what, in which order: prompts of parts, scenes as turns, turns as sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.errors import TaskError
from benchflow_client.plan.playing import is_played_by_job
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.scenes import PromptParts, Role
from benchflow_client.tasks.lint import lint
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.scenes import composed_prompt, planned_turns, sessions_of

PARTS = ("base", "role", "scene", "turn")
TEXTS = st.dictionaries(
    st.sampled_from(PARTS), st.text("ab \n", max_size=6) | st.sampled_from(["one", "two\nlines"])
)
OWN_TEXTS = st.fixed_dictionaries(
    {}, optional={part: st.sampled_from([f"{part} word", f"\n{part}\nlines\n", "", " \n"]) for part in PARTS}
)
"""Texts no two of which share a word, so that what is in a prompt tells whose it is."""

ORDERS = st.none() | st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map(tuple)
HOWS = st.builds(PromptParts, composition=st.sampled_from(["replace", "append"]), order=ORDERS)


@given(OWN_TEXTS, HOWS)
def test_a_prompt_holds_parts_of_its_order_and_nothing_else(parts, how):
    said = composed_prompt(parts, how)

    rest = said
    for part in how.order or PARTS:
        text = parts.get(part, "")
        rest = rest.replace(text.strip("\n"), "") if text.strip() else rest
    assert rest.strip() in {"", parts.get("base", "").strip()}


@given(TEXTS, ORDERS)
def test_replace_says_one_part_as_it_is(parts, order):
    said = composed_prompt(parts, PromptParts(composition="replace", order=order))

    assert said in {*parts.values(), ""}


@given(TEXTS, HOWS)
def test_something_is_said_whenever_the_order_or_the_base_has_something(parts, how):
    order = how.order or PARTS
    is_given = any(parts.get(part, "").strip() for part in (*order, "base"))

    assert bool(composed_prompt(parts, how).strip()) == is_given


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "turn"),
        ({"composition": "append"}, "base\n\nrole\n\nscene\n\nturn"),
        ({"order": ["role", "turn"]}, "role"),
        ({"composition": "append", "order": ["turn", "base"]}, "turn\n\nbase"),
        ({"composition": "append", "order": ["base", "base"]}, "base"),
    ],
)
def test_order_and_composition_decide(how, expected):
    assert composed_prompt({part: part for part in PARTS}, PromptParts.model_validate(how)) == expected


def test_blank_parts_give_way_to_the_next():
    parts = {"base": "base", "role": " \n", "scene": "", "turn": "\n"}

    assert composed_prompt(parts, PromptParts()) == "base"
    assert composed_prompt(parts, PromptParts(order=("turn",))) == "base"


TWO_ROLES = """---
agents: {roles: {solver: {agent: job}, critic: {agent: job}}}
SCENES
---
Do it.

## role:critic
Criticise it.

## scene:build
Build it.
"""


def turns(make_document, scenes, **more):
    return planned_turns(read_task(make_document(TWO_ROLES.replace("SCENES", scenes), **more)))


def test_scenes_become_turns_in_order_with_their_prompts(make_document):
    found = turns(
        make_document,
        "scenes: [{name: build, turns: [solver, {role: critic, prompt: Say no.}]}, {turns: [critic, critic]}]",
    )

    assert [(turn.id, turn.scene, turn.prompt) for turn in found] == [
        ("scene-1-turn-1-solver", "build", "Build it."),
        ("scene-1-turn-2-critic", "build", "Say no."),
        ("scene-2-turn-1-critic", "scene-2", "Criticise it."),
        ("scene-2-turn-2-critic", "scene-2", "Criticise it."),
    ]


@pytest.mark.parametrize("scenes", ["scenes: [{}]", "scenes: [{roles: [solver, critic]}]", ""])
def test_scene_without_turns_has_one_for_each_role(make_document, scenes):
    assert [(turn.role, turn.prompt) for turn in turns(make_document, scenes)] == [
        ("solver", "Do it."),
        ("critic", "Criticise it."),
    ]


def test_task_without_roles_has_no_turns(make_document):
    assert planned_turns(read_task(make_document("---\nversion: '1.3'\n---\nDo it.\n"))) == ()


def test_prefix_stands_before_every_prompt(make_document):
    found = turns(make_document, "agent: {prompt_prefix: Be quick.}")

    assert [turn.prompt for turn in found] == ["Be quick.\n\nDo it.", "Be quick.\n\nCriticise it."]


def test_turns_in_a_row_of_one_role_in_one_scene_share_a_session(make_document):
    found = turns(
        make_document, "scenes: [{turns: [solver, solver, critic, solver]}, {turns: [solver, solver]}]"
    )

    assert [[turn.id for turn in session] for session in sessions_of(found)] == [
        ["scene-1-turn-1-solver", "scene-1-turn-2-solver"],
        ["scene-1-turn-3-critic"],
        ["scene-1-turn-4-solver"],
        ["scene-2-turn-1-solver", "scene-2-turn-2-solver"],
    ]


@pytest.mark.parametrize(
    ("role", "agent", "expected"),
    [
        ("job", "./solve.sh", True),
        ("solve", "./solve.sh", True),
        ("solve.sh", "agents/solve.sh", True),
        ("agents/critic.sh", "./solve.sh", False),
        ("codex-acp", "./solve.sh", False),
        ("codex-acp", "./codex-acp.sh", True),
        ("oracle", "oracle", True),
        ("oracle", "nop", False),
    ],
)
def test_job_agent_plays_the_roles_that_ask_for_it_by_name(role, agent, expected):
    assert is_played_by_job(Role(agent=role), AgentSpec(name=agent)) is expected


@pytest.mark.parametrize("script", ["agents/missing.sh", "../outside.sh", "/bin/sh", "agents/link.sh"])
def test_script_of_a_role_must_be_a_file_of_the_task(make_document, script):
    folder = make_document("---\nversion: '1.3'\n---\nDo it.\n", {"agents/there.sh": "#!/bin/sh\n"})
    (folder / "agents/link.sh").symlink_to("/bin/sh")
    (folder.parent / "outside.sh").write_text("#!/bin/sh\n")
    (folder / "task.md").write_text(f"---\nagents: {{roles: {{a: {{agent: {script}}}}}}}\n---\nDo it.\n")

    with pytest.raises(TaskError) as caught:
        read_task(folder)

    assert (
        f'task.md, line 2: agents.roles.a.agent = "{script}": expected a registered agent, or a script '
        "below the task's folder" in caught.value.problems
    )


def test_prompts_of_undeclared_roles_and_scenes_are_found_by_the_check(make_document):
    folder = make_document(TWO_ROLES.replace("critic: ", "critics: ").replace("SCENES", ""))

    assert lint(folder, read_task(folder)) == (
        "task.md: ## role:critic: no such role is declared; did you mean 'critics'?",
        "task.md: ## scene:build: no such scene is declared",
    )


def test_agent_of_a_role_may_be_a_script_that_speaks_a_protocol_and_must_be_named(make_document):
    text = "---\nagents: {roles: {a: {agent: 'acp:agents/there.py'}, b: {agent: 'acp:'}}}\n---\nDo it.\n"
    folder = make_document(text, {"agents/there.py": "pass\n"})

    with pytest.raises(TaskError) as caught:
        read_task(folder)

    (problem,) = caught.value.problems
    assert problem.endswith("expected the name or the path of an agent")
