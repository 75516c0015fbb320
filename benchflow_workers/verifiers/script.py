"""The verifier that runs a task's test script and reads the reward it wrote.

After an agent: kill it, harden, place the tests, run them. After a control, where
nobody could have planted anything, all of it is one command in the sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError, VerifierError
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import ROOT, Command, Completed, Sandbox, Upload
from benchflow_workers.sandbox.services import service_sandbox
from benchflow_workers.verifiers.base import FINAL_MESSAGE, Verdict, VerifyContext
from benchflow_workers.verifiers.environment import verifier_environment
from benchflow_workers.verifiers.programs import (
    Arguments,
    clearing_program,
    harden_program,
    one_program,
    read_receipts,
    test_program,
)
from benchflow_workers.verifiers.pytest_guard import Guard, new_guard, with_guard
from benchflow_workers.verifiers.pytest_plugins import PytestUse, pytest_use
from benchflow_workers.verifiers.soft import check_softly
from benchflow_workers.verifiers.task_tests import TaskTests, find_tests
from benchflow_workers.verifiers.verdict import judge_script

__all__ = ["ScriptVerifier"]

ONE_COMMAND_LIMIT_BYTES: Final = 8 << 20
"""Larger tests go by the sandbox's own transfer, which need not hold them in memory."""

PREPARE_ALLOWANCE_S: Final = 2.0
"""What a control's one command may take beyond the tests' own time, to unpack them. A test is never
cut before its time, and at most this much after it."""

LATENESS_LIMIT_S: Final = 30.0
"""How long after its deadline a sandbox may still answer before its channel counts as dead."""

_NO_WORD: Final = Completed(
    exit_code=137,
    stdout=b"",
    stderr=b"",
    stdout_bytes=0,
    stderr_bytes=0,
    timed_out=True,
    oom_killed=False,
    duration_s=0.0,
)


class ScriptVerifier:
    """Runs `test.sh`."""

    async def run(self, sandbox: Sandbox, context: VerifyContext) -> Completed:
        """Stop what the agent left, harden, place the tests, run them.

        A sandbox in which nothing began by the deadline (its channel is dead, not the
        tests slow) is tried once more; the agent is never run again.

        Returns:
            The tests' output, both streams in order on `stdout`, with a line where
            bytes are missing; the receipts of the program on `stderr`.

        Raises:
            VerifierError: `verifier.no_tests`, `verifier.harden_failed`; `verifier.sandbox_lost`
                when the sandbox cannot take a byte or has no workspace.
            SandboxError: The sandbox failed under it.
        """
        tests = find_tests(context.task, context.task_dir)
        place = service_sandbox(sandbox, context.task.config.verifier.service)
        use = pytest_use(context.task, tests.folder)
        work = _Work(sandbox, place, context, tests, use, new_guard())
        await work.stop_agent()
        first = work.together if work.fits_one_command else work.apart
        attempts: Sequence[Callable[[], Awaitable[Completed]]] = (first, work.apart)
        run = _NO_WORD
        for attempt in attempts:
            run = await attempt()
            receipts = read_receipts(run)
            if receipts.has_started or not (run.timed_out or receipts.lacks_tar):
                break
        run = replace(run, stdout=with_gap_marked(run.stdout, run.stdout_bytes))
        return with_guard(run, work.guard) if work.is_guarded and read_receipts(run).has_started else run

    async def check(self, sandbox: Sandbox, context: VerifyContext, logs: Path) -> Completed:
        """Run the tests between two rounds; see `SoftVerifier`."""
        return await check_softly(sandbox, context, logs)

    def judge(self, context: VerifyContext, run: Completed, logs: Path) -> Verdict:
        """Read the verdict from the reward files; never raises for anything the tests wrote."""
        return judge_script(context, run, logs)


@dataclass(frozen=True, slots=True)
class _Work:
    """One run of the tests; a second attempt has the whole set-up budget again, or a dead channel
    would have used it up.

    Attributes:
        sandbox: Where the agent worked: it is stopped there, and what it may have planted goes.
        place: Where the tests run: there, or in a service beside it that no agent was in.
        context: As given.
        tests: Their files.
        pytest: How they use pytest.
        guard: What keeps the agent's plugins out of it.
    """

    sandbox: Sandbox
    place: Sandbox
    context: VerifyContext
    tests: TaskTests
    pytest: PytestUse
    guard: Guard

    @property
    def is_guarded(self) -> bool:
        """Whether pytest is run where it will find the guard: one it is told of and cannot find ends it."""
        use = self.pytest
        return use.is_used and not (use.resets_path and (use.has_other_python or self._user != ROOT))

    @property
    def fits_one_command(self) -> bool:
        """Whether one command may prepare and run: nothing to scan, one user, a small archive."""
        is_control = self.context.agent_user is None
        restores = self.context.task.config.verifier.hardening.restore_workspace
        is_plain = is_control and self._user == ROOT and not restores and self.place is self.sandbox
        return is_plain and self.tests.size_bytes() <= ONE_COMMAND_LIMIT_BYTES

    async def stop_agent(self) -> None:
        """Kill what the agent left running; the sandbox proves that none is left."""
        user = self.context.agent_user
        if user is None:
            return
        try:
            async with asyncio.timeout(self.context.setup_timeout_s):
                await self.sandbox.kill(user)
        except TimeoutError as error:
            raise self._harden_failed(f"was not over after {self.context.setup_timeout_s:g} s") from error
        except SandboxError as error:
            if error.code == "sandbox.lost":
                raise
            raise self._harden_failed(f"failed: {error.message}") from error

    async def together(self) -> Completed:
        """Prepare and run in one command, the tests on its standard input."""
        allowance = min(PREPARE_ALLOWANCE_S, self.context.setup_timeout_s)
        program = one_program(self.context.task, self.context.agent_user)
        run = await self._exec(
            self.sandbox,
            replace(
                self._test_command(program),
                stdin=self.tests.archive(self._beside_tests),
                timeout_s=self.context.timeout_s + allowance,
            ),
        )
        if not run.timed_out:
            _check_prepared(self.context, run)
        return run

    async def apart(self) -> Completed:
        """Harden, place the tests, run them; the tests' time is only theirs."""
        hardened = await self._harden(self.sandbox)
        if hardened.exit_code == 0 and self.place is not self.sandbox:
            hardened = await self._harden(self.place)
        if hardened.exit_code != 0:
            return hardened
        await self.place.put((*self.tests.uploads(), *self._beside_tests))
        run = await self._exec(self.place, self._test_command(test_program()))
        if not run.timed_out:
            _check_prepared(self.context, run)
        return run

    async def _harden(self, sandbox: Sandbox) -> Completed:
        """Make a sandbox fit for the tests; in a service of its own only the place of the verdict is cleared."""
        is_beside = sandbox is not self.sandbox
        program = (
            clearing_program() if is_beside else harden_program(self.context.task, self.context.agent_user)
        )
        arguments = self._arguments(sandbox, agent_user=None if is_beside else self.context.agent_user)
        hardened = await self._exec(
            sandbox, Command(arguments.argv(program), timeout_s=self.context.setup_timeout_s, workdir="/")
        )
        receipts = read_receipts(hardened)
        if hardened.timed_out and receipts.has_begun:
            raise VerifierError(
                "verifier.harden_failed",
                f"Preparing the tests of task {self.context.task.name!r} was not over within the "
                f"{self.context.setup_timeout_s:g} s for set-up.",
                hint="Raise the set-up budget, or start fewer trials at once on this host.",
            )
        _check_prepared(self.context, hardened)
        return hardened

    @property
    def _user(self) -> str | int:
        user = self.context.task.config.verifier.user
        return ROOT if user in {None, 0, "0"} else user

    @property
    def _beside_tests(self) -> Sequence[Upload]:
        """Return what is placed with the tests and is not theirs: the guard, and what the agent said last."""
        guard = self.guard.uploads(self.place.workdir) if self.is_guarded else ()
        message = self.context.message
        return guard if message is None else (*guard, Upload(FINAL_MESSAGE, content=message.encode()))

    def _arguments(self, sandbox: Sandbox, *, agent_user: str | None) -> Arguments:
        return Arguments(
            tests=self.tests.target,
            workdir=sandbox.workdir,
            agent_user=agent_user,
            interpreter=self.tests.interpreter,
            kept=self.context.env,
            may_use_image_plugins=self.pytest.may_use_image,
            judge="" if self._user == ROOT else str(self._user),
            shadows=self.pytest.shadows,
            script=self.tests.script,
            run=self.guard.run,
            guard=self.guard.module if self.is_guarded else "",
            guard_is_copied=self.pytest.resets_path,
            folders=self.pytest.folders,
        )

    def _test_command(self, program: str) -> Command:
        env = verifier_environment(
            self.context.task, self.place.workdir, self.context.env, self.pytest.plugins
        )
        return Command(
            self._arguments(self.place, agent_user=self.context.agent_user).argv(program),
            timeout_s=self.context.timeout_s,
            user=self._user,
            env=env,
            workdir="/",
        )

    async def _exec(self, sandbox: Sandbox, command: Command) -> Completed:
        """Run a command; a sandbox that does not even report its deadline has said nothing."""
        lateness_s = min(LATENESS_LIMIT_S, self.context.setup_timeout_s)
        try:
            async with asyncio.timeout(command.timeout_s + lateness_s) as clock:
                return await sandbox.exec(command)
        except TimeoutError:
            if not clock.expired():
                raise
            return _NO_WORD

    def _harden_failed(self, reason: str) -> VerifierError:
        return VerifierError(
            "verifier.harden_failed",
            f"Killing all processes of user {self.context.agent_user!r} before the tests of task "
            f"{self.context.task.name!r} {reason}",
            hint="No verdict is given while the agent may still act; look at the sandbox host.",
        )


def _check_prepared(context: VerifyContext, run: Completed) -> None:
    """Raise where a program stopped before the tests and said why."""
    step = read_receipts(run).failed_step
    if not step:
        return
    shown = tail_text(run.stderr, limit_chars=500)
    if step in {"disk", "workspace"}:
        what = "takes no more data: its disk is full" if step == "disk" else "has lost its workspace"
        raise VerifierError(
            "verifier.sandbox_lost",
            f"The sandbox of task {context.task.name!r} {what}, so the tests could not run.\n{shown}",
            hint="See what the agent did to it; raise storage_mb where the task needs more.",
        )
    raise VerifierError(
        "verifier.harden_failed",
        f"Step {step!r} before the tests of task {context.task.name!r} failed.\n{shown}",
        hint="The image must let root change /logs/verifier and the folder of the tests.",
    )
