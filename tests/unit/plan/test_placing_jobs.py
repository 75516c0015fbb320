"""Jobs go where a live worker can run them; an embedded fleet refuses what its machine cannot."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchflow_client.errors import WorkerError
from benchflow_client.ledger.base import WorkerRecord
from benchflow_client.plan.placing import best_sandbox, check_gpus, check_sandbox, docker_listens
from benchflow_client.schema.job import JobSpec
from tests.worlds import make_world


def spec(sandbox: str) -> JobSpec:
    return JobSpec(tasks="t", agent="oracle", sandbox=sandbox)


def worker(*kinds: str) -> WorkerRecord:
    return WorkerRecord("box/1", kinds, kinds, 4, 0, "healthy", 1.0)


@pytest.mark.parametrize(
    ("asked", "workers", "kind"),
    [
        ("auto", [worker("local"), worker("docker")], "docker"),
        ("auto", [worker("local", "null")], "local"),
        ("auto", [], "docker"),
        ("local", [worker("docker")], "local"),
    ],
)
def test_auto_takes_the_best_kind_that_lives(asked: str, workers: list[WorkerRecord], kind: str) -> None:
    assert best_sandbox(spec(asked), workers) == kind


def test_kind_that_an_embedded_fleet_cannot_run_is_refused_with_what_works() -> None:
    with pytest.raises(WorkerError, match="cannot run 'docker' sandboxes; nothing was submitted") as caught:
        check_sandbox("docker", [worker("local", "null")])

    assert "What works here: local, null" in caught.value.hint
    check_sandbox("auto", [worker("local")])
    check_sandbox("local", [worker("local")])


def test_job_that_asks_for_gpus_is_refused_by_an_embedded_fleet_that_has_none(tmp_path: Path) -> None:
    plain = make_world(tmp_path).plan.model_copy(update={"sandbox": "docker"})
    plan = plain.model_copy(update={"needs_gpus": True})

    with pytest.raises(
        WorkerError, match=r"has none to give \(queue docker\.gpu\); nothing was submitted"
    ) as caught:
        check_gpus(plan, [worker("docker", "null")])

    assert "BENCHFLOW_GPUS=0,1" in caught.value.hint
    check_gpus(plan, [worker("docker", "docker.gpu")])
    check_gpus(plain, [worker("docker")])


def test_docker_is_there_where_somebody_answers_at_its_address(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as tcp:
        server.bind(path)
        assert not docker_listens(f"unix://{path}")  # bound, and nobody listens
        server.listen()
        port = tcp.getsockname()[1]

        assert docker_listens(f"unix://{path}")
        assert docker_listens(f"tcp://127.0.0.1:{port}")

    assert not docker_listens(f"tcp://127.0.0.1:{port}")
    for nowhere in ("no.sock", "file", "x" * 200):
        assert not docker_listens(f"unix://{tmp_path}/{nowhere}")
    for nothing in ("ssh://box", "tcp://", "tcp://127.0.0.1:port"):
        assert not docker_listens(nothing)
