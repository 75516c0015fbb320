"""Steps of a task are checked while it is read: their tables, their names, their instructions."""

from __future__ import annotations

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.schema.task_steps import step_config, step_tables
from benchflow_client.tasks.read import read_task

TWO = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'


def folder_with(make_task, config=TWO, files=None):
    texts = {"steps/a/instruction.md": "Do a.\n", "steps/b/instruction.md": "Do b.\n"}
    return make_task({"task.toml": config, **texts, **(files or {})})


def problems_of(folder) -> tuple[str, ...]:
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    return caught.value.problems


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ('[[steps]]\nname = "a/b"', 'task.toml, line 2: steps[0].name = "a/b": expected the name of a folder that works on every system'),
        ('[[steps]]\nname = ".."', 'task.toml, line 2: steps[0].name = "..": expected the name of a folder that works on every system'),
        ("[[steps]]\nmin_reward = 1", "task.toml, line 1: steps[0].name: is missing"),
        ('[[steps]]\nname = "a"\nmin_reward = "1"', 'task.toml, line 3: steps[0].min_reward = "1": expected a table'),
        ('[[steps]]\nname = "a"\nmin_reward = {x = "1"}', 'task.toml, line 3: steps[0].min_reward.x = "1": expected a number; remove the quotes'),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "task.toml, line 1: steps = [{\"name\": \"a\"}, {\"name\": \"A\"}]: 'a' and 'A' would be the same folder"),
        ('[[steps]]\nname = "a"\n[steps.agent]\ntimeout_sec = -1', "task.toml, line 4: steps[0].agent.timeout_sec = -1: expected more than 0 seconds"),
        ('[[steps]]\nname = "a"\nartifacts = [{source = "/x", destination = "../y"}]', "task.toml, line 3: steps[0].artifacts[0].destination = \"../y\": expected a path below artifacts/, without '..'"),
    ],
)  # fmt: skip
def test_wrong_step_is_a_problem_with_file_and_key(make_task, config, problem):
    (found,) = problems_of(folder_with(make_task, config))

    assert found.partition(": ")[2] == problem.partition(": ")[2]


def test_step_without_an_instruction_is_a_problem(make_task):
    folder = folder_with(make_task, files={"steps/a/instruction.md": " \n", "steps/b/instruction.md": None})

    assert problems_of(folder) == (
        "steps/a/instruction.md: is empty; write what the agent should do",
        "steps/b/instruction.md: cannot be read: No such file or directory",
    )


def test_unknown_key_of_a_step_is_ignored_with_a_warning(make_task):
    task = read_task(folder_with(make_task, f"{TWO}speed = 3\n"))

    assert task.ignored_keys == ("steps[1].speed",)
    assert any("steps[1].speed" in warning for warning in task.warnings)


def test_step_that_cannot_be_scored_is_a_warning_unless_it_or_the_task_has_a_test_script(make_task):
    none = read_task(folder_with(make_task, files={"tests/test.sh": None, "steps/a/tests/test.sh": "true\n"}))
    shared = read_task(folder_with(make_task))

    assert none.warnings == ("steps/b/tests/test.sh: no such file: it cannot be scored",)
    assert shared.warnings == ()


def test_step_says_what_differs_from_the_task(make_task):
    config = """
artifacts = ["/shared"]
[agent]
timeout_sec = 10
user = "bob"
[verifier]
timeout_sec = 20
env = {A = "task", B = "task"}
[[steps]]
name = "a"
min_reward = 0.5
artifacts = ["/own"]
[steps.agent]
timeout_sec = 30
[steps.verifier]
env = {B = "step"}
"""
    task = read_task(folder_with(make_task, config))
    (step,) = step_tables(task.config)
    of_step = step_config(task.config, step)

    assert step.min_reward == {"reward": 0.5}
    assert (of_step.agent.timeout_sec, of_step.agent.user) == (30, "bob")
    assert of_step.verifier.timeout_sec == 20
    assert of_step.verifier.env == {"A": "task", "B": "step"}
    assert [artifact.source for artifact in of_step.artifacts] == ["/shared", "/own"]
    assert of_step.steps is None
