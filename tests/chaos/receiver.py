"""A receiver that fails, hangs and lies: it does what a key asks for once, and often says otherwise.

What it does to a call is drawn from the seed, the key and the number of the call, so it does not depend on
who else calls when. After some calls a key is answered as it should be, so that every run comes to an end.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from aiohttp import web

from tests.chaos.history import Effect, micros
from tests.chaos.process import News, now

HANG = 2.5
"""Seconds that it leaves a caller without an answer: longer than the target's timeout, and than a lease."""

WELL_AFTER = 3
"""From its fourth call on, a key is answered as it should be."""

MOODS = {
    "well": 80,
    "503 and nothing done": 5,
    "500 and done": 4,
    "reset and nothing done": 2,
    "reset and done": 3,
    "hang and nothing done": 2,
    "hang and done": 2,
    "slow and done": 2,
}


@dataclass
class Unreliable(AbstractAsyncContextManager["Unreliable"]):
    """See the module. `effects` has an entry for every key that was ever asked for."""

    news: News
    seed: int
    effects: dict[str, Effect] = field(default_factory=dict)
    calls: int = 0
    kind: bool = False
    """Answer everything as it should be."""
    url: str = ""

    async def __aenter__(self) -> Unreliable:
        self._end = asyncio.Event()
        app = web.Application()
        app.router.add_post("/run", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/run"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end.set()
        await self._runner.cleanup()

    @property
    def repeats(self) -> int:
        """Calls for a key that had been asked for before."""
        return self.calls - len(self.effects)

    async def more(self, count: int, patience: float) -> bool:
        """Wait for so many more calls; False when they did not come in time."""
        seen = self.calls
        return await self.news.until(lambda: self.calls >= seen + count, patience)

    async def _receive(self, request: web.Request) -> web.Response:
        await request.read()
        asked = now()
        key = request.headers["Idempotency-Key"]
        known = self.effects.get(key)
        number = known.calls if known else 0
        mood = self._mood(key, number)
        done = known is not None and known.done
        self.calls += 1
        self.effects[key] = Effect(
            key,
            request.headers["ce-subject"],
            micros(datetime.fromisoformat(request.headers["ce-time"])),
            known.asked if known else asked,
            number + 1,
            done or "nothing done" not in mood,
        )
        self.news.tell()
        return await self._answer(request, mood, again=done)

    def _mood(self, key: str, number: int) -> str:
        if self.kind or number >= WELL_AFTER:
            return "well"
        chance = random.Random(f"{self.seed} {key} {number}")
        return chance.choices(list(MOODS), list(MOODS.values()))[0]

    async def _answer(self, request: web.Request, mood: str, *, again: bool) -> web.Response:
        what = mood.partition(" ")[0]
        if what in ("hang", "slow"):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), HANG if what == "hang" else 0.5)
        if what in ("reset", "hang"):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        if what in ("500", "503"):
            return web.Response(status=int(what), headers={"retry-after": "1"} if what == "503" else {})
        return web.json_response({"id": request.headers["ce-id"]}, status=409 if again else 201)
