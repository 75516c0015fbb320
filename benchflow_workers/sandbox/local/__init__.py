"""Sandboxes without Docker: overlays and namespaces on the host's own root, as root or as a user."""

from benchflow_workers.sandbox.local.options import LocalOptions
from benchflow_workers.sandbox.local.probe import Finding, probe
from benchflow_workers.sandbox.local.provider import LocalSandboxes
from benchflow_workers.sandbox.local.sandbox import LocalSandbox

__all__ = ["Finding", "LocalOptions", "LocalSandbox", "LocalSandboxes", "probe"]
