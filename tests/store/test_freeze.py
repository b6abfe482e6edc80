"""Freeze and release: what is stopped, what is seen meanwhile, and what becomes of what was owed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from horarium.core import trigger as decisions
from horarium.core.freeze import EVERYTHING, GuardState, Owed, Scope
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import Window, plan
from horarium.core.run import RunState
from horarium.core.spec import CatchUp, TriggerEntry
from horarium.errors import Conflict, NotFound
from horarium.store import tables as t
from horarium.store.base import Claims, Demand, Frozen, ManualRequest, Released
from tests.store.world import (
    ANY,
    GRACE,
    LATE,
    LEASE,
    NOW,
    World,
    at,
    entry,
    key,
    listing,
    minutes,
    spec,
    unavailable,
)

WORK = Scope.target("work")


def deployment(name: str = "a") -> Scope:
    return Scope.deployment(DeploymentKey("default", "default", name))


PROJECT = Scope.project("default")


# a target


async def test_a_frozen_target_is_not_claimed_from_but_looked_at(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    assert await world.store.freeze(WORK, "disk", "ann", NOW) == Frozen(targets=1)
    claims = await world.claim(at("10:20"))
    assert (claims.runs, claims.more) == ((), False)
    assert (await world.allowance()).looked_at == at("10:20")
    assert [row.frozen for row in await world.store.targets() if row.spec.name == "work"] == [True]
    assert await world.store.next_due(NOW) is None
    (row,) = await world.rows(t.freeze)
    assert (row.kind, row.key, row.note, row.who, row.at) == ("target", "work", "disk", "ann", NOW)


@pytest.mark.parametrize(
    ("owed", "flows", "skipped"),
    [
        (Owed.ALL, ["10:05", "10:10", "10:15"], None),
        (Owed.LATEST, ["10:15"], ("10:05", "10:10", 2)),
        (Owed.DROP, [], ("10:05", "10:15", 3)),
    ],
)
async def test_a_release_asks_what_becomes_of_what_is_owed(
    world: World, owed: Owed, flows: list[str], skipped: tuple[str, str, int] | None
) -> None:
    await world.add("a", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.store.freeze(WORK, None, "ann", NOW)
    now = at("10:17")
    for minute in range(1, 18):  # the service goes on looking, so nothing of this is downtime
        await world.claim(NOW + minute * timedelta(minutes=1))
    found = await world.store.release(WORK, owed, "bob", now)
    assert found == Released(released=len(flows), skipped=3 - len(flows))
    assert slots_of(await world.claim(now)) == [at(text) for text in flows]
    said = await world.skips("a")
    if skipped is None:
        assert said == []
    else:
        assert said == [(at(skipped[0]), at(skipped[1]), skipped[2], "released")]
    assert await world.rows(t.freeze) == []
    assert await world.slots("a", state="scheduled") == [
        *[at(text) for text in flows],
        *minutes(5, now, at("12:00")),
    ]


async def test_latest_is_judged_for_each_trigger(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.add("b", "*/10 * * * *")
    await world.plan(NOW)
    await world.store.freeze(WORK, None, "ann", NOW)
    await world.store.release(WORK, Owed.LATEST, "ann", at("10:17"))
    claims = await world.claim(at("10:17"))
    assert sorted((item.key.deployment, item.run.scheduled_time) for item in claims.runs) == [
        ("a", at("10:15")),
        ("b", at("10:10")),
    ]


async def test_a_release_leaves_tries_backfills_and_manual_runs(world: World) -> None:
    """They were asked for, or may exist over there: none of them is given up."""
    await world.add("a")
    await world.plan(NOW)
    (tried,) = (await world.claim(at("10:05"))).runs
    await world.settle(unavailable(tried.run, at("10:06"), at("10:07")), now=at("10:06"))
    await world.store.freeze(WORK, None, "ann", at("10:06"))
    await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), at("10:08"))
    await world.backfill("a", at("09:50"), at("09:55"), at("10:08"))
    await world.plan_all(at("10:08"))
    assert (await world.store.release(WORK, Owed.DROP, "ann", at("10:11"))).skipped == 1
    assert sorted(slots_of(await world.claim(at("10:11")))) == [
        at("09:50"),
        at("09:55"),
        at("10:05"),
        at("10:08"),
    ]


async def test_what_a_person_released_does_not_expire_in_a_gap(world: World) -> None:
    await world.add("a", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.store.freeze(WORK, None, "ann", NOW)
    await world.store.release(WORK, Owed.ALL, "ann", at("10:17"))
    assert await world.look(at("10:32")) == (timedelta(minutes=32), 3)
    assert slots_of(await world.claim(at("10:32")))[:3] == [at("10:05"), at("10:10"), at("10:15")]


async def test_everything_is_every_target_also_one_that_comes_later(world: World) -> None:
    await world.add("a", target="one")
    await world.add("b", target="two")
    await world.plan(NOW)
    found = await world.store.freeze(EVERYTHING, "restored", "ann", NOW)
    assert found.targets == len(await world.rows(t.target_allowance))
    await world.add("c", target="three")
    await world.plan(NOW)
    for name in ("one", "two", "three"):
        assert (await world.claim(at("10:05"), target=name)).runs == ()
    await world.store.release(Scope.target("one"), Owed.ALL, "ann", at("10:05"))
    assert len((await world.claim(at("10:05"), target="one")).runs) == 1
    await world.store.release(EVERYTHING, Owed.DROP, "ann", at("10:06"))
    assert [skip[3] for skip in await world.skips()] == ["released", "released"]
    assert not any(row.frozen for row in await world.store.targets())
    await world.add("d", target="four", now=at("10:06"))
    assert not (await world.allowance("four")).frozen


@pytest.mark.parametrize("scope", [WORK, EVERYTHING, deployment(), PROJECT], ids=str)
async def test_a_release_of_what_is_not_frozen_is_refused(world: World, scope: Scope) -> None:
    await world.add("a")
    await world.plan(NOW)
    before = await world.everything()
    with pytest.raises(Conflict, match="not frozen"):
        await world.store.release(scope, Owed.DROP, "ann", at("10:05"))
    assert await world.everything() == before


@pytest.mark.parametrize("scope", [Scope.target("no"), deployment("no"), Scope.project("no")], ids=str)
async def test_what_is_not_there_is_not_frozen(world: World, scope: Scope) -> None:
    await world.add("a")
    before = await world.everything()
    with pytest.raises(NotFound):
        await world.store.freeze(scope, None, "ann", NOW)
    with pytest.raises(NotFound):
        await world.store.release(scope, Owed.ALL, "ann", NOW)
    assert await world.everything() == before


async def test_what_was_withdrawn_is_not_frozen_but_its_freeze_ends(world: World) -> None:
    """A freeze of a target that nobody uses any more would stand in `status` and stop nothing."""
    await world.sync(listing(entry("a", target="old"), target="old"))
    await world.store.freeze(Scope.target("old"), None, "ann", NOW)
    await world.sync(listing(source="team.yaml", target="new"), at("10:01"), allow_withdraw=True)
    await world.store.release(Scope.target("old"), Owed.ALL, "ann", at("10:02"))
    before = await world.everything()
    for scope in (Scope.target("old"), deployment("a"), PROJECT):
        with pytest.raises(NotFound, match=f"no {scope.kind}"):
            await world.store.freeze(scope, None, "ann", at("10:03"))
    assert await world.everything() == before


async def test_a_withdrawn_target_with_runs_that_wait_is_frozen(world: World) -> None:
    await world.sync(listing(entry("a", target="old"), target="old"))
    await world.plan(NOW)
    moved = listing(entry("a", target="new"), target="new")
    await world.sync(moved, at("10:07"))
    assert [row.spec.name for row in await world.store.targets() if row.spec.name == "old"] == ["old"]
    await world.store.freeze(Scope.target("old"), None, "ann", at("10:07"))
    assert (await world.claim(at("10:08"), target="old")).runs == ()


async def test_a_freeze_again_takes_the_new_note(world: World) -> None:
    await world.add("a")
    await world.store.freeze(PROJECT, "one", "ann", NOW)
    await world.store.freeze(PROJECT, "two", "bob", at("10:01"))
    assert [(row.note, row.who) for row in await world.rows(t.freeze)] == [("two", "bob")]
    assert [(row.who, row.what, row.kind, row.key) for row in await world.rows(t.audit)][1:] == [
        ("ann", "freeze", "project", "default"),
        ("bob", "freeze", "project", "default"),
    ]


# a deployment, a project


async def test_a_frozen_deployment_holds_all_without_a_live_lease(world: World) -> None:
    await world.add("a")
    await world.add("b")
    await world.plan(NOW)
    (under_way,) = (await world.claim(at("10:05"), 1)).runs
    held = await world.store.freeze(deployment(under_way.key.deployment), None, "ann", at("10:05:30"))
    other = "b" if under_way.key.deployment == "a" else "a"
    mine = under_way.key.deployment
    assert held == Frozen(triggers=1, held=23)
    assert await world.slots(mine, state="held") == minutes(5, at("10:05"), at("12:00"))
    assert await world.slots(mine, state="scheduled") == [at("10:05")]
    assert await world.slots(other, state="held") == []
    assert (await world.trigger(mine)).frozen
    assert not (await world.trigger(other)).frozen


async def test_while_frozen_all_is_planned_as_held(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), at("10:01"))
    await world.backfill("a", at("09:50"), at("09:55"), at("10:02"))
    await world.plan_all(at("11:20"))
    assert {run.state for run in await world.runs()} == {RunState.HELD}
    assert await world.slots(origin="backfill") == [at("09:50"), at("09:55")]
    assert (await world.slots(origin="schedule"))[-1] > at("12:30")
    assert (await world.claim(at("11:20"))).runs == ()


async def test_a_backfill_that_takes_a_held_run_over_leaves_it_held(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.backfill("a", at("10:05"), at("10:10"), at("10:12"))
    await world.plan_all(at("10:12"))
    assert {run.state for run in await world.runs(origin="backfill")} == {RunState.HELD}
    await world.store.release(PROJECT, Owed.DROP, "ann", at("10:13"))
    assert slots_of(await world.claim(at("10:13"))) == [at("10:05"), at("10:10")]


@pytest.mark.parametrize(
    ("owed", "flows"),
    [(Owed.ALL, ["10:05", "10:10", "10:15"]), (Owed.LATEST, ["10:15"]), (Owed.DROP, [])],
)
async def test_the_release_of_a_deployment_asks_the_same(world: World, owed: Owed, flows: list[str]) -> None:
    await world.add("a", catch_up=CatchUp.LATEST)
    await world.plan(NOW)
    await world.store.freeze(deployment(), None, "ann", NOW)
    await world.look(at("10:17"))
    found = await world.store.release(deployment(), owed, "ann", at("10:17"))
    assert found.skipped == 3 - len(flows)
    assert slots_of(await world.claim(at("10:17"))) == [at(text) for text in flows]
    assert await world.slots("a", state="held") == []
    assert sum(skip[2] for skip in await world.skips()) == found.skipped
    assert {skip[3] for skip in await world.skips()} <= {"released"}
    assert not (await world.trigger()).frozen


async def test_a_retry_settles_as_held_and_a_lost_lease_is_held(world: World) -> None:
    await world.add("a")
    await world.add("b")
    await world.plan(NOW)
    claimed = (await world.claim(at("10:05"))).runs
    await world.store.freeze(PROJECT, None, "ann", at("10:05"))
    await world.settle(unavailable(claimed[0].run, at("10:05"), at("10:06")), now=at("10:05"))
    assert await world.slots(state="scheduled") == [at("10:05")]
    assert (await world.claim(at("10:07"))).runs == ()
    assert await world.slots(state="scheduled") == []
    lost = [run for run in await world.runs(state="held") if run.id == claimed[1].run.id]
    assert [(run.attempt, run.outcome_unknown) for run in lost] == [(1, True)]
    await world.store.release(PROJECT, Owed.DROP, "ann", at("10:08"))
    assert slots_of(await world.claim(at("10:08"))) == [at("10:05"), at("10:05")]


async def test_a_failed_run_that_is_retried_by_hand_is_held(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.settle(replace(unavailable(claimed.run, at("10:05"), NOW), state=RunState.FAILED), now=NOW)
    await world.store.freeze(PROJECT, None, "ann", at("10:06"))
    await world.store.change_run(
        claimed.run.id, lambda state, run: decisions.retry_run(state, run, at("10:07")), at("10:07"), "ann"
    )
    assert at("10:05") in await world.slots(state="held")


@pytest.mark.parametrize("bump", [timedelta(), timedelta(seconds=1)])
async def test_a_plan_that_was_computed_before_a_freeze_loses(world: World, bump: timedelta) -> None:
    await world.add("a")
    (given,) = await world.lease(NOW)
    computed = plan(given, NOW, Window())
    await world.store.freeze(PROJECT, None, "ann", NOW + bump)
    assert (await world.store.apply_plans([computed], NOW)).won == frozenset()
    await world.plan_all(NOW + timedelta(seconds=31))
    assert {run.state for run in await world.runs()} == {RunState.HELD}


async def test_a_plan_that_was_computed_before_a_release_loses(world: World) -> None:
    await world.add("a")
    await world.store.freeze(PROJECT, None, "ann", NOW)
    (given,) = await world.lease(NOW + timedelta(seconds=1))
    computed = plan(given, NOW + timedelta(seconds=1), Window())
    await world.store.release(PROJECT, Owed.ALL, "ann", NOW + timedelta(seconds=2))
    assert (await world.store.apply_plans([computed], NOW)).won == frozenset()
    await world.plan_all(NOW + timedelta(seconds=35))
    assert {run.state for run in await world.runs()} == {RunState.SCHEDULED}


async def test_two_freezes_are_two_questions(world: World) -> None:
    await world.add("a")
    await world.add("b")
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.store.freeze(deployment("a"), None, "ann", NOW)
    await world.store.release(PROJECT, Owed.ALL, "ann", at("10:01"))
    assert [item.frozen for item in await world.triggers()] == [True, False]
    assert await world.slots("a", state="scheduled") == []
    assert await world.slots("b", state="held") == []
    await world.store.release(deployment("a"), Owed.ALL, "ann", at("10:02"))
    assert await world.slots("a", state="held") == []


async def test_an_edit_under_a_freeze_takes_the_later_held_runs(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.edit("a", "*/20 * * * *", at("10:07"))
    await world.plan_all(at("10:07"))
    assert (await world.slots("a", state="held"))[:3] == [at("10:05"), at("10:20"), at("10:40")]
    assert await world.slots("a", state="scheduled") == []


async def test_pause_and_resume_under_a_freeze_release_nothing(world: World) -> None:
    await world.add("a", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.pause("a", at("10:07"))
    await world.resume("a", at("10:22"))
    await world.plan_all(at("10:22"))
    assert await world.slots("a", state="scheduled") == []
    assert (await world.slots("a", state="held"))[:2] == [at("10:05"), at("10:25")]
    await world.store.release(PROJECT, Owed.ALL, "ann", at("10:23"))
    assert slots_of(await world.claim(at("10:23"))) == [at("10:05")]


async def test_what_a_pause_holds_outlasts_the_freeze(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.pause("a", at("10:07"))
    await world.store.freeze(PROJECT, None, "ann", at("10:08"))
    await world.backfill("a", at("09:50"), at("09:55"), at("10:08"))
    await world.plan_all(at("10:08"))
    assert await world.store.release(PROJECT, Owed.DROP, "ann", at("10:09")) == Released(released=2)
    assert await world.slots("a", state="held") == [at("10:05")]
    assert slots_of(await world.claim(at("10:09"))) == [at("09:50"), at("09:55")]
    await world.resume("a", at("10:09:30"))
    assert slots_of(await world.claim(at("10:09:30"))) == [at("10:05")]


async def test_a_delete_under_a_freeze_accounts_for_everything(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.delete("a", at("10:12"))
    assert await world.runs("a") == []
    assert sum(skip[2] for skip in await world.skips("a") if skip[3] == "deleted") == 2
    await world.store.release(PROJECT, Owed.DROP, "ann", at("10:13"))


async def test_what_is_added_or_revived_or_moved_into_a_frozen_place_is_frozen(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    await world.plan(NOW)
    await world.delete("b", NOW)
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.sync(listing(entry("a"), entry("b"), entry("c")), at("10:01"))
    await world.plan_all(at("10:01"))
    assert [item.frozen for item in await world.triggers()] == [True, True, True]
    assert await world.slots(state="scheduled") == []


async def test_a_rename_takes_a_trigger_into_a_freeze(world: World) -> None:
    await world.sync(listing(entry("icy"), entry("a")))
    await world.plan(NOW)
    await world.store.freeze(deployment("icy"), None, "ann", NOW)
    night = TriggerKey("default", "default", "icy", "night")
    moved = TriggerEntry(night, spec(), renamed_from="a/default")
    await world.sync(listing(entry("icy"), moved), at("10:07"))
    (there,) = [item for item in await world.triggers() if item.key == night]
    assert there.frozen
    await world.plan_all(at("10:07"))
    assert await world.slots(state="scheduled") == []


async def test_a_renamed_trigger_leaves_the_freeze_of_its_old_deployment(world: World) -> None:
    """What it leaves is there still; it comes to another that is there already."""
    night = TriggerKey("default", "default", "icy", "night")
    await world.sync(listing(entry("icy"), TriggerEntry(night, spec()), entry("warm")))
    await world.plan(NOW)
    await world.store.freeze(deployment("icy"), None, "ann", NOW)
    moved = TriggerEntry(TriggerKey("default", "default", "warm", "night"), spec(), renamed_from="icy/night")
    await world.sync(listing(entry("icy"), moved, entry("warm")), at("10:07"))
    assert [str(item.key)[16:] for item in await world.triggers() if item.frozen] == ["icy/default"]
    assert await world.slots("icy", state="scheduled") == []
    assert slots_of(await world.claim(at("10:07"))) == [at("10:05"), at("10:05")]


async def test_a_deployment_that_is_renamed_is_frozen_still(world: World) -> None:
    await world.sync(listing(entry("icy")))
    await world.plan(NOW)
    await world.store.freeze(deployment("icy"), "the lake is down", "ann", NOW)
    night = TriggerEntry(TriggerKey("default", "default", "ice", "night"), spec())
    await world.sync(listing(entry("ice", renamed_from="icy/default"), night), at("10:07"))
    await world.plan_all(at("10:07"))
    assert [item.frozen for item in await world.triggers()] == [True, True]
    assert await world.slots(state="scheduled") == []
    assert slots_of(await world.claim(at("10:07"))) == []
    (row,) = await world.rows(t.freeze)
    assert (row.key, row.note, row.who, row.at) == ("default/default/ice", "the lake is down", "ann", NOW)
    await world.store.release(deployment("ice"), Owed.ALL, "ann", at("10:08"))
    assert [item.frozen for item in await world.triggers()] == [False, False]
    assert slots_of(await world.claim(at("10:08"))) == [at("10:05")]


async def test_a_frozen_deployment_that_becomes_two_is_frozen_in_both(world: World) -> None:
    two = ("one", "two")
    keys = [TriggerKey("default", "default", "icy", name) for name in two]
    await world.sync(listing(*(TriggerEntry(item, spec()) for item in keys)))
    await world.store.freeze(deployment("icy"), None, "ann", NOW)
    await world.sync(listing(*(entry(name, renamed_from=f"icy/{name}") for name in two)), at("10:07"))
    assert sorted(row.key for row in await world.rows(t.freeze)) == [
        f"default/default/{name}" for name in two
    ]
    assert [item.frozen for item in await world.triggers()] == [True, True]


async def test_a_former_name_is_frozen_while_a_trigger_is_there(world: World) -> None:
    """A deleted one may have runs that the freeze holds, and only its release lets them go."""
    night = TriggerKey("default", "default", "icy", "night")
    await world.sync(listing(entry("icy"), TriggerEntry(night, spec())))
    await world.plan(NOW)
    await world.store.freeze(deployment("icy"), None, "ann", NOW)
    await world.sync(listing(entry("ice", renamed_from="icy/default")), at("10:07"))
    assert sorted(row.key for row in await world.rows(t.freeze)) == [
        "default/default/ice",
        "default/default/icy",
    ]
    await world.store.release(deployment("icy"), Owed.ALL, "ann", at("10:08"))
    assert slots_of(await world.claim(at("10:08"))) == []


# the catch-up guard


async def claim(world: World, now: datetime, guard: int = 10, wanted: int = ANY) -> Claims:
    """A claim as the executor makes it: a look where one is needed, then the claim."""
    demand = [Demand(await world.target_id(), wanted, None)]
    for _ in range(2):
        claims = await world.store.claim(
            demand,
            now,
            now + LEASE,
            "me",
            backlog_first=False,
            late_after=LATE,
            grace=GRACE,
            guard=guard,
        )
        for target in claims.unlooked:
            await world.store.look(target, now, GRACE, guard=guard)
        if not claims.unlooked:
            return claims
    raise AssertionError("looked, and still unlooked")


def slots_of(claims: Claims) -> list[datetime]:
    return [item.run.scheduled_time for item in claims.runs]


async def guard_of(world: World) -> tuple[str, datetime | None, datetime | None]:
    row = await world.allowance()
    return row.guard_state, row.guard_from, row.guard_until


async def test_few_owed_runs_of_a_gap_just_flow(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    now = at("10:52")
    claims = await claim(world, now)
    assert (len(claims.runs), claims.guarded) == (10, ())
    assert (await guard_of(world))[0] == GuardState.OPEN
    await world.plan_all(now)
    await claim(world, now)
    assert (await guard_of(world))[0] == GuardState.NONE


async def test_many_owed_runs_of_a_gap_are_held_while_on_time_runs_flow(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    now = at("10:57")
    claims = await claim(world, now)
    assert (claims.runs, claims.guarded) == ((), (await world.target_id(),))
    assert await guard_of(world) == ("held", NOW, now)
    assert await world.slots(state="held") == minutes(5, NOW, now)
    assert [row.guarded for row in await world.store.targets() if row.spec.name == "work"] == [True]
    assert slots_of(await claim(world, at("11:00"), 10)) == []  # a gap again: the guard covers it too
    for minute in range(1, 6):
        await claim(world, at("11:00") + minute * timedelta(minutes=1))
    assert await world.slots(state="held") == minutes(5, NOW, at("11:00"))
    assert await world.slots(origin="schedule", lease_owner="me") == [at("11:05")]


async def test_what_catch_up_plans_later_for_the_gap_counts_and_is_held(world: World) -> None:
    window = Window(max_catchup_runs=4)
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW, Window(min_runs=1, min_scheduled_time=timedelta(minutes=1)))
    now = at("13:02")
    planned = slots_of(await claim(world, now, wanted=0))
    assert planned == []
    for _ in range(4):
        await world.plan(now, window)
        assert (await claim(world, now, wanted=0)).runs == ()
    assert (await guard_of(world))[0] == GuardState.HELD
    with pytest.raises(Conflict, match="catch-up still plans"):
        await world.store.release(WORK, Owed.DROP, "ann", now)
    await world.plan_all(now, window)
    await claim(world, now)
    assert await world.slots(state="held") == minutes(5, NOW, now)
    found = await world.store.release(WORK, Owed.LATEST, "ann", now)
    assert (found.released, found.skipped) == (1, len(minutes(5, NOW, now)) - 1)
    assert slots_of(await claim(world, now)) == [at("13:00")]
    assert (await guard_of(world))[0] == GuardState.NONE


async def test_a_backlog_of_our_own_limiter_never_trips_it(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = NOW
    while now < at("10:40"):
        now += timedelta(minutes=1)
        assert (await claim(world, now, wanted=0)).guarded == ()
    claims = await claim(world, at("10:43"))  # a short gap: only what came due in it is judged
    assert (len(claims.runs), claims.guarded) == (43, ())


async def test_a_guard_that_is_off_holds_nothing(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    assert len((await claim(world, at("11:40"), guard=0)).runs) == 100
    assert await guard_of(world) == ("none", None, None)


async def test_a_guard_lets_other_targets_and_origins_alone(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.add("b", "*/5 * * * *", target="other")
    await world.plan(NOW)
    await world.backfill("a", at("09:50"), at("09:55"), NOW)
    await world.plan_all(NOW + timedelta(seconds=31))
    now = at("10:57")
    assert slots_of(await claim(world, now)) == [at("09:50"), at("09:55")]
    assert await world.slots("b", state="held") == []


async def test_a_paused_or_frozen_trigger_stays_held_when_the_guard_is_released(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.add(name, "*/5 * * * *")
    await world.plan(NOW)
    now = at("10:57")
    await claim(world, now)
    await world.pause("a", now)
    await world.store.freeze(deployment("b"), None, "ann", now)
    found = await world.store.release(WORK, Owed.DROP, "ann", now)
    assert found.skipped == 11
    assert {run.trigger_id for run in await world.runs(state="held") if run.scheduled_time < now} == {
        (await world.trigger(name)).id for name in ("a", "b")
    }


async def test_a_release_of_everything_answers_every_guard(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await claim(world, at("10:57"))
    found: Sequence[datetime] = await world.slots(state="held")
    assert len(found) == 11
    await world.store.release(EVERYTHING, Owed.ALL, "ann", at("10:58"))
    assert slots_of(await claim(world, at("10:58"))) == found


async def test_specs_of_the_world_are_untouched(world: World) -> None:
    """A freeze is no edit: the revision stays."""
    await world.add("a")
    await world.store.freeze(PROJECT, None, "ann", NOW)
    await world.store.release(PROJECT, Owed.ALL, "ann", NOW)
    rows = await world.store.fetch(select(t.trigger_revision.c.number, t.trigger_revision.c.digest))
    assert [(row.number, row.digest) for row in rows] == [(1, spec().digest())]
