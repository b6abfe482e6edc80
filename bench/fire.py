"""How late runs are: a thousand due at one instant, and one alone; and the memory of a quiet server.

    python -m bench.fire [--burst 1000] [--rounds 4] [--alone 100] [--quiet 100000] [--in-flight 64]

A real `horarium serve` on a SQLite file fires into a receiver that is a process of its own and writes down
when each request came; lateness is from the slot to that. Beside the burst stands a bare aiohttp client that
posts as many requests, as many at a time, to the same receiver.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import aiohttp
import uvloop

from bench._house import figure, listing, migrate, plan_all, run, sync
from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.store.sqlite import SqliteStore

PERIOD = 10
"""Seconds between two bursts."""

SOURCES = str(Path(__file__).parents[1] / "src")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--burst", type=int, default=1_000)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--alone", type=int, default=100)
    options.add_argument("--quiet", type=int, default=100_000, help="triggers of an idle server; 0: none")
    options.add_argument("--in-flight", type=int, default=64)
    given = options.parse_args()
    receiver = Receiver()
    try:
        if given.burst:
            _burst(receiver, given.burst, given.rounds, given.in_flight)
        if given.alone:
            _alone(receiver, given.alone)
        if given.quiet:
            _memory(receiver, given.quiet)
    finally:
        receiver.stop()


def _burst(receiver: Receiver, count: int, rounds: int, in_flight: int) -> None:
    deployments = {
        f"job-{number}": f'{{target: sink, cron: "*/{PERIOD} * * * * *"}}' for number in range(count)
    }
    with _server(receiver.url, deployments, in_flight) as server:
        server.until_planned(count)
        receiver.take()
        first = (int(time.time()) // PERIOD + 1) * PERIOD
        _until(first + (rounds - 1) * PERIOD + PERIOD / 2)
        arrived = receiver.take()
        limits = [run(lambda: bare_posts(receiver.url, count, in_flight)) for _ in range(rounds)]
    receiver.take()
    lates: dict[int, list[float]] = defaultdict(list)
    keys: dict[int, set[str]] = defaultdict(set)
    for item in arrived:
        if item.slot >= first:
            lates[item.slot].append(item.at - item.slot)
            keys[item.slot].add(item.key)
    print(f"{count:,} runs due at one instant, {in_flight} in flight, {len(lates)} rounds:")
    last = [max(found) for found in lates.values()]
    figure("  bare aiohttp, all answered", limits, "s", least=True)
    figure("  the first arrives after", [min(found) for found in lates.values()], "s", least=True)
    figure("  the last arrives after", last, "s", least=True, of_bare=f"{min(last) / min(limits):.2f}")
    missing = sum(count - len(found) for found in keys.values()) + (rounds - len(lates)) * count
    doubled = sum(len(lates[slot]) - len(found) for slot, found in keys.items())
    print(f"  missing {missing}, doubled {doubled}")


def _alone(receiver: Receiver, count: int) -> None:
    with _server(receiver.url, {"alone": "{target: sink, every: 1s}"}, 64) as server:
        server.until_planned(1)
        _until(int(time.time()) + 2.5)
        receiver.take()
        _until(int(time.time()) + count + 0.5)
        found = receiver.take()
    late = sorted((item.at - item.slot) * 1e3 for item in found)
    print(f"one run alone, {len(late)} times:")
    print(
        f"  late: p50 {statistics.median(late):.2f} ms, p99 {late[int(len(late) * 0.99) - 1]:.2f} ms, "
        f"worst {late[-1]:.2f} ms, least {late[0]:.2f} ms"
    )


def _memory(receiver: Receiver, count: int) -> None:
    with TemporaryDirectory(prefix="horarium-bench-") as folder:
        path = Path(folder) / "horarium.db"
        start = time.perf_counter()
        run(lambda: _filled(path, count, receiver.url))
        took = time.perf_counter() - start
        with _server(receiver.url, {}, 64, folder=folder, sync=False) as server:
            server.until_serving()
            _until(time.time() + 5)
            print(f"an idle server with {count:,} triggers (read and planned in {took:.0f} s):")
            print(f"  RSS {server.rss():,.0f} MB")


async def _filled(path: Path, count: int, url: str) -> None:
    clock = SystemClock()
    migrate(path)
    store = SqliteStore(path, clock)
    await store.open()
    sink = TargetSpec("sink", "http", {"url": url}, unlimited=True)
    await sync(store, listing(count, "0 3 1 1 *", target=sink), clock.now())
    await plan_all(store, clock)
    await store.close()


class Server:
    """`horarium serve` in a process of its own."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.database = folder / "horarium.db"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "horarium", "serve", "--db", f"sqlite:///{self.database}"),
                *("--port", "0", *(("--apply", str(folder / "triggers.yaml")) if sync else ())),
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": SOURCES, **SETTINGS},
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("ab"),
            text=True,
        )

    def until_serving(self) -> None:
        """Wait until it says where to look."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Horarium runs on"):
                return
        raise SystemExit(f"the server ended with {self.process.wait()}")

    def until_planned(self, triggers: int) -> None:
        """Wait until it serves and so many triggers have runs."""
        self.until_serving()
        while True:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
                planned = connection.execute("select count(distinct trigger_id) from run").fetchone()[0]
                if planned >= triggers:
                    return
            time.sleep(0.5)

    def rss(self) -> float:
        """Megabytes of memory that the process has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1_024


SETTINGS = {
    "HORARIUM_EXECUTION_QPS": "0",
    # Far enough ahead that no top-up of all triggers at once, which only a bench has, falls into a burst.
    "HORARIUM_MIN_SCHEDULED_TIME": "3m",
    "HORARIUM_LOG_FORMAT": "json",
}


@contextmanager
def _server(
    url: str,
    deployments: dict[str, str],
    in_flight: int,
    folder: str | None = None,
    *,
    sync: bool = True,
) -> Iterator[Server]:
    with TemporaryDirectory(prefix="horarium-bench-") as made:
        where = Path(folder or made)
        write_triggers(where, url, deployments, in_flight)
        server = Server(where, sync=sync)
        try:
            yield server
        finally:
            server.process.terminate()
            if server.process.wait() != 0:
                print((where / "log").read_text()[-2_000:], file=sys.stderr)


def write_triggers(folder: Path, url: str, deployments: dict[str, str], in_flight: int = 64) -> None:
    """The triggers file of a `Server` in `folder`, with the receiver as the target `sink`."""
    lines = [
        "source: bench",
        f'targets: {{sink: {{http: {{url: "{url}", timeout: 1s}}, max_in_flight: {in_flight}}}}}',
        "deployments:",
        *(f"  {name}: {text}" for name, text in deployments.items()),
    ]
    (folder / "triggers.yaml").write_text("\n".join(lines) + "\n")


async def bare_posts(url: str, count: int, in_flight: int) -> float:
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            headers = {"Idempotency-Key": f"bare-{number}", "ce-time": "1970-01-01T00:00:00Z"}
            async with session.post(url, data=b"{}", headers=headers) as response:
                await response.read()

        start = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        return time.perf_counter() - start


class Arrived(NamedTuple):
    """A request: for which slot (seconds) of which deployment, under which name, which attempt, and when."""

    slot: int
    deployment: str
    key: str
    attempt: int
    at: float


class Receiver:
    """A process that answers 201 to whatever comes and writes it down."""

    def __init__(self) -> None:
        self._near, far = Pipe()
        self._process = Process(target=_receive, args=(far,), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{self._near.recv()}/run"

    def take(self) -> list[Arrived]:
        """What came since it was last asked."""
        self._near.send("take")
        return [Arrived(*item) for item in self._near.recv()]

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _receive(pipe: Connection) -> None:
    arrived: list[tuple[dict[bytes, bytes], float]] = []

    class Answer(asyncio.Protocol):
        """As little of HTTP as the clients here need: what the receiver costs is not what is measured."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = cast(asyncio.Transport, transport)
            self._rest = b""

        def data_received(self, data: bytes) -> None:
            self._rest += data
            while True:
                head, found, rest = self._rest.partition(b"\r\n\r\n")
                if not found:
                    return
                fields = {
                    name.lower(): value
                    for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[1:])
                }
                length = int(fields.get(b"content-length", b"0"))
                if len(rest) < length:
                    return
                self._rest = rest[length:]
                arrived.append((fields, time.time()))
                self._transport.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answer, "127.0.0.1", 0, backlog=1_024)
        pipe.send(server.sockets[0].getsockname()[1])

        def asked() -> None:
            pipe.recv()
            os.set_blocking(pipe.fileno(), True)  # the loop made it not block, and this may be large
            pipe.send([_read(fields, at) for fields, at in arrived])
            arrived.clear()

        loop.add_reader(pipe.fileno(), asked)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _read(fields: dict[bytes, bytes], at: float) -> tuple[int, str, str, int, float]:
    slot = datetime.fromisoformat(fields[b"ce-time"].decode())
    deployment = fields.get(b"ce-subject", b"///").decode().split("/")[2]
    attempt = int(fields.get(b"ce-attempt", b"0"))
    return int(slot.timestamp()), deployment, fields[b"idempotency-key"].decode(), attempt, at


def _until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.time()))


if __name__ == "__main__":
    main()
