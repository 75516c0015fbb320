"""Killing in one container and counting its out-of-memory kills: from outside where possible, else from inside."""

from __future__ import annotations

from benchflow_workers.sandbox.base import Command
from benchflow_workers.sandbox.docker_cgroup import (
    ContainerCgroup,
    owned,
    parse_oom_kills,
    parse_passwd,
    read_passwd,
    tagged,
)
from benchflow_workers.sandbox.docker_exec import TAG_VARIABLE, DockerExec
from benchflow_workers.sandbox.docker_http import EngineHttp
from benchflow_workers.sandbox.output import CappedOutput

KEEPER = ("sleep", "2147483647")
"""The program that keeps a container alive: 68 years, the longest that every `sleep` takes."""

_SCRIPT_TIMEOUT_S = 30.0
_READ_OOM = "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null"

# `chosen PID` sets $hit. Passes end when nothing is chosen any more; 200 passes take some 10 seconds.
_KILL_CHOSEN = """
status() {
  state=; parent=; uids=
  while read -r key a b c d; do
    case $key in State:) state=$a;; PPid:) parent=$a;; Uid:) uids=" $a $b $c $d ";; esac
  done </proc/$1/status
}
round=0
while [ $round -lt 200 ]; do
  round=$((round+1)); left=0
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    if [ $pid = 1 ] || [ $pid = $$ ]; then continue; fi
    hit=
    { status $pid; chosen $pid; } 2>/dev/null
    if [ -n "$hit" ] && [ "$state" != Z ]; then kill -KILL $pid 2>/dev/null; left=1; fi
  done
  [ $left = 0 ] && exit 0
done
exit 1
"""
_KILL_TAG = """
tag=$1
command -v grep >/dev/null || exit 2
chosen() { if grep -q "$tag" /proc/$1/environ; then hit=1; fi; }
"""
_KILL_USER = """
uid=$1; keeper=$2
command -v tr >/dev/null || exit 2
chosen() {
  case $uids in *" $uid "*) hit=1;; *) return;; esac
  if [ "$parent" = 1 ] && [ "$(tr '\\0' ' ' </proc/$1/cmdline)" = "$keeper " ]; then hit=; fi
}
"""


class ContainerProcesses:
    """What is known about, and done to, the processes of one container.

    Args:
        http: Client of the engine.
        container_id: Full id of the container.
        cgroup: Its control group on this host; None = everything is done from inside,
            which needs `sh`, `cat`, `grep` and `tr` in the image.
    """

    def __init__(self, http: EngineHttp, container_id: str, cgroup: ContainerCgroup | None) -> None:
        self._http = http
        self._id = container_id
        self._cgroup = cgroup
        self._oom_kills_seen = 0

    async def kill_tagged(self, tag: str) -> bool:
        """Kill every process of one command; False when one is left."""
        if self._cgroup is not None and self._cgroup.can_kill():
            return await self._cgroup.kill(lambda processes: tagged(processes, tag))
        return await self._kill_inside(_KILL_TAG, f"{TAG_VARIABLE}={tag}")

    async def kill_user(self, user: str | int) -> bool:
        """Kill every process of a user but those that keep the container; False when one is left.

        A name that the container does not know has no processes.
        """
        outside = self._cgroup if self._cgroup is not None and self._cgroup.can_kill() else None
        uid = _numeric(user)
        if uid is None and outside is not None:
            uid = read_passwd(outside.init_pid(), str(user))
        if uid is None:
            _, passwd = await self._run(("cat", "/etc/passwd"))
            uid = parse_passwd(passwd, str(user))
        if uid is None:
            return True
        if outside is not None:
            return await outside.kill(lambda processes: owned(processes, uid))
        return await self._kill_inside(_KILL_USER, str(uid), " ".join(KEEPER))

    def oom_mark(self) -> int:
        """Return the number to give to `has_new_oom_kill` after a command."""
        now = self._cgroup.oom_kills() if self._cgroup is not None else None
        return self._oom_kills_seen if now is None else now

    async def has_new_oom_kill(self, mark: int, exit_code: int) -> bool:
        """Return whether the kernel killed a process for memory since the mark.

        Commands that ran at the same time are not told apart. Where the count
        must be read from inside, only a command that was killed itself is asked about.
        """
        now = self._cgroup.oom_kills() if self._cgroup is not None else None
        if now is None and exit_code == 128 + 9:
            _, text = await self._run(("sh", "-c", _READ_OOM))
            now = parse_oom_kills(text)
        if now is None:
            return False
        self._oom_kills_seen = now
        return now > mark

    async def _kill_inside(self, chosen: str, *arguments: str) -> bool:
        code, _ = await self._run(("sh", "-c", chosen + _KILL_CHOSEN, "sh", *arguments))
        return code == 0

    async def _run(self, argv: tuple[str, ...]) -> tuple[int, str]:
        """Run a short command of our own as root and return its exit code and output."""
        command = Command(argv, timeout_s=_SCRIPT_TIMEOUT_S)
        stdout, stderr = CappedOutput(command.output_limit_bytes), CappedOutput(0)
        execution = await DockerExec.create(self._http, self._id, command)
        try:
            await execution.start(stdout.write, stderr.write)
            code = await execution.follow(command.timeout_s)
        finally:
            await execution.close()
        return (1 if code is None else code), stdout.kept().decode(errors="replace")


def _numeric(user: str | int) -> int | None:
    if user == "root":
        return 0
    return int(user) if isinstance(user, int) or user.isdigit() else None
