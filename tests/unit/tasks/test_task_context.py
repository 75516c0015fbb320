"""Dockerfiles that copy from above environment/: staged from within the task, never tests or solution."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.tasks.discover import discover

HEAD = "FROM debian:bookworm-slim\n"


def dockerfile_of(folder: Path, room: Path) -> str:
    (found,) = discover(folder, room=room).tasks
    return (found.folder / "environment/Dockerfile").read_text().removeprefix(HEAD).rstrip("\n")


@pytest.mark.parametrize(
    ("lines", "staged"),
    [
        ("COPY ../data/a.txt /a", "COPY data/a.txt /a"),
        ("COPY data/a.txt /a", "COPY data/a.txt /a"),
        ("COPY ./data /a/", "COPY data /a/"),
        ("COPY environment/here.txt /a", "COPY here.txt /a"),
        ("COPY ../here.txt /a", "COPY here.txt /a"),
        ("ADD --chown=1:1 ../data/a.txt here.txt /a/", "ADD --chown=1:1 data/a.txt here.txt /a/"),
        ('COPY ["../data/a.txt", "/a"]', 'COPY ["data/a.txt", "/a"]'),
        ("COPY \\\n  ../data/a.txt \\\n  /a", "COPY \\\n  data/a.txt \\\n  /a"),
        ("COPY ../instruction.md /a", "COPY instruction.md /a"),
    ],
)
def test_sources_of_the_task_are_found_where_the_build_looks(make_task, room, lines, staged):
    files = {"environment/Dockerfile": f"{HEAD}{lines}\n", "data/a.txt": "a\n", "environment/here.txt": "h\n"}
    folder = make_task(files)

    assert dockerfile_of(folder, room) == staged
    assert (folder / "environment/Dockerfile").read_text() == f"{HEAD}{lines}\n"


def test_copy_holds_the_whole_task_and_says_what_was_done(make_task, room):
    folder = make_task({"environment/Dockerfile": f"{HEAD}COPY ../data /data\n", "data/sub/a.txt": "a\n"})

    (found,) = discover(folder, room=room).tasks

    assert (found.folder / "environment/data/sub/a.txt").read_text() == "a\n"
    assert (found.folder / "tests/test.sh").is_file()
    assert found.task.name == folder.name
    assert found.task.warnings == (
        "environment/Dockerfile, line 2: '../data' lies above environment/; the image is built with a copy of it",
    )


@pytest.mark.parametrize("source", ["../tests", "tests/test.sh", "../solution/solve.sh", ".."])
def test_tests_and_solution_are_never_put_into_the_image(make_task, room, source):
    folder = make_task({"environment/Dockerfile": f"{HEAD}COPY {source} /x\n"})

    (broken,) = discover(folder, room=room).broken

    assert broken.problems == (
        f"environment/Dockerfile, line 2: {source!r} puts tests or solution into the image, where the agent reads them",
    )


@pytest.mark.parametrize(
    "lines", ["COPY here.txt /a", "COPY . /a", "COPY --from=x ../y /a", "COPY $X ../*.txt /a"]
)
def test_plain_tasks_are_read_where_they_stand(make_task, room, lines):
    folder = make_task({"environment/Dockerfile": f"{HEAD}{lines}\n", "environment/here.txt": "h\n"})

    assert discover(folder, room=room).tasks[0].folder == folder


def test_source_outside_the_task_stays_a_problem(make_task, room, tmp_path):
    (tmp_path / "shared.txt").write_text("x")
    folder = make_task({"environment/Dockerfile": f"{HEAD}COPY ../../shared.txt /x\n"})

    assert "no '../../shared.txt' below environment/" in discover(folder, room=room).broken[0].problems[0]
