"""Agents that can be named: the table of all, and all that is known of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchflow_client.report.blocks import Column, Line, Report, Row, Table
from benchflow_client.schema.agent_definition import AgentDefinition, Npm
from benchflow_client.wording import NONE

if TYPE_CHECKING:  # the records are only read here
    from benchflow_client.catalog.agents import AgentEntry


_KINDS = {
    "control": "control: it checks the task itself",
    "script": "script: a program of yours",
    "cli": "cli: ready-made, run by its command line",
    "acp": "acp: ready-made, talked to over the Agent Client Protocol",
    "factory": "factory: Python code that is installed where the workers run",
}


def agents_report(entries: Sequence[AgentEntry]) -> Report:
    """Return the table of agents that can be named."""
    columns = (Column("agent"), Column("kind"), Column("version"), Column("what it does"))
    return (Table(columns, tuple(map(_row, entries))),)


def agent_record(entry: AgentEntry) -> dict[str, Any]:
    """Return one agent as a JSON object; a ready-made one with its whole definition."""
    record: dict[str, Any] = {"name": entry.name, "description": entry.description, "kind": entry.kind}
    definition = entry.definition
    return record if definition is None else {**record, **definition.model_dump(mode="json")}


def agent_report(entry: AgentEntry) -> Report:
    """Return what is known of one agent."""
    facts = [(entry.name, entry.description), ("kind", _KINDS[entry.kind])]
    if entry.definition is not None:
        facts.extend(_facts(entry.definition))
    width = max(len(label) for label, text in facts if text)
    return tuple(Line(text, label=f"{label:{width}}") for label, text in facts if text)


def _row(entry: AgentEntry) -> Row:
    definition = entry.definition
    version = NONE if definition is None else definition.version or NONE
    also = f" Also {', '.join(definition.aliases)}." if definition is not None and definition.aliases else ""
    return Row((entry.name, entry.kind, version, entry.description + also))


def _facts(definition: AgentDefinition) -> Iterator[tuple[str, str]]:
    """Yield label and text of what is known of a ready-made agent; empty = nothing."""
    install = definition.install
    yield "version", definition.version
    yield "also", ", ".join(definition.aliases)
    yield "speaks", ", ".join(definition.dialects) or "what the model's provider speaks"
    if isinstance(install, Npm):
        words = ("${version}", definition.version)
        yield "installed", f"once a host: {' '.join(package.replace(*words) for package in install.packages)}"
    else:
        script = install.script.replace("${version}", definition.version)
        yield "installed", f"in each sandbox, at most {install.timeout_s:g} s: {script}"
    yield "needs", "--model provider/name" if definition.needs_model and not definition.default_model else ""
    yield "model", definition.default_model or ""
    yield "variables", ", ".join(definition.requires_env)
    yield "effort", "--effort LEVEL" if definition.takes_effort else "takes none"
    yield "skills", ", ".join(definition.skill_paths)
    yield "login", "" if definition.login is None else f"~/{definition.login.detect} of the worker's user"
