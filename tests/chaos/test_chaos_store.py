"""A store that refuses one document, is full for a while, or answers late."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from benchflow_client.store.layout import result_key
from tests.chaos_rig import CLOSES_S, Battle, ChaosFleet, battle_on, chaos_fleet
from tests.forked_workers import WorkerSource
from tests.waiting import until
from tests.wire import wire_to

DISK_BYTES = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes as the store."""
    folder = tmp_path / "store"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_attempt_whose_result_could_not_be_written_after_its_artifacts_is_made_again(
    fleet: ChaosFleet, battle: Battle
) -> None:
    scene = battle.open(sandbox="local", trials=2, trial_s=0.1)
    job, folder = scene.plan.job, scene.plan.trial(0).folder(1)
    in_the_way = fleet.folder / "store" / result_key(job, folder) / "in-the-way"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()

    fleet.wait_for(fleet.launch())
    battle.wait()

    battle.assert_sound()
    attempts = {receipt.trial_index: receipt.attempts for receipt in fleet.receipts(scene.handle)}
    assert attempts == {0: 2, 1: 1}
    assert (fleet.folder / "store" / job / folder / "verifier" / "test-stdout.txt").is_file()


@pytest.mark.root
def test_job_survives_a_disk_that_is_full_for_a_while(disk: Path, fleet: ChaosFleet, battle: Battle) -> None:
    fleet.wait_for(fleet.launch(BENCHFLOW_NULL_EXEC_S="0.1"))
    scene = battle.open(sandbox="null", trials=12, concurrency=2)
    until(lambda: scene.handle.progress().finished >= 3, seconds=CLOSES_S)

    ballast = disk / "ballast"
    fill(ballast)
    until(lambda: "no space left" in fleet.logs().lower(), seconds=CLOSES_S)
    ballast.unlink()

    battle.wait()
    battle.assert_sound()
    assert "Traceback" not in fleet.logs()


def fill(ballast: Path) -> None:
    """Write until no byte more fits."""
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 512):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_job_on_a_slow_remote_store_is_whole(tmp_path: Path, redis_url: str, source: WorkerSource) -> None:
    """Each answer takes 60 ms longer: trials are slow, and none is taken for lost."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        make_bucket(host, port)
        with wire_to(f"http://{host}:{port}", delay_s=0.03) as wire:
            remote = {
                "BENCHFLOW_STORE_URL": "s3://results/fleet",
                "BENCHFLOW_S3_ENDPOINT": wire.url,
                "BENCHFLOW_S3_ACCESS_KEY_ID": "testing",
                "BENCHFLOW_S3_SECRET_ACCESS_KEY": "testing",
            }
            with chaos_fleet(tmp_path, redis_url, source, **remote) as fleet, battle_on(fleet) as battle:
                fleet.redis.flushdb()
                fleet.wait_for(fleet.launch(slots=4))
                scene = battle.open(sandbox="null", trials=4, concurrency=4)
                battle.wait()
                battle.assert_sound()
                assert {receipt.attempts for receipt in fleet.receipts(scene.handle)} == {1}
    finally:
        server.stop()


def make_bucket(host: str, port: int) -> None:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("PUT", "/results")
    assert connection.getresponse().status == 200
    connection.close()
