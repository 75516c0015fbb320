"""The unprivileged user an agent runs as, and the locks it runs behind; one command, before its turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.schema.locked_paths import LOCKED_PATHS
from benchflow_workers.agents.build_files import KEEP_BUILD_FILES
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import ROOT, Command, Completed, Sandbox

__all__ = ["AGENT_STARTED", "SYSTEM_PATH", "WORKSPACE", "AgentUser", "prepare_user"]

AGENT_STARTED: Final = "/opt/benchflow/agent-started"
"""Mark in a folder of root's: what changed after it, the agent may have changed."""

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders of programs that only root can write on any distribution; before what an image declares, where an
agent of an earlier step may write."""

WORKSPACE: Final = "/opt/benchflow/workspace"
"""File beside it that names the workspace, links followed: where its folder is the agent's, it may put a link there."""

_NAME = re.compile(r"[a-z_][a-z0-9_.\-]{0,31}|[0-9]{1,9}")
_ANSWER = re.compile(rb"benchflow-user:([0-9]+):([0-9]+):([^\n]*)\n")

PROGRAM: Final = f"""
set -u
PATH={SYSTEM_PATH}:${{PATH-}}
{KEEP_BUILD_FILES}
user=$1 work=$2
shift 2
fail() {{ echo "$1" >&2; exit 97; }}
find_user() {{
  uid= gid= home=
  while IFS=: read -r name _ id group _ folder _; do
    if [ "$name" = "$user" ] || [ "$id" = "$user" ]; then
      uid=$id gid=$group home=$folder
      return 0
    fi
  done </etc/passwd
  return 1
}}
is_taken() {{ grep -q "^[^:]*:[^:]*:$1:" /etc/passwd /etc/group 2>/dev/null; }}
append() {{
  [ ! -s "$1" ] || [ -z "$(tail -c 1 "$1")" ] || echo >>"$1"
  echo "$2" >>"$1"
}}
add_user() {{
  uid=1000 name=$user
  case $user in
    [0-9]*) uid=$user name=user$user ;;
    *) while is_taken "$uid"; do uid=$((uid + 1)); done ;;
  esac
  gid=$uid home=/home/$name shell=/bin/sh
  [ ! -x /bin/bash ] || shell=/bin/bash
  append /etc/group "$name:x:$gid:" && append /etc/passwd "$name:x:$uid:$gid::$home:$shell" ||
    fail "user $user cannot be added to /etc/passwd"
  [ ! -f /etc/shadow ] || append /etc/shadow "$name:*:19000:0:99999:7:::"
}}
mkdir -p "$work" /logs/agent /logs/artifacts /opt/benchflow || fail "folders cannot be made"
if [ "$user" = root ]; then
  uid=0 gid=0 home=/root
else
  [ -f /etc/passwd ] && find_user || add_user
  [ -n "$home" ] && [ "$home" != / ] || home=/home/$user
  mkdir -p "$home" && chown "$uid:$gid" "$home" || fail "home $home cannot be made"
  chown -hR "$uid:$gid" "$work" || fail "workspace $work cannot be given to $user"
  for folder in /logs/agent /logs/artifacts /output /outputs; do
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then chown -hR "$uid:$gid" "$folder"; fi
  done
  chown 0:0 /logs && chmod 0755 /logs || fail "/logs cannot be closed"
  for folder do
    if [ -e "$folder" ] && [ ! -L "$folder" ]; then
      chown 0:0 "$folder" && chmod 0700 "$folder" || fail "$folder cannot be locked"
    fi
  done
fi
[ -f {AGENT_STARTED} ] || : >{AGENT_STARTED} || fail "no mark can be set"
chmod 0755 /opt/benchflow && chmod 0644 {AGENT_STARTED} || fail "the mark cannot be closed"
[ -f {WORKSPACE} ] || (cd -P "$work" && pwd -P) >{WORKSPACE} || fail "the place of $work cannot be kept"
keep_build_files "$work" || fail "the build files of $work cannot be kept"
echo "benchflow-user:$uid:$gid:$home"
"""
"""Adds the user by appending to the account files, so that an image needs no account tools. Paths to lock follow."""


@dataclass(frozen=True, slots=True)
class AgentUser:
    """The user as the sandbox knows it."""

    uid: int
    gid: int
    home: str


async def prepare_user(
    sandbox: Sandbox, user: str, workdir: str, timeout_s: float, *, locked: Sequence[str] = LOCKED_PATHS
) -> AgentUser:
    """Make the user where it is missing, give it its folders, lock what it must not see.

    The build files of the workspace are kept as they are. Safe to call twice: the mark and
    these copies stay those of the first call. For `root` (a sandbox that cannot tell users
    apart) nothing can be locked; only the folders, the copies and the mark are made.

    Args:
        sandbox: Where the agent will run.
        user: Name or number.
        workdir: Workspace; given to the user with all it holds.
        timeout_s: Seconds for all of it.
        locked: Paths that become root's alone where they exist and are no link.

    Raises:
        AgentError: `agent.not_runnable` when the image does not allow it.
        SandboxError: `sandbox.exec_failed` when time ran out; what the sandbox raises.
    """
    if not _NAME.fullmatch(user):
        raise AgentError(
            "agent.not_runnable",
            f"{user!r} is not a name of a user.",
            hint="Use lower case letters, digits, '_' and '-', or a number.",
        )
    name = ROOT if user in {ROOT, "0"} else user
    argv = ("sh", "-c", PROGRAM, "benchflow-user", name, workdir, *locked)
    return _read_answer(user, await sandbox.exec(Command(argv, timeout_s=timeout_s, workdir="/")))


def _read_answer(user: str, done: Completed) -> AgentUser:
    """Return the user the program made, or raise what kept it from that."""
    if done.timed_out:
        raise SandboxError(
            "sandbox.exec_failed",
            f"User {user!r} was not ready after {done.duration_s:.0f} s; its workspace may be very large.",
            hint="Raise the set-up budget, or start fewer trials at once on this host.",
        )
    answer = _ANSWER.search(done.stdout)
    if done.exit_code != 0 or answer is None:
        reason = tail_text(done.stderr, limit_chars=300) or f"exit code {done.exit_code}"
        raise AgentError(
            "agent.not_runnable",
            f"User {user!r} could not be made in the sandbox: {reason}",
            hint="The image must let root write /etc/passwd and /etc/group and have a POSIX shell.",
        )
    uid, gid, home = answer.groups()
    return AgentUser(int(uid), int(gid), home.decode("utf-8", "replace"))
