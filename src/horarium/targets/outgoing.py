"""What everything that calls another service over HTTP shares: addresses, headers with references to secrets,
certificates, time limits, and what a call that got no answer means.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from yarl import URL

from horarium.errors import InvalidInput, Problem, shown
from horarium.targets.base import Refused, Unavailable
from horarium.targets.checks import Fields, pointer_to
from horarium.targets.secrets import (
    HIDDEN,
    REFERENCE,
    Redactor,
    SecretMissing,
    check_reference,
    resolve,
)

KEEPALIVE = 4.0
"""Seconds that an idle connection is kept. Common servers close theirs after 5 s, and a request that meets
such a close is lost with its outcome unknown; so ours go first."""

EXCERPT = 300
"""Characters of a bad answer that a message shows."""

_MAX_RETRY_AFTER = timedelta(days=1)

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_REFERENCE = re.compile(r"(?:([A-Za-z][A-Za-z0-9_-]*) )?((?:env:[A-Za-z_][A-Za-z0-9_]*)|(?:file:.+))")
_SECRET_HEADER = re.compile(
    r"authorization|cookie|token|secret|password|passwd|api[-_]?key|access[-_]?key|signature", re.IGNORECASE
)
_OWN_HEADERS = ("content-length", "transfer-encoding", "connection", "idempotency-key")
_OWN_PREFIXES = ("ce-", "webhook-")


def check_url(url: str, pointer: str) -> str:
    """`url` if a run can be sent there; raises `InvalidInput`, without the value where it may be secret."""

    def wrong(rule: str, hint: str, got: str | None = None) -> InvalidInput:
        return InvalidInput(Problem(pointer, got or shown(url), rule, hint, code="url"))

    example = "https://example.com/hooks/run"
    if re.search(r"[\x00-\x20\x7f]", url):
        raise wrong("a URL has no spaces and no control characters", "%20 for a space")
    try:
        parsed = URL(url)
        port = parsed.explicit_port
    except ValueError as error:
        raise wrong("a URL can be read (RFC 3986)", example) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise wrong("the url is an absolute address with http or https", example)
    if parsed.user is not None or parsed.password is not None:
        raise wrong(
            "a url holds no user and no password",
            'headers: {Authorization: "Basic env:NAME"}, with user:password in base64 in that variable',
            HIDDEN,
        )
    if parsed.raw_fragment or "#" in url:
        raise wrong("a url has no fragment", "leave out what follows '#'")
    if port is not None and not 0 < port < 65_536:
        raise wrong("a port is from 1 to 65535", example)
    return url


def check_headers(fields: Fields, checked: dict[str, Any]) -> None:
    """Reads the field `headers`: names, values, and that no secret is written out."""
    headers = fields.mapping("headers")
    if not headers:
        return
    kept: dict[str, str] = {}
    for name, value in headers.items():
        where = pointer_to(fields.at("headers"), name)
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            fields.problems.append(
                Problem(where, shown(name), "a header's name has letters, digits and hyphens", "X-Team")
            )
            continue
        lower = name.lower()
        if lower in _OWN_HEADERS or lower.startswith(_OWN_PREFIXES):
            fields.problems.append(
                Problem(where, shown(name), "this header is written by Horarium", "leave it out")
            )
            continue
        if any(lower == other.lower() for other in kept):
            fields.problems.append(Problem(where, shown(name), "a header is named once, in any case"))
            continue
        if not isinstance(value, str) or re.search(r"[^\x20-\x7e\t]", value):
            got = HIDDEN if _SECRET_HEADER.search(name) else shown(value)
            fields.problems.append(
                Problem(where, got, "a header's value is text of visible ASCII, on one line", "quote it")
            )
            continue
        if _SECRET_HEADER.search(name) and not _HEADER_REFERENCE.fullmatch(value):
            variable = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
            fields.check(check_reference, None, where, f"the header {name}", variable)
            continue
        kept[name] = value
    checked["headers"] = kept


def lay_headers(headers: dict[str, str], more: Mapping[str, str]) -> list[str]:
    """Lay `more` over `headers`, by name without case, with references resolved; the secrets among them."""
    secrets: list[str] = []
    for name, value in more.items():
        for known in [known for known in headers if known.lower() == name.lower()]:
            del headers[known]
        reference = _HEADER_REFERENCE.fullmatch(value)
        if reference is None:
            headers[name] = value
            continue
        secret = resolve(reference[2])
        if re.search(r"[\r\n\0]", secret):
            raise SecretMissing(f"{reference[2]}: a header has no line break, and this value has one")
        secrets.append(secret)
        headers[name] = f"{reference[1]} {secret}" if reference[1] else secret
    return secrets


def address_of(url: str) -> tuple[str, list[str]]:
    """The address that a checked url is or stands for, and what of it is secret.

    Raises `SecretMissing`, without the address.
    """
    if not REFERENCE.fullmatch(url):
        return url, []
    try:
        found = check_url(resolve(url), "")
    except InvalidInput as error:
        # Only the rule: the address is secret.
        raise SecretMissing(f"{url}: {error.problems[0].rule}") from None
    return found, [found, URL(found).raw_path_qs]


def verification(verify: bool | str) -> ssl.SSLContext | bool:
    """What aiohttp takes as `ssl`, of a `verify` that was checked. Raises `SecretMissing`."""
    if isinstance(verify, bool):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        why = error.strerror or str(error)
        raise SecretMissing(
            f"verify: {verify}: {why}; a file of certificates in PEM format that the server may read"
        ) from error


def check_server(
    fields: Fields, checked: dict[str, Any], word: str, rule: str = "", example: str = ""
) -> None:
    """Reads a field that holds an address or a reference to one; `rule` is said where it is missing."""
    url = fields.required(word, rule, example)
    if url is not None:
        checked[word] = url
        if not REFERENCE.fullmatch(url):
            fields.check(check_url, url, fields.at(word))


def check_token(fields: Fields, checked: dict[str, Any], example: str) -> None:
    """Reads the field `token`, a reference to a bearer token; after `headers`."""
    if fields.has("token"):
        checked["token"] = fields.raw("token")
        fields.check(check_reference, checked["token"], fields.at("token"), "token", example)
        if any(name.lower() == "authorization" for name in checked.get("headers", {})):
            rule = "the header Authorization is given already, and a server is told in one way who asks"
            fields.problems.append(Problem(fields.at("token"), "a second one", rule, code="conflict"))


def limits_of(seconds: float) -> aiohttp.ClientTimeout:
    """The time limits of a call that may take so long."""
    # Half for the connection: what runs out later was sent, so the two can be told apart.
    return aiohttp.ClientTimeout(total=seconds, connect=seconds / 2)


def retry_after(value: str | None, now: datetime) -> datetime | None:
    """When a `Retry-After` (RFC 9110: seconds, or an HTTP date) asks to be tried again.

    None where it says nothing readable or lies in the past; a day at most, since a receiver's slip must not
    put off a run for good.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        wait = timedelta(seconds=min(int(text[:12]), _MAX_RETRY_AFTER.total_seconds()))
        return now + wait if wait else None
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return min(at, now + _MAX_RETRY_AFTER) if at > now else None


def fault_of(error: Exception, redactor: Redactor) -> Unavailable | Refused:
    """What an exception of aiohttp's means for the call that met it."""
    text = redactor.clean(str(error) or type(error).__name__, EXCERPT)
    match error:
        case aiohttp.ConnectionTimeoutError():
            return Unavailable("no connection in time")
        case aiohttp.ClientConnectorDNSError():
            return Unavailable(f"no such host: {text}")
        case aiohttp.ClientSSLError():
            return Unavailable(f"no secure connection: {text}")
        case aiohttp.ClientConnectorError():
            return Unavailable(f"no connection: {text}")
        case TimeoutError():
            return Unavailable("no answer in time", unknown=True)
        case aiohttp.InvalidURL():
            return Refused(f"the address can't be used: {text}")
        case aiohttp.ClientError() | OSError():
            return Unavailable(f"the connection broke before the answer: {text}", unknown=True)
        case _:
            return Unavailable(f"the call failed: {type(error).__name__}: {text}", unknown=True)


def check_verify(fields: Fields, checked: dict[str, Any]) -> None:
    """Reads the field `verify`: whether, or by which certificates, a server proves who it is."""
    if fields.has("verify"):
        verify = fields.raw("verify")
        if not isinstance(verify, bool) and not (isinstance(verify, str) and verify):
            fields.problem("verify", "verify is true, false, or the path of a PEM file of certificates")
        checked["verify"] = verify
