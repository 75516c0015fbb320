"""The name of a forgotten job is free: what runs under it later has nothing of the first."""

from __future__ import annotations

import shutil

from benchflow_client import JobSpec
from tests.waiting import until
from tests.worker_fleets import QUEUE, WorkerFleet
from tests.worlds import write_task


def test_job_under_a_forgotten_jobs_name_runs_its_own_tasks_on_the_same_worker(fleet: WorkerFleet) -> None:
    for name in ("first", "second"):
        write_task(fleet.folder / name / f"{name}-task")

    def spec(folder: str, tries: int) -> JobSpec:
        return JobSpec(
            tasks=str(fleet.folder / folder), agent=("oracle",), sandbox=QUEUE, job_name="reused", tries=tries
        )  # type: ignore[arg-type]

    worker = fleet.start(slots=2, exec_s=0.3)
    with fleet.client() as client:
        first = client.submit(spec("first", 50))
        until(lambda: fleet.running_on(first, worker) > 0)
        fleet.ledger.forget_job("reused")
        shutil.rmtree(fleet.folder / "store" / "reused")

        again = client.submit(spec("second", 4))
        summary = fleet.closed(again)

        ran = {trial.result.trial for trial in again.trials() if trial.result is not None}
    assert (summary.planned, summary.unscored) == (4, 4)
    assert ran == {f"reused.second-task.oracle.{number}" for number in (1, 2, 3, 4)}
    assert worker.poll() is None
