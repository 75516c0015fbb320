"""Fetch one commit of a Git repository into a folder of its own, by the `git` program.

Objects are kept per repository, trees per commit. A tree is written beside its
place and renamed, so that nobody ever sees a part of it or another commit's files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from benchflow_client.errors import SourceError
from benchflow_client.tasks.findings import suggestion

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}", re.IGNORECASE)
_LOCK_POLL_S = 0.05
"""Between two looks at a lock another process holds."""

_ENVIRONMENT = (
    "-u", "SSH_ASKPASS", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE", "-u", "GIT_OBJECT_DIRECTORY",
    "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "GIT_ALLOW_PROTOCOL=https:http:ssh:file", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C",
)  # fmt: skip
"""Never ask, never run a transport helper, and forget any repository the caller stands in."""

_SETTINGS = (
    "gc.auto=0",
    "core.hooksPath=/dev/null",
    "core.askPass=",
    "protocol.ext.allow=never",
    "advice.detachedHead=false",
)


_WITH_HEADER = """
IFS= read -r header
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=http.extraHeader GIT_CONFIG_VALUE_0="$header"
export GIT_CONFIG_KEY_1=http.followRedirects GIT_CONFIG_VALUE_1=false
exec git "$@" < /dev/null
"""
"""Starts Git with a header read from standard input: in no argv, in no file, and sent to nobody else."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """What to fetch: address without credential, ref (None = default branch), Authorization header."""

    url: str
    ref: str | None
    credential: SecretStr | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of one commit."""

    path: Path
    commit: str


def checkout(wanted: Checkout, *, cache_dir: Path, deadline_s: float) -> Tree:
    """Return a folder with the files of the commit a ref names.

    A commit given in full that is in the cache needs no network.

    Raises:
        SourceError: Git is missing, the repository cannot be reached, there is no such
            ref, the cache cannot be written, or the deadline passed.
    """
    if shutil.which("git") is None:
        raise SourceError(
            "Git is not installed, and the task source needs it.", hint="Install git, or give a folder."
        )
    digest = hashlib.sha256(wanted.url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    ends_at = time.monotonic() + deadline_s
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        ready = cache_dir / "trees" / digest / (wanted.ref or "")
        if wanted.ref and _COMMIT.fullmatch(wanted.ref) and ready.is_dir():
            return Tree(ready, wanted.ref)
        with _lock(cache_dir / f"{digest}.lock", ends_at):
            git = _Git(wanted.url, cache_dir / f"{digest}.git", wanted.credential, ends_at)
            _remove_leftovers(git.store, cache_dir / "trees" / digest)
            commit = _fetched(git, wanted.ref)
            return Tree(_tree(git, commit, cache_dir / "trees" / digest), commit)
    except OSError as error:
        raise SourceError(
            f"The cache of task sources {str(cache_dir)!r} cannot be used: {error.strerror or error}.",
            hint="Free space there, or choose another folder.",
        ) from error


@contextmanager
def _lock(path: Path, ends_at: float) -> Generator[None]:
    """Hold a repository's lock; it falls with the process that holds it."""
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise SourceError(
                        "Another process is still fetching the same repository.", hint="Try again later."
                    ) from None
                time.sleep(_LOCK_POLL_S)
        yield


def _remove_leftovers(store: Path, trees: Path) -> None:
    """Remove what a killed process left; called with the repository's lock held, so nobody is at work."""
    for lock in (*store.glob("*.lock"), *(store / "refs").rglob("*.lock")):
        lock.unlink(missing_ok=True)
    for staging in trees.glob(".new-*"):
        shutil.rmtree(staging, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Git:
    """Runs Git on one repository's object store, never longer than the deadline."""

    url: str
    store: Path
    credential: SecretStr | None
    ends_at: float

    def run(self, *arguments: str, environment: Sequence[str] = ()) -> str:
        """Return what Git printed.

        Raises:
            SourceError: It failed or the deadline passed.
        """
        code, output, errors = self._finish(arguments, environment)
        if code != 0:
            lines = [line for line in errors.splitlines() if line.strip()] or [f"exit code {code}"]
            raise SourceError(
                f"Git cannot read {self.url}: {lines[0].strip()[:300]}",
                hint="Check the address, your network, and that you may read the repository. "
                "A folder in it is written URL@ref//folder.",
            )
        return output

    def succeeds(self, *arguments: str) -> bool:
        """Return whether Git ended with exit code 0."""
        return self._finish(arguments, ())[0] == 0

    def _finish(self, arguments: Sequence[str], environment: Sequence[str]) -> tuple[int, str, str]:
        secret = "" if self.credential is None else f"Authorization: {self.credential.get_secret_value()}\n"
        launch = ("sh", "-c", _WITH_HEADER, "git") if secret else ("git",)
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        process = subprocess.Popen(
            ["env", *_ENVIRONMENT, *environment, *launch, *settings, f"--git-dir={self.store}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # no terminal to ask on, and one group to kill
        )
        try:
            output, errors = process.communicate(secret.encode(), max(0.0, self.ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"Git did not finish reading {self.url} in time.", hint="Check your network, or try again."
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


def _fetched(git: _Git, ref: str | None) -> str:
    """Return the commit a ref names, with its objects in the store."""
    if not (git.store / "HEAD").is_file():
        git.run("init", "--quiet", "--bare", "--template=")
    if ref and _COMMIT.fullmatch(ref) and _has(git, ref):
        return ref
    refs = _remote_refs(git)
    name = _full_name(refs, ref)
    if name is None:
        return _fetched_commit(git, refs, ref or "HEAD")
    commit = refs.get(f"{name}^{{}}", refs[name])  # the commit an annotated tag points to
    if not _has(git, commit):
        git.run(*_FETCH, "--depth=1", git.url, f"+{name}:refs/kept/{commit}")
    if not _has(git, commit):
        raise SourceError(
            f"{ref or 'The default branch'} of {git.url} moved while it was fetched.", hint="Try again."
        )
    return commit


_FETCH = (
    "fetch",
    "--quiet",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-recurse-submodules",
    "--no-auto-maintenance",
)


def _has(git: _Git, commit: str) -> bool:
    return git.succeeds("cat-file", "-e", f"{commit}^{{tree}}")


def _remote_refs(git: _Git) -> dict[str, str]:
    """Return the repository's refs, `HEAD` included, and what each points to."""
    lines = [line.split("\t", 1) for line in git.run("ls-remote", "--quiet", git.url).splitlines()]
    return {pair[1]: pair[0] for pair in lines if len(pair) == 2}


def _full_name(refs: dict[str, str], ref: str | None) -> str | None:
    """Return the full name of a ref: as given, a tag, or a branch, in Git's own order."""
    if ref is None:
        return "HEAD" if "HEAD" in refs else None
    return next((name for name in (ref, f"refs/tags/{ref}", f"refs/heads/{ref}") if name in refs), None)


def _fetched_commit(git: _Git, refs: dict[str, str], ref: str) -> str:
    """Return a commit given by its digits, whole or shortened, with its objects in the store."""
    if _SHORT_COMMIT.fullmatch(ref):
        if (
            len(ref) == 40
            and git.succeeds(*_FETCH, "--depth=1", git.url, f"+{ref}:refs/kept/{ref}")
            and _has(git, ref)
        ):
            return ref
        whole = ["--unshallow"] if (git.store / "shallow").is_file() else []
        git.run(*_FETCH, *whole, git.url, "+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
        if git.succeeds("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"):
            return git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
    names = sorted({name.split("/", 2)[2] for name in refs if name.startswith(("refs/heads/", "refs/tags/"))})
    names = [name for name in names if not name.endswith("^{}")]
    shown = (
        f"There are: {', '.join(names[:10])}{' …' if len(names) > 10 else ''}." if names else "It is empty."
    )
    raise SourceError(
        f"There is no branch, tag or commit {ref!r} in {git.url}.", hint=suggestion(ref, names) + shown
    )


def _tree(git: _Git, commit: str, folder: Path) -> Path:
    """Return the folder with a commit's files, writing it when it is not there yet."""
    target = folder / commit
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=".new-"))
    try:
        (staging / "tree").mkdir()
        environment = (f"GIT_INDEX_FILE={staging / 'index'}", f"GIT_WORK_TREE={staging / 'tree'}")
        git.run("read-tree", commit, environment=environment)
        git.run("checkout-index", "--all", "--quiet", environment=environment)
        (staging / "tree").rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target
