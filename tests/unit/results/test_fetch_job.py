"""A job brought from its store into a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchflow_client.errors import JobNotFoundError, StoreError, UsageError
from benchflow_client.results.fetch import fetch_job
from benchflow_client.schema.plan import Plan
from benchflow_client.store.files import FileStore

N_DOCUMENTS = 1 + 3 * 3 + 2
"""plan.json, three finished attempts of three documents, two interrupted ones of one."""


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_document_of_the_job_arrives_and_none_of_another(
    store: FileStore, job: str, tmp_path: Path
) -> None:
    store.put(f"{job}-2/plan.json", b"{}")

    count = fetch_job(store, job, tmp_path / "out")

    assert count == N_DOCUMENTS
    assert files_below(tmp_path / "out") == files_below(store.root / job)


def test_progress_ends_at_the_number_of_documents(store: FileStore, job: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    fetch_job(store, job, tmp_path / "out", lambda done, total: seen.append((done, total)))

    assert seen[0] == (1, N_DOCUMENTS)
    assert seen[-1] == (N_DOCUMENTS, N_DOCUMENTS)
    assert sorted(seen) == seen


def test_interrupted_copy_continues_where_it_was(
    store: FileStore, job: str, plan: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fetch_job(store, job, out)
    kept = out / plan.trial(1).folder(1) / "result.json"
    (out / plan.trial(2).folder(1) / "result.json").unlink()
    (out / ".benchflow-tmp-0011").write_bytes(b"half")
    before = kept.stat().st_ino

    assert fetch_job(store, job, out) == N_DOCUMENTS

    assert kept.stat().st_ino == before
    assert (out / plan.trial(2).folder(1) / "result.json").is_file()


def test_copy_interrupted_in_its_first_write_continues(store: FileStore, job: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".benchflow-tmp-0011").write_bytes(b"half")

    assert fetch_job(store, job, tmp_path / "out") == N_DOCUMENTS


def test_running_job_is_brought_up_to_date(store: FileStore, job: str, plan: Plan, tmp_path: Path) -> None:
    fetch_job(store, job, tmp_path / "out")
    store.put(f"{job}/{plan.trial(3).folder(1)}/result.json", b"{}")
    store.put(f"{job}/summary.json", b"{}")

    assert fetch_job(store, job, tmp_path / "out") == N_DOCUMENTS + 2

    assert files_below(store.root / job).items() <= files_below(tmp_path / "out").items()


def test_unknown_job_touches_no_folder(store: FileStore, job: str, tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError, match="no job 'other'"):
        fetch_job(store, "other", tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_folder_with_something_else_is_refused_untouched(store: FileStore, job: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")

    with pytest.raises(UsageError, match="not empty") as caught:
        fetch_job(store, job, out)

    assert str(out) in caught.value.message
    assert files_below(out) == {"thesis.tex": b"mine"}


def test_folder_of_another_job_is_refused(store: FileStore, job: str, plan: Plan, tmp_path: Path) -> None:
    """Even one of the same name: two stores may each have a calm-otter-7f3a."""
    fetch_job(store, job, tmp_path / "out")
    store.put(f"{job}/plan.json", plan.model_copy(update={"sandbox": "docker"}).model_dump_json().encode())

    with pytest.raises(UsageError, match="does not hold the job"):
        fetch_job(store, job, tmp_path / "out")


def test_file_in_the_place_of_the_folder_is_an_error(store: FileStore, job: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")

    with pytest.raises(StoreError, match="out"):
        fetch_job(store, job, tmp_path / "out")


def test_fetching_into_the_store_itself_copies_nothing(store: FileStore, job: str, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(store.root)
    before = (store.root / job / "plan.json").stat().st_ino
    seen: list[tuple[int, int]] = []

    count = fetch_job(store, job, tmp_path / "alias" / job, lambda done, total: seen.append((done, total)))

    assert count == N_DOCUMENTS
    assert seen == [(N_DOCUMENTS, N_DOCUMENTS)]
    assert (store.root / job / "plan.json").stat().st_ino == before


def test_symlinks_planted_in_the_folder_lead_nothing_out(
    store: FileStore, job: str, plan: Plan, tmp_path: Path
) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    fetch_job(store, job, out)
    target = out / plan.trial(1).folder(1)
    target.rename(tmp_path / "moved")
    target.symlink_to(outside)
    agent = out / plan.trial(2).folder(1) / "agent"
    (agent / "oracle.txt").unlink()
    os.rmdir(agent)
    agent.symlink_to(outside)

    count = fetch_job(store, job, out)

    assert list(outside.iterdir()) == []
    assert count == N_DOCUMENTS - 4
