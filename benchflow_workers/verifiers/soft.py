"""The tests between two rounds of an agent: the hardened run's steps and script, and no trace of them afterwards.

The agent goes on after it, so nothing of it is killed and its files stay its own. Processes
it left running may watch: tests and what they write are readable by root alone, and both are
removed again. Tests run the agent's programs as root, here as in the hardened run; what such
a program then does as root, no later step undoes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow_client.errors import VerifierError
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import Command, Completed, Sandbox
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR, VerifyContext
from benchflow_workers.verifiers.environment import verifier_environment
from benchflow_workers.verifiers.harden import soft_program
from benchflow_workers.verifiers.programs import PRELUDE, TRUSTED, Arguments, read_receipts, test_program
from benchflow_workers.verifiers.pytest_plugins import PytestUse, pytest_use
from benchflow_workers.verifiers.task_tests import TaskTests, find_tests

__all__ = ["check_softly"]

ROOT_ONLY: Final = 0o700

LATENESS_LIMIT_S: Final = 30.0
"""How long after its deadline a sandbox may still answer before its channel counts as dead."""

_LISTED: Final = "benchflow-process:"

STARTED: Final = """
started() {
  for each in /proc/[0-9]*; do
    { read -r line <"$each/stat"; } 2>/dev/null || continue
    set -- ${line##*) }
    [ $# -ge 20 ] || continue
    parent=$2
    shift 19
    echo "$PREFIX${each#/proc/}:$1:$parent"
  done
}
""".replace("$PREFIX", _LISTED)
"""Number, start and parent of every process."""

COVER: Final = f"""
{STARTED}
known=$(cat) agent=$(id -u "$2" 2>/dev/null)
end_new() {{
  all=$(started) mine=$$ chain=" "
  while [ -n "$mine" ] && [ "$mine" != 0 ]; do
    chain="$chain$mine " above=
    for each in $all; do
      case $each in {_LISTED}"$mine":*) above=${{each##*:}} ;; esac
    done
    mine=$above
  done
  for each in $all; do
    case $known in *"${{each%:*}}:"*) continue ;; esac
    number=${{each#{_LISTED}}} number=${{number%%:*}}
    case $chain in *" $number "*) continue ;; esac
    set -- $(ls -ldn "/proc/$number" 2>/dev/null)
    [ -n "${{3-}}" ] && [ "$3" != "$agent" ] && kill -9 "$number" 2>/dev/null
  done
}}
if [ -n "$agent" ] && [ -n "$known" ]; then end_new; end_new; fi
rm -rf "$1" && {{ [ ! -L /tests ] || rm -f /tests; }} || exit 97
logs={VERIFIER_LOGS_DIR}
rm -rf "$logs"/* "$logs"/.[!.]* "$logs"/..?* && chown 0:0 "$logs" && chmod 0700 "$logs" || exit 97
"""
"""Takes the tests and what they wrote away again, and ends what they left running: a server of theirs would
answer the next tests with the work of this round. What is the agent's lives on."""


async def check_softly(sandbox: Sandbox, context: VerifyContext, logs: Path) -> Completed:
    """Run the tests, copy what they wrote into `logs`, cover their tracks; see `SoftVerifier.check`."""
    tests = find_tests(context.task, context.task_dir)
    use = pytest_use(context.task, tests.folder)
    listing = Command(("sh", "-c", f"{STARTED}started"), timeout_s=context.setup_timeout_s, workdir="/")
    before = await _exec(sandbox, listing)
    try:
        run = await _run(sandbox, context, tests, use)
        if read_receipts(run).has_started:
            await sandbox.get(VERIFIER_LOGS_DIR, logs)
    finally:
        await _cover(sandbox, context, tests, before.stdout)
    return replace(run, stdout=with_gap_marked(run.stdout, run.stdout_bytes))


async def _run(sandbox: Sandbox, context: VerifyContext, tests: TaskTests, use: PytestUse) -> Completed:
    arguments = Arguments(
        tests=tests.target,
        workdir=sandbox.workdir,
        agent_user=context.agent_user,
        interpreter=tests.interpreter,
        kept=context.env,
        may_use_image_plugins=use.may_use_image,
        shadows=use.shadows,
        script=tests.script,
    )
    program = PRELUDE + TRUSTED + soft_program(context.task.config.verifier)
    hardened = await _exec(
        sandbox, Command(arguments.argv(program), timeout_s=context.setup_timeout_s, workdir="/")
    )
    step = read_receipts(hardened).failed_step
    if step or hardened.timed_out or hardened.exit_code != 0:
        raise _unfit(
            context, f"step {step or 'hardening'!r} failed.\n{tail_text(hardened.stderr, limit_chars=500)}"
        )
    await sandbox.put([
        replace(upload, mode=ROOT_ONLY) if upload.target == tests.target else upload
        for upload in tests.uploads()
    ])
    env = verifier_environment(context.task, sandbox.workdir, context.env, use.plugins)
    return await _exec(
        sandbox, Command(arguments.argv(test_program()), timeout_s=context.timeout_s, env=env, workdir="/")
    )


async def _cover(sandbox: Sandbox, context: VerifyContext, tests: TaskTests, before: bytes) -> None:
    """Remove the tests, their output and their processes: nobody may go on with them in place."""
    argv = ("sh", "-c", COVER, "benchflow-cover", tests.target, context.agent_user or "")
    command = Command(argv, timeout_s=context.setup_timeout_s, workdir="/", stdin=before)
    done = await _exec(sandbox, command)
    if done.exit_code != 0 or done.timed_out:
        raise _unfit(
            context, f"the tests could not be removed again.\n{tail_text(done.stderr, limit_chars=500)}"
        )


async def _exec(sandbox: Sandbox, command: Command) -> Completed:
    """Run a command; a sandbox that does not even report its deadline is lost."""
    try:
        async with asyncio.timeout(command.timeout_s + LATENESS_LIMIT_S):
            return await sandbox.exec(command)
    except TimeoutError as error:
        raise VerifierError(
            "verifier.sandbox_lost",
            f"The sandbox did not answer within {command.timeout_s + LATENESS_LIMIT_S:g} s while the tests looked on.",
        ) from error


def _unfit(context: VerifyContext, reason: str) -> VerifierError:
    return VerifierError(
        "verifier.harden_failed",
        f"The tests of task {context.task.name!r} cannot look on between rounds: {reason}",
        hint="The image must let root change /logs/verifier and the folder of the tests.",
    )
