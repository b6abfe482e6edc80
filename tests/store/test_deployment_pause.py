"""Pauses of deployments on every store: what they do to rows, and what finds them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from horarium.core import trigger as decisions
from horarium.core.freeze import Owed, Scope
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import Window, plan
from horarium.core.spec import DeploymentSpec, Listing, TargetSpec, TriggerEntry
from horarium.errors import Conflict, NotFound
from horarium.store import tables as t
from tests.store.world import NOW, World, at, entry, key, listing, minutes, spec

SOURCE = "team.yaml"


def of_a(name: str, cron: str = "*/5 * * * *") -> TriggerEntry:
    """A trigger of the deployment `a`."""
    return TriggerEntry(TriggerKey("default", "default", "a", name), spec(cron))


def triggers_of_a(*names: str) -> Listing:
    return listing(*(of_a(name) for name in names))


def short(key: TriggerKey) -> str:
    return f"{key.deployment}/{key.name}"


async def statuses(world: World) -> dict[str, str]:
    return {short(item.key): item.status.value for item in await world.triggers()}


async def slots_of(world: World, name: str, **where: str) -> list[datetime]:
    """The slots that have a run, of a trigger by its deployment and name."""
    (found,) = [item.id for item in await world.triggers() if short(item.key) == name]
    return [run.scheduled_time for run in await world.runs(**where) if run.trigger_id == found]


async def test_one_pause_stops_all_triggers_of_one_deployment_and_no_other(world: World) -> None:
    await world.sync(listing(of_a("one"), of_a("two"), entry("b")))
    await world.plan(NOW)
    change = await world.pause_deployment("a", at("10:12"), note="moving house")
    assert change is not None
    assert await statuses(world) == {"a/one": "paused", "a/two": "paused", "b/default": "active"}
    (row, other) = await world.rows(t.deployment)
    assert (row.paused, row.pause_note, row.paused_by, row.paused_at) == (
        True,
        "moving house",
        "ann",
        at("10:12"),
    )
    assert not other.paused
    for name in ("a/one", "a/two"):
        assert await slots_of(world, name) == [at("10:05"), at("10:10")]
        assert await slots_of(world, name, state="held") == [at("10:05"), at("10:10")]
    assert len(await world.slots("b")) == len(minutes(5, NOW, at("12:00")))
    lines = [(row.what, row.kind, row.key) for row in await world.rows(t.audit)][-3:]
    assert lines == [
        ("pause-deployment", "trigger", "default/default/a/one"),
        ("pause-deployment", "trigger", "default/default/a/two"),
        ("pause", "deployment", "default/default/a"),
    ]


async def test_a_resume_releases_what_was_held_and_the_time_between_is_a_skip_that_says_so(
    world: World,
) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.pause_deployment("a", at("10:12"))
    assert await world.resume_deployment("a", at("10:31")) is not None
    await world.plan_all(at("10:31"))
    assert await statuses(world) == {"a/default": "active"}
    assert (await world.slots("a", state="scheduled"))[:3] == [at("10:05"), at("10:10"), at("10:35")]
    (skip,) = await world.rows(t.skip)
    assert (skip.first_time, skip.last_time, skip.reason, skip.detail) == (
        at("10:15"),
        at("10:30"),
        "paused",
        "its deployment was paused",
    )
    assert await world.resume_deployment("a", at("10:32")) is None


async def test_a_resume_with_backfill_fills_the_pause(world: World) -> None:
    await world.sync(triggers_of_a("one", "two"))
    await world.plan(NOW)
    await world.pause_deployment("a", at("10:02"))
    await world.plan_all(at("10:31"))
    await world.resume_deployment("a", at("10:31"), backfill=True)
    await world.plan_all(at("10:31"))
    for name in ("a/one", "a/two"):
        assert await slots_of(world, name, origin="backfill") == minutes(5, at("10:02"), at("10:31"))
    assert await world.skips() == []


async def test_a_backfill_of_the_pause_begins_with_each_trigger(world: World) -> None:
    """What was made, or was gone and came back, while the deployment was paused owes nothing from before."""
    await world.sync(triggers_of_a("one", "two"))
    await world.pause_deployment("a", at("10:02"))
    await world.sync(triggers_of_a("one"), at("10:07"))
    await world.sync(triggers_of_a("one", "two", "three"), at("10:17"))
    await world.resume_deployment("a", at("10:31"), backfill=True)
    await world.plan_all(at("10:31"))
    for name, since in (("a/one", "10:02"), ("a/two", "10:17"), ("a/three", "10:17")):
        assert await slots_of(world, name, origin="backfill") == minutes(5, at(since), at("10:31"))


async def test_a_backfill_of_the_pause_fills_no_slot_of_another_scheduler(world: World) -> None:
    """What was in shadow is not filled: a backfill fires."""
    await world.sync(replace(triggers_of_a("one", "two"), shadow=True))
    await world.pause_deployment("a", at("10:02"))
    cut_over = TriggerKey("default", "default", "a", "one")
    then = at("10:17")
    await world.store.change(
        [cut_over], lambda state: decisions.shadow(state, False, "ann", then), then, "ann"
    )
    await world.resume_deployment("a", at("10:31"), backfill=True)
    await world.plan_all(at("10:31"))
    assert await slots_of(world, "a/one", origin="backfill") == minutes(5, at("10:17"), at("10:31"))
    assert await slots_of(world, "a/two", origin="backfill") == []


async def test_a_trigger_that_comes_while_it_is_paused_starts_paused(world: World) -> None:
    await world.sync(triggers_of_a("one"))
    await world.pause_deployment("a", at("10:01"))
    await world.sync(triggers_of_a("one", "two"), at("10:02"))
    await world.store.create_trigger(
        Listing("api", triggers=(of_a("mine"),)), at("10:03"), "ann", expected_revision=0
    )
    await world.plan_all(at("10:10"))
    assert await statuses(world) == {"a/one": "paused", "a/two": "paused", "a/mine": "paused"}
    assert await world.runs() == []
    await world.resume_deployment("a", at("10:11"))
    await world.plan_all(at("10:11"))
    assert set((await statuses(world)).values()) == {"active"}
    assert (await world.slots())[:1] == [at("10:15")]


async def test_a_sync_does_not_end_it(world: World) -> None:
    await world.sync(triggers_of_a("one"))
    await world.pause_deployment("a", at("10:01"))
    edited = replace(
        listing(of_a("one", "*/2 * * * *")),
        deployments=(DeploymentSpec(DeploymentKey("default", "default", "a"), "work", parameters={"n": 1}),),
    )
    assert (await world.sync(edited, at("10:02"))).written
    assert await statuses(world) == {"a/one": "paused"}
    assert (await world.rows(t.deployment))[0].paused


async def test_a_deployment_that_its_source_withdraws_and_names_again_is_still_paused(world: World) -> None:
    await world.sync(listing(of_a("one"), entry("b")))
    await world.pause_deployment("a", at("10:01"))
    await world.sync(listing(entry("b")), at("10:02"))
    assert await statuses(world) == {"a/one": "deleted", "b/default": "active"}
    await world.sync(listing(of_a("one"), entry("b")), at("10:03"))
    assert await statuses(world) == {"a/one": "paused", "b/default": "active"}
    await world.resume_deployment("a", at("10:04"))
    assert (await statuses(world))["a/one"] == "active"


async def test_a_withdrawn_deployment_can_be_resumed(world: World) -> None:
    """A trigger of people may still be there."""
    await world.sync(triggers_of_a("one"))
    await world.store.create_trigger(Listing("api", triggers=(of_a("mine"),)), NOW, "ann")
    await world.pause_deployment("a", at("10:01"))
    await world.sync(Listing(SOURCE, (TargetSpec("work", "http"),)), at("10:02"))
    assert await statuses(world) == {"a/one": "deleted", "a/mine": "paused"}
    await world.resume_deployment("a", at("10:03"))
    assert await statuses(world) == {"a/one": "deleted", "a/mine": "active"}


@pytest.mark.parametrize("into", [True, False])
async def test_a_trigger_that_is_renamed_is_what_its_new_deployment_is(world: World, into: bool) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    await world.plan(NOW)
    await world.pause_deployment("b" if into else "a", at("10:01"))
    moved = TriggerEntry(
        TriggerKey("default", "default", "b", "other"), spec(), renamed_from="default/default/a/default"
    )
    await world.sync(
        replace(listing(entry("b"), moved), deployments=listing(entry("a"), entry("b")).deployments),
        at("10:02"),
    )
    found = await statuses(world)
    assert found["b/other"] == ("paused" if into else "active")
    await world.plan_all(at("10:02"))
    assert bool(await slots_of(world, "b/other")) is not into


async def test_a_deployment_that_is_renamed_is_still_paused(world: World) -> None:
    """Both of its triggers move to a name that nobody had, and nothing is left under the former one."""
    await world.sync(triggers_of_a("one", "two"))
    await world.plan(NOW)
    await world.pause_deployment("a", at("10:01"))
    moved = [
        replace(
            entry("new"), key=TriggerKey("default", "default", "new", name), renamed_from=str(of_a(name).key)
        )
        for name in ("one", "two")
    ]
    await world.sync(listing(*moved), at("10:07"))
    assert await statuses(world) == {"new/one": "paused", "new/two": "paused"}
    await world.plan_all(at("10:07"))
    assert await world.runs() == []
    await world.resume_deployment("new", at("10:31"), backfill=True)
    await world.plan_all(at("10:31"))
    assert await statuses(world) == {"new/one": "active", "new/two": "active"}
    for name in ("new/one", "new/two"):
        assert await slots_of(world, name, origin="backfill") == minutes(5, at("10:01"), at("10:31"))


async def test_each_triggers_own_pause_is_another_thing(world: World) -> None:
    await world.sync(triggers_of_a("one", "two"))
    one, two = (TriggerKey("default", "default", "a", name) for name in ("one", "two"))
    for now, decide in (
        ("10:01", lambda state: decisions.pause(state, "ben", at("10:01"))),
        ("10:03", lambda state: decisions.resume(state, "ben", at("10:03"))),
    ):
        await world.store.change([one], decide, at(now), "ben")
        if now == "10:01":
            await world.pause_deployment("a", at("10:02"))
    assert await statuses(world) == {"a/one": "paused", "a/two": "paused"}
    await world.store.change(
        [two], lambda state: decisions.pause(state, "ben", at("10:04")), at("10:04"), "ben"
    )
    await world.resume_deployment("a", at("10:05"))
    assert await statuses(world) == {"a/one": "active", "a/two": "paused"}
    assert (await world.triggers())[1].paused_by == "ben"


async def test_a_freeze_and_a_pause_do_not_touch_each_other(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    scope = Scope.deployment(key("a").deployment_key)
    await world.store.freeze(scope, None, "ann", at("10:06"))
    await world.pause_deployment("a", at("10:07"))
    await world.store.release(scope, Owed.ALL, "ann", at("10:08"))
    assert await world.slots("a", state="held") == [at("10:05")]
    await world.resume_deployment("a", at("10:09"))
    assert await world.slots("a", state="scheduled") == [at("10:05")]


async def test_a_deployment_that_was_never_there_is_said_so(world: World) -> None:
    with pytest.raises(NotFound):
        await world.pause_deployment("nobody", NOW)


async def test_an_error_in_the_decision_changes_nothing(world: World) -> None:
    await world.add("a")
    before = await world.everything()

    def refuse(state: object) -> None:
        raise Conflict("no")

    with pytest.raises(Conflict):
        await world.store.change_deployment(key("a").deployment_key, refuse, NOW, "ann")
    assert await world.everything() == before


async def test_a_plan_that_was_computed_before_is_lost(world: World) -> None:
    await world.add("a")
    plans = [plan(item, NOW, Window()) for item in await world.lease(NOW)]
    await world.pause_deployment("a", NOW + timedelta(seconds=1))
    assert (await world.store.apply_plans(plans, NOW + timedelta(seconds=1))).won == frozenset()
    await world.plan_all(NOW + timedelta(minutes=1))
    assert await world.runs() == []
