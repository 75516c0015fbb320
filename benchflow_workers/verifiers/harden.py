"""The thirteen steps between an agent and the tests: what each does, and the order, in `STEPS`.

Most are small shell functions, run as root in one `sh` after the agent's processes were
killed: POSIX only, no program that BusyBox lacks, no value put into the text of the
program. Each finds `work` (the workspace), `tests`, `agent` (its user, empty for a
control), `judge` (who runs the tests), `shadows` (names of modules) and `fail`. The others
are the worker's.

An agent can only have touched what changed since it began, which the change time of an
inode tells (an unprivileged user cannot set it). So what the image brought stays, and a
control and an agent meet the same files. Where there is no mark of `prepare_user` that
can be trusted (the agent was root), or `find` knows no `-cnewer`, all that matches goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchflow_client.schema.task import VerifierTable
from benchflow_workers.agents.user import AGENT_STARTED, WORKSPACE
from benchflow_workers.verifiers.harden_baseline import RESTORE
from benchflow_workers.verifiers.run_folders import LIST_CHANGED

__all__ = ["SOFT_STEPS", "STEPS", "Step", "hardening_program", "soft_program", "steps_for"]


@dataclass(frozen=True, slots=True)
class Step:
    """One measure.

    Attributes:
        name: Word for messages.
        script: Shell text; ends with `fail NAME` where its failure must stop the verdict.
            Empty = the worker's own work, at this place of the order.
        is_for_controls: Done after the oracle and nop too, who plant nothing.
        is_wanted: Whether the task's author left it on.
    """

    name: str
    script: str = ""
    is_for_controls: bool = False
    is_wanted: Callable[[VerifierTable], bool] = lambda _: True


PROCESSES = Step("processes")
"""1. Every process of the agent's user is killed, and the sandbox proves that none is left: `Sandbox.kill`."""

LOGS = Step(
    "logs",
    """
logs=/logs/verifier
if [ -L "$logs" ] || { [ -e "$logs" ] && [ ! -d "$logs" ]; }; then rm -f "$logs"; fi
[ -d "$logs" ] || mkdir -p "$logs" || fail logs
if [ -n "$agent" ] && command -v chattr >/dev/null 2>&1; then chattr -R -i -a "$logs" 2>/dev/null; fi
probe() { { echo probe >"$logs/.probe"; } 2>/dev/null; }
empty() {
  rm -rf "$logs"/* "$logs"/.[!.]* "$logs"/..?* && chown 0:0 "$logs" && chmod 0755 "$logs" || fail logs
  if [ -n "$judge" ]; then chown "$judge" "$logs" 2>/dev/null || chmod 0777 "$logs"; fi
}
probe || { empty; probe || reclaim full; probe || fail disk; }
empty
[ -d /app ] || mkdir -p /app
if [ -n "$before" ] && [ -L "$work" ] && [ "$(cd -P "$work" 2>/dev/null && pwd -P)" != "$before" ]; then rm -f "$work"; fi
[ -d "$work" ] || mkdir -p "$work" || fail workspace
""",
    is_for_controls=True,
)
"""2. Nothing that was left where verdicts are read counts as one, and only who runs the tests writes there."""

RECLAIM = Step("reclaim", "reclaim\n")
"""3. Room on the disk: caches of package managers, and jobs the agent left for cron and at."""

RESTORED = Step(
    "restore",
    RESTORE,
    is_for_controls=True,
    is_wanted=lambda verifier: verifier.hardening.restore_workspace,
)
"""4. The workspace as it was, where the answer is elsewhere and the task asks for it."""

LINKS = Step(
    "links",
    """
find "$real" -xdev \\( -type p -o -type b -o -type c \\) $changed -exec rm -f {} + 2>/dev/null
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
"""5. A link out of the workspace could show the tests their own answers, and who reads a pipe waits for ever. Links into system folders,
where an agent cannot write, stay: virtual environments are made of them."""

BYTECODE = Step(
    "bytecode",
    """
find "$real" -xdev -name __pycache__ -type d $changed -prune -exec rm -rf {} + 2>/dev/null
find "$real" -xdev -path '*/__pycache__/*' ! -type d $changed -exec rm -f {} + 2>/dev/null
for folder in "$real" $folders; do
  case $folder in /*) ;; *) folder=$real/$folder ;; esac
  folder=$(cd -P "$folder" 2>/dev/null && pwd -P) || continue
  case $folder/ in "$real"/*) ;; *) [ -n "$changed" ] || continue ;; esac
  for name in $shadows; do
    for file in "$folder/$name.py" "$folder/$name.pyc" "$folder/$name"/__init__.* "$folder/$name".*.so "$folder/$name.so"; do
      [ -e "$file" ] || [ -L "$file" ] || continue
      find "$file" -maxdepth 0 $changed -exec rm -rf {} + 2>/dev/null
    done
  done
done
""",
)
"""6. Byte code that does not come from the source beside it, and modules that would be taken for Python's
own or pytest's by tests that run Python in the workspace, or where their scripts go, whose folder it
searches first: `SHADOWS`."""

OWNER = Step(
    "owner",
    f"""
{LIST_CHANGED}
if [ "$spared" = "$real" ]; then
  chown -hR 0:0 "$real" 2>/dev/null
else
  find "$real" ! -name conftest.py ! -name sitecustomize.py ! -name usercustomize.py ! -name '*.pth' \
    -exec chown -h 0:0 {{}} + 2>/dev/null
fi
""",
)
"""7. Nothing but the tests changes the workspace from here on. A new owner is a change, so what the guard
must know by its change is written down first, and files the next steps look for by it become root's after them."""

CONFTESTS = Step(
    "conftests",
    """
find / -type d \\( -path /proc -o -path /sys -o -path /dev -o -path /tests -o -path /verifier -o -path /testbed_verify \
  -o -path "$spared" \\) -prune -o -name conftest.py ! -type d $changed -exec rm -f {} + 2>/dev/null
""",
    is_wanted=lambda verifier: verifier.hardening.cleanup_conftests,
)
"""8. Pytest runs every conftest.py on its way, whoever wrote it."""

TEMPORARY = Step(
    "temporary",
    """
for folder in /tmp /var/tmp /dev/shm; do
  [ -d "$folder" ] || continue
  find "$folder" -xdev -name '*.py' ! -type d $changed -exec rm -f {} + 2>/dev/null
done
""",
)
"""9. A module in a folder that anybody can write is imported by tests that run there."""

STARTUP = Step(
    "startup",
    """
if command -v python3 >/dev/null 2>&1; then
  python3 -I -S -c 'import site, sys
print("\\n".join(path for path in sys.path + site.getsitepackages() if path))' 2>/dev/null |
  while IFS= read -r folder; do
    case $folder in /usr/lib/* | /usr/local/lib/*) continue ;; esac
    [ -d "$folder" ] || continue
    find "$folder" -maxdepth 1 \\( -name sitecustomize.py -o -name usercustomize.py -o -name '*.pth' \\) \
      ! -type d $changed -exec rm -f {} + 2>/dev/null
  done
fi
for folder in "$real" "$home/.local"; do
  [ "$folder" != "$spared" ] && [ -d "$folder" ] || continue
  find "$folder" -xdev \\( -name sitecustomize.py -o -name usercustomize.py \\) ! -type d $changed -exec rm -f {} + 2>/dev/null
done
[ -n "${soft-}" ] || [ "$spared" = "$real" ] || chown -hR 0:0 "$real" 2>/dev/null
""",
)
"""10. Python runs these files before any test; asking it with -S runs none of them. Ends what step 7 began."""

PATHS = Step("path")
"""11. PATH and PYTHONPATH as far as only root can write there: `programs.TRUSTED`."""

ENVIRONMENT = Step("environment")
"""12. The tests' variables: `environment.verifier_environment`, and the plugins of `pytest_plugins`."""

FRESH = Step(
    "fresh",
    """
if [ "$agent" = root ]; then
  rm -rf "$tests"
elif [ -d "$tests" ] && [ -n "$changed" ] && find "$tests" -maxdepth 0 $changed 2>/dev/null | grep -q .; then
  rm -rf "$tests"
fi
for folder in "$tests" /tests; do
  if [ -L "$folder" ] && { [ "$agent" = root ] || find "$folder" -maxdepth 0 $changed 2>/dev/null | grep -q .; }; then
    rm -f "$folder"
  fi
done
""",
)
"""13. The tests come fresh, into a folder nobody but root has touched. An unprivileged agent found it locked."""

STEPS: tuple[Step, ...] = (
    PROCESSES,
    LOGS,
    RECLAIM,
    RESTORED,
    LINKS,
    BYTECODE,
    OWNER,
    CONFTESTS,
    TEMPORARY,
    STARTUP,
    PATHS,
    ENVIRONMENT,
    FRESH,
)
"""All measures, in the order they are taken."""

SOFT_STEPS: tuple[Step, ...] = (
    LOGS,
    LINKS,
    BYTECODE,
    CONFTESTS,
    TEMPORARY,
    STARTUP,
    PATHS,
    ENVIRONMENT,
    FRESH,
)
"""Those taken when tests look on between rounds."""

SHARED = f"""
reclaim() {{
  [ -n "$agent" ] || return 0
  for cache in .cache/pip .cache/uv .cache/yarn .cache/pnpm .cache/go-build .npm/_cacache .cargo/registry/cache; do
    [ -n "$changed" ] || [ "${{1-}}" = full ] || break
    [ -d "$home/$cache" ] && [ ! -L "$home/$cache" ] || continue
    find "$home/$cache" -xdev ! -type d $changed -exec rm -f {{}} + 2>/dev/null
  done
  for folder in /var/spool/cron /var/spool/cron/crontabs /var/spool/at /var/spool/cron/atjobs; do
    [ -d "$folder" ] || continue
    find "$folder" -xdev ! -type d $changed -user "$agent" -exec rm -f {{}} + 2>/dev/null
    rm -f "$folder/$agent"
  done
}}
asked=$PATH PATH=$safe
changed= spared=/nonexistent home=/home/$agent before=
if [ -n "$agent" ] && [ "$agent" != root ] && [ -f {WORKSPACE} ]; then IFS= read -r before <{WORKSPACE}; fi
if [ "$agent" = root ]; then home=/root; fi
if [ "$agent" != root ] && [ -f {AGENT_STARTED} ] && find {AGENT_STARTED} -cnewer {AGENT_STARTED} >/dev/null 2>&1; then
  changed="-cnewer {AGENT_STARTED}"
fi
"""
"""What the steps share: programs that only root can write, even where the tests have a PATH of their own (`asked`);
what an agent can have changed, where its home is. Caches the image brought serve
tests without network, so where nothing tells them from the agent's they go only when the disk is full."""

PLACE = """
real=$(cd -P "$work" && pwd -P) || fail workspace
[ -z "$before" ] || [ "$real" = "$before" ] || fail workspace
"""
"""The workspace without links; there is one from step 2 on, and it is the one that the agent was given."""


def steps_for(verifier: VerifierTable, agent_user: str | None) -> tuple[Step, ...]:
    """Return the measures due after an agent of that user; None = a control."""
    return tuple(
        step
        for step in STEPS
        if step.is_wanted(verifier) and (step.is_for_controls or agent_user is not None)
    )


def hardening_program(verifier: VerifierTable, agent_user: str | None) -> str:
    """Return the shell text of all measures due: a function for each, called in order."""
    return _program(steps_for(verifier, agent_user))


def soft_program(verifier: VerifierTable) -> str:
    """Return the shell text of the measures due between rounds: the agent goes on afterwards.

    Nothing is killed and nothing changes its owner; what tests write is root's alone.
    """
    due = steps_for(verifier, "")
    return "soft=yes\n" + _program([step for step in SOFT_STEPS if step in due]) + 'chmod 0700 "$logs"\n'


def _program(steps: Sequence[Step]) -> str:
    """Return a function for each step, called in order."""
    parts = [SHARED]
    for step in steps:
        if step.script:
            parts.append(f"step_{step.name}() {{\n{step.script}}}\nstep_{step.name}\n")
        if step is LOGS:
            parts.append(PLACE)
    parts.append("true\n")
    return "".join(parts)
