"""The token by which the one who does a run's work may report how it went, and nobody else.

A target that has no way to be asked sends one with the run. It says until when it holds, and is signed with
a secret of the target together with the run's key, so it is good for that run alone and needs to be kept
nowhere: every replica, also one that starts later, can check it.

    v1.1767700800.PpWDqrOJ2bDutkz4tQwXvJd6d8ZbqO1iQFvV1iWc3pE
       until      HMAC-SHA256, base64url
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime

from horarium.core.instant import from_seconds, rfc3339

_TOKEN = re.compile(r"v1\.([1-9][0-9]{0,11})\.([A-Za-z0-9_-]{43})")
_PURPOSE = "horarium callback v1"
"""Begins what is signed, so that no signature made for another purpose with the same secret is a token."""


def mint(key: bytes, run_key: str, until: datetime) -> str:
    """A token for the run `run_key` (`project/domain/name`) that holds until `until` (aware UTC)."""
    seconds = str(int(until.timestamp()))
    return f"v1.{seconds}.{_signature(key, run_key, seconds)}"


def fault_of(keys: Sequence[bytes], run_key: str, token: str, now: datetime) -> str | None:
    """Why a token is not good for a run at `now`; None where it is.

    Every key is tried, in constant time. Only what we signed is told that it is too late.
    """
    match = _TOKEN.fullmatch(token)
    seconds, given = (match[1], match[2]) if match else ("0", "")
    good = False
    for key in keys:
        good |= hmac.compare_digest(_signature(key, run_key, seconds), given)
    if not good:
        return "the token is not one of this run"
    until = from_seconds(int(seconds))
    if until <= now:
        return f"the token of this run held until {rfc3339(until)}"
    return None


def _signature(key: bytes, run_key: str, seconds: str) -> str:
    content = f"{_PURPOSE}\n{run_key}\n{seconds}".encode()
    raw = hmac.digest(key, content, hashlib.sha256)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
