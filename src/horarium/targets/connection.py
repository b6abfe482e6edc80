"""A connection to one server that is called over HTTP: its session, and what its secrets stand for.

No text of a failed call holds a secret. A secret in a file may be renewed while we run: where the server
takes ours no longer, references are resolved again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import aiohttp
from yarl import URL

import horarium
from horarium.errors import HorariumError
from horarium.targets.outgoing import KEEPALIVE, fault_of, lay_headers, limits_of, verification
from horarium.targets.secrets import Redactor

LONGEST_TIMEOUT = timedelta(seconds=50)
"""Below the 60 s that a claim holds a run: a call that could outlive its lease is not begun at all."""


class CallFailed(HorariumError):
    """A call that got no answer about what it asked.

    `retry_at` is when the server asked to be tried again; `unknown`: the call may have had its effect. `code`
    is the protocol's word for why, where it has one.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: str = "unavailable",
        retry_at: datetime | None = None,
        unknown: bool = False,
    ) -> None:
        self.reason, self.code, self.retry_at, self.unknown = reason, code, retry_at, unknown
        super().__init__(reason)


@dataclass(slots=True)
class Access:
    """What a config resolves to: the address without a slash at its end, headers, and the secrets in them.

    `stale`: the server didn't take them.
    """

    url: str
    headers: Mapping[str, str]
    redactor: Redactor
    stale: bool = False

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> Access:
        """For calls with JSON both ways. `headers` may hold references. Raises `SecretMissing`."""
        laid = {
            "User-Agent": f"Horarium/{horarium.__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
        }
        found = lay_headers(laid, headers)
        return cls(url.rstrip("/"), laid, Redactor([*secrets, *found]))


class Connection:
    """Started, used concurrently, closed. `resolve` reads the config's references, or raises `SecretMissing`;
    `limit` is how many calls there may be at once."""

    def __init__(self, resolve: Callable[[], Access], verify: bool | str, limit: int) -> None:
        self._resolve = resolve
        self._verify = verify
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None
        self._access: Access | None = None

    async def start(self) -> None:
        """Resolve references and open the session. Raises `SecretMissing`."""
        self._access = self._resolve()
        self._session = open_session(self._verify, self._limit)

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _present(self) -> Access:
        """Resolved again if it was stale. Raises `CallFailed`, and `SecretMissing` where a renewed secret is
        not there."""
        if self._session is None or self._access is None:
            raise CallFailed("the connection is closed")
        if self._access.stale:
            self._access = self._resolve()
        return self._access

    @asynccontextmanager
    async def _request(
        self,
        access: Access,
        method: str,
        url: URL,
        body: bytes | None,
        timeout: timedelta,
        more: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer to be read, whatever its status; `more` are headers. Raises `CallFailed`."""
        if self._session is None:
            raise CallFailed("the connection is closed")
        seconds = timeout.total_seconds()
        if seconds <= 0:
            raise CallFailed("no time was left for the call", code="deadline_exceeded")
        try:
            response = await self._session.request(
                method,
                url,
                data=body,
                headers={**access.headers, **more} if more else access.headers,
                timeout=limits_of(seconds),
                allow_redirects=False,
            )
            try:
                yield response
            finally:
                response.close()  # one that was read to its end has been given back already
        except CallFailed:
            raise
        except Exception as error:  # its text may hold a secret, so none gets out unread
            fault = fault_of(error, access.redactor)
            raise CallFailed(fault.reason, unknown=getattr(fault, "unknown", False)) from None


def open_session(verify: bool | str, limit: int) -> aiohttp.ClientSession:
    """A session for at most `limit` calls at once. Raises `SecretMissing` where `verify` can't be read."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEPALIVE, ssl=verification(verify)),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # an answer is read up to a bound, and a packed one could grow past it
    )


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises `CallFailed` past `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    while not response.content.at_eof():
        chunk = await response.content.readany()
        size += len(chunk)
        if size > limit:
            raise CallFailed(f"answered with more than {limit:,} bytes", code="internal", unknown=True)
        chunks.append(chunk)
    return b"".join(chunks)
