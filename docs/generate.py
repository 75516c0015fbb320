"""Write docs/configuration.md from the models, so that the page and the code cannot differ.

python docs/generate.py            write the page
python docs/generate.py --check    exit 1 when the page is not what would be written
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.cli.run import VIEW
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.scenes import PromptParts, Role, Scene, SimulatedUser, Turn
from benchflow_client.schema.task import (
    AgentTable,
    Artifact,
    Healthcheck,
    OracleTable,
    SandboxTable,
    SetupCommand,
    VerifierTable,
)
from benchflow_client.settings import PREFIX, Settings
from benchflow_workers.settings import WorkerSettings

PAGE: Final = Path(__file__).parent / "configuration.md"
"""The page that is written."""

COMPUTED: Final = {
    "state_dir": "`$XDG_STATE_HOME/benchflow`, else `~/.local/state/benchflow`",
    "user": "login name",
}
"""Defaults that are found when the settings are read, and stand in no model."""

TASK_TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "agent": AgentTable,
    "verifier": VerifierTable,
    "sandbox": SandboxTable,
    "sandbox.healthcheck": Healthcheck,
    "sandbox.setup_commands": SetupCommand,
    "oracle": OracleTable,
    "artifacts": Artifact,
    "agents.roles.NAME": Role,
    "scenes": Scene,
    "scenes.turns": Turn,
    "user": SimulatedUser,
    "benchflow.prompt": PromptParts,
}
"""Tables of a task file that are listed, by their place in it."""


_CHOICES: Final = re.compile(r"\^\(([a-z|-]+)\)\$")


def render() -> str:
    """Return the page."""
    blocks = [
        "# Configuration reference",
        "Generated from the models by `python docs/generate.py`; do not edit. How the parts are used: "
        "[quick start](quickstart.md), [fleet](fleet.md), [tasks](tasks.md).",
        "## Job",
        "Each line is a flag of `bench run` and `bench submit`, a key of a job file (`-f job.yaml`), and an "
        "argument of `JobSpec` in Python. `tasks` may stand without its flag. A flag wins over the file. "
        "None and – mean: not given.",
        *_job(),
        "## Agents in a job file",
        "An item of `agent` is a name or the path of a script, or a table with these keys.",
        _table(("Key", "Type", "Default", "Meaning"), _keys(AgentSpec)),
        "## Client, worker and control",
        "Variables that every process of a fleet reads. An empty variable counts as not set.",
        _table(("Variable", "Type", "Default", "Meaning"), _variables(Settings)),
        "## Worker only",
        _table(("Variable", "Type", "Default", "Meaning"), _variables(WorkerSettings)),
        "## Task file",
        "Keys of `task.toml`, and of the front matter of `task.md`. `task.toml` may say `environment` for `sandbox` "
        "and `solution` for `oracle`. Not everything that can be written can be run yet: a task that asks for what its "
        "sandbox lacks is refused before anything is sent (`bench run --dry-run`).",
        *_task(),
        "## Failure codes",
        "What `failures[].code` of a result may be. The bucket is that of a trial without a reward; with one, the trial "
        "passed or failed all the same. A retried code leads to another attempt while attempts are left.",
        _table(("Code", "Meaning", "Bucket", "Who acts", "Retried", "What to do"), _failures()),
    ]
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when the page is old")
    if not parser.parse_args().check:
        PAGE.write_text(render(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == render():
        return 0
    sys.stderr.write(f"error  {PAGE} is not what the models say.\n       Run: python docs/generate.py\n")
    return 1


def _job() -> Iterator[str]:
    rows = [(f"`--{name.replace('_', '-')}`", f"`{name}`", *rest) for name, rest in _fields(JobSpec)]
    yield _table(("Flag", "Key and argument", "Type", "Default", "Meaning"), rows)
    yield "Flags that are no part of the job:"
    views = [
        (", ".join(f"`{name}`" for name in _flag_names(name)), parameter.annotation.__metadata__[0].help)
        for name, parameter in VIEW.items()
    ]
    yield _table(("Flag", "Meaning"), views)


def _flag_names(name: str) -> Sequence[str]:
    given = VIEW[name].annotation.__metadata__[0].name
    return given or (f"--{name.replace('_', '-')}",)


def _keys(model: type[BaseModel]) -> Iterator[Sequence[str]]:
    for name, rest in _fields(model):
        yield f"`{name}`", *rest


def _variables(model: type[BaseModel]) -> Iterator[Sequence[str]]:
    for name, (kind, default, meaning) in _fields(model):
        yield f"`{PREFIX}{name.upper()}`", kind, COMPUTED.get(name, default), meaning


def _task() -> Iterator[str]:
    for place, model in TASK_TABLES.items():
        yield f"### {place}"
        yield _table(("Key", "Type", "Default", "Meaning"), _keys(model))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each field with its type, default and description."""
    schema = model.model_json_schema()
    for name, field in schema["properties"].items():
        is_required = name in schema.get("required", ())
        default = "required" if is_required else _default(field.get("default"))
        yield name, (_type(field), default, model.model_fields[name].description or "")


def _default(value: Any) -> str:
    if value in (None, [], {}, ""):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return (
        f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if isinstance(value, str | int) else "–"
    )


def _type(field: Mapping[str, Any]) -> str:
    """Return a type and its limits in words."""
    options = [item for item in field.get("anyOf", ()) if item.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(map(_type, options)))
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "$ref" in field:
        return "table"
    if choices := _CHOICES.fullmatch(field.get("pattern", "")):
        return ", ".join(f"`{choice}`" for choice in choices[1].split("|"))
    if field.get("type") == "array":
        items = field.get("prefixItems") or [field.get("items", {})]
        kinds = dict.fromkeys(map(_type, items))
        return (
            f"list of {' or '.join(kinds)}"
            if "prefixItems" not in field
            else f"{len(items)} x {next(iter(kinds))}"
        )
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "object": "table",
    }
    return " ".join([words[field["type"]], *_limits(field)])


def _limits(field: Mapping[str, Any]) -> Iterator[str]:
    signs = (("exclusiveMinimum", "> "), ("minimum", ">= "), ("maximum", "<= "))
    limits = [f"{sign}{field[key]:g}" for key, sign in signs if key in field and abs(field[key]) < 1e8]
    if limits:
        yield ", ".join(limits)


def _failures() -> Iterator[Sequence[str]]:
    for code, kind in FAILURES.items():
        bucket = "verifier_errored" if kind.side == "verifier_error" else "errored"
        step = kind.next_step.replace("{job}", "JOB").replace("{task}", "TASK")
        yield f"`{code}`", kind.label, bucket, kind.fault.value, "yes" if kind.is_retried else "no", step


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
