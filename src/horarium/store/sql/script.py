"""What a script is: statements one after the other, each sent its rows.

A script is a generator: it yields a statement and is sent the rows (or the number of rows written). The
SQLite store runs it inline on its writer thread, the PostgreSQL store awaits each step, and so every
method is written once. A script is one transaction; it decides nothing that `core/` can decide.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Executable

CHUNK = 2_000
"""How many keys or ids go into one statement: below SQLite's limit on variables with four a key."""


@dataclass(frozen=True, slots=True)
class Many:
    """One statement for many rows. Rows come back where it returns any, in whatever order."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]]


Step: TypeAlias = Executable | Many
T = TypeVar("T")
Script: TypeAlias = Generator[Step, Any, T]


def chunked(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """`items` in pieces that one statement can take."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
