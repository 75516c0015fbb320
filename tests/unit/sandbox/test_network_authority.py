"""The authority of a sandbox signs for its hosts, and clients that trust it trust it for these alone."""

from __future__ import annotations

import ssl

import pytest

from benchflow_workers.sandbox.network_authority import Authority


def shaken(authority: Authority, served: str, asked: str) -> str:
    """Return the protocol a client that trusts the authority comes to speak with a host.

    Raises:
        ssl.SSLError: It does not trust the server to be the host.
    """
    client = ssl.create_default_context(cadata=authority.certificate)
    client.set_alpn_protocols(["h2", "http/1.1"])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=asked)
    other = authority.context(served).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return str(one.selected_alpn_protocol())


def test_client_trusts_a_host_that_is_signed_for_over_http_1() -> None:
    assert shaken(Authority(["a.org", "b.org"]), "b.org", "b.org") == "http/1.1"


@pytest.mark.parametrize(
    ("served", "asked"), [("a.org", "b.org"), ("c.org", "c.org")], ids=["other", "not its own"]
)
def test_client_trusts_no_other_host(served: str, asked: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(Authority(["a.org", "b.org"]), served, asked)


def test_certificate_holds_no_key_and_each_authority_is_another() -> None:
    first, second = Authority(["a.org"]), Authority(["a.org"])

    assert "PRIVATE" not in first.certificate
    assert first.certificate != second.certificate
    assert first.context("a.org") is first.context("a.org")
