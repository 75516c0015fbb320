"""The tests of a task as files on the way into a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task
from benchflow_client.tasks.strategies import Strategy, strategy_of
from benchflow_workers.sandbox.archive import pack
from benchflow_workers.sandbox.base import Upload
from benchflow_workers.shell_scripts import (
    HEAD_BYTES,
    interpreter_of,
    is_shell_script,
    unix_copies,
    unix_text,
)
from benchflow_workers.verifiers.environment import place_of_tests
from benchflow_workers.verifiers.strategy_script import STRATEGY_SCRIPT, strategy_script

__all__ = ["TEST_SCRIPT", "TaskTests", "find_tests"]

TEST_SCRIPT: Final = "test.sh"
"""The script that is run."""

OPEN_MODE = 0o755
"""The folder was locked while the agent worked; the tests may run as a user of their own."""


@dataclass(frozen=True, slots=True)
class TaskTests:
    """A tests folder, ready to be placed.

    Attributes:
        folder: On the worker.
        target: In the sandbox.
        interpreter: Program of the `#!` line of `test.sh`; None = no such line.
        strategy: What is run in place of `test.sh`; None = `test.sh` is.
    """

    folder: Path
    target: str
    interpreter: str | None
    strategy: Strategy | None = None

    @property
    def script(self) -> str:
        """Return the name of the script that is run, below `target`."""
        return TEST_SCRIPT if self.strategy is None else STRATEGY_SCRIPT

    def size_bytes(self) -> int:
        """Return the bytes of all regular files."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())

    def uploads(self) -> Sequence[Upload]:
        """Return the transfer that places the tests, shell scripts with LF ends, `test.sh` executable."""
        content = self._script_content()
        copies = [
            copy for copy in unix_copies(self.folder, self.target) if copy.target != self._script_target
        ]
        return [
            Upload(self.target, source=self.folder, mode=OPEN_MODE),
            *copies,
            Upload(self._script_target, content=content, mode=OPEN_MODE),
        ]

    def archive(self, more: Sequence[Upload] = ()) -> bytes:
        """Return the same transfer, and more, as a tar archive to unpack at `/`.

        Raises:
            SandboxError: `sandbox.transfer_failed` when a file cannot be read.
        """
        with pack((*self.uploads(), *more)) as file:
            return file.read()

    def _script_content(self) -> bytes:
        if self.strategy is not None:
            return strategy_script(self.strategy, self.target)
        content = (self.folder / TEST_SCRIPT).read_bytes()
        return unix_text(content) if is_shell_script(TEST_SCRIPT, content[:HEAD_BYTES]) else content

    @property
    def _script_target(self) -> str:
        return f"{self.target}/{self.script}"


def find_tests(task: Task, task_dir: Path) -> TaskTests:
    """Return the tests of a task.

    Raises:
        VerifierError: `verifier.no_tests` when there is no test script.
    """
    folder = None if task.verifier_dir is None else task_dir / task.verifier_dir
    strategy = strategy_of(task)
    if folder is not None and strategy is not None:
        return _with_strategy(task, folder, strategy)
    if folder is None or not (folder / TEST_SCRIPT).is_file():
        place = f"{task.verifier_dir or 'tests'}/{TEST_SCRIPT}"
        raise VerifierError(
            "verifier.no_tests",
            f"Task {task.name!r} has no {place}, so it cannot be scored.",
            hint="Add the script, and let it write a number to /logs/verifier/reward.txt.",
        )
    with (folder / TEST_SCRIPT).open("rb") as file:
        interpreter = interpreter_of(file.read(HEAD_BYTES))
    return TaskTests(folder, place_of_tests(task), interpreter)


def _with_strategy(task: Task, folder: Path, strategy: Strategy) -> TaskTests:
    kit = folder / strategy.kit_root / strategy.entrypoint
    for needed in (kit, folder / strategy.criteria) if strategy.is_kit else ():
        if not needed.exists():
            raise VerifierError(
                "verifier.no_tests",
                f"Task {task.name!r} has no {needed.relative_to(folder.parent)}, "
                f"which strategy {strategy.name!r} of verifier.md names.",
                hint="Add the file, or correct verifier/verifier.md.",
            )
    return TaskTests(folder, place_of_tests(task), None, strategy)
