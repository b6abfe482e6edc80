"""What targets share that speak to an engine's REST API: a session, JSON both ways, places and draining.

A call ends with a `Reply`, whatever its status, or raises `NoAnswer`. What a status means is the target's to
say. Answers are read up to a bound, redirects are not followed, and no text holds a secret. A token in a file
may be renewed while we run: at a 401 the references are resolved again, and the call is made once more.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp
from yarl import URL

import horarium
from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.run import FiredRun, Report
from horarium.errors import HorariumError
from horarium.targets.base import Answer, FireRequest, Refused, Unavailable
from horarium.targets.outgoing import (
    KEEPALIVE,
    fault_of,
    lay_headers,
    limits_of,
    retry_after,
    verification,
)
from horarium.targets.secrets import Redactor, SecretMissing

LONGEST_TIMEOUT = timedelta(seconds=50)
"""Below the 60 s that a claim holds a run: a call that could outlive its lease is not begun at all."""

_MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer; one object of an engine is far smaller."""

_MAX_TEXT = 65_536
"""Bytes of an answer that are made a text for messages, which quote a part of it."""

_LOST = frozenset((500, 502, 504))
"""The call may have had its effect."""

_VARIABLE = re.compile(r"[A-Za-z0-9_]+")

_encode = json.JSONEncoder(separators=(",", ":")).encode


class NoAnswer(HorariumError):
    """A call without an answer. `unknown`: it may have had its effect."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        self.reason, self.unknown = reason, unknown
        super().__init__(reason)


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


@dataclass(frozen=True, slots=True)
class Access:
    """What a config resolves to: the address without a slash at its end, headers, and the secrets in them."""

    url: str
    headers: Mapping[str, str]
    redactor: Redactor

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> Access:
        """`headers` may hold references. Raises `SecretMissing`."""
        laid = {
            "User-Agent": f"Horarium/{horarium.__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        found = lay_headers(laid, headers)
        return cls(url.rstrip("/"), laid, Redactor([*secrets, *found]))


class Connection:
    """Calls to one server. `resolve` reads the config's references; it raises `SecretMissing`."""

    def __init__(
        self, resolve: Callable[[], Access], verify: bool | str, timeout: timedelta, limit: int, clock: Clock
    ) -> None:
        self._resolve = resolve
        self._verify = verify
        self._timeout = timeout
        self._places = asyncio.Semaphore(limit)
        self._limit = limit
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._access: Access | None = None

    async def start(self) -> None:
        """Resolve references and open the session. Raises `SecretMissing`."""
        self._access = self._resolve()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._limit, keepalive_timeout=KEEPALIVE, ssl=verification(self._verify)
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # an answer is read up to a bound, and a packed one could grow past it
        )

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self, method: str, path: str, body: object = None, *, timeout: timedelta | None = None
    ) -> Reply:
        """The answer to a call; `path` is quoted already. `timeout` is how long the caller waits, at most the
        connection's. Raises `NoAnswer`, and `SecretMissing` where a renewed token is not there."""
        access = self._access
        if access is None:
            raise NoAnswer("the connection is closed")
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
        seconds = timeout.total_seconds()
        if self._session is None:
            raise NoAnswer("the connection is closed")
        if seconds <= 0:
            raise NoAnswer("no time was left for the call")
        try:
            response = await self._session.request(
                method,
                URL(access.url + path, encoded=True),
                data=None if body is None else _encode(body).encode(),
                headers=access.headers,
                timeout=limits_of(seconds),
                allow_redirects=False,
            )
            try:
                raw = await _read(response)
            finally:
                response.close()  # one that was read to its end has been given back already
        except NoAnswer:
            raise
        except Exception as error:  # its text may hold a secret, so none gets out unread
            fault = fault_of(error, access.redactor)
            raise NoAnswer(fault.reason, unknown=getattr(fault, "unknown", False)) from None
        try:
            data = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            data = None
        beginning = raw[:_MAX_TEXT].decode("utf-8", "replace")
        text = access.redactor.clean(beginning, cut=len(raw) > _MAX_TEXT).strip()
        asked = retry_after(response.headers.get("Retry-After"), self._clock.now())
        return Reply(response.status, data, text, asked)


class EngineTarget(ABC):
    """The half of a target that all have that call an engine: places, draining, and answers to faults."""

    def __init__(self, connection: Connection, clock: Clock, timeout: timedelta, max_in_flight: int) -> None:
        self._connection = connection
        self._clock = clock
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    def free(self) -> int:
        return 0 if self._draining else max(0, self._max_in_flight - self._in_flight)

    async def start(self) -> None:
        """Resolve references, open connections. Raises `SecretMissing`: runs stay due until it is mended."""
        await self._connection.start()

    async def create_run(self, request: FireRequest) -> Answer:
        if self._draining:
            return Unavailable("the server is stopping")
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._create(request)
        except SecretMissing as error:
            return Unavailable(str(error))
        except NoAnswer as failed:
            return Unavailable(failed.reason, unknown=failed.unknown)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        """How runs are going. What can't be asked about now is left out; raises if that is all."""
        return await each(runs, self._status)

    async def drain(self, timeout: timedelta) -> None:
        self._draining = True
        await self._clock.wait(self._idle, timeout.total_seconds())

    async def close(self) -> None:
        self._draining = True
        await self._connection.close()

    @abstractmethod
    async def _create(self, request: FireRequest) -> Answer:
        """Create the run. Raises `NoAnswer`, `SecretMissing`."""

    @abstractmethod
    async def _status(self, run: FiredRun) -> Report:
        """How a run is going. Raises where it can't be asked about now."""


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


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body. Raises `NoAnswer` past the bound."""
    chunks: list[bytes] = []
    size = 0
    while not response.content.at_eof():
        chunk = await response.content.readany()
        size += len(chunk)
        if size > _MAX_ANSWER:
            raise NoAnswer(f"answered with more than {_MAX_ANSWER:,} bytes", unknown=True)
        chunks.append(chunk)
    return b"".join(chunks)
