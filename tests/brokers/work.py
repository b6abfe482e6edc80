"""The tasks of the tests' workers, the same for Docket and for Celery.

Each notes in Redis that it began, and with what (`seen:NAME`); `hold` goes on until something is pushed to
`go:NAME`. NAME is what the engine knows the run by, its key or id. Tests wait for these with BLPOP.
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import current_task
from docket import TaskKey
from redis.asyncio import Redis

NOTES = os.environ.get("NOTES_URL", "")
LONGEST = 30
"""Seconds after which a held task gives up: no test leaves one behind."""


def note(name: str, parameters: dict[str, Any]) -> None:
    with redis.Redis.from_url(NOTES) as client:
        client.rpush(f"seen:{name}", json.dumps(parameters))


class Failed(Exception):
    """What the work fails with."""


# As Celery runs them.


def quick(*args: Any, **parameters: Any) -> None:
    note(current_task.request.id, {**parameters, **({"args": args} if args else {})})


def failing(**parameters: Any) -> None:
    note(current_task.request.id, parameters)
    raise Failed("the ledger is closed")


def hold(**parameters: Any) -> None:
    name = current_task.request.id
    note(name, parameters)
    with redis.Redis.from_url(NOTES, socket_timeout=LONGEST + 5) as client:
        client.blpop([f"go:{name}"], LONGEST)


# As Docket runs them.


async def docket_quick(key: str = TaskKey(), **parameters: Any) -> None:
    note(key, parameters)


async def docket_failing(key: str = TaskKey(), **parameters: Any) -> None:
    note(key, parameters)
    raise Failed("the ledger is closed")


async def docket_hold(key: str = TaskKey(), **parameters: Any) -> None:
    note(key, parameters)
    async with Redis.from_url(NOTES, socket_timeout=LONGEST + 5) as client:
        await client.blpop([f"go:{key}"], LONGEST)


DOCKET_TASKS = [docket_quick, docket_failing, docket_hold]
for task in DOCKET_TASKS:
    task.__name__ = task.__name__.removeprefix("docket_")
