"""The documentation is true: its code runs, its commands exist, its links lead somewhere, its reference is current.

Every ``python`` block is run, and every ``bash`` block below a line ``<!-- run -->``; those of
one page one after another, in one folder, as a reader would.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchflow_client.cli.main import make_app
from benchflow_client.schema.job import JobSpec
from benchflow_client.settings import Settings
from benchflow_client.tasks.read import read_task
from benchflow_workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATOR = ROOT / "docs/generate.py"
CODE = "import sys; from benchflow_client.cli.main import main; sys.exit(main())"
BLOCK_TIMEOUT_S = 150

FENCE = re.compile(r"^```(?P<language>\w*)$(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
GROUPS_OF_COMMANDS = frozenset({"skills"})
"""Commands with commands below them, each with flags of its own."""

RUN_MARK = "<!-- run -->\n"
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[\s.$/])bench (?P<name>[a-z][a-z-]*)(?P<rest>[^\n#|&>·]*)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    is_run: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return tuple(
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["text"].lstrip("\n"),
            found["language"] == "python"
            or (found["language"] == "bash" and text.endswith(RUN_MARK, 0, found.start())),
        )
        for found in FENCE.finditer(text)
    )


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def codes_of(page: Path) -> list[str]:
    """Return all that stands as code on a page."""
    return [*(block.text for block in blocks_of(page)), *INLINE.findall(prose_of(page))]


RUNNABLE = {
    page.relative_to(ROOT).as_posix(): blocks
    for page in PAGES
    if (blocks := [block for block in blocks_of(page) if block.is_run])
}


@dataclass(frozen=True)
class Desk:
    """A reader's folder with the examples in it, and a home of its own."""

    folder: Path
    environ: dict[str, str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the folder."""
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )

    def run_block(self, block: Block) -> subprocess.CompletedProcess[str]:
        """Run a block as a script of its language."""
        if block.language == "python":
            script = self.folder / f"line_{block.line}.py"
            script.write_text(block.text, encoding="utf-8")
            return self.run("python", script.name)
        return self.run("bash", "-eu", "-o", "pipefail", "-c", block.text)


def make_desk(place: Path) -> Desk:
    """Make a desk on which `bench` is found and no Docker is, so that all machines run the same."""
    programs, folder = place / "bin", place / "clone"
    for made in (programs, folder, place / "home"):
        made.mkdir(parents=True)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name, arguments in (("bench", f"-c '{CODE}'"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    environ = kept | {
        "HOME": str(place / "home"),
        "XDG_STATE_HOME": str(place / "state"),
        "PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "BENCHFLOW_DOCKER_HOST": f"unix://{place}/no-docker.sock",
    }
    return Desk(folder, environ)


@contextmanager
def fleet_on(desk: Desk) -> Generator[None, None, None]:
    """Keep an embedded fleet for all blocks of a page, or refuse the test where no sandbox works."""
    host = json.loads(desk.run("python", "-m", "benchflow_workers", "check-host").stdout)
    problem = next(finding["problem"] for finding in host if finding["kind"] == "local")
    if problem is not None:
        pytest.skip(problem)
    started = desk.run("bench", "up")
    try:
        assert started.returncode == 0, started.stderr
        yield
    finally:
        desk.run("bench", "down")


def test_pages_have_blocks_to_run() -> None:
    counts = {name: len(blocks) for name, blocks in RUNNABLE.items()}

    assert counts == {
        "README.md": 2,
        "docs/agents.md": 4,
        "docs/chaos.md": 1,
        "docs/models.md": 1,
        "docs/python.md": 6,
        "docs/quickstart.md": 4,
        "docs/results.md": 1,
        "docs/scaling-and-limits.md": 4,
        "docs/skills.md": 2,
        "docs/task-formats.md": 1,
        "docs/tasks.md": 1,
        "docs/turns.md": 2,
    }


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_code_of_a_page_runs_as_shown(name: str, tmp_path: Path) -> None:
    desk = make_desk(tmp_path)

    with fleet_on(desk):
        for block in RUNNABLE[name]:
            done = desk.run_block(block)
            assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"

    results = [json.loads(path.read_text()) for path in desk.folder.glob("jobs/*/*/result.json")]
    assert {(result["agent"], result["rewards"]["reward"]) for result in results} <= {
        ("oracle", 1.0),
        ("nop", 0.0),
        ("hello_agent", 1.0),
        ("chaos-agent", 1.0),
        ("first", 0.0),
        ("ask_model", 0.0),
        ("testing_agent", 0.0),
        ("skilled_agent", 1.0),
        ("skilled_agent", 0.0),
    }
    assert results


@cache
def help_of(command: str, verb: str) -> str:
    """Return what `bench COMMAND VERB --help` says; an empty verb is none."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *filter(None, (command, verb)), "--help"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr


def verb_of(found: re.Match[str]) -> str:
    """Return the command below a command that a line names; empty = it has none of its own."""
    word = found["rest"].split()[0] if found["rest"].split() else ""
    return word if found["name"] in GROUPS_OF_COMMANDS else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_on_a_page_exist(page: Path) -> None:
    commands = set(make_app())
    used = [found for code in codes_of(page) for found in COMMAND.finditer(code)]

    assert {found["name"] for found in used} - commands == set()
    wrong = [
        found[0].strip()
        for found in used
        for flag in re.findall(r"(?<=\s)--[a-z][a-z-]*", found["rest"])
        if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", help_of(found["name"], verb_of(found)))
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_on_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    used = {name for code in codes_of(page) for name in re.findall(r"(?:^|\s)make ([a-z]+)", code)}

    assert used - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_on_a_page_exist(page: Path) -> None:
    packages = ("benchflow_client", "benchflow_workers")
    sources = [ROOT / ".env.example", *(file for name in packages for file in (ROOT / name).rglob("*.py"))]
    known = {f"BENCHFLOW_{name.upper()}" for name in (*Settings.model_fields, *WorkerSettings.model_fields)}
    for source in sources:
        known.update(re.findall(r"BENCHFLOW_[A-Z0-9_]*[A-Z0-9]", source.read_text(encoding="utf-8")))
    used = set(re.findall(r"BENCHFLOW_[A-Z0-9_]+", page.read_text(encoding="utf-8")))

    assert {name for name in used - known if not name.endswith("_")} == set()


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = [found["target"] for found in LINK.finditer(prose_of(page))]

    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if "://" not in target and not (file.exists() and (not anchor or anchor in anchors_of(file))):
            broken.append(target)
    assert broken == []


def test_the_readme_leads_to_every_page() -> None:
    targets = {found["target"] for found in LINK.finditer(prose_of(ROOT / "README.md"))}

    assert {f"docs/{page.name}" for page in PAGES[1:]} - targets == set()


def test_both_forms_of_a_task_are_read_as_shown(tmp_path: Path) -> None:
    shown = {block.language: block.text for block in blocks_of(ROOT / "docs/tasks.md")}
    for form, files in {
        "split": {"task.toml": shown["toml"], "instruction.md": "Count.\n"},
        "single": {"task.md": shown["markdown"]},
    }.items():
        for name, text in {**files, "environment/Dockerfile": "FROM debian:bookworm-slim\n"}.items():
            (tmp_path / form / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / form / name).write_text(text)

    split, single = read_task(tmp_path / "split"), read_task(tmp_path / "single")

    assert (split.config.agent.timeout_sec, single.config.agent.timeout_sec) == (300.0, 300.0)
    assert split.config.sandbox.network_mode == "no-network"
    assert single.instruction.startswith("Write the number of lines")
    assert split.ignored_keys == ()


def generate(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the generator of the reference."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_reference_is_what_the_models_say() -> None:
    done = generate(GENERATOR, "--check")

    assert done.returncode == 0, done.stderr


def test_an_old_reference_is_found_and_written_anew(tmp_path: Path) -> None:
    script = Path(shutil.copy(GENERATOR, tmp_path))
    page = tmp_path / "configuration.md"
    page.write_text("# Configuration reference\n")

    old = generate(script, "--check")
    written = generate(script)

    assert old.returncode == 1
    assert "Run: python docs/generate.py" in old.stderr
    assert written.returncode == 0, written.stderr
    assert generate(script, "--check").returncode == 0
    assert page.read_text() == (ROOT / "docs/configuration.md").read_text()


def test_the_reference_has_every_flag_variable_and_a_line_as_a_reader_needs_it() -> None:
    lines = (ROOT / "docs/configuration.md").read_text(encoding="utf-8").splitlines()
    firsts = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| `")}

    assert {f"`--{name.replace('_', '-')}`" for name in JobSpec.model_fields} <= firsts
    assert {f"`BENCHFLOW_{name.upper()}`" for name in Settings.model_fields} <= firsts
    assert {f"`BENCHFLOW_{name.upper()}`" for name in WorkerSettings.model_fields} <= firsts
    assert (
        "| `--tries` | `tries` | whole number >= 1, <= 1000 | `1` | How often each agent tries each task. |"
        in lines
    )
