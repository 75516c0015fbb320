"""What the environment says to a worker; a wrong value is named, nothing is guessed."""

from __future__ import annotations

import contextlib
import socket
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchflow_client.errors import WorkerError
from benchflow_workers.agents.registry import Metering
from benchflow_workers.context import fleet_addresses, worker_name
from benchflow_workers.settings import WorkerSettings, load, process_environ


def test_nothing_set_means_the_defaults() -> None:
    assert load({}) == WorkerSettings()
    assert load({"BENCHFLOW_LEASE_TTL_S": ""}).lease_ttl_s == 60.0


def test_every_variable_is_read_by_the_name_of_its_field() -> None:
    settings = load({
        "BENCHFLOW_LEASE_TTL_S": "2",
        "BENCHFLOW_RECONCILE_S": "0.5",
        "BENCHFLOW_DOCKER_HOST": "unix:///run/docker.sock",
        "BENCHFLOW_DOCKER_PULL": "never",
        "BENCHFLOW_EXTRA_CA": "/etc/ca.pem",
        "BENCHFLOW_LOCAL_MODE": "rootless",
        "BENCHFLOW_NULL_EXEC_S": "1.5",
        "UNRELATED": "x",
    })

    assert (settings.lease_ttl_s, settings.reconcile_s, settings.null_exec_s) == (2.0, 0.5, 1.5)
    assert (settings.docker_host, settings.docker_pull) == ("unix:///run/docker.sock", "never")
    assert (settings.extra_ca, settings.local_mode) == (Path("/etc/ca.pem"), "rootless")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BENCHFLOW_LEASE_TTL_S", "soon"),
        ("BENCHFLOW_LEASE_TTL_S", "0.1"),
        ("BENCHFLOW_RECONCILE_S", "0"),
        ("BENCHFLOW_DOCKER_PULL", "sometimes"),
        ("BENCHFLOW_LOCAL_MODE", "chroot"),
        ("BENCHFLOW_NULL_EXEC_S", "-1"),
        ("BENCHFLOW_GPUS", "0,zero"),
        ("BENCHFLOW_GPUS", "1, 1"),
        ("BENCHFLOW_GATEWAY_LISTEN", "8500"),
        ("BENCHFLOW_GATEWAY_LISTEN", "0.0.0.0:0"),
        ("BENCHFLOW_GATEWAY_LISTEN", "0.0.0.0:65536"),
        ("BENCHFLOW_GATEWAY_LISTEN", "http://0.0.0.0:8500"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "models.example.org"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "ftp://models.example.org"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://models.example.org:99999"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://ana:secret@models.example.org"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://models.example.org/?token=1"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://models.example.org/a b"),
        ("BENCHFLOW_GATEWAY_PUBLIC_URL", "https://models.example.org"),
    ],
)
def test_value_that_is_not_allowed_is_named(name: str, value: str) -> None:
    with pytest.raises(WorkerError) as caught:
        load({name: value})

    assert name in caught.value.message
    assert name in caught.value.hint


def test_unpacked_images_are_pairs_of_name_and_folder() -> None:
    settings = load({"BENCHFLOW_LOCAL_ROOTFS": "debian:bookworm-slim=/srv/debian,alpine=/srv/a=b,"})

    assert settings.rootfs() == {"debian:bookworm-slim": Path("/srv/debian"), "alpine": Path("/srv/a=b")}
    assert WorkerSettings().rootfs() == {}


def test_gpus_are_numbers_or_uuids_and_their_type_has_one_or_more_names() -> None:
    settings = load({
        "BENCHFLOW_GPUS": "0, 12,GPU-8f6d-01,MIG-ab/3/0",
        "BENCHFLOW_GPU_TYPES": "H100, H100-SXM",
    })

    assert settings.gpu_ids() == ("0", "12", "GPU-8f6d-01", "MIG-ab/3/0")
    assert settings.gpu_type_names() == ("H100", "H100-SXM")
    assert (WorkerSettings().gpu_ids(), WorkerSettings().gpu_type_names()) == ((), ())


def test_worker_without_a_broker_says_which_variable_to_set() -> None:
    with pytest.raises(WorkerError, match="BENCHFLOW_BROKER_URL"):
        fleet_addresses({"HOME": "/root"})

    assert (
        fleet_addresses({"HOME": "/root", "BENCHFLOW_BROKER_URL": "redis://h:1/0"}).broker == "redis://h:1/0"
    )


def test_name_of_a_worker_is_its_host_and_process() -> None:
    host, _, pid = worker_name().rpartition("/")

    assert host
    assert pid.isdigit()


def test_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_TEST_ONLY", "x")

    found = process_environ()
    found["BENCHFLOW_TEST_ONLY"] = "changed"

    assert process_environ()["BENCHFLOW_TEST_ONLY"] == "x"


@pytest.mark.parametrize("place", ["0.0.0.0:8500", "[::]:8500", "gateway-1.internal:80"])
def test_gateway_has_a_place_and_a_url_for_other_hosts(place: str) -> None:
    url = "https://models.example.org:8443/bench/"

    settings = load({"BENCHFLOW_GATEWAY_LISTEN": place, "BENCHFLOW_GATEWAY_PUBLIC_URL": url})

    assert (settings.gateway_listen, settings.gateway_public_url) == (place, url.rstrip("/"))


def test_place_without_a_url_is_for_nobody() -> None:
    with pytest.raises(WorkerError, match=r"BENCHFLOW_GATEWAY_PUBLIC_URL is not valid.*together"):
        load({"BENCHFLOW_GATEWAY_LISTEN": "0.0.0.0:8500"})


def test_password_in_a_refused_url_is_not_repeated() -> None:
    with pytest.raises(WorkerError) as caught:
        load({"BENCHFLOW_GATEWAY_PUBLIC_URL": "https://ana:hunter22@models.example.org"})

    assert "hunter22" not in f"{caught.value.message} {caught.value.hint}"


def test_place_that_is_taken_keeps_a_worker_from_starting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        metering = Metering(listen=place, public_url="https://models.example.org")

        with pytest.raises(WorkerError, match=f"cannot listen on {place}") as caught:
            metering.start()

    assert "BENCHFLOW_GATEWAY_LISTEN" in caught.value.hint


def test_gateway_answers_at_its_place_from_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    metering = Metering(listen=f"127.0.0.1:{port}", public_url="https://models.example.org")

    metering.start()
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/v1/messages", body=b"{}")
        status = connection.getresponse().status
    metering.close()

    assert status == 401
