"""`python -m benchflow_workers`: the worker program and the checks of its host."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import App, Parameter

from benchflow_client import settings as client_settings
from benchflow_client.catalog.agents import find_agent
from benchflow_client.catalog.own_agents import own_agents
from benchflow_client.errors import BenchflowError, UsageError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import Npm
from benchflow_workers.agents.toolbox import Toolbox
from benchflow_workers.host import host_findings, is_healthy, remove_all_sandboxes, sandbox_findings
from benchflow_workers.worker import DEFAULT_SLOTS, WorkerOptions, serve

app = App(name="bench", help="Run trials on this host.", version_flags=[])


@app.command
def worker(
    *,
    queues: Annotated[
        str,
        Parameter(
            help="Queues to serve, separated by commas: docker, docker.gpu, local, null, control; empty = all "
            "that work here. Where BENCHFLOW_GPUS says which GPUs it may give, docker.gpu is served with docker."
        ),
    ] = "",
    slots: Annotated[int, Parameter(help="Trials at once.")] = DEFAULT_SLOTS,
    cpus: Annotated[
        float | None,
        Parameter(help="Cores its sandboxes may take together; a trial that does not fit waits."),
    ] = None,
    memory_mb: Annotated[
        int | None, Parameter(help="Memory its sandboxes may take together, in MiB; likewise.")
    ] = None,
    health: Annotated[
        bool, Parameter(help="Start nothing; exit 0 when a worker of this host can take work.", negative=())
    ] = False,
    log_level: Annotated[str, Parameter(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
) -> int:
    """Serve trials until told to stop (SIGTERM drains: running trials go back to the queue)."""
    if health:
        return int(not is_healthy())
    asked = tuple(queue.strip() for queue in queues.split(",") if queue.strip())
    return serve(
        WorkerOptions(queues=asked, slots=slots, log_level=log_level, cpus=cpus, memory_mb=memory_mb)
    )


@app.command(name="sandboxes")
def sandboxes(verb: Annotated[str, Parameter(help="audit or clean")]) -> int:
    """Write this fleet's sandboxes on this host as JSON, for `bench sandboxes`."""
    sys.stdout.write(json.dumps(sandbox_findings(clean=verb == "clean")))
    return 0


@app.command(name="remove-sandboxes")
def remove_sandboxes() -> int:
    """Remove every sandbox of the fleet BENCHFLOW_FLEET on this host; for a fleet that has ended."""
    sys.stdout.write(json.dumps(remove_all_sandboxes()))
    return 0


@app.command(name="prepare-agent")
def prepare_agent(name: Annotated[str, Parameter(help="A ready-made agent.")]) -> int:
    """Install a ready-made agent on this host, where it is not there yet."""
    settings, spec = client_settings.load(), AgentSpec.model_validate(name)
    definition = find_agent(spec.name, own_agents(settings.agents_dir)).definition
    if definition is None or not isinstance(definition.install, Npm):
        raise UsageError(
            f"Agent {name!r} is not installed on hosts.", hint="`bench agents show NAME` says how it is."
        )
    if spec.version is not None:
        definition = definition.model_copy(update={"version": spec.version})
    folder = Toolbox(settings.state_dir / "toolbox").prepared(definition)
    sys.stdout.write(f"{definition.name} {definition.version} is in {folder}\n")
    return 0


@app.command(name="check-host")
def check_host() -> int:
    """Write what works on this host as JSON, for `bench doctor`."""
    sys.stdout.write(json.dumps(list(host_findings())))
    return 0


def main() -> int:
    """Run the program and return its exit code; errors are one message, no traceback."""
    try:
        return int(app(sys.argv[1:], exit_on_error=True, print_error=True, result_action="return_value") or 0)
    except BenchflowError as error:
        sys.stderr.write(f"error  {error.message}\n       {error.hint}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
