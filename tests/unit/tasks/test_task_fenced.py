"""task.md with its prompt first and a `toml task` block last: units, networks, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.tasks.discover import discover
from benchflow_client.tasks.fenced_config import seconds

PROMPT = 'Write `/app/out.json`:\n\n```json\n{"a": 1}\n```\n'
PARTS = {
    "sandbox/Dockerfile": "FROM debian:bookworm-slim\nCOPY note.txt /app/\n",
    "sandbox/note.txt": "x\n",
    "verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "oracle/solve.sh": "true\n",
}


def document(settings: str, *, prompt: str = PROMPT, before: str = "") -> str:
    return f"{before}{prompt}\n```toml task\n{settings}```\n"


@pytest.fixture
def make_fenced(tmp_path):
    """Return a function that writes such a task; `None` leaves a file out."""

    def make(text: str, files: dict[str, str | None] | None = None) -> Path:
        folder = tmp_path / "suite" / "write-json"
        for path, content in {**PARTS, "task.md": text, **(files or {})}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return make


def found_in(folder: Path, room: Path):
    found = discover(folder, room=room)
    assert found.broken == ()
    return found.tasks[0]


def problems_of(folder: Path, room: Path) -> tuple[str, ...]:
    (broken,) = discover(folder, room=room).broken
    return broken.problems


def test_prompt_and_parts_become_a_task(make_fenced, room):
    found = found_in(make_fenced(document('name = "a/b"\n')), room)

    assert (found.task.name, found.task.instruction) == ("write-json", PROMPT)
    assert (found.task.verifier_dir, found.task.oracle_dir) == ("verifier", "oracle")
    assert (found.folder / "environment/note.txt").read_text() == "x\n"
    assert (found.folder / "verifier/original-test.sh").read_text() == PARTS["verifier/test.sh"]


def test_settings_with_units_are_numbers(make_fenced, room):
    settings = """\
name = "org/write-json"
title = "Write JSON"
version = "1.2.0"
description = "d"
authors = ["Ann Bee <a@b.c>", "Cee", { name = "Dee" }]
keywords = ["json"]
[about]
difficulty = "hard"
[agent]
timeout = "1h30m"
network = "none"
on_timeout = "grade"
user = "agent"
[sandbox]
image = "debian:12"
cpus = 2
memory = "4 GB"
disk = "10 GB"
build_timeout = "10m"
workdir = "/desk"
env = { A = "1" }
outputs = ["/desk/a", { path = "/desk/b", save_as = "c", exclude = ["*.o"] }]
network = "none"
[sandbox.ready]
run = "true"
interval = "2s"
retries = 4
[verifier]
timeout = 90
mount = "/tests"
env = { B = "2" }
[oracle]
mount = "/solution"
env = { C = "3" }
[runs]
trials = 5
"""
    task = found_in(make_fenced(document(settings)), room).task
    config = task.config

    assert (task.verifier_dir, task.oracle_dir) == ("tests", "solution")
    assert (config.task.name, config.task.version, config.task.keywords) == (
        "org/write-json",
        "1.2.0",
        ("json",),
    )
    assert [(author.name, author.email) for author in config.task.authors] == [
        ("Ann Bee", "a@b.c"), ("Cee", None), ("Dee", None),
    ]  # fmt: skip
    assert (config.agent.timeout_sec, config.agent.network_mode, config.agent.user) == (
        5400.0,
        "no-network",
        "agent",
    )
    sandbox = config.sandbox
    assert (sandbox.docker_image, sandbox.cpus, sandbox.memory_mb, sandbox.storage_mb) == (
        "debian:12",
        2.0,
        4096,
        10240,
    )
    assert (sandbox.build_timeout_sec, sandbox.workdir, sandbox.env) == (600.0, "/desk", {"A": "1"})
    assert sandbox.network_mode == "no-network"
    assert sandbox.healthcheck is not None
    assert (sandbox.healthcheck.command, sandbox.healthcheck.interval_sec, sandbox.healthcheck.retries) == (
        "true",
        2.0,
        4,
    )
    assert (config.verifier.timeout_sec, config.verifier.env, config.oracle.env) == (
        90.0,
        {"B": "2"},
        {"C": "3"},
    )
    assert [(item.source, item.destination) for item in config.artifacts] == [
        ("/desk/a", None),
        ("/desk/b", "c"),
    ]
    assert config.metadata == {"difficulty": "hard", "taskmd": {"title": "Write JSON", "runs": {"trials": 5}}}


@pytest.mark.parametrize(
    ("text", "number"),
    [("15m", 900.0), ("2 h", 7200.0), ("90s", 90.0), ("1h30m", 5400.0), ("21d", 1814400.0), ("0.5s", 0.5),
     ("250ms", 0.25), ("15", None), ("m", None), ("", None), ("15 minutes", None), ("-1s", None)],
)  # fmt: skip
def test_times_with_units(text, number):
    assert seconds(text) == number


@pytest.mark.parametrize(
    ("network", "mode", "allowed", "blocked"),
    [
        ('"open"', "public", (), ()),
        ('"none"', "no-network", (), ()),
        ('["a.org", "*.b.org"]', "allowlist", ("a.org", "*.b.org"), ()),
        ('{ allow = ["a.org"] }', "allowlist", ("a.org",), ()),
        ('{ block = ["a.org"] }', "denylist", (), ("a.org",)),
    ],
)
def test_network_is_a_word_a_list_or_a_table(make_fenced, room, network, mode, allowed, blocked):
    sandbox = found_in(make_fenced(document(f"[sandbox]\nnetwork = {network}\n")), room).task.config.sandbox

    assert (sandbox.network_mode, sandbox.allowed_hosts, sandbox.blocked_hosts) == (mode, allowed, blocked)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("[agent]\ntimeout = \"soon\"\n", 'task.md, line 9: agent.timeout = "soon": expected a time such as "15m"'),
        ("[sandbox]\nmemory = \"much\"\n", 'task.md, line 9: sandbox.memory = "much": expected a size such as "4 GB"'),
        ("[sandbox]\nnetwork = \"some\"\n", 'task.md, line 9: sandbox.network = "some": expected "open", "none", a list of hosts, or a table with allow or block'),
        ("[sandbox]\nnetwork = {allow = [], block = []}\n", 'task.md, line 9: sandbox.network = {"allow": [], "block": []}: expected "open", "none", a list of hosts, or a table with allow or block'),
        ("[agent]\nbudget = { tokens = 5 }\n", "task.md, line 9: agent.budget: is not run by this version, and leaving it out would change the task"),
        ("[agent]\non_timeout = \"fail\"\n", "task.md, line 9: agent.on_timeout = \"fail\": only 'grade' is kept by this version"),
        ("[verifier]\njudges = { llm = \"m\" }\n", "task.md, line 9: verifier.judges: is not run by this version, and leaving it out would change the task"),
        ("[verifier]\nmount = \"/etc\"\n", "task.md, line 9: verifier.mount = \"/etc\": only '/verifier' or '/tests' is kept by this version"),
        ("[sandbox.ready]\nrun = \"x\"\nport = 3\n", "task.md, line 10: sandbox.ready.port: is not run by this version, and leaving it out would change the task"),
        ("[[sandbox.outputs]]\npath = \"/a\"\nmax_bytes = 3\n", "task.md, line 10: sandbox.outputs[0].max_bytes: is not run by this version, and leaving it out would change the task"),
        ("[stages.one]\nunlock = \"at_start\"\n", "task.md, line 8: stages: is not run by this version, and leaving it out would change the task"),
        ("[x-benchflow]\na = 1\n", "task.md, line 8: x-benchflow: is not run by this version, and leaving it out would change the task"),
        ("agent = 3\n", "task.md, line 8: agent = 3: expected a table"),
        ("agent = \n", "task.md, line 8: not valid TOML: Invalid value"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_a_problem_with_line_and_key(make_fenced, room, settings, problem):
    assert problems_of(make_fenced(document(settings)), room) == (problem,)


def test_wrong_type_is_told_by_the_key_of_the_task_that_was_made(make_fenced, room):
    (problem,) = problems_of(make_fenced(document("[sandbox]\ncpus = true\n")), room)

    assert "environment.cpus = true: expected a number" in problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (document("") + "\nmore\n", "task.md, line 10: nothing but blocks may follow the first block"),
        (document("") + "```stage two\nx\n```\n", "task.md, line 9: a 'stage two' block is not run by this version"),
        (document("") + "```toml task\n```\n", "task.md, line 9: a second `toml task` block; keep one"),
        (document("", prompt=""), "task.md: no prompt; write what the agent should do above the blocks"),
        (document("")[:-4], "task.md, line 7: the block that starts here is never ended"),
    ],
)  # fmt: skip
def test_document_that_breaks_the_form_is_a_problem(make_fenced, room, text, problem):
    assert problems_of(make_fenced(text), room) == (problem,)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("verifier/rubric.json", "verifier/rubric.json: scoring by a rubric is not run by this version"),
        ("family/make.py", "family/: tasks made from a seed are not run by this version"),
        ("stages/two/a", "stages/: stages are not run by this version"),
    ],
)
def test_parts_that_would_change_the_score_are_refused(make_fenced, room, name, reason):
    assert problems_of(make_fenced(document(""), {name: "{}"}), room) == (reason,)


def test_notes_and_the_comment_on_top_are_never_shown(make_fenced, room):
    text = document("", before="<!-- canary\n1234 -->\n") + "\n```notes\nthe answer is 42\n```\n"

    task = found_in(make_fenced(text), room).task

    assert task.instruction == PROMPT


def test_block_shown_inside_another_fence_is_part_of_the_prompt(make_fenced, room):
    prompt = "Explain:\n\n````markdown\n```toml task\nname = 3\n```\n````\n"

    assert found_in(make_fenced(document("", prompt=prompt)), room).task.instruction == prompt


def test_windows_line_ends_and_a_byte_order_mark_are_tolerated(make_fenced, room):
    text = "\ufeff" + document('[agent]\ntimeout = "2m"\n').replace("\n", "\r\n")

    folder = make_fenced("x")
    (folder / "task.md").write_bytes(text.encode())
    task = found_in(folder, room).task

    assert (task.instruction, task.config.agent.timeout_sec) == (PROMPT, 120.0)


def test_task_without_sandbox_folder_needs_an_image(make_fenced, room):
    without = dict.fromkeys(["sandbox/Dockerfile", "sandbox/note.txt"], None)

    assert (
        found_in(make_fenced(document('[sandbox]\nimage = "a"\n'), without), room).task.has_dockerfile
        is False
    )


def test_other_form_beside_it_must_say_the_same(make_fenced, room):
    text = document('[agent]\ntimeout = "2m"\n[sandbox]\nimage = "a"\nmemory = "4 GB"\n')
    toml = (
        "[agent]\ntimeout_sec = 120\n[environment]\ndocker_image = 'a'\nmemory_mb = 4096\n[metadata]\na = 1\n"
    )
    folder = make_fenced(text, {"task.toml": toml, "instruction.md": PROMPT})
    assert found_in(folder, room).task.form == "task.toml"

    (folder / "task.toml").write_text(toml.replace("120", "121"))
    (folder / "instruction.md").write_text("Other.\n")

    assert problems_of(folder, room) == (
        "task.toml: agent.timeout_sec = 121.0, but task.md says 120.0",
        "instruction.md: differs from the prompt of task.md",
    )


def test_twin_folders_must_be_equal(make_fenced, room):
    folder = make_fenced(document(""), {"tests/test.sh": "echo 0\n"})

    assert problems_of(folder, room) == (
        "tests: differs from verifier in test.sh; keep one folder, or make them equal",
    )
