"""Which names and addresses a policy permits."""

from __future__ import annotations

import ipaddress

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.network import (
    NetworkPolicy,
    PhaseNetworks,
    as_address,
    canonical,
    switch_network,
)

LISTED = NetworkPolicy("allowlist", allowed=("a.org", "*.b.org", "10.1.0.0/16", "2001:db8::1"))
BLOCKED = NetworkPolicy("denylist", blocked=("a.org",))


@pytest.mark.parametrize("name", ["a.org", "A.ORG.", "x.b.org", "y.x.b.org"])
def test_listed_name_is_permitted(name: str) -> None:
    assert LISTED.permits_name(name)


@pytest.mark.parametrize("name", ["x.a.org", "aa.org", "a.org.evil.net", "b.org", "xb.org", "", ".", "10.1.2.3", "[2001:db8::1]"])  # fmt: skip
def test_name_that_is_not_listed_is_not_permitted(name: str) -> None:
    assert not LISTED.permits_name(name)


@pytest.mark.parametrize("name", ["a.org", "x.A.org", "a.org."])
def test_blocked_name_and_those_below_it_are_not_permitted(name: str) -> None:
    assert not BLOCKED.permits_name(name)


@pytest.mark.parametrize("name", ["b.org", "aa.org", "a.org.b.net"])
def test_name_that_is_not_blocked_is_permitted(name: str) -> None:
    assert BLOCKED.permits_name(name)


def test_address_goes_round_no_denylist() -> None:
    assert not BLOCKED.permits_name("93.184.216.34")
    assert not BLOCKED.permits_address(ipaddress.ip_address("93.184.216.34"))


@pytest.mark.parametrize(
    ("address", "is_permitted"), [("10.1.2.3", True), ("10.2.0.1", False), ("2001:db8::1", True), ("::1", False)]
)  # fmt: skip
def test_listed_address_is_permitted(address: str, is_permitted: bool) -> None:
    assert LISTED.permits_address(ipaddress.ip_address(address)) is is_permitted


def test_without_network_nothing_is_permitted() -> None:
    policy = NetworkPolicy("no-network", allowed=("a.org", "0.0.0.0/0"))

    assert not policy.permits_name("a.org")
    assert not policy.permits_address(ipaddress.ip_address("1.2.3.4"))


@pytest.mark.parametrize(
    ("address", "is_permitted"), [("1.2.3.4", True), ("127.0.0.1", False), ("169.254.169.254", False)]
)  # fmt: skip
def test_public_leaves_out_the_workers_own_loopback(address: str, is_permitted: bool) -> None:
    assert NetworkPolicy().permits_address(ipaddress.ip_address(address)) is is_permitted
    assert NetworkPolicy().permits_name("any.name")


def test_names_are_compared_in_one_form() -> None:
    assert canonical(" Bücher.Example. ") == "xn--bcher-kva.example"
    assert canonical("ü" * 70) == ""
    assert as_address("[::1]") == ipaddress.ip_address("::1")


def test_sandbox_starts_without_network_only_where_no_phase_has_one() -> None:
    nothing = NetworkPolicy("no-network")

    assert PhaseNetworks(nothing, nothing, nothing).at_start == "no-network"
    assert PhaseNetworks(nothing, nothing, nothing).is_constant
    assert PhaseNetworks().is_constant
    assert PhaseNetworks(agent=nothing).at_start == "public"
    assert not PhaseNetworks(agent=nothing).is_constant
    assert not PhaseNetworks(LISTED, LISTED, LISTED).is_constant


async def test_sandbox_that_cannot_change_its_network_is_an_error() -> None:
    with pytest.raises(SandboxError, match="Network 'no-network' could not be enforced") as caught:
        await switch_network(object(), NetworkPolicy("no-network"))

    assert caught.value.code == "sandbox.network_not_enforced"
