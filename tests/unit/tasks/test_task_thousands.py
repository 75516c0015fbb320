"""`bench check` over a thousand odd folders: each planted fault is named with file and key, the rest is fine."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchflow_client.cli.main import run_command
from benchflow_client.tasks.check import check

SEED = 20261129
FOLDERS = 1000

DOCKERFILE = "FROM debian:bookworm-slim\n"
REWARD = "echo 1 > /logs/verifier/reward.txt\n"

FORMS: Mapping[str, Mapping[str, str]] = {
    "task.toml": {
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 60\n[verifier]\n[environment]\ncpus = 1\n',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": REWARD,
        "solution/solve.sh": "true\n",
    },
    "task.md": {
        "task.md": "---\nversion: '1.3'\nagent:\n  timeout_sec: 60\nsandbox:\n  cpus: 1\n---\nDo it.\n",
        "environment/Dockerfile": DOCKERFILE,
        "verifier/test.sh": REWARD,
        "oracle/solve.sh": "true\n",
    },
    "task.yaml": {
        "task.yaml": "instruction: Do it.\nmax_agent_timeout_sec: 60\nparser_name: pytest\n",
        "Dockerfile": DOCKERFILE,
        "run-tests.sh": "true\n",
        "solution.sh": "true\n",
    },
    "fenced": {
        "task.md": 'Do it.\n\n```toml task\n[agent]\ntimeout = "1m"\n[sandbox]\ncpus = 1\n```\n',
        "sandbox/Dockerfile": DOCKERFILE,
        "verifier/test.sh": REWARD,
        "oracle/solve.sh": "true\n",
    },
}

Fault = tuple[str, Callable[[str], str | bytes | None], str]
"""File, what becomes of its text (None = it is missing), and how the problem begins."""


def put(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def missing(text: str) -> None:
    del text


def whole(new: str | bytes) -> Callable[[str], str | bytes]:
    return lambda text: new


FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "task.toml": (
        ("task.toml", put("= 60", '= "ten"'), 'task.toml, line 3: agent.timeout_sec = "ten": '),
        ("task.toml", put("= 60", "= -1"), "task.toml, line 3: agent.timeout_sec = -1: "),
        ("task.toml", put("cpus = 1", "cpus = true"), "task.toml, line 6: environment.cpus = true: "),
        ("task.toml", put("cpus = 1", 'memory = "lots"'), 'task.toml, line 6: environment.memory = "lots": '),
        ("task.toml", put('"1.0"', '"2.0"'), 'task.toml, line 1: version = "2.0": '),
        ("task.toml", put("[verifier]", "[verifier"), "task.toml, line 4: not valid TOML: "),
        ("task.toml", whole(b"\xff\xfe"), "task.toml, line 1: byte 0xff is not UTF-8"),
        ("instruction.md", missing, "instruction.md: cannot be read: "),
        ("instruction.md", whole(" \n\n"), "instruction.md: is empty"),
        ("environment/Dockerfile", missing, "environment/Dockerfile: missing"),
        ("environment/Dockerfile", put("\n", "\nCOPY gone /x\n"), "environment/Dockerfile, line 2: `COPY gone /x`"),
    ),
    "task.md": (
        ("task.md", put("60", "soon"), 'task.md, line 4: agent.timeout_sec = "soon": '),
        ("task.md", put("cpus", "cpuz"), "task.md, line 6: sandbox.cpuz: unknown key; did you mean 'cpus'?"),
        ("task.md", put("sandbox:", "environment:"), "task.md, line 5: environment: unknown key; write 'sandbox'"),
        ("task.md", put("---\nDo it.", "--\nDo it."), "task.md, line 1: the YAML that starts here is never ended"),
        ("task.md", put("Do it.", ""), "task.md: no prompt"),
        ("task.md", whole(b"---\n\xe9\n---\n"), "task.md, line 2: byte 0xe9 is not UTF-8"),
        ("verifier/verifier.md", whole("---\n[\n---\n"), "verifier/verifier.md, line "),
    ),
    "task.yaml": (
        ("task.yaml", put("instruction:", "text:"), "task.yaml: instruction: is missing"),
        ("task.yaml", put("60", "[]"), "task.yaml, line 2: max_agent_timeout_sec"),
        ("task.yaml", put("pytest", "swebench"), 'task.yaml, line 3: parser_name = "swebench": '),
        ("run-tests.sh", missing, "run-tests.sh: missing"),
        ("docker-compose.yaml", whole("services: 3\n"), "docker-compose.yaml, line 1: services: "),
    ),
    "fenced": (
        ("task.md", put('"1m"', '"soon"'), 'task.md, line 5: agent.timeout = "soon": '),
        ("task.md", put("cpus = 1", "clock = 1"), "task.md, line 7: sandbox.clock: "),
        ("task.md", put("[sandbox]", "[sandbox"), "task.md, line 6: not valid TOML: "),
        ("verifier/rubric.json", whole("{}"), "verifier/rubric.json: "),
    ),
}  # fmt: skip

WORDS = (
    "a",
    "Z",
    "7",
    "00",
    "two words",
    "tab\ttab",
    "ü",
    "任务",
    "a:b",
    "x__y",
    ".x"[1:],
    "-",
    "_",
    "[b]",
    "%",
    "&",
    "'",
    '"',
)


@dataclass(frozen=True)
class Suite:
    """A folder of odd tasks, and how the problem of each broken one begins."""

    folder: Path
    expected: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """Write a thousand tasks of all forms, half of them with one fault; the same ones each time."""
    choose, made = random.Random(SEED), Suite(tmp_path_factory.mktemp("thousands"))
    for number in range(FOLDERS):
        name = "".join(choose.choices(WORDS, k=choose.randint(1, 4))) + str(number)
        form = choose.choice(list(FORMS))
        files: dict[str, str | bytes | None] = dict(FORMS[form])
        if choose.random() < 0.5:
            path, change, problem = choose.choice(FAULTS[form])
            files[path] = change(FORMS[form].get(path, ""))
            made.expected[name] = problem
        elif choose.random() < 0.3:
            files = {path: text.replace("\n", "\r\n") for path, text in FORMS[form].items()}
        write(made.folder / name, files)
    yield made
    shutil.rmtree(made.folder)


def write(folder: Path, files: Mapping[str, str | bytes | None]) -> None:
    for path, content in files.items():
        if content is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def test_each_fault_is_named_with_file_and_key_and_nothing_else_is(suite: Suite) -> None:
    tasks = check(suite.folder).tasks

    assert len(tasks) == FOLDERS
    assert [task.problems for task in tasks if task.name not in suite.expected and task.problems] == []
    broken = {task.name: task.problems for task in tasks if task.name in suite.expected}
    begun = {name: [problem.startswith(suite.expected[name]) for problem in broken[name]] for name in broken}
    assert {name: broken[name] for name, fits in begun.items() if fits != [True]} == {}


def test_command_lists_them_without_a_traceback(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", str(suite.folder)]) == 1

    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert f"{FOLDERS - len(suite.expected)} of {FOLDERS} can be run" in text
