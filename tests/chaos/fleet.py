"""Replicas on one database, and everything that is done to them: by a test, and by people over the API."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.chaos.database import Cluster, Proxy
from tests.chaos.history import SECOND, Fault, Word
from tests.chaos.process import PATIENCE, SOURCES, News, Server, now
from tests.chaos.receiver import Unreliable

DONE = 400
"""Statuses below are answers that something was done; 503 may be a lost answer of the database."""


@dataclass
class Fleet:
    """`horarium serve` some times over, behind a proxy. Ends of processes are judged here: only a signal, or
    a database that is away, ends one, and then not with 0."""

    url: str
    triggers: Path
    news: News
    settings: dict[str, str]
    running: dict[Server, str] = field(default_factory=dict)
    """Replica → the address of its API, for those that serve."""
    ends: Counter[int] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    """What ended replicas had to say about errors."""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the database is reachable, as far as the test knows."""

    async def add(self, sources: Path = SOURCES) -> Server:
        """Start one, and start it again where the database was away; wait until it serves."""
        while True:
            server = await Server.start(self.url, self.triggers, self.news, sources, **self.settings)
            self.running[server] = ""
            try:
                self.running[server] = await server.serves()
            except AssertionError:
                del self.running[server]
                code = await server.exit()
                said = "\n".join(server.log)
                assert code > 0, f"ended with {code}: {said}"
                assert "database" in said or "connection" in said.lower(), said
                self.ends[code] += 1
                await self.up.wait()
            else:
                return server

    async def kill(self, server: Server) -> None:
        """SIGKILL."""
        self.running.pop(server, None)
        await server.kill()
        self._note(server)
        assert server.process.returncode == -signal.SIGKILL, "\n".join(server.log)

    async def remove(self, server: Server, *, database_is_up: bool) -> None:
        """SIGTERM, and its own end: 0, or 1 where the database was away and answers could not be written."""
        self.running.pop(server, None)
        server.terminate()
        code = await server.exit()
        self._note(server)
        assert code == 0 or (code == 1 and not database_is_up), f"{code}: " + "\n".join(server.log[-20:])

    async def close(self) -> None:
        """End all that still run, however they are."""
        for server in list(self.running):
            with suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            await server.kill()
        self.running.clear()

    def serving(self) -> list[Server]:
        """Those that serve, and have not ended by themselves. One that only starts is for `add` to judge."""
        found = [server for server, address in self.running.items() if address]
        for server in found:
            code = server.process.returncode
            assert code is None, f"ended by itself with {code}:\n" + "\n".join(server.log[-50:])
        return found

    def _note(self, server: Server) -> None:
        assert server.process.returncode is not None
        self.ends[server.process.returncode] += 1
        self.lines += [line for line in server.log if "Traceback" in line or '"critical"' in line]


@dataclass
class Faults:
    """Does harm until it is told to stop, and writes down what was done from when to when."""

    chance: random.Random
    fleet: Fleet
    cluster: Cluster
    proxy: Proxy
    receiver: Unreliable
    done: list[Fault] = field(default_factory=list)
    stop: Callable[[], bool] = lambda: False
    most_replicas: int = 4
    recovered: Callable[[], Awaitable[bool]] | None = None
    """Whether nothing that is due has waited for long."""
    recoveries: list[float] = field(default_factory=list)
    """Seconds from the end of each harm to the database until then."""

    def counts(self) -> str:
        """For people."""
        return ", ".join(
            f"{name} {count}"
            for name, count in sorted(
                Counter(item.name for item in self.done if not item.name.startswith("after ")).items()
            )
        )

    async def of_the_database(self) -> None:
        """One after the other, each kind before any comes again, and each when what the last one has held up
        is made up for: else the database would be away for most of the time, and nothing said of the rest.
        """
        kinds = (
            self._restart_fast,
            self._restart_immediate,
            self._cut,
            self._delay,
            self._swallow,
            self._down,
        )
        await self._all([self._and_recovery(kind) for kind in kinds])

    async def of_replicas(self) -> None:
        """The same with what happens to processes."""
        await self._all([self._kill, self._freeze, self._remove, self._add, self._kill, self._freeze])

    async def _all(self, kinds: list[Callable[[], Awaitable[None]]]) -> None:
        while True:
            self.chance.shuffle(kinds)
            for kind in kinds:
                if self.stop():
                    return
                await kind()
                # The next one comes when there is something to disturb again.
                await self.receiver.more(self.chance.randint(5, 100), 15.0)

    @asynccontextmanager
    async def fault(self, name: str, *, database: bool = False) -> AsyncIterator[None]:
        """Write down what is done in here."""
        began = now()
        if database:
            self.fleet.up.clear()
        try:
            yield
        finally:
            if database:
                self.fleet.up.set()
            self.done.append(Fault(name, began, now()))

    def _and_recovery(self, kind: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def both() -> None:
            await kind()
            began = now()
            while self.recovered is not None and not self.stop() and not await self.recovered():
                assert now() - began < 3 * PATIENCE * SECOND, "what was held up is not made up for"
                await self.receiver.more(10, 1.0)
            self.recoveries.append((now() - began) / SECOND)
            harm = self.done[-1]
            self.done.append(Fault(f"after {harm.name}", began, now()))

        return both

    async def _for_a_while(self, least: float, most: float) -> None:
        """As long as an outage lasts: no signal can say when that is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), self.chance.uniform(least, most))

    async def _restart_fast(self) -> None:
        async with self.fault("fast restart", database=True):
            await self.cluster.restart("fast")

    async def _restart_immediate(self) -> None:
        async with self.fault("immediate restart", database=True):
            await self.cluster.restart("immediate")

    async def _down(self) -> None:
        async with self.fault("database down", database=True):
            await self.cluster.stop(self.chance.choice(["fast", "immediate"]))
            await self._for_a_while(0.5, 4.0)
            await self.cluster.start()

    async def _cut(self) -> None:
        async with self.fault("connections cut", database=True):
            for _ in range(self.chance.randint(1, 3)):
                self.proxy.cut()
                await self.receiver.more(self.chance.randint(1, 5), 1.0)

    async def _delay(self) -> None:
        async with self.fault("slow network"):
            self.proxy.delay = self.chance.choice([0.01, 0.05, 0.2])
            await self._for_a_while(1.0, 4.0)
            self.proxy.delay = 0.0

    async def _swallow(self) -> None:
        async with self.fault("network swallows", database=True):
            self.proxy.swallow()
            await self._for_a_while(0.5, 6.0)
            if self.chance.random() < 0.5:
                self.proxy.cut()
            self.proxy.deliver()

    async def _kill(self) -> None:
        async with self.fault("kill -9"):
            await self.fleet.kill(self._one())
            await self.fleet.add()

    async def _freeze(self) -> None:
        """Stopped for longer than a lease, then going on as if nothing had happened."""
        server = self._one()
        async with self.fault("kill -STOP"):
            server.process.send_signal(signal.SIGSTOP)
            address, self.fleet.running[server] = self.fleet.running[server], ""
            await self._for_a_while(2.5, 5.0)
            server.process.send_signal(signal.SIGCONT)
            self.fleet.running[server] = address

    async def _remove(self) -> None:
        if len(self.fleet.serving()) < 2:
            return
        async with self.fault("replica removed"):
            began = now()
            server = self._one()
            try:
                await self.fleet.remove(server, database_is_up=True)
            except AssertionError:
                away = not self.fleet.up.is_set() or any(
                    fault.ended + 5 * SECOND >= began for fault in self.done if "replica" not in fault.name
                )
                if server.process.returncode != 1 or not away:
                    raise

    async def _add(self) -> None:
        if len(self.fleet.running) < self.most_replicas:
            async with self.fault("replica added"):
                await self.fleet.add()

    def _one(self) -> Server:
        return self.chance.choice(self.fleet.serving())


@dataclass
class People:
    """Edits, pauses, resumes, deletes and revives triggers, one word at a time for each, and remembers what
    was answered. What was not answered may have been done."""

    chance: random.Random
    fleet: Fleet
    receiver: Unreliable
    steps: list[int]
    """Seconds between slots that a trigger may have."""
    of_file: list[str]
    """Keys of triggers that a file has, which can't be put or deleted here."""
    of_people: list[str]
    words: list[Word] = field(default_factory=list)
    stop: Callable[[], bool] = lambda: False
    _busy: set[str] = field(default_factory=set)

    async def create(self, session: aiohttp.ClientSession) -> None:
        """Every trigger that is not in the file."""
        keys = iter(self.of_people)

        async def some() -> None:
            for key in keys:
                status = await self._put(session, key)
                assert status is not None, key
                assert status < DONE, (key, status)

        await asyncio.gather(*(some() for _ in range(8)))

    async def meddle(self, session: aiohttp.ClientSession) -> None:
        """Until it is told to stop."""
        while not self.stop():
            mine = self.chance.random() < 0.5
            key = self.chance.choice(self.of_people if mine else self.of_file)
            if key in self._busy:
                continue
            self._busy.add(key)
            verbs = ["pause", "resume", *(["put", "put", "delete"] if mine else [])]
            verb = self.chance.choice(verbs)
            if verb == "put":
                await self._put(session, key)
            elif verb == "delete":
                await self._ask(session, key, verb, "DELETE", "")
            else:
                body = {"backfill": True} if verb == "resume" and self.chance.random() < 0.3 else {}
                await self._ask(session, key, verb, "POST", f"/{verb}", body)
            self._busy.discard(key)
            await self.receiver.more(self.chance.randint(1, 6), 1.0)

    async def resume_all(self, session: aiohttp.ClientSession) -> None:
        """What is paused in the end would wait for ever."""
        for key in [*self.of_file, *self.of_people]:
            if any(word.trigger == key and word.verb == "pause" for word in self.words):
                while await self._ask(session, key, "resume", "POST", "/resume", {}) in (None, 503):
                    pass

    async def _put(self, session: aiohttp.ClientSession, key: str) -> int | None:
        step = self.chance.choice(self.steps)
        catch_up = "latest" if hash_of(key) % 7 == 0 else "all"
        words = {"target": "sink", "every": f"{step}s", "catch_up": catch_up}
        return await self._ask(session, key, "put", "PUT", "", words, step)

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        key: str,
        verb: str,
        method: str,
        path: str,
        body: object = None,
        step: int = 0,
    ) -> int | None:
        serving = self.fleet.serving()
        if not serving:
            await self.receiver.more(1, 1.0)
            return None
        address = self.fleet.running[self.chance.choice(serving)]
        sent, status = now(), None
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.request(
                method, f"{address}/api/v1/triggers/{key}{path}", json=body, headers={"connection": "close"}
            ) as response:
                status = response.status
                said = await response.text()
                # 404 and 409: of a trigger that is deleted; what was not answered before may be the reason.
                assert status < DONE or status in (404, 409, 503), f"{method} {key}{path}: {status} {said}"
        if status in (404, 409):
            return status
        answered = now() if status is not None and status < DONE else None
        self.words.append(Word(key, verb, sent, answered, step * SECOND))
        return status


def hash_of(text: str) -> int:
    """The same in every process."""
    return sum(text.encode())


async def until_settled(
    receiver: Unreliable, left: Callable[[], Awaitable[int]], patience: float = PATIENCE
) -> None:
    """Wait until `left` says 0. It gives up when that number and the receiver's calls have not changed for
    `patience` seconds: a slow machine is given the time that it needs."""
    seen, since = (-1, -1), now()
    while (count := await left()) > 0:
        if (count, receiver.calls) != seen:
            seen, since = (count, receiver.calls), now()
        assert now() - since < patience * SECOND, f"{count} are left and nothing moves"
        await receiver.more(1, 1.0)
