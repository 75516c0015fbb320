"""Where a connection of a permitted name goes, and which rule refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_egress import EgressOptions, Exit, Exits, resolve_as_host

LISTED = NetworkPolicy("allowlist", allowed=("*.example", "93.184.0.0/16", "10.9.0.0/16"))
BLOCKED = NetworkPolicy("denylist", blocked=("mirror.corp",))

ADDRESSES = {
    "public.example": ["93.184.216.34", "2606:2800:220::1"],
    "loopback.example": ["127.0.0.1", "::1"],
    "private.example": ["10.8.0.7", "192.168.1.1", "fd00::1"],
    "metadata.example": ["169.254.169.254", "fe80::1", "fd00:ec2::254"],
    "embedded.example": ["::ffff:10.8.0.7", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "100.64.0.1", "0.0.0.0"],
    "mixed.example": ["10.8.0.7", "93.184.216.34"],
    "listed.example": ["10.9.1.1"],
    "mirror.corp": ["10.8.0.9"],
    "odd.example": ["not an address"],
}


async def resolve(name: str) -> Sequence[str]:
    await asyncio.sleep(0)
    if name not in ADDRESSES:
        raise OSError("no such name")
    return ADDRESSES[name]


def exits(policy: NetworkPolicy, *private: str) -> Exits:
    return Exits(policy, EgressOptions(private=private, resolve=resolve))


async def test_permitted_name_leads_to_its_public_addresses() -> None:
    found = exits(LISTED)

    assert await found.find("Public.Example.", 443) == Exit(("93.184.216.34", "2606:2800:220::1"))
    assert await found.find("mixed.example", 80) == Exit(("93.184.216.34",))
    assert await found.find("listed.example", 80) == Exit(("10.9.1.1",))


@pytest.mark.parametrize("name", ["loopback", "private", "metadata", "embedded", "odd"])
@pytest.mark.parametrize(
    "policy", [LISTED, BLOCKED, NetworkPolicy()], ids=["allowlist", "denylist", "public"]
)
async def test_permitted_name_with_an_address_of_the_workers_own_network_is_refused(
    name: str, policy: NetworkPolicy
) -> None:
    found = await exits(policy).find(f"{name}.example", 443)

    if policy.mode == "public" and name in {"private", "metadata", "embedded"}:
        assert not {"127.0.0.1", "169.254.169.254", "0.0.0.0"} & set(found.addresses)
    else:
        assert found == Exit(rule="private-address")


@pytest.mark.parametrize(
    ("host", "port", "policy", "rule"),
    [
        ("other.org", 443, LISTED, "not-allowlisted"),
        ("public.example", 8080, LISTED, "not-allowlisted"),
        ("x.mirror.corp", 443, BLOCKED, "denied-host"),
        ("gone.example", 443, LISTED, "unreachable"),
        ("8.8.8.8", 80, LISTED, "ip-literal"),
        ("93.184.1.1", 22, LISTED, "ip-literal"),
        ("[fe80::1]", 80, BLOCKED, "ip-literal"),
        ("", 443, LISTED, "no-name"),
    ],
)  # fmt: skip
async def test_what_is_refused_has_a_rule(host: str, port: int, policy: NetworkPolicy, rule: str) -> None:
    assert await exits(policy).find(host, port) == Exit(rule=rule)


async def test_block_the_operator_opens_is_reached_by_permitted_names_only() -> None:
    found = exits(LISTED, "10.8.0.0/16", "fd00::/8")

    assert await found.find("private.example", 443) == Exit(("10.8.0.7", "fd00::1"))
    assert (await found.find("embedded.example", 443)).addresses == ("::ffff:a08:7",)
    assert await found.find("mirror.corp", 443) == Exit(rule="not-allowlisted")
    assert not found.is_known("mirror.corp")


async def test_server_the_operator_opens_is_reached_on_its_port_whatever_a_list_names() -> None:
    found = exits(LISTED, "Mirror.Corp:8081")

    assert found.is_known("mirror.corp")
    assert await found.find("mirror.corp", 8081) == Exit(("10.8.0.9",))
    assert await found.find("mirror.corp", 443) == Exit(rule="not-allowlisted")
    assert await found.find("public.example", 8081) == Exit(rule="not-allowlisted")


async def test_denylist_blocks_a_server_that_the_operator_opens() -> None:
    found = exits(BLOCKED, "mirror.corp:8081")

    assert not found.is_known("mirror.corp")
    assert await found.find("mirror.corp", 8081) == Exit(rule="denied-host")


def test_ports_of_opened_servers_are_listened_on() -> None:
    options = EgressOptions(
        private=("10.0.0.0/8", "a.corp:8081", "b.corp:443", "c.corp:53", "10.0.0.1:80", "x")
    )

    assert options.ports == (80, 443, 8081)
    assert options.servers == {("a.corp", 8081), ("b.corp", 443)}


async def test_names_are_resolved_as_on_the_workers_host() -> None:
    assert "127.0.0.1" in await resolve_as_host("localhost")
