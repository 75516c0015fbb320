"""Task folders as people have them: of every form, with odd names and files; the oracle solves each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchflow_client.api import Client
from benchflow_client.schema.job import JobSpec
from benchflow_client.tasks.check import check
from tests.fleets import embedded_fleet

WAIT_S = 240.0
FORMS = Path(__file__).parents[1] / "assets" / "tasks"
KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))

DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY . /app/\n"
SOLVE = "#!/bin/sh\necho done > /app/answer.txt\n"
TEST = (
    "#!/bin/sh\nif grep -qx done /app/answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
)
PLAIN: Mapping[str, str] = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Write the word done to /app/answer.txt.\n",
    "environment/Dockerfile": DOCKERFILE,
    "tests/test.sh": TEST,
    "solution/solve.sh": SOLVE,
}
LONG = "{{ name }} {% if x %} ${HOME} $(touch /tmp/x) <<EOF 'q' \"r\" \\ [bold]\n" * 800

ODD: Mapping[str, Mapping[str, str]] = {
    "7": {},
    "007": {},
    "two words": {},
    "two-words": {},
    "two_words": {},
    "org__name__1": {},
    "scope:name ü 任务": {},
    "no first line, no last line end": {
        "tests/test.sh": TEST.partition("\n")[2].rstrip("\n"),
        "solution/solve.sh": SOLVE.partition("\n")[2].rstrip("\n"),
    },
    "windows": {path: text.replace("\n", "\r\n") for path, text in PLAIN.items()},
    "byte order marks": {path: "\ufeff" + text for path, text in PLAIN.items() if "Docker" not in path},
    "long times, long words": {
        "task.toml": "[agent]\ntimeout_sec = 1814400\n[verifier]\ntimeout_sec = 1814400\n[environment]\ncpus = 1.0\nmemory_mb = 512.0\n",
        "instruction.md": LONG,
    },
    "compose and env that are data": {
        "environment/.env": "SECRET=data\n",
        "environment/stack/docker-compose.yaml": "services: {main: {image: nothing}}\n",
        "environment/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "environment/tests/conftest.py": "raise SystemExit\n",
        "tests/test.sh": TEST.replace(
            "if grep", "if [ -f /app/.env ] && [ -f /app/stack/docker-compose.yaml ] && [ -f /app/tests/test.sh ] && grep"
        ),
    },
    "context above": {
        "environment/Dockerfile": DOCKERFILE.replace("COPY . ", "COPY ../words/word.txt ../more.txt "),
        "environment/more.txt": "more\n",
        "words/word.txt": "word\n",
        "tests/test.sh": TEST.replace("if grep", "if [ -f /app/word.txt ] && [ -f /app/more.txt ] && grep"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write every task: those of each form, the odd ones, one with links inside, and one that is a link."""
    folder = tmp_path_factory.mktemp("odd")
    for form in FORMS.iterdir():
        if form.name.startswith(("terminal-bench-", "fenced-")):
            shutil.copytree(form, folder / "suite" / form.name)
    for name, files in ODD.items():
        write(folder / "suite" / name, files)
    linked = write(folder / "elsewhere", {"tests/v1/word.txt": "done\n", "environment/real/a.txt": "a\n"})
    (linked / "tests/latest").symlink_to("v1", target_is_directory=True)
    (linked / "environment/link").symlink_to("real", target_is_directory=True)
    (linked / "tests/test.sh").write_text(TEST.replace("-qx done", "-qxf /tests/latest/word.txt"))
    (folder / "suite/is a link").symlink_to(linked, target_is_directory=True)
    return folder / "suite"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a task whose scripts nobody may execute."""
    for path, text in {**PLAIN, **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
        (folder / path).chmod(0o644)
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with embedded_fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def test_each_can_be_run(suite: Path) -> None:
    report = check(suite)

    assert {task.name: task.problems for task in report.tasks if task.problems} == {}
    assert len(report.tasks) == len(ODD) + 4


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_solves_each(suite: Path, client: Client, kind: str) -> None:
    endings = run(client, JobSpec(tasks=str(suite), agent=("oracle",), sandbox=kind, concurrency=4))

    assert {task: ending for task, ending in endings.items() if ending != ("passed", "")} == {}
    assert len(endings) == len(ODD) + 4


@pytest.mark.parametrize("kind", KINDS)
def test_idle_agent_solves_none_of_the_converted_ones(suite: Path, client: Client, kind: str) -> None:
    converted = ("terminal-bench-*", "fenced-*")
    spec = JobSpec(tasks=str(suite), agent=("nop",), sandbox=kind, concurrency=4, include=converted)

    assert set(run(client, spec).values()) == {("failed", "")}


def run(client: Client, spec: JobSpec) -> dict[str, tuple[str, str]]:
    """Return how each task of a job ended: outcome and failure code."""
    handle = client.submit(spec)
    handle.wait(timeout_s=WAIT_S)
    plan = handle.results().plan
    receipts = [trial.receipt for trial in handle.trials()]
    return {plan.trial(item.trial_index).task.name: (item.outcome, item.code) for item in receipts}
