"""What `bench check` says without running anything, and the task `bench new` makes."""

from __future__ import annotations

import subprocess

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.tasks.check import check
from benchflow_client.tasks.dockerfile import missing_sources
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.scaffold import scaffold


def warnings_of(folder) -> tuple[str, ...]:
    (report,) = check(folder).tasks
    assert report.problems == ()
    return report.warnings


def test_report_lists_every_task_in_order_with_its_findings(make_task, tmp_path):
    make_task(name="b")
    make_task({"instruction.md": None}, name="a")
    make_task({"solution/solve.sh": None}, name="c")

    report = check(tmp_path)

    assert [task.name for task in report.tasks] == ["a", "b", "c"]
    assert report.tasks[0].problems == ("instruction.md: cannot be read: No such file or directory",)
    assert report.tasks[1].warnings == ()
    assert report.tasks[2].warnings == (
        "no solution: the oracle cannot show that the task is solvable; add solution/solve.sh",
    )
    assert report.is_ok is False


def test_check_and_run_agree_about_a_task_without_an_agent_table(make_task):
    folder = make_task({"task.toml": 'version = "1.0"\n[verifier]\ntimeout_sec = 30\n'})

    assert check(folder).is_ok is True


SKIPS = "tests/test.sh, line {}: `$?` after `set -e`: when the command before fails, the script ends there "


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("#!/bin/bash\nset -euo pipefail\ngrep x f\nif [ $? -eq 0 ]; then echo 1 > reward; fi\n", 4),
        ("#!/bin/bash -e\ngrep x f\nr=$?\necho $r > reward\n", 3),
        ("set -o errexit\nx; code=${?}; echo $code > reward\n", 2),
        ("set +e\nset -e\nx\necho $? > reward\n", 4),
        ("set -e\nset +e\nx\necho $? > reward\n", None),
        ("set -e\nx || code=$?\necho $code > reward\n", None),
        ("set -e\ntrap 'echo $? > reward' EXIT\n# $?\n", None),
        ("x\necho $? > reward\n", None),
    ],
)
def test_last_status_behind_set_e_is_pointed_out(make_task, script, line):
    found = warnings_of(make_task({"tests/test.sh": script}))

    assert [text.startswith(SKIPS.format(line)) for text in found] == ([] if line is None else [True])


def test_test_script_that_never_mentions_a_reward_is_pointed_out(make_task):
    silent = make_task({"tests/test.sh": "pytest /tests\n"}, name="silent")
    delegating = make_task(
        {"tests/test.sh": "python /tests/run.py\n", "tests/run.py": "reward = 1"}, name="other"
    )

    assert warnings_of(silent) == (
        "tests/test.sh: never mentions a reward; it must write /logs/verifier/reward.txt (a number, 1 = solved)",
    )
    assert warnings_of(delegating) == ()


def test_repository_inside_the_build_context_is_pointed_out(make_task):
    folder = make_task({"environment/repo/.git/HEAD": "ref: x"})

    assert warnings_of(folder) == (
        "environment/repo/.git: stays behind when the task travels; pack it as a tar, or clone it in the Dockerfile",
    )


def test_windows_line_ends_missing_scripts_and_template_marks_are_pointed_out(make_task):
    files = {
        "tests/test.sh": None,
        "tests/other.sh": "a\r\n",
        "solution/solve.sh": None,
        "solution/notes": "x",
        "instruction.md": "[REPLACE: what to do]\n",
    }

    assert warnings_of(make_task(files)) == (
        "tests/test.sh: no such file: it cannot be scored",
        "solution/solve.sh: no such file: the oracle cannot show that the task is solvable",
        "tests/other.sh: has Windows line ends (CRLF), which shells trip over; save it with LF",
        "instruction.md: still holds [REPLACE: ...]",
    )


def test_dockerfile_that_starts_at_the_repository_root_names_line_and_rule(make_task):
    dockerfile = (
        "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY src/lib /opt/lib\nCOPY tasks/t/data /opt/data\n"
    )
    folder = make_task({"environment/Dockerfile": dockerfile})

    (report,) = check(folder).tasks

    rule = "below environment/; the build context is environment/, so every path starts there"
    assert report.problems == (
        f"environment/Dockerfile, line 3: `COPY src/lib /opt/lib`: no 'src/lib' {rule}",
        f"environment/Dockerfile, line 4: `COPY tasks/t/data /opt/data`: no 'tasks/t/data' {rule}",
    )
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    assert caught.value.problems == report.problems


@pytest.mark.parametrize(
    "config",
    ['[environment]\ndocker_image = "debian:12"\n', None],
)
def test_dockerfile_that_is_not_built_alone_is_not_judged(make_task, config):
    files = {"environment/Dockerfile": "COPY no /x\n"}
    files |= (
        {"environment/docker-compose.yaml": "services: {main: {image: a}}"}
        if config is None
        else {"task.toml": config}
    )

    assert check(make_task(files)).is_ok is True


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("COPY here.txt /x", []),
        ("copy gone.txt /x", [(1, "gone.txt")]),
        ("ADD gone.txt here.txt /x/", [(1, "gone.txt")]),
        ('COPY ["gone file", "/x"]', [(1, "gone file")]),
        ('COPY "gone file" /x', [(1, "gone file")]),
        ("COPY --chown=a:b --chmod=755 gone /x", [(1, "gone")]),
        ("# COPY gone /x\n\nRUN a \\\n  # note\n\n  b\nCOPY \\\n  gone \\\n  /x", [(7, "gone")]),
        ("COPY ../here.txt /x", []),
        ("COPY ./ /x", []),
        ("COPY /here.txt /x", []),
        ("COPY --from=build gone /x", []),
        ("COPY --parents a/b /x", []),
        ("COPY go*.txt $NAME ${NAME} a[b] /x", []),
        ("ADD https://a.org/b.tar git@github.com:a/b.git gone.git#v1 /x", []),
        ("COPY <<EOF /x\nCOPY gone /y\nEOF\nCOPY gone2 /z", [(4, "gone2")]),
        ("RUN <<-'A' cat\nCOPY gone /y\nA\nCOPY here.txt /z", []),
        ("# escape=`\nCOPY gone `\n /x", [(2, "gone")]),
        ("COPY 'unclosed /x", []),
        ("COPY [1] /x", []),
        ('COPY ["a", 2]', []),
        ("COPY gone", []),
        ("COPY a\\", []),
        ("ONBUILD COPY gone /x", []),
    ],
)
def test_only_certainly_missing_sources_are_reported(tmp_path, text, missing):
    (tmp_path / "here.txt").write_text("x")

    found = missing_sources(text, tmp_path)

    assert [(entry.line, entry.source) for entry in found] == missing


def test_new_task_is_readable_and_clean(tmp_path):
    folder = scaffold("sort-numbers", tmp_path / "tasks")

    report = check(folder)

    assert report.is_ok
    assert report.tasks[0].warnings == ()
    assert read_task(folder).name == "sort-numbers"


@pytest.mark.parametrize(("is_solved", "reward"), [(True, "1\n"), (False, "0\n")])
def test_new_task_is_solved_by_its_solution_and_not_by_nothing(tmp_path, is_solved, reward):
    folder = scaffold("sort-numbers", tmp_path)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "numbers.txt").write_text("3\n4\n35\n")
    if is_solved:
        run_inside(tmp_path, folder / "solution" / "solve.sh")

    run_inside(tmp_path, folder / "tests" / "test.sh")

    assert (tmp_path / "logs" / "verifier" / "reward.txt").read_text() == reward


def run_inside(root, script) -> None:
    """Run a task's script with the sandbox's absolute paths moved below a folder."""
    text = script.read_text().replace("/app/", f"{root}/app/").replace("/logs/", f"{root}/logs/")
    subprocess.run(["bash", "-c", text], check=True, timeout=20, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a\nb"])
def test_name_that_is_no_folder_name_is_refused(tmp_path, name):
    with pytest.raises(TaskError, match="cannot name a task"):
        scaffold(name, tmp_path)


def test_existing_task_is_never_overwritten(tmp_path):
    scaffold("one", tmp_path)

    with pytest.raises(TaskError, match="exists already"):
        scaffold("one", tmp_path)


def test_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(TaskError, match="cannot be made"):
        scaffold("one", tmp_path / "file")
