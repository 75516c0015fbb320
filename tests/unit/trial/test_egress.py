"""What an agent's phase has beside its list of hosts: variables, whom it trusts, the log of what was refused."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Completed, Upload
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_authority import Authority
from benchflow_workers.trial.egress import egress_variables, trust, write_refusals

LISTED = NetworkPolicy("denylist", blocked_urls=("https://a.org/x",))


class Rooted:
    """A folder of this host as the root of a sandbox, in which commands run with every path moved below it."""

    def __init__(self, root: Path, **env: str) -> None:
        self.root = root
        self.env = env
        self.refused: tuple[dict[str, Any], ...] = ()

    async def put(self, uploads: Sequence[Upload]) -> None:
        for upload in uploads:
            path = self.root / upload.target.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(upload.content or b"")

    async def exec(self, command: Command) -> Completed:
        argv = [self._moved(item) for item in command.argv]
        env = {"PATH": os.environ["PATH"], **self.env}
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=self.root, env=env
        )
        stdout, stderr = await process.communicate()
        return Completed(process.returncode or 0, stdout, stderr, len(stdout), len(stderr), False, False, 0.0)

    def _moved(self, text: str) -> str:
        for place in ("/etc/", "/opt/", "/usr/local/share/"):
            text = text.replace(place, f"{self.root}{place}")
        return text

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        return self.refused

    def text(self, path: str) -> str:
        return (self.root / path).read_text()


def rooted(root: Path, **env: str) -> Any:
    return Rooted(root, **env)


@pytest.fixture
def certificate() -> str:
    return Authority(["a.org"]).certificate


def test_agent_is_told_of_its_network() -> None:
    told = egress_variables(LISTED)

    assert told["BENCHFLOW_EGRESS_DENYLIST"] == "1"
    trusted = {
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
    }
    assert {told[name] for name in trusted} == {"/opt/benchflow/egress/trusted.pem"}
    assert egress_variables(NetworkPolicy("denylist", blocked=("a.org",))) == {
        "BENCHFLOW_EGRESS_DENYLIST": "1"
    }
    assert egress_variables(NetworkPolicy("no-network")) == {"BENCHFLOW_DISALLOW_WEB_TOOLS": "1"}
    assert egress_variables(NetworkPolicy()) == {}


async def test_authority_is_added_to_what_is_trusted_once(tmp_path: Path, certificate: str) -> None:
    sandbox = rooted(tmp_path)
    stores = (tmp_path / "etc/ssl/certs/ca-certificates.crt", tmp_path / "etc/pki/tls/certs/ca-bundle.crt")
    for number, store in enumerate(stores):
        store.parent.mkdir(parents=True)
        store.write_text(f"old {number}\n")

    await trust(sandbox, certificate, timeout_s=60)
    await trust(sandbox, certificate, timeout_s=60)

    assert [store.read_text() for store in stores] == [f"old 0\n\n{certificate}", f"old 1\n\n{certificate}"]
    assert sandbox.text("usr/local/share/ca-certificates/benchflow-egress.crt") == certificate
    assert sandbox.text("opt/benchflow/egress/trusted.pem").startswith("old 0\n")
    assert certificate in sandbox.text("opt/benchflow/egress/trusted.pem")


async def test_image_that_trusts_nobody_gets_a_store(tmp_path: Path, certificate: str) -> None:
    sandbox = rooted(tmp_path)

    await trust(sandbox, certificate, timeout_s=60)

    assert sandbox.text("etc/ssl/certs/ca-certificates.crt") == certificate
    assert sandbox.text("opt/benchflow/egress/trusted.pem") == certificate


async def test_what_the_image_names_as_trusted_stays_so(tmp_path: Path, certificate: str) -> None:
    (tmp_path / "own.pem").write_text("the company's\n")
    sandbox = rooted(tmp_path, SSL_CERT_FILE=str(tmp_path / "own.pem"))

    await trust(sandbox, certificate, timeout_s=60)

    assert sandbox.text("opt/benchflow/egress/trusted.pem") == f"the company's\n\n{certificate}"
    assert sandbox.text("own.pem") == "the company's\n"


async def test_sandbox_that_cannot_be_made_to_trust_is_an_error(tmp_path: Path, certificate: str) -> None:
    (tmp_path / "usr").write_text("a file")

    with pytest.raises(SandboxError, match="blocked_urls") as caught:
        await trust(rooted(tmp_path), certificate, timeout_s=60)

    assert caught.value.code == "sandbox.network_not_enforced"


def test_log_is_the_workers_whatever_a_sandbox_left_in_its_place(tmp_path: Path) -> None:
    sandbox, path = rooted(tmp_path), tmp_path / "trajectory" / "egress_denylist.jsonl"
    sandbox.refused = ({"host": "a.org", "port": 443, "rule": "denied-host"},)
    path.mkdir(parents=True)

    write_refusals(LISTED, sandbox, tmp_path)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("forged\n")
    write_refusals(NetworkPolicy(), sandbox, tmp_path)

    assert kept == [{"host": "a.org", "port": 443, "rule": "denied-host"}]
    assert not path.exists()


def test_list_that_refused_nothing_leaves_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "trajectory").write_text("a file of the agent")

    write_refusals(LISTED, rooted(tmp_path), tmp_path)

    assert (tmp_path / "trajectory" / "egress_denylist.jsonl").read_text() == ""
