"""task.yaml of Terminal-Bench 0.x: read through a converter, or refused with the key."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from benchflow_client.errors import StoreError
from benchflow_client.tasks.discover import discover

COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
"""
OLD = {
    "task.yaml": "instruction: |-\n  Count {{ lines }} <b>.\ndifficulty: easy\n",
    "docker-compose.yaml": COMPOSE,
    "Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY data/ /app/\n",
    "data/poem.txt": "one\n",
    "run-tests.sh": "true\n",
    "tests/test_outputs.py": "pass\n",
    "solution.sh": "true\n",
}


@pytest.fixture
def make_old(tmp_path):
    """Return a function that writes an old task; `None` leaves a file out."""

    def make(files: dict[str, str | None] | None = None) -> Path:
        folder = tmp_path / "suite" / "count-lines"
        for path, content in {**OLD, **(files or {})}.items():
            if content is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content)
        return folder

    return make


def found_in(folder: Path, room: Path):
    (found,) = discover(folder, room=room).tasks
    return found


def problems_of(folder: Path, room: Path) -> tuple[str, ...]:
    (broken,) = discover(folder, room=room).broken
    return broken.problems


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_old_task_becomes_a_task_of_the_same_name_without_touching_its_folder(make_old, room):
    folder = make_old()
    before = files_of(folder)

    found = found_in(folder, room)

    assert found.task.name == "count-lines"
    assert found.task.instruction == "Count {{ lines }} <b>."
    assert files_of(found.folder) == {
        "task.toml",
        "instruction.md",
        "environment/Dockerfile",
        "environment/data/poem.txt",
        "tests/run-tests.sh",
        "tests/test.sh",
        "tests/test_outputs.py",
        "solution/solve.sh",
    }
    assert files_of(folder) == before


def test_what_is_not_said_has_the_values_of_the_old_harness(make_old, room):
    config = found_in(make_old(), room).task.config

    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (360.0, 60.0)
    assert (config.sandbox.cpus, config.sandbox.memory_mb) == (None, None)
    assert config.metadata["author_name"] == "unknown"
    assert config.metadata["category"] == "software_engineering"


def test_what_is_said_is_kept(make_old, room):
    text = (
        "instruction: x\nmax_agent_timeout_sec: 1814400\nmax_test_timeout_sec: 90.5\ndifficulty: hard\n"
        'author_name: "A \\"B\\" \\\\ \\x7f é"\ntags: [a, b]\nexpert_time_estimate_min: 3\njunior_time_estimate_min: null\n'
        "disable_asciinema: true\nrun_tests_in_same_shell: false\nestimated_duration_sec: 12.5\n"
    )

    config = found_in(make_old({"task.yaml": text}), room).task.config

    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (1814400.0, 90.5)
    assert config.metadata == {
        "author_name": 'A "B" \\ \x7f é',
        "author_email": "unknown",
        "difficulty": "hard",
        "category": "software_engineering",
        "tags": ["a", "b"],
        "expert_time_estimate_min": 3,
        "estimated_duration_sec": 12.5,
    }


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"task.yaml": "difficulty: easy\n"}, "task.yaml: instruction: is missing"),
        ({"task.yaml": "instruction: ' '\n"}, 'task.yaml, line 1: instruction = " ": is empty; write what the agent should do'),
        ({"task.yaml": "instruction: x\nparser_name: swebench\n"}, 'task.yaml, line 2: parser_name = "swebench": only the results of pytest are understood; let run-tests.sh run pytest'),
        ({"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"}, "task.yaml, line 2: run_tests_in_same_shell = true: tests never run in the agent's shell here; make run-tests.sh set up its own"),
        ({"task.yaml": "instruction: x\nmax_agent_timeout_sec: ten\n"}, 'task.yaml, line 2: max_agent_timeout_sec = "ten": expected a number of seconds'),
        ({"task.yaml": "- a\n"}, 'task.yaml, line 1: expected `key: value` lines, not ["a"]'),
        ({"task.yaml": "a: !!python/name:os.system x\n"}, "task.yaml, line 1: tag 'tag:yaml.org,2002:python/name:os.system' is not read"),
        ({"run-tests.sh": None}, "run-tests.sh: missing, so the task cannot be scored"),
        ({"tests/test.sh": "x"}, "tests/test.sh: the converted task needs this name for itself; rename it"),
        ({"docker-compose.yaml": "services: {a: {}, b: {}}\n"}, "docker-compose.yaml, line 1: services: expected a service 'client' (or a single one), in which the agent works"),
        ({"docker-compose.yaml": "services: {client: {build: ..}}\n"}, 'docker-compose.yaml, line 1: services.client.build.context = "..": expected a path below the task folder'),
        ({"docker-compose.yaml": "services: {client: {build: {context: ., dockerfile: /etc/passwd}}}\n"}, 'docker-compose.yaml, line 1: services.client.build.dockerfile = "/etc/passwd": expected a path below the task folder'),
        ({"docker-compose.yaml": "services: {client: {build: 3}}\n"}, "docker-compose.yaml, line 1: services.client.build: expected a path or a table"),
        ({"docker-compose.yaml": "services: {client: {build: gone}}\n"}, "gone: the build context is no folder"),
        ({"docker-compose.yaml": "services: {client: {build: {dockerfile: Other}}}\n"}, "Other: no such Dockerfile in the build context"),
        ({"docker-compose.yaml": "services: {client: {build: .}, main: {image: a}}\n"}, "docker-compose.yaml, line 1: services.main: the name is that of the agent's service"),
        ({"docker-compose.yaml": "services: {client: {build: .}, db: {image: '${T_BENCH_DB}'}}\n"}, "docker-compose.yaml: 'image: ${T_BENCH_DB}' needs T_BENCH_…, which only the harness of that time set; write the value"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_a_problem_with_file_and_key(make_old, room, files, problem):
    assert problems_of(make_old(files), room) == (problem,)


def test_unknown_keys_and_difficulties_are_warnings(make_old, room):
    found = found_in(make_old({"task.yaml": "instruction: x\ndifficulty: epic\ncolour: red\n"}), room)

    assert found.task.warnings == (
        "task.yaml, line 3: colour: unknown key, ignored",
        'task.yaml, line 2: difficulty = "epic": expected one of easy, medium, hard, unknown',
    )


def test_variables_workspace_and_image_of_the_compose_file_need_no_compose(make_old, room):
    compose = """\
services:
  client:
    image: python:3.12
    command: sleep infinity
    working_dir: /srv/base
    environment: {TOKEN: "${TOKEN:-none}", DEBUG: true, COUNT: 3}
"""

    task = found_in(make_old({"docker-compose.yaml": compose, "Dockerfile": None}), room).task

    assert not task.has_compose
    assert task.config.sandbox.docker_image == "python:3.12"
    assert task.config.sandbox.workdir == "/srv/base"
    assert task.config.sandbox.env == {"TOKEN": "${TOKEN:-none}", "DEBUG": "true", "COUNT": "3"}


def test_build_context_and_dockerfile_of_another_name_are_followed(make_old, room):
    compose = "services: {client: {build: {context: ./image, dockerfile: Build.file}, tty: true}}\n"
    files = {
        "docker-compose.yaml": compose,
        "Dockerfile": None,
        "image/Build.file": "FROM a\n",
        "image/x": "1",
    }

    folder = found_in(make_old(files), room).folder

    assert (folder / "environment/Dockerfile").read_text() == "FROM a\n"
    assert (folder / "environment/x").read_text() == "1"
    assert not (folder / "environment/data").exists()


def test_side_services_stay_a_compose_file_with_the_agents_service_called_main(make_old, room):
    compose = COMPOSE + (
        "    ports: ['80:80']\n  db:\n    image: postgres:16\n    depends_on: [client]\n"
        "  proxy:\n    image: nginx\n    network_mode: service:client\n    depends_on: {client: {condition: service_started}}\n"
        "volumes: {data: {}}\n"
    )

    found = found_in(make_old({"docker-compose.yaml": compose}), room)

    assert found.task.has_compose
    assert yaml.safe_load((found.folder / "environment/docker-compose.yaml").read_text()) == {
        "services": {
            "main": {"ports": ["80:80"]},
            "db": {"image": "postgres:16", "depends_on": ["main"]},
            "proxy": {
                "image": "nginx",
                "network_mode": "service:main",
                "depends_on": {"main": {"condition": "service_started"}},
            },
        },
        "volumes": {"data": {}},
    }


def test_variables_that_only_compose_can_fill_in_stay_in_the_compose_file(make_old, room):
    compose = (
        "services: {client: {build: {context: ., args: {A: b}}, environment: ['URL=http://$HOST/', PASS]}}\n"
    )

    found = found_in(make_old({"docker-compose.yaml": compose}), room)

    main = yaml.safe_load((found.folder / "environment/docker-compose.yaml").read_text())["services"]["main"]
    assert main == {
        "build": {"context": ".", "args": {"A": "b"}},
        "environment": {"URL": "http://$HOST/", "PASS": None},
    }


def test_task_without_a_compose_file_is_its_dockerfile(make_old, room):
    assert found_in(make_old({"docker-compose.yaml": None}), room).task.has_dockerfile


def test_typed_solution_becomes_a_script(make_old, room):
    typed = "- command: cd /app\n  min_timeout_sec: 1\n- command: |-\n    echo 1 > a\n    echo 2\n  append_enter: true\n"

    folder = found_in(make_old({"solution.sh": None, "solution.yaml": typed}), room).folder

    assert (folder / "solution/solve.sh").read_text() == "#!/bin/bash\ncd /app\necho 1 > a\necho 2\n"


@pytest.mark.parametrize("typed", ["- command: ':wq'\n  append_enter: false\n", "- {keys: [a]}\n", "- 3\n"])
def test_solution_of_single_keys_is_left_out_with_a_warning(make_old, room, typed):
    found = found_in(make_old({"solution.sh": None, "solution.yaml": typed}), room)

    assert found.task.oracle_dir is None
    assert "solution.yaml: types keys into a terminal" in found.task.warnings[0]


@pytest.mark.parametrize("typed", ["{", "", "x\n"])
def test_solution_that_is_no_list_leaves_the_task_without_one(make_old, room, typed):
    assert found_in(make_old({"solution.sh": None, "solution.yaml": typed}), room).task.oracle_dir is None


def test_newer_task_file_beside_it_decides(make_old, room):
    task = found_in(
        make_old({"task.toml": "[environment]\nimage = 'a'\n", "instruction.md": "new"}), room
    ).task

    assert (task.form, task.instruction) == ("task.toml", "new")


def test_links_inside_become_copies_and_links_outside_are_refused(make_old, room, tmp_path):
    folder = make_old()
    (folder / "tests/poem.txt").symlink_to("../data/poem.txt")
    assert (found_in(folder, room).folder / "tests/poem.txt").read_text() == "one\n"

    (folder / "tests/all").symlink_to("../data")
    assert (found_in(folder, room).folder / "tests/all/poem.txt").read_text() == "one\n"

    (folder / "tests/all").unlink()
    (folder / "data/answers").symlink_to("../tests")
    (folder / "data/answer.py").symlink_to("../tests/test_outputs.py")
    assert files_of(found_in(folder, room).folder / "environment/data") == {"poem.txt"}

    (folder / "tests/passwd").symlink_to("/etc/passwd")
    assert "tests/passwd: the link leaves the task folder" in problems_of(folder, room)[0]


@pytest.mark.parametrize(
    "links",
    [
        {"tests/loop": "../tests"},
        {"tests/gone": "nothing"},
        {"tests/a/to-b": "../b", "tests/b/to-a": "../a"},
        {f"tests/{n}/{side}": f"../{n + 1}" for n in range(40) for side in "xy"},
    ],
)
def test_links_that_never_end_or_multiply_are_refused(make_old, room, links):
    folder = make_old()
    for path, target in links.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).symlink_to(target)
    (folder / "tests/40").mkdir()

    assert all(
        "the link points to nothing, to a folder it is in" in text for text in problems_of(folder, room)
    )


def test_equal_folders_are_converted_to_one_place(make_old, room):
    folder = make_old()

    first, second = found_in(folder, room), found_in(folder, room)
    (folder / "data/poem.txt").write_text("two\n")

    assert first.folder == second.folder
    assert found_in(folder, room).folder != first.folder


def test_room_that_is_no_folder_is_named(make_old, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot be written"):
        discover(make_old(), room=tmp_path / "file")


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("true", "1"),
        ("false", "0"),
        ("exit 5", "0"),
        ("exit 127", None),
        ("no-such-program", None),
        ("kill -9 $$", None),
        ("echo '=== short test summary info ==='; echo 'FAILED t.py::a - no'; true", "0"),
        ("echo 'FAILED in the program under test'; echo '== short test summary info =='; echo 'PASSED a'", "1"),
        ("test \"$PWD\" = \"$BENCHFLOW_AGENT_CWD\" && test -f \"$TEST_DIR/run-tests.sh\"", "1"),
        ("sleep 300 & true", "1"),
    ],
)  # fmt: skip
def test_how_the_old_tests_end_is_the_reward(make_old, room, tmp_path, script, reward):
    """The script is run by a shell as it is placed, with folders of this test in place of the sandbox's."""
    folder = found_in(make_old({"run-tests.sh": script}), room).folder
    tests, logs, work = folder / "tests", tmp_path / "logs", tmp_path / "work"
    logs.mkdir(), work.mkdir()
    text = (
        (tests / "test.sh")
        .read_text()
        .replace("/logs/verifier", str(logs))
        .replace("TEST_DIR=/tests", f"TEST_DIR={tests}")
    )
    wrapper = tmp_path / "test.sh"
    wrapper.write_text(text)

    process = subprocess.Popen(
        ["sh", str(wrapper)],
        env={"PATH": os.environ["PATH"], "BENCHFLOW_AGENT_CWD": str(work)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.wait(timeout=60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

    written = logs / "reward.txt"
    assert (written.read_text().strip() if written.exists() else None) == reward


def test_pipe_in_place_of_the_task_file_is_a_problem(make_old, room):
    folder = make_old({"task.yaml": None})
    os.mkfifo(folder / "task.yaml")

    assert "task.yaml: a device, socket or pipe cannot be copied" in problems_of(folder, room)
