"""The half of a target that all have that call somebody else: places, draining, and answers to faults."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Generic, TypeVar

from horarium.clock import Clock
from horarium.targets.base import Answer, FireRequest, TargetTraits, Unavailable
from horarium.targets.connection import CallFailed, Connection
from horarium.targets.secrets import SecretMissing

C = TypeVar("C", bound=Connection)


class CallingTarget(ABC):
    """A place is held as long as a call takes."""

    traits: TargetTraits

    def __init__(self, clock: Clock, timeout: timedelta, max_in_flight: int) -> None:
        self._clock = clock
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = asyncio.Event()

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    def free(self) -> int:
        return 0 if self._stopping.is_set() else max(0, self._max_in_flight - self._in_flight)

    async def create_run(self, request: FireRequest) -> Answer:
        if self._stopping.is_set():
            return Unavailable("the server is stopping")
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._create(request)
        except SecretMissing as error:
            return Unavailable(str(error))
        except CallFailed as failed:
            return Unavailable(failed.reason, failed.retry_at, unknown=failed.unknown)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def drain(self, timeout: timedelta) -> None:
        self._stopping.set()
        await self._clock.wait(self._idle, timeout.total_seconds())

    async def close(self) -> None:
        self._stopping.set()
        await self._disconnect()

    @abstractmethod
    async def start(self) -> None:
        """Resolve references, open connections. Raises `SecretMissing`: runs stay due until it is mended."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Give connections back."""

    @abstractmethod
    async def _create(self, request: FireRequest) -> Answer:
        """Create the run. Raises `CallFailed`, `SecretMissing`."""


class EngineTarget(CallingTarget, Generic[C]):
    """One whose calls all go over one connection."""

    def __init__(self, connection: C, clock: Clock, timeout: timedelta, max_in_flight: int) -> None:
        super().__init__(clock, timeout, max_in_flight)
        self._connection = connection

    async def start(self) -> None:
        await self._connection.start()

    async def _disconnect(self) -> None:
        await self._connection.close()
