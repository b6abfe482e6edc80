"""The `http` target: one request a run, to a receiver that creates the work.

What the receiver gets: the parameters as a JSON body, `Idempotency-Key` (the run name), CloudEvents 1.0
headers in binary mode, and with a secret a Standard Webhooks signature. What its answer means:

    2xx                               Created; id from the JSON field `id`, else from Location
    409                               AlreadyExists
    408, 425, 429, 5xx                Unavailable; Retry-After is honoured, up to a day
    no connection, no such host       Unavailable: nothing was sent
    reset or time-out after sending   Unavailable, unknown: it may have happened
    3xx                               Refused: a redirect could lead a signed body elsewhere
    other 4xx                         Refused, with the beginning of the body

With `callback: true` the receiver is told where to report how the run goes, and gets a token for that
(`core/callback.py`): what the answer means stays the same, since it says that the work was taken on.

Whether a repeated name makes a second run is up to the receiver. Bodies are read up to a bound, and every
text that leaves this module is free of the target's secrets.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

import horarium
from horarium.clock import Clock
from horarium.core.callback import mint
from horarium.core.instant import rfc3339
from horarium.core.spec import Json, TargetSpec, canonical_json
from horarium.errors import InvalidInput, Problem
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Refused,
    TargetTraits,
    Unavailable,
)
from horarium.targets.calling import CallingTarget
from horarium.targets.checks import Fields, json_problem, pointer_to
from horarium.targets.connection import LONGEST_TIMEOUT, open_session
from horarium.targets.outgoing import (
    EXCERPT,
    address_of,
    check_headers,
    check_server,
    check_verify,
    fault_of,
    lay_headers,
    limits_of,
    retry_after,
)
from horarium.targets.secrets import (
    Redactor,
    SecretMissing,
    check_reference,
    resolve,
)

CONFIG_KEYS = ("url", "method", "headers", "secret", "callback_secret", "timeout", "verify", "source")
ACTION_KEYS = ("path", "method", "headers", "body", "callback")
COMPLETES_WITH = "callback: true"
METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET")

DEFAULT_TIMEOUT = timedelta(seconds=10)

DEFAULT_MAX_IN_FLIGHT = 64

_CREATED_BODY = 65_536
"""Bytes read of a good answer. One with an id is far smaller; one that is read whole frees its connection."""

_REFUSED_BODY = 8_192
"""Bytes read of a bad answer, of which `EXCERPT` characters are shown."""

_MAX_ID = 200

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: `json.dumps` with separators of its own builds an encoder for each call."""

_BODY_METHODS = frozenset(("POST", "PUT", "PATCH"))
_RETRY_STATUSES = frozenset((408, 425, 429))
_LOST_BEHIND_GATEWAY = frozenset((502, 504))


class HttpTarget(CallingTarget):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=False,
        reports_completion=True,
        completes_with=COMPLETES_WITH,
        note="a repeated Idempotency-Key is up to the receiver: one that answers 409 or 2xx makes it once",
    )

    def __init__(self, spec: TargetSpec, clock: Clock, public_url: str | None = None) -> None:
        config = spec.config
        self._config = config
        self._public_url = public_url
        timeout = timedelta(seconds=config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())
        super().__init__(clock, timeout, spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT)
        self._method: str = config.get("method", "POST")
        self._source: str = config.get("source", "/horarium")
        self._limits = limits_of(self._timeout.total_seconds())
        self._base: _Base | None = None
        self._prepared: dict[str, _Prepared] = {}

    async def start(self) -> None:
        config = self._config
        url, found = address_of(config["url"])
        secrets = [resolve(item) for item in _listed(config.get("secret"))]
        keys = tuple(signing_key(item) for item in secrets)
        callback_secrets = [resolve(item) for item in _listed(config.get("callback_secret"))]
        callback_keys = tuple(signing_key(item) for item in callback_secrets) or keys
        secrets += callback_secrets
        found += [part for item in secrets for part in (item, item.removeprefix("whsec_"))]
        headers = {
            "User-Agent": f"Horarium/{horarium.__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "ce-specversion": "1.0",
            "ce-type": "horarium.run.due",
            "ce-source": self._source,
        }
        found += lay_headers(headers, config.get("headers", {}))
        session = open_session(config.get("verify", True), self._max_in_flight)
        self._base = _Base(session, url, headers, keys, callback_keys, tuple(found), Redactor(found))

    async def _create(self, request: FireRequest) -> Answer:
        base = self._base
        if base is None:
            return Unavailable("the server is stopping")
        now = self._clock.now()
        limits = self._limits
        left = (request.deadline - now).total_seconds()
        if left < self._timeout.total_seconds():
            if left <= 0:
                return Unavailable("no time was left for the call")
            limits = limits_of(left)
        try:
            prepared = self._prepare(request.action, base)
        except SecretMissing as error:
            return Unavailable(f"the deployment's headers: {error}")
        body = prepared.body
        if body is None and prepared.method in _BODY_METHODS:
            body = _encode(request.parameters).encode()
        headers = {**prepared.headers, **self._event_headers(request)}
        redactor = prepared.redactor
        if request.action.get("callback"):
            if self._public_url is None:
                return Unavailable(
                    "callback: true needs to know where the receiver reaches this server: set public_url"
                )
            if not base.callback_keys:
                return Unavailable("callback: true needs a secret of the target: callback_secret, or secret")
            token = mint(
                base.callback_keys[0], request.run_key, request.deadline + request.completion_timeout
            )
            headers["ce-callbackurl"] = f"{self._public_url}{callback_path(request)}"
            headers["ce-callbacktoken"] = token
            redactor = Redactor((*base.secrets, *prepared.secrets, token))
        if base.keys:
            headers.update(signature_headers(base.keys, request.run_name, now, body or b""))
        try:
            response = await base.session.request(
                prepared.method,
                prepared.url,
                data=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            )
            try:
                return await self._answer(response, redactor)
            finally:
                # What was not read to its end can't be reused; a response that was is given back already.
                response.close()
        except Exception as error:  # its text may hold a secret, so none gets out unread
            return fault_of(error, redactor)

    async def _disconnect(self) -> None:
        if self._base is not None:
            await self._base.session.close()
            self._base = None

    async def _answer(self, response: aiohttp.ClientResponse, redactor: Redactor) -> Answer:
        status = response.status
        if status == 409:
            raw, _ = await _read(response, _CREATED_BODY)
            return AlreadyExists(_run_id(response, raw, redactor))
        if 200 <= status < 300:
            # The status is the evidence; a body that breaks off after it changes nothing.
            raw, _ = await _read(response, _CREATED_BODY)
            return Created(_run_id(response, raw, redactor))
        raw, whole = await _read(response, _REFUSED_BODY)
        if 300 <= status < 400:
            location = redactor.clean(response.headers.get("Location", "nowhere"), EXCERPT)
            return Refused(
                f"answered {status}, a redirect to {location}: redirects are not followed; "
                "write the final address into the target's url"
            )
        excerpt = redactor.clean(raw.decode("utf-8", "replace"), EXCERPT, cut=not whole).strip()
        reason = f"answered {status}" + (f": {excerpt}" if excerpt else "")
        if status in _RETRY_STATUSES or status >= 500:
            retry_at = retry_after(response.headers.get("Retry-After"), self._clock.now())
            return Unavailable(reason, retry_at, unknown=status in _LOST_BEHIND_GATEWAY)
        return Refused(reason)

    def _event_headers(self, request: FireRequest) -> dict[str, str]:
        name = request.run_name
        return {
            "Idempotency-Key": name,
            "ce-id": name,
            "ce-time": rfc3339(request.scheduled_time),
            "ce-subject": str(request.trigger),
            "ce-origin": request.origin,
            "ce-attempt": str(request.attempt),
        }

    def _prepare(self, action: Mapping[str, Any], base: _Base) -> _Prepared:
        """What of a request is the same for every run of an action, made once."""
        key = canonical_json(dict(action)) if action else ""
        prepared = self._prepared.get(key)
        if prepared is not None:
            return prepared
        headers = dict(base.headers)
        extra = lay_headers(headers, action.get("headers", {}))
        method = action.get("method", self._method)
        body: bytes | None = None
        if "body" in action:
            given = action["body"]
            if isinstance(given, str):
                body = given.encode()
                if not any(name.lower() == "content-type" for name in action.get("headers", {})):
                    headers["Content-Type"] = "text/plain; charset=utf-8"
            else:
                body = _encode(given).encode()
        elif method not in _BODY_METHODS:
            headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
        if len(self._prepared) >= 10_000:
            # Actions change with deployments; a bound keeps a server of years from collecting old ones.
            self._prepared.clear()
        prepared = _Prepared(
            method,
            URL(_join(base.url, action.get("path", ""))),
            headers,
            body,
            tuple(extra),
            Redactor((*base.secrets, *extra)) if extra else base.redactor,
        )
        self._prepared[key] = prepared
        return prepared


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config: `timeout` in seconds, `method` in capitals. Raises `InvalidInput`.

    Fields: `url` (an http or https address, or a reference to one), `method` (POST), `headers`, `secret`
    (one reference or a list, the first one being newest), `callback_secret` (the same, for the tokens of
    callbacks; `secret` unless given), `timeout` (10 s), `verify` (true, false, or a file
    of certificates), `source` (the CloudEvents source, `/horarium`).
    """
    fields = Fields(config, pointer, "an http target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    check_server(fields, checked, "url", "an http target has a url", "https://example.com/hooks/run")
    _check_method(fields, checked)
    check_headers(fields, checked)
    for word in ("secret", "callback_secret"):
        if fields.has(word):
            checked[word] = _check_secret(fields, word)
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    check_verify(fields, checked)
    source = fields.text("source")
    if source is not None:
        if not re.fullmatch(r"[\x21-\x7e]{1,200}", source):
            fields.problem("source", "source is a URI reference of up to 200 visible ASCII characters")
        checked["source"] = source
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action. Raises `InvalidInput`.

    Fields, all optional: `path` (appended to the target's url), `method`, `headers` (laid over the
    target's), `body` (JSON, or text; instead of the parameters), `callback` (whether the receiver reports how
    a run goes).
    """
    fields = Fields(action, pointer, "a deployment of an http target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    path = fields.text("path")
    if path is not None:
        bad = not path.startswith("/") or path.startswith("//") or re.search(r"[\x00-\x20\x7f#\\]", path)
        if bad or ".." in path.partition("?")[0].split("/"):
            fields.problem(
                "path",
                "a path begins with one '/', has no '..', '#' or space, and stays on the target's host",
                "/jobs/sync; another host is another target",
            )
        checked["path"] = path
    _check_method(fields, checked)
    check_headers(fields, checked)
    # `body: null` is a body: the JSON null.
    if isinstance(action, Mapping) and "body" in action:
        body = action["body"]
        why = json_problem(body)
        if why is not None:
            fields.problem("body", f"body is JSON, or text: {why}")
        checked["body"] = body
    if fields.flag("callback"):
        checked["callback"] = True
    why = json_problem(parameters)
    if why is not None:
        fields.problems.append(
            Problem(pointer_to(pointer, "parameters"), "a value", f"parameters are JSON: {why}")
        )
    fields.raise_problems()
    return checked


def check_use(config: Mapping[str, Any], action: Mapping[str, Any], pointer: str) -> None:
    """Raises `InvalidInput` for a callback whose token nothing signs."""
    if action.get("callback") and not (
        _listed(config.get("callback_secret")) or _listed(config.get("secret"))
    ):
        raise InvalidInput(
            Problem(
                pointer_to(pointer, "callback"),
                "true",
                "the token of a callback is signed by a secret of the target, and it has none",
                "callback_secret: env:CALLBACK_SECRET on the target",
                code="secret",
            )
        )


def callback_keys(spec: TargetSpec) -> tuple[bytes, ...]:
    """The keys of callback tokens, newest first; none without a secret. Raises `SecretMissing`."""
    references = _listed(spec.config.get("callback_secret")) or _listed(spec.config.get("secret"))
    return tuple(signing_key(resolve(item)) for item in references)


def callback_path(request: FireRequest) -> str:
    """Where the API takes the result of a run."""
    parts = (request.trigger.project, request.trigger.domain, request.run_name)
    return f"/api/v1/runs/{'/'.join(quote(part, safe='') for part in parts)}/result"


def signing_key(secret: str) -> bytes:
    """The key of a Standard Webhooks secret: base64 after `whsec_`, else its UTF-8 bytes.

    Raises `SecretMissing` where what follows `whsec_` is not base64.
    """
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        # Not chained: the text of the secret is in the frames of that exception.
        raise SecretMissing(
            "a secret that begins with whsec_ goes on in base64, and this one doesn't"
        ) from None


def signature_headers(keys: tuple[bytes, ...], message_id: str, now: datetime, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks (https://www.standardwebhooks.com), signed with every key."""
    timestamp = str(int(now.timestamp()))
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{item}" for item in signatures),
    }


@dataclass(frozen=True, slots=True)
class _Base:
    """The session, and what the secrets of a target resolve to."""

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str]
    keys: tuple[bytes, ...]
    callback_keys: tuple[bytes, ...]
    secrets: tuple[str, ...]
    redactor: Redactor


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request without what differs from run to run."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None
    secrets: tuple[str, ...]
    redactor: Redactor


async def _read(response: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """Up to `limit` bytes of the body, and whether that is all of it. A body that breaks off is cut short."""
    content = response.content
    if content.at_eof():
        return b"", True
    chunks: list[bytes] = []
    size = 0
    try:
        while size < limit:
            chunk = await content.read(limit - size)
            if not chunk and content.at_eof():
                return b"".join(chunks), True
            chunks.append(chunk)
            size += len(chunk)
    except (aiohttp.ClientError, OSError):
        pass
    return b"".join(chunks), False


def _run_id(response: aiohttp.ClientResponse, raw: bytes, redactor: Redactor) -> str | None:
    if raw[:1] == b"{" or raw.lstrip()[:1] == b"{":
        try:
            found = json.loads(raw).get("id")
        except (ValueError, RecursionError):
            found = None
        if (isinstance(found, str) and found) or (isinstance(found, int) and not isinstance(found, bool)):
            return redactor.clean(str(found), _MAX_ID)
    location = response.headers.get("Location")
    return redactor.clean(location, _MAX_ID) if location else None


def _join(url: str, path: str) -> str:
    """`path` behind the url's own path; the url's query stays, unless the path brings one."""
    if not path:
        return url
    base, _, query = url.partition("?")
    added, _, own_query = path.partition("?")
    query = own_query or query
    return base.rstrip("/") + added + (f"?{query}" if query else "")


def _listed(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _check_method(fields: Fields, checked: dict[str, Any]) -> None:
    method = fields.text("method")
    if method is None:
        return
    if method.upper() not in METHODS:
        fields.problem("method", f"method is one of {', '.join(METHODS)}", "POST")
    checked["method"] = method.upper()


def _check_secret(fields: Fields, word: str) -> str | list[str]:
    raw = fields.raw(word)
    items = raw if isinstance(raw, list) and raw else [raw]
    if len(items) > 5:
        fields.problems.append(
            Problem(fields.at(word), f"{len(items)} references", "at most 5 secrets sign a request")
        )
    for index, item in enumerate(items):
        where = fields.at(word) if item is raw else f"{fields.at(word)}/{index}"
        fields.check(check_reference, item, where, f"the {word}", f"WEBHOOK_{word.upper()}")
    return [str(item) for item in items] if isinstance(raw, list) else str(raw)
