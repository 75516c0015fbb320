"""The Celery app of the workers: `celery -A benchflow_workers.app:app ...`, also for Flower."""

from __future__ import annotations

from benchflow_client.broker import make_app
from benchflow_workers.celery_tasks import register
from benchflow_workers.context import fleet_addresses
from benchflow_workers.settings import process_environ

_at = fleet_addresses(process_environ())
app = make_app(_at.broker, ledger_url=_at.ledger)
register(app)
