"""Read a task folder, in either form, into one `Task`; or say everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.errors import TaskError
from benchflow_client.schema.skills import BUNDLED_SKILLS
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_client.tasks.compose import read_compose
from benchflow_client.tasks.config import validate, validate_leniently
from benchflow_client.tasks.document import DOCUMENT_KEYS, read_document
from benchflow_client.tasks.findings import Findings, is_utf8, shown_name, shown_value
from benchflow_client.tasks.layout import (
    Layout,
    check_context,
    read_layout,
    read_strategy,
    warn_about_tests,
)
from benchflow_client.tasks.manifest import has_own_image, read_manifest
from benchflow_client.tasks.profiles import apply_profiles, expand_shorthands
from benchflow_client.tasks.raw import Raw, dotted, value_at
from benchflow_client.tasks.skills import skill_problems
from benchflow_client.tasks.spelling import lift_limits, unify
from benchflow_client.tasks.steps import check_steps, warn_about_steps
from benchflow_client.tasks.task_md import Prompts, read_prompts, split
from benchflow_client.tasks.text import CONFIG_LIMIT_BYTES, PROMPT_LIMIT_BYTES, read_text
from benchflow_client.tasks.toml_file import parse_toml
from benchflow_client.tasks.tree import obstacles
from benchflow_client.tasks.yaml_text import parse_yaml

TASK_FILES = ("task.md", "task.toml")
"""A folder that holds one of these is a task; the first one found decides."""

_MOST_DIFFERENCES = 10
"""Keys that are named when task.md and task.toml disagree."""


_DESCRIPTIONS = {"schema_version", "task", "metadata", "source"}
"""Keys that tell about a task and change nothing in how it is run."""


@dataclass(frozen=True, slots=True)
class _Declared:
    """What one task file (with its prompt) says."""

    config: TaskConfig | None
    instruction: str | None
    document: dict[str, Any] = field(default_factory=dict)
    ignored_keys: tuple[str, ...] = ()
    has_image: bool = True  # also where the file cannot be parsed, so that no second problem is made up


def read_task(folder: Path) -> Task:
    """Read one task folder.

    Args:
        folder: Folder with a task.md, or with a task.toml and an instruction.md.

    Returns:
        The task; its `warnings` say what its author should look at.

    Raises:
        TaskError: It cannot be run as it is; `problems` lists every reason, each
            with file, line where known, and key. Nothing else is raised, whatever
            the folder holds.
    """
    folder = Path(os.path.abspath(folder))
    name, findings = shown_name(folder.name), Findings()
    there = [file for file in TASK_FILES if os.path.lexists(folder / file)]
    if not there:
        raise _not_a_task(folder)
    task = _read(folder, there, findings)
    if task is None:
        raise _unreadable(name, tuple(findings.problems))
    return task


def _not_a_task(folder: Path) -> TaskError:
    problem = "no task.md and no task.toml" if os.path.isdir(folder) else "no such folder"
    return TaskError(
        f"{shown_name(str(folder))!r} is not a task: {problem}.",
        problems=(problem,),
        hint="A task is a folder with a task.md, or with a task.toml and an instruction.md.",
    )


def _unreadable(name: str, problems: tuple[str, ...]) -> TaskError:
    what = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    return TaskError(
        f"Task {name!r} cannot be read: {what}", problems=problems, hint="Correct what is listed."
    )


def _read(folder: Path, there: list[str], findings: Findings) -> Task | None:
    """Return the task, or None when there are problems."""
    for obstacle in obstacles(folder):
        findings.problem(obstacle)
    layout = read_layout(folder, findings)
    declared = _read_md(folder, layout, findings) if "task.md" in there else _read_toml(folder, findings)
    if len(there) == 2 or ("task.md" in there and os.path.lexists(folder / "instruction.md")):
        _compare_forms(folder, declared, findings)
    document = declared.document
    if layout.verifier_dir == "verifier" and (strategy := read_strategy(folder, findings)):
        document = document | {"verifier_strategy": strategy}
    compose = read_compose(folder, declared.config, findings) if layout.has_compose else None
    manifest = read_manifest(folder, document, findings)
    has_image = declared.has_image or has_own_image(manifest)
    if not has_image and not (layout.has_compose and (compose is None or compose.has_image)):
        _check_image(folder, layout, findings)
    if not is_utf8(folder.name):
        findings.problem("the name of the folder is not UTF-8; rename it")
    if findings.problems or declared.config is None:
        return None
    _warn(folder, declared.config, layout, findings)
    return Task(
        name=folder.name,
        form="task.md" if "task.md" in there else "task.toml",
        instruction=declared.instruction or "",
        config=declared.config,
        verifier_dir=layout.verifier_dir,
        oracle_dir=layout.oracle_dir,
        has_dockerfile=layout.has_dockerfile,
        has_compose=layout.has_compose,
        compose=compose,
        manifest=manifest,
        document=document,
        ignored_keys=declared.ignored_keys,
        warnings=tuple(findings.warnings),
    )


def _read_toml(folder: Path, findings: Findings) -> _Declared:
    """Read task.toml and instruction.md."""
    config: TaskConfig | None = None
    ignored: tuple[str, ...] = ()
    has_steps, has_image = False, True
    text = read_text(folder, "task.toml", findings, limit_bytes=CONFIG_LIMIT_BYTES)
    raw = None if text is None else parse_toml(text, "task.toml", findings)
    if raw is not None:
        raw = unify(raw, findings, has_toml_names=True)
        lift_limits(raw)
        has_steps, has_image = bool(raw.data.get("steps")), _names_image(raw)
        of_steps = check_steps(folder, raw, findings, is_lenient=True)
        config, ignored = validate_leniently(TaskConfig, raw, findings)
        ignored = tuple(sorted((*ignored, *of_steps)))
    if has_steps and not os.path.lexists(folder / "instruction.md"):
        return _Declared(
            config, "", ignored_keys=ignored, has_image=has_image
        )  # each step has an instruction of its own
    instruction = read_text(folder, "instruction.md", findings, limit_bytes=PROMPT_LIMIT_BYTES)
    if instruction is not None and not instruction.strip():
        findings.problem("instruction.md: is empty; write what the agent should do")
    return _Declared(config, instruction, ignored_keys=ignored, has_image=has_image)


def _names_image(raw: Raw) -> bool:
    keys = ("docker_image", "bugswarm_image_tag")
    return any(value_at(raw.data, ("sandbox", key)) is not None for key in keys)


def _read_md(folder: Path, layout: Layout, findings: Findings) -> _Declared:
    """Read task.md and prompts/."""
    text = read_text(folder, "task.md", findings, limit_bytes=PROMPT_LIMIT_BYTES)
    parts = None if text is None else split(text, findings)
    if parts is None:
        return _Declared(None, None)
    prompts = read_prompts(folder, parts, findings)
    raw = parse_yaml(parts.front_matter, "task.md", findings, first_line=2)
    if raw is None:
        return _Declared(None, prompts.base)
    raw = expand_shorthands(unify(raw, findings, has_toml_names=False), findings)
    had_image = value_at(raw.data, ("sandbox", "docker_image")) is not None
    apply_profiles(raw, findings)
    lift_limits(raw)
    if layout.has_dockerfile and not had_image and (image := value_at(raw.data, ("sandbox", "docker_image"))):
        findings.warning(
            f"environment/Dockerfile: not built, the profile sets the image {shown_value(image)}"
        )
    has_image, document = _names_image(raw), read_document(raw, folder, findings)
    check_steps(folder, raw, findings, is_lenient=False)
    config = validate(
        TaskConfig, raw, findings, known=(*DOCUMENT_KEYS, "name", "image", "profile", "profiles")
    )
    if not prompts.base and not document.get("scenes"):
        findings.problem("task.md: no prompt; write what the agent should do below the second `---`")
    return _Declared(config, prompts.base, document | _other_prompts(prompts), has_image=has_image)


def _other_prompts(prompts: Prompts) -> dict[str, Any]:
    """Return the prompts that are not the base prompt, for the document."""
    named = {"roles": prompts.roles, "scenes": prompts.scenes, "user_persona": prompts.user_persona}
    given = {key: value for key, value in named.items() if value}
    return {"prompts": given} if given else {}


def _compare_forms(folder: Path, native: _Declared, findings: Findings) -> None:
    """Refuse a task.md whose task.toml and instruction.md do not say the same."""
    for file in ("task.toml", "instruction.md"):
        if not os.path.lexists(folder / file):
            findings.problem(
                f"{file}: missing; beside task.md stand both task.toml and instruction.md, or neither"
            )
            return
    other = _read_toml(folder, findings)
    if native.config is not None and other.config is not None:
        one, two = native.config.model_dump(mode="json"), other.config.model_dump(mode="json")
        for difference in list(_differences(one, two, ()))[:_MOST_DIFFERENCES]:
            findings.problem(f"task.toml: {difference}")
    texts = [_stripped(declared.instruction) for declared in (native, other)]
    if None not in texts and texts[0] != texts[1]:
        findings.problem("instruction.md: differs from the prompt of task.md")


def differences_from_toml(folder: Path, task: Task) -> tuple[str, ...]:
    """Return where a converted task and the task.toml beside its task file would run differently.

    Names and descriptions are not compared: they change nothing.
    """
    findings = Findings()
    other = _read_toml(folder, findings)
    if other.config is not None:
        one, two = (
            config.model_dump(mode="json", exclude=_DESCRIPTIONS) for config in (task.config, other.config)
        )
        for difference in list(_differences(one, two, ()))[:_MOST_DIFFERENCES]:
            findings.problem(f"task.toml: {difference}")
    if other.instruction is not None and _stripped(task.instruction) != _stripped(other.instruction):
        findings.problem("instruction.md: differs from the prompt of task.md")
    return tuple(findings.problems)


def _differences(one: Any, two: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield each key whose values differ between task.md and task.toml."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in dict.fromkeys((*one, *two)):
            yield from _differences(one.get(key), two.get(key), (*path, key))
    elif one != two:
        yield f"{dotted(path)} = {shown_value(two)}, but task.md says {shown_value(one)}"


def _stripped(text: str | None) -> str | None:
    """Return a prompt without blanks at the ends of its lines and of itself."""
    return None if text is None else "\n".join(line.rstrip() for line in text.splitlines()).strip()


def _check_image(folder: Path, layout: Layout, findings: Findings) -> None:
    """Refuse a task without anything to start a sandbox from, or whose build is known to fail."""
    if layout.has_dockerfile:
        check_context(folder, findings)
    elif not any(
        problem.startswith(("environment:", "environment/Dockerfile:")) for problem in findings.problems
    ):
        findings.problem(
            "environment/Dockerfile: missing; add it (or docker-compose.yaml), or name a ready image as docker_image"
        )


def _warn(folder: Path, config: TaskConfig, layout: Layout, findings: Findings) -> None:
    """Add what an author should know although the task can be run."""
    verifier = config.verifier
    if config.steps:
        warn_about_steps(folder, config, findings)
    elif verifier.type == "test-script":
        warn_about_tests(folder, layout.verifier_dir, findings)
    if verifier.workspace_recovery or verifier.submission_files:
        findings.warning("verifier: workspace_recovery and submission_files keep nothing in this version")
    if os.path.lexists(folder / BUNDLED_SKILLS):
        for problem in skill_problems(folder / BUNDLED_SKILLS):
            findings.warning(f"{BUNDLED_SKILLS}: {problem}")
