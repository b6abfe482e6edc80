"""One call of Prefect's REST API: JSON both ways.

A call ends with a status and data, or raises `CallFailed` where there was no answer, none of Prefect's, or
one that says "not now" (408, 429, 5xx) or "not you" (401, 403). What another 4xx means is the caller's to
say. Answers are read up to a bound, redirects are not followed, and no text holds a secret.

An API key in a file may be renewed while we run: after a 401 or 403 the references are resolved again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp
from yarl import URL

from horarium.clock import Clock
from horarium.errors import Problem
from horarium.targets.checks import Fields
from horarium.targets.connection import LONGEST_TIMEOUT, Access, CallFailed, Connection, read_body
from horarium.targets.outgoing import (
    EXCERPT,
    address_of,
    check_headers,
    check_server,
    check_verify,
    retry_after,
)
from horarium.targets.secrets import Redactor, check_reference, resolve

DEFAULT_TIMEOUT = timedelta(seconds=15)

_MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer: a page of 200 deployments with large parameter schemas is some 10 MiB."""

_NOT_NOW = frozenset((408, 425, 429))
_NOT_YOU = frozenset((401, 403))
_LOST_BEHIND_GATEWAY = frozenset((500, 502, 504))
"""The call may have had its effect: Prefect answers 500 when its database fails at the commit, too."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status, and its data where it is JSON, else None."""

    status: int
    data: Any

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """What Prefect says of a call that it refuses: `detail`, or `exception_detail` for what can't be
        read, where each entry says which field is wrong."""
        data = self.data if isinstance(self.data, dict) else {}
        said = data.get("detail", data.get("exception_detail", data.get("exception_message", "")))
        if isinstance(said, list):
            said = "; ".join(map(_wrong_field, said))
        return said if isinstance(said, str) else json.dumps(said)


class Client(Connection):
    """A connection to one server, of a config that was checked."""

    def __init__(self, config: Mapping[str, Any], clock: Clock, *, limit: int) -> None:
        super().__init__(lambda: _access(config), config.get("verify", True), limit)
        self._clock = clock
        self.timeout = timedelta(seconds=config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())

    def clean(self, text: str) -> str:
        """`text` without secrets, on one line, and no longer than a message should be."""
        redactor = self._access.redactor if self._access is not None else Redactor()
        return redactor.clean(text, EXCERPT).strip()

    async def call(
        self, method: str, path: str, body: object = None, *, timeout: timedelta | None = None
    ) -> Reply:
        """The answer to a call, such as `POST`, `/deployments/filter`.

        `path` is quoted already. `timeout` is how long the caller waits, at most the connection's. Raises
        `CallFailed`, and `SecretMissing` where a renewed secret is not there.
        """
        access = self._present()
        url = URL(access.url + path, encoded=True)
        data = None if body is None else _encode(body).encode()
        limit = min(timeout or self.timeout, self.timeout)
        async with self._request(access, method, url, data, limit) as response:
            return await self._reply(response, access)

    async def every(
        self, path: str, body: Mapping[str, Any], *, timeout: timedelta | None = None
    ) -> list[dict[str, Any]]:
        """All items of a `filter` call, page by page, each once, by id.

        Items that come and go between two pages move the others from page to page, so one could be missed:
        the caller compares with a count. Raises `CallFailed`.
        """
        found: dict[str, dict[str, Any]] = {}
        offset, first = 0, 0
        while True:
            # Without a limit a page is as long as that server gives at once; more than that it would refuse.
            page = await self.items(path, {**body, "offset": offset}, timeout=timeout)
            found |= {str(item.get("id")): item for item in page}
            offset += len(page)
            first = first or len(page)
            if len(page) < first or not page:
                return list(found.values())

    async def items(
        self, path: str, body: Mapping[str, Any], *, timeout: timedelta | None = None
    ) -> list[dict[str, Any]]:
        """The list that a `POST` of a filter answers. Raises `CallFailed`."""
        reply = await self.call("POST", path, body, timeout=timeout)
        if reply.status == 404:
            raise CallFailed(f"{path} answered 404: is this Prefect's API (its address ends in /api)?")
        if not reply.good or not isinstance(reply.data, list):
            raise CallFailed(f"{path} answered {reply.status}{self.why(reply)}")
        return [item for item in reply.data if isinstance(item, dict)]

    def why(self, reply: Reply) -> str:
        """What Prefect said, with a colon before it, or nothing."""
        said = self.clean(reply.detail)
        return f": {said}" if said else ""

    async def _reply(self, response: aiohttp.ClientResponse, access: Access) -> Reply:
        status = response.status
        raw = await read_body(response, _MAX_ANSWER)
        if 300 <= status < 400:
            raise CallFailed(
                f"answered {status}, a redirect, which is not followed: give the final address as url"
            )
        try:
            data = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            if 200 <= status < 300:
                raise CallFailed(
                    f"answered {status} with something that is not JSON: is this Prefect's API "
                    "(its address ends in /api)?"
                ) from None
            data = None
        reply = Reply(status, data)
        if status in _NOT_YOU:
            access.stale = True
        if status in _NOT_YOU or status in _NOT_NOW or status >= 500:
            raise CallFailed(
                f"answered {status}{self.why(reply)}",
                retry_at=retry_after(response.headers.get("Retry-After"), self._clock.now()),
                unknown=status in _LOST_BEHIND_GATEWAY,
            )
        return reply


def _access(config: Mapping[str, Any]) -> Access:
    url, secrets = address_of(config["url"])
    headers = dict(config.get("headers", {}))
    if "api_key" in config:
        headers["Authorization"] = f"Bearer {config['api_key']}"
    if "auth_string" in config:
        pair = resolve(config["auth_string"])
        encoded = base64.b64encode(pair.encode()).decode()
        headers["Authorization"] = f"Basic {encoded}"
        secrets += [pair, encoded, *pair.split(":", 1)[1:]]
    return Access.of(url, headers, secrets)


def check_connection(fields: Fields) -> dict[str, Any]:
    """Reads the fields of `CONNECTION_KEYS`; problems are left in `fields`.

    `url` (where Prefect's API is, or a reference to it), `api_key` (a reference to a key of Prefect Cloud),
    `auth_string` (a reference to the `user:password` of a server with PREFECT_SERVER_API_AUTH_STRING),
    `headers`, `timeout` (15 s), `verify` (true, false, or a file of certificates).
    """
    checked: dict[str, Any] = {}
    rule = "Prefect's API is reached at a url"
    check_server(fields, checked, "url", rule, "http://127.0.0.1:4200/api")
    check_headers(fields, checked)
    names = {name.lower() for name in checked.get("headers", {})}
    for word, example in (("api_key", "PREFECT_API_KEY"), ("auth_string", "PREFECT_API_AUTH_STRING")):
        if fields.has(word):
            value = fields.raw(word)
            fields.check(check_reference, value, fields.at(word), word, example)
            if "authorization" in names or "api_key" in checked:
                rule = "a server is told who asks in one way: api_key, auth_string or a header Authorization"
                fields.problems.append(Problem(fields.at(word), "a second one", rule, code="conflict"))
            checked[word] = value
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    check_verify(fields, checked)
    return checked


def _wrong_field(item: object) -> str:
    if not isinstance(item, dict):
        return str(item)
    place = ".".join(str(part) for part in item.get("loc", ()) if part != "body")
    return f"{place}: {item.get('msg', '')}" if place else str(item.get("msg", item))
