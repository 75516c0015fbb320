"""The conformance suite: what every sandbox provider must pass, ours and anybody's.

A provider's test module builds one `Bench` and runs every check over it::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    async def test_provider_keeps_the_contract(check, bench):
        if check.missing(bench):
            pytest.skip(...)
        await check.run(bench)

A broken promise is a `ConformanceError` that names it.
"""

from __future__ import annotations

from benchflow_workers.sandbox.conformance_attach import ATTACH_CHECKS
from benchflow_workers.sandbox.conformance_bench import Ability, Bench, Check, ConformanceError
from benchflow_workers.sandbox.conformance_exec import EXEC_CHECKS
from benchflow_workers.sandbox.conformance_files import FILE_CHECKS
from benchflow_workers.sandbox.conformance_life import LIFE_CHECKS
from benchflow_workers.sandbox.conformance_network import NETWORK_CHECKS

__all__ = ["CHECKS", "Ability", "Bench", "Check", "ConformanceError"]

CHECKS: tuple[Check, ...] = (*EXEC_CHECKS, *ATTACH_CHECKS, *FILE_CHECKS, *LIFE_CHECKS, *NETWORK_CHECKS)
"""Every check, in the order in which a new provider best makes them pass."""
