"""Freezes between replicas, in the worst order there is, and the way back to the schema before them."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from horarium.core.freeze import Owed, Scope
from horarium.core.keys import DeploymentKey
from horarium.core.run import RunState
from horarium.errors import Conflict, InvalidInput
from horarium.store import migrations
from horarium.store.postgres import downgrade_postgres, migrate_postgres
from tests.store.conftest import PostgresServer, opened
from tests.store.test_interleavings import Replicas, planned
from tests.store.test_interleavings import replicas as replicas
from tests.store.world import NOW, at, entry, listing, minutes

PROJECT = Scope.project("default")
WORK = Scope.target("work")


async def test_a_freeze_waits_for_a_trigger_that_is_being_added(replicas: Replicas) -> None:
    """Else it would not see the new trigger, which did not see the freeze."""
    one, two = replicas.one, replicas.two
    await one.sync(listing(entry("a")))
    await replicas.interleaved(
        "commit",
        one.sync(listing(entry("a"), entry("b")), version=1),
        two.store.freeze(PROJECT, None, "ann", NOW),
    )
    assert [item.frozen for item in await two.triggers()] == [True, True]


async def test_a_trigger_that_is_added_waits_for_a_freeze(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.sync(listing(entry("a")))
    await replicas.interleaved(
        "commit",
        one.store.freeze(PROJECT, None, "ann", NOW),
        two.sync(listing(entry("a"), entry("b")), version=1),
    )
    assert [item.frozen for item in await two.triggers()] == [True, True]


async def test_runs_that_a_planner_is_writing_are_held_by_the_freeze_that_waited(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    await replicas.interleaved(
        "commit", one.store.apply_plans(plans, NOW), two.store.freeze(PROJECT, None, "ann", NOW)
    )
    assert {run.state for run in await two.runs()} == {RunState.HELD}


async def test_a_planner_that_waited_for_a_freeze_writes_nothing(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    _, applied = await replicas.interleaved(
        "commit", one.store.freeze(PROJECT, None, "ann", NOW), two.store.apply_plans(plans, NOW)
    )
    assert applied.won == frozenset()
    await two.plan_all(NOW + timedelta(seconds=31))
    assert {run.state for run in await two.runs()} == {RunState.HELD}


async def test_a_run_that_is_being_claimed_is_not_held(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.plan(NOW)
    await one.look(at("10:05"))
    claims, frozen = await replicas.interleaved(
        "commit", one.claim(at("10:05"), look=False), two.store.freeze(PROJECT, None, "ann", at("10:05"))
    )
    assert [item.run.scheduled_time for item in claims.runs] == [at("10:05")]
    assert frozen.held == len(minutes(5, at("10:05"), at("12:00")))
    assert await two.slots(state="scheduled") == [at("10:05")]


async def test_a_release_waits_for_a_claim_and_gives_up_only_what_that_left(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.plan(NOW)
    await one.look(at("10:17"))
    # Frozen after the claim had read the allowance: the claim goes on, and its runs are not owed any more.
    deployment = Scope.deployment(DeploymentKey("default", "default", "a"))
    with pytest.raises(Conflict):
        await two.store.release(deployment, Owed.DROP, "ann", NOW)

    async def freeze_and_release() -> int:
        await two.store.freeze(WORK, None, "ann", at("10:17"))
        return (await two.store.release(WORK, Owed.DROP, "ann", at("10:17"))).skipped

    claims, skipped = await replicas.interleaved(
        "commit", one.claim(at("10:17"), 1, look=False), freeze_and_release()
    )
    assert len(claims.runs) == 1
    assert skipped == 2
    assert [skip[2] for skip in await two.skips()] == [2]


async def test_the_schema_goes_back_and_forth(postgres: PostgresServer) -> None:
    async with postgres.database() as url:
        await migrate_postgres(url)
        async with opened(url) as world:
            await world.add("a")
            await world.plan(NOW)
            await world.store.freeze(PROJECT, None, "ann", NOW)
            with pytest.raises(Conflict, match="release it first"):
                await downgrade_postgres(url, "0001")
            await world.store.release(PROJECT, Owed.ALL, "ann", NOW)
            runs = len(await world.runs())
        assert await downgrade_postgres(url, "0003") == (migrations.head(), "0003")
        assert await downgrade_postgres(url, None) == ("0003", "0002")
        assert await downgrade_postgres(url, None) == ("0002", "0001")
        with pytest.raises(InvalidInput):
            await downgrade_postgres(url, None)
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("select count(*) from run") == runs
        assert await connection.fetchval("select to_regclass('freeze')") is None
        await connection.close()
        assert await migrate_postgres(url) == ("0001", migrations.head())
        async with opened(url) as world:
            assert len((await world.claim(at("10:05"))).runs) == 1
