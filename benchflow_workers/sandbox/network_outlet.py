"""The way out of one sandbox: its cable, the log of what it was refused, the authority it trusts."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_egress import EgressOptions, TlsAuthority
from benchflow_workers.sandbox.network_gateway import Gateway
from benchflow_workers.sandbox.network_log import EgressLog
from benchflow_workers.sandbox.network_tls import TlsOpener


class Outlet:
    """The cable of one sandbox: at most one gateway at a time, none once it is closed.

    Args:
        options: How listed names are reached.
        log: Where refusals go; None = a new one.

    Attributes:
        log: What was refused, over all policies.
    """

    def __init__(self, options: EgressOptions, log: EgressLog | None = None) -> None:
        self.log = EgressLog() if log is None else log
        self._options = options
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None
        self._authority: TlsAuthority | None = None
        self._hosts: frozenset[str] = frozenset()
        self._is_closed = False

    def plug_in_blocking(self, policy: NetworkPolicy, pid: int, check_owner: Callable[[], None]) -> str:
        """Join the network namespace of a process to a new gateway.

        Args:
            policy: What may be reached.
            pid: The process.
            check_owner: Raises OSError unless the number is still the right process's;
                asked after its namespace was opened.

        Returns:
            Certificate of the authority that signs for hosts whose TLS is opened; "" = none is. The
            same hosts have the same authority as long as the outlet lives.

        Raises:
            OSError: The host does not allow it, the process is gone, TLS has to be opened and cannot
                be here, or the outlet is closed; nothing is left.
        """
        with self._lock:
            if self._is_closed:
                raise ProcessLookupError(3, "the sandbox was closed")
            self._unplug()
            authority = self._authority_of(policy.opened_hosts)
            opener = None if authority is None else TlsOpener(authority, self._options)
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                check_owner()
                gateway = Gateway(policy, self._options, self.log, opener)
                gateway.open_blocking(namespace)
            finally:
                os.close(namespace)
            self._gateway = gateway
            return "" if authority is None else authority.certificate

    def unplug_blocking(self) -> None:
        """Cut the cable and end every connection over it, if there is one."""
        with self._lock:
            self._unplug()

    def close_blocking(self) -> None:
        """Cut the cable for good; safe to call twice."""
        with self._lock:
            self._is_closed = True
            self._unplug()

    def _authority_of(self, hosts: frozenset[str]) -> TlsAuthority | None:
        if not hosts:
            return None
        if self._options.authority is None:
            raise OSError(
                errno.EOPNOTSUPP,
                "blocked_urls need TLS to be opened, and this worker lacks the package for it: "
                "pip install 'benchflow-workers[urls]'",
            )
        if self._authority is None or hosts != self._hosts:
            self._authority, self._hosts = self._options.authority(hosts), hosts
        return self._authority

    def _unplug(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close_blocking()
