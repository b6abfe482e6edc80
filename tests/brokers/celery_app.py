"""The Celery application of the tests' workers. A worker that is killed gives its message back."""

from __future__ import annotations

import os

from celery import Celery

from tests.brokers import work

app = Celery("tests", broker=os.environ.get("BROKER_URL"), backend=os.environ.get("BACKEND_URL"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
    worker_prefetch_multiplier=1,
    worker_concurrency=2,
    broker_connection_retry_on_startup=True,
)
for function in (work.quick, work.failing, work.hold):
    app.task(function, name=function.__name__)
