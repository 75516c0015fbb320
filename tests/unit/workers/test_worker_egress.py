"""What an operator opens of private networks, and how a worker's sandboxes come to know it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_client.errors import WorkerError
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_egress import EgressOptions
from benchflow_workers.sandbox.network_outlet import Outlet
from benchflow_workers.sandbox.registry import egress_of
from benchflow_workers.settings import WorkerSettings, load

ROOT = Path(__file__).parents[3]
WITHOUT_PACKAGE = """
import sys
sys.modules["cryptography"] = None
from benchflow_workers.host import host_findings
from benchflow_workers.sandbox.registry import egress_of
from benchflow_workers.settings import WorkerSettings
print(egress_of(WorkerSettings()).authority)
texts = [found["text"] for found in host_findings()]
works = [text for text in texts if "isolate" in text and "changes none" not in text]
print(all("benchflow-workers[urls]" in text for text in works))
"""


def test_nothing_private_is_open_unless_somebody_says_so() -> None:
    assert egress_of(WorkerSettings()).private == ()


def test_blocks_addresses_and_servers_are_listed() -> None:
    settings = load({
        "BENCHFLOW_EGRESS_PRIVATE": " 10.8.0.0/16, fd00::/8,192.168.1.4,mirror.corp:8081,,cache:443 ",
        "BENCHFLOW_EXTRA_CA": "/etc/ca.pem",
    })

    egress = egress_of(settings)

    assert egress.private == ("10.8.0.0/16", "fd00::/8", "192.168.1.4", "mirror.corp:8081", "cache:443")
    assert egress.servers == {("mirror.corp", 8081), ("cache", 443)}
    assert egress.extra_ca == Path("/etc/ca.pem")


@pytest.mark.parametrize(
    "item", ["mirror.corp", "10.8.0.0/40", "10.8.0.1:443", "http://a.corp", "a.corp:0", "a b:80"]
)
def test_entry_that_opens_nothing_is_named(item: str) -> None:
    with pytest.raises(WorkerError, match="BENCHFLOW_EGRESS_PRIVATE") as caught:
        load({"BENCHFLOW_EGRESS_PRIVATE": f"10.0.0.0/8,{item}"})

    assert repr(item) in caught.value.message


def test_authority_of_a_sandbox_is_made_where_the_package_for_it_is_there() -> None:
    make = egress_of(WorkerSettings()).authority

    assert make is not None
    assert make(frozenset({"a.org"})).certificate.startswith("-----BEGIN CERTIFICATE-----")


def test_worker_without_the_package_opens_no_tls_and_the_doctor_says_so(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(ROOT), "BENCHFLOW_STATE_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.stdout.splitlines() == ["None", "True"], ran.stderr


def test_list_with_urls_is_not_begun_where_tls_cannot_be_opened() -> None:
    policy = NetworkPolicy("denylist", blocked_urls=("https://a.org/x",))

    with pytest.raises(OSError, match=r"pip install 'benchflow-workers\[urls\]'"):
        Outlet(EgressOptions()).plug_in_blocking(policy, os.getpid(), lambda: None)
