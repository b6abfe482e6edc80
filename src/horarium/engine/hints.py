"""Hints from other replicas: the database tells when one of them has changed or planned something.

While nobody listens hints are lost, so whoever begins to listen again looks everywhere once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from horarium.engine.wake import Wake


class HintSource(Protocol):
    """A store that passes hints on; see `PostgresStore.listen`."""

    async def listen(self, hint: Callable[[str], None]) -> None: ...


class Hints:
    """Turns the words of hints into wake-ups of this process's loops."""

    def __init__(self, source: HintSource, wake: Wake) -> None:
        self._source = source
        self._wake = wake

    async def listen(self) -> None:
        """Listen until the connection is lost, which raises `StoreUnavailable`."""
        await self._source.listen(self._hear)

    def _hear(self, word: str) -> None:
        if word == "planned":
            self._wake.planned()
        else:
            self._wake.changed()
