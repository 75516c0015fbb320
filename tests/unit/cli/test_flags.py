"""Flags, keys of a job file and arguments of `JobSpec` are one set, and what is wrong is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclopts import App

from benchflow_client.cli.flags import FILE_LIMIT_BYTES, read_spec, with_spec_flags
from benchflow_client.cli.main import run_command
from benchflow_client.cli.run import VIEW
from benchflow_client.errors import JobSpecError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec

EVERY_FIELD: dict[str, Any] = {
    "tasks": "examples/tasks",
    "agent": ["oracle", "./mine.sh"],
    "model": "gpt-9",
    "agent_env": ["KEY", "MODE=fast"],
    "effort": "high",
    "temperature": 0.2,
    "top_p": 0.9,
    "max_output_tokens": 4096,
    "tries": 3,
    "concurrency": 7,
    "sandbox": "null",
    "include": ["a*", "b*"],
    "exclude": ["c*"],
    "limit": 5,
    "timeout_multiplier": 2.5,
    "agent_timeout_s": 60.0,
    "agent_idle_timeout_s": 30.0,
    "sandbox_user": "root",
    "sandbox_locked_paths": ["/data", "/srv/answers.d"],
    "max_attempts": 2,
    "weight": 2.0,
    "priority": 7,
    "max_cost_usd": 12.5,
    "max_tokens": 1000,
    "max_sandbox_seconds": 3600.0,
    "max_trials": 9,
    "deadline_s": 7200.0,
    "trial_cost_usd": 0.5,
    "trial_tokens": 100,
    "stop_after_failures": 3,
    "freeze_workspace": True,
    "capture_tokens": "auto",
    "separate_verifier": True,
    "separate_verifier_include": ["/opt/tool", "/srv/data"],
    "loop": "verify-retry:k=2,feedback=raw",
    "user": "patient",
    "skill_mode": "with-skill",
    "skills_dir": "skills",
    "environment_manifest": "notes@v1",
    "job_name": "my-job",
    "jobs_dir": "out",
    "skip_invalid": True,
}

FileMaker = Callable[[str], Path]


@pytest.fixture
def job_file(tmp_path: Path) -> FileMaker:
    def write(text: str) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path

    return write


def parsed(*arguments: str) -> tuple[JobSpec, dict[str, Any]]:
    """Return the spec and the view that a command line leads to."""
    seen: list[tuple[JobSpec, dict[str, Any]]] = []

    def take(spec: JobSpec, **view: Any) -> int:
        """Take it."""
        seen.append((spec, view))
        return 0

    app = App(result_action="return_value")
    app.default(with_spec_flags(take, VIEW))
    app(list(arguments), exit_on_error=False, print_error=False)
    return seen[0]


def as_arguments(fields: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in fields.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        else:
            for item in value if isinstance(value, list) else [value]:
                arguments += [flag, str(item)]
    return arguments


def refusal(flags: Mapping[str, Any], file: Path | None = None) -> JobSpecError:
    with pytest.raises(JobSpecError) as caught:
        read_spec(flags, file)
    return caught.value


def test_the_test_names_every_field() -> None:
    assert set(EVERY_FIELD) == set(JobSpec.model_fields) - {"skill_creator_dir"}
    assert {name for name in EVERY_FIELD if JobSpec.model_fields[name].default == EVERY_FIELD[name]} == set()


def test_flags_a_job_file_and_arguments_say_the_same(job_file: FileMaker) -> None:
    from_flags, _ = parsed(*as_arguments(EVERY_FIELD))

    from_file = read_spec({}, job_file(yaml.safe_dump(EVERY_FIELD)))

    assert from_flags == from_file == JobSpec(**EVERY_FIELD)


def test_a_folder_of_skills_is_refused_where_its_mode_does_not_use_it() -> None:
    """The one setting that does not go together with all the others has this mode of its own."""
    spec = {"tasks": "t", "agent": ["nop"], "skill_mode": "self-gen", "skill_creator_dir": "creators"}

    assert parsed(*as_arguments(spec))[0] == JobSpec(**spec)
    for fields in (
        {"skills_dir": "s"},
        {"skills_dir": "s", "skill_mode": "self-gen"},
        {"skill_creator_dir": "s"},
    ):
        error = refusal({"tasks": "t", "agent": ["nop"], **fields})
        assert "it is used with skill_mode" in error.message
    assert "a loop or a user" in refusal({**spec, "loop": "self-review:k=1"}).message


def test_help_lists_every_field_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "submit"):
        assert run_command([command, "--help"]) == 0
        listed = set(re.findall(r"^│ (?:TASKS )?--([a-z-]+)", capsys.readouterr().out, re.MULTILINE))

        assert {name.replace("-", "_") for name in listed} == {*JobSpec.model_fields, *VIEW}


def test_help_says_what_each_field_is_and_what_happens_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_command(["run", "--help"])
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())

    assert "How often each agent tries each task. [default: 1]" in text
    assert "One of auto, docker, local, null. [default: auto]" in text
    assert "[default: None]" not in text
    assert "[default: ()]" not in text


def test_the_view_is_no_part_of_the_job() -> None:
    spec, view = parsed("t", "--agent", "nop", "--dry-run", "--json")

    assert spec == JobSpec(tasks="t", agent=("nop",))  # type: ignore[arg-type]
    assert view == {"dry_run": True, "json": True, "resume": None, "fresh": False}
    assert parsed("t", "--agent", "nop")[1] == {
        "dry_run": False,
        "json": False,
        "resume": None,
        "fresh": False,
    }


def test_the_tasks_may_be_named_with_or_without_their_flag() -> None:
    assert parsed("t", "--agent", "nop") == parsed("--agent", "nop", "--tasks", "t")


def test_a_flag_wins_over_the_file_and_the_rest_of_the_file_stands(job_file: FileMaker) -> None:
    file = job_file("tasks: from-file\nagent: [oracle, nop]\ntries: 5\nskip_invalid: true\nlimit: 2\n")

    spec, _ = parsed("--file", str(file), "--tries", "2", "--agent", "nop")

    assert (spec.tasks, spec.tries, spec.skip_invalid, spec.limit) == ("from-file", 2, True, 2)
    assert spec.agent == (AgentSpec(name="nop"),)
    assert parsed("given", "-f", str(file))[0].tasks == "given"


def test_an_agent_of_a_file_may_be_a_table(job_file: FileMaker) -> None:
    file = job_file("tasks: t\nagent:\n  - name: oracle\n    timeout_s: 5\n  - nop\n")

    assert read_spec({}, file).agent == (AgentSpec(name="oracle", timeout_s=5), AgentSpec(name="nop"))


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes("\ufefftasks: t\nagent: nop\n".encode())

    assert read_spec({}, file).tasks == "t"


def test_an_unknown_key_names_the_file_and_the_nearest_key(job_file: FileMaker) -> None:
    file = job_file("tasks: t\nagent: nop\ntimeout_multiplyer: 2\n")

    error = refusal({}, file)

    assert error.message == f"{file}: timeout_multiplyer is not a key of a job."
    assert error.hint == "Did you mean 'timeout_multiplier'? `bench run --help` lists all."


def test_a_misspelt_key_is_not_called_a_missing_one(job_file: FileMaker) -> None:
    wrong = refusal({}, job_file("tasks: t\nagnt: nop\n"))
    nested = refusal({}, job_file("tasks: t\nagent: [{nam: nop}]\n"))

    assert "agnt is not a key of a job" in wrong.message
    assert "Did you mean 'agent'?" in wrong.hint
    assert "Did you mean 'name'?" in nested.hint


@pytest.mark.parametrize("key", ["zzzzzz", "null", "1"])
def test_a_key_that_is_near_nothing_is_only_named(job_file: FileMaker, key: str) -> None:
    error = refusal({}, job_file(f"tasks: t\nagent: nop\n{key}: 2\n"))

    assert "is not a key of a job" in error.message
    assert error.hint == "`bench run --help` lists all."


def test_a_wrong_value_of_a_flag_names_the_flag(job_file: FileMaker) -> None:
    file = job_file("tasks: t\nagent: nop\n")

    for place in (None, file):
        error = refusal({"tasks": "t", "agent": ("nop",), "tries": 0}, place)
        assert error.message == "--tries = 0: input should be greater than or equal to 1."
    error = refusal({"tasks": "t", "agent": ("nop",), "agent_env": ("A-B",)})
    assert error.message == "--agent-env = ('A-B',): 'A-B' is neither NAME nor NAME=VALUE."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tries: ten", "tries = 'ten': input should be a valid integer"),
        ("tries: [1]", "tries = [1]: input should be a valid integer"),
        ("job_name: 2026-11-29", "job_name = datetime.date(2026, 11, 29): input should be a valid string"),
        ("agent: [{name: ''}]", "agent.name = '': string should have at least 1 character"),
        ("agent: [{model: x}]", "agent.name is missing"),
        ("agent: [{nam: x}]", "agent.nam is not a key of an agent"),
        ("agent: [{name: x, timeout_s: -1}]", "agent.timeout_s = -1: input should be greater than 0"),
        ("sandbox: moon", "sandbox = 'moon': input should be 'auto', 'docker', 'local' or 'null'"),
        ("include: 3", "include = 3: input should be a valid tuple"),
        (f"model: [{'x' * 200}]", "..."),
    ],
)
def test_a_wrong_value_of_a_file_names_file_key_and_value(
    job_file: FileMaker, line: str, message: str
) -> None:
    values = {"tasks": "tasks: t", "agent": "agent: nop", line.partition(":")[0]: line}
    file = job_file("\n".join(values.values()))

    error = refusal({}, file)

    assert error.message.startswith(f"{file}: ")
    assert message in error.message
    assert len(error.message) < 220


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tasks: t\nagent: [nop\n", " (line 3, column 1)"),
        ("tasks: t\n\tagent: nop\n", " (line 2, column 1)"),
        ("tasks: t\nwhen: 2026-13-45\n", ""),
        ("tasks: !!python/object:os.system t\n", " (line 1, column 8)"),
        ("[" * 1500, ""),
        ("a: &a [*a]\n? [x]\n: 1\n", " (line 2, column 3)"),
        ("tasks: \x01\n", ""),
    ],
    ids=["bracket", "tab", "date", "object", "depth", "key", "control"],
)
def test_broken_yaml_is_told_with_its_place(job_file: FileMaker, text: str, place: str) -> None:
    file = job_file(text)

    error = refusal({}, file)

    assert error.message == f"{file} is not valid YAML{place}."


@pytest.mark.parametrize("text", ["", "just words\n", "- a\n- b\n", "42\n"])
def test_a_file_without_keys_is_told_what_to_write(job_file: FileMaker, text: str) -> None:
    file = job_file(text)

    error = refusal({}, file)

    assert error.message == f"{file} holds no keys."
    assert "`tasks:` and `agent:`" in error.hint


def test_a_missing_agent_or_task_is_asked_for(job_file: FileMaker) -> None:
    file = job_file("tasks: t\n")

    assert refusal({"tasks": "t"}).message == "--agent is missing."
    assert "--agent oracle" in refusal({"tasks": "t"}).hint
    assert refusal({}, file).message == f"{file}: agent is missing."
    assert refusal({"agent": ("nop",)}).message == "--tasks is missing."
    assert "bench run TASKS --agent NAME" in refusal({"agent": ("nop",)}).hint


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    missing, latin, huge = tmp_path / "no.yaml", tmp_path / "latin.yaml", tmp_path / "huge.yaml"
    latin.write_bytes(b"tasks: caf\xe9\n")
    huge.write_bytes(b"#" * (FILE_LIMIT_BYTES + 1))

    assert f"{str(missing)!r} cannot be read: No such file or directory." in refusal({}, missing).message
    assert f"{str(tmp_path)!r} cannot be read: Is a directory." in refusal({}, tmp_path).message
    assert "is not UTF-8 text" in refusal({}, latin).message
    assert "larger than a job file can be" in refusal({}, huge).message
