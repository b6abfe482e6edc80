"""The database behind a network that cuts, delays and swallows: who needs it is told in time, and recovers.

A real server behind a TCP proxy of the test's own; the store in this process, `horarium serve` in its own.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from horarium.clock import TRUSTED, OffsetClock, SystemClock
from horarium.errors import StoreUnavailable
from horarium.store.postgres import Limits, PostgresStore, migrate_postgres
from tests.chaos.database import Cluster, Proxy
from tests.chaos.process import PATIENCE, News, Receiver, Server

READY_WITHIN = 15.0
"""Within so many seconds `/readyz` says that the database is dead: what operators are promised."""


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster({"fsync": "off"}) as running:
        await migrate_postgres(running.url())
        yield running


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy(cluster.port) as between:
        yield between
        between.deliver()


def through(cluster: Cluster, proxy: Proxy) -> str:
    return cluster.url(port=proxy.address) + "?sslmode=disable"


# the store


async def test_a_session_that_the_server_ended_is_unavailable_before_its_end_is_seen(
    cluster: Cluster, proxy: Proxy
) -> None:
    """The driver has read the server's last words, and not yet that the connection is closed."""
    proxy.half_dead = True
    store = PostgresStore(through(cluster, proxy), pool=1)
    await store.open()
    try:
        await _end_sessions(cluster)
        with pytest.raises(StoreUnavailable):
            await store.remember("k", "d", await store.clock())
        proxy.half_dead = False
        assert await store.source_version("x") == 0
    finally:
        await store.close()


async def test_one_connection_that_hangs_is_enough_to_know_of_all(cluster: Cluster, proxy: Proxy) -> None:
    """Its pool is full of connections that nobody will answer, as after a failover. New ones would work."""
    answer = timedelta(milliseconds=500)
    store = PostgresStore(through(cluster, proxy), pool=5, limits=Limits(answer=answer))
    await store.open()
    try:
        await asyncio.gather(*(store.source_version("x") for _ in range(5)))
        proxy.strand()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable):
                await store.source_version("x")
        began = time.monotonic()
        assert await store.source_version("x") == 0
        assert time.monotonic() - began < answer.total_seconds(), "no other one was waited for"
    finally:
        await store.close()


async def test_a_store_closes_though_nobody_answers(cluster: Cluster, proxy: Proxy) -> None:
    """Or a replica that is told to stop would stay for ever, behind a network that swallows."""
    store = PostgresStore(through(cluster, proxy), limits=Limits(connect=timedelta(milliseconds=500)))
    await store.open()
    await asyncio.gather(*(store.source_version("x") for _ in range(5)))
    proxy.swallow()
    async with asyncio.timeout(PATIENCE):
        await store.close()


async def test_an_answer_that_took_long_does_not_move_the_clock(cluster: Cluster, proxy: Proxy) -> None:
    """Half of its time would be taken for a difference of clocks, and edits would take effect then."""
    host = OffsetClock(SystemClock())
    store = PostgresStore(through(cluster, proxy), host=host)
    await store.open()
    try:
        await store.clock()
        assert abs(host.offset) < TRUSTED * timedelta(seconds=1)
        known = host.offset
        proxy.swallow()
        asking = asyncio.ensure_future(store.clock())
        asyncio.get_running_loop().call_later(TRUSTED * 2, proxy.deliver)
        assert abs(await asking - SystemClock().now()) < timedelta(seconds=PATIENCE)
        assert host.offset == known
        await store.clock()
        assert host.offset != known, "a quick one is believed again"
    finally:
        await store.close()


# the process


async def test_readyz_says_in_time_that_the_database_is_dead_and_recovers(
    cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    async with _serving(cluster, proxy, tmp_path) as (server, address, receiver):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
            assert await _ready(session, address) == 200
            # A network that swallows, while people ask for more than there are connections.
            began = time.monotonic()
            proxy.swallow()
            asking = [asyncio.create_task(_get(session, f"{address}/api/v1/status")) for _ in range(30)]
            while await _ready(session, address) == 200:
                assert time.monotonic() - began < READY_WITHIN
            assert time.monotonic() - began < READY_WITHIN
            alive = await _get(session, f"{address}/livez")
            assert alive == 200, "it is not stuck: restarting it would help nobody"
            proxy.deliver()
            await _recovers(session, address, receiver)
            assert {await task for task in asking} <= {200, 503}
            # A server that is stopped.
            await cluster.stop("fast")
            began = time.monotonic()
            while await _ready(session, address) == 200:
                assert time.monotonic() - began < READY_WITHIN
            assert server.process.returncode is None
            await cluster.start()
            await _recovers(session, address, receiver)
        server.terminate()
        assert await server.exit() == 0


async def test_it_does_not_exit_with_0_while_the_database_is_away(
    cluster: Cluster, proxy: Proxy, tmp_path: Path
) -> None:
    """Neither at its start, nor at its end with an answer that could not be written."""
    async with _serving(cluster, proxy, tmp_path) as (server, _, receiver):
        receiver.hold = True
        seen = len(receiver.arrivals)
        await receiver.until(lambda: len(receiver.arrivals) > seen)
        await cluster.stop("fast")
        try:
            receiver.release()
            server.terminate()
            assert await server.exit() == 1
            assert "the last answers are asked for again" in server.out[-1]
            again = await Server.start(through(cluster, proxy), tmp_path / "triggers.yaml", receiver.news)
            assert await again.exit() > 0
            assert not any("Traceback" in line for line in again.log), "\n".join(again.log)
        finally:
            await cluster.start()


# how


@asynccontextmanager
async def _serving(
    cluster: Cluster, proxy: Proxy, folder: Path
) -> AsyncIterator[tuple[Server, str, Receiver]]:
    news = News()
    async with Receiver(news) as receiver:
        triggers = folder / "triggers.yaml"
        triggers.write_text(
            f'source: chaos\ntargets: {{sink: {{http: {{url: "{receiver.url}", timeout: 1s}}}}}}\n'
            "deployments: {tick: {target: sink, every: 1s}}\n"
        )
        settings = {"lease": "2s", "min_scheduled_time": "5s", "execution_qps": "0", "drain_timeout": "2s"}
        server = await Server.start(through(cluster, proxy), triggers, news, **settings)
        try:
            address = await server.serves()
            await receiver.until(lambda: len(receiver.arrivals) > 0)
            yield server, address, receiver
        finally:
            if server.process.returncode is None:
                server.process.send_signal(signal.SIGKILL)
            await server.exit()


async def _ready(session: aiohttp.ClientSession, address: str) -> int:
    return await _get(session, f"{address}/readyz")


async def _get(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as response:
        await response.read()
        return response.status


async def _recovers(session: aiohttp.ClientSession, address: str, receiver: Receiver) -> None:
    async with asyncio.timeout(PATIENCE):
        while await _ready(session, address) != 200:
            pass
    seen = len(receiver.arrivals)
    await receiver.until(lambda: len(receiver.arrivals) > seen)


async def _end_sessions(cluster: Cluster) -> None:
    connection = await asyncpg.connect(cluster.url())
    await connection.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'horarium'"
    )
    await connection.close()
