"""Which network each phase of a trial has, and the change from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from benchflow_client.schema.task import TaskConfig
from benchflow_workers.sandbox.base import Sandbox, SandboxSpec
from benchflow_workers.sandbox.network import LISTS, NetworkPolicy, PhaseNetworks, switch_network
from benchflow_workers.trial.egress import egress_variables, trust, write_refusals
from benchflow_workers.trial.records import Prepared, PreparedStep

Phase = Literal["setup", "agent", "verifier"]
"""Phases whose network may differ."""


def networks_of(config: TaskConfig) -> PhaseNetworks:
    """Return what each phase of a task may reach.

    A list holds for the agent's turn alone: what prepares it and what judges it is never
    filtered. Without network means without in every phase that does not say otherwise.
    """
    table = config.sandbox
    general = NetworkPolicy(
        table.network_mode,
        allowed=table.allowed_hosts,
        blocked=table.blocked_hosts,
        blocked_urls=table.blocked_urls,
    )
    unfiltered = NetworkPolicy() if table.network_mode in LISTS else general
    own = config.agent.network_mode
    tests = config.verifier.network_mode
    return PhaseNetworks(
        setup=unfiltered,
        agent=general if own is None else NetworkPolicy(own, allowed=config.agent.allowed_hosts),
        verifier=unfiltered if tests is None else NetworkPolicy(tests),
    )


def network_variables(config: TaskConfig) -> Mapping[str, str]:
    """Return the variables that tell the agent's programs of their network."""
    return egress_variables(networks_of(config).agent)


def with_network(sandbox: SandboxSpec, configs: Iterable[TaskConfig]) -> SandboxSpec:
    """Return what is asked of a provider for a sandbox whose phases have the networks of all the configs."""
    networks = [networks_of(config) for config in configs]
    starts = {each.at_start for each in networks}
    return replace(
        sandbox,
        network="no-network" if starts == {"no-network"} else "public",
        has_changing_network=len(starts) > 1 or not all(each.is_constant for each in networks),
    )


def with_step_networks(steps: tuple[PreparedStep, ...]) -> tuple[PreparedStep, ...]:
    """Return the steps with a sandbox that can have the network of each."""
    configs = [step.prepared.folder.task.config for step in steps]
    return tuple(
        replace(step, prepared=replace(step.prepared, sandbox=with_network(step.prepared.sandbox, configs)))
        for step in steps
    )


async def enter_network(prepared: Prepared, sandbox: Sandbox, phase: Phase) -> None:
    """Give the sandbox the network of a phase that begins.

    Before the tests' network is set what the agent left running is killed: it must not
    reach in that moment what it could not reach before. Where TLS is opened the sandbox is
    made to trust who opens it.

    Raises:
        SandboxError: `sandbox.network_not_enforced`: the phase must not begin; what the sandbox raises.
    """
    if not (prepared.sandbox.has_changing_network and prepared.provider.capabilities.runs_commands):
        return
    networks = networks_of(prepared.folder.task.config)
    user = prepared.verify_context.agent_user
    if phase == "verifier" and user is not None and networks.verifier != networks.agent:
        await sandbox.kill(user)
    policies = {"setup": networks.setup, "agent": networks.agent, "verifier": networks.verifier}
    certificate = await switch_network(sandbox, policies[phase])
    if certificate:
        await trust(sandbox, certificate, timeout_s=prepared.verify_context.setup_timeout_s)


def keep_refusals(prepared: Prepared, sandbox: Sandbox, folder: Path) -> None:
    """Write what the agent's list refused into the attempt's folder on this host."""
    write_refusals(networks_of(prepared.folder.task.config).agent, sandbox, folder)
