"""A slot is decided by the revision in force at that slot. An edit takes effect at its own instant, a pause
owes nothing while it lasts, and whatever was owed before stays owed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from horarium.core.spec import Rate
from horarium.store import tables
from tests.fundamentals.house import House, at, every, key_of, times


async def test_an_edit_leaves_the_owed_past_and_replaces_the_future(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        await house.down_for(minutes=30)  # 10:10, 10:20 and 10:30 are owed by the old rule
        await house.apply(tick={"cron": "15 * * * *"})
        await house.run_until(at("12:00"))
        assert house.fired("tick") == times("10:10", "10:20", "10:30", "11:15")


async def test_an_edit_long_after_a_crash_still_owes_what_was_never_planned(tmp_path: Path) -> None:
    """Down for a day: most owed slots have no row yet when the edit comes in. They are owed all the same."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "0 * * * *"})
        await house.run_until(at("10:05"))
        await house.down_for(hours=24)
        await house.apply(tick={"cron": "15 15 * * *"})
        await house.run_for(hours=1)
        assert house.fired("tick") == every("11:00", "2026-01-06T10:00:00Z", timedelta(hours=1))


async def test_an_owed_run_keeps_the_parameters_it_was_owed_with(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *", "parameters": {"model": "old"}})
        await house.run_until(at("10:05"))
        await house.down_for(minutes=10)
        await house.apply(tick={"cron": "*/10 * * * *", "parameters": {"model": "new"}})
        await house.run_until(at("10:25"))
        asked = {call.scheduled_time: call.parameters["model"] for call in house.target.calls}
        assert asked == {at("10:10"): "old", at("10:20"): "new"}


async def test_a_redeploy_of_the_same_rule_changes_nothing(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        words = {"cron": "*/10 * * * *"}
        await house.apply(tick=words)
        await house.run_until(at("10:05"))
        before = await house.rows(tables.run), await house.rows(tables.trigger)
        result = await house.apply(tick=words)
        assert result.decided.empty
        assert (await house.rows(tables.run), await house.rows(tables.trigger)) == before


async def test_there_and_back_again_loses_nothing(tmp_path: Path) -> None:
    """A→B→A within the look-ahead: the runs of A that B withdrew are there again."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        planned = await house.runs("tick", "scheduled")
        await house.apply(tick={"cron": "3 3 * * *"})
        await house.turn()
        assert at("10:10") not in await house.runs("tick", "scheduled")
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.turn()
        assert await house.runs("tick", "scheduled") == planned
        await house.run_until(at("11:00"))
        assert house.fired("tick") == every("10:10", "11:00", timedelta(minutes=10))


async def test_a_pause_is_not_downtime(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        await house.pause("tick", note="upstream down")
        await house.run_until(at("10:35"))
        assert house.fired("tick") == []
        await house.resume("tick")
        await house.run_until(at("11:00"))
        assert house.fired("tick") == times("10:40", "10:50", "11:00")
        assert await house.skips("tick") == [(at("10:10"), at("10:30"), 3, "paused")]


async def test_a_resume_can_fill_the_paused_interval(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        await house.pause("tick")
        await house.run_until(at("10:35"))
        await house.resume("tick", backfill=True)
        await house.run_until(at("10:45"))
        assert house.fired("tick") == times("10:10", "10:20", "10:30", "10:40")
        assert await house.skips("tick") == []


async def test_the_pause_of_a_deployment_is_apart_from_each_triggers_own(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        rule = {"cron": "*/10 * * * *"}
        await house.apply(**{"tick": rule, "tick/mine": rule})
        await house.pause("tick/mine")
        await house.pause_deployment("tick")
        await house.apply(**{"tick": rule, "tick/mine": rule, "tick/new": rule})
        await house.run_until(at("10:15"))
        assert {name: house.fired(name) for name in ("tick", "tick/mine", "tick/new")} == {
            "tick": [],
            "tick/mine": [],
            "tick/new": [],
        }
        await house.resume_deployment("tick")
        await house.run_until(at("10:20"))
        assert house.fired("tick") == house.fired("tick/new") == times("10:20")
        assert house.fired("tick/mine") == []
        await house.resume("tick/mine")
        await house.run_until(at("10:30"))
        assert house.fired("tick/mine") == times("10:30")


async def test_a_pause_can_end_by_itself(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.pause("tick", until=at("10:25"))
        await house.run_until(at("10:50"))
        assert house.fired("tick") == times("10:30", "10:40", "10:50")
        assert await house.skips("tick") == [(at("10:10"), at("10:20"), 2, "paused")]


async def test_a_pause_holds_what_was_owed_and_a_resume_releases_it(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        house.target.down = "for a while"
        await house.run_until(at("10:12"))
        await house.pause("tick")
        house.target.down = None
        await house.run_until(at("10:55"))
        assert house.fired("tick") == []
        assert await house.runs("tick", "held") == times("10:10")
        await house.resume("tick")
        await house.run_until(at("11:00"))
        assert house.fired("tick") == times("10:10", "11:00")


async def test_a_pause_survives_a_redeploy(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.pause("tick")
        await house.apply(tick={"cron": "*/5 * * * *"})
        await house.run_until(at("10:30"))
        assert house.fired("tick") == []
        await house.resume("tick")
        await house.run_until(at("10:40"))
        assert house.fired("tick") == times("10:35", "10:40")


async def test_a_deleted_trigger_owes_nothing(tmp_path: Path) -> None:
    """What it owed when it went is a skip, with the reason."""
    async with House(tmp_path, rate=Rate(0.0001, 1)) as house:
        await house.apply(tick={"cron": "*/10 * * * *"}, other={"cron": "1 1 1 1 *"})
        await house.run_until(at("10:35"))  # the one token went to 10:10; 10:20 and 10:30 wait
        await house.apply(other={"cron": "1 1 1 1 *"})
        await house.run_until(at("11:30"))
        assert house.fired("tick") == times("10:10")
        assert await house.skips("tick") == [
            (at("10:20"), at("10:20"), 1, "deleted"),
            (at("10:30"), at("10:30"), 1, "deleted"),
        ]


async def test_deleted_and_added_again_is_the_same_trigger(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:15"))
        (before,) = await house.rows(tables.trigger)
        await house.apply()
        await house.run_until(at("10:35"))
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:45"))
        (after,) = await house.rows(tables.trigger)
        assert (after.id, after.hash_seed) == (before.id, before.hash_seed)
        assert house.fired("tick") == times("10:10", "10:40"), "it owes nothing of when it was not there"


async def test_a_backfill_fills_holes_and_repeating_it_adds_nothing(tmp_path: Path) -> None:
    async with House(tmp_path, at("12:00:30")) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.turn()
        for _ in range(2):
            await house.backfill("tick", at("11:00"), at("11:30"))
            await house.run_for(seconds=30)
        assert house.fired("tick") == times("11:00", "11:10", "11:20", "11:30")
        assert [call.origin for call in house.target.calls] == ["backfill"] * 4


async def test_a_backfill_works_while_paused(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        await house.run_until(at("10:05"))
        await house.pause("tick")
        await house.run_until(at("10:35"))
        await house.backfill("tick", at("10:20"), at("10:30"))
        await house.run_until(at("10:36"))
        assert house.fired("tick") == times("10:20", "10:30")
        assert await house.skips("tick") == [(at("10:10"), at("10:10"), 1, "paused")]


async def test_two_slots_with_one_name_are_two_runs(tmp_path: Path) -> None:
    """Flyte's names have 64 bits and can collide; the second slot gets the long name."""
    async with House(tmp_path) as house:
        await house.apply(first={"cron": "10 10 * * *"}, second={"cron": "10 10 * * *"})
        await house.turn()
        rows = {
            row.trigger_id: row for row in await house.rows(tables.run) if row.scheduled_time == at("10:10")
        }
        one, two = rows.values()
        await house.write(tables.run.delete().where(tables.run.c.id == two.id))
        await house.write(tables.run.update().where(tables.run.c.id == one.id).values(name=two.name))
        await house.write(
            tables.trigger.update()
            .where(tables.trigger.c.id == two.trigger_id)
            .values(cursor=house.clock.now(), plan_due_at=house.clock.now())
        )
        await house.run_until(at("10:11"))
        names = [call.run_name for call in house.target.calls]
        assert house.fired("first") == house.fired("second") == times("10:10")
        assert len(set(names)) == 2
        assert sorted(len(name) for name in names)[1] == 27


async def test_a_zombies_late_failure_does_not_undo_a_success(tmp_path: Path) -> None:
    """The first call outlives its lease and then fails; meanwhile the second has made the run."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *"})
        await house.run_until(at("10:04:59"))
        (run,) = [row for row in await house.rows(tables.run) if row.scheduled_time == at("10:05")]
        house.clock.advance(1)
        zombie = await house.claim_for_another_process()
        await house.down_for(minutes=2)  # the lease of the one that hangs is over
        await house.run_for(seconds=1)
        assert house.fired("tick") == times("10:05")
        await house.settle_as_failure(zombie)
        rows = {row.id: row for row in await house.rows(tables.run)}
        assert (rows[run.id].state, rows[run.id].attempt) == ("fired", 2)


async def test_a_zombies_failure_does_not_touch_the_attempt_that_holds_the_run(tmp_path: Path) -> None:
    """The second attempt is under way when the first one's failure comes in: it must not count."""
    async with House(tmp_path, lease=30) as house:
        await house.apply(tick={"cron": "5 10 * * *"})
        await house.run_until(at("10:04:59"))
        house.clock.advance(1)
        zombie = await house.claim_for_another_process()
        house.clock.advance(31)
        second = await house.claim_for_another_process()
        await house.settle_as_failure(zombie)
        assert at("10:05") in await house.runs("tick", "scheduled")
        await house.settle_as_success(second)
        assert await house.runs("tick", "fired") == times("10:05")


async def test_a_late_success_is_evidence_and_counts(tmp_path: Path) -> None:
    """The answer came after we had given up: the run exists, so that is what the record says."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *", "retry_for": 30})
        await house.run_until(at("10:04:59"))
        house.clock.advance(1)
        zombie = await house.claim_for_another_process()
        house.target.down = "gone"
        await house.down_for(minutes=2)
        await house.run_for(minutes=2)
        (run,) = [row for row in await house.rows(tables.run) if row.scheduled_time == at("10:05")]
        assert run.state == "failed"
        assert "answer to an earlier call was lost" in run.reason
        await house.settle_as_success(zombie)
        (run,) = [row for row in await house.rows(tables.run) if row.scheduled_time == at("10:05")]
        assert (run.state, run.reason) == ("fired", None)


async def test_two_triggers_of_one_deployment_never_share_a_run(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(
            **{
                "demo/s1": {"cron": "10 10 * * *", "parameters": {"day": "19"}},
                "demo/s2": {"cron": "10 10 * * *", "parameters": {"day": "14"}},
            }
        )
        await house.run_until(at("10:11"))
        assert {call.trigger: call.parameters["day"] for call in house.target.calls} == {
            key_of("demo/s1"): "19",
            key_of("demo/s2"): "14",
        }
