"""Task sources: the grammar, and Git repositories that are read at one commit each."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from benchflow_client.errors import SourceError
from benchflow_client.tasks.git import Checkout, checkout
from benchflow_client.tasks.source import GitSource, parse_source, resolve


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=a")
    argv = ["git", *identity, *arguments]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone whose tag v1 holds tasks/one and whose annotated tag v2 and branch hold tasks/two."""
    folder = tmp_path / "repo"
    (folder / "tasks" / "one").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "tasks" / "one" / "v").write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "v1")
    (folder / "tasks" / "two").mkdir()
    (folder / "tasks" / "two" / "v").write_text("2\n")
    (folder / "tasks" / "two" / "run.sh").write_text("x")
    (folder / "tasks" / "two" / "run.sh").chmod(0o755)
    os.symlink("/etc", folder / "tasks" / "outside")
    git(folder, "rm", "-qr", "tasks/one")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "two")
    git(folder, "tag", "-a", "-m", "two", "v2")
    git(folder, "branch", "feature/x")
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", ("https://github.com/org/repo.git", None, "")),
        ("org/repo@v1", ("https://github.com/org/repo.git", "v1", "")),
        ("org/repo/tasks/easy@feature/x", ("https://github.com/org/repo.git", "feature/x", "tasks/easy")),
        ("org/repo@v1//tasks", ("https://github.com/org/repo.git", "v1", "tasks")),
        ("org/repo.git/tasks", ("https://github.com/org/repo.git", None, "tasks")),
        ("https://a.org/x/y.git", ("https://a.org/x/y.git", None, "")),
        ("https://a.org:8443/x.git@v1//t/u/", ("https://a.org:8443/x.git", "v1", "t/u")),
        ("https://a.org/@user/x@v1", ("https://a.org/@user/x", "v1", "")),
        ("https://[::1]:80/x", ("https://[::1]:80/x", None, "")),
        ("ssh://git@a.org/x.git@v1", ("ssh://git@a.org/x.git", "v1", "")),
        ("git@a.org:org/x.git@v1//t", ("git@a.org:org/x.git", "v1", "t")),
        ("file:///srv/x@main//t", ("file:///srv/x", "main", "t")),
        (f"https://a.org/x@{'AB' * 20}", ("https://a.org/x", "ab" * 20, "")),
    ],
)
def test_grammar(text, expected):
    source = parse_source(text)

    assert (source.url, source.ref, source.folder) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a\0b", "is empty, or no text a path can have"),
        ("https://a.org/\udcff", "is empty, or no text a path can have"),
        ("ext::sh -c x", "names a transport that is never run"),
        ("ftp://a.org/x", "has an address that is never fetched"),
        ("https://a.org:x/y", "has no valid address"),
        ("git@a.org:-x", "has no valid address"),
        ("https://a.org/x@--upload-pack=x", "'--upload-pack=x' is no name of a branch, tag or commit"),
        ("https://a.org/x@a..b", "'a..b' is no name of a branch"),
        ("https://a.org/x@", "'' is no name of a branch"),
        ("https://a.org/x@v1//../y", "leaves the repository"),
        ("https://a.org/x@v1//.git", "leaves the repository"),
        ("nothing-here", "There is no folder 'nothing-here'"),
        ("/nothing/here", "There is no folder '/nothing/here'"),
        ("./nothing@v1", r"There is no folder './nothing@v1'"),
        ("x" * 5000, "There is no folder"),
    ],
)
def test_source_nobody_can_mean_is_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SourceError, match=message):
        resolve(text, cache_dir=tmp_path / "cache")


def test_path_that_exists_wins(tmp_path, monkeypatch):
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    found = resolve("org/repo", cache_dir=tmp_path / "cache")

    assert found.path == Path("org/repo")
    assert (found.info.path, found.info.repo, found.info.commit) == ("org/repo", None, None)
    assert not (tmp_path / "cache").exists()


def test_misspelt_path_below_an_existing_folder_is_not_looked_for_on_github(tmp_path, monkeypatch):
    (tmp_path / "tasks" / "fetch-note").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SourceError, match="There is no folder 'tasks/fetch-not'") as caught:
        resolve("tasks/fetch-not", cache_dir=tmp_path / "cache")

    assert caught.value.hint.startswith("Did you mean 'fetch-note'? ")


@pytest.mark.parametrize(
    ("text", "ref", "folder", "content"),
    [
        ("{repo}/tasks/one@v1", "v1", "tasks/one", "1\n"),
        ("{repo}@v1//tasks/one", "v1", "tasks/one", "1\n"),
        ("file://{repo}@v2//tasks/two", "v2", "tasks/two", "2\n"),
        ("file://{repo}@feature/x//tasks/two", "feature/x", "tasks/two", "2\n"),
        ("file://{repo}@refs/heads/main//tasks/two", "refs/heads/main", "tasks/two", "2\n"),
        ("file://{repo}//tasks/two", None, "tasks/two", "2\n"),
    ],
)
def test_folder_of_a_repository_is_read_at_its_ref(repository, tmp_path, text, ref, folder, content):
    found = resolve(text.format(repo=repository), cache_dir=tmp_path / "cache")

    commit = git(repository, "rev-parse", f"{ref or 'HEAD'}^{{commit}}")
    assert (found.path / "v").read_text() == content
    assert (found.info.path, found.info.ref, found.info.commit) == (folder, ref, commit)
    assert found.info.repo == f"file://{repository}"


def test_checkout_the_caller_stands_in_is_meant_only_when_the_path_says_so(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)

    here = resolve("./tasks/one@v1", cache_dir=tmp_path / "cache")

    assert here.info.repo == f"file://{repository}"
    assert parse_source("org/tasks@v1").url == "https://github.com/org/tasks.git"
    monkeypatch.chdir(tmp_path)
    assert parse_source("repo/tasks/one@v1") == GitSource(f"file://{repository}", "v1", "tasks/one")


def test_whole_and_short_commits_are_refs(repository, tmp_path):
    first = git(repository, "rev-parse", "v1")

    for digits in (first[:9], first, first.upper()):
        found = resolve(f"{repository}/tasks/one@{digits}", cache_dir=tmp_path / "cache")
        assert found.info.commit == first


def test_commit_in_the_cache_needs_no_repository(repository, tmp_path):
    commit = git(repository, "rev-parse", "v1")
    resolve(f"file://{repository}@{commit}", cache_dir=tmp_path / "cache")
    repository.rename(tmp_path / "moved")

    found = resolve(f"file://{repository}@{commit}//tasks", cache_dir=tmp_path / "cache")

    assert (found.path / "one" / "v").read_text() == "1\n"


def test_moved_branch_is_read_anew_and_old_trees_stay(repository, tmp_path):
    before = resolve(f"file://{repository}@main", cache_dir=tmp_path / "cache")
    (repository / "tasks" / "two" / "v").write_text("3\n")
    git(repository, "commit", "-qam", "three")

    after = resolve(f"file://{repository}@main", cache_dir=tmp_path / "cache")

    assert (before.path / "tasks" / "two" / "v").read_text() == "2\n"
    assert (after.path / "tasks" / "two" / "v").read_text() == "3\n"
    assert os.access(after.path / "tasks" / "two" / "run.sh", os.X_OK)


def test_unknown_ref_names_the_nearest_and_what_there_is(repository, tmp_path):
    with pytest.raises(SourceError, match="no branch, tag or commit 'feature/y'") as caught:
        resolve(f"file://{repository}@feature/y", cache_dir=tmp_path / "cache")

    assert caught.value.hint == "Did you mean 'feature/x'? There are: feature/x, main, v1, v2."


@pytest.mark.parametrize("ref", ["0" * 40, "abcdef1"])
def test_unknown_commit_is_told_like_an_unknown_ref(repository, tmp_path, ref):
    with pytest.raises(SourceError, match=f"no branch, tag or commit '{ref}'"):
        resolve(f"file://{repository}@{ref}", cache_dir=tmp_path / "cache")


def test_unknown_folder_names_what_there_is(repository, tmp_path):
    with pytest.raises(SourceError, match=r"There is no folder 'tasks/tow' in file:.* at v2") as caught:
        resolve(f"{repository}/tasks/tow@v2", cache_dir=tmp_path / "cache")

    assert caught.value.hint.startswith("Did you mean 'tasks/two'?")


def test_unknown_parent_folder_and_link_out_of_the_repository_are_no_folders(repository, tmp_path):
    for folder in ("nothing/here", "tasks/outside"):
        with pytest.raises(SourceError, match="There is no folder"):
            resolve(f"{repository}@v2//{folder}", cache_dir=tmp_path / "cache")


def test_empty_repository_is_told(tmp_path):
    git(tmp_path, "init", "-q", "--bare", "empty.git")

    with pytest.raises(SourceError) as caught:
        resolve(f"file://{tmp_path}/empty.git", cache_dir=tmp_path / "cache")

    assert caught.value.hint == "It is empty."


def test_repository_that_is_not_there_shows_gits_reason(tmp_path):
    with pytest.raises(SourceError, match="does not appear to be a git repository"):
        resolve(f"file://{tmp_path}/absent@v1", cache_dir=tmp_path / "cache")


def test_cache_that_cannot_be_written_is_told(repository, tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(SourceError, match="cannot be used"):
        resolve(f"{repository}@v1", cache_dir=tmp_path / "file")


def test_missing_git_is_told(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(SourceError, match="Git is not installed"):
        resolve(f"{repository}@v1", cache_dir=tmp_path / "cache")


def test_what_a_killed_fetch_left_is_removed(repository, tmp_path):
    resolve(f"{repository}@v1", cache_dir=tmp_path / "cache")
    (store,) = (tmp_path / "cache" / "git").glob("*.git")
    (trees,) = (tmp_path / "cache" / "git" / "trees").iterdir()
    (store / "shallow.lock").touch()
    (trees / ".new-x").mkdir()

    found = resolve(f"{repository}/tasks/two@v2", cache_dir=tmp_path / "cache")

    assert (found.path / "v").read_text() == "2\n"
    assert not (trees / ".new-x").exists()


def test_existing_folder_whose_name_is_no_text_is_shown_escaped(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    folder.mkdir()

    found = resolve(str(folder), cache_dir=tmp_path / "cache")

    assert found.path == folder
    assert found.info.path.endswith("bad\\udcff'")


def resolve_one(arguments: tuple[str, str]) -> str:
    found = resolve(arguments[0], cache_dir=Path(arguments[1]))
    return (found.path / "v").read_text() + ",".join(sorted(os.listdir(found.path.parent)))


def test_eight_at_once_each_see_their_own_tree(repository, tmp_path):
    texts = [f"{repository}/tasks/one@v1", f"{repository}/tasks/two@v2"] * 4
    cache = str(tmp_path / "cache")

    with multiprocessing.get_context("spawn").Pool(8) as pool:
        seen = pool.map(resolve_one, [(text, cache) for text in texts], chunksize=1)

    assert seen == ["1\none", "2\noutside,two"] * 4
    (trees,) = (tmp_path / "cache" / "git" / "trees").iterdir()
    assert len(list(trees.iterdir())) == 2


class Recorder(BaseHTTPRequestHandler):
    """Refuses everybody and remembers what they sent; with `stall` it never answers."""

    headers_seen: list[str | None]
    stall: threading.Event | None = None

    def do_GET(self) -> None:
        self.headers_seen.append(self.headers["Authorization"])
        if self.stall is not None:
            self.stall.wait(30)
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Recorder,), {"headers_seen": []})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield http
        if handler.stall is not None:
            handler.stall.set()
        http.shutdown()
        thread.join()


def test_credential_reaches_the_server_and_nothing_else(server, tmp_path):
    text = f"http://ana:s3cr%40t@127.0.0.1:{server.server_port}/x.git@v1"

    with pytest.raises(SourceError) as caught:
        resolve(text, cache_dir=tmp_path / "cache")

    assert server.RequestHandlerClass.headers_seen == ["Basic YW5hOnMzY3JAdA=="]
    shown = caught.value.message + caught.value.hint + repr(parse_source(text))
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in ("s3cr", "YW5hOnMzY3JAdA"):
        assert secret not in shown
        assert secret.encode() not in kept
    assert f"http://127.0.0.1:{server.server_port}/x.git" in caught.value.message


def test_credential_of_a_misspelt_address_is_not_shown():
    with pytest.raises(SourceError) as caught:
        parse_source("ftp://ana:secret@a.org/x")

    assert "secret" not in caught.value.message


def test_ssh_password_is_dropped():
    assert parse_source("ssh://git:secret@a.org/x") == GitSource("ssh://git@a.org/x", None, "")


def test_server_that_never_answers_meets_the_deadline(server, tmp_path):
    server.RequestHandlerClass.stall = threading.Event()

    with pytest.raises(SourceError, match="did not finish reading"):
        resolve(f"http://127.0.0.1:{server.server_port}/x.git", cache_dir=tmp_path / "cache", deadline_s=0.5)


def test_lock_held_by_another_process_meets_the_deadline(repository, tmp_path):
    wanted = Checkout(f"file://{repository}", "v1")
    checkout(wanted, cache_dir=tmp_path, deadline_s=60)
    (lock,) = tmp_path.glob("*.lock")
    with subprocess.Popen(
        ["flock", str(lock), "sh", "-c", "echo held; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        with pytest.raises(SourceError, match="still fetching"):
            checkout(wanted, cache_dir=tmp_path, deadline_s=0.1)

        holder.communicate(b"\n")
