"""What an agent is asked for once its session is open: its model and how hard that is to think."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow_workers.agents.acp_session import AgentAnswerError, Limits, Session, ask

__all__ = ["Wishes", "choose"]

_MODEL: Final = "model"
_EFFORTS: Final = ("effort", "reasoning_effort", "thought_level", "thinking")
"""Ids under which agents have their effort, unless a definition says another."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is asked for.

    Attributes:
        model: The model, as the agent calls it; None = it is told otherwise.
        effort: The effort; None = its own.
        effort_option: Id of the option that takes it; None = one of those agents have.
    """

    model: str | None
    effort: str | None
    effort_option: str | None = None


async def choose(session: Session, wishes: Wishes, limits: Limits) -> None:
    """Ask for a model and an effort; a model is asked for only where the agent says that it can be chosen.

    Raises:
        AgentAnswerError: The agent refuses, or has no option for an effort.
        NoHandshakeError: An answer did not come in time.
        ConnectionError: The agent is gone.
    """
    options = dict(_options(session.offers))
    if wishes.model is not None:
        await _choose_model(session, wishes.model, options, limits)
    if wishes.effort is not None:
        known = _EFFORTS if wishes.effort_option is None else (wishes.effort_option,)
        option = next((name for name in known if name in options), None)
        if option is None:
            raise AgentAnswerError(
                f"it has no option for the effort; it has {', '.join(options) or 'none at all'}"
            )
        await _set(session, option, wishes.effort, limits)


async def _choose_model(
    session: Session, model: str, options: Mapping[str, Mapping[str, Any]], limits: Limits
) -> None:
    if _MODEL in options:
        if options[_MODEL].get("currentValue") != model:
            await _set(session, _MODEL, model, limits)
        return
    models = session.offers.get("models")
    if isinstance(models, Mapping) and models.get("currentModelId") != model:
        params = {"sessionId": session.identity, "modelId": model}
        await ask(session.connection, "session/set_model", params, limits)


async def _set(session: Session, option: str, value: str, limits: Limits) -> None:
    params = {"sessionId": session.identity, "configId": option, "value": value}
    await ask(session.connection, "session/set_config_option", params, limits)


def _options(offers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = offers.get("configOptions")
    for option in found if isinstance(found, list) else ():
        if isinstance(option, Mapping) and isinstance(option.get("id"), str):
            yield option["id"], option
