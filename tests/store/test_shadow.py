"""Shadow, on every store: whose a slot is, is kept with its revision, and no call is a way to be settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import select

from horarium.core import trigger as decisions
from horarium.core.outcome import Outcome
from horarium.core.run import Run, RunState
from horarium.core.spec import Rate
from horarium.store import tables as t
from horarium.store.base import Changed, ManualRequest
from tests.store.world import NOW, World, at, entry, fired, key, listing, minutes

Given = dict[str, Any]


async def shadow(world: World, name: str, on: bool, now: datetime) -> list[Changed]:
    return await world.change(name, lambda state: decisions.shadow(state, on, "ann", now), now)


def shadowed(run: Run, now: datetime) -> Outcome:
    return Outcome(run.id, run.attempt, RunState.SHADOWED, "shadowed", now, now)


async def decide_all(world: World, now: datetime) -> None:
    """What an executor does with all that is due: nobody is called for what is in shadow."""
    claims = await world.claim(now)
    outcomes = [shadowed(item.run, now) if item.shadow else fired(item.run, now) for item in claims.runs]
    assert await world.settle(*outcomes, now=now) == {item.run.id for item in claims.runs}


async def test_a_claim_says_which_runs_are_in_shadow(world: World) -> None:
    await world.add("real")
    await world.add("other")
    await shadow(world, "other", True, NOW)
    await world.plan(NOW)
    claims = await world.claim(at("10:05"))
    assert {item.key.deployment: item.shadow for item in claims.runs} == {"real": False, "other": True}


async def test_a_run_that_nobody_was_called_for_ends_settled_and_not_fired(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await decide_all(world, at("10:05"))
    (run,) = await world.runs("a", state="shadowed")
    assert (run.scheduled_time, run.settled_at, run.fired_at) == (at("10:05"), at("10:05"), None)
    assert not (await world.claim(at("10:06"))).runs


async def test_the_instant_of_a_cut_over_parts_the_slots(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await decide_all(world, at("10:05"))
    await shadow(world, "a", False, at("10:10"))
    await world.plan_all(at("10:10"))
    await decide_all(world, at("10:10"))
    await decide_all(world, at("10:15"))
    assert await world.slots("a", state="shadowed") == [at("10:05"), at("10:10")]
    assert await world.slots("a", state="fired") == [at("10:15")]


async def test_a_cut_over_at_a_slot_that_was_claimed_ahead_begins_after_it(world: World) -> None:
    """An executor whose clock is ahead has decided a slot in shadow: the other side has it, too."""
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await decide_all(world, at("10:05"))
    (done,) = await shadow(world, "a", False, at("10:04:58"))
    assert done.change.revision is not None
    assert done.change.revision.effective_from == at("10:05")


async def test_new_triggers_start_where_their_listing_says_and_no_listing_moves_them(world: World) -> None:
    given = listing(entry("a"), replace(entry("b"), shadow=False), shadow=True)
    await world.sync(given)
    assert [row.shadow for row in await world.triggers()] == [True, False]
    await world.sync(
        listing(entry("a", "*/10 * * * *"), entry("b", "*/10 * * * *"), shadow=False), at("10:01")
    )
    assert [row.shadow for row in await world.triggers()] == [True, False]
    revisions = await world.rows(t.trigger_revision)
    assert [(row.number, row.shadow) for row in revisions] == [(1, True), (2, True), (1, False), (2, False)]


async def test_a_trigger_that_was_deleted_comes_back_where_it_was(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b"), shadow=True))
    await shadow(world, "b", False, NOW)
    await world.sync(listing(), at("10:01"), allow_withdraw=True)
    await world.sync(listing(entry("a"), entry("b"), shadow=False), at("10:02"))
    assert [(row.shadow, row.status.value) for row in await world.triggers()] == [
        (True, "active"),
        (False, "active"),
    ]


async def test_only_runs_that_fire_take_a_token(world: World) -> None:
    for name in ("a", "b", "real"):
        await world.add(name)
    await shadow(world, "a", True, NOW)
    await shadow(world, "b", True, NOW)
    await world.plan(NOW)
    claims = await world.claim(at("10:05"), rate=Rate(0.001, 3))
    assert len(claims.runs) == 3
    assert (await world.allowance()).tokens == pytest.approx(2, abs=0.01)


async def test_a_claim_without_a_token_takes_nothing_in_shadow_either(world: World) -> None:
    """It would look at runs without bound; they are taken with the next token."""
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await world.run_sql(t.target_allowance.update().values(tokens=0.0, refilled_at=at("10:05")))
    claims = await world.claim(at("10:05"), rate=Rate(0.5, 3))
    assert (claims.runs, claims.refill_at) == ((), at("10:05:02"))


async def test_runs_that_people_ask_for_are_not_in_shadow(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.store.create_manual(ManualRequest(key("a"), "k", None, "ann"), at("10:01"))
    (item,) = (await world.claim(at("10:01"))).runs
    assert not item.shadow


async def test_a_backfill_of_the_time_before_the_trigger_fires(world: World) -> None:
    """Its first revision was in shadow and decides what lies before it; but a backfill is a person's word."""
    await world.sync(listing(entry("a"), shadow=True))
    await shadow(world, "a", False, NOW)
    await world.backfill("a", at("09:50"), at("09:55"), NOW)
    await world.plan_all(NOW)
    claims = await world.claim(at("10:00:01"))
    assert [(item.run.scheduled_time, item.shadow) for item in claims.runs] == [
        (at("09:50"), False),
        (at("09:55"), False),
    ]


async def test_retention_takes_what_was_shadowed(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await decide_all(world, at("10:05"))
    assert (await world.store.prune(at("11:00"), at("11:00"), 100)).runs == 1


async def test_a_pause_holds_what_is_in_shadow_and_a_resume_lets_it_be_decided(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await world.plan(NOW)
    await world.pause("a", at("10:05"))
    await world.resume("a", at("10:07"))
    await world.plan_all(at("10:07"))
    await decide_all(world, at("10:07"))
    assert await world.slots("a", state="shadowed") == [at("10:05")]
    assert (await world.trigger("a")).shadow


async def test_shadow_on_twice_writes_once(world: World) -> None:
    await world.add("a")
    assert len(await shadow(world, "a", True, NOW)) == 1
    before = await world.everything()
    assert await shadow(world, "a", True, at("10:01")) == []
    assert await world.everything() == before


async def test_back_and_forth_every_slot_has_one_side(world: World) -> None:
    await world.add("a", "*/2 * * * *")
    on = False
    for now in minutes(1, NOW, at("10:40")):
        if now.minute % 5 == 0:
            on = not on
            await shadow(world, "a", on, now)
        await world.plan_all(now)
        await decide_all(world, now)
    ours = await world.slots("a", state="fired")
    theirs = await world.slots("a", state="shadowed")
    assert sorted(ours + theirs) == minutes(2, NOW, at("10:40"))
    # On after 10:05, off after 10:10, on after 10:15 …; a slot at the instant is still the old side's.
    assert theirs == [
        slot for slot in minutes(2, NOW, at("10:40")) if slot.minute % 10 > 5 or slot.minute % 10 == 0
    ]


async def test_the_audit_says_who_cut_over(world: World) -> None:
    await world.add("a")
    await shadow(world, "a", True, NOW)
    await shadow(world, "a", False, at("10:01"))
    rows = await world.store.fetch(select(t.audit.c.what, t.audit.c.who).order_by(t.audit.c.id))
    assert [tuple(row) for row in rows][-2:] == [("shadow-on", "ann"), ("shadow-off", "ann")]
