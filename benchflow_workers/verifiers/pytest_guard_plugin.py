"""Pytest plugin that keeps the agent's plugins out of the tests' sessions; no worker imports it.

`pytest_guard` writes it into the sandbox, with a call of `install` as its last line, and
has pytest load it before any other. It runs on the image's Python (3.6 or later) with
the pytest that stands there (6.0 or later), so it imports nothing of ours and keeps to
what those have. Before pytest imports a plugin, it finds the files that this would run,
without running them, and refuses when the agent can have written one of them.
"""

import contextlib
import hashlib
import hmac
import json
import os
import posix
import sys
from functools import lru_cache
from importlib.machinery import ModuleSpec
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import pytest
from _pytest.config import PytestPluginManager, builtin_plugins

if sys.version_info >= (3, 8):
    from importlib.metadata import distributions
else:
    from importlib_metadata import distributions

GUARD: "Optional[Guard]" = None
"""The one of this process, made by `install`."""

CUT_EXIT = 70
"""Exit code of a session that something in it tried to end with 0 before its end."""


class EntryPoint(NamedTuple):
    """A plugin that an installed package declares, and the files that say so."""

    name: str
    module: str
    declared_in: Tuple[str, ...]


class Files:
    """What the agent can have written.

    `changed` in the guard's folder lists its files in the workspace, whose owner and change
    time hardening renewed afterwards. Elsewhere the change time tells: between the agent's
    start and the moment the list was made, where there is a start to trust. No list = no agent.
    """

    def __init__(self, place: str, started: str) -> None:
        listing = os.path.join(place, "changed")
        text, self.since, self.until = b"", 0, 0
        if os.path.exists(listing):
            with open(listing, "rb") as file:
                text = file.read()
        if os.path.exists(os.path.join(place, "dated")):
            self.since = os.stat(started).st_mtime_ns
            self.until = os.stat(listing).st_mtime_ns
        self.listed = frozenset(text.split(b"\0" if b"\0" in text else b"\n"))

    def has(self, path: str) -> bool:
        """Return whether the agent can have written a file, or the link that leads to it."""
        named = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return self._has(named) or self._has(os.path.realpath(path))

    def _has(self, path: str) -> bool:
        while not os.path.lexists(path):  # within an archive, which is the file that counts
            path = os.path.dirname(path)
        return os.fsencode(path) in self.listed or self.since < os.lstat(path).st_ctime_ns < self.until


class Guard:
    """What one pytest process knows and leaves for the worker."""

    def __init__(self, files: Files, workspace: str, markers: str, key: str) -> None:
        self.files = files
        self.workspace = os.path.join(os.path.realpath(workspace), "")
        self.loading: List[str] = []
        self.markers = markers
        self.key = key.encode()
        self.process = os.getpid()
        self.session: Optional[pytest.Session] = None
        self.is_over = False

    def tell(self, word: str, **facts: str) -> None:
        """Leave a line that only who knows the key can seal; tests that took its place away get none."""
        line = json.dumps(dict(facts, word=word, process=self.process), sort_keys=True)
        seal = hmac.new(self.key, line.encode(), hashlib.sha256).hexdigest()
        with contextlib.suppress(OSError), open(self.markers, "a") as file:
            file.write(f"{seal} {line}\n")

    def planted(self, module: str, declared_in: Sequence[str] = ()) -> Optional[str]:
        """Return the first of a plugin's files that the agent can have written; None = none."""
        return next(filter(self.files.has, (*declared_in, *files_of(module))), None)

    def check(self, name: str, module: str, declared_in: Sequence[str] = ()) -> None:
        """End the session before a plugin of the agent's is imported."""
        path = self.planted(module, declared_in)
        if path is not None:
            self.refuse(name, path)

    def refuse(self, name: str, path: str) -> None:
        """Say which file it was, and end the session."""
        self.tell("refused", plugin=name, file=path)
        raise pytest.UsageError(f"Plugin {name!r} is refused: the agent can have written {path}")

    @contextlib.contextmanager
    def watched(self, name: str, module: str) -> Iterator[None]:
        """Refuse modules of the agent's while a plugin from outside the workspace is imported.

        One that stands in the workspace may well import what the agent was asked to change.
        """
        is_outside = not any(os.path.realpath(path).startswith(self.workspace) for path in files_of(module))
        self.loading.append(name if is_outside else "")
        try:
            yield
        finally:
            self.loading.pop()

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> None:
        """Look at what a plugin imports before anybody else is asked, and find nothing."""
        del target
        if self.loading and self.loading[-1]:
            spec = spec_of(name, path, without=self)
            if spec is not None and spec.has_location and spec.origin and self.files.has(spec.origin):
                self.refuse(self.loading[-1], os.path.abspath(spec.origin))

    def exit_code(self, code: int) -> int:
        """Return the exit code for a process that asks to end at once: none ends early and well."""
        if code != 0 or self.session is None or os.getpid() != self.process:
            return code
        if self.is_over:
            return int(self.session.exitstatus)
        self.tell("cut")
        return CUT_EXIT


def files_of(module: str) -> Iterator[str]:
    """Yield the files that importing a module would run, its packages first, without running any."""
    path: Optional[Sequence[str]] = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = spec_of(".".join(parts[: depth + 1]), path)
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield os.path.abspath(spec.origin)
        path = spec.submodule_search_locations


def spec_of(name: str, path: Optional[Sequence[str]], without: Any = None) -> Optional[ModuleSpec]:
    """Return how Python would import a module, from whom it asks, in that order, but for one of them."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    finders = [finder for finder in sys.meta_path if finder is not without and hasattr(finder, "find_spec")]
    specs = (finder.find_spec(name, path) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


@lru_cache(maxsize=8)
def entry_points(search_path: Tuple[str, ...], folder_of_empty: str) -> List[EntryPoint]:
    """Return what installed packages declare as plugins of pytest, in the order they are found.

    An empty entry of the search path is the current folder, so what was found holds for that only.
    """
    del folder_of_empty
    found = []
    for distribution in distributions(path=list(search_path)):
        folder = str(getattr(distribution, "_path", distribution.locate_file("")))
        for point in distribution.entry_points:
            if point.group == "pytest11":
                module = point.value.partition(":")[0].partition("[")[0].strip()
                declared_in = (folder, os.path.join(folder, "entry_points.txt"))
                found.append(EntryPoint(point.name, module, declared_in))
    return found


def install(place: str, *, started: str, workspace: str, markers: str, key: str) -> None:
    """Stand between pytest and its plugins, and between a session and its end.

    Args:
        place: Folder of the guard, with the list of the agent's files.
        started: Mark of the agent's start.
        workspace: Where the agent worked.
        markers: File of the lines to the worker.
        key: What they are sealed with.
    """
    global GUARD
    GUARD = guard = Guard(Files(place, started), workspace, markers, key)
    sys.meta_path.insert(0, guard)
    exit_at_once = os._exit
    manager = PytestPluginManager
    for target, attribute, guarded in (
        (manager, "import_plugin", guarded_import(guard, manager.import_plugin)),
        (manager, "load_setuptools_entrypoints", guarded_load(guard, manager.load_setuptools_entrypoints)),
        (os, "_exit", lambda code: exit_at_once(guard.exit_code(code))),
        (posix, "_exit", lambda code: exit_at_once(guard.exit_code(code))),
    ):
        setattr(target, attribute, guarded)


def guarded_import(guard: Guard, import_plugin: Callable[..., None]) -> Callable[..., None]:
    """Return how pytest imports a plugin by the name of its module, if no package declares one of that name."""

    def guarded(manager: Any, modname: str, consider_entry_points: Any = False) -> None:
        is_known = manager.is_blocked(modname) or manager.get_plugin(modname) is not None
        declared = entry_points(tuple(sys.path), os.getcwd()) if consider_entry_points else []
        if is_known or modname in builtin_plugins or modname in {point.name for point in declared}:
            import_plugin(manager, modname, consider_entry_points=consider_entry_points)
            return
        guard.check(modname, modname)
        with guard.watched(modname, modname):
            import_plugin(manager, modname, consider_entry_points=consider_entry_points)

    return guarded


def guarded_load(guard: Guard, load_entry_points: Callable[..., int]) -> Callable[..., int]:
    """Return how pytest loads plugins that packages declare: the one of a name, or all but the agent's."""

    def guarded(manager: Any, group: str, name: Optional[str] = None) -> int:
        points = entry_points(tuple(sys.path), os.getcwd())
        if name is None:
            for point in points:
                if guard.planted(point.module, point.declared_in) is not None:
                    manager.set_blocked(point.name)
            return load_entry_points(manager, group)
        named = [point for point in points if point.name == name]
        for point in named:
            guard.check(name, point.module, point.declared_in)
        with guard.watched(name, named[0].module if named else name):
            return load_entry_points(manager, group, name)

    return guarded


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say that a session began; workers of pytest-xdist have their controller's."""
    if GUARD is not None and not hasattr(session.config, "workerinput"):
        GUARD.session, GUARD.is_over = session, False
        GUARD.tell("begun")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say that it came to its own end."""
    if GUARD is not None and GUARD.session is session:
        GUARD.is_over = True
        GUARD.tell("ended")
