"""A worker to which Redis gives a message again after a second: its only difference to a real one."""

import sys

from benchflow_workers.context import context
from benchflow_workers.worker import WorkerOptions, serve

options = context().app.conf.broker_transport_options
context().app.conf.broker_transport_options = {
    **options,
    "visibility_timeout": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
sys.exit(serve(WorkerOptions(queues=("null", "control"), slots=2)))
