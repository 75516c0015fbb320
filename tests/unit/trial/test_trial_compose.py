"""A task's compose file as a rollout asks for it: variables filled in, what it says of `main` obeyed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.tasks.read import read_task
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.trial.compose import with_services
from benchflow_workers.trial.records import TaskFolder
from tests.worlds import write_task

Asked = Callable[..., SandboxSpec]
TOML = '[environment]\nenv = {PORT = "8000", MODE = "fast", LIMIT = "${LIMIT}"}\n'
RESOLVED = {"PORT": "8000", "MODE": "fast", "LIMIT": "64"}


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """Return what is asked for a task whose compose file has these services."""

    def make(services: str | None, *, resolved: Mapping[str, str] = RESOLVED, **files: str) -> SandboxSpec:
        content = {f"environment/{name}": text for name, text in files.items()}
        if services is not None:
            content["environment/docker-compose.yaml"] = f"services:\n{services}"
        folder = write_task(tmp_path / "task", toml=TOML, files=content)
        task = read_task(folder)
        spec = SandboxSpec(
            name="one",
            labels={},
            image=None,
            build_context=folder / "environment",
            build_digest="d",
            env=resolved,
        )
        return with_services(spec, TaskFolder(task, folder, "digest"))

    return make


def test_task_without_services_asks_for_nothing_more(asked: Asked) -> None:
    spec = asked(None)

    assert spec.services is None
    assert spec.env == RESOLVED


def test_variables_of_the_task_and_of_files_are_filled_in_the_nearest_wins(asked: Asked) -> None:
    services = (
        "  main:\n    environment: {OWN: '${PORT}', MODE: slow}\n"
        "  db:\n    image: debian:bookworm-slim\n    env_file: db.env\n"
        "    environment: [A=own, 'C=${UNSET:-default}', PORT]\n"
    )

    spec = asked(services, **{"db.env": "A=file\nB=file\n"})

    assert spec.services is not None
    assert spec.services.env["db"] == {"A": "own", "B": "file", "C": "default", "PORT": "8000"}
    assert spec.env == RESOLVED | {"MODE": "slow", "OWN": "8000"}
    assert (spec.services.folder.name, spec.services.digest) == ("environment", "digest")


def test_what_the_file_says_of_main_wins_over_the_task_file(asked: Asked) -> None:
    main = "  main:\n    cpus: 2.5\n    mem_limit: 3g\n    pids_limit: 77\n    working_dir: /srv/work\n"

    spec = asked(main)

    assert (spec.cpus, spec.memory_mb, spec.pids, spec.workdir) == (2.5, 3072, 77, "/srv/work")
    assert asked("  main: {}\n").memory_mb == 2048


def test_variable_without_a_value_is_named_with_the_way_to_give_it_one(asked: Asked) -> None:
    with pytest.raises(AgentError) as caught:
        asked("  main:\n    environment: {A: '${NEEDED:?say which}'}\n")

    assert caught.value.code == "agent.env_missing"
    assert "needs the variable NEEDED" in caught.value.message
    assert '(NEEDED = "${NEEDED}" takes the worker\'s)' in caught.value.hint


def test_value_comes_from_the_worker(asked: Asked) -> None:
    assert asked("  main:\n    pids_limit: ${LIMIT}\n").pids == 64


def test_value_of_a_variable_that_is_none_of_its_kind_is_told_with_its_place(asked: Asked) -> None:
    with pytest.raises(SandboxError) as caught:
        asked("  main:\n    pids_limit: ${LIMIT}\n", resolved={**RESOLVED, "LIMIT": "many"})

    assert caught.value.code == "task.unsupported"
    assert "pids_limit" in caught.value.message
