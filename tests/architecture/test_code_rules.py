"""The rules of the code that no linter checks: sizes, names, who may read what."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchflow_client", "benchflow_workers")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted(
    path for path in (ROOT / "tests").rglob("*.py") if "assets" not in path.relative_to(ROOT).parts
)

MAX_SOURCE_LINES = 400
MAX_TEST_LINES = 500
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 6
BANNED_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base_utils"})
PRINTING_FILES = frozenset({"benchflow_client/cli/render.py"})
SDKS = ("docker", "modal", "daytona", "obstore", "boto3")
HEAVY_MODULES = (*SDKS, "flower", "benchflow_workers")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """Return the path below the repository, for messages."""
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions_of(path: Path) -> Iterator[Function]:
    """Yield every function and method of a file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function):
            yield node


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each imported module with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module, node.lineno


def parameters_of(function: Function) -> list[str]:
    """Return the parameters a caller gives, without self and cls."""
    arguments = function.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in {"self", "cls"}]


def reads_environment(node: ast.AST) -> bool:
    """Return whether the node is os.environ, os.getenv or an import of them."""
    if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb"}:
        return isinstance(node.value, ast.Name) and node.value.id == "os"
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in {"environ", "getenv"} for alias in node.names)
    return False


def test_a_source_file_has_at_most_400_lines() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in (*SOURCES, *SCRIPTS)}

    assert {name: length for name, length in lengths.items() if length > MAX_SOURCE_LINES} == {}


def test_a_test_file_has_at_most_500_lines() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in TESTS}

    assert {name: length for name, length in lengths.items() if length > MAX_TEST_LINES} == {}


def test_a_function_has_at_most_40_lines() -> None:
    """The docstring counts too: a function that needs a page of it does too much."""
    lengths = {
        f"{name_of(path)}:{function.lineno} {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in SOURCES
        for function in functions_of(path)
    }

    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_a_function_takes_at_most_six_parameters() -> None:
    counts = {
        f"{name_of(path)}:{function.lineno} {function.name}": len(parameters_of(function))
        for path in SOURCES
        for function in functions_of(path)
    }

    assert {name: count for name, count in counts.items() if count > MAX_PARAMETERS} == {}


def test_no_parameter_is_a_positional_boolean() -> None:
    found = [
        f"{name_of(path)}:{function.lineno} {function.name}({argument.arg})"
        for path in SOURCES
        for function in functions_of(path)
        for argument in (*function.args.posonlyargs, *function.args.args)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "bool"
    ]

    assert found == []


def test_only_settings_read_the_environment() -> None:
    """And the tiny agent of the test kit, which is a program of its own that runs in sandboxes."""
    found = [
        f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        for path in SOURCES
        if path.name not in {"settings.py", "testing_agent.py"}
        for node in ast.walk(tree_of(path))
        if reads_environment(node)
    ]

    assert found == []


@pytest.mark.parametrize("sdk", SDKS)
def test_a_third_party_sdk_is_imported_in_one_file(sdk: str) -> None:
    importers = {
        name_of(path)
        for path in SOURCES
        for module, _ in imports_of(tree_of(path))
        if module == sdk or module.startswith(f"{sdk}.")
    }

    assert len(importers) <= 1, f"{sdk} is imported in {sorted(importers)}"


def test_only_the_renderer_prints() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in SOURCES
        if name_of(path) not in PRINTING_FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]

    assert found == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    named = [path.relative_to(ROOT) for path in SOURCES]
    found = [path.as_posix() for path in named if BANNED_NAMES & {*path.parent.parts, path.stem}]

    assert found == []


def test_every_module_says_what_it_owns() -> None:
    found = [name_of(path) for path in SOURCES if not ast.get_docstring(tree_of(path))]

    assert found == []


def test_no_file_names_the_machine_it_was_written_on_or_a_package_registry() -> None:
    """Paths are put together here so that this file does not find itself."""
    places = ["/" + "work/", "/tmp/" + "venv", "/root/" + ".pyenv"]
    places += [".".join(host) for host in (("pypi", "org"), ("registry", "npmjs"), ("deb", "debian"))]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [name for name in tracked.stdout.decode().split("\0") if name]
    found = [
        f"{name}: {place}"
        for name in names
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink()
        for place in places
        if place.encode() in (ROOT / name).read_bytes()
    ]

    assert found == []


def test_importing_the_command_line_loads_no_heavy_package() -> None:
    """`bench --help` stays fast, and a laptop needs none of the workers' packages."""
    program = (
        "import sys, benchflow_client.cli.main\n"
        f"print(*(name for name in {HEAVY_MODULES!r} if name in sys.modules))\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )

    assert run.stderr == ""
    assert run.stdout.split() == []
