"""Conformance checks of networks: what is tried from inside, as root, and must not get out.

They need `bash` in the sandbox, whose `/dev/tcp` opens connections without another program.
"""

from __future__ import annotations

import ipaddress
import select
import shlex
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Sandbox
from benchflow_workers.sandbox.conformance_bench import (
    Bench,
    Check,
    ConformanceError,
    check,
    expect_equal,
    expect_in,
    output,
    wait_until,
)
from benchflow_workers.sandbox.network import NOT_ENFORCED, NetworkPolicy, switch_network
from benchflow_workers.sandbox.network_log import take_refusals

_CONNECT = "timeout 5 bash -c ': >/dev/tcp/{host}/{port}' 2>/dev/null"
_ASK = (
    'timeout 50 bash -c \'exec 3<>"/dev/tcp/$0/80" && printf "GET $2 HTTP/1.1\\r\\nHost: $1\\r\\n\\r\\n" >&3 '
    "&& head -n 1 <&3' {host} {name} {path} 2>/dev/null; true"
)
_METADATA = "169.254.169.254"
_ELSEWHERE = ("1.1.1.1", "203.0.113.7")
_ANYTHING = "bf-not-listed.example"


async def check_no_network_reaches_nothing(bench: Bench) -> None:
    """Without network there is no route out."""
    async with bench.fresh(replace(bench.make_spec(), network="no-network")) as sandbox:
        routes = await output(sandbox, "cat /proc/net/route")

    expect_equal(len(routes.splitlines()), 1, "lines of the routing table, its header included")


async def check_no_network_reaches_no_service_of_the_host(bench: Bench) -> None:
    """Without network neither the host's addresses nor the metadata address take a connection."""
    async with bench.fresh(replace(bench.make_spec(), network="no-network")) as sandbox:
        await expect_unreached(sandbox)


async def check_no_network_leaves_the_loopback(bench: Bench) -> None:
    """A server inside is reached from inside; an agent's own programs need it."""
    async with bench.fresh(replace(bench.make_spec(), network="no-network")) as sandbox:
        said = await output(sandbox, "timeout 30 bash -c ': >/dev/tcp/127.0.0.1/1' 2>&1; true")

    expect_in("refused", said, "what a closed port of the loopback answers")


async def check_network_it_cannot_enforce_is_refused(bench: Bench) -> None:
    """A network mode outside the capabilities is refused, never silently widened."""
    modes = {"public", "no-network", "allowlist", "denylist"} - bench.provider.capabilities.networks
    for mode in sorted(modes):
        spec = replace(bench.make_spec(), network=mode)  # type: ignore[arg-type]
        try:
            sandbox = await bench.provider.open(spec)
        except SandboxError as error:
            expect_equal(error.code, "task.unsupported", f"network {mode!r}: failure code")
            continue
        await sandbox.close()
        raise ConformanceError(f"A sandbox with network {mode!r} was opened without a list of names.")


async def check_network_that_cannot_change_is_told(bench: Bench) -> None:
    """A sandbox that was not opened to change its network changes it from outside or says that it cannot."""
    async with bench.fresh(bench.make_spec()) as sandbox:
        try:
            await switch_network(sandbox, NetworkPolicy("no-network"))
        except SandboxError as error:
            expect_equal(error.code, NOT_ENFORCED, "failure code")
            return
        await expect_unreached(sandbox)


async def check_allowlist_reaches_listed_names_only(bench: Bench) -> None:
    """A listed name answers; another name, an address, another port and the host's services do not."""
    name = bench.web_name
    async with _filtered(bench, NetworkPolicy("allowlist", allowed=(name,))) as sandbox:
        expect_in(" 200 ", f"{await _answer(sandbox, name, name)} ", "answer of the listed name")
        expect_equal(await _answer(sandbox, _ANYTHING, _ANYTHING), "", "answer of a name that is not listed")
        refused = await _answer(sandbox, name, _ANYTHING)
        expect_in(" 403 ", f"{refused} ", "answer where another name stands in the request")
        refused = await _answer(sandbox, _ELSEWHERE[0], name)
        expect_in(" 403 ", f"{refused} ", "answer at an address that is not listed, in the listed name")
        await _expect_refused(sandbox, name, 8080)
        await expect_unreached(sandbox)


async def check_denylist_reaches_all_but_blocked_names(bench: Bench) -> None:
    """A blocked name, those below it and plain addresses are not reached; another name is."""
    name = bench.web_name
    blocked, below = f"blocked.{name}", f"x.blocked.{name}"
    async with _filtered(bench, NetworkPolicy("denylist", blocked=(blocked,))) as sandbox:
        expect_in(" 200 ", f"{await _answer(sandbox, name, name)} ", "answer of a name that is not blocked")
        expect_equal(await _answer(sandbox, blocked, blocked), "", "answer of the blocked name")
        expect_equal(await _answer(sandbox, below, below), "", "answer below the blocked name")
        refused = await _answer(sandbox, name, below)
        expect_in(" 403 ", f"{refused} ", "answer where a blocked name stands in the request")
        refused = await _answer(sandbox, _ELSEWHERE[0], name)
        expect_in(" 403 ", f"{refused} ", "answer at an address, in a name that is not blocked")
        await _expect_refused(sandbox, name, 8080)
        await expect_unreached(sandbox)


async def check_denylist_tells_pages_of_a_host_apart(bench: Bench) -> None:
    """A blocked URL blocks what begins with it, in any spelling, and whom to trust inside TLS is told."""
    name = bench.web_name
    policy = NetworkPolicy("denylist", blocked_urls=(f"https://{name}/answers",))
    async with _filtered(bench, policy) as sandbox:
        certificate = await switch_network(sandbox, policy)
        expect_in("BEGIN CERTIFICATE", certificate, "what is to be trusted")
        expect_equal(await switch_network(sandbox, policy), certificate, "what is told again")
        expect_in(" 200 ", f"{await _answer(sandbox, name, name)} ", "answer of another page")
        for path in ("/answers", "/answers/1?x=y", "/ANSWERS", "/x/../answers", "/%61nswers"):
            refused = await _answer(sandbox, name, name, path=path)
            expect_in(" 403 ", f"{refused} ", f"answer of the blocked page as {path}")
        hosts = [line["host"] for line in take_refusals(sandbox)]
        expect_equal(hosts, [name] * 5, "hosts in the log of refusals")


async def check_list_opens_no_private_address(bench: Bench) -> None:
    """A listed name that has an address of the host itself is not reached."""
    policy = NetworkPolicy("allowlist", allowed=("private.example",))
    async with _filtered(bench, policy) as sandbox:
        answer = await _answer(sandbox, "private.example", "private.example")
        expect_in(answer.split(" ")[1:2], ([], ["403"]), "answer of a listed name with a private address")


async def check_network_changes_while_it_runs(bench: Bench) -> None:
    """A server inside is reached in every phase, and each phase reaches what it may."""
    name = bench.web_name
    async with _filtered(bench, NetworkPolicy("allowlist", allowed=(name,))) as sandbox:
        await switch_network(sandbox, NetworkPolicy("no-network"))
        expect_equal(await _answer(sandbox, name, name), "", "answer after the network was cut")
        await expect_unreached(sandbox)
        await switch_network(sandbox, NetworkPolicy("public"))
        await wait_until(sandbox, "[ $(grep -c . /proc/net/route) -gt 1 ]")
        await switch_network(sandbox, NetworkPolicy("allowlist", allowed=(name,)))
        await switch_network(sandbox, NetworkPolicy("allowlist", allowed=(name,)))
        expect_in(" 200 ", f"{await _answer(sandbox, name, name)} ", "answer of the listed name")
        await expect_unreached(sandbox)


async def check_root_inside_opens_no_door(bench: Bench) -> None:
    """Root of the sandbox adds no interface, no address and no route, and enters no other network."""
    async with _filtered(bench, NetworkPolicy("allowlist", allowed=(bench.web_name,))) as sandbox:
        before = await output(sandbox, "cat /proc/net/route; ls /proc/sys/net/ipv4/conf")
        script = (
            "for p in /proc/1/ns/net /proc/$PPID/ns/net; do nsenter --net=$p true && readlink $p; done; "
            "ip link add bfx type dummy; ip route replace default dev lo; "
            "echo 1 >/proc/sys/net/ipv4/ip_forward; unshare -n true && echo left; true"
        )
        await sandbox.exec(Command(("sh", "-c", script), timeout_s=30))
        expect_equal(
            await output(sandbox, "cat /proc/net/route; ls /proc/sys/net/ipv4/conf"), before, "routes"
        )
        await expect_unreached(sandbox)


@asynccontextmanager
async def _filtered(bench: Bench, policy: NetworkPolicy) -> AsyncGenerator[Sandbox, None]:
    """Yield a sandbox with a network that is set while it runs."""
    spec = replace(bench.make_spec(), network="public", has_changing_network=True)
    async with bench.fresh(spec) as sandbox:
        try:
            await switch_network(sandbox, policy)
        except SandboxError as error:
            raise ConformanceError(f"Network {policy.mode!r} could not be set: {error}") from error
        yield sandbox


async def _answer(sandbox: Sandbox, host: str, name: str, *, path: str = "/") -> str:
    """Return the first line that an HTTP server at a host answers to a request for a name; "" = none."""
    quoted = shlex.quote(path.replace("%", "%%"))
    return await output(sandbox, _ASK.format(host=host, name=name, path=quoted))


async def _expect_refused(sandbox: Sandbox, host: str, port: int) -> None:
    done = await sandbox.exec(Command(("sh", "-c", _CONNECT.format(host=host, port=port)), timeout_s=30))
    if done.exit_code == 0:
        raise ConformanceError(f"A connection from inside to {host} port {port} was taken.")


async def expect_unreached(sandbox: Sandbox) -> None:
    """Raise ConformanceError when something outside takes a connection or a datagram from inside."""
    with _listening() as (port, sockets):
        targets = [(host, port) for host in _host_addresses()] + [
            (_METADATA, 81),
            *((ip, 81) for ip in _ELSEWHERE),
        ]
        script = "\n".join(
            f"{_CONNECT.format(host=host, port=number)} && echo tcp {host}\n"
            f"timeout 5 bash -c 'echo bf >/dev/udp/{host}/{number}' 2>/dev/null"
            for host, number in targets
        )
        taken = await output(sandbox, f"{script}\ntrue")
        expect_equal(taken, "", "connections from inside that were taken")
        ready, _, _ = select.select(sockets, [], [], 0)
        expect_equal(len(ready), 0, "sockets of the host that something from inside arrived at")


@contextmanager
def _listening() -> Generator[tuple[int, Sequence[socket.socket]], None, None]:
    """Listen on every address of the host, of both versions where it has them, for streams and datagrams."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    is_dual = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=is_dual) as streams:
        port = streams.getsockname()[1]
        with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
            if is_dual:
                datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            datagrams.bind(("", port))
            yield port, (streams, datagrams)


def _host_addresses() -> list[str]:
    """Return the host's addresses besides its loopback, those of bridges among them."""
    found = set()
    before = ""
    for line in Path("/proc/net/fib_trie").read_text(encoding="ascii").splitlines():
        if line.strip() == "/32 host LOCAL":
            found.add(before.rpartition(" ")[2])
        before = line
    listed = Path("/proc/net/if_inet6")
    for line in listed.read_text(encoding="ascii").splitlines() if listed.exists() else ():
        found.add(str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))))
    addresses = map(ipaddress.ip_address, found)
    return sorted(str(item) for item in addresses if not (item.is_loopback or item.is_link_local))


NETWORK_CHECKS: tuple[Check, ...] = (
    check(check_no_network_reaches_nothing, "no-network"),
    check(check_no_network_reaches_no_service_of_the_host, "no-network"),
    check(check_no_network_leaves_the_loopback, "no-network"),
    check(check_network_it_cannot_enforce_is_refused),
    check(check_network_that_cannot_change_is_told, "no-network"),
    check(check_allowlist_reaches_listed_names_only, "lists"),
    check(check_denylist_reaches_all_but_blocked_names, "lists"),
    check(check_denylist_tells_pages_of_a_host_apart, "lists"),
    check(check_list_opens_no_private_address, "lists"),
    check(check_network_changes_while_it_runs, "lists"),
    check(check_root_inside_opens_no_door, "lists"),
)
"""Checks of what a sandbox reaches."""
