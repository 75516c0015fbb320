"""Which pytest plugins the tests of a task need, now that none is loaded by itself.

Named by the task, or inferred from what its scripts install and which options they
use; those the image brings are found in the sandbox by `programs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchflow_client.schema.task import Task

__all__ = ["PytestUse", "pytest_use"]

BY_OPTION: Mapping[str, str] = {"--ctrf": "ctrf", "--json-report": "pytest_jsonreport", "--cov": "pytest_cov"}
"""Entry point of the plugin that brings a command-line option."""

BY_PACKAGE: Mapping[str, str] = {
    "pytest-asyncio": "asyncio",
    "pytest-cov": "pytest_cov",
    "pytest-json-ctrf": "ctrf",
    "pytest-json-report": "pytest_jsonreport",
    "pytest-mock": "pytest_mock",
    "pytest-timeout": "timeout",
    "pytest-xdist": "xdist",
}
"""Entry point (group `pytest11`) of a package that a test script installs."""

SCRIPT_PATTERNS = ("*.sh", "requirements*.txt")
"""Files of a tests folder that say what is installed and run."""

TEXT_SUFFIXES = frozenset({".sh", ".py", ".txt", ".toml", ".cfg", ".ini", ""})
"""Of files that may run pytest."""

FILES_READ = 200
"""Files of a tests folder that are searched for pytest; more of them are data."""

READ_LIMIT_BYTES = 256 << 10
"""Bytes read of each; a longer script is not written by hand."""

SHADOWS = (
    "pytest", "_pytest", "pluggy", "iniconfig", "unittest", "sitecustomize", "usercustomize",
    "json", "re", "os", "sys", "io", "abc", "codecs", "pathlib", "posixpath", "subprocess", "typing", "argparse",
    "collections", "functools", "itertools", "operator", "datetime", "time", "math", "random", "hashlib", "shutil",
    "tempfile", "glob", "fnmatch", "csv", "sqlite3", "contextlib", "traceback", "warnings", "importlib", "encodings",
)  # fmt: skip
"""Top-level modules of Python and pytest that no answer of a task is called by."""

PYTEST_SHADOWS = (
    "ast", "inspect", "dataclasses", "tokenize", "token", "types", "enum", "copy", "copyreg", "weakref", "struct",
    "bisect", "heapq", "keyword", "reprlib", "linecache", "dis", "opcode", "locale", "signal", "errno", "logging",
    "string", "textwrap", "threading", "selectors", "select", "socket", "platform", "getpass", "gettext", "pprint",
    "zipfile", "shlex", "uuid", "bdb", "cmd", "pdb", "doctest", "difflib", "code", "codeop", "atexit", "packaging",
    "py", "pygments", "exceptiongroup", "tomllib", "tomli", "faulthandler", "numbers", "decimal", "stat", "genericpath",
    "__future__", "asyncio", "attr", "base64", "binascii", "bz2", "concurrent", "configparser", "contextvars", "email",
    "fcntl", "grp", "hmac", "importlib_metadata", "ipaddress", "lzma", "ntpath", "pkgutil", "pwd", "pyexpat",
    "quopri", "readline", "rlcompleter", "runpy", "sre_compile", "sre_constants", "sre_parse", "ssl", "termios",
    "typing_extensions", "unicodedata", "urllib", "uu", "xml", "zipimport", "zipp", "zlib",
    "_asyncio", "_bisect", "_blake2", "_bootlocale", "_bz2", "_collections_abc", "_colorize", "_compat_pickle",
    "_compression", "_contextvars", "_csv", "_datetime", "_decimal", "_distutils_hack", "_elementtree", "_hashlib",
    "_heapq", "_json", "_lzma", "_markupbase", "_md5", "_opcode", "_opcode_metadata", "_pickle", "_posixsubprocess",
    "_pydatetime", "_pydecimal", "_queue", "_random", "_sha1", "_sha2", "_sha3", "_sha256", "_sha512", "_sitebuiltins",
    "_socket", "_ssl", "_struct", "_typing", "_uuid", "_weakrefset", "_zoneinfo",
)  # fmt: skip
"""What pytest imports besides: an own module of such a name in the folder it runs in would break it anyway."""

ANSWERS = ("array", "calendar", "html")
"""What some versions of pytest import besides, and an answer may be called by: kept where the tests name it."""

_FROM_FOLDER = re.compile(
    r"\bpython[0-9.]*\s+(?:-[A-Za-z]*\s+)*(?:-[A-Za-z]*[mc]\b|-(?=\s|$)|<<)", re.MULTILINE
)
_MODULE_PYTEST = re.compile(r"-[A-Za-z]*m\s+pytest\b")
_OWN_ENVIRONMENT = re.compile(r"\buvx\b|\buv\s+(?:run|venv|tool)\b|-m\s+venv\b|\bvirtualenv\b|\bpipx\b")
_NO_SEARCH_PATH = re.compile(r"\bpython[0-9.]*\s+(?:-\S+\s+)*-[A-Za-z]*[IE]|\btox\b")
_KEEPS_SEARCH_PATH = re.compile(r"""\$\{?PYTHONPATH|(?:environ\.get|getenv)\(\s*["']PYTHONPATH""")
_OTHER_PYTHON = re.compile(
    rf"{_OWN_ENVIRONMENT.pattern}|\b(?:conda|mamba|micromamba|poetry|pdm|hatch|tox|nox)\b|/activate\b|venv"
    r"|\bpython\d\.\d|/bin/(?:python|pytest)"
)
_GOES_TO = re.compile(
    r"""\b(?:cd|pushd)\s+(?:--\s+)?["']?(?:\$\{?BENCHFLOW_AGENT_CWD\}?["']?/)?([A-Za-z0-9_./-]+)"""
)
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class PytestUse:
    """How the tests use pytest.

    Attributes:
        plugins: Entry points to load, in a stable order.
        may_use_image: Pytest is run, and from the image's own Python, whose
            installed plugins are then to be found in the sandbox.
        shadows: Modules that Python, run as these scripts do, would take from the
            workspace before its own; empty = it is not run so.
        is_used: Something of the tests runs pytest.
        resets_path: They run Python without the search path they are given, so a plugin
            must stand among the packages of the image's Python.
        has_other_python: They may run another Python than the image's first.
        folders: Where the scripts go; Python is run there as in the workspace.
    """

    plugins: Sequence[str]
    may_use_image: bool
    shadows: Sequence[str] = ()
    is_used: bool = False
    resets_path: bool = False
    has_other_python: bool = False
    folders: Sequence[str] = ()


def pytest_use(task: Task, folder: Path) -> PytestUse:
    """Return what the scripts of a tests folder say about pytest.

    A script that makes an environment of its own gets only what the task names and
    what it installs itself: a plugin of the image would not be found there.
    """
    text = "\n".join(_read(path) for pattern in SCRIPT_PATTERNS for path in sorted(folder.glob(pattern)))
    inferred = {
        *(name for option, name in BY_OPTION.items() if _has_word(text, option)),
        *(name for package, name in BY_PACKAGE.items() if _has_word(text, package)),
    }
    declared = [name for name in task.config.verifier.pytest_plugins if _NAME.fullmatch(name)]
    plugins = tuple(dict.fromkeys([*declared, *sorted(inferred)]))
    has_own = _OWN_ENVIRONMENT.search(text) is not None
    everything = "\n".join(_texts(folder))
    return PytestUse(
        plugins,
        may_use_image=_has_word(text, "pytest") and not has_own,
        shadows=_shadows(text, everything),
        is_used=_has_word(everything, "pytest"),
        resets_path=_resets_path(everything),
        has_other_python=_OTHER_PYTHON.search(everything) is not None,
        folders=tuple(dict.fromkeys(_GOES_TO.findall(text))),
    )


def _texts(folder: Path) -> Iterator[str]:
    """Yield what may run pytest, its first bytes; most tests are a few files."""
    paths = (path for path in folder.rglob("*") if path.suffix in TEXT_SUFFIXES)
    yield from map(_read, islice(paths, FILES_READ))


def _resets_path(text: str) -> bool:
    lines = (line for line in text.splitlines() if "PYTHONPATH" in line)
    return bool(_NO_SEARCH_PATH.search(text)) or not all(map(_KEEPS_SEARCH_PATH.search, lines))


def _shadows(text: str, everything: str) -> Sequence[str]:
    """Return the modules to keep out of the workspace: more with pytest, which imports them itself."""
    if not _FROM_FOLDER.search(text):
        return ()
    if not _MODULE_PYTEST.search(text):
        return SHADOWS
    return (*SHADOWS, *PYTEST_SHADOWS, *(name for name in ANSWERS if not _has_word(everything, name)))


def _read(path: Path) -> str:
    """Return the start of a script as text; a link, which could lead out of the task, has none."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(READ_LIMIT_BYTES).decode("utf-8", "replace")


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w\-]){re.escape(word)}(?![\w\-])", text) is not None
