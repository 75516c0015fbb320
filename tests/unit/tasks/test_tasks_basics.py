"""What reading a task folder gives, page one."""

from __future__ import annotations

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.tasks.read import read_task


def test_task_toml_and_instruction_become_a_task(make_task):
    folder = make_task({
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 30\n[environment]\nmemory_mb = 512\n'
    })

    task = read_task(folder)

    assert task.name == "fetch-note"
    assert task.form == "task.toml"
    assert task.instruction == "Write the word done into /app/answer.txt.\n"
    assert task.config.agent.timeout_sec == 30.0
    assert task.config.sandbox.memory_mb == 512
    assert (task.verifier_dir, task.oracle_dir) == ("tests", "solution")
    assert (task.has_dockerfile, task.has_compose) == (True, False)
    assert task.warnings == ()


def test_task_md_becomes_the_same_kind_of_task(make_document):
    folder = make_document("---\nversion: '1.3'\nagent:\n  timeout_sec: 30\n---\nWrite the word done.\n")

    task = read_task(folder)

    assert task.form == "task.md"
    assert task.instruction == "Write the word done."
    assert task.config.agent.timeout_sec == 30.0
    assert (task.verifier_dir, task.oracle_dir) == ("verifier", "oracle")


def test_every_problem_is_listed_at_once_with_file_line_and_key(make_task):
    folder = make_task({
        "task.toml": 'version = "2.0"\n\n[agent]\ntimeout_sec = "ten"\n\n[environment]\ncpus = -1\n',
        "instruction.md": "  \n",
        "environment/Dockerfile": None,
    })

    with pytest.raises(TaskError) as caught:
        read_task(folder)

    assert caught.value.problems == (
        'task.toml, line 1: version = "2.0": expected version 1, e.g. "1.3"',
        'task.toml, line 4: agent.timeout_sec = "ten": expected a number of seconds',
        "task.toml, line 7: environment.cpus = -1: expected more than 0",
        "instruction.md: is empty; write what the agent should do",
        "environment/Dockerfile: missing; add it (or docker-compose.yaml), or name a ready image as docker_image",
    )
    assert caught.value.message == "Task 'fetch-note' cannot be read: 5 problems"


def test_single_problem_stands_in_the_message(make_task):
    folder = make_task({"task.toml": "[agent]\ntimeout_sec = 0\n"})

    with pytest.raises(TaskError) as caught:
        read_task(folder)

    assert caught.value.message == (
        "Task 'fetch-note' cannot be read: "
        "task.toml, line 2: agent.timeout_sec = 0: expected more than 0 seconds"
    )


def test_missing_tables_get_their_defaults_and_brackets_stay(make_task):
    folder = make_task({
        "task.toml": "",
        "instruction.md": "Use [bold]brackets[/bold] and [agent] literally.\n",
    })

    task = read_task(folder)

    assert task.instruction == "Use [bold]brackets[/bold] and [agent] literally.\n"
    assert task.config.agent.timeout_sec is None
    assert task.config.verifier.timeout_sec == 600.0


@pytest.mark.parametrize(
    "name",
    [
        "0",
        "UPPER",
        "-leading-dash",
        "trailing.",
        "with space",
        "ünïcode-任务",
        "a" * 120,
        "astropy__astropy-12907",
    ],
)
def test_any_folder_name_is_the_tasks_name(make_task, name):
    assert read_task(make_task(name=name)).name == name


def test_scripts_need_no_exec_bit_no_shebang_and_no_last_newline(make_task):
    folder = make_task({"tests/test.sh": "echo 1 > /logs/verifier/reward.txt"})

    assert read_task(folder).warnings == ()


def test_prompt_is_kept_byte_for_byte_but_for_a_byte_order_mark(make_task):
    prompt = "a `b` $(touch /tmp/pwned) {{ x }} 'q' \"r\"\r\n" * 8000

    folder = make_task({"instruction.md": b"\xef\xbb\xbf" + prompt.encode()})

    assert read_task(folder).instruction == prompt


def test_task_without_tests_is_readable_but_says_that_it_cannot_be_scored(make_task):
    without_folder = read_task(make_task({"tests/test.sh": None}, name="one"))
    without_script = read_task(make_task({"tests/test.sh": None, "tests/other.py": ""}, name="two"))

    assert without_folder.warnings == ("no tests: it cannot be scored; add tests/test.sh",)
    assert without_folder.verifier_dir is None
    assert without_script.warnings == ("tests/test.sh: no such file: it cannot be scored",)


@pytest.mark.parametrize(
    "files",
    [
        {"task.toml": '[environment]\ndocker_image = "debian:12"\n', "environment/Dockerfile": None},
        {
            "environment/docker-compose.yaml": "services: {main: {image: a}}\n",
            "environment/Dockerfile": None,
        },
    ],
)
def test_image_or_compose_file_stand_in_for_a_dockerfile(make_task, files):
    task = read_task(make_task(files))

    assert task.has_dockerfile is False


def test_task_without_any_image_is_a_problem(make_task):
    with pytest.raises(TaskError, match=r"environment/Dockerfile: missing; add it"):
        read_task(make_task({"environment/Dockerfile": None}))


def test_features_for_the_gate_are_read_without_complaint(make_task):
    config = """
artifacts = ["/app/out", {source = "/x", service = "db"}]
[[steps]]
name = "build"
[environment]
gpus = 2
os = "windows"
network_mode = "allowlist"
allowed_hosts = ["*.example.org", "10.0.0.0/8"]
tpu = {type = "v5", topology = "2x2"}
[verifier]
type = "llm-judge"
environment_mode = "separate"
service = "target"
[[verifier.collect]]
command = "true"
"""
    task = read_task(
        make_task({"task.toml": config, "instruction.md": None, "steps/build/instruction.md": "Build."})
    )

    assert task.config.sandbox.gpus == 2
    assert task.config.steps == ({"name": "build"},)
    assert task.config.artifacts[0].source == "/app/out"
    assert task.config.verifier.collect == ({"command": "true"},)


def test_folder_that_is_no_task_is_told_apart_from_one_that_is_not_there(tmp_path):
    with pytest.raises(TaskError) as empty:
        read_task(tmp_path)
    with pytest.raises(TaskError) as absent:
        read_task(tmp_path / "absent")

    assert empty.value.problems == ("no task.md and no task.toml",)
    assert absent.value.problems == ("no such folder",)
