"""The `bench` command: commands are imported when they are used."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Sequence
from typing import Any, Final

from cyclopts import App
from cyclopts.exceptions import CycloptsError, UnusedCliTokensError

from benchflow_client.errors import BenchflowError, UsageError

_GROUPS: Final[dict[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    "Run": (
        "benchflow_client.cli.run",
        (
            ("run", "Run a job and show its numbers."),
            ("submit", "Submit a job and return at once."),
        ),
    ),
    "Jobs": (
        "benchflow_client.cli.jobs",
        (
            ("watch", "Watch a job until it ends."),
            ("jobs", "List jobs."),
            ("results", "Show the numbers of a job."),
            ("cancel", "Stop a job."),
            ("pause", "Start no more trials of a job."),
            ("recover", "Take up a job of the store that the fleet does not know."),
            ("resume", "Go on with a job, or run trials of an ended one again."),
            ("fetch", "Copy a job's documents into a folder."),
        ),
    ),
    "Verdicts": (
        "benchflow_client.cli.regrade",
        (("regrade", "Judge the kept workspaces of a job again."),),
    ),
    "Skills": (
        "benchflow_client.cli.skills",
        (("skills", "Evaluate a skill, or tell what skills changed."),),
    ),
    "Machines": (
        "benchflow_client.cli.fleet",
        (
            ("worker", "Serve trials on this machine."),
            ("workers", "List workers."),
            ("drain", "Stop a worker; its trials run elsewhere."),
            ("up", "Start a fleet on this machine and leave it running."),
            ("down", "Stop the fleet of `bench up`."),
            ("doctor", "Check this machine."),
            ("agents", "List agents."),
        ),
    ),
    "Limits": (
        "benchflow_client.cli.limits",
        (("limits", "Show or change what the fleet may use at once."),),
    ),
    "Chaos": (
        "benchflow_client.cli.chaos",
        (("chaos", "Hurt a job of its own, touch nothing you do not name, and check that nothing is lost."),),
    ),
    "Probe": (
        "benchflow_client.cli.probe",
        (("probe", "Cheat at a task in every known way; exit 1 when a trick scored."),),
    ),
    "Sandboxes": (
        "benchflow_client.cli.sandboxes",
        (("sandboxes", "List, audit or clean the fleet's sandboxes."),),
    ),
    "Tasks": (
        "benchflow_client.cli.tasks",
        (
            ("new", "Make a task folder."),
            ("check", "Read tasks and list every problem."),
            ("import", "Write tasks of other formats as folders that are read as they are."),
        ),
    ),
}
"""Group -> (module, its commands with one line each)."""


def make_app() -> App:
    """Return the command line with every command known by name and none imported."""
    app = App(
        name="bench",
        help="Run agents on benchmark tasks, on this machine or on a fleet.",
        version_flags=["--version"],
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for group, (module, commands) in _GROUPS.items():
        for name, summary in commands:
            # The worker program has flags of its own and answers --help itself.
            flags: dict[str, Any] = {"help_flags": [], "version_flags": []} if name == "worker" else {}
            function = f"{name}_" if keyword.iskeyword(name) else name
            app.command(f"{module}:{function}", name=name, help=summary, group=group, **flags)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 no verdict or a failed check, 2 usage, 3 infrastructure."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else list(arguments)))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; an expected error is shown, never a traceback."""
    try:
        code = make_app()(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        return _show(UsageError(_problem(error), hint="`bench COMMAND --help` says what it takes."))
    except BenchflowError as error:
        return _show(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; say nothing more, not even at exit.
        sys.stderr.close()
        return 0
    return code if isinstance(code, int) else 0


def _show(error: BenchflowError) -> int:
    from benchflow_client.cli.render import render_error  # ruff: ignore[import-outside-top-level]  rich is only needed now

    render_error(error)
    return error.exit_code


def _problem(error: CycloptsError) -> str:
    """Return what is wrong with a command line, as a sentence."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        command = " ".join(("bench", *(error.command_chain or ())))
        return f"`{command}` takes no further argument: {error.unused_tokens[0]!r} is one too many."
    return _sentence(str(error))


def _sentence(text: str) -> str:
    line = " ".join(text.split())
    return line if line.endswith((".", "?")) else line + "."
