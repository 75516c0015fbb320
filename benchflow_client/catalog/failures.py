"""The closed list of ways a trial can fail, and what each means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchflow_client.schema.failure import Fault

Side = Literal["error", "verifier_error"]
"""Which half of result.json reports it: before or during verification."""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """What is known about one failure code."""

    label: str  # short text for tables
    category: str  # the format's own category name, kept for other readers
    fault: Fault
    side: Side
    is_retried: bool  # another attempt may end differently
    next_step: str  # `{job}` and `{task}` are filled in

    @property
    def is_permanent(self) -> bool:
        """Whether every trial of the job would fail alike: what it was set up with is wrong."""
        return self.fault is Fault.SETUP and not self.is_retried


def _kind(
    label: str, category: str, fault: Fault, next_step: str, *, is_retried: bool = False
) -> FailureKind:
    side: Side = "verifier_error" if category.startswith("verifier") else "error"
    return FailureKind(label, category, fault, side, is_retried, next_step)


_LOGS = "bench results {job} --failed · look at the folder of {task}"
_RETRY = "check the worker's log, then run the job again"
_INFRA, _TASK, _AGENT, _SETUP = Fault.INFRASTRUCTURE, Fault.TASK, Fault.AGENT, Fault.SETUP

FAILURES: dict[str, FailureKind] = {
    "task.unreadable": _kind("task cannot be read", "sandbox_setup", _TASK, "bench check {task}"),
    "task.unsupported": _kind(
        "task needs what this sandbox lacks", "sandbox_setup", _TASK, "choose another --sandbox"
    ),
    "sandbox.build_failed": _kind(
        "image build failed", "sandbox_setup", _TASK, "fix environment/Dockerfile of {task}"
    ),
    "sandbox.image_missing": _kind(
        "image not found", "sandbox_setup", _SETUP, "pull or load the image on the worker's host"
    ),
    "sandbox.registry_busy": _kind(
        "registry turned the pull away",
        "sandbox_setup",
        _INFRA,
        "log in at the registry, or use a mirror",
        is_retried=True,
    ),
    "sandbox.too_large": _kind(
        "sandbox larger than the worker",
        "sandbox_setup",
        _SETUP,
        "start a larger worker, or lower the request",
    ),
    "sandbox.unavailable": _kind(
        "sandbox provider not reachable", "sandbox_setup", _INFRA, "bench doctor", is_retried=True
    ),
    "sandbox.network_not_enforced": _kind(
        "network could not be restricted", "sandbox_setup", _INFRA, "bench doctor", is_retried=True
    ),
    "sandbox.network_exhausted": _kind(
        "no network left for services",
        "sandbox_setup",
        _INFRA,
        'lower --concurrency, or widen "default-address-pools" of the engine',
        is_retried=True,
    ),
    "sandbox.start_failed": _kind("sandbox did not start", "sandbox_setup", _INFRA, _RETRY, is_retried=True),
    "sandbox.transfer_failed": _kind(
        "files could not be moved", "infra_failure", _INFRA, _RETRY, is_retried=True
    ),
    "sandbox.exec_failed": _kind("sandbox ran no command", "infra_failure", _INFRA, _RETRY, is_retried=True),
    "sandbox.lost": _kind("sandbox died", "infra_failure", _INFRA, _RETRY, is_retried=True),
    "agent.no_solution": _kind("no reference solution", "other", _TASK, "add solution/solve.sh to {task}"),
    "agent.not_runnable": _kind(
        "agent cannot be run", "install_failure", _SETUP, "bench agents · check the script"
    ),
    "agent.install_failed": _kind(
        "agent could not be installed",
        "install_failure",
        _INFRA,
        "bench agents prepare, on the worker's host",
        is_retried=True,
    ),
    "agent.env_missing": _kind(
        "agent variable not set", "install_failure", _SETUP, "set the variable on the workers"
    ),
    "agent.timeout": _kind("agent ran out of time", "timeout", _AGENT, _LOGS),
    "agent.exited": _kind("agent ended with an error", "other", _AGENT, _LOGS),
    "agent.idle": _kind("agent did nothing for too long", "idle_timeout", _AGENT, _LOGS),
    "agent.disconnected": _kind("agent broke off", "pipe_closed", _AGENT, _LOGS),
    "agent.no_handshake": _kind("agent did not get ready", "acp_error", _INFRA, _LOGS, is_retried=True),
    "agent.protocol": _kind("agent answered with an error", "acp_error", _AGENT, _LOGS),
    "agent.silent": _kind(
        "agent said and did nothing", "suspected_api_error", _SETUP, "check the agent's model and login"
    ),
    "agent.rate_limited": _kind(
        "provider's rate limit",
        "provider_rate_limit",
        _INFRA,
        "bench limits set provider:NAME · lower --concurrency",
        is_retried=True,
    ),
    "agent.provider_failed": _kind(
        "provider failed", "infra_failure", _INFRA, "run the job again", is_retried=True
    ),
    "agent.provider_auth": _kind(
        "provider refused the credentials", "provider_auth", _SETUP, "check the keys on the workers"
    ),
    "agent.usage_limit": _kind(
        "provider's usage limit is reached", "usage_limit", _SETUP, "raise the limit, or wait for its window"
    ),
    "agent.context_overflow": _kind("model's context is full", "provider_rejected", _AGENT, _LOGS),
    "agent.rejected": _kind("provider rejected the request", "provider_rejected", _AGENT, _LOGS),
    "skills.not_placed": _kind(
        "skills are not where the agent looks",
        "experiment_fidelity/skill_deployment_missing",
        _TASK,
        "let the agent of {task} write into its home folder",
    ),
    "skills.not_written": _kind(
        "agent wrote no usable skills", "experiment_fidelity/skill_generation_missing", _AGENT, _LOGS
    ),
    "user.unknown": _kind(
        "user not installed on the worker", "other", _SETUP, "install the user where the workers run"
    ),
    "user.failed": _kind("user could not go on", "other", _SETUP, "look at the worker's log"),
    "verifier.no_tests": _kind("task has no tests", "verifier_other", _TASK, "add tests/test.sh to {task}"),
    "verifier.no_reward": _kind("verifier wrote no reward", "verifier_failure", _TASK, _LOGS),
    "verifier.invalid_reward": _kind("reward is not valid", "verifier_failure", _TASK, _LOGS),
    "verifier.timeout": _kind(
        "verifier ran out of time",
        "verifier_timeout",
        _TASK,
        "raise verifier.timeout_sec of {task}",
        is_retried=True,
    ),
    "verifier.dep_install": _kind(
        "verifier could not install its tools",
        "verifier_dep_install",
        _TASK,
        "bake the tools into the image of {task}",
    ),
    "verifier.harden_failed": _kind(
        "agent could not be stopped before the tests",
        "verifier_infra",
        _INFRA,
        _RETRY,
        is_retried=True,
    ),
    "verifier.guard_failed": _kind(
        "plugin guard could not be loaded",
        "verifier_other",
        _TASK,
        "keep PYTHONPATH in the tests of {task}",
    ),
    "verifier.session_broken_off": _kind(
        "a full reward of tests that did not end", "verifier_failure", _AGENT, _LOGS
    ),
    "verifier.sandbox_lost": _kind(
        "sandbox died before a verdict", "verifier_infra", _INFRA, _RETRY, is_retried=True
    ),
    "verifier.separate_failed": _kind(
        "the tests' own sandbox failed", "verifier_infra", _INFRA, _RETRY, is_retried=True
    ),
    "verifier.separate_unfit": _kind(
        "the tests' own sandbox cannot be made",
        "verifier_infra",
        _TASK,
        "fix verifier.sandbox or tests/Dockerfile of {task}",
    ),
    "store.write_failed": _kind(
        "results could not be stored",
        "infra_failure",
        _INFRA,
        "free space in the store",
        is_retried=True,
    ),
    "store.bundle_missing": _kind(
        "task bundle not in the store", "infra_failure", _INFRA, "submit the job again"
    ),
    "broker.unreachable": _kind(
        "ledger could not be reached", "infra_failure", _INFRA, "bench doctor", is_retried=True
    ),
    "worker.lost": _kind(
        "worker died, every attempt", "infra_failure", _INFRA, "check the workers' memory and logs"
    ),
    "trial.unexpected": _kind("unexpected error (a bug)", "other", _INFRA, "report it with the worker's log"),
}
"""Every failure code. A code that is not here is a bug."""
