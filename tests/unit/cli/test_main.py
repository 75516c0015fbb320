"""What a command answers when something is wrong: an exit code, what, why, what to do, and nothing left."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from benchflow_client.cli.main import main, run_command

Bench = Callable[..., object]
RUN = ("--agent", "nop", "--sandbox", "null")


@contextmanager
def mounted(folder: Path, options: str) -> Generator[Path]:
    """Mount a small file system in memory on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Use every byte of a file system."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def job_files(folder: Path) -> list[str]:
    """Return the files of jobs below a jobs folder; bundles are shared and may stay."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.parts[len(folder.parts)] not in {".bundles", "filler"}
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum"], 'Unknown command "rum". Did you mean "run"?'),
        (["zzzz"], 'Unknown command "zzzz".'),
        (["--nope"], '"--nope"'),
        (["run", "t", "--agnt", "nop"], "Unknown option: --agnt. Did you mean --agent?"),
        (["run", "t", "more", "--agent", "nop"], "more"),
        (["run", "t", "--agent", "nop", "--tries", "abc"], "--tries: 'abc' is no whole number"),
        (["run", "t", "--agent", "nop", "--tries", "-1"], "--tries = -1"),
        (["run", "t", "--agent", "nop", "--max-trials", "2.7"], "--max-trials: '2.7' is no whole number"),
        (["resume", "t", "--max-tokens", "2.7"], "--max-tokens: '2.7' is no whole number"),
        (["resume", "t", "--max-cost-usd", "nan"], "--max-cost-usd = nan lets nothing start"),
        (["limits", "set", "sandbox:nul", "--live", "3"], "Did you mean sandbox:null?"),
        (["limits", "set", "sandbox:null"], "Nothing says what sandbox:null may use."),
        (["limits", "set", "sandbox:null", "--live", "2.5"], "--live: '2.5' is no whole number"),
        (["limits", "set", "sandbox:null", "--live=-1"], "-1 trials cannot be in flight."),
        (["limits", "set", "sandbox:null", "--starts-per-s", "0"], "starts_per_s = 0.0 is no rate."),
        (["limits", "list", "--live", "3"], "`bench limits list` changes no number."),
        (["limits", "clear"], "No bucket is named."),
        (["run", "t", "--agent", "nop", "--sandbox", "moon"], '"moon" for --sandbox'),
        (["run", "t", "--agent"], "--agent"),
        (["run"], "--tasks is missing."),
        (["run", "t"], "--agent is missing."),
        (["run", "t", "--agent", "nop", "--job-name", "../up"], "--job-name = '../up'"),
        (["run", "t", "--agent", "nop", "--job-name", "Has Space"], "--job-name = 'Has Space'"),
        (["run", "-f", "no.yaml"], "'no.yaml' cannot be read: No such file or directory."),
        (["cancel", "j2", "t40"], "`bench cancel` takes no further argument: 't40' is one too many."),
        (["results", "x", "y", "z"], "'y' is one too many."),
        (["results", "nothing-here"], "No job 'nothing-here'"),
        (["results"], "No job '@last'"),
        (["watch"], "No job '@last'"),
        (["fetch", "nothing-here", "out"], "No job 'nothing-here'"),
        (["fetch", "nothing-here"], "--folder requires an argument"),
        (["cancel"], "--job requires an argument"),
        (["new"], "--name requires an argument"),
        (["new", "../up"], "'../up' cannot name a task"),
        (["check", "nowhere"], "nowhere"),
        (["up", "--slots", "many"], "many"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "told",
)
def test_a_command_that_is_wrong_is_answered_with_what_is(
    bench: Bench, home: Path, arguments: list[str], message: str
) -> None:
    done = bench(*arguments)

    assert done.code == 2
    assert done.err.startswith("error  ")
    assert message in " ".join(done.err.split())
    assert done.out == ""
    assert list(home.iterdir()) == []


def test_a_folder_without_tasks_is_told(bench: Bench, home: Path) -> None:
    (home / "empty").mkdir()

    for path, message in (("empty", "There is no task in"), ("emty", "There is no folder")):
        done = bench("run", f"./{path}", *RUN)
        assert (done.code, message in done.err) == (2, True), done.err
    assert not (home / "jobs").exists()


def test_broken_task_files_are_all_named(bench: Bench, tasks: Path, home: Path) -> None:
    (tasks / "one/task.toml").write_text("[agent\n")
    (tasks / "two/task.toml").write_text('[agent]\ntimeout_sec = "ten"\n')

    done = bench("run", tasks, *RUN)

    assert done.code == 2
    assert "2 tasks cannot be read." in done.err
    assert "one: task.toml" in done.err
    assert "two: task.toml" in done.err
    assert not (home / "jobs").exists()


def test_one_broken_task_says_how_to_run_the_others(bench: Bench, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text("[agent\n")

    done = bench("run", tasks, *RUN)
    skipping = bench("run", tasks, *RUN, "--skip-invalid", "--dry-run")

    assert (done.code, "--skip-invalid" in done.err) == (2, True)
    assert (skipping.code, "= 1 trial" in skipping.err) == (0, True)


def test_an_unknown_agent_is_answered_with_the_nearest(bench: Bench, tasks: Path, home: Path) -> None:
    done = bench("run", tasks, "--agent", "orcale", "--sandbox", "null")

    assert done.code == 2
    assert "Agent 'orcale' is not known." in done.err
    assert "Did you mean 'oracle'?" in done.err
    assert not (home / "jobs").exists()


def test_an_agent_file_that_is_not_there_is_told(bench: Bench, tasks: Path, home: Path) -> None:
    done = bench("run", tasks, "--agent", "./mine.sh", "--sandbox", "null")

    assert (done.code, "Agent 'mine.sh' is not a file." in done.err) == (2, True)
    assert not (home / "jobs").exists()


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_broker_that_is_not_there_is_told_with_its_address(
    bench: Bench, tasks: Path, home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", "redis://:hunter2@127.0.0.1:1/0")

    done = bench(command, tasks, *RUN)

    assert done.code == 3
    assert "redis://127.0.0.1:1/0" in done.err
    assert "connection refused" in done.err
    assert "hunter2" not in done.err
    assert not (home / "jobs").exists()


@pytest.mark.parametrize("command", [["jobs"], ["workers"], ["watch"], ["results"], ["cancel", "x"]])
def test_every_command_says_that_the_broker_is_not_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", "redis://127.0.0.1:1/0")

    done = bench(*command)

    assert (done.code, "redis://127.0.0.1:1/0" in done.err) == (3, True)


@pytest.mark.parametrize("command", [["workers"], ["drain", "x"], ["sandboxes"]])
def test_without_any_fleet_a_command_says_how_to_get_one(bench: Bench, command: list[str]) -> None:
    done = bench(*command)

    assert (done.code, "bench up" in done.err) == (3, True)


def test_a_wrong_password_is_told_and_not_shown(
    bench: Bench, tasks: Path, home: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = redis_url.split(":")[2].split("@")[0]
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", redis_url.replace(password, "wrong-word"))

    done = bench("submit", tasks, *RUN)

    assert done.code == 3
    assert "refused the password" in done.err
    assert "wrong-word" not in done.err
    assert not (home / "jobs").exists()


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("BENCHFLOW_BROKER_URL", "amqp://localhost", 3, "redis://:PASSWORD@HOST:6379/0"),
        ("BENCHFLOW_BROKER_URL", "localhost", 3, "redis://:PASSWORD@HOST:6379/0"),
        ("BENCHFLOW_BROKER_URL", "redis://localhost:port/0", 3, "redis://:PASSWORD@HOST:6379/0"),
        ("BENCHFLOW_FLEET", "UPPER", 2, "BENCHFLOW_FLEET"),
        ("BENCHFLOW_S3_ALLOW_HTTP", "perhaps", 2, "BENCHFLOW_S3_ALLOW_HTTP"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    bench: Bench, tasks: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int, message: str
) -> None:
    monkeypatch.setenv(name, value)

    done = bench("submit", tasks, *RUN)

    assert (done.code, message in done.err) == (code, True), done.err


def test_a_store_of_an_unknown_kind_is_told(
    bench: Bench, tasks: Path, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE_URL", "ftp://there")

    done = bench("submit", tasks, *RUN)

    assert (done.code, "'ftp' are not known" in done.err) == (3, True)
    assert broker.keys() == []


def test_a_file_in_place_of_the_jobs_folder_is_told(
    bench: Bench, tasks: Path, home: Path, tmp_path: Path
) -> None:
    (home / "jobs").write_text("mine\n")

    done = bench("run", tasks, *RUN)

    assert (done.code, "The jobs folder 'jobs' cannot be made: File exists." in done.err) == (2, True)
    assert (home / "jobs").read_text() == "mine\n"
    assert not (tmp_path / "state/embedded").exists()


def test_a_file_in_place_of_the_store_is_told(
    bench: Bench, tasks: Path, home: Path, broker: redis.Redis
) -> None:
    (home / "jobs").write_text("mine\n")

    done = bench("submit", tasks, *RUN)

    assert (done.code, str(home / "jobs") in done.err) == (3, True)
    assert broker.keys() == []


@pytest.mark.root
def test_a_jobs_folder_that_cannot_be_written_is_told(
    bench: Bench, tasks: Path, home: Path, tmp_path: Path
) -> None:
    with mounted(home / "jobs", "ro"):
        done = bench("run", tasks, *RUN)

    assert (done.code, "The jobs folder 'jobs' cannot be written." in done.err) == (2, True)
    assert not (tmp_path / "state/embedded").exists()


@pytest.mark.root
def test_a_store_that_cannot_be_written_leaves_nothing_on_the_fleet(
    bench: Bench, tasks: Path, home: Path, broker: redis.Redis
) -> None:
    with mounted(home / "jobs", "ro"):
        done = bench("submit", tasks, *RUN)

    assert (done.code, "Read-only file system" in done.err) == (3, True)
    assert broker.keys() == []


@pytest.mark.root
@pytest.mark.parametrize("has_bundles", [False, True], ids=["bundles", "documents"])
def test_a_full_disk_is_told_and_nothing_is_half_written(
    bench: Bench, tasks: Path, home: Path, broker: redis.Redis, *, has_bundles: bool
) -> None:
    with mounted(home / "jobs", "size=256k") as jobs:
        if has_bundles:
            assert bench("submit", tasks, *RUN, "--job-name", "before").code == 0
        keys = sorted(broker.keys())
        files = job_files(jobs)
        fill(jobs)

        done = bench("submit", tasks, *RUN, "--job-name", "doomed")

        assert (done.code, "no space left" in done.err) == (3, True)
        assert job_files(jobs) == files
        assert sorted(broker.keys()) == keys
        (jobs / "filler").unlink()
        assert bench("submit", tasks, *RUN, "--job-name", "doomed").code == 0


def test_the_name_of_a_job_is_taken_once(bench: Bench, tasks: Path, home: Path, broker: redis.Redis) -> None:
    assert bench("submit", tasks, *RUN, "--job-name", "mine").code == 0
    files, keys = job_files(home / "jobs"), sorted(broker.keys())

    done = bench("submit", tasks, *RUN, "--job-name", "mine")

    assert (done.code, "There is a job 'mine' already" in done.err) == (2, True)
    assert job_files(home / "jobs") == files == ["mine/plan.json", "mine/spec.json"]
    assert sorted(broker.keys()) == keys


def test_a_name_that_only_the_ledger_knows_is_taken_too(
    bench: Bench, tasks: Path, home: Path, broker: redis.Redis
) -> None:
    """The store of another folder cannot know; what was written there is removed again."""
    assert bench("submit", tasks, *RUN, "--job-name", "mine").code == 0
    keys = sorted(broker.keys())

    done = bench("submit", tasks, *RUN, "--job-name", "mine", "--jobs-dir", "other")

    assert (done.code, "A job named 'mine' is already recorded." in done.err) == (2, True)
    assert job_files(home / "other") == []
    assert not (home / "other/mine").exists()
    assert sorted(broker.keys()) == keys


def test_a_broker_without_memory_takes_no_half_of_a_job(
    bench: Bench, tasks: Path, home: Path, broker: redis.Redis
) -> None:
    broker.config_set("maxmemory", "1")
    try:
        done = bench("submit", tasks, *RUN)
    finally:
        broker.config_set("maxmemory", "0")

    assert done.code == 3
    assert done.err.count("error  ") == 1
    assert job_files(home / "jobs") == []
    assert broker.keys() == []


def test_a_command_that_is_done_ends_with_0(bench: Bench, tasks: Path) -> None:
    for arguments in (
        ["agents"],
        ["jobs"],
        ["check", tasks],
        ["new", "mine"],
        ["down"],
        ["--version"],
        ["--help"],
        [],
    ):
        assert bench(*arguments).code == 0, arguments


def test_a_check_that_finds_something_ends_with_1(bench: Bench, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text("[agent\n")

    done = bench("check", tasks)

    assert done.code == 1
    assert "FAIL  one" in done.err
    assert "1 of 2 can be run" in done.err


def test_every_command_has_help(bench: Bench) -> None:
    listed = re.findall(r"^│ ([a-z]+) ", bench("--help").out, re.MULTILINE)

    assert len(listed) >= 15
    for name in listed:
        if name == "worker":
            continue  # becomes another program
        done = bench(name, "--help")
        assert (done.code, f"Usage: bench {name}" in done.out) == (0, True)


def test_the_program_ends_with_the_code_of_its_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["agents"], 0), (["agents", "--nope"], 2)):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == code


def test_the_program_reads_its_own_arguments(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "workers"])

    with pytest.raises(SystemExit) as caught:
        main()

    assert caught.value.code == 3


def test_text_from_outside_is_never_read_as_a_command_to_the_terminal(bench: Bench, home: Path) -> None:
    done = bench("run", "./\x1b[31mred", "--agent", "nop")

    assert (done.code, "\x1b" in done.err) == (2, False)


def test_nothing_is_sent_for_a_dry_run(bench: Bench, tasks: Path, home: Path, tmp_path: Path) -> None:
    done = bench("run", tasks, *RUN, "--dry-run", "--tries", "3")

    assert (done.code, "2 tasks x 1 agent x 3 tries = 6 trials" in done.err, done.out) == (0, True, "")
    assert not (home / "jobs").exists()
    assert not (tmp_path / "state/embedded").exists()


def test_a_command_without_a_name_shows_what_there_is(bench: Bench) -> None:
    assert "bench COMMAND" in bench().out


def test_run_command_takes_any_sequence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(("agents",)) == 0


@pytest.mark.parametrize("name", ["", "codex@", "codex@a version"])
def test_a_name_that_no_agent_can_have_is_an_error_of_use(bench: Bench, name: str) -> None:
    answer = bench("agents", "show", name)

    assert answer.code == 2
    assert "names no agent" in answer.err
