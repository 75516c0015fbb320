"""Flags of `bench run` and `bench submit`, generated from the job spec, and job files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from cyclopts import Parameter, Token
from pydantic import ValidationError

from benchflow_client.errors import JobSpecError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.spending import Caps

FILE_LIMIT_BYTES = 1 << 20
"""A job file is some lines; a larger file is somebody's data."""

_NAMES = {"tasks": ("--tasks",), "effort": ("--effort", "--reasoning-effort")}
"""Flags that are not called as their field, or by one more name."""

_REPEATED = {name for name, field in JobSpec.model_fields.items() if get_origin(field.annotation) is tuple}


def with_spec_flags(
    command: Callable[..., int],
    view: Mapping[str, inspect.Parameter],
    *,
    tasks: str = "",
    left_out: Set[str] = frozenset(),
) -> Callable[..., int]:
    """Return a command whose flags are the fields of `JobSpec` and those of a view.

    Args:
        command: Called with the spec and the view's values by name.
        view: Flags that change what is shown and not what is run.
        tasks: What its tasks are; empty = as the field says.
        left_out: Fields it has no flags for.
    """

    def run(*positional: Any, **flags: Any) -> int:
        seen = {name: flags.pop(name, parameter.default) for name, parameter in view.items()}
        if positional:
            flags["tasks"] = positional[0]
        given = {name: value for name, value in flags.items() if value is not None}
        return command(read_spec(given, seen.pop("file", None)), **seen)

    fields = [name for name in JobSpec.model_fields if name not in left_out]
    parameters = [*(_flag(name, tasks if name == "tasks" else "") for name in fields), *view.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def read_spec(flags: Mapping[str, Any], file: Path | None) -> JobSpec:
    """Return the spec of a job file with flags on top.

    Args:
        flags: Fields given as flags; they win over the file.
        file: Job file in YAML; None = flags only.

    Raises:
        JobSpecError: A key is unknown, a value is wrong, a required one is missing.
    """
    values = {**({} if file is None else _read_file(file)), **flags}
    try:
        return JobSpec.model_validate(values)
    except ValidationError as error:
        raise _spec_error(error, file, flags) from error


def whole_number(kind: Any, tokens: Sequence[Token]) -> int:
    """Return the value of a flag that counts: `2.5` is refused, and not rounded as by default."""
    del kind
    text = tokens[0].value
    if not text.strip().lstrip("+-").isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


@dataclass(frozen=True, slots=True)
class CapFlags:
    """Caps of a job that goes on; what is not given stays as it was."""

    max_cost_usd: Annotated[
        float | None, Parameter(help="US dollars the job may spend, what it has spent included.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Parameter(help="Tokens the job may use, those it has used included.", converter=whole_number),
    ] = None
    max_sandbox_seconds: Annotated[
        float | None, Parameter(help="Seconds its trials may take together, past ones included.")
    ] = None
    max_trials: Annotated[
        int | None, Parameter(help="Trials it may start, past ones included.", converter=whole_number)
    ] = None
    deadline_s: Annotated[
        float | None, Parameter(help="Start nothing later than so many seconds from now.")
    ] = None

    def caps(self) -> Caps | None:
        """Return the caps that were given; None = none of them.

        Raises:
            UsageError: One lets nothing start.
        """
        caps = Caps(*astuple(self))
        return None if caps == Caps() else caps


def _flag(name: str, help_text: str = "") -> inspect.Parameter:
    field = JobSpec.model_fields[name]
    kind: Any = tuple[str, ...] if name in _REPEATED else field.annotation
    names = _NAMES.get(name)
    converter = whole_number if int in (kind, *get_args(kind)) else None
    told = help_text or _help(name)
    parameter = Parameter(name=names, help=told, negative=(), show_default=False, converter=converter)
    is_positional = name == "tasks"
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if is_positional else inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind | None, parameter],
        default=None,
    )


def _help(name: str) -> str:
    field = JobSpec.model_fields[name]
    choices = get_args(field.annotation)
    listed = f" One of {', '.join(choices)}." if choices and all(isinstance(c, str) for c in choices) else ""
    default = field.default
    shown = "" if field.is_required() or default in {None, (), False} else f" [default: {default}]"
    return f"{field.description}{listed}{shown}"


def _read_file(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > FILE_LIMIT_BYTES:
            raise JobSpecError(f"{file} is larger than a job file can be.", hint="Name a YAML job file.")
        values = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise JobSpecError(
            f"The job file {str(file)!r} cannot be read: {error.strerror}.", hint="Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise JobSpecError(
            f"The job file {str(file)!r} is not UTF-8 text.", hint="Save it as UTF-8."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobSpecError(
            f"{file} is not valid YAML{_where(error)}.", hint="Correct it and try again."
        ) from error
    if not isinstance(values, dict):
        raise JobSpecError(
            f"{file} holds no keys.", hint="Write `tasks:` and `agent:`; see examples/job.yaml."
        )
    return {str(key): value for key, value in values.items()}


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"


def _spec_error(error: ValidationError, file: Path | None, flags: Mapping[str, Any]) -> JobSpecError:
    # A misspelt key is also a missing one; the misspelling is what helps.
    errors = error.errors()
    first = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    key, *below = [str(part) for part in first["loc"] if isinstance(part, str)] or [""]
    is_flag = file is None or key in flags
    start = f"--{key.replace('_', '-')}" if is_flag else f"{file}: {key}"
    place = ".".join([start, *below])
    if first["type"] == "missing":
        example = "--agent oracle" if key == "agent" else "bench run TASKS --agent NAME"
        return JobSpecError(
            f"{place} is missing.", hint=f"For example: {example}. `bench agents` lists agents."
        )
    if first["type"] == "extra_forbidden":
        known = AgentSpec.model_fields if below else JobSpec.model_fields
        near = difflib.get_close_matches([key, *below][-1], known, n=1)
        suggestion = f"Did you mean {near[0]!r}? " if near else ""
        return JobSpecError(
            f"{place} is not a key of {'an agent' if below else 'a job'}.",
            hint=f"{suggestion}`bench run --help` lists all.",
        )
    text = first["msg"].removeprefix("Value error, ")
    return JobSpecError(
        f"{place} = {_short(first['input'])}: {text[:1].lower()}{text[1:]}.",
        hint="`bench run --help` says what it takes.",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
