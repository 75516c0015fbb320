"""results.jsonl: one row per trial in the shape that Verifiers and Prime-RL read."""

from __future__ import annotations

from typing import Any

from benchflow_client.results.rows import named_numbers
from benchflow_client.schema.trial import TrialResult

ROW_SCHEMA_VERSION = 2
"""Since version 2 a reward that is missing is null; before, it was 0.0."""

_NO_TRAJECTORY = "missing_healthy_structured_llm_trajectory"
"""Why a row cannot be trained on: the model calls were not recorded."""


def to_verifiers_row(result: TrialResult, *, example_id: int) -> dict[str, Any]:
    """Return a trial's row; without recorded model calls it is not ready for training.

    Args:
        result: The trial's result.
        example_id: Number of its task among the tasks of the job, from 0 without gaps.
    """
    error = _error(result)
    return {
        "schema_version": ROW_SCHEMA_VERSION,
        "example_id": example_id,
        "prompt": [],
        "completion": None,
        "info": _info(result, reason=error["error"] if error else _NO_TRAJECTORY),
        "reward": result.reward,
        "error": error,
        "timing": result.timing.model_dump(exclude={"schema_version"}),
        "is_completed": error is None,
        "is_truncated": False,
        "stop_condition": error["error"] if error else "agent_completed",
        "metrics": _metrics(result),
        "tool_defs": [],
        "token_usage": _token_usage(result),
        "score": result.reward,
        "total_tool_calls": result.agent_result.n_tool_calls,
        "trajectory": [],
        "passed": None if result.reward is None else result.outcome == "passed",
    }


def _error(result: TrialResult) -> dict[str, str] | None:
    for name, text in (("agent_error", result.error), ("verifier_error", result.verifier_error)):
        if text is not None:
            return {"error": name, "error_chain_str": text, "error_chain_repr": repr(text)}
    return None


def _info(result: TrialResult, *, reason: str) -> dict[str, Any]:
    details = (result.rewards or {}).get("details")
    return {
        "task_id": result.task_name,
        "task_name": result.task_name,
        "rollout_name": result.rollout_name,
        "environment": result.sandbox,
        "agent": result.agent,
        "agent_name": result.agent,
        "model": result.model,
        "source": "benchflow",
        "rollout_dir": result.rollout_name,
        "training_ready": False,
        "training_ready_reason": reason,
        **({"reward_details": details} if details else {}),
    }


def _metrics(result: TrialResult) -> dict[str, float]:
    """Return counts and every named number; of two with one name the outer one counts."""
    numbers = named_numbers(result.rewards)
    flat: dict[str, float] = {}
    for place, value in numbers.items():
        flat.setdefault(place.partition(".")[2], value)
    scalar = {} if result.reward is None else {"reward": result.reward}
    usage = result.agent_result
    counts = {
        "n_tool_calls": usage.n_tool_calls,
        "n_skill_invocations": usage.n_skill_invocations,
        "n_prompts": usage.n_prompts,
    }
    return {**counts, **flat, **scalar}


def _token_usage(result: TrialResult) -> dict[str, int | None]:
    usage = result.agent_result
    return {
        "input_tokens": usage.n_input_tokens,
        "output_tokens": usage.n_output_tokens,
        "final_input_tokens": None,
        "final_output_tokens": None,
        "total_tokens": usage.total_tokens,
    }
