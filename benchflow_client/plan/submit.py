"""Send a draft: bundles once per digest, the job's name claimed, the plan stored, the job opened."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchflow_client.errors import JobExistsError, ObjectExistsError, StoreError
from benchflow_client.plan.draft import Draft
from benchflow_client.store.base import Store
from benchflow_client.store.documents import create_document, write_document
from benchflow_client.store.layout import bundle_key, job_prefix, plan_key, spec_key
from benchflow_client.tasks.bundle import pack

_LONGEST_STEM = 58
"""What stays of a name that gets a dash and four digits: names have 63 characters at most."""


def store_draft(draft: Draft, store: Store, open_job: Callable[[], None]) -> None:
    """Put a draft into the store and open its job.

    Args:
        draft: Plan and folders.
        store: Where documents and bundles go.
        open_job: Records the job in the ledger and publishes its first trials.

    Raises:
        JobExistsError: The name is taken; nothing was written under it.
        StoreError: The store refused; what was written of the job is removed again.
        BrokerError: The broker refused; likewise.
    """
    job = draft.plan.job
    store_bundles(draft, store)
    try:
        create_document(store, spec_key(job), draft.plan.spec)
    except ObjectExistsError as error:
        raise JobExistsError(
            f"There is a job {job!r} already in {store.url}.",
            hint=f"Go on with it: --resume {job}. Run it anew under another name: --fresh.",
        ) from error
    except StoreError:
        store.delete_tree(job_prefix(job))
        raise
    try:
        write_document(store, plan_key(job), draft.plan)
        open_job()
    except BaseException:
        # Ctrl-C too: half a job would look like one that was stopped.
        store.delete_tree(job_prefix(job))
        raise


def store_bundles(draft: Draft, store: Store) -> None:
    """Put every bundle of a draft into the store that is not there yet.

    Raises:
        StoreError: The store refused, or a folder changed while it was read.
    """
    for digest, folder in draft.folders.items():
        _upload(digest, folder, store)


def free_name(name: str, store: Store) -> str:
    """Return a job's name when it is free in the store, else one that begins like it."""
    if not store.exists(spec_key(name)):
        return name
    return f"{name[:_LONGEST_STEM]}-{secrets.token_hex(2)}"


def _upload(digest: str, folder: Path, store: Store) -> None:
    key = bundle_key(digest)
    if store.exists(key):
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        archive = Path(scratch) / "bundle.tar"
        packed = pack(folder, archive)
        if packed.digest != digest:
            raise StoreError(
                f"The folder {str(folder)!r} changed while it was read.",
                hint="Submit again when it is still.",
            )
        store.put_file(key, archive)
