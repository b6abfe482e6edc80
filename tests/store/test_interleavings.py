"""Two replicas inside one another's transactions, on PostgreSQL, in the worst order there is.

And on the one in memory, which the simulation trusts: it must behave as the real one does.

Nothing is left to chance: a store stops before a named statement (`Gate`), the other one is seen to wait for
a lock (or to pass by), and only then the first goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import asyncpg
import pytest
from sqlalchemy import select

from horarium.core import trigger as decisions
from horarium.core.keys import DeploymentKey, long_run_name, run_name
from horarium.core.plan import Plan, Unplanned, Window, plan
from horarium.core.run import Report, Result, Run, RunState
from horarium.core.spec import CatchUp, DeploymentSpec, Listing, Overlap, Rate, TargetSpec, TriggerEntry
from horarium.core.trigger import Change, TriggerState
from horarium.errors import StaleVersion
from horarium.store import migrations
from horarium.store import tables as t
from horarium.store.base import ManualRequest
from horarium.store.postgres import migrate_postgres
from tests.memory.store import Database
from tests.store.conftest import PostgresServer, opened, opened_in_memory
from tests.store.world import NOW, World, at, entry, fired, key, listing, minutes, spec, unavailable

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which an interleaving that never comes about is a failure, not a hang."""


@dataclass
class Gate:
    """Stops a store's first transaction that comes to the statement `name`, until `go`."""

    name: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[str] = field(default_factory=list)

    async def __call__(self, name: str) -> None:
        self.seen.append(name)
        if name == self.name and not self.reached.is_set():
            self.reached.set()
            await self.go.wait()


@dataclass
class Replicas:
    """Two stores on one database; `one` stops at the gate, `watch` sees what the other one does."""

    one: World
    two: World
    gate: Gate
    watch: Gate
    somebody_waits: Callable[[], Awaitable[None]]
    """Returns once a transaction waits for a lock; the database says so."""

    async def interleaved(
        self, before: str, first: Awaitable[T], second: Awaitable[Any], *, waits: bool = True
    ) -> tuple[T, Any]:
        """`first` (of `one`) up to the statement `before`, then `second` as far as it gets, then the rest."""
        self.gate.name = before
        async with asyncio.timeout(PATIENCE):
            leading = asyncio.ensure_future(first)
            stopped = asyncio.ensure_future(self.gate.reached.wait())
            await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            assert self.gate.reached.is_set(), f"never came to {before!r}: {self.gate.seen}"
            following = asyncio.ensure_future(second)
            if waits:
                await self.somebody_waits()
                assert not following.done()
            else:
                await following
            self.gate.go.set()
            return await leading, await following


async def a_session_waits(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        while not await connection.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and wait_event_type = 'Lock'"
        ):
            pass
    finally:
        await connection.close()


async def a_reader_waits(database: Database) -> None:
    while not database.server.waiting:
        await asyncio.sleep(0)


@pytest.fixture(params=["postgres", "memory"])
async def replicas(request: pytest.FixtureRequest) -> AsyncIterator[Replicas]:
    gate, watch = Gate(), Gate()
    async with AsyncExitStack() as stack:
        if request.param == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres")
            url = await server.emptied()
            one = await stack.enter_async_context(opened(url, between=gate))
            two = await stack.enter_async_context(opened(url, between=watch))
            yield Replicas(one, two, gate, watch, partial(a_session_waits, url))
        else:
            database = Database()
            one = await stack.enter_async_context(opened_in_memory(database, between=gate))
            two = await stack.enter_async_context(opened_in_memory(database, between=watch))
            yield Replicas(one, two, gate, watch, partial(a_reader_waits, database))


async def planned(world: World, now: Any = NOW, window: Window | None = None) -> list[Plan]:
    """What a planner holds in its hands between its read and its write."""
    return [plan(item, now, window or Window()) for item in await world.lease(now)]


# plan against change


async def test_old_rule_rows_do_not_survive_an_edit_that_waited_for_the_planner(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *")
    plans = await planned(one)
    now = NOW + timedelta(seconds=1)
    applied, _ = await replicas.interleaved(
        "insert runs", one.store.apply_plans(plans, NOW), two.edit("a", "*/7 * * * *", now)
    )
    assert len(applied.won) == 1
    await two.plan(now)
    assert await two.slots("a") == minutes(7, NOW, now + timedelta(hours=2))


async def test_a_plan_that_waited_for_an_edit_is_lost(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *")
    plans = await planned(two)
    now = NOW + timedelta(seconds=1)
    _, applied = await replicas.interleaved(
        "commit", one.edit("a", "*/7 * * * *", now), two.store.apply_plans(plans, now)
    )
    assert (len(applied.won), len(applied.lost), applied.runs) == (0, 1, 0)
    await two.plan(now)
    assert await two.slots("a") == minutes(7, NOW, now + timedelta(hours=2))


async def test_a_to_b_to_a_while_a_plan_is_computed_loses_it(replicas: Replicas) -> None:
    """The rule is the same again, and yet the plan may not win: between, B's slots were owed."""
    one, two = replicas.one, replicas.two
    await one.add("a", "*/10 * * * *")
    plans = await planned(one)
    await two.edit("a", "*/7 * * * *", at("10:05"))
    await two.edit("a", "*/10 * * * *", at("10:15"))
    assert len((await one.store.apply_plans(plans, NOW)).lost) == 1
    await two.plan_all(at("10:15"))
    assert await two.slots("a") == [at("10:07"), at("10:14"), *minutes(10, at("10:15"), at("12:15"))]


async def test_new_tz_data_that_bumps_no_revision_while_a_plan_is_computed_loses_it(
    replicas: Replicas,
) -> None:
    """As a calendar or window that changed: the rule is the same, and what it names is not."""
    one, two = replicas.one, replicas.two
    await one.add("a", "*/10 * * * *")
    await one.plan(NOW)
    later = at("11:30")
    plans = await planned(one, later)
    assert plans != []
    revision = (await two.trigger("a")).revision
    assert await two.store.replan_older_tzdata("9999", at("11:31")) == 1
    assert (await two.trigger("a")).revision == revision
    assert len((await one.store.apply_plans(plans, later)).lost) == 1
    await two.plan_all(at("11:31"))
    assert await two.slots("a") == minutes(10, NOW, (await two.trigger("a")).cursor)


async def test_a_trigger_deleted_and_added_again_while_a_plan_is_computed_loses_it(
    replicas: Replicas,
) -> None:
    """It is the same row and the same rule; the time between belongs to nobody."""
    one, two = replicas.one, replicas.two
    await one.add("a", "*/10 * * * *")
    plans = await planned(one)
    await two.delete("a", at("10:05"))
    await two.add("a", "*/10 * * * *", now=at("10:25"))
    assert len((await one.store.apply_plans(plans, NOW)).lost) == 1
    await two.plan_all(at("10:25"))
    assert await two.slots("a") == minutes(10, at("10:25"), at("12:25"))


async def test_a_delete_that_waited_for_the_planner_leaves_no_run(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *")
    plans = await planned(one)
    await replicas.interleaved("insert runs", one.store.apply_plans(plans, NOW), two.delete("a", at("10:12")))
    assert await two.runs() == []
    assert [skip[:3] for skip in await two.skips()] == [
        (at("10:05"), at("10:05"), 1),
        (at("10:10"), at("10:10"), 1),
    ]


async def test_a_backfill_that_begins_while_a_plan_is_computed_is_not_forgotten(replicas: Replicas) -> None:
    """It bumps no revision and moves no cursor: only the queue entry tells."""
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *")
    now = NOW + timedelta(seconds=1)
    given, _ = await replicas.interleaved("load", one.lease(NOW), two.backfill("a", at("09:50"), NOW, now))
    applied = await one.store.apply_plans([plan(item, NOW, Window()) for item in given], NOW)
    assert len(applied.lost) == 1
    await one.plan_all(now)
    assert await one.slots("a", origin="backfill") == [at("09:50"), at("09:55"), NOW]


async def test_edits_and_plans_of_the_same_triggers_in_opposite_order_do_not_deadlock(
    replicas: Replicas,
) -> None:
    one, two = replicas.one, replicas.two
    for name in ("a", "b", "c"):
        await one.add(name)
    plans = list(reversed(await planned(one)))
    now = NOW + timedelta(seconds=1)

    def pause(state: TriggerState) -> Change | None:
        return decisions.pause(state, "ann", now)

    replicas.gate.seen.clear()
    replicas.watch.seen.clear()
    applied, changed = await replicas.interleaved(
        "insert runs",
        one.store.apply_plans(plans, NOW),
        two.store.change([key(name) for name in ("c", "a", "b")], pause, now, "ann"),
    )
    assert (len(applied.won), len(changed)) == (3, 3)
    assert replicas.gate.seen.count("compare and set") == 1, "it was begun once, and not aborted"
    assert replicas.watch.seen.count("step 1") == 1
    assert await two.slots(state="scheduled") == []


# a range that a person has planned


LOW, HIGH = at("11:00"), at("13:00")
"""A range that begins inside the window of a plan and ends past it."""


async def test_a_plan_that_waited_for_a_range_is_lost_and_the_next_one_doubles_nothing(
    replicas: Replicas,
) -> None:
    """It bumps no revision and moves no cursor: only the queue entry tells."""
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(two)
    now = NOW + timedelta(seconds=1)
    found, applied = await replicas.interleaved(
        "commit", one.plan_range("a", LOW, HIGH, now), two.store.apply_plans(plans, NOW)
    )
    assert (found.planned, len(applied.lost), applied.runs) == (25, 1, 0)
    await two.plan_all(now)
    assert await two.slots("a") == minutes(5, NOW, HIGH)


async def test_a_range_that_waited_for_a_plan_makes_only_what_that_left(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    now = NOW + timedelta(seconds=1)
    applied, found = await replicas.interleaved(
        "insert runs", one.store.apply_plans(plans, NOW), two.plan_range("a", LOW, HIGH, now)
    )
    assert (len(applied.won), found.planned, found.existing) == (1, 12, 13)
    await two.plan_all(now)
    assert await two.slots("a") == minutes(5, NOW, HIGH)


async def test_a_range_planned_while_a_plan_is_leased_is_not_skipped_by_that(replicas: Replicas) -> None:
    """The planner's clock is half an hour ahead, and its catch-up gives up what is late there."""
    one, two = replicas.one, replicas.two
    await one.add("a", catch_up=CatchUp.NONE)
    given = await one.lease(at("11:30"))
    await two.plan_range("a", LOW, HIGH, at("10:59"))
    applied = await one.store.apply_plans([plan(item, at("11:30"), Window()) for item in given], at("11:30"))
    assert len(applied.lost) == 1
    assert await two.slots("a") == minutes(5, LOW - timedelta(seconds=1), HIGH)
    assert await two.skips("a") == []


async def test_two_who_ask_for_one_range_at_once_make_it_once(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    now = NOW + timedelta(seconds=1)
    first, second = await replicas.interleaved(
        "commit", one.plan_range("a", LOW, HIGH, now), two.plan_range("a", LOW, HIGH, now)
    )
    assert (first.planned, second.planned, second.existing) == (25, 0, 25)
    assert await two.slots("a") == minutes(5, LOW - timedelta(seconds=1), HIGH)


async def test_a_range_that_waited_for_an_edit_is_of_the_new_rule(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    now = NOW + timedelta(seconds=1)
    _, found = await replicas.interleaved(
        "commit", one.edit("a", "*/10 * * * *", now), two.plan_range("a", LOW, HIGH, now)
    )
    assert found.planned == 13
    assert {(run.scheduled_time, run.revision) for run in await two.runs("a")} == {
        (slot, 2) for slot in minutes(10, LOW - timedelta(seconds=1), HIGH)
    }


async def test_an_edit_that_waited_for_a_range_withdraws_all_of_it(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    now = NOW + timedelta(seconds=1)
    await replicas.interleaved(
        "commit", one.plan_range("a", LOW, HIGH, now), two.edit("a", "*/7 * * * *", now)
    )
    await two.plan_all(now)
    assert await two.slots("a") == minutes(7, NOW, now + timedelta(hours=2))


async def test_a_range_that_waited_for_a_pause_makes_nothing(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    now = NOW + timedelta(seconds=1)
    _, found = await replicas.interleaved("commit", one.pause("a", now), two.plan_range("a", LOW, HIGH, now))
    assert found.refused is Unplanned.PAUSED
    assert await two.runs("a") == []


async def test_a_pause_that_waited_for_a_range_withdraws_all_of_it(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    now = NOW + timedelta(seconds=1)
    await replicas.interleaved("commit", one.plan_range("a", LOW, HIGH, now), two.pause("a", now))
    assert await two.runs("a") == []


async def test_one_name_given_at_once_by_a_range_and_a_plan_goes_to_both_slots(replicas: Replicas) -> None:
    """A collision of 64-bit names, forced: the second waits, begins anew, and takes the long name."""
    one, two = replicas.one, replicas.two
    await one.add("a")
    (first,) = await planned(one)
    await one.add("b")
    name = run_name(key("b"), LOW)
    first = replace(first, runs=(first.runs[0]._replace(name=name), *first.runs[1:]))
    _, found = await replicas.interleaved(
        "commit", one.store.apply_plans([first], NOW), two.plan_range("b", LOW, LOW, NOW)
    )
    assert found.planned == 1
    assert (await two.runs("a"))[0].name == name
    assert [run.name for run in await two.runs("b")] == [long_run_name(key("b"), LOW)]


# two planners


async def test_two_planners_do_not_lease_one_trigger(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    for name in ("a", "b"):
        await one.add(name)
    first, second = await replicas.interleaved("load", one.lease(NOW, 1), two.lease(NOW), waits=False)
    assert [item.trigger.key for item in first] == [key("a")]
    assert [item.trigger.key for item in second] == [key("b")]
    assert await two.lease(NOW) == [], "what is leased is out of the queue until the lease ends"


async def test_a_planner_that_outlived_its_lease_writes_nothing(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    slow = await planned(one)
    later = NOW + timedelta(seconds=31)
    await two.plan(later)
    runs = await two.runs()
    assert (await one.store.apply_plans(slow, later)).runs == 0
    assert await two.runs() == runs


async def test_two_planners_with_one_plan_write_it_once(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    first, second = await replicas.interleaved(
        "insert runs", one.store.apply_plans(plans, NOW), two.store.apply_plans(plans, NOW)
    )
    assert (len(first.won), len(second.lost), second.runs) == (1, 1, 0)
    assert await two.slots() == minutes(5, NOW, NOW + timedelta(hours=2))


async def test_one_name_written_by_two_planners_at_once_goes_to_both_slots(replicas: Replicas) -> None:
    """A collision of 64-bit names, forced: the second waits, then takes the long name."""
    one, two = replicas.one, replicas.two
    await one.add("a")
    (first,) = await planned(one)
    await one.add("b")
    (second,) = await planned(one)
    name = first.runs[0].name
    second = replace(second, runs=(second.runs[0]._replace(name=name), *second.runs[1:]))
    _, applied = await replicas.interleaved(
        "commit", one.store.apply_plans([first], NOW), two.store.apply_plans([second], NOW)
    )
    assert (applied.runs, applied.renamed) == (24, 1)
    assert (await two.runs("a"))[0].name == name
    assert (await two.runs("b"))[0].name == long_run_name(key("b"), at("10:05"))


# claim and settle


async def test_two_claimers_never_exceed_one_allowance(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    rate = Rate(1.0, 5)
    await one.add("a", "* * * * *")
    await one.plan(NOW)
    now = at("10:20")
    await one.look(now)
    first, second = await replicas.interleaved(
        "pick",
        one.claim(now, rate=rate, look=False),
        two.claim(now, rate=rate, owner="two", look=False),
        waits=False,
    )
    assert len(first.runs) == 5
    assert second.runs == ()
    assert second.refill_at is not None
    assert second.refill_at - now < timedelta(seconds=1), "whoever was passed by asks again soon"
    third = await two.claim(now, rate=rate, owner="two", look=False)
    assert third.runs == ()


async def test_claimers_of_different_targets_do_not_wait_for_each_other(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", target="one")
    await one.add("b", target="two")
    await one.plan(NOW)
    now = at("10:05")
    for name in ("one", "two"):
        await one.look(now, name)
    first, second = await replicas.interleaved(
        "take",
        one.claim(now, target="one", look=False),
        two.claim(now, target="two", look=False),
        waits=False,
    )
    assert [item.key for item in (*first.runs, *second.runs)] == [key("a"), key("b")]


async def expired(replicas: Replicas) -> Run:
    """A run whose first claimer, a zombie by now, has let its lease run out."""
    await replicas.two.add("a")
    await replicas.two.plan(NOW)
    (item,) = (await replicas.two.claim(at("10:05"), owner="zombie")).runs
    return item.run


async def test_a_zombies_failure_that_waited_for_the_claim_that_took_over_is_nothing(
    replicas: Replicas,
) -> None:
    one, two = replicas.one, replicas.two
    old = await expired(replicas)
    now = at("10:06")
    claims, settled = await replicas.interleaved(
        "take",
        one.claim(now, look=False),
        two.settle(unavailable(old, now, at("10:07")), now=now),
    )
    assert settled == set()
    (run, *_) = await two.runs("a")
    assert (run.attempt, run.lease_owner, run.due_at) == (2, "me", claims.runs[0].lease_until)


async def test_a_zombies_success_that_waited_for_the_claim_that_took_over_counts(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    old = await expired(replicas)
    now = at("10:06")
    claims, settled = await replicas.interleaved(
        "take", one.claim(now, look=False), two.settle(fired(old, now), now=now)
    )
    assert settled == {old.id}
    late = unavailable(claims.runs[0].run, now, at("10:07"))
    assert await two.settle(late, now=now) == set()
    (run, *_) = await two.runs("a")
    assert (run.state, run.lease_owner) == (RunState.FIRED, None)


async def test_a_run_that_is_being_settled_is_not_claimed(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    old = await expired(replicas)
    now = at("10:06")
    _, claims = await replicas.interleaved(
        "settle", one.settle(fired(old, now), now=now), two.claim(now, look=False), waits=False
    )
    assert claims.runs == ()
    assert (await two.claim(now, look=False)).runs == ()


async def test_a_retry_that_waited_for_a_pause_is_held(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    old = await expired(replicas)
    now = at("10:05:30")
    _, settled = await replicas.interleaved(
        "commit", one.pause("a", now), two.settle(unavailable(old, now, at("10:07")), now=now)
    )
    assert settled == {old.id}
    (run,) = await two.runs("a")
    assert run.state is RunState.HELD


async def test_a_pause_that_waited_for_a_claim_leaves_the_lease_and_stops_its_retry(
    replicas: Replicas,
) -> None:
    one, two = replicas.one, replicas.two
    await expired(replicas)
    now = at("10:06")
    claims, _ = await replicas.interleaved("take", one.claim(now, look=False), two.pause("a", now))
    (item,) = claims.runs
    (run,) = await two.runs("a")
    assert (run.state, run.lease_owner) == (RunState.SCHEDULED, "me")
    await two.settle(unavailable(item.run, now, at("10:07")), now=now)
    (run,) = await two.runs("a")
    assert run.state is RunState.HELD


async def test_an_edit_does_not_take_a_run_that_is_being_claimed(replicas: Replicas) -> None:
    """The editor's clock is a minute behind, so that a claimed slot lies after its edit."""
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.plan(NOW)
    await one.look(at("10:05"))
    claims, _ = await replicas.interleaved(
        "take", one.claim(at("10:05"), look=False), two.edit("a", "0 * * * *", at("10:04"))
    )
    (item,) = claims.runs
    (run,) = await two.runs("a")
    assert (run.id, run.attempt) == (item.run.id, 1)
    await two.plan(at("10:06"))
    assert (await two.slots("a"))[:2] == [at("10:05"), at("11:00")]


# look, prune, backfill


async def test_a_look_that_waited_for_a_backfill_skips_nothing_of_it(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await one.plan(NOW)
    now = at("10:32")
    await one.backfill("a", at("10:05"), at("10:20"), now)
    plans = await planned(one, now)
    replicas.gate.seen.clear()
    replicas.watch.seen.clear()
    await replicas.interleaved("lock taken over", one.store.apply_plans(plans, now), two.look(now))
    assert replicas.gate.seen.count("compare and set") == 1, "it was begun once, and not aborted"
    assert replicas.watch.seen.count("commit") == replicas.watch.seen.count("step 2") == 1
    await two.plan_all(now + timedelta(minutes=1))
    assert await two.slots("a", origin="backfill") == minutes(5, NOW, at("10:20"))
    assert await two.skips("a") == [(at("10:25"), at("10:30"), 2, "catch_up_none")]


async def test_a_backfill_that_waited_for_a_look_loses_no_slot(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await one.plan(NOW)
    now = at("10:32")
    await one.backfill("a", at("10:05"), at("10:20"), now)
    plans = await planned(two, now)
    await replicas.interleaved("commit", one.look(now), two.store.apply_plans(plans, now))
    await two.plan_all(now + timedelta(minutes=1))
    assert await two.slots("a", origin="backfill") == minutes(5, NOW, at("10:20"))
    assert await two.skips("a") == [(at("10:25"), at("10:30"), 2, "catch_up_none")]


async def settled_hour(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    claims = await world.claim(at("11:00"))
    await world.settle(*(fired(item.run, at("11:00")) for item in claims.runs), now=at("11:00"))


async def test_a_backfill_that_waited_for_a_prune_knows_what_is_gone(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await settled_hour(one)
    seen: list[Any] = []

    def note(state: TriggerState) -> Change | None:
        seen.append(state.trigger.pruned_before)
        return None

    pruned, _ = await replicas.interleaved(
        "commit",
        one.store.prune(at("11:01"), NOW, 100),
        two.store.change([key("a")], note, at("11:01"), "ann"),
    )
    assert pruned.runs == 12
    assert seen == [at("11:00") + timedelta(microseconds=1)]


async def test_a_prune_that_waited_for_a_backfill_takes_nothing_from_it(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await settled_hour(one)
    _, pruned = await replicas.interleaved(
        "commit",
        one.backfill("a", at("10:05"), at("11:00"), at("11:01")),
        two.store.prune(at("11:01"), NOW, 100),
    )
    assert pruned.runs == 0
    await two.plan_all(at("11:01"))
    assert await two.slots("a", origin="backfill") == []


async def test_a_prune_by_count_that_waited_for_a_backfill_takes_nothing_from_it(replicas: Replicas) -> None:
    """It found the runs before the backfill began, and asks again under the lock."""
    one, two = replicas.one, replicas.two
    await settled_hour(one)
    _, pruned = await replicas.interleaved(
        "commit",
        one.backfill("a", at("10:05"), at("11:00"), at("11:01")),
        two.store.prune_beyond(2, 0, 0, 100, 100),
    )
    assert pruned.runs == 0
    await two.plan_all(at("11:01"))
    assert await two.slots("a", origin="backfill") == []


async def test_a_prune_and_a_plan_do_not_disturb_each_other(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await settled_hour(one)
    now = at("11:45")
    plans = await planned(one, now)
    assert plans != []
    _, pruned = await replicas.interleaved(
        "insert runs", one.store.apply_plans(plans, now), two.store.prune(at("11:01"), NOW, 100)
    )
    assert pruned.runs == 12
    await two.plan_all(now)
    assert await two.slots("a") == minutes(5, at("11:00"), (await two.trigger("a")).cursor)


# sync


async def test_a_stale_listing_that_waited_for_a_newer_one_is_refused(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.sync(listing(entry("a")))
    _, stale = await replicas.interleaved(
        "commit",
        one.sync(listing(entry("a"), entry("b")), at("10:01"), version=1),
        two.sync(listing(entry("a")), at("10:01"), version=1),
    )
    assert stale.stale
    assert [item.key for item in await two.triggers()] == [key("a"), key("b")]
    assert (await two.trigger("b")).status.value == "active"


async def test_of_two_first_listings_one_is_stale(replicas: Replicas) -> None:
    """There is no row to lock yet: the second's insert loses, and it begins anew."""
    one, two = replicas.one, replicas.two
    first, second = await replicas.interleaved(
        "commit", one.sync(listing(entry("a")), version=0), two.sync(listing(entry("b")), version=0)
    )
    assert first.written
    assert second.stale
    assert [item.key for item in await two.triggers()] == [key("a")]


async def test_one_trigger_created_by_two_people_at_once_is_theirs_who_came_first(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("other")

    def given(cron: str) -> Listing:
        return Listing(
            "api",
            (TargetSpec("work", "http"),),
            (DeploymentSpec(DeploymentKey("default", "default", "a"), "work"),),
            (TriggerEntry(key("a"), spec(cron)),),
        )

    async def second() -> str:
        try:
            await two.store.create_trigger(given("1 * * * *"), NOW, "bob", expected_revision=0)
        except StaleVersion:
            return "stale"
        return "created"

    _, outcome = await replicas.interleaved(
        "commit", one.store.create_trigger(given("0 * * * *"), NOW, "ann", expected_revision=0), second()
    )
    assert outcome == "stale"
    rows = await two.store.fetch(
        select(t.trigger_revision.c.who).where(t.trigger_revision.c.trigger_id == (await two.trigger("a")).id)
    )
    assert [row.who for row in rows] == ["ann"]


async def test_one_manual_request_sent_twice_at_once_is_one_run(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    request = ManualRequest(key("a"), "one", None, "ann")
    (first, new), (second, again) = await replicas.interleaved(
        "commit", one.store.create_manual(request, NOW), two.store.create_manual(request, NOW)
    )
    assert (first.id, new, again) == (second.id, True, False)


async def test_an_idempotency_key_taken_by_two_at_once_is_one_of_theirs(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    first, second = await replicas.interleaved(
        "commit", one.store.remember("k", "d", NOW), two.store.remember("k", "d", NOW)
    )
    assert first is None
    assert second is not None


async def test_a_local_execution_begun_by_two_at_once_begins_once(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    begun = await replicas.interleaved(
        "commit", one.store.local_begin("r", "one", NOW), two.store.local_begin("r", "two", NOW)
    )
    assert begun == (True, False)


# migrations


async def test_two_migrations_at_once_come_one_after_the_other(postgres: PostgresServer) -> None:
    async with postgres.database() as url:
        done = await asyncio.gather(*(migrate_postgres(url) for _ in range(3)))
        head = migrations.head()
        assert sorted(done, key=str) == sorted([(None, head), (head, head), (head, head)], key=str)
        async with opened(url) as world:
            await world.add("a")
            await world.plan(NOW)
            assert await world.slots("a") == minutes(5, NOW, at("12:00"))


async def test_two_claims_for_two_targets_begin_one_run_of_a_trigger_at_a_time(replicas: Replicas) -> None:
    """An edit has moved it: an owed slot is the old target's, the next one the new target's."""
    one, two = replicas.one, replicas.two
    await one.add("b", target="other")
    await one.add("a", overlap=Overlap.QUEUE)
    await one.plan_all(NOW)
    await one.edit("a", "*/5 * * * *", at("10:06"), target="other", overlap=Overlap.QUEUE)
    await one.plan_all(at("10:06"))
    for target in ("work", "other"):
        await one.look(at("10:10"), target)

    claims, others = await replicas.interleaved(
        "commit",
        one.claim(at("10:10"), look=False),
        two.claim(at("10:10"), target="other", look=False),
        waits=False,
    )
    assert [(item.key.deployment, item.run.scheduled_time) for item in claims.runs] == [("a", at("10:05"))]
    assert {item.key.deployment for item in others.runs} == {"b"}
    # It was given back, not lost: now that the other is under way, it waits for that.
    assert (await two.claim(at("10:10"), target="other", look=False)).runs == ()
    (waiting,) = [run for run in await two.runs("a") if run.waits_for is not None]
    assert (waiting.scheduled_time, waiting.attempt) == (at("10:10"), 0)
    assert waiting.waits_for == claims.runs[0].run.id


async def test_an_end_that_comes_while_a_claim_judges_is_seen_or_wakes(replicas: Replicas) -> None:
    """The report waits for the judge, and then finds who waits: nobody sleeps through the end."""
    one, two = replicas.one, replicas.two
    await one.add("a", overlap=Overlap.QUEUE)
    await one.plan(NOW)
    (first,) = (await one.claim(at("10:05"))).runs
    await one.settle(replace(fired(first.run, at("10:05")), reports=True, exclusive=True), now=at("10:05"))
    ended = Report(f"default/default/{first.run.name}", Result.SUCCEEDED, at("10:10"))
    await one.look(at("10:10"))

    claims, written = await replicas.interleaved(
        "commit", one.claim(at("10:10"), look=False), two.store.report([ended], at("10:10"))
    )
    assert (claims.runs, written) == ((), 1)
    (second,) = (await two.claim(at("10:10"), look=False)).runs
    assert second.run.scheduled_time == at("10:10")
