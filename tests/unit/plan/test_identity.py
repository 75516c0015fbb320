"""A trial is the same trial as long as nothing changed that can change its score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.plan.draft import find_work, make_draft
from benchflow_client.plan.identity import (
    CAPS,
    EXPANDED,
    KEEPING,
    NAMING,
    PACE,
    differences,
    job_identity,
    trial_keys,
)
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from tests.worlds import write_task

Planner = Callable[..., Plan]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name, files={"instruction.md": f"Do {name}.\n"})
    return tmp_path / "tasks"


@pytest.fixture
def plan(tasks: Path, tmp_path: Path) -> Planner:
    def make(sandbox: str = "null", **fields: Any) -> Plan:
        spec = JobSpec.model_validate({"tasks": str(tasks), "agent": "oracle", **fields})
        return make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox=sandbox).plan

    return make


def changed(old: Plan, new: Plan) -> list[str]:
    return [str(difference) for difference in differences(old, new)]


def test_every_trial_of_a_job_has_a_key_of_its_own(plan: Planner) -> None:
    keys = list(trial_keys(plan(agent=["oracle", "nop"], tries=3)))

    assert len(keys) == len(set(keys)) == 12
    assert {len(key) for key in keys} == {64}


def test_a_key_is_the_same_on_any_day_and_machine(plan: Planner) -> None:
    """No name, folder, time or random id is part of it: these digits come out everywhere."""
    found = plan(limit=1)
    fixed = found.model_copy(update={"tasks": (found.tasks[0].model_copy(update={"digest": "d" * 64}),)})

    assert list(trial_keys(fixed)) == ["42f32391501fc492501398890869d2bdddb41247780e9d07ce237af70722a8a2"]


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency": 9, "max_attempts": 7, "weight": 2.0, "priority": 9, "stop_after_failures": 0},
        {"job_name": "other", "jobs_dir": "other"},
        {"max_cost_usd": 1.0, "max_tokens": 1, "max_sandbox_seconds": 1, "max_trials": 1, "deadline_s": 9},
        {"trial_cost_usd": 1.0, "trial_tokens": 10},
        {"include": ["*o*", "two"]},
        {"include": ["two", "*o*"]},
        {"limit": 2, "skip_invalid": True, "exclude": ["three"]},
        {"agent": [{"name": "oracle"}]},
        {"timeout_multiplier": 1},
        {"loop": "single-shot"},
        {"skill_mode": "no-skill"},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_what_changes_no_score_changes_no_identity(plan: Planner, fields: dict[str, Any]) -> None:
    assert job_identity(plan(**fields)) == job_identity(plan())
    assert changed(plan(), plan(**fields)) == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"timeout_multiplier": 2.0}, ["timeout_multiplier: 1.0 -> 2.0"]),
        ({"sandbox_user": "root"}, ["sandbox_user: agent -> root"]),
        ({"sandbox_locked_paths": "/data"}, ["sandbox_locked_paths: – -> ['/data']"]),
        ({"sandbox_locked_paths": "none"}, ["sandbox_locked_paths: – -> []"]),
        ({"separate_verifier": True}, ["separate_verifier: – -> True"]),
        ({"separate_verifier_include": "/opt/tool"}, ["separate_verifier_include: – -> ['/opt/tool']"]),
        ({"environment_manifest": '{"name": "n"}'}, ['environment_manifest: – -> {"name":"n"}']),
        ({"tries": 2}, ["tries: 1 -> 2"]),
        ({"agent": ["oracle", "nop"]}, ["agent nop: – -> nop"]),
        ({"agent": "nop"}, ["agent oracle: oracle -> –", "agent nop: – -> nop"]),
        ({"agent_timeout_s": 5}, ["agent oracle, timeout_s: – -> 5.0"]),
        ({"loop": "self-review:k=2"}, ["loop: – -> self-review:k=2"]),
        ({"user": "patient"}, ["user: – -> patient"]),
        ({"skill_mode": "with-skill"}, ["skill_mode: – -> with-skill"]),
        ({"agent_idle_timeout_s": 0}, ["agent oracle, idle_timeout_s: 600.0 -> 0.0"]),
        ({"agent_env": ["A=1"]}, ["agent oracle, variable A: – -> 1"]),
        ({"agent_env": ["A"]}, ["agent oracle, variable A: – -> set by the worker"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "told",
)
def test_what_changes_a_score_is_told_with_both_values(
    plan: Planner, fields: dict[str, Any], told: list[str]
) -> None:
    assert changed(plan(), plan(**fields)) == told
    assert job_identity(plan(**fields)) != job_identity(plan())


def test_another_kind_of_sandbox_is_another_job(plan: Planner) -> None:
    assert changed(plan("local"), plan("docker")) == ["sandbox: local -> docker"]


def test_tasks_that_changed_came_or_went_are_named(plan: Planner, tasks: Path) -> None:
    before = plan()
    (tasks / "one/instruction.md").write_text("Do something else.\n")
    write_task(tasks / "three")

    told = changed(before, plan(exclude=["two"]))

    old, new = before.tasks[0].digest[:12], plan().tasks[0].digest[:12]
    assert told[0] == f"task one: {old} -> {new}"
    assert told[1] == f"task two: {before.tasks[1].digest[:12]} -> –"
    assert told[2].startswith("task three: – -> ")
    assert len(told) == 3


def test_tasks_count_by_what_is_in_them_wherever_they_are(plan: Planner, tasks: Path) -> None:
    before = plan()
    moved = tasks.rename(tasks.parent / "moved")

    assert changed(before, plan(tasks=f"{moved}/")) == []


def test_a_script_counts_by_its_content_wherever_it_is(plan: Planner, tmp_path: Path) -> None:
    scripts = []
    for folder, text in (("a", "echo 1\n"), ("b", "echo 1\n"), ("c", "echo 2\n")):
        (tmp_path / folder).mkdir()
        scripts.append(tmp_path / folder / "mine.sh")
        scripts[-1].write_text(text)
    first, same, other = (plan(agent=str(script)) for script in scripts)

    assert changed(first, same) == []
    assert [line.partition(":")[0] for line in changed(first, other)] == ["agent mine, script"]


def test_skills_count_by_their_content_wherever_they_are(plan: Planner, tmp_path: Path) -> None:
    folders = []
    for folder, text in (("a", "Read.\n"), ("b", "Read.\n"), ("c", "Write.\n")):
        (tmp_path / folder / "pdf").mkdir(parents=True)
        folders.append(tmp_path / folder)
        (folders[-1] / "pdf/SKILL.md").write_text(text)
    first, same, other = (plan(skill_mode="with-skill", skills_dir=str(folder)) for folder in folders)

    assert changed(first, same) == []
    assert [line.partition(":")[0] for line in changed(first, other)] == ["skills_dir"]


def test_the_last_value_of_a_variable_counts_and_their_order_does_not(plan: Planner) -> None:
    assert changed(plan(agent_env=["A=1", "B=2"]), plan(agent_env=["B=2", "A=0", "A=1"])) == []


def test_agents_in_another_order_are_the_same_agents(plan: Planner) -> None:
    assert changed(plan(agent=["oracle", "nop"]), plan(agent=["nop", "oracle"])) == []


def test_a_model_counts_whoever_names_it(plan: Planner) -> None:
    by_job = plan(agent=[{"name": "oracle"}], model="m")
    by_agent = plan(agent=[{"name": "oracle", "model": "m"}])

    assert job_identity(by_job) == job_identity(by_agent)
    assert changed(by_job, plan(model="n"))[-1] == "agent oracle@n: – -> oracle"


def test_every_setting_of_a_job_is_known_to_change_a_score_or_not() -> None:
    """A new field counts until somebody says here, and in `identity.py`, that it does not."""
    listed = EXPANDED | PACE | CAPS | NAMING | KEEPING

    counting = {"timeout_multiplier", "sandbox_user", "sandbox_locked_paths", "tries"}
    counting |= {"separate_verifier", "separate_verifier_include", "loop", "user"}
    counting |= {"environment_manifest", "capture_tokens", "skill_mode"}
    counting |= {"temperature", "top_p", "max_output_tokens"}
    assert JobSpec.model_fields.keys() - listed == counting
    assert listed <= JobSpec.model_fields.keys()
    assert AgentSpec.model_fields.keys() == {
        "name", "model", "env", "timeout_s", "idle_timeout_s", "protocol", "version", "effort",
    }  # fmt: skip
