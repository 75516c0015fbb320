"""From an address to a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_client.errors import MissingExtraError, StoreError
from benchflow_client.store.files import FileStore
from benchflow_client.store.registry import open_store


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "FILE://{}"])
def test_folder_opens_a_file_store(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path))

    assert isinstance(store, FileStore)
    assert store.root == tmp_path


def test_relative_folder_is_below_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert open_store("jobs").url == f"file://{tmp_path}/jobs"


def test_url_of_a_store_opens_it_again(tmp_path: Path) -> None:
    first = open_store(str(tmp_path / "with space % and #"))
    first.put("job/a", b"1")

    assert open_store(first.url).get("job/a") == b"1"


@pytest.mark.parametrize("url", ["", "  ", "a\0b", "file://", "file://otherhost/x", "file:///x?y=1"])
def test_address_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


@pytest.mark.parametrize("url", ["gs://bucket/x", "http://host/x", "s3a://bucket"])
def test_unknown_kind_names_the_choices(url: str) -> None:
    with pytest.raises(StoreError, match=f"kind '{url.partition(':')[0]}'") as caught:
        open_store(url)

    assert "s3://bucket/prefix" in caught.value.hint


def test_s3_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "benchflow_client.store.s3", raising=False)

    with pytest.raises(MissingExtraError) as caught:
        open_store("s3://key:secret@bucket/x")

    assert caught.value.hint == "Run: pip install 'benchflow-workers[s3]'"
    assert "secret" not in caught.value.message


def test_broken_installation_is_not_called_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchflow_client.store.s3_errors", None)
    monkeypatch.delitem(sys.modules, "benchflow_client.store.s3", raising=False)

    with pytest.raises(ModuleNotFoundError):
        open_store("s3://bucket/x")


def test_folder_store_does_not_load_the_s3_library() -> None:
    program = (
        "import sys\n"
        "from benchflow_client.store.registry import open_store\n"
        "open_store('jobs')\n"
        "sys.exit('obstore' in sys.modules)\n"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
