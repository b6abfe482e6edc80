"""Keyset pages: what a list was filtered by, and where the next page begins.

A token holds the last key that was seen and a hash of the filters, so that it can't be used with others.
It is opaque to callers, and whatever comes back is checked as input.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.keys import TriggerKey
from horarium.core.spec import digest
from horarium.errors import InvalidInput, Problem, shown

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000

_BIGGEST = 2**63
_LONGEST_TOKEN = 2_000


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list may be narrowed by; None is no limit. Each list says which of them it knows.

    `from_time` is included, `to_time` is not. `q` is found anywhere in a key or a run's name, whatever its
    case.
    """

    project: str | None = None
    domain: str | None = None
    deployment: str | None = None
    trigger: TriggerKey | None = None
    target: str | None = None
    state: str | None = None
    late: bool | None = None
    origin: str | None = None
    owner: str | None = None
    source: str | None = None
    status: str | None = None
    shadow: bool | None = None
    withdrawn: bool | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    q: str | None = None

    def digest(self, kind: str) -> str:
        """What a token of the list `kind` under these filters is bound to."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return digest([kind, {name: str(value) for name, value in named.items() if value is not None}])[:12]


NO_FILTERS = Filters()


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of a list: at most `limit` items after the key in `token`."""

    limit: int = DEFAULT_LIMIT
    token: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_LIMIT:
            raise InvalidInput(
                Problem(
                    "/limit",
                    str(self.limit),
                    f"a page has 1 to {MAX_LIMIT:,} items",
                    f"{DEFAULT_LIMIT}, and next_page_token for more",
                    code="limit",
                )
            )

    def after(self, kind: str, filters: Filters, types: Sequence[type]) -> list[Any] | None:
        """The key after which the page begins, of those types; None for the first page."""
        if self.token is None:
            return None
        values = _read(self.token)
        if values is None or len(values) != len(types) + 1:
            raise _wrong(self.token)
        bound, *key = values
        if bound != filters.digest(kind):
            raise _wrong(self.token)
        if not all(_fits(value, wanted) for value, wanted in zip(key, types, strict=True)):
            raise _wrong(self.token)
        return key


def token(kind: str, filters: Filters, key: Sequence[Any]) -> str:
    """The token of the page after `key`, which holds whole numbers and text."""
    text = json.dumps([filters.digest(kind), *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def page(items: Sequence[Any], next_token: str | None) -> dict[str, Any]:
    """A list as it is answered."""
    return {"items": list(items), "next_page_token": next_token}


def _read(text: str) -> list[Any] | None:
    if len(text) > _LONGEST_TOKEN:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        values = json.loads(raw)
    except (ValueError, binascii.Error, RecursionError):
        return None
    return values if isinstance(values, list) else None


def _fits(value: object, wanted: type) -> bool:
    if type(value) is not wanted:
        return False
    if isinstance(value, int):
        return -_BIGGEST <= value < _BIGGEST
    if isinstance(value, str):
        return value.isprintable()
    return False


def in_calendar(micros: int) -> bool:
    """Whether a count of microseconds is a time that a `datetime` holds."""
    return MIN_SECONDS * 1_000_000 <= micros <= MAX_SECONDS * 1_000_000


def wrong_token(text: str | None) -> InvalidInput:
    """What a token that leads nowhere is answered with."""
    return _wrong(text or "")


def _wrong(text: str) -> InvalidInput:
    return InvalidInput(
        Problem(
            "/page_token",
            shown(text, 60),
            "a page token is the next_page_token of the page before, with the same filters",
            "leave it out to begin at the first page",
            code="page-token",
        )
    )
