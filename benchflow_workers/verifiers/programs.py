"""The shell programs that harden a sandbox and run its tests, put together from small parts.

A program talks to the worker on its standard error, one word a line after `RECEIPT`.
The tests write to standard output only, both streams merged in order, so they can
neither send a receipt nor mix with one. Values come as arguments, never as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow_client.schema.task import Task, VerifierTable
from benchflow_workers.agents.user import SYSTEM_PATH
from benchflow_workers.sandbox.base import Completed
from benchflow_workers.verifiers.harden import hardening_program
from benchflow_workers.verifiers.run_folders import LOAD_GUARD, MAKE_STATE, OWN_VARIABLES, PLACES, USE_STATE
from benchflow_workers.verifiers.task_tests import TEST_SCRIPT

__all__ = [
    "Arguments",
    "Receipts",
    "clearing_program",
    "harden_program",
    "one_program",
    "read_receipts",
    "test_program",
]

RECEIPT: Final = "benchflow-verify:"
"""What each line of a program to the worker begins with."""

REFUSED_EXIT: Final = 97
"""Exit code of a program that stopped before the tests; the receipt says why."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a program is told.

    Attributes:
        tests: Folder of the tests in the sandbox.
        workdir: Workspace.
        agent_user: Who the agent was; None = a control.
        interpreter: Of the test script; None = it names none.
        kept: Variables the task sets itself, so the program must not.
        may_use_image_plugins: Look for pytest plugins the image brings.
        judge: Who runs the tests, where that is not root; empty = root.
        shadows: Modules the tests must not take from the workspace.
        script: Name of the script that is run, in the folder of the tests.
        run: Hex digits that no other run has.
        guard: Module of the plugin guard; empty = none is loaded.
        guard_is_copied: The tests drop PYTHONPATH, so the guard must stand among Python's packages.
        folders: Where the scripts go before they run Python.
    """

    tests: str
    workdir: str
    agent_user: str | None
    interpreter: str | None
    kept: Mapping[str, str]
    may_use_image_plugins: bool
    judge: str = ""
    shadows: Sequence[str] = ()
    script: str = TEST_SCRIPT
    run: str = "0"
    guard: str = ""
    guard_is_copied: bool = False
    folders: Sequence[str] = ()

    def argv(self, program: str) -> Sequence[str]:
        """Return the command that runs a program with these arguments."""
        kept = " ".join(sorted(OWN_VARIABLES & set(self.kept)))
        plugins = "yes" if self.may_use_image_plugins else ""
        agent, interpreter = self.agent_user or "", self.interpreter or ""
        last = (self.judge, " ".join(self.shadows), self.script)
        guard = (self.run, self.guard, "yes" if self.guard_is_copied else "", " ".join(self.folders))
        values = (self.tests, self.workdir, agent, interpreter, kept, plugins, *last, *guard)
        return ("sh", "-c", program, "benchflow-verify", *values)


PRELUDE = f"""
set -u
tests=$1 work=$2 agent=$3 interpreter=$4 kept=" $5 " plugins=$6 judge=$7 shadows=$8 script=$9
shift 9
run=$1 guard=$2 copies=$3 folders=$4
{PLACES}
say() {{ echo "{RECEIPT} $*" >&2; }}
fail() {{ say failed "$1"; exit {REFUSED_EXIT}; }}
say begun
system={SYSTEM_PATH}
image_path=${{PATH-}} image_pythonpath=${{PYTHONPATH-}}
PATH=$system:$image_path
"""

TRUSTED = """
only_root_writes() {
  folder=$(cd -P "$1" 2>/dev/null && pwd -P) || return 1
  case $folder/ in
    "$work"/* | /tmp/* | /var/tmp/* | /logs/* | /testbed/* | /home/*) return 1 ;;
  esac
  while :; do
    set -- $(ls -ldn "$folder" 2>/dev/null)
    [ "${3-}" = 0 ] || return 1
    case $1 in ?????w* | ????????w*) return 1 ;; esac
    [ "$folder" != / ] || return 0
    folder=${folder%/*}
    folder=${folder:-/}
  done
}
trusted() {
  kept_entries=
  set -f
  old_ifs=$IFS
  IFS=:
  set -- $1
  IFS=$old_ifs
  set +f
  for entry do
    case $entry in /*) ;; *) continue ;; esac
    case $kept_entries: in *:"$entry":*) continue ;; esac
    case :$system: in
      *:"$entry":*) ;;
      *) only_root_writes "$entry" || continue ;;
    esac
    kept_entries=$kept_entries:$entry
  done
}
only_root_changes() {
  case $1 in /*) ;; *) return 1 ;; esac
  target=$(readlink -f "$1") && [ -f "$target" ] && only_root_writes "${target%/*}" || return 1
  set -- $(ls -ldn "$target")
  [ "$3" = 0 ] || return 1
  case $1 in ?????w* | ????????w*) return 1 ;; esac
}
trusted "$image_path:$system"
safe=${kept_entries#:}
PATH=$safe
case $kept in
  *" PYTHONPATH "*) ;;
  *)
    trusted "$image_pythonpath"
    PYTHONPATH=${kept_entries#:}
    ;;
esac
case $kept in
  *" BASH_ENV "*) ;;
  *) [ -z "${BASH_ENV-}" ] || only_root_changes "$BASH_ENV" || unset BASH_ENV ;;
esac
case $kept in *" PATH "*) PATH=$image_path ;; esac
export PATH PYTHONPATH
"""
"""PATH and PYTHONPATH: what the image declares, in its order, as far as only root can write there. So too the
file that bash runs before a script."""

UNPACK = """
command -v tar >/dev/null 2>&1 || { say no-tar; exit 97; }
tar -x -f - -C / || fail tests
"""
"""The tests come on standard input: one command places and runs them."""

LINK = """
[ -e /tests ] || [ -L /tests ] || ln -s "$tests" /tests
"""
"""Scripts of the older layout find a native task's tests too."""

PLUGIN_SEARCH: Final = """
import os, re
from importlib.metadata import distributions
def only_root_writes(path):
    path = os.path.realpath(path)
    while True:
        status = os.stat(path)
        if status.st_uid != 0 or status.st_mode & 0o022:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)
for dist in distributions():
    for point in dist.entry_points:
        if point.group == "pytest11" and re.fullmatch(r"[A-Za-z0-9_.-]+", point.name):
            if only_root_writes(str(dist.locate_file(""))):
                print(" -p " + point.name, end="")
"""
"""Python 3.8 or later, run by the image's own interpreter; without a single quote."""

PLUGINS = f"""
if [ -n "$plugins" ] && command -v python3 >/dev/null 2>&1; then
  found=$(python3 -I -c '{PLUGIN_SEARCH}' 2>/dev/null) && PYTEST_ADDOPTS="${{PYTEST_ADDOPTS-}}$found" && export PYTEST_ADDOPTS
fi
"""
"""Pytest plugins the image brings where only root can write."""

RUN = """
cd "$work" || fail workspace
umask 022
say started
if [ -n "$interpreter" ] && command -v "$interpreter" >/dev/null 2>&1; then
  exec "$tests/$script" </dev/null 2>&1
elif command -v bash >/dev/null 2>&1; then
  exec bash "$tests/$script" </dev/null 2>&1
fi
exec sh "$tests/$script" </dev/null 2>&1
"""
"""The tests take the program's place, so nothing of it can be found in a list of processes."""


def harden_program(task: Task, agent_user: str | None) -> str:
    """Return the program that makes a sandbox fit for tests, which are placed after it."""
    return PRELUDE + TRUSTED + _steps(task, agent_user) + MAKE_STATE


def clearing_program() -> str:
    """Return the program that makes a service no agent was in fit for tests: no old verdict, a workspace."""
    return PRELUDE + TRUSTED + hardening_program(VerifierTable(), None) + MAKE_STATE


def test_program() -> str:
    """Return the program that runs tests that are already in place."""
    return PRELUDE + LINK + TRUSTED + USE_STATE + PLUGINS + LOAD_GUARD + RUN


def one_program(task: Task, agent_user: str | None) -> str:
    """Return the program that does all of it, the tests' archive on its standard input."""
    harden = harden_program(task, agent_user) + "PATH=$asked\n"
    return harden + UNPACK + LINK + USE_STATE + PLUGINS + LOAD_GUARD + RUN


def _steps(task: Task, agent_user: str | None) -> str:
    return hardening_program(task.config.verifier, agent_user)


@dataclass(frozen=True, slots=True)
class Receipts:
    """What a program told the worker.

    Attributes:
        has_begun: The program ran at all.
        has_started: The tests ran.
        lacks_tar: It could not unpack and changed nothing that matters.
        failed_step: Step that stopped it; empty = none.
    """

    has_begun: bool
    has_started: bool
    lacks_tar: bool
    failed_step: str


def read_receipts(run: Completed) -> Receipts:
    """Return the receipts in what a program left."""
    lines = [
        line.removeprefix(RECEIPT).split()
        for line in run.stderr.decode("utf-8", "replace").splitlines()
        if line.startswith(RECEIPT)
    ]
    said = {words[0]: words[1:] for words in lines if words}
    return Receipts(
        has_begun="begun" in said,
        has_started="started" in said,
        lacks_tar="no-tar" in said,
        failed_step=" ".join(said.get("failed", [])),
    )
