"""`bench import`: converted folders for people to keep; nothing is overwritten, nothing outside is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow_client.cli.main import run_command
from benchflow_client.errors import StoreError, TaskError
from benchflow_client.tasks.converted import Converted, ConvertedFile, write_converted
from benchflow_client.tasks.importing import import_tasks
from benchflow_client.tasks.read import read_task

OLD = {
    "task.yaml": "instruction: Count.\n",
    "Dockerfile": "FROM debian:bookworm-slim\n",
    "run-tests.sh": "true\n",
    "solution.sh": "true\n",
}
FENCED = {
    "task.md": 'Do it.\n\n```toml task\n[agent]\ntimeout = "2m"\n```\n',
    "sandbox/Dockerfile": "FROM debian:bookworm-slim\n",
    "verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "true\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_task_becomes_the_folder_that_is_named(tmp_path):
    (imported,) = import_tasks(write(tmp_path / "old", OLD), tmp_path / "new/place")

    assert imported.folder == tmp_path / "new/place"
    assert read_task(tmp_path / "new/place").instruction == "Count."
    assert os.access(tmp_path / "new/place/tests/test.sh", os.X_OK)


def test_each_task_of_a_folder_keeps_its_name_and_readable_ones_stay_where_they_are(tmp_path, make_task):
    suite = tmp_path / "suite"
    write(suite / "a b:ü", OLD)
    write(suite / "fenced", FENCED)
    write(suite / "broken", {"task.yaml": "tags: []\n"})
    make_task(name="suite/plain")

    imported = {item.name: item for item in import_tasks(suite, tmp_path / "out")}

    assert sorted(os.listdir(tmp_path / "out")) == ["a b:ü", "fenced"]
    assert imported["plain"].folder is None
    assert imported["plain"].warnings == ("is read as it is; nothing was written",)
    assert imported["broken"].problems == (
        "task.yaml: instruction: is missing",
        "run-tests.sh: missing, so the task cannot be scored",
    )
    assert read_task(tmp_path / "out/fenced").config.agent.timeout_sec == 120.0


def test_nothing_is_written_when_one_place_is_taken(tmp_path):
    write(tmp_path / "suite/a", OLD), write(tmp_path / "suite/b", OLD)
    taken = write(tmp_path / "out/b", {"mine.txt": "keep"})

    with pytest.raises(TaskError) as caught:
        import_tasks(tmp_path / "suite", tmp_path / "out")

    assert caught.value.problems == (f"{taken}: exists already",)
    assert contents(tmp_path / "out") == {"b/mine.txt": "keep"}


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nothing")])
def test_anything_that_stands_in_the_place_is_left_alone(tmp_path, make):
    source = write(tmp_path / "old", OLD)
    make(tmp_path / "new")

    with pytest.raises(TaskError, match="exists already"):
        import_tasks(source, tmp_path / "new")


def test_link_out_of_the_task_is_refused_and_its_target_never_read(tmp_path):
    (tmp_path / "secret").write_text("key")
    source = write(tmp_path / "old", OLD)
    (source / "data").symlink_to("../secret")

    (imported,) = import_tasks(source, tmp_path / "new")

    assert "the link leaves the task folder" in imported.problems[0]
    assert not (tmp_path / "new").exists()


def test_file_that_may_not_be_read_leaves_no_half_folder(tmp_path):
    converted = Converted()
    converted.add_text("a", "x")
    converted.files["b"] = ConvertedFile(source=tmp_path / "gone")

    with pytest.raises(TaskError, match="becomes 'b' cannot be read"):
        write_converted(converted, tmp_path / "out/new")
    with pytest.raises(TaskError, match="becomes 'b' cannot be read"):
        converted.digest()

    assert os.listdir(tmp_path / "out") == []


def test_place_that_cannot_be_written_is_the_worlds_fault(tmp_path):
    converted = Converted()
    converted.add_text("a", "x")

    with pytest.raises(StoreError, match="cannot be written"):
        write_converted(converted, Path("/proc/nothing/new"))


def test_folder_without_tasks_is_named(tmp_path):
    with pytest.raises(TaskError, match="There is no task in"):
        import_tasks(tmp_path, tmp_path / "out")


def test_command_says_what_it_wrote_and_fails_when_a_task_cannot_be_converted(tmp_path, capsys):
    write(tmp_path / "suite/fine", OLD)
    assert run_command(["import", str(tmp_path / "suite"), str(tmp_path / "one")]) == 0
    assert "written to" in capsys.readouterr().err

    write(tmp_path / "suite/bad", {"task.yaml": "tags: []\n"})
    assert run_command(["import", str(tmp_path / "suite"), str(tmp_path / "two")]) == 1
    assert "instruction: is missing" in " ".join(capsys.readouterr().err.split())

    assert run_command(["import", str(tmp_path / "suite"), str(tmp_path / "two")]) == 2
    assert "exists already" in capsys.readouterr().err
