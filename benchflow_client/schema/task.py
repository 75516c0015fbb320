"""What a benchmark task declares, whichever file format it was written in."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.compose import ComposeFile
from benchflow_client.schema.manifest import Manifest
from benchflow_client.schema.task_types import (
    AbsolutePath,
    AllowedHost,
    BlockedHost,
    BlockedUrl,
    Cores,
    Count,
    DelayS,
    EnvMap,
    Flag,
    FreeMap,
    ImageName,
    Mebibytes,
    NetworkMode,
    PlainText,
    Reward,
    TimeoutS,
    User,
    Workdir,
)

__all__ = ["NetworkMode", "Task", "TaskConfig", "TimeoutS"]

_PACKAGE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_NEVER_KEPT = ("/dev", "/logs", "/proc", "/solution", "/sys", "/tests")
"""Folders no submission file may be taken from: they are not the agent's work."""

_MOST_SUBMISSION_FILES = 8
_LONGEST_PATH = 512


def _needs_mode(hosts: tuple[str, ...], info: ValidationInfo, mode: NetworkMode) -> tuple[str, ...]:
    """Refuse hosts without the mode that reads them, and an allowlist that lists nothing."""
    if "network_mode" not in info.data:  # its own problem is reported already
        return hosts
    chosen = info.data["network_mode"]
    if hosts and chosen != mode:
        raise ValueError(f'needs network_mode = "{mode}"')
    if not hosts and chosen == mode == "allowlist":
        raise ValueError('network_mode = "allowlist" needs at least one host')
    return hosts


class _Table(BaseModel):
    """A table of a task file; how unknown keys are treated is the reader's decision."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Author(_Table):
    """A person who wrote the task."""

    name: str = Field(description="Full name.")
    email: str | None = Field(default=None, description="Address; None = not given.")


class PackageTable(_Table):
    """Identity and description of a task as a package."""

    name: str | None = Field(default=None, description="Package id `org/name`; None = not packaged.")
    version: str = Field(default="", description="Free text.")
    description: str = Field(default="", description="One paragraph for people.")
    authors: tuple[Author, ...] = Field(default=(), description="Who wrote it.")
    keywords: tuple[str, ...] = Field(default=(), description="Words to find it by.")

    @field_validator("name")
    @classmethod
    def _package_id(cls, value: str | None) -> str | None:
        if value is not None and (not _PACKAGE_ID.fullmatch(value) or ".." in value):
            raise ValueError("expected org/name of letters, digits, '.', '_' and '-', without '..'")
        return value


class AgentTable(_Table):
    """How the agent's turn is run."""

    timeout_sec: TimeoutS | None = Field(
        default=None, description="Wall clock of the agent phase in seconds; None = no cap."
    )
    prompt_prefix: PlainText | None = Field(default=None, description="Text put before the prompt.")
    user: User | None = Field(
        default=None, description="User that runs the agent; None = the job's sandbox user."
    )
    network_mode: NetworkMode | None = Field(
        default=None, description="Network of the agent phase; None = as the sandbox says."
    )
    allowed_hosts: tuple[AllowedHost, ...] = Field(
        default=(), validate_default=True, description="Hosts of an allowlist."
    )

    @field_validator("network_mode")
    @classmethod
    def _no_denylist(cls, value: NetworkMode | None) -> NetworkMode | None:
        if value == "denylist":
            raise ValueError("a denylist belongs to the sandbox, not to one phase")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _allowlist_only(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _needs_mode(value, info, "allowlist")


class Healthcheck(_Table):
    """A command that must succeed before the agent starts."""

    command: PlainText = Field(description="Shell command, run as root.")
    interval_sec: TimeoutS = Field(default=5.0, description="Seconds between checks.")
    timeout_sec: TimeoutS = Field(default=30.0, description="Seconds one check may take.")
    start_period_sec: DelayS = Field(default=0.0, description="Seconds in which failures do not count.")
    start_interval_sec: TimeoutS = Field(
        default=5.0, description="Seconds between checks in the start period."
    )
    retries: Count = Field(default=3, ge=1, description="Failures in a row that mean unhealthy.")


class SetupCommand(_Table):
    """A command run after the sandbox started and before the agent."""

    command: PlainText = Field(description="Shell command.")
    timeout_sec: TimeoutS = Field(default=600.0, description="Seconds it may take.")
    cwd: AbsolutePath | None = Field(default=None, description="Absolute folder; None = the workspace.")
    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    user: User | None = Field(default=None, description="Who runs it; None = root.")
    service: str = Field(default="main", description="Service it runs in.")
    host_lock: str | None = Field(
        default=None, description="Serialise with trials of one host under this name."
    )
    capture_dir: AbsolutePath | None = Field(default=None, description="Folder to keep afterwards.")
    capture_dir_b64_env: str | None = Field(default=None, description="Variable that gets the captured tar.")
    capture_dir_b64_env_file_var: str | None = Field(
        default=None, description="Variable that gets the path of the captured tar."
    )


class McpServer(_Table):
    """A tool server the agent is told about."""

    name: str = Field(description="Name the agent sees.")
    transport: Literal["sse", "stdio", "streamable-http", "http"] = Field(
        default="sse", description="How to talk to it."
    )
    url: str | None = Field(default=None, validate_default=True, description="Address; None for stdio.")
    command: PlainText | None = Field(
        default=None, validate_default=True, description="Program; None unless stdio."
    )
    args: tuple[str, ...] = Field(default=(), description="Arguments of the program.")
    cwd: str | None = Field(default=None, description="Folder of the program; None = workspace.")
    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    headers: dict[str, PlainText] = Field(
        default_factory=dict, description="HTTP headers, templates allowed."
    )
    tools: tuple[str, ...] = Field(default=(), description="Only these tools; empty = all.")
    include_tags: tuple[str, ...] = Field(default=(), description="Only tools with one of these tags.")
    exclude_tags: tuple[str, ...] = Field(default=(), description="No tool with one of these tags.")

    @field_validator("url", "command")
    @classmethod
    def _reachable(cls, value: str | None, info: ValidationInfo) -> str | None:
        transport = info.data.get("transport")
        needed = "command" if transport == "stdio" else "url"
        if value is None and transport is not None and info.field_name == needed:
            raise ValueError(f"transport {transport} needs a {needed}")
        return value


class SandboxTable(_Table):
    """The machine a task needs."""

    docker_image: ImageName | None = Field(
        default=None, description="Ready image; None = build environment/."
    )
    build_timeout_sec: TimeoutS = Field(default=600.0, description="Seconds for build and start.")
    os: Literal["linux", "windows"] = Field(default="linux", description="Operating system.")
    cpus: Cores | None = Field(default=1.0, description="Processor cores; None = no limit.")
    memory_mb: Mebibytes | None = Field(default=2048, description="Memory in MiB; None = no limit.")
    storage_mb: Mebibytes | None = Field(default=10240, description="Disk in MiB; None = no limit.")
    gpus: Count = Field(default=0, description="Number of GPUs.")
    gpu_types: tuple[str, ...] | None = Field(default=None, description="Acceptable types; None = any.")
    tpu: FreeMap | None = Field(default=None, description="TPU request; None = none.")
    network_mode: NetworkMode = Field(default="public", description="What the sandbox may reach.")
    allowed_hosts: tuple[AllowedHost, ...] = Field(
        default=(), validate_default=True, description="Hosts of an allowlist."
    )
    blocked_hosts: tuple[BlockedHost, ...] = Field(default=(), description="Hosts of a denylist.")
    blocked_urls: tuple[BlockedUrl, ...] = Field(default=(), description="URLs of a denylist.")
    env: EnvMap = Field(default_factory=dict, description="Variables for all, templates allowed.")
    workdir: Workdir | None = Field(default=None, description="Absolute workspace; None = the image's.")
    skills_dir: Workdir | None = Field(default=None, description="Where skills stand; None = /skills.")
    mcp_servers: tuple[McpServer, ...] = Field(default=(), description="Tool servers for the agent.")
    healthcheck: Healthcheck | None = Field(default=None, description="Gate before the agent; None = none.")
    setup_commands: tuple[SetupCommand, ...] = Field(default=(), description="Run before the agent.")
    bugswarm_image_tag: str | None = Field(default=None, description="Tag of a BugSwarm image; None = none.")

    @field_validator("allowed_hosts")
    @classmethod
    def _allowlist_only(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _needs_mode(value, info, "allowlist")

    @field_validator("blocked_hosts", "blocked_urls")
    @classmethod
    def _denylist_only(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _needs_mode(value, info, "denylist")


class Hardening(_Table):
    """How far hardening goes."""

    cleanup_conftests: Flag = Field(default=True, description="Delete conftest.py files before tests.")
    restore_workspace: Flag = Field(
        default=False,
        description="Put the workspace back as it was before the agent; for answers that are elsewhere.",
    )


class JudgeTable(_Table):
    """Settings of a model that grades."""

    model: str = Field(default="claude-sonnet-4-6", description="Judge model.")
    rubric_path: str = Field(default="tests/rubric.toml", description="Rubric, relative to the task.")
    input_dir: str = Field(default="/app", description="Graded folder in the sandbox.")
    input_type: Literal["deliverables"] = Field(default="deliverables", description="What is graded.")
    context: str = Field(default="", description="Text for the judge; empty = the instruction.")


class MemoryTable(_Table):
    """Scoring of skill memory."""

    expected_skills: tuple[str, ...] = Field(default=(), description="Skills that should be used.")


class VerifierTable(_Table):
    """How a verdict is reached."""

    type: Literal["test-script", "llm-judge"] = Field(default="test-script", description="Kind of verifier.")
    timeout_sec: TimeoutS = Field(default=600.0, description="Seconds the test script may take.")
    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    reward_range: tuple[Reward, Reward] | None = Field(
        default=None, description="Allowed rewards [lo, hi], lo <= 0, hi >= 1; None = [0, 1]."
    )
    user: User | None = Field(default=None, description="User of the tests; None = root.")
    network_mode: NetworkMode | None = Field(
        default=None, description="Network of the tests; None = unfiltered."
    )
    allowed_hosts: tuple[AllowedHost, ...] = Field(
        default=(), validate_default=True, description="Hosts of an allowlist."
    )
    sandbox_mode: Literal["shared", "separate"] = Field(default="shared", description="Where the tests run.")
    sandbox: SandboxTable | None = Field(default=None, description="The tests' own sandbox; None = shared.")
    service: str = Field(default="main", description="Service the tests run in.")
    judge: JudgeTable = Field(default_factory=JudgeTable, description="Settings of an llm-judge.")
    memory: MemoryTable = Field(default_factory=MemoryTable, description="Skill-memory scoring.")
    hardening: Hardening = Field(default_factory=Hardening, description="How far hardening goes.")
    pytest_plugins: tuple[str, ...] = Field(default=(), description="Extra pytest plugins to allow.")
    workspace_recovery: Flag = Field(default=False, description="Keep the workspace for a later verdict.")
    submission_files: tuple[AbsolutePath, ...] = Field(
        default=(), description="Keep only these absolute paths."
    )
    collect: tuple[FreeMap, ...] = Field(
        default=(), description="Commands that add to the verdict; kept so that the gate can refuse them."
    )

    @property
    def is_separate(self) -> bool:
        """Whether the tests have a sandbox of their own."""
        return self.sandbox_mode == "separate" or self.sandbox is not None

    @field_validator("reward_range")
    @classmethod
    def _holds_the_unit_interval(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (value[0] <= 0 and value[1] >= 1):
            raise ValueError("expected [lo, hi] with lo <= 0 and hi >= 1")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _allowlist_only(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        return _needs_mode(value, info, "allowlist")

    @field_validator("submission_files")
    @classmethod
    def _can_be_kept(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("workspace_recovery"):
            raise ValueError("workspace_recovery keeps the whole workspace; give one of the two")
        if len(value) > _MOST_SUBMISSION_FILES or any(len(path) > _LONGEST_PATH for path in value):
            raise ValueError(f"at most {_MOST_SUBMISSION_FILES} paths of {_LONGEST_PATH} characters")
        for path in value:
            if any(PurePosixPath(path).is_relative_to(root) for root in _NEVER_KEPT):
                raise ValueError(f"nothing below {', '.join(_NEVER_KEPT)} can be kept")
        return value


class OracleTable(_Table):
    """How the reference solution is run."""

    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    timeout_sec: TimeoutS | None = Field(default=None, description="Seconds; None = the agent's timeout.")


class Artifact(_Table):
    """A path to keep after the trial."""

    source: PlainText = Field(min_length=1, description="Path in the sandbox.")
    destination: PlainText | None = Field(
        default=None, description="Path below artifacts/; None = as source."
    )
    exclude: tuple[str, ...] = Field(default=(), description="Glob patterns left out.")
    service: str = Field(default="main", description="Service it is taken from.")

    @field_validator("destination")
    @classmethod
    def _stays_below(cls, value: str | None) -> str | None:
        if value is not None and (value.startswith("/") or ".." in value.split("/")):
            raise ValueError("expected a path below artifacts/, without '..'")
        return value


class TaskConfig(_Table):
    """All that a task file declares."""

    schema_version: str = Field(default="1.3", description="Version of the format; only major 1 is read.")
    task: PackageTable = Field(default_factory=PackageTable, description="Identity as a package.")
    metadata: FreeMap = Field(default_factory=dict, description="Free map: difficulty, tags, ...")
    source: str | None = Field(default=None, description="Where the task comes from; None = not said.")
    agent: AgentTable = Field(default_factory=AgentTable, description="The agent's turn.")
    verifier: VerifierTable = Field(default_factory=VerifierTable, description="How a verdict is reached.")
    sandbox: SandboxTable = Field(default_factory=SandboxTable, description="The machine it needs.")
    oracle: OracleTable = Field(default_factory=OracleTable, description="The reference solution.")
    reward: FreeMap = Field(default_factory=dict, description="Declared range and aggregate policy.")
    steps: tuple[FreeMap, ...] | None = Field(
        default=None, description="Steps of a multi-step task; None = one step."
    )
    multi_step_reward_strategy: Literal["mean", "final"] | None = Field(
        default=None, description="How step rewards combine; None = mean when there are steps."
    )
    artifacts: tuple[Artifact, ...] = Field(default=(), description="Paths to keep.")

    @field_validator("schema_version")
    @classmethod
    def _major_one(cls, value: str) -> str:
        if not re.fullmatch(r"1(\.\d{1,6}){0,2}", value):
            raise ValueError('expected version 1, e.g. "1.3"')
        return value


class Task(Record):
    """A task folder that was read without a problem.

    Names of folders are relative to the task folder, so the record is true on
    any machine that holds a copy of the folder.
    """

    name: str = Field(description="Name of the folder; unique in a job.")
    form: Literal["task.md", "task.toml"] = Field(description="File that was read.")
    instruction: str = Field(description="The prompt, as written by the author.")
    config: TaskConfig = Field(description="What the task file declares.")
    verifier_dir: str | None = Field(description="`verifier` or `tests`; None = the task has no tests.")
    oracle_dir: str | None = Field(description="`oracle` or `solution`; None = no reference solution.")
    has_dockerfile: bool = Field(description="environment/Dockerfile exists.")
    has_compose: bool = Field(description="environment/docker-compose.yaml (or .yml) exists.")
    compose: ComposeFile | None = Field(
        default=None, description="What that file says; None = there is none."
    )
    manifest: Manifest | None = Field(
        default=None, description="Services that run in the agent's sandbox; None = there are none."
    )
    document: dict[str, Any] = Field(
        default_factory=dict,
        description="What only task.md has: agents, scenes, user, benchflow, and its other prompts.",
    )
    ignored_keys: tuple[str, ...] = Field(
        default=(), description="Unknown keys of task.toml, kept for the reader."
    )
    warnings: tuple[str, ...] = Field(
        default=(), description="What the author should know; none stops a run."
    )
