"""The Celery app of the workers: `celery -A benchflow_workers.app:app ...`, also for Flower."""

from __future__ import annotations

from benchflow_client.broker import make_app
from benchflow_workers.celery_tasks import register
from benchflow_workers.context import broker_url
from benchflow_workers.settings import process_environ

app = make_app(broker_url(process_environ()))
register(app)
