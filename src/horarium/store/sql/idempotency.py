"""Requests that carry a key, and what was answered to them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, insert, select, update

from horarium.store import tables as t
from horarium.store.base import Remembered
from horarium.store.sql.script import Script


def remember(key: str, request_digest: str, now: datetime) -> Script[Remembered | None]:
    """See `Store.remember`."""
    rows = yield select(t.idempotency).where(t.idempotency.c.key == key).with_for_update()
    if rows:
        return Remembered(rows[0].request_digest, rows[0].status, rows[0].response)
    yield insert(t.idempotency).values(key=key, request_digest=request_digest, at=now)
    return None


def answer(key: str, status: int | None, response: str | None) -> Script[None]:
    """See `Store.answer`."""
    if status is None:
        yield delete(t.idempotency).where(t.idempotency.c.key == key)
    else:
        yield update(t.idempotency).where(t.idempotency.c.key == key).values(status=status, response=response)
