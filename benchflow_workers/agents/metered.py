"""An agent with a model: it is given an address and a token, and what it asks of the model is counted and kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchflow_client.catalog.providers import CUSTOM_KEY, CUSTOM_PROTOCOL, CUSTOM_URL, Dialect
from benchflow_client.schema.failure import Failure
from benchflow_workers.agents.base import Agent, AgentContext, AgentRun, OnWorker
from benchflow_workers.agents.reach import Way, reach
from benchflow_workers.agents.ready import Installs
from benchflow_workers.gateway.call_spans import provider_name
from benchflow_workers.gateway.grants import Grant, Masks
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Target
from benchflow_workers.gateway.translator import Translated
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.telemetry.base import CURRENT, Span

__all__ = ["MeteredAgent"]

_STANDARD: Final[dict[Dialect, tuple[str, str]]] = {
    "openai-completions": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "openai-responses": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "anthropic-messages": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "gemini-generate": ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
}
"""Variables that clients of a dialect read by themselves."""

_REFUSED: Final = {401: "agent.provider_auth", 403: "agent.provider_auth", 429: "agent.rate_limited"}


@dataclass(frozen=True, slots=True)
class MeteredAgent:
    """Another agent, with a model behind this worker's gateway.

    Attributes:
        inner: Who works.
        gateway: The worker's gateway.
        target: The model.
        purse: What may be used of it, by all turns of the attempt together.
        file: Where calls are recorded.
        redactor: Masks secrets in what is recorded.
        translated: What stands between gateway and provider; None = nothing does.
    """

    inner: Agent
    gateway: Gateway
    target: Target
    purse: Purse
    file: Path
    redactor: Masks
    translated: Translated | None = None

    @property
    def is_control(self) -> bool:
        """Whether the inner agent is one."""
        return self.inner.is_control

    @property
    def runs_as_user(self) -> bool:
        """Whether the inner agent does."""
        return self.inner.runs_as_user

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the inner agent's files."""
        return self.inner.uploads(context)

    async def install(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Install the inner agent, where it is installed in each sandbox.

        Raises:
            AgentError: `agent.install_failed`.
            SandboxError: The sandbox failed under it.
        """
        if isinstance(self.inner, Installs):
            await self.inner.install(sandbox, context)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Let the inner agent take its turn, with a token that is good for nothing afterwards.

        Raises:
            SandboxError: The sandbox has no way to the gateway, or failed under it.
        """
        span = _turn(self.target, context)
        try:
            is_open = context.is_web_open
            grant = Grant(self._place(), self.purse, self.file, self.redactor, span, is_web_open=is_open)
            with self.gateway.granted(grant):
                async with self._way(sandbox, context) as way:
                    run = await self.inner.run(
                        sandbox, _with_model(self._hidden(context, grant), grant, way.url)
                    )
                    run = _reached(run, way)
            run = _counted(run, grant)
            span.end({}, error=run.failures[0].code if run.failures else "")
            return run
        finally:
            span.end({}, error="interrupted")  # where it has not ended yet

    def _place(self) -> Target:
        """Return where calls go at first: the provider, or what translates for it."""
        if self.translated is None:
            return self.target
        urls = {dialect: _url(self.translated.url, dialect) for dialect in self.target.urls}
        return replace(self.target, urls=urls, key=self.translated.key, bearer=None)

    def _hidden(self, context: AgentContext, grant: Grant) -> AgentContext:
        """Return the context with the token where it holds the provider's key."""
        key = self.target.key
        env = {name: grant.token if value == key else value for name, value in context.env.items()}
        return replace(context, env=env)

    def _way(self, sandbox: Sandbox, context: AgentContext) -> AbstractAsyncContextManager[Way]:
        """Return how the inner agent reaches the gateway for as long as the block runs."""
        if isinstance(self.inner, OnWorker) and self.inner.is_on_worker:
            return nullcontext(Way(f"http://127.0.0.1:{self.gateway.port}", "loopback"))
        return reach(sandbox, self.gateway, context.network)


def _turn(target: Target, context: AgentContext) -> Span:
    """Begin the span of a turn, to which its calls belong."""
    name = Path(context.spec.name).name
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.provider.name": provider_name(target.provider),
        "gen_ai.request.model": target.model,
    }
    return CURRENT.get().begin(f"invoke_agent {name}", about)


def _reached(run: AgentRun, way: Way) -> AgentRun:
    """Return the record with the way to the gateway; a turn whose way broke came to no end of its own."""
    run = replace(run, usage=run.usage.model_copy(update={"endpoint_kind": way.kind}))
    if (broken := way.failure) is None:
        return run
    failure = Failure(code=broken.code, message=broken.message, hint=broken.hint)
    return replace(run, failures=(failure, *run.failures), is_broken=True)


def _with_model(context: AgentContext, grant: Grant, base: str) -> AgentContext:
    """Return the context with the address and the token."""
    target = grant.target
    spoken = () if context.definition is None else context.definition.dialects
    first = next((dialect for dialect in spoken if dialect in target.urls), next(iter(target.urls)))
    env = dict(context.env)
    for dialect in target.urls:
        url_name, key_name = _STANDARD[dialect]
        env |= {url_name: _url(base, dialect), key_name: grant.token}
    env |= {
        "BENCHFLOW_PROVIDER_NAME": target.provider,
        "BENCHFLOW_PROVIDER_MODEL": target.model,
        CUSTOM_PROTOCOL: first,
        CUSTOM_URL: _url(base, first),
        CUSTOM_KEY: grant.token,
    }
    return replace(context, env=env)


def _url(base: str, dialect: Dialect) -> str:
    """Return the base URL that clients of a dialect expect."""
    return f"{base}/v1" if dialect.startswith("openai") else base


def _counted(run: AgentRun, grant: Grant) -> AgentRun:
    """Return the record with what the provider counted, and with what it refused where it refused everything."""
    statuses = grant.statuses
    if not statuses:
        return _turned_away(run, grant.turned_away)
    counted = grant.usage()
    usage = counted.model_copy(
        update={
            "n_tool_calls": run.usage.n_tool_calls,
            "n_prompts": run.usage.n_prompts,
            "endpoint_kind": run.usage.endpoint_kind,
        }
    )
    run = replace(run, usage=usage)
    if any(status < 400 for status in statuses):
        return run
    worst = max(statuses, key=lambda status: statuses[status])
    code = _REFUSED.get(worst, "agent.rejected" if worst < 500 else "agent.provider_failed")
    failure = Failure(
        code=code,
        message=f"Every call to {grant.target.model} at {grant.target.provider} failed, {sum(statuses.values())} in all; "
        f"most with status {worst}.",
        retry_after_s=grant.wait_s if code == "agent.rate_limited" else None,
    )
    # A request the provider would not take is the agent's own doing: what it did besides counts.
    is_broken = run.is_broken or code != "agent.rejected"
    return replace(run, failures=(failure, *run.failures), is_broken=is_broken)


def _turned_away(run: AgentRun, why: str) -> AgentRun:
    """Return the record with why no call was passed on, where the agent made some: its own doing as well."""
    if not why:
        return run
    failure = Failure(
        code="agent.rejected",
        message=f"No call reached the model; the worker's gateway refused the last one: {why[:500]}",
    )
    return replace(run, failures=(failure, *run.failures))
