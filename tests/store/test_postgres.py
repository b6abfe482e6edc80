"""What only PostgreSQL has: a network and its faults, limits, hints, a clock of its own."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import ProgrammingError

from horarium.core.freeze import EVERYTHING
from horarium.errors import SchemaMismatch, StoreUnavailable
from horarium.store.postgres import Limits, PostgresStore, make_engine, migrate_postgres
from horarium.store.tables import metadata
from horarium.testing import SequenceIds, VirtualClock
from horarium.wiring import has_ended, owner_name
from tests.store.conftest import PostgresServer, opened, postgres_back_door
from tests.store.test_interleavings import PATIENCE, Gate
from tests.store.test_migrations import shapes
from tests.store.world import NOW, World, at, fired, minutes

MS = timedelta(milliseconds=1)


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return await postgres.emptied()


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    async with opened(url) as there:
        yield there


async def cut(url: str) -> int:
    """End every connection but this one, as a restart of the server does; how many there were."""
    connection = await asyncpg.connect(url)
    try:
        ended: int = await connection.fetchval(
            "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        return ended
    finally:
        await connection.close()


# faults of the network


async def test_connections_that_died_in_the_pool_are_thrown_away(world: World, url: str) -> None:
    await world.add("a")
    assert await cut(url) > 0
    # The first call may find out; nothing was changed by it, and the next one has a new connection.
    try:
        await world.plan(NOW)
    except StoreUnavailable:
        await world.plan(NOW + timedelta(seconds=31))
    assert await world.slots() != []


async def test_a_connection_that_dies_in_a_transaction_leaves_nothing(url: str) -> None:
    gate = Gate("commit")
    async with opened(url, between=gate) as world, opened(url) as other:
        await other.add("a")
        before = await other.everything()
        pausing = asyncio.ensure_future(world.pause("a", at("10:01")))
        async with asyncio.timeout(PATIENCE):
            await gate.reached.wait()
            await cut(url)
            gate.go.set()
            with pytest.raises(StoreUnavailable):
                await pausing
            try:
                assert await other.everything() == before
            except StoreUnavailable:  # its own connection was cut as well
                assert await other.everything() == before
            assert await world.pause("a", at("10:01")) != []


async def test_no_server_is_unavailable_at_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers there
        port = taken.getsockname()[1]
        with pytest.raises(StoreUnavailable):
            await PostgresStore(f"postgresql://nobody@127.0.0.1:{port}/nothing").open()


async def test_a_server_that_accepts_and_never_answers_is_unavailable_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing?sslmode=disable"
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable):
                await PostgresStore(url, limits=Limits(connect=100 * MS)).open()


async def test_a_database_that_is_not_there_is_unavailable(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await PostgresStore(postgres.of("never_made")).open()


async def test_a_store_that_is_not_open_says_so(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="not open"):
        await PostgresStore(url).source_version("x")


async def test_a_restart_of_the_store_goes_on_where_it_was(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.remember("k", "d", NOW)
    await store.close()
    await store.open()
    assert await store.remember("k", "d", NOW) is not None
    await store.close()


# limits


async def test_a_statement_that_takes_too_long_is_ended(url: str) -> None:
    async with opened(url, limits=Limits(statement=50 * MS)) as world:
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            await world.store.fetch(text("select pg_sleep(60)"))
        await world.add("a")


async def test_a_lock_that_is_not_had_in_time_is_given_up_and_nothing_is_changed(url: str) -> None:
    async with opened(url, limits=Limits(lock=50 * MS)) as world:
        await world.add("a")
        before = await world.everything()
        holder = await asyncpg.connect(url)
        async with holder.transaction():
            await holder.execute("select from trigger for update")
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                await world.pause("a", at("10:01"))
        await holder.close()
        assert await world.everything() == before
        assert await world.pause("a", at("10:01")) != []


async def test_a_transaction_that_is_left_open_is_ended_by_the_server(url: str) -> None:
    """A replica that is stopped in the middle of one holds nobody up for long."""
    gate = Gate("commit")
    async with opened(url, between=gate, limits=Limits(idle=1_000 * MS)) as stopped, opened(url) as other:
        await other.add("a")
        pausing = asyncio.ensure_future(stopped.pause("a", at("10:01")))
        async with asyncio.timeout(PATIENCE):
            await gate.reached.wait()
            assert await other.pause("a", at("10:02"), note="second") != []
            gate.go.set()
            with pytest.raises(StoreUnavailable):
                await pausing
        assert (await other.trigger("a")).pause_note == "second"


async def test_a_call_that_hangs_is_cut_off_and_its_connection_thrown_away(url: str) -> None:
    gate = Gate("commit")
    async with opened(url, between=gate, limits=Limits(answer=2_000 * MS)) as world, opened(url) as other:
        await other.add("a")
        with pytest.raises(StoreUnavailable):
            await world.pause("a", at("10:01"))
        assert not (await other.trigger("a")).paused
        assert await other.pause("a", at("10:01")) != [], "the lock is free again"


async def test_a_statement_whose_answer_does_not_come_is_given_up(url: str) -> None:
    """The server's own limit is off, as if the network had swallowed the answer. Both kinds of statements."""
    async with opened(url, limits=Limits(answer=500 * MS, lock=timedelta(), statement=timedelta())) as world:
        await world.add("a")
        await world.plan(NOW)
        before = await world.everything()
        holder = await asyncpg.connect(url)
        async with holder.transaction():
            await holder.execute("select from trigger for update")
            with pytest.raises(StoreUnavailable):
                await world.pause("a", at("10:01"))
            await holder.execute("select from run for update")
            (run, *_) = await world.runs()
            with pytest.raises(StoreUnavailable):
                await world.settle(fired(run, NOW, 1), now=NOW)
        await holder.close()
        assert await world.everything() == before


async def test_a_call_that_is_cancelled_changes_nothing_and_frees_its_locks(url: str) -> None:
    gate = Gate("commit")
    async with opened(url, between=gate) as world, opened(url) as other:
        await other.add("a")
        pausing = asyncio.ensure_future(world.pause("a", at("10:01")))
        async with asyncio.timeout(PATIENCE):
            await gate.reached.wait()
            pausing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pausing
            assert await other.pause("a", at("10:02")) != []
            assert len(await world.triggers()) == 1


async def test_more_calls_than_connections_wait_their_turn(url: str) -> None:
    async with opened(url, pool=2) as world:
        await world.add("a")
        found = await asyncio.gather(*(world.store.source_version("x") for _ in range(30)))
        assert found == [0] * 30
        connection = await asyncpg.connect(url)
        count = await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and application_name = 'horarium'"
        )
        await connection.close()
        assert count <= 2


# PgBouncer's switch


async def test_without_prepared_statements_everything_works_and_none_is_kept(url: str) -> None:
    gate = Gate()
    async with opened(url, prepared_statements=False, pool=1, between=gate) as world:
        await world.add("a")
        await world.plan(NOW)
        (item,) = (await world.claim(at("10:05"))).runs
        assert await world.settle(fired(item.run, at("10:05")), now=at("10:05")) == {item.run.id}
        await world.backfill("a", at("09:00"), at("10:10"), at("10:06"))
        await world.plan_all(at("10:06"))
        # 10:05 was fired; 10:10 is ahead of the cursor's now and taken over with the rest.
        expected = [slot for slot in minutes(5, at("08:59"), at("10:10")) if slot != at("10:05")]
        assert await world.slots("a", origin="backfill") == expected
        rows = await world.store.fetch(text("select name from pg_prepared_statements where name <> ''"))
        assert list(rows) == []


async def test_without_prepared_statements_limits_are_set_for_each_transaction(url: str) -> None:
    limits = Limits(lock=50 * MS)
    async with opened(url, prepared_statements=False, limits=limits) as world:
        await world.add("a")
        holder = await asyncpg.connect(url)
        async with holder.transaction():
            await holder.execute("select from trigger for update")
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                await world.pause("a", at("10:01"))
        await holder.close()
        (row,) = await world.store.fetch(text("select current_setting('lock_timeout') as value"))
        assert row.value == "0"


# its clock, hints, schema


async def test_its_clock_is_the_databases(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    connection = await asyncpg.connect(url)
    before = await connection.fetchval("select clock_timestamp()")
    now = await store.clock()
    after = await connection.fetchval("select clock_timestamp()")
    await connection.close()
    await store.close()
    assert before <= now <= after
    assert now.utcoffset() == timedelta()
    assert isinstance(now, datetime)
    assert now.tzinfo is UTC


async def test_changes_are_told_to_other_replicas_and_claims_are_not(world: World, url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with opened(url) as other:
        listening = asyncio.ensure_future(other.store.listen(heard.put_nowait))  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() == "listening"
            await world.add("a", "* * * * *")
            assert await heard.get() == "changed"
            await world.plan(at("10:03"))  # 10:01 to 10:03 are due at once
            assert await heard.get() == "planned"
            for item in (await world.claim(at("10:03"))).runs:
                await world.settle(fired(item.run, at("10:03")), now=at("10:03"))
            await world.pause("a", at("10:04"))
            assert await heard.get() == "changed", "and nothing of the claim and the settles"
            await cut(url)
            with pytest.raises(StoreUnavailable, match="no hints"):
                await listening


async def test_a_change_that_failed_is_not_told(world: World, url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with opened(url) as other:
        listening = asyncio.ensure_future(other.store.listen(heard.put_nowait))  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() == "listening"

            def fail(state: object) -> None:
                raise LookupError

            await world.add("a")
            with pytest.raises(LookupError):
                await world.change("a", fail, NOW)
            await world.add("b")
            assert [await heard.get(), await heard.get()] == ["changed", "changed"]
            assert heard.empty()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_a_migration_under_a_running_store_costs_it_nothing(postgres: PostgresServer) -> None:
    """Its prepared statements are of the old types; they are made anew."""
    async with postgres.database() as url:
        await migrate_postgres(url)
        async with opened(url, pool=1) as world:
            await world.add("a")
            await world.plan(NOW)
            await world.pause("a", at("10:01"))
            connection = await asyncpg.connect(url)
            await connection.execute("alter table trigger alter column error_count type bigint")
            await connection.execute("alter table trigger add column something text")
            await connection.close()
            await world.resume("a", at("10:02"))
            await world.plan(at("10:02"))
            assert await world.slots("a") == minutes(5, NOW, at("12:02"))


async def test_a_schema_that_is_missing_or_newer_is_refused_with_what_to_do(postgres: PostgresServer) -> None:
    async with postgres.database() as url:
        with pytest.raises(SchemaMismatch, match="horarium db upgrade"):
            await PostgresStore(url).open()
        await migrate_postgres(url)
        connection = await asyncpg.connect(url)
        await connection.execute("update alembic_version set version_num = '9999'")
        await connection.execute("update schema_compatibility set readable_by = '9999'")
        await connection.close()
        with pytest.raises(SchemaMismatch, match="newer Horarium"):
            await PostgresStore(url).open()
        with pytest.raises(SchemaMismatch, match="newer Horarium"):
            await migrate_postgres(url)


async def test_dead_runs_are_vacuumed_early(world: World) -> None:
    (row,) = await world.store.fetch(text("select reloptions from pg_class where relname = 'run'"))
    assert row.reloptions == ["autovacuum_vacuum_scale_factor=0.01"]


async def test_the_migrated_tables_are_those_of_tables_py(postgres: PostgresServer) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": False}
        )
        return list(compare_metadata(context, metadata))

    async with postgres.database() as migrated, postgres.database() as direct:
        await migrate_postgres(migrated)
        one = make_engine(migrated, limits=Limits(), prepared_statements=True)
        two = make_engine(direct, limits=Limits(), prepared_statements=True)
        async with one.connect() as first, two.begin() as second:
            assert await first.run_sync(differences) == []
            await second.run_sync(metadata.create_all)
            assert await first.run_sync(shapes) == await second.run_sync(shapes)
            names = await first.run_sync(lambda connection: inspect(connection).get_table_names())
            assert "run" in names
        await one.dispose()
        await two.dispose()


async def test_a_role_that_cannot_change_tables_is_enough(postgres: PostgresServer) -> None:
    """The roles and grants of docs/operations.md, word by word."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    as_administrator, as_owner = re.findall(r"```sql\n((?:create role|grant usage).*?)```", page, re.DOTALL)
    name = f"horarium_{os.getpid()}"
    words = [text.replace("horarium", name) for text in (as_administrator, as_owner)]
    host = urlsplit(postgres.url)

    def url_of(role: str) -> str:
        return urlunsplit(host._replace(netloc=f"{role}@{host.netloc.rpartition('@')[2]}", path=f"/{name}"))

    await postgres.admin(*filter(None, map(str.strip, words[0].split(";"))))
    try:
        owner = await asyncpg.connect(url_of(f"{name}_owner"))
        await owner.execute(words[1])
        await owner.close()
        await migrate_postgres(url_of(f"{name}_owner"))
        store = PostgresStore(url_of(name), VirtualClock(NOW))
        await store.open()
        world = World(store, postgres_back_door(url_of(name)))
        try:
            await world.add("a")
            await world.plan(NOW)
            (item,) = (await world.claim(at("10:05"))).runs
            await world.settle(fired(item.run, at("10:05")), now=at("10:05"))
            await world.pause("a", at("10:06"))
            await world.store.freeze(EVERYTHING, None, "ann", at("10:07"))
            assert (await store.prune(at("11:00"), NOW, 10)).runs == 1
            with pytest.raises(ProgrammingError, match="must be owner"):
                await world.run_sql(text("alter table run add column more text"))
        finally:
            await store.close()
    finally:
        await postgres.admin(
            f'drop database "{name}" with (force)', f'drop role "{name}"', f'drop role "{name}_owner"'
        )


def test_whose_local_runs_a_start_may_call_interrupted() -> None:
    mine = owner_name(SequenceIds())
    host, pid, _ = mine.split("/")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not has_ended(mine)
    assert has_ended(f"{host}/{pid}/before"), "in a container each start has the same number"
    assert has_ended(f"{host}/{child.pid}/gone")
    assert not has_ended(f"{host}/{os.getppid()}/there")
    assert not has_ended(f"elsewhere/{child.pid}/nobody knows")
