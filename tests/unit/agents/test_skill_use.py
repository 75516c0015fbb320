"""Whether a call used a skill, told from events as the programs leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_workers.agents.base import SkillSet
from benchflow_workers.agents.skill_use import marked_uses

PLACED = SkillSet(Path("skills"), "/skills", ("$HOME/.claude/skills", "$WORKSPACE/skills"))
ACTIVATED = (
    "Skill **house-dates** activated. Resources loaded from `/home/agent/.gemini/skills/house-dates`:\n"
)
LOADED = '<skill_content name="house-dates">\n# Skill: house-dates\n'


def text(content: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": content}}]


def call(**keys: Any) -> dict[str, Any]:
    return {"type": "tool_call", "tool_call_id": "call_1", "status": "completed", **keys}


def used(event: dict[str, Any], skills: SkillSet | None = PLACED) -> str | None:
    """Return the skill an event used; None = it used none."""
    (marked,), n_uses = marked_uses([event], skills)
    assert n_uses == ("skill" in marked)
    return marked.get("skill")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(call(title="Skill", raw_input={"skill": "house-dates"}), id="Claude Code"),
        pytest.param(call(title="Load skill: house-dates", kind="other"), id="its adapter"),
        pytest.param(
            call(title="skill", kind="other", raw_input={"name": "house-dates"}, locations=[]), id="OpenCode"
        ),
        pytest.param(call(title="Loaded skill: house-dates", kind="other"), id="OpenCode, at its end"),
        pytest.param(call(title="a title", kind="other", content=text(LOADED)), id="OpenCode, by its result"),
        pytest.param(
            call(
                title='"house-dates": How this house writes dates.',
                kind="other",
                tool_call_id="activate_skill__activate_skill_1796006074852_0",
                locations=[],
            ),
            id="Gemini",
        ),
        pytest.param(call(title="Dates.", kind="other", content=text(ACTIVATED)), id="Gemini, by its result"),
        pytest.param(
            call(title='Skill: Use skill: "house-dates"', kind="read", locations=[]), id="Qwen Code"
        ),
        pytest.param(
            call(kind="skill", name="house-dates", arguments={"skill": "house-dates"}), id="a script"
        ),
    ],
)
def test_a_tool_for_skills_is_known_whatever_the_program_calls_it(event: dict[str, Any]) -> None:
    (marked,), n_uses = marked_uses([event], None)

    assert (marked["kind"], marked["skill"], n_uses) == ("skill", "house-dates", 1)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(
            call(
                title="command_execution",
                raw_input={"command": "/bin/bash -lc 'cat /skills/house-dates/SKILL.md; echo x > out.txt'"},
            ),
            id="Codex",
        ),
        pytest.param(
            call(kind="execute", raw_input={"command": "cd ~ && sed -n 1,80p .claude/skills/house-dates/SKILL.md"}),
            id="Codex over its protocol",
        ),
        pytest.param(
            call(title="read", raw_input={"path": "/home/agent/.claude/skills/house-dates/scripts/x.sh"}), id="pi"
        ),
        pytest.param(
            call(title="Read file", kind="read", locations=[{"path": "/skills/house-dates/SKILL.md"}]),
            id="a place",
        ),
        pytest.param(call(name="shell", arguments=["cat", "$HOME/.claude/skills/house-dates/SKILL.md"]), id="a script"),
        pytest.param(call(name="shell", command="sh skills/house-dates/scripts/x.sh /skills/house-dates"), id="words"),
    ],
)  # fmt: skip
def test_a_call_that_reads_in_a_skill_used_it(event: dict[str, Any]) -> None:
    (marked,), n_uses = marked_uses([event], PLACED)

    assert (marked["skill"], n_uses) == ("house-dates", 1)
    assert marked.get("kind") == event.get("kind")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({"type": "agent_message", "text": "I read /skills/house-dates/SKILL.md."}, id="words"),
        pytest.param(call(title="Bash", raw_input={"command": "ls -R /skills ~/.claude/skills/"}), id="a list"),
        pytest.param(call(kind="execute", raw_input={"command": "cat /app/src/skills/models.py"}), id="other"),
        pytest.param(
            call(title="Write", raw_input={"file_path": "/home/agent/.claude/skills/mine/SKILL.md"}), id="Write"
        ),
        pytest.param(call(kind="edit", locations=[{"path": "/skills/house-dates/SKILL.md"}]), id="an edit"),
        pytest.param(
            call(
                title="command_execution",
                raw_input={"command": "ls -R /", "aggregated_output": "/skills/house-dates/SKILL.md"},
            ),
            id="a command that prints a path",
        ),
        pytest.param(
            call(title="cat notes", kind="execute", content=text(LOADED), raw_output=LOADED), id="what it prints"
        ),
        pytest.param(call(title="skill.txt", kind="read"), id="a file of that name"),
        pytest.param(call(title="skill", kind="execute"), id="a command of that name"),
        pytest.param(call(), id="an empty call"),
    ],
)  # fmt: skip
def test_what_only_speaks_of_a_skill_used_none(event: dict[str, Any]) -> None:
    assert used(event) is None


def test_without_skills_paths_mean_nothing() -> None:
    assert used(call(title="Bash", raw_input={"command": "cat /skills/x/SKILL.md"}), None) is None


def test_a_call_counts_once_and_every_call_counts() -> None:
    events = [
        {"type": "agent_thought", "text": "Dates?"},
        call(title="Bash", raw_input={"command": "cat /skills/a/SKILL.md /skills/b/SKILL.md"}),
        call(title="Skill", raw_input={"skill": "a"}),
        call(title="Skill"),
    ]

    marked, n_uses = marked_uses(events, PLACED)

    assert [event.get("skill") for event in marked] == [None, "a", "a", ""]
    assert n_uses == 3


@pytest.mark.parametrize("odd", [[], {}, [[]], 7, None, {"kind": []}])
def test_a_call_of_any_shape_is_read(odd: Any) -> None:
    event = call(kind=odd, title=odd, content=odd, locations=odd, raw_input=odd, raw_output=odd, tool=odd)

    assert marked_uses([event], PLACED) == ([event], 0)
