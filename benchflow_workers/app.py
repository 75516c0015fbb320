"""The Celery app of the workers: `celery -A benchflow_workers.app:app ...`, for Flower and `inspect`."""

from __future__ import annotations

from celery.signals import celeryd_init

from benchflow_client.broker import make_app
from benchflow_workers.celery_tasks import register
from benchflow_workers.context import fleet_addresses
from benchflow_workers.settings import process_environ


def _refuse_to_serve(**_: object) -> None:
    """Stop `celery worker`: its pools lose or repeat trials, and nobody would see that worker."""
    raise SystemExit("error  This app does not run trials.\n       Start a worker with: bench worker")


_at = fleet_addresses(process_environ())
app = make_app(_at.broker, ledger_url=_at.ledger)
register(app)
celeryd_init.connect(_refuse_to_serve, weak=False)
