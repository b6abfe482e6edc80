"""The real process and a real receiver, for tests that kill the one and count at the other.

A test waits for what it sees: a line of the server's output, a request at the receiver. `waits` are bounded
so that a server that says nothing fails the test with what it did say.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

PATIENCE = 60.0
"""Seconds until a wait gives up: only a broken server, or a machine at a standstill, takes so long."""

SOURCES = Path(__file__).parents[2] / "src"


def environment(sources: Path = SOURCES, **settings: str) -> dict[str, str]:
    """What a process of Horarium gets: ours without settings, and `settings`."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HORARIUM_")},
        **{f"HORARIUM_{name.upper()}": value for name, value in settings.items()},
        "PYTHONPATH": str(sources),
    }


def now() -> int:
    """Microseconds since the epoch, as this machine has it."""
    return time.time_ns() // 1_000


class News:
    """Wakes whoever waits for something to become true."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self) -> None:
        """Something happened: everybody looks again."""
        task = asyncio.create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until(self, found: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Wait until `found`; False when it was not in time."""
        try:
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(found), patience)
        except TimeoutError:
            return False
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Server:
    """`horarium serve` in a process of its own, with every line that it writes."""

    def __init__(self, process: asyncio.subprocess.Process, news: News) -> None:
        self.process = process
        self.out: list[str] = []
        self.log: list[str] = []
        self._news = news
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self.out)),
            asyncio.create_task(self._read(process.stderr, self.log)),
        ]

    @classmethod
    async def start(
        cls,
        database: Path | str,
        triggers: Path,
        news: News,
        sources: Path = SOURCES,
        flags: Sequence[str] = (),
        /,
        **settings: str,
    ) -> Server:
        """Start one; `settings` are those of `docs/settings.md`. Returns at once, long before it serves.

        `database` is an SQLite file, or a URL. `sources` is the code that runs, `flags` are further ones.
        """
        url = f"sqlite:///{database}" if isinstance(database, Path) else database
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "horarium", "serve", "--db", url),
            *("--port", "0", "--apply", str(triggers), *flags),
            cwd=triggers.parent,
            env=environment(sources, **settings),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process, news)

    async def says(self, pattern: str) -> str:
        """Wait for a line of standard output that has `pattern` in it."""
        return await self._line(self.out, pattern)

    async def logs(self, pattern: str) -> str:
        """Wait for a line of the log that has `pattern` in it."""
        return await self._line(self.log, pattern)

    async def logs_more(self, pattern: str) -> str:
        """Wait for a line of the log that is written from now on."""
        return await self._line(self.log, pattern, len(self.log))

    async def serves(self) -> str:
        """Wait until it says where to look, and return that: the address of its API."""
        line = await self.says("^Horarium runs on ")
        return line.rpartition(": ")[2].partition("/api/")[0]

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.terminate()

    async def kill(self) -> None:
        """SIGKILL, if it still runs, and wait for its end."""
        if self.process.returncode is None:
            self.process.kill()
        await self.exit()

    async def exit(self) -> int:
        """Wait for its end; the exit code, negative where a signal ended it."""
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        await asyncio.gather(*self._readers)
        return code

    async def _line(self, lines: list[str], pattern: str, since: int = 0) -> str:
        wanted = re.compile(pattern)

        def found() -> str | None:
            return next((line for line in lines[since:] if wanted.search(line)), None)

        def ended() -> bool:
            return all(reader.done() for reader in self._readers)

        await self._news.until(lambda: found() is not None or ended())
        line = found()
        assert line is not None, f"no line with {pattern!r}:\n" + "\n".join([*self.out, *self.log])
        return line

    async def _read(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for raw in stream:
            lines.append(raw.decode().rstrip("\n"))
            self._news.tell()
        # Whoever waits for a line sees that none will come once this task is done, so they look after it.
        asyncio.get_running_loop().call_soon(self._news.tell)


@dataclass(frozen=True)
class Arrival:
    """A request as the receiver got it."""

    key: str
    slot: str
    subject: str
    attempt: int


@dataclass
class Receiver(AbstractAsyncContextManager["Receiver"]):
    """An HTTP server that writes down each request and answers 201 to each: it drops no duplicates.

    While `hold` is set, a request is written down and its answer waits for `release`.
    """

    news: News
    arrivals: list[Arrival] = field(default_factory=list)
    hold: bool = False
    url: str = ""

    async def __aenter__(self) -> Receiver:
        self._released = asyncio.Event()
        app = web.Application()
        app.router.add_post("/run", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/run"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._runner.cleanup()

    def release(self) -> None:
        """Give the answers that were held back, and hold no more."""
        self.hold = False
        self._released.set()

    async def until(self, found: Callable[[], bool]) -> None:
        """Wait until what arrived satisfies `found`."""
        assert await self.news.until(found), f"{len(self.arrivals)} arrivals: {self.arrivals[-5:]}"

    async def _receive(self, request: web.Request) -> web.Response:
        await request.read()
        headers = request.headers
        self.arrivals.append(
            Arrival(
                headers["Idempotency-Key"],
                headers["ce-time"],
                headers["ce-subject"],
                int(headers["ce-attempt"]),
            )
        )
        self.news.tell()
        if self.hold:
            await self._released.wait()
        return web.json_response({"id": f"job-{len(self.arrivals)}"}, status=201)


def rows(database: Path, query: str, values: Mapping[str, Any] | None = None) -> list[Any]:
    """Rows straight from the file, past everything of Horarium."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values or {}).fetchall()
