"""Receipts are read back from what a job left in its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.errors import StoreError
from benchflow_client.results.read import JobResults
from benchflow_client.results.receipts import stored_receipts
from benchflow_client.results.rows import receipt_row
from benchflow_client.schema.trial import Receipt
from benchflow_client.store.documents import json_lines
from benchflow_client.store.layout import rows_key
from benchflow_client.summary import aggregate
from tests.worlds import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def test_rows_of_a_closed_job_give_every_receipt_back(world: World) -> None:
    receipts = [
        Receipt(0, "failed", 0.5, "agent.timeout", 2, 3.25, None, None, "t__1"),
        *(Receipt(i, "cancelled", None, "", 0, 0.0, None, None, "") for i in range(1, world.plan.size)),
    ]
    rows = json_lines(receipt_row(world.plan, receipt) for receipt in receipts)
    world.store.put(rows_key(world.plan.job), rows)
    summary = aggregate(world.plan, receipts, elapsed_s=1.0)

    assert stored_receipts(world.store, JobResults(world.plan, summary)) == receipts


def test_interrupted_job_has_the_receipts_of_its_published_results(world: World) -> None:
    assert stored_receipts(world.store, JobResults(world.plan, None)) == []


def test_damaged_rows_are_named(world: World) -> None:
    summary = aggregate(world.plan, [], elapsed_s=1.0)
    world.store.put(rows_key(world.plan.job), b'{"index": 0}\n')

    with pytest.raises(StoreError, match=r"results\.jsonl has a line"):
        stored_receipts(world.store, JobResults(world.plan, summary))
