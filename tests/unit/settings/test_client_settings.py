"""What the environment says to a client, and where things are when it says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_client import settings
from benchflow_client.errors import JobSpecError
from benchflow_client.store.configured import configured_store


def test_an_empty_environment_is_enough() -> None:
    found = settings.load({"HOME": "/home/ana", "USER": "ana"})

    assert (found.broker_url, found.store_url, found.fleet, found.user) == (None, None, None, "ana")
    assert found.state_dir == Path("/home/ana/.local/state/benchflow")


def test_every_field_is_a_variable_of_ours() -> None:
    values = {
        "broker_url": "redis://:word@host:6379/0", "ledger_url": "redis://host:6380/0", "store_url": "s3://bucket/x", "s3_endpoint": "http://s3",
        "s3_region": "eu-west-1", "s3_access_key_id": "id", "s3_secret_access_key": "hidden",
        "s3_allow_http": "true", "state_dir": "/state", "fleet": "blue", "user": "li",
        "env_registry": "/pins", "agents_dir": "/agents",
    }  # fmt: skip
    assert set(values) == set(settings.Settings.model_fields)

    found = settings.load({f"BENCHFLOW_{name.upper()}": value for name, value in values.items()})

    assert found.broker_url is not None
    assert found.broker_url.get_secret_value() == "redis://:word@host:6379/0"
    assert (found.store_url, found.s3_allow_http, found.fleet) == ("s3://bucket/x", True, "blue")
    assert (found.state_dir, found.user) == (Path("/state"), "li")


def test_secrets_are_not_shown() -> None:
    found = settings.load({
        "BENCHFLOW_BROKER_URL": "redis://:word@host",
        "BENCHFLOW_S3_SECRET_ACCESS_KEY": "hidden",
    })

    assert "word" not in repr(found)
    assert "hidden" not in repr(found)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    found = settings.load({"BENCHFLOW_BROKER_URL": "", "BENCHFLOW_FLEET": "", "LOGNAME": "ana"})

    assert (found.broker_url, found.fleet) == (None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("BENCHFLOW_FLEET", "Not Allowed"), ("BENCHFLOW_FLEET", "../x"), ("BENCHFLOW_S3_ALLOW_HTTP", "maybe")],
)
def test_a_variable_that_is_wrong_is_named(name: str, value: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        settings.load({name: value})

    assert caught.value.message.startswith(f"{name} is not valid: ")
    assert caught.value.hint == f"Correct or unset {name}."


def test_the_state_stands_where_the_desktop_says() -> None:
    assert settings.load({"XDG_STATE_HOME": "/xdg"}).state_dir == Path("/xdg/benchflow")


def test_without_a_home_it_is_that_of_the_account() -> None:
    found = settings.load({})

    assert found.state_dir.is_absolute()
    assert found.state_dir.parts[-3:] == (".local", "state", "benchflow")


def test_logname_says_who_one_is_before_user_does() -> None:
    assert settings.load({"LOGNAME": "ana", "USER": "root"}).user == "ana"
    assert settings.load({}).user


@pytest.mark.root
def test_an_account_without_a_name_is_called_by_its_number() -> None:
    """Containers often run as a number nobody knows."""
    program = "from benchflow_client import settings; print(settings.load({'HOME': '/'}).user)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os, benchflow_client.settings; os.setuid(54321); os.environ.clear(); {program}",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )

    assert done.stdout.strip() == "uid-54321"


def test_the_processs_own_variables_are_read_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_FLEET", "green")

    assert settings.load().fleet == "green"
    assert settings.process_environ() == dict(os.environ)


def test_the_store_of_the_settings_is_opened_with_their_credentials(tmp_path: Path) -> None:
    bare = settings.load({"LOGNAME": "ana"})
    keyed = settings.load({
        "LOGNAME": "ana", "BENCHFLOW_S3_ACCESS_KEY_ID": "id", "BENCHFLOW_S3_SECRET_ACCESS_KEY": "hidden",
        "BENCHFLOW_S3_ENDPOINT": "https://127.0.0.1:1",
    })  # fmt: skip

    assert configured_store(bare, str(tmp_path)).url == tmp_path.as_uri()
    assert configured_store(keyed, "s3://bucket/x").url == "s3://bucket/x"
