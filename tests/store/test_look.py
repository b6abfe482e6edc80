"""look: downtime is told from our own backlog. After a gap, what expired in it becomes skips, once."""

from __future__ import annotations

from datetime import timedelta

from horarium.core.spec import CatchUp
from horarium.store import tables as t
from horarium.store.base import ManualRequest
from tests.store.world import NOW, World, at, key, minutes


async def test_within_the_grace_nothing_expires(world: World) -> None:
    await world.add("a", "* * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    assert await world.look(NOW + timedelta(seconds=60)) == (timedelta(), 0)
    assert (await world.allowance()).looked_at == NOW + timedelta(seconds=60)


async def test_after_a_gap_expired_runs_become_one_skip_a_stretch(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    now = at("10:45:30")
    assert await world.look(now) == (now - NOW, 8)
    # 10:45 is 30 s old, within its grace: it is on time.
    assert await world.skips("a") == [(at("10:05"), at("10:40"), 8, "catch_up_none")]
    assert await world.slots("a") == minutes(5, at("10:40"), at("12:00"))
    assert (await world.allowance()).looked_at == now


async def test_a_run_between_two_expired_ones_divides_their_skip(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    middle = next(run for run in await world.runs("a") if run.scheduled_time == at("10:15"))
    from horarium.core import trigger as decisions

    await world.store.change_run(
        middle.id, lambda state, run: decisions.cancel_run(state, run, "ann", NOW), NOW, "ann"
    )
    await world.look(at("10:26:30"))
    assert await world.skips("a") == [
        (at("10:05"), at("10:10"), 2, "catch_up_none"),
        (at("10:15"), at("10:15"), 1, "cancelled"),
        (at("10:20"), at("10:25"), 2, "catch_up_none"),
    ]


async def test_latest_keeps_the_newest_owed_run(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.LATEST)
    await world.plan(NOW)
    assert (await world.look(at("10:32")))[1] == 5
    assert (await world.slots("a"))[0] == at("10:30")
    assert await world.skips("a") == [(at("10:05"), at("10:25"), 5, "catch_up_latest")]


async def test_max_age_gives_up_by_age(world: World) -> None:
    await world.add("a", "*/5 * * * *", max_age=timedelta(minutes=12))
    await world.plan(NOW)
    await world.look(at("10:32"))
    assert (await world.slots("a"))[0] == at("10:25")
    assert await world.skips("a") == [(at("10:05"), at("10:20"), 4, "max_age")]


async def test_all_never_expires(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    assert (await world.look(at("12:00")))[1] == 0
    assert (await world.slots("a"))[0] == at("10:05")


async def test_what_was_due_before_the_gap_was_seen_and_never_expires(world: World) -> None:
    """It only waited for our limiter: our own slowness must not skip it."""
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.look(at("10:05"))
    await world.claim(at("10:05"), 0, look=False)
    await world.look(at("10:32"))
    assert (await world.slots("a"))[0] == at("10:05")
    assert await world.skips("a") == [(at("10:10"), at("10:30"), 5, "catch_up_none")]


async def test_claimed_backfill_and_manual_runs_never_expire(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.claim(at("10:05"))
    await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), at("10:06"))
    await world.backfill("a", at("09:50"), at("09:55"), at("10:06"))
    await world.plan(at("10:06"))
    await world.look(at("10:32"))
    kept = [run.scheduled_time for run in await world.runs("a") if run.scheduled_time < at("10:32")]
    assert kept == [at("09:50"), at("09:55"), at("10:05"), at("10:06")]


async def test_a_second_look_finds_nothing_more(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.look(at("10:32"))
    before = await world.everything()
    assert await world.look(at("10:32")) == (timedelta(), 0)
    assert await world.everything() == before


async def test_looked_at_never_goes_back(world: World) -> None:
    await world.add("a")
    await world.look(at("10:30"))
    assert await world.look(at("10:10")) == (timedelta(), 0)
    assert (await world.allowance()).looked_at == at("10:30")


async def test_all_of_many_expire_before_looked_at_moves(world: World) -> None:
    """More than one statement's worth: were the rest left for the next look, it would take them for seen."""
    from horarium.core.plan import Window
    from tests.store.world import entry, listing

    entries = (entry(f"t{number:03}", "* * * * *", catch_up=CatchUp.NONE) for number in range(25))
    await world.sync(listing(*entries))
    await world.plan(NOW, Window(min_runs=50))
    now = at("11:42")
    assert (await world.look(now))[1] == 25 * 100
    assert await world.runs() == []
    assert {skip[2] for skip in await world.skips()} == {100}


async def test_a_look_leaves_other_targets_alone(world: World) -> None:
    await world.add("a", "*/5 * * * *", target="one", catch_up=CatchUp.NONE)
    await world.add("b", "*/5 * * * *", target="two", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    await world.look(at("10:32"), "one")
    assert await world.skips("b") == []
    assert (await world.allowance("two")).looked_at == NOW


async def test_a_look_at_a_target_that_is_not_there_is_nothing(world: World) -> None:
    looked = await world.store.look(4_711, NOW, timedelta(seconds=60))
    assert (looked.gap, looked.skipped) == (timedelta(), 0)


async def test_a_backfill_planned_before_a_look_loses_no_slot(world: World) -> None:
    """The look took a run away that the backfill's plan was to take over."""
    from horarium.core.plan import Window, plan

    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan(NOW)
    now = at("10:32")
    await world.backfill("a", at("10:05"), at("10:20"), now)
    (given,) = await world.lease(now)
    computed = plan(given, now, Window())
    await world.look(now)
    await world.store.apply_plans([computed], now)
    await world.plan_all(now + timedelta(seconds=31))
    assert await world.slots("a", origin="backfill") == minutes(5, NOW, at("10:20"))
    assert await world.skips("a") == [(at("10:25"), at("10:30"), 2, "catch_up_none")]
    (row,) = await world.rows(t.backfill)
    assert row.state == "done"
