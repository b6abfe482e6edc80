"""`overlap`: of one trigger one run at a time, whoever claims, and never blocked for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from horarium.core.overlap import AGAIN
from horarium.core.run import FiredRun, Report, Result, Run, RunState
from horarium.core.spec import Overlap, Rate
from horarium.core.trigger import retry_run
from horarium.store import tables as t
from horarium.store.base import Claimed, Claims, ManualRequest
from tests.store.world import NOW, World, at, fired, key, refused, unavailable

SECOND = timedelta(seconds=1)


async def add(world: World, overlap: Overlap, cron: str = "*/5 * * * *", name: str = "a") -> None:
    await world.add(name, cron, overlap=overlap)
    await world.plan(NOW)


async def take(world: World, now: datetime, **rest: object) -> list[Claimed]:
    claims: Claims = await world.claim(now, **rest)  # type: ignore[arg-type]  # passed on as they are
    return list(claims.runs)


async def start(world: World, now: datetime) -> Run:
    """Claim the one run that is due, and let its target take it: it is under way."""
    (claimed,) = await take(world, now)
    outcome = replace(fired(claimed.run, now), reports=True, exclusive=True)
    assert await world.settle(outcome, now=now) == {claimed.run.id}
    return claimed.run


def ended(run: Run, now: datetime, result: Result = Result.SUCCEEDED) -> Report:
    return Report(f"default/default/{run.name}", result, now)


async def test_a_fired_run_is_under_way_until_its_target_reports_an_end(world: World) -> None:
    await add(world, Overlap.ALLOW)
    run = await start(world, at("10:05"))
    (row,) = [row for row in await world.runs() if row.id == run.id]
    assert (row.state, row.result, row.result_at) == (RunState.FIRED, "running", None)
    assert await world.store.report([ended(run, at("10:07"), Result.ERRORED)], at("10:07")) == 1
    (row,) = [row for row in await world.runs() if row.id == run.id]
    assert (row.result, row.result_at) == ("errored", at("10:07"))
    # The first end stands.
    assert await world.store.report([ended(run, at("10:08"))], at("10:08")) == 0


async def test_an_end_that_is_reported_before_the_fire_is_settled_stands(world: World) -> None:
    await add(world, Overlap.QUEUE)
    (claimed,) = await take(world, at("10:05"))
    await world.store.report([ended(claimed.run, at("10:05"))], at("10:05"))
    await world.settle(replace(fired(claimed.run, at("10:06")), reports=True), now=at("10:06"))
    row = (await world.runs())[0]
    assert (row.state, row.result) == (RunState.FIRED, "succeeded")
    assert await world.store.reports_due(at("11:00"), 10) == []
    assert len(await take(world, at("10:10"))) == 1


async def test_skip_gives_up_the_slots_that_come_due_meanwhile(world: World) -> None:
    await add(world, Overlap.SKIP)
    run = await start(world, at("10:05"))
    assert await take(world, at("10:10")) == []
    assert await take(world, at("10:15")) == []
    await world.store.report([ended(run, at("10:16"))], at("10:16"))
    (claimed,) = await take(world, at("10:20"))
    assert claimed.run.scheduled_time == at("10:20")
    rows = await world.rows(t.skip)
    assert [(row.first_time, row._mapping["count"], row.reason) for row in rows] == [
        (at("10:10"), 1, "overlap"),
        (at("10:15"), 1, "overlap"),
    ]
    assert all(run.name in row.detail for row in rows)


async def test_queue_waits_for_the_end_and_is_due_at_once_then(world: World) -> None:
    await add(world, Overlap.QUEUE)
    run = await start(world, at("10:05"))
    assert await take(world, at("10:10")) == []
    assert await take(world, at("10:15")) == []  # one waits already
    (waiting,) = [row for row in await world.runs() if row.waits_for is not None]
    assert (waiting.scheduled_time, waiting.waits_for) == (at("10:10"), run.id)
    assert (waiting.attempt, waiting.lease_owner, waiting.first_claimed_at) == (0, None, None)
    assert [row.first_time for row in await world.rows(t.skip)] == [at("10:15")]
    await world.store.report([ended(run, at("10:16:30"))], at("10:16:30"))
    (claimed,) = await take(world, at("10:16:30"))
    assert claimed.run.scheduled_time == at("10:10")
    (row,) = [row for row in await world.runs() if row.id == claimed.run.id]
    assert row.waits_for is None


async def test_what_waits_looks_again_by_itself_should_nobody_tell_it(world: World) -> None:
    await add(world, Overlap.QUEUE, "*/30 * * * *")
    run = await start(world, at("10:30"))
    assert await take(world, at("11:00")) == []
    await world.run_sql(t.run.update().where(t.run.c.id == run.id).values(report_due_at=None))
    assert await take(world, at("11:00:59")) == []
    assert len(await take(world, at("11:00") + AGAIN)) == 1


async def test_a_run_that_is_being_called_or_tried_again_is_under_way(world: World) -> None:
    await add(world, Overlap.SKIP)
    (first,) = await take(world, at("10:05"))
    assert await take(world, at("10:05:30")) == []
    await world.settle(
        replace(unavailable(first.run, at("10:05:40"), at("10:30")), exclusive=True), now=at("10:05:40")
    )
    assert await take(world, at("10:10")) == []
    assert [row.first_time for row in await world.rows(t.skip)] == [at("10:10")]
    (again,) = await take(world, at("10:30"), backlog_first=True)
    assert again.run.id == first.run.id
    assert again.run.attempt == 2


async def test_one_that_fails_lets_the_next_begin(world: World) -> None:
    await add(world, Overlap.QUEUE)
    (first,) = await take(world, at("10:05"), lease_until=at("10:20"))
    assert await take(world, at("10:10")) == []
    await world.settle(replace(refused(first.run, at("10:11")), exclusive=True), now=at("10:11"))
    (claimed,) = await take(world, at("10:11"))
    assert claimed.run.scheduled_time == at("10:10")


async def test_several_slots_in_one_claim_are_judged_in_their_order(world: World) -> None:
    for name, overlap in (("s", Overlap.SKIP), ("q", Overlap.QUEUE), ("r", Overlap.REPLACE)):
        await add(world, overlap, name=name)
    claimed = await take(world, at("10:21"))
    assert {item.key.deployment: item.run.scheduled_time for item in claimed} == {
        "s": at("10:05"),
        "q": at("10:05"),
        "r": at("10:20"),
    }
    rows = await world.rows(t.skip)
    names = {item.id: item.key.deployment for item in await world.triggers()}
    skipped = sorted((names[row.trigger_id], row.first_time, row._mapping["count"]) for row in rows)
    assert [(name, count) for name, _, count in skipped] == [("q", 2), ("r", 3), ("s", 3)]
    (waiting,) = [row for row in await world.runs() if row.waits_for is not None]
    assert waiting.scheduled_time == at("10:10")


async def test_replace_names_what_is_to_be_cancelled(world: World) -> None:
    await add(world, Overlap.REPLACE)
    run = await start(world, at("10:05"))
    (claimed,) = await take(world, at("10:10"))
    assert claimed.cancels == (FiredRun(run.id, run.name, key("a"), run.target_id, at("10:05"), "job-1"),)
    # Until that is done it is tried again, and each claim says so again.
    await world.settle(unavailable(claimed.run, at("10:10"), at("10:11")), now=at("10:10"))
    (again,) = await take(world, at("10:11"), backlog_first=True)
    assert again.cancels == claimed.cancels
    await world.store.report([ended(run, at("10:11"), Result.CANCELLED)], at("10:11"))
    await world.settle(fired(again.run, at("10:11")), now=at("10:11"))
    rows = await world.runs()
    assert [(row.state, row.result) for row in rows[:2]] == [
        (RunState.FIRED, "cancelled"),
        (RunState.FIRED, None),
    ]


async def test_replace_drops_one_that_waits_to_be_tried_again(world: World) -> None:
    await add(world, Overlap.REPLACE)
    (first,) = await take(world, at("10:05"))
    await world.settle(unavailable(first.run, at("10:05"), at("10:30")), now=at("10:05"))
    (claimed,) = await take(world, at("10:10"))
    assert claimed.cancels == ()
    row = (await world.runs())[0]
    assert row.state is RunState.FAILED
    assert row.reason is not None
    assert claimed.run.name in row.reason


async def test_replace_cancels_one_whose_answer_was_lost_though_its_target_said_that_it_runs(
    world: World,
) -> None:
    await add(world, Overlap.REPLACE)
    (first,) = await take(world, at("10:05"))
    await world.store.report([ended(first.run, at("10:05"), Result.RUNNING)], at("10:05"))
    await world.settle(unavailable(first.run, at("10:05"), at("10:30")), now=at("10:05"))
    (claimed,) = await take(world, at("10:10"))
    assert [run.name for run in claimed.cancels] == [first.run.name]
    assert (await world.runs())[0].state is RunState.FAILED


async def test_a_manual_run_and_a_backfill_wait_and_are_never_skipped(world: World) -> None:
    await add(world, Overlap.SKIP)
    run = await start(world, at("10:05"))
    manual, _ = await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), at("10:06"))
    await world.backfill("a", at("09:30"), at("09:45"), at("10:06"))
    await world.plan_all(at("10:06"))
    assert await take(world, at("10:06")) == []
    waiting = [row for row in await world.runs() if row.waits_for is not None]
    assert {row.origin.value for row in waiting} == {"manual", "backfill"}
    assert len(waiting) == 5
    now = at("10:07")
    done = [run]
    for _ in range(5):
        await world.store.report([ended(done[-1], now)], now)
        done.append(await start(world, now))
        now += SECOND
    assert [run.scheduled_time for run in done[1:]] == [
        at("09:30"),
        at("09:35"),
        at("09:40"),
        at("09:45"),
        manual.scheduled_time,
    ]
    assert await world.rows(t.skip) == []


async def test_those_that_wait_cost_no_tokens(world: World) -> None:
    await add(world, Overlap.QUEUE, name="a")
    await start(world, at("10:05"))
    await add(world, Overlap.ALLOW, "*/10 * * * *", name="b")
    await world.run_sql(t.target_allowance.update().values(tokens=1.0, refilled_at=at("10:10")))
    rate = Rate(0.000_001, 1)
    assert await take(world, at("10:10"), rate=rate) == []  # the one that has to wait comes first
    assert [item.key.deployment for item in await take(world, at("10:10"), rate=rate)] == ["b"]


async def test_an_edit_that_moves_the_trigger_to_another_target_overlaps_neither(world: World) -> None:
    await add(world, Overlap.QUEUE)
    run = await start(world, at("10:05"))
    await world.add("b", "*/30 * * * *", target="other")
    await world.edit("a", "*/5 * * * *", at("10:06"), target="other", overlap=Overlap.QUEUE)
    await world.plan_all(at("10:06"))
    assert await take(world, at("10:10"), target="other") == []
    await world.store.report([ended(run, at("10:11"))], at("10:11"))
    assert [item.key.deployment for item in await take(world, at("10:11"), target="other")] == ["a"]


async def test_targets_are_asked_about_what_has_not_ended_by_whoever_comes_first(world: World) -> None:
    await add(world, Overlap.ALLOW)
    run = await start(world, at("10:05"))
    assert await world.store.reports_due(at("10:05:01"), 10) == []
    ((found, until),) = await world.store.reports_due(at("10:05:02"), 10)
    assert found == FiredRun(run.id, run.name, key("a"), run.target_id, at("10:05"), "job-1")
    assert until == at("10:05") + timedelta(days=1)
    assert await world.store.reports_due(at("10:05:02"), 10) == []
    # The longer it goes on, the less often.
    await world.store.reports_due(at("10:15"), 10)
    assert await world.store.reports_due(at("10:15:59"), 10) == []
    assert len(await world.store.reports_due(at("10:16"), 10)) == 1


async def test_an_unknown_end_gives_way_to_a_better_report(world: World) -> None:
    await add(world, Overlap.ALLOW)
    run = await start(world, at("10:05"))
    await world.store.report([ended(run, at("10:06"), Result.UNKNOWN)], at("10:06"))
    assert await world.store.reports_due(at("12:00"), 10) == []
    assert await world.store.report([ended(run, at("10:07"))], at("10:07")) == 1


async def test_a_report_shows_that_a_run_without_an_answer_happened(world: World) -> None:
    await add(world, Overlap.ALLOW)
    (claimed,) = await take(world, at("10:05"))
    lost = replace(unavailable(claimed.run, at("10:05"), at("10:30")), unknown=True)
    await world.settle(lost, now=at("10:05"))
    await world.store.report([ended(claimed.run, at("10:06"))], at("10:06"))
    row = (await world.runs())[0]
    assert (row.state, row.fired_at, row.result) == (RunState.FIRED, at("10:06"), "succeeded")
    assert row.id not in [item.run.id for item in await take(world, at("10:30"), backlog_first=True)]


async def test_a_report_of_a_run_that_nobody_knows_changes_nothing(world: World) -> None:
    await add(world, Overlap.ALLOW)
    before = await world.everything()
    nobody = Report("default/default/r0", Result.SUCCEEDED, NOW)
    assert await world.store.report([nobody], NOW) == 0
    assert await world.everything() == before


async def test_a_pause_holds_what_waits_and_a_resume_lets_it_go(world: World) -> None:
    await add(world, Overlap.QUEUE)
    run = await start(world, at("10:05"))
    assert await take(world, at("10:10")) == []
    await world.pause("a", at("10:11"))
    await world.store.report([ended(run, at("10:12"))], at("10:12"))
    assert await take(world, at("10:20")) == []
    await world.resume("a", at("10:21"))
    (claimed,) = await take(world, at("10:21"))
    assert claimed.run.scheduled_time == at("10:10")


async def test_a_failed_run_that_is_tried_again_waits_for_the_one_that_has_begun(world: World) -> None:
    await add(world, Overlap.QUEUE)
    (first,) = await take(world, at("10:05"))
    await world.settle(replace(refused(first.run, at("10:05")), exclusive=True), now=at("10:05"))
    second = await start(world, at("10:10"))
    await world.store.change_run(
        first.run.id, lambda state, run: retry_run(state, run, at("10:11")), at("10:11"), "ann"
    )
    assert await take(world, at("10:11"), backlog_first=True) == []
    (row,) = [row for row in await world.runs() if row.id == first.run.id]
    assert (row.attempt, row.waits_for, row.lease_owner) == (1, second.id, None)
    assert row.first_claimed_at is None, "its retry time begins when it is called"
    await world.store.report([ended(second, at("10:12"))], at("10:12"))
    (again,) = await take(world, at("10:12"), backlog_first=True)
    assert (again.run.id, again.run.attempt) == (first.run.id, 2)


async def test_two_that_are_tried_again_at_once_do_not_wait_for_each_other(world: World) -> None:
    await add(world, Overlap.QUEUE)
    for slot in ("10:05", "10:10"):
        (claimed,) = await take(world, at(slot))
        await world.settle(replace(refused(claimed.run, at(slot)), exclusive=True), now=at(slot))
        run_id = claimed.run.id
    for row in await world.runs():
        if row.state is RunState.FAILED:
            await world.store.change_run(
                row.id, lambda state, run: retry_run(state, run, at("10:11")), at("10:11"), "ann"
            )
    (again,) = await take(world, at("10:11"), backlog_first=True)
    assert again.run.scheduled_time == at("10:05")
    (other,) = [row for row in await world.runs() if row.id == run_id]
    assert (other.attempt, other.waits_for) == (1, again.run.id)


async def test_an_end_before_the_answer_lets_the_next_begin_once_there_is_one(world: World) -> None:
    await add(world, Overlap.QUEUE)
    (first,) = await take(world, at("10:05"), lease_until=at("10:20"))
    await world.store.report([ended(first.run, at("10:06"))], at("10:06"))
    assert await take(world, at("10:10")) == []
    outcome = replace(fired(first.run, at("10:10:05")), reports=True, exclusive=True)
    await world.settle(outcome, now=at("10:10:05"))
    (claimed,) = await take(world, at("10:10:05"))
    assert claimed.run.scheduled_time == at("10:10")


async def test_those_that_wait_give_back_no_tokens_that_nobody_took(world: World) -> None:
    await add(world, Overlap.QUEUE)
    await start(world, at("10:05"))
    tokens = [row.tokens for row in await world.rows(t.target_allowance)]
    assert await take(world, at("10:10")) == []
    assert [row.tokens for row in await world.rows(t.target_allowance)] == tokens
