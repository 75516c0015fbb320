"""Finding tasks in a folder and choosing among them."""

from __future__ import annotations

import os

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.tasks.discover import discover, select


def test_tasks_of_a_folder_come_in_order_of_name_and_others_are_passed_over(make_task, tmp_path, room):
    for name in ("b", "a", "UPPER", "upper"):
        make_task(name=name)
    make_task(name=".hidden")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("x")

    found = discover(tmp_path, room=room)

    assert [entry.task.name for entry in found.tasks] == ["UPPER", "a", "b", "upper"]
    assert [entry.folder for entry in found.tasks] == [tmp_path / n for n in ("UPPER", "a", "b", "upper")]
    assert found.broken == ()


def test_folder_that_is_a_task_is_the_only_one(make_task, room):
    folder = make_task()

    assert [entry.folder for entry in discover(folder, room=room).tasks] == [folder]


def test_broken_task_does_not_hide_the_others(make_task, tmp_path, room):
    make_task(name="good")
    broken = make_task({"task.toml": "[agent]\ntimeout_sec = 0\n"}, name="broken")

    found = discover(tmp_path, room=room)

    assert [entry.task.name for entry in found.tasks] == ["good"]
    assert [(entry.folder, entry.name) for entry in found.broken] == [(broken, "broken")]
    assert found.broken[0].problems == (
        "task.toml, line 2: agent.timeout_sec = 0: expected more than 0 seconds",
    )


def test_missing_folder_is_named_with_the_nearest_one(make_task, tmp_path, room):
    (tmp_path / "My-tasks").mkdir()

    with pytest.raises(TaskError, match="There is no folder") as caught:
        discover(tmp_path / "My-taks", room=room)

    assert caught.value.hint == "Did you mean 'My-tasks'?"


def test_missing_parent_is_named(tmp_path, room):
    with pytest.raises(TaskError) as caught:
        discover(tmp_path / "no" / "tasks", room=room)

    assert caught.value.hint == f"There is no {str(tmp_path / 'no')!r} either."


def test_file_in_place_of_a_folder_is_named(make_task, room):
    folder = make_task()

    with pytest.raises(TaskError, match="is a file, not a folder of tasks") as caught:
        discover(folder / "task.toml", room=room)

    assert caught.value.hint == "Give the folder it stands in."


def test_tasks_one_level_deeper_are_pointed_out(make_task, tmp_path, room):
    make_task(name="suite/tasks/one")

    with pytest.raises(TaskError, match="There is no task in") as caught:
        discover(tmp_path / "suite" / "..", room=room)

    assert caught.value.hint.startswith("A task is a folder with a task.md")
    with pytest.raises(TaskError) as caught:
        discover(tmp_path / "suite" / "tasks" / ".." / ".." / "suite" / ".", room=room)
    assert (
        caught.value.hint == f"Tasks were seen one level deeper; give one of: {tmp_path / 'suite' / 'tasks'}."
    )


def test_broken_task_of_an_older_form_is_listed_like_any_other(tmp_path, room):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "task.yaml").write_text("instruction: x")

    (broken,) = discover(tmp_path, room=room).broken

    assert (broken.name, broken.problems) == (
        "old",
        ("run-tests.sh: missing, so the task cannot be scored",),
    )


def test_path_no_system_can_have_is_refused(tmp_path, room):
    with pytest.raises(TaskError, match="cannot be listed"):
        discover(tmp_path / ("x" * 5000), room=room)


def test_linked_task_folder_is_found(make_task, tmp_path, room):
    os.symlink(make_task(name="real"), tmp_path / "alias")

    assert [entry.task.name for entry in discover(tmp_path, room=room).tasks] == ["alias", "real"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({}, ["a1", "a2", "b1"]),
        ({"include": ["a*"]}, ["a1", "a2"]),
        ({"include": ["a1", "b?"]}, ["a1", "b1"]),
        ({"exclude": ["*1"]}, ["a2"]),
        ({"include": ["a*"], "exclude": ["a1"]}, ["a2"]),
        ({"limit": 2}, ["a1", "a2"]),
    ],
)
def test_selection_by_globs_and_limit(make_task, tmp_path, choice, names, room):
    for name in ("a1", "a2", "b1"):
        make_task(name=name)

    chosen = select(discover(tmp_path, room=room).tasks, **choice)

    assert [found.task.name for found in chosen] == names


def test_selection_that_leaves_nothing_names_what_there_is(make_task, tmp_path, room):
    for number in range(12):
        make_task(name=f"task-{number:02}")

    with pytest.raises(TaskError) as caught:
        select(discover(tmp_path, room=room).tasks, include=["tsk-01"], exclude=["x"])

    assert caught.value.message == "No task is left after include 'tsk-01', exclude 'x'."
    assert caught.value.hint.startswith("Did you mean 'task-01'? There are: task-00, task-01,")
    assert caught.value.hint.endswith("and 2 more.")


def test_selection_of_nothing_is_nothing():
    assert select((), include=["a"]) == ()
