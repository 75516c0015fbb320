"""What a list of hosts means to an agent's phase beside the list: whom its programs trust, what is kept of refusals."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_client.store.documents import json_lines
from benchflow_workers.sandbox.base import Command, Sandbox, Upload
from benchflow_workers.sandbox.network import NOT_ENFORCED, NetworkPolicy
from benchflow_workers.sandbox.network_log import take_refusals

__all__ = ["BUNDLE_PATH", "REFUSALS", "egress_variables", "trust", "write_refusals"]

REFUSALS: Final = ("trajectory", "egress_denylist.jsonl")
"""File of an attempt with one line for each attempt to reach what a list forbids."""

BUNDLE_PATH: Final = "/opt/benchflow/egress/trusted.pem"
"""All that programs of the agent trust: what the sandbox trusts, and the authority of its gateway."""

_AUTHORITY_PATH: Final = "/opt/benchflow/egress/authority.pem"
_TRUST_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
)
_IS_DENYLIST: Final = "BENCHFLOW_EGRESS_DENYLIST"
_NO_WEB_TOOLS: Final = "BENCHFLOW_DISALLOW_WEB_TOOLS"

_STORES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where distributions keep what is trusted; the first is made where there is none."""

_TRUST: Final = """
set -eu
new=$1 bundle=$2 mark=$3 added=/usr/local/share/ca-certificates/benchflow-egress.crt
shift 3
first=$1 trusted= has_store=
for store in "${SSL_CERT_FILE:-}" "$@"; do
  if [ -n "$store" ] && [ "$store" != "$bundle" ] && [ -s "$store" ]; then trusted=$store; break; fi
done
: > "$bundle"
if [ -n "$trusted" ]; then cat "$trusted" >> "$bundle"; echo >> "$bundle"; fi
cat "$new" >> "$bundle"
chmod 0644 "$bundle"
for store in "$@"; do
  [ -f "$store" ] || continue
  has_store=1
  case $(cat "$store") in *"$mark"*) continue;; esac
  { echo; cat "$new"; } >> "$store"
done
if [ -z "$has_store" ]; then mkdir -p "${first%/*}"; cat "$bundle" > "$first"; fi
mkdir -p "${added%/*}"
cat "$new" > "$added"
"""
"""Adds a certificate to what is trusted; may run again, and then changes nothing."""


def egress_variables(policy: NetworkPolicy) -> Mapping[str, str]:
    """Return the variables that tell an agent's programs of its network."""
    found = dict.fromkeys(_TRUST_VARIABLES, BUNDLE_PATH) if policy.opened_hosts else {}
    if policy.mode == "denylist":
        found[_IS_DENYLIST] = "1"
    if policy.mode == "no-network":
        found[_NO_WEB_TOOLS] = "1"
    return found


async def trust(sandbox: Sandbox, certificate: str, *, timeout_s: float) -> None:
    """Let the programs of a sandbox trust an authority: in its stores, and in the file the variables name.

    Programs that keep their own list of whom they trust are not told; they fail at the hosts whose
    TLS is opened.

    Raises:
        SandboxError: `sandbox.network_not_enforced`: the files cannot be written; what the sandbox raises.
    """
    await sandbox.put([Upload(_AUTHORITY_PATH, content=certificate.encode(), mode=0o644)])
    mark = certificate.splitlines()[2]
    argv = ("sh", "-c", _TRUST, "benchflow-trust", _AUTHORITY_PATH, BUNDLE_PATH, mark, *_STORES)
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, workdir="/"))
    if done.exit_code != 0 or done.timed_out:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise SandboxError(
            NOT_ENFORCED,
            f"The certificate for hosts of blocked_urls could not be added to what the sandbox trusts: {said}.",
            hint="Its image needs sh, cat, mkdir and chmod, and root must be able to write /etc and /opt.",
        )


def write_refusals(policy: NetworkPolicy, sandbox: Sandbox, folder: Path) -> None:
    """Write what the network of a sandbox refused into the attempt's folder.

    With a list the file is always there, empty where nothing was refused; without one it never
    is: what a sandbox left in its place goes.
    """
    refused = take_refusals(sandbox)
    path = folder.joinpath(*REFUSALS)
    if path.parent.is_dir():
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    elif path.parent.is_file():
        path.parent.unlink()
    if policy.is_filtered:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(json_lines(refused))
