"""What an operator opens of private networks, and how a worker's sandboxes come to know it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.errors import WorkerError
from benchflow_workers.sandbox.registry import egress_of
from benchflow_workers.settings import WorkerSettings, load


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
