"""Variables of a worker: those of its process, then those of `.env` in its working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.errors import WorkerError
from benchflow_workers.settings import with_env_file


def test_variables_of_the_process_go_before_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=file\nB=file\nC=${A}\n")

    found = with_env_file({"A": "process", "D": ""}, file)

    assert found == {"A": "process", "B": "file", "C": "process", "D": ""}


def test_without_a_file_there_are_those_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()

    assert with_env_file({"A": "1"}, tmp_path / ".env") == {"A": "1"}
    assert with_env_file({"A": "1"}, tmp_path / "venv") == {"A": "1"}


def test_process_whose_working_directory_is_gone_has_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert with_env_file({"A": "1"}, Path(".env")) == {"A": "1"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"A=1\nsk-not-a-variable\n", r"/\.env, line 2: it is not of the form NAME=VALUE"),
        (b"A=\xff\xfe-not-a-variable\n", r"/\.env cannot be read: it is not UTF-8 text"),
    ],
)
def test_file_that_cannot_be_read_is_told_and_not_quoted(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / ".env").write_bytes(content)

    with pytest.raises(WorkerError, match=words) as caught:
        with_env_file({}, tmp_path / ".env")

    assert "not-a-variable" not in f"{caught.value.message}{caught.value.hint}"
