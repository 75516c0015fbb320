"""Skills in real sandboxes: away without them, where agents look with them, never half there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import SandboxProvider
from tests.rollouts import Ran, Rollouts
from tests.worlds import write_task

Run = Callable[..., Awaitable[Ran]]

DOCKERFILE = "FROM debian:bookworm-slim\nCOPY skills /opt/copied\nCOPY . /opt/all\nWORKDIR /app\n"
SKILL = "---\nname: pdf\ndescription: Read PDF files.\n---\nThe word is plover.\n"
OTHER = "---\nname: xlsx\ndescription: Read tables.\n---\nThe word is heron.\n"
FIND = "#!/bin/sh\nfind / -name SKILL.md -not -path '/proc/*' 2>/dev/null | sort; echo \"var=$BENCHFLOW_SKILLS_DIR\"\n"
TEST = (
    '#!/bin/sh\nif [ "$(cat /app/word)" = plover ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n'
)
COMMON = (".agents", ".claude", ".codex", ".opencode")


@pytest.fixture
def run(provider: SandboxProvider, kind: str, tmp_path: Path) -> Run:
    return Rollouts(provider, kind, tmp_path).run


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Return a task with a skill of its own, which its Dockerfile copies."""
    files = {
        "environment/Dockerfile": DOCKERFILE,
        "environment/skills/pdf/SKILL.md": SKILL,
        "environment/skills/pdf/scripts/word.sh": "#!/bin/sh\necho plover\n",
        "solution/solve.sh": "#!/bin/sh\nsed -n 's/The word is \\(.*\\)\\./\\1/p' skills/pdf/SKILL.md >/app/word\n",
        "tests/test.sh": TEST,
    }
    folder = write_task(tmp_path / "tasks" / "find-word", files=files)
    (folder / "environment/skills/pdf/scripts/word.sh").chmod(0o755)
    return folder


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Return a folder of skills with another one."""
    (tmp_path / "others" / "xlsx").mkdir(parents=True)
    (tmp_path / "others" / "xlsx" / "SKILL.md").write_text(OTHER)
    return tmp_path / "others"


def lines(ran: Ran) -> list[str]:
    assert not ran.rollout.failures, ran.said()
    return ran.rollout.agent_log.decode().splitlines()


def linked(name: str, home: str = "/home/agent") -> list[str]:
    return [f"{home}/{folder}/skills/{name}/SKILL.md" for folder in COMMON]


async def test_without_skills_an_agent_finds_none_though_the_task_has_some(run: Run, task: Path) -> None:
    assert lines(await run(task, FIND)) == ["var="]


async def test_an_agent_reads_the_task_s_skills_where_it_looks_and_can_change_none(
    run: Run, task: Path
) -> None:
    program = (
        "#!/bin/sh\nset -e\n"
        'for place in .claude .codex .opencode .agents; do grep -q plover "$HOME/$place/skills/pdf/SKILL.md"; done\n'
        '! touch "$HOME/.claude/skills/pdf/new" 2>/dev/null\n'
        "! rm -f /skills/pdf/SKILL.md 2>/dev/null || [ -f /skills/pdf/SKILL.md ]\n"
        "stat -c '%U %a' /skills /skills/pdf/SKILL.md\n"
        '"$BENCHFLOW_SKILLS_DIR/pdf/scripts/word.sh" | tee /app/word\n'
        "ls /opt/copied /opt/all\n"
        """echo '{"type": "tool_call", "name": "read", "path": "/skills/pdf/SKILL.md"}' >>"$BENCHFLOW_EVENTS"\n"""
    )

    ran = await run(task, program, skill_mode="with-skill")

    assert lines(ran) == [
        *("root 755", "root 644", "plover"),
        *("/opt/all:", "Dockerfile", "skills", "", "/opt/copied:", "pdf"),
    ]
    assert ran.result.reward == 1.0
    assert (ran.result.skill_mode, ran.result.agent_result.n_skill_invocations) == ("with-skill", 1)
    assert [event.get("skill") for event in ran.rollout.events] == [None, "pdf"]


async def test_skills_of_the_job_take_the_place_of_the_task_s_own(run: Run, task: Path, others: Path) -> None:
    program = "#!/bin/sh\nfind / -name SKILL.md -not -path '/proc/*' 2>/dev/null; ls -d $HOME/.*/skills/*; ls /opt/all\n"

    found = lines(await run(task, program, skill_mode="with-skill", skills=others))

    assert found == [
        "/skills/xlsx/SKILL.md",
        *(path.removesuffix("/SKILL.md") for path in linked("xlsx")),
        "Dockerfile",
    ]


async def test_a_solution_has_skills_in_root_s_home_and_in_the_workspace(run: Run, task: Path) -> None:
    ran = await run(task, skill_mode="with-skill")

    assert ran.result.reward == 1.0, ran.said()


async def test_a_task_says_where_its_skills_stand(run: Run, task: Path) -> None:
    (task / "task.toml").write_text('version = "1.0"\n[environment]\nskills_dir = "/srv/know how"\n')

    program = '#!/bin/sh\necho "$BENCHFLOW_SKILLS_DIR"; readlink "$HOME/.claude/skills/pdf"\n'

    assert lines(await run(task, program, skill_mode="with-skill")) == ["/srv/know how", "/srv/know how/pdf"]


async def test_an_agent_that_could_not_see_a_skill_is_not_started(run: Run, task: Path) -> None:
    """What it would be scored for would be no attempt with skills."""
    closed = f"{DOCKERFILE}RUN mkdir -p /home/agent/.codex && chmod 700 /home/agent/.codex\n"
    (task / "environment/Dockerfile").write_text(closed)

    ran = await run(task, "#!/bin/sh\necho plover >/app/word\n", skill_mode="with-skill")

    assert [failure.code for failure in ran.rollout.failures] == ["skills.not_placed"]
    assert "/home/agent/.codex/skills/pdf/SKILL.md" in ran.rollout.failures[0].message
    assert ".claude" not in ran.rollout.failures[0].message
    assert ran.result.reward is None
    assert ran.rollout.agent_log == b""
    assert ran.result.error_category == "experiment_fidelity/skill_deployment_missing"


WRITES = """#!/bin/sh
if grep -q 'Prepare skills for another agent' "$BENCHFLOW_INSTRUCTION"; then
  umask 077
  mkdir -p /app/generated-skills/word
  printf -- '---\\nname: word\\ndescription: Words.\\n---\\nplover\\n' >/app/generated-skills/word/SKILL.md
  ln -s /etc /app/generated-skills/word/etc
  echo "creator var=$BENCHFLOW_SKILLS_DIR"
  echo '{"type": "tool_call", "kind": "skill", "name": "skill-creator"}' >>"$BENCHFLOW_EVENTS"
  ls -d "$HOME"/.*/skills/* 2>/dev/null
  EXIT
fi
cat "$BENCHFLOW_INSTRUCTION"
echo '{"type": "tool_call", "name": "read", "path": "~/.agents/skills/word/SKILL.md"}' >>"$BENCHFLOW_EVENTS"
tail -n 1 "$HOME/.agents/skills/word/SKILL.md" | tee /app/word
ls /skills /skills/word; ls -d "$HOME"/.*/skills/*
"""


@pytest.mark.parametrize("ending", ["exit 0", "exit 1"])
async def test_an_agent_writes_skills_and_then_does_the_task_with_them(
    run: Run, task: Path, others: Path, ending: str
) -> None:
    ran = await run(task, WRITES.replace("EXIT", ending), skill_mode="self-gen", skills=others)

    homes = [path.removesuffix("/SKILL.md") for path in linked("")]
    assert ran.rollout.agent_log.decode().split("\n") == [
        "== skill-creator ==",
        "creator var=/opt/benchflow/skills/skill-creator",
        *(home + "xlsx" for home in homes),
        *("", "== solver ==", "Make the build pass.", "plover", "/skills:", "word", "", "/skills/word:", "SKILL.md"),
        *(home + "word" for home in homes),
        *("", ""),
    ]  # fmt: skip
    assert ran.result.reward == 1.0, ran.said()
    sessions = [(session.role, session.n_skill_invocations) for session in ran.result.sessions]
    assert sessions == [("skill-creator", 1), ("solver", 1)]
    assert ran.result.agent_result.n_skill_invocations == 1
    kept = [path for path in (ran.folder / "generated-skills").rglob("*") if path.is_file()]
    assert [path.read_text().splitlines()[-1] for path in kept] == ["plover"]


async def test_work_without_the_skills_it_was_to_be_done_with_is_not_scored(run: Run, task: Path) -> None:
    ran = await run(task, "#!/bin/sh\necho plover >/app/word\n", skill_mode="self-gen")

    assert [failure.code for failure in ran.rollout.failures] == ["skills.not_written"]
    assert "it has no skill" in ran.rollout.failures[0].message
    assert (ran.result.reward, ran.result.outcome) == (None, "errored")


SCENES = """---
schema_version: "1.3"
agents:
  roles:
    writer: {agent: job}
    user: {agent: job, skills_dir: /app/made}
scenes:
  - {name: write, turns: [{role: writer, prompt: Write.}], skills_dir: more}
  - {name: use, turns: [{role: user, prompt: Use.}]}
  - {name: end, turns: [{role: writer, prompt: End.}]}
---
Do it.
"""


async def test_scenes_and_roles_have_the_skills_they_name_and_no_others(run: Run, task: Path) -> None:
    (task / "task.toml").unlink()
    (task / "instruction.md").unlink()
    (task / "task.md").write_text(SCENES)
    (task / "more" / "extra").mkdir(parents=True)
    (task / "more" / "extra" / "SKILL.md").write_text(OTHER)
    program = (
        '#!/bin/sh\necho "$(ls "$HOME/.claude/skills" 2>/dev/null) $BENCHFLOW_SKILLS_DIR"\n'
        "mkdir -p /app/made/own; echo own >/app/made/own/SKILL.md; echo plover >/app/word\n"
    )

    ran = await run(task, program, skill_mode="with-skill")

    assert [line for line in lines(ran) if line and not line.startswith("==")] == [
        "extra /opt/benchflow/skills/scene-1",
        "own /opt/benchflow/skills/role-user",
        "pdf /skills",
    ]
    assert lines(await run(task, program))[1] == " "


async def test_every_step_has_the_skills_of_its_task(run: Run, task: Path) -> None:
    (task / "task.toml").write_text('version = "1.0"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n')
    for step in ("a", "b"):
        (task / "steps" / step).mkdir(parents=True)
        (task / "steps" / step / "instruction.md").write_text("Do it.\n")
    program = '#!/bin/sh\ncat "$HOME/.codex/skills/pdf/SKILL.md" >/dev/null && echo plover >/app/word\nrm -rf "$HOME"/.*/skills\n'

    ran = await run(task, program, skill_mode="with-skill")

    assert ran.result.reward == 1.0, ran.said()
