"""What a benchmark task declares, whichever file format it was written in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchflow_client.schema.base import Record

NetworkMode = Literal["public", "no-network", "allowlist", "denylist"]
"""What a sandbox may reach: everything, nothing, only or all but the named hosts."""

TimeoutS = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A positive, finite number of seconds."""


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


class AgentTable(_Table):
    """How the agent's turn is run."""

    timeout_sec: TimeoutS | None = Field(
        default=None, description="Wall clock of the agent phase in seconds; None = no cap."
    )
    prompt_prefix: str | None = Field(default=None, description="Text put before the prompt.")
    user: str | int | None = Field(
        default=None, description="User that runs the agent; None = the job's sandbox user."
    )
    network_mode: NetworkMode | None = Field(
        default=None, description="Network of the agent phase; None = as the sandbox says."
    )
    allowed_hosts: tuple[str, ...] = Field(default=(), description="Hosts of an allowlist.")


class Healthcheck(_Table):
    """A command that must succeed before the agent starts."""

    command: str = Field(description="Shell command, run as root.")
    interval_sec: TimeoutS = Field(default=5.0, description="Seconds between checks.")
    timeout_sec: TimeoutS = Field(default=30.0, description="Seconds one check may take.")
    start_period_sec: float = Field(default=0.0, ge=0, description="Seconds in which failures do not count.")
    start_interval_sec: TimeoutS = Field(
        default=5.0, description="Seconds between checks in the start period."
    )
    retries: int = Field(default=3, ge=1, description="Failures in a row that mean unhealthy.")


class SetupCommand(_Table):
    """A command run after the sandbox started and before the agent."""

    command: str = Field(description="Shell command.")
    timeout_sec: TimeoutS = Field(default=600.0, description="Seconds it may take.")
    cwd: str | None = Field(default=None, description="Absolute folder; None = the workspace.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables, templates allowed.")
    user: str | int | None = Field(default=None, description="Who runs it; None = root.")
    service: str = Field(default="main", description="Service it runs in.")
    host_lock: str | None = Field(
        default=None, description="Serialise with trials of one host under this name."
    )
    capture_dir: str | None = Field(default=None, description="Folder to keep afterwards.")
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
    url: str | None = Field(default=None, description="Address; None for stdio.")
    command: str | None = Field(default=None, description="Program; None unless stdio.")
    args: tuple[str, ...] = Field(default=(), description="Arguments of the program.")
    cwd: str | None = Field(default=None, description="Folder of the program; None = workspace.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables, templates allowed.")
    headers: dict[str, str] = Field(default_factory=dict, description="HTTP headers, templates allowed.")
    tools: tuple[str, ...] = Field(default=(), description="Only these tools; empty = all.")
    include_tags: tuple[str, ...] = Field(default=(), description="Only tools with one of these tags.")
    exclude_tags: tuple[str, ...] = Field(default=(), description="No tool with one of these tags.")


class SandboxTable(_Table):
    """The machine a task needs."""

    docker_image: str | None = Field(default=None, description="Ready image; None = build environment/.")
    build_timeout_sec: TimeoutS = Field(default=600.0, description="Seconds for build and start.")
    os: Literal["linux", "windows"] = Field(default="linux", description="Operating system.")
    cpus: float | None = Field(default=1.0, gt=0, description="Processor cores; None = no limit.")
    memory_mb: int | None = Field(default=2048, gt=0, description="Memory in MiB; None = no limit.")
    storage_mb: int | None = Field(default=10240, gt=0, description="Disk in MiB; None = no limit.")
    gpus: int = Field(default=0, ge=0, description="Number of GPUs.")
    gpu_types: tuple[str, ...] | None = Field(default=None, description="Acceptable types; None = any.")
    tpu: dict[str, Any] | None = Field(default=None, description="TPU request; None = none.")
    network_mode: NetworkMode = Field(default="public", description="What the sandbox may reach.")
    allowed_hosts: tuple[str, ...] = Field(default=(), description="Hosts of an allowlist.")
    blocked_hosts: tuple[str, ...] = Field(default=(), description="Hosts of a denylist.")
    blocked_urls: tuple[str, ...] = Field(default=(), description="URLs of a denylist.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables for all, templates allowed.")
    workdir: str | None = Field(default=None, description="Absolute workspace; None = the image's.")
    skills_dir: str | None = Field(default=None, description="Where skills are mounted; None = /skills.")
    mcp_servers: tuple[McpServer, ...] = Field(default=(), description="Tool servers for the agent.")
    healthcheck: Healthcheck | None = Field(default=None, description="Gate before the agent; None = none.")
    setup_commands: tuple[SetupCommand, ...] = Field(default=(), description="Run before the agent.")
    bugswarm_image_tag: str | None = Field(default=None, description="Tag of a BugSwarm image; None = none.")


class Hardening(_Table):
    """Opt-outs from hardening."""

    cleanup_conftests: bool = Field(default=True, description="Delete conftest.py files before tests.")


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
    env: dict[str, str] = Field(default_factory=dict, description="Variables, templates allowed.")
    reward_range: tuple[float, float] | None = Field(
        default=None, description="Allowed rewards [lo, hi], lo <= 0, hi >= 1; None = [0, 1]."
    )
    user: str | int | None = Field(default=None, description="User of the tests; None = root.")
    network_mode: NetworkMode | None = Field(
        default=None, description="Network of the tests; None = unfiltered."
    )
    allowed_hosts: tuple[str, ...] = Field(default=(), description="Hosts of an allowlist.")
    sandbox_mode: Literal["shared", "separate"] = Field(default="shared", description="Where the tests run.")
    sandbox: SandboxTable | None = Field(default=None, description="The tests' own sandbox; None = shared.")
    service: str = Field(default="main", description="Service the tests run in.")
    judge: JudgeTable = Field(default_factory=JudgeTable, description="Settings of an llm-judge.")
    memory: MemoryTable = Field(default_factory=MemoryTable, description="Skill-memory scoring.")
    hardening: Hardening = Field(default_factory=Hardening, description="Opt-outs from hardening.")
    pytest_plugins: tuple[str, ...] = Field(default=(), description="Extra pytest plugins to allow.")
    workspace_recovery: bool = Field(default=False, description="Keep the workspace for a later verdict.")
    submission_files: tuple[str, ...] = Field(default=(), description="Keep only these absolute paths.")


class OracleTable(_Table):
    """How the reference solution is run."""

    env: dict[str, str] = Field(default_factory=dict, description="Variables, templates allowed.")
    timeout_sec: TimeoutS | None = Field(default=None, description="Seconds; None = the agent's timeout.")


class Artifact(_Table):
    """A path to keep after the trial."""

    source: str = Field(description="Path in the sandbox.")
    destination: str | None = Field(default=None, description="Path below artifacts/; None = as source.")
    exclude: tuple[str, ...] = Field(default=(), description="Glob patterns left out.")
    service: str = Field(default="main", description="Service it is taken from.")


class TaskConfig(_Table):
    """All that a task file declares."""

    schema_version: str = Field(default="1.3", description="Version of the format; only major 1 is read.")
    task: PackageTable = Field(default_factory=PackageTable, description="Identity as a package.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Free map: difficulty, tags, ...")
    source: str | None = Field(default=None, description="Where the task comes from; None = not said.")
    agent: AgentTable = Field(default_factory=AgentTable, description="The agent's turn.")
    verifier: VerifierTable = Field(default_factory=VerifierTable, description="How a verdict is reached.")
    sandbox: SandboxTable = Field(default_factory=SandboxTable, description="The machine it needs.")
    oracle: OracleTable = Field(default_factory=OracleTable, description="The reference solution.")
    reward: dict[str, Any] = Field(default_factory=dict, description="Declared range and aggregate policy.")
    steps: tuple[dict[str, Any], ...] | None = Field(
        default=None, description="Steps of a multi-step task; None = one step."
    )
    multi_step_reward_strategy: Literal["mean", "final"] | None = Field(
        default=None, description="How step rewards combine; None = mean when there are steps."
    )
    artifacts: tuple[Artifact, ...] = Field(default=(), description="Paths to keep.")


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
    has_compose: bool = Field(description="environment/docker-compose.yaml exists.")
    document: dict[str, Any] = Field(
        default_factory=dict, description="Keys only task.md has: agents, scenes, user, benchflow."
    )
    ignored_keys: tuple[str, ...] = Field(
        default=(), description="Unknown keys of task.toml, kept for the reader."
    )
    warnings: tuple[str, ...] = Field(
        default=(), description="What the author should know; none stops a run."
    )
