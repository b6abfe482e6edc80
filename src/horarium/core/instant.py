"""Instants between their three forms: aware UTC datetimes, whole seconds, whole microseconds.

Outside schedule evaluation a time is an aware `datetime` in UTC. Inside it is an `int` of seconds
since 1970-01-01T00:00Z; SQLite rows and cursors of pages hold an `int` of microseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MIN_SECONDS = -62_135_596_800
"""0001-01-01T00:00:00Z, the first instant that a `datetime` can hold."""

MAX_SECONDS = 253_402_300_799
"""9999-12-31T23:59:59Z, the last whole second that a `datetime` can hold."""


def to_seconds(instant: datetime) -> int:
    """Whole seconds since the epoch, rounded down."""
    delta = instant - EPOCH
    return delta.days * 86_400 + delta.seconds


def from_seconds(seconds: int) -> datetime:
    """The aware UTC datetime of a count of seconds."""
    return EPOCH + timedelta(seconds=seconds)


def to_micros(instant: datetime) -> int:
    """Whole microseconds since the epoch."""
    delta = instant - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def from_micros(micros: int) -> datetime:
    """The aware UTC datetime of a count of microseconds."""
    return EPOCH + timedelta(microseconds=micros)


def rfc3339(instant: datetime) -> str:
    """`2026-01-05T10:00:00Z`, with microseconds only where there are any."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
