"""Jobs with GPUs on real workers: who serves them, what containers are asked for, and that no GPU is shared.

The workers' engine is the real one; a proxy before it takes the requests for GPUs out, which no
engine without a driver grants.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client import JobSpec
from benchflow_client.errors import WorkerError
from tests.engine_proxy import engine_proxy
from tests.fleets import embedded_fleet
from tests.waiting import until
from tests.worker_fleets import WorkerFleet
from tests.worlds import write_task

IMAGE = 'docker_image = "debian:bookworm-slim"\n'
PATIENT = {"BENCHFLOW_LEASE_TTL_S": "30"}


def gpu_job(folder: Path, **spec: Any) -> JobSpec:
    """Return a job of two tasks, of which one asks for a GPU."""
    write_task(folder / "train", toml=f'[environment]\n{IMAGE}gpus = 1\ngpu_types = ["H100"]\n')
    write_task(folder / "plain", toml=f"[environment]\n{IMAGE}")
    return JobSpec(tasks=str(folder), agent=["oracle"], sandbox="docker", **spec)


@pytest.mark.docker
def test_job_with_gpus_waits_for_a_worker_that_has_them_and_no_two_trials_share_one(
    fleet: WorkerFleet, tmp_path: Path
) -> None:
    plain = fleet.start(queues="docker,control", **PATIENT)
    with engine_proxy(tmp_path / "engine.sock") as engine, fleet.client() as client:
        handle = client.submit(gpu_job(tmp_path / "gpu-tasks", tries=2, concurrency=4))
        until(lambda: [row.waiting_for for row in client.job_rows()] == ["a worker for queue docker.gpu"])

        able = fleet.start(
            queues="docker", slots=4, BENCHFLOW_GPUS="GPU-5f", BENCHFLOW_GPU_TYPES="h100",
            BENCHFLOW_DOCKER_HOST=engine.address, **PATIENT,
        )  # fmt: skip
        queues = {worker.name: worker.queues for worker in fleet.ledger.workers()}
        summary = fleet.closed(handle)
        ran_on = {trial.result.worker for trial in handle.trials() if trial.result is not None}

    assert queues[fleet.name_of(able)] == ("docker", "docker.gpu")
    assert queues[fleet.name_of(plain)] == ("docker", "control")
    assert [group.passed for group in summary.groups] == [4], fleet.logs()
    assert ran_on == {fleet.name_of(able)}
    asked = [body["HostConfig"].get("DeviceRequests") for body in engine.created]
    request = [{"Driver": "nvidia", "DeviceIDs": ["GPU-5f"], "Capabilities": [["gpu"]]}]
    assert sorted(asked, key=str) == [None, None, request, request]
    assert engine.shared == []
    hidden = [body for body in engine.created if "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]]
    assert [body["HostConfig"].get("DeviceRequests") for body in hidden] == [None] * 2


@pytest.mark.docker
def test_engine_without_a_driver_for_gpus_is_told_by_its_own_words_and_what_to_install(
    fleet: WorkerFleet, tmp_path: Path
) -> None:
    fleet.start(queues="docker,control", BENCHFLOW_GPUS="7", BENCHFLOW_GPU_TYPES="H100", **PATIENT)

    with fleet.client() as client:
        handle = client.submit(gpu_job(tmp_path / "gpu-tasks", include=("train",), max_attempts=1))
        fleet.closed(handle)
        (trial,) = handle.trials()

    assert trial.result is not None
    failure = trial.result.failures[-1]
    assert (failure.code, trial.receipt.reward) == ("sandbox.start_failed", None)
    assert "nvidia" in failure.message
    assert "GPU 7" in failure.hint
    assert "NVIDIA Container Toolkit" in failure.hint


@pytest.mark.docker
@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"BENCHFLOW_GPU_TYPES": "T4"}, "task.unsupported", "H100 asked for, and this worker has T4"),
        ({"BENCHFLOW_GPU_TYPES": "H100"}, "sandbox.too_large", "needs 2 GPUs; this worker has 1"),
    ],
)
def test_gpus_a_worker_has_not_are_no_verdict(
    fleet: WorkerFleet, tmp_path: Path, variables: dict[str, str], code: str, words: str
) -> None:
    task = f'[environment]\n{IMAGE}gpus = 2\ngpu_types = ["H100"]\n'
    write_task(tmp_path / "gpu-tasks/train", toml=task)
    fleet.start(queues="docker.gpu,control", BENCHFLOW_GPUS="0", **variables, **PATIENT)

    with fleet.client() as client:
        handle = client.submit(JobSpec(tasks=str(tmp_path / "gpu-tasks"), agent=["oracle"], sandbox="docker"))
        fleet.closed(handle)
        (trial,) = handle.trials()

    assert trial.result is not None
    assert (trial.receipt.reward, trial.result.failures[-1].code) == (None, code)
    assert words in trial.result.failures[-1].message


@pytest.mark.docker
def test_embedded_fleet_without_gpus_refuses_such_a_job_and_says_how_to_tell_it_of_some(
    tmp_path: Path,
) -> None:
    with (
        embedded_fleet(tmp_path) as client,
        pytest.raises(
            WorkerError, match=r"this machine's worker has none to give \(queue docker\.gpu\)"
        ) as caught,
    ):
        client.submit(gpu_job(tmp_path / "gpu-tasks"))

    assert "BENCHFLOW_GPUS=0,1" in caught.value.hint


def test_worker_does_not_start_with_a_gpu_of_another_worker_of_its_host(fleet: WorkerFleet) -> None:
    first = fleet.start(BENCHFLOW_GPUS="0,1")

    code, said = fleet.refused(BENCHFLOW_GPUS="1,2")

    assert (code, "GPU 1 is given out by another worker of this host" in said) == (3, True), said
    first.kill()
    first.wait(60)
    fleet.start(BENCHFLOW_GPUS="1,2")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("queues", "gpus", "words"),
    [
        ("docker.gpu", "", "cannot serve queue 'docker.gpu'"),
        ("local.gpu", "0", "There is no queue 'local.gpu'"),
    ],
)
def test_worker_refuses_a_queue_it_has_no_gpus_for(
    fleet: WorkerFleet, queues: str, gpus: str, words: str
) -> None:
    code, said = fleet.refused(queues=queues, BENCHFLOW_GPUS=gpus)

    assert (code, words in said) == (3, True), said
