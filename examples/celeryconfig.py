"""Settings of a Celery app, as `horarium import celery` reads them: the module is never run."""

import os
from datetime import timedelta

from celery.schedules import crontab, solar

timezone = "Europe/Berlin"

NIGHT = 2

beat_schedule = {
    "clean-up": {
        "task": "shop.tasks.clean_up",
        "schedule": crontab(minute=30, hour=NIGHT),
        "kwargs": {"older_than_days": 30},
    },
    "report": {
        "task": "shop.tasks.report",
        "schedule": crontab(minute=0, hour="7-19/2", day_of_week="mon-fri"),
        "args": ("sales", "de"),
        "options": {"queue": "reports", "expires": 3600},
    },
    "heartbeat": {"task": "shop.tasks.heartbeat", "schedule": timedelta(seconds=30)},
    "lights": {"task": "shop.tasks.lights", "schedule": solar("sunset", 52.5, 13.4)},
    "from-the-environment": {"task": "shop.tasks.poll", "schedule": float(os.environ.get("POLL", "60"))},
}
