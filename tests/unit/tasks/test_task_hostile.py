"""Whatever is on the disk, a reader answers with a task or a `TaskError`."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import tomli_w
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow_client.errors import TaskError
from benchflow_client.tasks.check import check
from benchflow_client.tasks.discover import discover
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.source import SourceError, parse_source

CONTENT = {
    "task.toml": b'version = "1.0"\n',
    "task.md": b"---\nversion: '1.3'\n---\nDo it.\n",
    "instruction.md": b"Do it.\n",
    "environment/Dockerfile": b"FROM debian:bookworm-slim\n",
    "environment/docker-compose.yaml": b"services: {}\n",
    "verifier/test.sh": b"echo 1 > reward\n",
    "verifier/verifier.md": b"---\nverifier: {strategies: {a: {}}}\n---\n",
    "oracle/solve.sh": b"true\n",
    "prompts/role.a.md": b"x\n",
}
NATIVE = {name for name in CONTENT if name not in {"task.toml", "instruction.md"}}
SPLIT = {"task.toml", "instruction.md", "environment/Dockerfile", "verifier/test.sh", "oracle/solve.sh"}

KEYS = st.sampled_from(
    ["agent", "verifier", "sandbox", "environment", "oracle", "solution", "timeout_sec", "env", "memory", "cpus", "image",
     "steps", "artifacts", "scenes", "agents", "roles", "turns", "user", "benchflow", "prompt", "profile", "profiles", "name",
     "task", "allow_internet", "network_mode", "allowed_hosts", "mcp_servers", "tpu", "metadata", "A", "", "é\n\x00"]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.just(10**400)
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def write(folder: Path, names: set[str], replaced: dict[str, bytes]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(replaced.get(name, CONTENT[name]))


def read_or_refuse(names: set[str], replaced: dict[str, bytes]) -> None:
    """Write a task, read and check it; anything but a task or a TaskError escapes."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "t"
        write(folder, names, replaced)
        with suppress(TaskError):
            task = read_task(folder)
            assert task.model_validate_json(task.model_dump_json()) == task
        for report in check(folder).tasks:
            assert all("\n" not in line for line in report.problems)


OLD = {
    "task.yaml": b"instruction: Do it.\n",
    "docker-compose.yaml": b"services: {client: {build: .}}\n",
    "Dockerfile": b"FROM debian:bookworm-slim\n",
    "run-tests.sh": b"true\n",
    "solution.yaml": b"- command: true\n",
}
FENCED = {
    "task.md": b"Do it.\n\n```toml task\n[agent]\ntimeout = '1m'\n```\n",
    "sandbox/Dockerfile": b"FROM debian:bookworm-slim\n",
    "verifier/test.sh": b"true\n",
}
OLD_KEYS = st.sampled_from(
    ["services", "client", "main", "build", "context", "dockerfile", "image", "command", "environment", "volumes",
     "depends_on", "network_mode", "working_dir", "args", "instruction", "tags", "parser_name", "difficulty",
     "max_agent_timeout_sec", "author_name", "<<", ""]
)  # fmt: skip
OLD_DATA = st.recursive(
    SCALARS | st.sampled_from(["${T_BENCH_X}", "..", "/a", "sleep infinity", "service:client", "pytest"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(OLD_KEYS, inner, max_size=4),
    max_leaves=12,
)
FENCED_KEYS = st.sampled_from(
    ["agent", "sandbox", "verifier", "oracle", "timeout", "network", "memory", "disk", "ready", "outputs", "env",
     "authors", "about", "mount", "name", "path", "allow", "block", "isolation", "interval", "runs", "cpus", "mcp"]
)  # fmt: skip
FENCED_DATA = st.recursive(
    SCALARS | st.sampled_from(["15m", "4 GB", "none", "open", "/tests", "a.org", "separate"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FENCED_KEYS, inner, max_size=4),
    max_leaves=12,
)


def convert_or_refuse(files: dict[str, bytes]) -> None:
    """Write a task of another format, find and check it; anything but a report escapes."""
    with tempfile.TemporaryDirectory() as root:
        folder, room = Path(root) / "suite" / "t", Path(root) / "room"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        found = discover(folder, room=room)
        for entry in found.tasks:
            assert entry.task.model_validate_json(entry.task.model_dump_json()) == entry.task
        for broken in found.broken:
            assert broken.problems
            assert all("\n" not in line for line in broken.problems)


def yaml_of(value: object) -> bytes:
    return b"---\n" + yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "replace") + b"---\nDo it.\n"


def toml_of(value: object) -> bytes:
    def without_none(item: object) -> object:
        if isinstance(item, dict):
            return {key: without_none(inner) for key, inner in item.items() if inner is not None}
        return (
            [without_none(inner) for inner in item if inner is not None] if isinstance(item, list) else item
        )

    return tomli_w.dumps(without_none(value)).encode("utf-8", "replace")


FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(st.sampled_from(sorted(NATIVE)), st.binary(max_size=200))
def test_any_bytes_in_any_file_of_the_native_form(name, content):
    read_or_refuse(NATIVE, {name: content})


@FEW
@given(st.sampled_from(sorted(SPLIT)), st.binary(max_size=200))
def test_any_bytes_in_any_file_of_the_split_form(name, content):
    read_or_refuse(SPLIT, {name: content})


@FEW
@given(st.text(alphabet="-[]{}:,&*!|>'\"#% \n\tab1.~?@`<=", max_size=80))
def test_any_front_matter(text):
    read_or_refuse(NATIVE, {"task.md": f"---\n{text}\n---\nDo it.\n".encode()})


@FEW
@given(st.text(alphabet="[]{}=.,'\"#\\ \nab1-+_:", max_size=80))
def test_any_toml(text):
    read_or_refuse(SPLIT, {"task.toml": text.encode()})


@FEW
@given(st.dictionaries(KEYS, DATA, max_size=5))
def test_any_data_under_known_keys_of_task_md(data):
    read_or_refuse(NATIVE, {"task.md": yaml_of(data)})


@FEW
@given(st.dictionaries(KEYS, DATA, max_size=5))
def test_any_data_under_known_keys_of_task_toml(data):
    read_or_refuse(SPLIT, {"task.toml": toml_of(data)})


@FEW
@given(st.text(alphabet="COPYADD <>-=[]\"'\\`#/.$ab\n", max_size=80))
def test_any_dockerfile(text):
    read_or_refuse(SPLIT, {"environment/Dockerfile": text.encode()})


@FEW
@given(st.sampled_from(sorted(OLD)), st.binary(max_size=200))
def test_any_bytes_in_any_file_of_an_old_task(name, content):
    convert_or_refuse({**OLD, name: content})


@FEW
@given(st.dictionaries(OLD_KEYS, OLD_DATA, max_size=5), st.sampled_from(["task.yaml", "solution.yaml"]))
def test_any_data_under_known_keys_of_an_old_task(data, name):
    convert_or_refuse({**OLD, name: yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "replace")})


@FEW
@given(st.dictionaries(OLD_KEYS, OLD_DATA, max_size=5), st.dictionaries(OLD_KEYS, OLD_DATA, max_size=2))
def test_any_data_in_the_compose_file_of_an_old_task(client, others):
    compose = yaml.safe_dump({"services": {"client": client, **others}}, allow_unicode=True)
    convert_or_refuse({**OLD, "docker-compose.yaml": compose.encode("utf-8", "replace")})


@FEW
@given(st.text(alphabet="`~ \n#-<!>toml taskstage\r\tnotes=[]'", max_size=120) | st.text(max_size=40))
def test_any_text_around_a_settings_block(text):
    convert_or_refuse({**FENCED, "task.md": text.encode("utf-8", "replace") + b"\n" + FENCED["task.md"]})
    convert_or_refuse({**FENCED, "task.md": FENCED["task.md"] + text.encode("utf-8", "replace")})


@FEW
@given(st.dictionaries(FENCED_KEYS, FENCED_DATA, max_size=5))
def test_any_settings_in_a_block(data):
    block = b"Do it.\n\n```toml task\n" + toml_of(data) + b"\n```\n"
    convert_or_refuse({**FENCED, "task.md": block})


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=40) | st.from_regex(r"(https|ssh|file)://[a-z:@\[\]/.0-9-]{0,30}"))
def test_any_source_is_parsed_or_refused(text):
    with suppress(SourceError):
        source = parse_source(text)
        assert source.ref is None or not source.ref.startswith("-")
        assert ".." not in source.folder.split("/")


def replace_by_folder(path: Path) -> None:
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def replace_by_loop(path: Path) -> None:
    os.symlink(path.name, path)


def replace_by_dangling_link(path: Path) -> None:
    os.symlink("nothing", path)


def leave_out(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize("name", [*sorted(CONTENT), "environment", "verifier", "oracle", "prompts"])
@pytest.mark.parametrize(
    "replace", [replace_by_folder, replace_by_pipe, replace_by_loop, replace_by_dangling_link, leave_out]
)
def test_anything_in_place_of_a_file_or_folder(tmp_path, name, replace):
    folder = tmp_path / "t"
    write(folder, NATIVE if name in NATIVE or "." not in name else SPLIT, {})
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    replace(path)

    with suppress(TaskError):
        read_task(folder)
    with suppress(TaskError):
        check(folder)


def test_folder_name_that_is_no_text_is_a_problem_on_one_line(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff\nname"))
    write(folder, SPLIT, {})

    with pytest.raises(TaskError) as caught:
        read_task(folder)

    assert caught.value.problems == ("the name of the folder is not UTF-8; rename it",)
    assert caught.value.message.isprintable()


@contextmanager
def as_nobody():
    """Give up root for a while, since root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "verifier", "environment"])
def test_what_may_not_be_read_is_a_problem(name):
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "t"
        write(folder, SPLIT, {})
        Path(root).chmod(0o755)
        (folder / name).chmod(0)

        with as_nobody(), pytest.raises(TaskError, match=f"{name}: cannot be read: Permission denied"):
            read_task(folder)

        (folder / name).chmod(0o755)
