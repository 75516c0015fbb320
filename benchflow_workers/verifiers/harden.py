"""What is done to a sandbox between the agent's end and the tests, as small shell steps.

All steps run as root in one `sh`, after the agent's processes were killed: POSIX only,
no program that BusyBox lacks, no value put into the text of the program. Each finds
`work` (the workspace), `tests`, `agent` (its user, empty for a control) and `fail`.

An agent can only have touched what changed since it began, which the change time of an
inode tells (an unprivileged user cannot set it). So what the image brought stays, and a
control and an agent meet the same files. Where there is no mark of `prepare_user` that
can be trusted (the agent was root), or `find` knows no `-cnewer`, all that matches goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchflow_client.schema.task import VerifierTable
from benchflow_workers.agents.user import AGENT_STARTED

__all__ = ["STEPS", "Step", "steps_for"]


@dataclass(frozen=True, slots=True)
class Step:
    """One measure.

    Attributes:
        name: Word for messages.
        script: Shell text; ends with `fail NAME` where its failure must stop the verdict.
        is_for_controls: Done after the oracle and nop too, who plant nothing.
        is_wanted: Whether the task's author left it on.
    """

    name: str
    script: str
    is_for_controls: bool = False
    is_wanted: Callable[[VerifierTable], bool] = lambda _: True


LOGS = Step(
    "logs",
    """
logs=/logs/verifier
if [ -L "$logs" ] || { [ -e "$logs" ] && [ ! -d "$logs" ]; }; then rm -f "$logs"; fi
[ -d "$logs" ] || mkdir -p "$logs" || fail logs
probe() { { echo probe >"$logs/.probe"; } 2>/dev/null; }
empty() { rm -rf "$logs"/* "$logs"/.[!.]* "$logs"/..?* && chmod 0777 "$logs" || fail logs; }
probe || { empty; probe || fail disk; }
empty
[ -d /app ] || mkdir -p /app
[ -d "$work" ] || mkdir -p "$work" || fail workspace
""",
    is_for_controls=True,
)
"""Nothing that was left where verdicts are read counts as one; the disk takes another byte."""

SINCE = Step(
    "since",
    f"""
changed=
if [ "$agent" != root ] && [ -f {AGENT_STARTED} ] && find {AGENT_STARTED} -cnewer {AGENT_STARTED} >/dev/null 2>&1; then
  changed="-cnewer {AGENT_STARTED}"
fi
real=$(cd -P "$work" && pwd -P) || fail workspace
""",
)
"""What the steps below share."""

LINKS = Step(
    "links",
    """
find "$real" -xdev -type l $changed -exec sh -c '
real=$1
shift
for link do
  to=$(readlink -f "$link") || to=
  if [ -z "$to" ]; then
    to=$(readlink "$link")
    case $to in /* | *..*) ;; *) continue ;; esac
  fi
  case $to in
    "$real" | "$real"/* | /usr/* | /bin/* | /sbin/* | /lib*/* | /opt/*) ;;
    *) rm -f "$link" ;;
  esac
done' sh "$real" {} + 2>/dev/null
""",
)
"""A link out of the workspace could show the tests their own answers. Links into system folders,
where an agent cannot write, stay: virtual environments are made of them."""

CONFTESTS = Step(
    "conftests",
    """
find / \\( -path /proc -o -path /sys -o -path /dev -o -path /tests -o -path /verifier \\) -prune \
  -o ! -type d $changed -name conftest.py -exec rm -f {} + 2>/dev/null
""",
    is_wanted=lambda verifier: verifier.hardening.cleanup_conftests,
)
"""Pytest runs every conftest.py on its way, whoever wrote it."""

TEMPORARY = Step(
    "temporary",
    "find /tmp /var/tmp -xdev ! -type d $changed -name '*.py' -exec rm -f {} + 2>/dev/null\n",
)
"""A module in a folder that anybody can write is imported by tests that run there."""

STARTUP = Step(
    "startup",
    """
if command -v python3 >/dev/null 2>&1; then
  python3 -I -S -c 'import site, sys
print("\\n".join(path for path in sys.path + site.getsitepackages() if path))' 2>/dev/null |
  while IFS= read -r folder; do
    case $folder in /usr/lib/* | /usr/local/lib/*) continue ;; esac
    [ -d "$folder" ] || continue
    find "$folder" -maxdepth 1 ! -type d $changed \
      \\( -name sitecustomize.py -o -name usercustomize.py -o -name '*.pth' \\) -exec rm -f {} + 2>/dev/null
  done
fi
""",
)
"""Python runs these files before any test; asking it with -S runs none of them."""

OWNER = Step("owner", 'chown -hR 0:0 "$real" 2>/dev/null\n')
"""Nothing but the tests changes the workspace from here on."""

FRESH = Step(
    "fresh",
    """
if [ "$agent" = root ]; then
  rm -rf "$tests"
  if [ -L /tests ]; then rm -f /tests; fi
fi
""",
)
"""An unprivileged agent found the tests' folder locked; one that was root could have filled it."""

STEPS: tuple[Step, ...] = (LOGS, SINCE, LINKS, CONFTESTS, TEMPORARY, STARTUP, OWNER, FRESH)
"""All measures, in the order they are taken: a new owner is a change, so the search comes before it."""


def steps_for(verifier: VerifierTable, agent_user: str | None) -> tuple[Step, ...]:
    """Return the measures due after an agent of that user; None = a control."""
    return tuple(
        step
        for step in STEPS
        if step.is_wanted(verifier) and (step.is_for_controls or agent_user is not None)
    )
