"""What targets share that speak to an engine's REST API: JSON both ways, and what their runs are told.

A call ends with a `Reply`, whatever its status, or raises `CallFailed`. What a status means is the target's
to say. Answers are read up to a bound and redirects are not followed. At a 401 the references are resolved
again, and the call is made once more.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from yarl import URL

from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.run import FiredRun, Report
from horarium.errors import HorariumError
from horarium.targets.base import FireRequest, Refused, Unavailable
from horarium.targets.connection import Access, Connection, read_body
from horarium.targets.outgoing import retry_after

_MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer; one object of an engine is far smaller."""

_MAX_TEXT = 65_536
"""Bytes of an answer that are made a text for messages, which quote a part of it."""

_LOST = frozenset((500, 502, 504))
"""The call may have had its effect."""

_VARIABLE = re.compile(r"[A-Za-z0-9_]+")

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status, its data where it is JSON (else None), its text without secrets and on one line,
    and when it asked to be tried again."""

    status: int
    data: Any
    text: str
    retry_at: datetime | None = None

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def unavailable(self, why: str) -> Unavailable:
        """Not now, for what this answer says."""
        reason = f"answered {self.status}{why}"
        return Unavailable(reason, self.retry_at, unknown=self.status in _LOST)


class RestConnection(Connection):
    """Calls to one server, at most `limit` at once: what waits for its turn has not begun its time."""

    def __init__(
        self, resolve: Callable[[], Access], verify: bool | str, timeout: timedelta, limit: int, clock: Clock
    ) -> None:
        super().__init__(resolve, verify, limit)
        self._timeout = timeout
        self._places = asyncio.Semaphore(limit)
        self._clock = clock

    async def call(
        self, method: str, path: str, body: object = None, *, timeout: timedelta | None = None
    ) -> Reply:
        """The answer to a call; `path` is quoted already. `timeout` is how long the caller waits, at most the
        connection's. Raises `CallFailed`, and `SecretMissing` where a renewed token is not there."""
        access = self._present()
        limit = min(timeout or self._timeout, self._timeout)
        async with self._places:
            reply = await self._call(access, method, path, body, limit)
            if reply.status != 401:
                return reply
            renewed = self._access = self._resolve()
            if renewed.headers == access.headers:
                return reply
            return await self._call(renewed, method, path, body, limit)

    async def _call(self, access: Access, method: str, path: str, body: object, timeout: timedelta) -> Reply:
        url = URL(access.url + path, encoded=True)
        sent = None if body is None else _encode(body).encode()
        async with self._request(access, method, url, sent, timeout) as response:
            raw = await read_body(response, _MAX_ANSWER)
        try:
            data = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            data = None
        beginning = raw[:_MAX_TEXT].decode("utf-8", "replace")
        text = access.redactor.clean(beginning, cut=len(raw) > _MAX_TEXT).strip()
        asked = retry_after(response.headers.get("Retry-After"), self._clock.now())
        return Reply(response.status, data, text, asked)


async def each(runs: Sequence[FiredRun], ask: Callable[[FiredRun], Awaitable[Report]]) -> list[Report]:
    """The reports of those runs that could be asked about; raises the first fault if none could."""
    found = await asyncio.gather(*map(ask, runs), return_exceptions=True)
    reports = [item for item in found if isinstance(item, Report)]
    faults = [item for item in found if isinstance(item, BaseException)]
    for fault in faults:
        if not reports or not isinstance(fault, HorariumError):
            raise fault
    return reports


def environment(request: FireRequest) -> Iterator[tuple[str, str]]:
    """The variables that the work of a run gets: those of a command of `local`, and each parameter."""
    yield "HORARIUM_RUN_NAME", request.run_name
    yield "HORARIUM_SCHEDULED_TIME", rfc3339(request.scheduled_time)
    yield "HORARIUM_TRIGGER", str(request.trigger)
    yield "HORARIUM_PARAMETERS", json.dumps(dict(request.parameters), ensure_ascii=False)
    for name, value in request.parameters.items():
        if _VARIABLE.fullmatch(name):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"HORARIUM_PARAMETER_{name}", text


def redirected(reply: Reply) -> Refused | None:
    """What a redirect means: nothing is sent elsewhere."""
    if 300 <= reply.status < 400:
        return Refused(f"answered {reply.status}, a redirect, which is not followed: write the final address")
    return None
