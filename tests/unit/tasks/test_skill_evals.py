"""Questions of a skill: which are read, which are refused, and which tasks they become."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.skill_evals import EvalTasks, read_evals, write_eval_tasks

SKILL = "---\nname: dates\ndescription: Write dates.\n---\n"
CASE = {"question": "What is 6 x 7?", "ground_truth": "42"}


def write_skill(folder: Path, cases: Any = (CASE,), **keys: Any) -> Path:
    (folder / "evals").mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "evals" / "evals.json").write_text(json.dumps({"cases": list(cases), **keys}))
    return folder


def made(folder: Path, room: Path) -> EvalTasks:
    return write_eval_tasks(read_evals(folder), folder, room)


def test_a_case_becomes_a_task_that_any_agent_can_be_run_on(tmp_path: Path) -> None:
    case = {**CASE, "id": "six-by-seven", "environment": {"MODE": "fast"}}
    skill = write_skill(
        tmp_path / "dates", [case], defaults={"timeout_sec": 60, "skill_mount_dir": "/srv/skills"}
    )

    found = made(skill, tmp_path / "room")

    task = read_task(found.tasks / "six-by-seven")
    assert task.warnings == ()
    assert task.instruction.strip() == "What is 6 x 7?"
    assert task.config.agent.timeout_sec == 60.0
    assert task.config.sandbox.env == {"MODE": "fast"}
    assert task.config.sandbox.skills_dir == "/srv/skills"
    assert (task.has_dockerfile, task.oracle_dir) == (True, None)


def test_answers_are_with_the_tests_and_nowhere_else(tmp_path: Path) -> None:
    """A skill that is placed with its questions would answer them."""
    skill = write_skill(tmp_path / "dates")
    (skill / "evals" / "notes.txt").write_text("42")
    (skill / "scripts").mkdir()
    (skill / "scripts" / "run.sh").write_text("#!/bin/sh\n")

    found = made(skill, tmp_path / "room")

    assert sorted(str(path.relative_to(found.skills)) for path in found.skills.rglob("*.*")) == [
        "dates/SKILL.md",
        "dates/scripts/run.sh",
    ]
    holding = [path for path in found.tasks.rglob("*") if path.is_file() and "42" in path.read_text()]
    assert [path.relative_to(found.tasks).as_posix() for path in holding] == ["case-1/tests/ground-truth.txt"]


def test_the_skill_brings_its_own_image_and_requirements(tmp_path: Path) -> None:
    plain, own = write_skill(tmp_path / "plain"), write_skill(tmp_path / "own")
    (plain / "evals" / "requirements.txt").write_text("numpy\n")
    (own / "evals" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")

    files = {
        skill.name: made(skill, tmp_path / "room").tasks / "case-1" / "environment" for skill in (plain, own)
    }

    text = (files["plain"] / "Dockerfile").read_text()
    assert text.startswith("FROM python:3.12-slim\nCOPY requirements.txt")
    assert (files["plain"] / "requirements.txt").read_text() == "numpy\n"
    assert (files["own"] / "Dockerfile").read_text() == "FROM debian:bookworm-slim\n"


def test_the_same_skill_has_the_same_place_and_a_changed_one_another(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "dates")
    first, again = made(skill, tmp_path / "room"), made(skill, tmp_path / "room")
    (skill / "SKILL.md").write_text(f"{SKILL}More.\n")

    assert first == again != made(skill, tmp_path / "room")


@pytest.mark.parametrize(
    ("cases", "keys", "told"),
    [
        ([], {}, "cases: "),
        ([{"ground_truth": "42"}], {}, "cases.0.question: "),
        ([{**CASE, "expecte_behavior": []}], {}, "cases.0.expecte_behavior: "),
        ([{**CASE, "expected_behavior": "reads it"}], {}, "cases.0.expected_behavior: "),
        ([{**CASE, "id": "../up"}], {}, "cases.0.id: "),
        ([{**CASE, "id": "a"}, {**CASE, "id": "A"}], {}, "two cases have the id 'A'"),
        ([CASE], {"version": "2"}, "expected version 1"),
        ([CASE], {"defaults": {"timeout_sec": 0}}, "defaults.timeout_sec: "),
        ([CASE], {"defaults": {"skill_mount_dir": "skills"}}, "defaults.skill_mount_dir: "),
        ([{**CASE, "environment": {"A": 1}}], {}, "cases.0.environment.A: "),
    ],
)
def test_what_is_wrong_is_named_by_its_place(
    tmp_path: Path, cases: list[Any], keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_evals(write_skill(tmp_path / "dates", cases, **keys))

    assert told in caught.value.message


@pytest.mark.parametrize("missing", ["SKILL.md", "evals/evals.json"])
def test_a_folder_without_a_skill_or_questions_is_refused(tmp_path: Path, missing: str) -> None:
    skill = write_skill(tmp_path / "dates")
    (skill / missing).unlink()

    with pytest.raises(UsageError, match=missing):
        read_evals(skill)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "dates")
    (skill / "evals" / "evals.json").write_text("{")

    with pytest.raises(UsageError, match="cannot be read"):
        read_evals(skill)


def test_a_skill_with_a_link_is_refused(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "dates")
    (skill / "notes.md").symlink_to("SKILL.md")

    with pytest.raises(UsageError, match=r"dates/notes.md is a link"):
        made(skill, tmp_path / "room")


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("42", "1"),
        ("The answer is  42.\n", "1"),
        ("It is 6 x 7 =\n42, as\tyou see.", "1"),
        ("142", "0"),
        ("42nd", "0"),
        ("", "0"),
        ("forty-two", "0"),
    ],
)
def test_an_answer_counts_as_whole_words(tmp_path: Path, said: str, reward: str) -> None:
    assert graded(tmp_path, "42", said) == reward


@pytest.mark.parametrize(
    ("truth", "said", "reward"),
    [
        ("a  b\nc", "So: a b c!", "1"),
        ("a.b", "axb", "0"),
        ("-5 %", "It fell by -5 % a year.", "1"),
        ("  ", "anything", "0"),
        ("Ünicode", "the word Ünicode it is", "1"),
    ],
)
def test_what_is_expected_is_text_and_blanks_count_as_one(
    tmp_path: Path, truth: str, said: str, reward: str
) -> None:
    assert graded(tmp_path, truth, said) == reward


def graded(folder: Path, truth: str, said: str) -> str:
    """Return what the test of a case gives, run here with its two places below a folder."""
    found = made(write_skill(folder / "dates", [{**CASE, "ground_truth": truth}]), folder / "room")
    script = (found.tasks / "case-1" / "tests" / "test.sh").read_text()
    (folder / "said").write_text(said, encoding="utf-8")
    script = script.replace("/opt/benchflow/final-message.txt", str(folder / "said"))
    script = script.replace("/logs/verifier/reward.txt", str(folder / "reward.txt"))
    place = found.tasks / "case-1" / "tests" / "run.sh"
    place.write_text(script)
    subprocess.run(["sh", place], check=True)
    return (folder / "reward.txt").read_text().strip()
