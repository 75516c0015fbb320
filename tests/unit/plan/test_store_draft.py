"""Sending a draft: all of it or nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchflow_client.errors import BrokerError, JobExistsError, StoreError
from benchflow_client.plan.draft import Draft, find_work, make_draft
from benchflow_client.plan.submit import free_name, store_draft
from benchflow_client.schema.ids import is_job_name
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from benchflow_client.store.documents import read_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import bundle_key, plan_key, spec_key


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    for path, text in (
        ("task.toml", 'version = "1.0"\n'),
        ("instruction.md", "Do it.\n"),
        ("environment/Dockerfile", "FROM debian:bookworm-slim\n"),
        ("tests/test.sh", "exit 0\n"),
    ):
        (tmp_path / "tasks/one" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks/one" / path).write_text(text)
    spec = JobSpec.model_validate({"tasks": str(tmp_path / "tasks"), "agent": "nop", "job_name": "mine"})
    return make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="null")


def nothing() -> None:
    """Open no job."""


def refuse() -> None:
    raise BrokerError("The broker said no.")


def test_bundle_spec_and_plan_are_there_before_the_job_opens(draft: Draft, store: FileStore) -> None:
    seen: list[set[str]] = []

    store_draft(draft, store, lambda: seen.append(set(store.list(""))))

    assert seen == [{spec_key("mine"), plan_key("mine"), bundle_key(draft.plan.tasks[0].digest)}]
    assert read_document(store, plan_key("mine"), Plan) == draft.plan
    assert read_document(store, spec_key("mine"), JobSpec) == draft.plan.spec


def test_a_bundle_is_stored_once(draft: Draft, store: FileStore, tmp_path: Path) -> None:
    store_draft(draft, store, nothing)
    again = draft.plan.model_copy(update={"job": "other"})
    (tmp_path / "tasks/one/instruction.md").unlink()  # the folder is not even looked at

    store_draft(Draft(again, draft.folders, ()), store, nothing)

    assert len([key for key in store.list("") if key.endswith(".tar")]) == 1


def test_a_name_that_is_taken_leaves_the_first_job_as_it_is(draft: Draft, store: FileStore) -> None:
    store_draft(draft, store, nothing)
    before = {key: store.get(key) for key in store.list("mine/")}
    later = draft.plan.model_copy(update={"skipped": ("x",)})

    with pytest.raises(JobExistsError) as caught:
        store_draft(Draft(later, draft.folders, ()), store, refuse)

    assert "'mine' already in file://" in caught.value.message
    assert "--resume mine" in caught.value.hint
    assert "--fresh" in caught.value.hint
    assert {key: store.get(key) for key in store.list("mine/")} == before


def test_a_name_is_kept_while_it_is_free_and_else_begins_a_new_one(draft: Draft, store: FileStore) -> None:
    long = "n" * 63
    assert free_name("mine", store) == "mine"
    store_draft(draft, store, nothing)
    store.put(spec_key(long), b"{}")

    assert re.fullmatch(r"mine-[0-9a-f]{4}", free_name("mine", store))
    assert is_job_name(free_name(long, store))
    assert free_name(long, store) != long


def test_a_broker_that_refuses_leaves_nothing_of_the_job(draft: Draft, store: FileStore) -> None:
    with pytest.raises(BrokerError, match="said no"):
        store_draft(draft, store, refuse)

    assert list(store.list("mine/")) == []
    store_draft(draft, store, nothing)
    assert store.exists(plan_key("mine"))


def test_a_folder_that_changed_since_it_was_planned_is_not_stored(
    draft: Draft, store: FileStore, tmp_path: Path
) -> None:
    (tmp_path / "tasks/one/instruction.md").write_text("Do something else.\n")

    with pytest.raises(StoreError) as caught:
        store_draft(draft, store, nothing)

    assert "changed while it was read" in caught.value.message
    assert list(store.list("")) == []
