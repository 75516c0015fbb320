"""How an agent's model chooses its words: as the job says, or a variable of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from pydantic import ValidationError

from benchflow_client.errors import AgentError
from benchflow_client.schema.job import JobSpec
from benchflow_workers.gateway.target import Sampling

__all__ = ["check_sampling_applies", "sampling_of"]

_VARIABLES: Final = {
    "temperature": "BENCHFLOW_MODEL_TEMPERATURE",
    "top_p": "BENCHFLOW_MODEL_TOP_P",
    "max_output_tokens": "BENCHFLOW_MODEL_MAX_TOKENS",
}


def sampling_of(spec: JobSpec, agent_env: Mapping[str, str]) -> Sampling:
    """Return what a model is asked for; a variable of the agent counts before the job's setting.

    The worker's own variables do not count: what a trial is asked must not depend on where it runs.

    Raises:
        AgentError: `agent.not_runnable`: a variable holds what the setting could not be.
    """
    told = {name: agent_env[variable] for name, variable in _VARIABLES.items() if agent_env.get(variable)}
    values = {field.name: getattr(spec, field.name) for field in fields(Sampling)}
    try:
        own = JobSpec.model_validate({"tasks": spec.tasks, "agent": "nop", **told})
    except ValidationError as error:
        first = error.errors()[0]
        name = _VARIABLES[str(first["loc"][0])]
        raise AgentError(
            "agent.not_runnable", f"{name} is not valid: {first['msg']}.", hint=f"Correct or unset {name}."
        ) from error
    return Sampling(**values | {name: getattr(own, name) for name in told})


def check_sampling_applies(sampling: Sampling, agent: str) -> None:
    """Refuse an agent whose calls do not pass the gateway, where a job asks something of them.

    Raises:
        AgentError: `agent.not_runnable`.
    """
    if sampling != Sampling():
        raise AgentError(
            "agent.not_runnable",
            f"Agent {agent!r} has no model behind the gateway, so its temperature, top_p or longest answer cannot be set.",
            hint="Leave these settings out, or give it a model with a key of the worker's.",
        )
