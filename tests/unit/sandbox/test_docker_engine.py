import base64
import json
import os
import socket
import tarfile
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_engine import (
    ContextFile,
    build_headers,
    find_endpoint,
    pack_context,
    pull_headers,
    split_image,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (None, "unix:///var/run/docker.sock"),
        ("unix:///run/x.sock", "unix:///run/x.sock"),
        ("tcp://10.0.0.1:2376", "tcp://10.0.0.1:2376"),
        ("tcp://box", "tcp://box:2375"),
    ],
)
def test_address_of_the_engine_is_read(url: str | None, address: str) -> None:
    assert str(find_endpoint(url)) == address


def test_docker_host_is_used_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1234")

    assert str(find_endpoint(None)) == "tcp://127.0.0.1:1234"
    assert str(find_endpoint("unix:///x")) == "unix:///x"


@pytest.mark.parametrize("url", ["ssh://me@box", "https://box:2376", "npipe:////./pipe/docker", "tcp://"])
def test_other_addresses_are_refused_with_a_way_out(url: str) -> None:
    with pytest.raises(SandboxError, match="cannot be used") as caught:
        find_endpoint(url)

    assert caught.value.code == "sandbox.unavailable"
    assert "ssh -nNT -L" in caught.value.hint


def test_credentials_of_docker_login_are_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docker-config").mkdir()
    auth = base64.b64encode(b"me:secret").decode()
    config = {"auths": {"registry.example:5000": {"auth": auth}}}
    (tmp_path / "docker-config" / "config.json").write_text(json.dumps(config))

    pull = json.loads(
        base64.urlsafe_b64decode(pull_headers("registry.example:5000/a/b:1")["X-Registry-Auth"])
    )
    build = json.loads(base64.urlsafe_b64decode(build_headers()["X-Registry-Config"]))

    assert (pull["username"], pull["password"]) == ("me", "secret")
    assert build["registry.example:5000"]["username"] == "me"
    assert pull_headers("debian:12") == {}


def test_no_login_sends_no_credentials() -> None:
    assert (build_headers(), pull_headers("debian")) == ({}, {})


def test_image_names_are_split_at_their_tag() -> None:
    assert [split_image(name) for name in ("a", "a:1", "h:5000/a", "a@sha256:ff")] == [
        ("a", "latest"),
        ("a", "1"),
        ("h:5000/a", "latest"),
        ("a", "sha256:ff"),
    ]


def test_context_leaves_out_what_dockerignore_names(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    (folder / "keep").mkdir(parents=True)
    for name in ("Dockerfile", "keep/a.txt", "secret.key", "notes.md"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to("keep/a.txt")
    (folder / ".dockerignore").write_text("# comment\n*.key\n\nnotes.*\nDockerfile\n")

    with pack_context(folder, ()) as context, tarfile.open(fileobj=context) as archive:
        names = archive.getnames()

    assert names == [".dockerignore", "Dockerfile", "keep", "keep/a.txt", "link"]


def test_context_is_the_same_bytes_for_the_same_files(tmp_path: Path) -> None:
    contents = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "Dockerfile").write_text("FROM x")
        os.utime(folder / "Dockerfile", (number, number))
        with pack_context(folder, (ContextFile("more", "m"),)) as context:
            contents.append(context.read())

    assert contents[0] == contents[1]


def test_added_file_replaces_the_folders_own_and_sockets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM old")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))

        with (
            pack_context(tmp_path, (ContextFile("Dockerfile", "FROM new"),)) as context,
            tarfile.open(fileobj=context) as archive,
        ):
            file = archive.extractfile("Dockerfile")
            assert file is not None
            assert file.read() == b"FROM new"
            assert archive.getnames() == ["Dockerfile"]


def test_missing_context_is_a_failed_build(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").mkdir()

    with pytest.raises(SandboxError, match=r"context .* cannot be read") as caught:
        pack_context(tmp_path, ())

    assert caught.value.code == "sandbox.build_failed"
