"""One call of Flyte's API: Connect's unary protocol, a POST of a protobuf message.

A call ends with the answer's message, or raises `CallFailed` with Connect's code. Without an answer, or with
one that is none of Connect's, the code is what the protocol derives from the HTTP status, else `unavailable`.
Bodies are gzipped both ways, answers are read up to a bound, and no text holds a secret.

A bearer token or a header in a file may be renewed while we run: on `unauthenticated`, the references are
resolved again for the next call.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import aiohttp
from google.protobuf.message import DecodeError, Message
from yarl import URL

import horarium
from horarium.clock import Clock
from horarium.targets.checks import Fields
from horarium.targets.connection import LONGEST_TIMEOUT, Access, CallFailed, Connection, read_body
from horarium.targets.outgoing import (
    EXCERPT,
    address_of,
    check_headers,
    check_server,
    check_token,
    check_verify,
    lay_headers,
    retry_after,
)
from horarium.targets.secrets import Redactor

DEFAULT_TIMEOUT = timedelta(seconds=10)

_MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer, unpacked: far more than a page of triggers."""

_MAX_ERROR = 65_536
_LEVEL = 1
"""Of gzip: requests are small, and a better ratio costs more time than the bytes do."""

_CODES = frozenset(
    (
        "canceled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
        "permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range",
        "unimplemented", "internal", "unavailable", "data_loss", "unauthenticated",
    )
)  # fmt: skip
_CODE_OF_STATUS: Mapping[int, str] = {
    400: "internal",
    401: "unauthenticated",
    403: "permission_denied",
    404: "unimplemented",
    429: "unavailable",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}
"""Of answers that are not in Connect's form: those of proxies, mostly."""

_LOST_BEHIND_GATEWAY = (502, 504)
_MAY_HAVE_HAPPENED = ("canceled", "unknown", "deadline_exceeded", "internal", "data_loss")

M = TypeVar("M", bound=Message)


class Client(Connection):
    """A connection to one endpoint, of a config that was checked."""

    def __init__(self, config: Mapping[str, Any], clock: Clock, *, limit: int) -> None:
        super().__init__(lambda: _access(config), config.get("verify", True), limit)
        self._clock = clock
        self._gzip = config.get("gzip", True)
        self.timeout = timedelta(seconds=config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())

    async def call(
        self, path: str, message: Message, kind: type[M], *, timeout: timedelta | None = None
    ) -> M:
        """The answer of a method, such as `flyteidl2.workflow.RunService/CreateRun`.

        `timeout` is how long the caller waits, at most the connection's. Raises `CallFailed`.
        """
        raw = await self._post(path, message, min(timeout or self.timeout, self.timeout))
        answer: M = kind()
        try:
            answer.ParseFromString(raw)
        except DecodeError:
            why = f"the answer is no {kind.DESCRIPTOR.full_name}"
            raise CallFailed(why, code="internal", unknown=True) from None
        return answer

    async def send(self, path: str, message: Message, *, timeout: timedelta | None = None) -> None:
        """As `call`, where it is enough to know that the answer was good."""
        await self._post(path, message, min(timeout or self.timeout, self.timeout))

    async def _post(self, path: str, message: Message, timeout: timedelta) -> bytes:
        access = self._present()
        body = message.SerializeToString()
        if self._gzip:
            body = gzip.compress(body, _LEVEL, mtime=0)
        more = {"Connect-Timeout-Ms": str(max(1, int(timeout.total_seconds() * 1_000)))}
        url = URL(f"{access.url}/{path}")
        async with self._request(access, "POST", url, body, timeout, more) as response:
            return await self._answer(response, access)

    async def _answer(self, response: aiohttp.ClientResponse, access: Access) -> bytes:
        status = response.status
        good = status == 200
        limit = _MAX_ANSWER if good else _MAX_ERROR
        packed = await read_body(response, limit)
        raw = _unpacked(packed, response.headers.get("Content-Encoding", "identity"), limit)
        content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if good:
            if content_type != "application/proto":
                # A login page of a proxy, say: nothing has been created by that.
                shown = access.redactor.clean(content_type or "no content type", 100)
                raise CallFailed(f"answered 200 with {shown}: this is not Flyte's API")
            return raw
        if 300 <= status < 400:
            raise CallFailed(
                f"answered {status}, a redirect, which is not followed: give the final address as endpoint"
            )
        code, said = _error_of(raw if content_type == "application/json" else b"", status)
        if code == "unauthenticated":
            access.stale = True
        said = access.redactor.clean(said, EXCERPT).strip()
        reason = f"answered {status} {code}" + (f": {said}" if said else "")
        raise CallFailed(
            reason,
            code=code,
            retry_at=retry_after(response.headers.get("Retry-After"), self._clock.now()),
            unknown=status in _LOST_BEHIND_GATEWAY or code in _MAY_HAVE_HAPPENED,
        )


def _access(config: Mapping[str, Any]) -> Access:
    url, secrets = address_of(config["endpoint"])
    headers = {
        "User-Agent": f"Horarium/{horarium.__version__}",
        "Content-Type": "application/proto",
        "Connect-Protocol-Version": "1",
        "Accept-Encoding": "gzip",
    }
    if config.get("gzip", True):
        headers["Content-Encoding"] = "gzip"
    given = dict(config.get("headers", {}))
    if "token" in config:
        given["Authorization"] = f"Bearer {config['token']}"
    secrets += lay_headers(headers, given)
    return Access(url.rstrip("/"), headers, Redactor(secrets))


def check_connection(fields: Fields) -> dict[str, Any]:
    """Reads the fields of `CONNECTION_KEYS`; problems are left in `fields`.

    `endpoint` (an http or https address, or a reference to one), `org` (the organisation, where Flyte has
    any), `headers`, `token` (a reference to a bearer token), `timeout` (10 s), `verify` (true, false, or a
    file of certificates), `gzip` (true).
    """
    checked: dict[str, Any] = {}
    dns = re.fullmatch(r"dns:/{2,3}(.+)", str(fields.raw("endpoint")))
    if dns is not None:
        fields.problem("endpoint", "an endpoint is an http or https address here", f"https://{dns[1]}")
    else:
        rule = "Flyte is reached at an endpoint"
        check_server(fields, checked, "endpoint", rule, "https://flyte.example.com")
    org = fields.text("org")
    if org is not None:
        checked["org"] = org
    check_headers(fields, checked)
    check_token(fields, checked, "FLYTE_TOKEN")
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    check_verify(fields, checked)
    if fields.has("gzip"):
        checked["gzip"] = fields.flag("gzip")
    return checked


def _error_of(raw: bytes, status: int) -> tuple[str, str]:
    """Connect's code and message of a bad answer."""
    try:
        data = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        data = {}
    if not isinstance(data, dict):
        data = {}
    code = data.get("code")
    message = data.get("message")
    return (
        code if code in _CODES else _CODE_OF_STATUS.get(status, "unknown"),
        message if isinstance(message, str) else "",
    )


def _unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    """`raw` without its compression. Raises `CallFailed` past `limit` bytes, and if it can't be unpacked."""
    if encoding in ("", "identity") or not raw:
        return raw
    if encoding != "gzip":
        raise CallFailed(
            "the answer is packed in a way that was not asked for", code="internal", unknown=True
        )
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(raw, limit + 1)
    except zlib.error:
        raise CallFailed("the answer can't be unpacked", code="internal", unknown=True) from None
    if len(found) > limit or not unpacker.eof:
        raise CallFailed("the answer is cut off or too large", code="internal", unknown=True)
    return found
