"""Downtime is an accident: planning starts from the stored cursor, so it only makes runs late. A trigger's
`catch_up` says what late slots are worth; what it gives up is recorded."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from horarium.core.plan import Window
from horarium.core.spec import Rate
from horarium.store import tables
from tests.fundamentals.house import Away, House, at, every, key_of, times

FIVE = timedelta(minutes=5)


@pytest.mark.parametrize("down", [45, 180])
async def test_all_makes_up_for_every_slot(tmp_path: Path, down: int) -> None:
    """45 minutes lie within what was planned ahead, three hours reach beyond it: it makes no difference."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        await house.run_until(at("10:02"))
        await house.down_for(minutes=down)
        await house.run_for(minutes=1)
        end = at("10:02") + timedelta(minutes=down)
        expected = [slot for slot in every("10:05", "13:30", FIVE) if slot <= end]
        assert house.fired("tick") == expected
        assert await house.skips("tick") == []


@pytest.mark.parametrize("down", [45, 180])
async def test_latest_makes_up_for_the_last_slot_only(tmp_path: Path, down: int) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *", "catch_up": "latest"})
        await house.run_until(at("10:02"))
        await house.down_for(minutes=down)
        await house.run_for(minutes=1)
        end = at("10:02") + timedelta(minutes=down)
        missed = [slot for slot in every("10:05", "13:30", FIVE) if slot <= end]
        assert house.fired("tick") == missed[-1:]
        skips = await house.skips("tick")
        assert sum(count for _, _, count, _ in skips) == len(missed) - 1
        assert {reason for *_, reason in skips} == {"catch_up_latest"}
        assert (skips[0][0], skips[-1][1]) == (missed[0], missed[-2])


@pytest.mark.parametrize("down", [45, 180])
async def test_none_makes_up_for_nothing_older_than_the_grace(tmp_path: Path, down: int) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *", "catch_up": "none"})
        await house.run_until(at("10:02"))
        await house.down_for(minutes=down)
        await house.run_for(minutes=6)
        end = at("10:02") + timedelta(minutes=down)
        missed = [slot for slot in every("10:05", "13:30", FIVE) if slot <= end]
        on_time = [slot for slot in every("10:05", "13:30", FIVE) if end < slot <= end + timedelta(minutes=6)]
        assert house.fired("tick") == on_time
        assert sum(count for _, _, count, _ in await house.skips("tick")) == len(missed)


@pytest.mark.parametrize("down", [45, 180])
async def test_max_age_gives_up_what_is_too_old(tmp_path: Path, down: int) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *", "max_age": 20 * 60})
        await house.run_until(at("10:02"))
        await house.down_for(minutes=down)
        await house.run_for(minutes=1)
        end = at("10:02") + timedelta(minutes=down)
        missed = [slot for slot in every("10:05", "13:30", FIVE) if slot <= end]
        young = [slot for slot in missed if end - slot < timedelta(minutes=20)]
        assert house.fired("tick") == young
        assert sum(count for _, _, count, _ in await house.skips("tick")) == len(missed) - len(young)


async def test_caps_bound_a_step_and_drop_nothing(tmp_path: Path) -> None:
    """A step makes up for at most ten slots here; a thousand were missed."""
    window = Window(max_catchup_runs=10, max_runs=20)
    async with House(tmp_path, window=window) as house:
        await house.apply(tick={"every": 10})
        await house.run_until(at("10:01:05"))
        await house.down_for(seconds=10_000)
        await house.run_for(seconds=1)
        missed = every("10:00:10", "12:47:45", timedelta(seconds=10))
        assert house.fired("tick") == [slot for slot in missed if slot <= house.clock.now()]


async def test_a_short_absence_is_no_downtime(tmp_path: Path) -> None:
    """Within the grace nothing expires, whatever the policy."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *", "catch_up": "none"})
        await house.run_until(at("10:01:30"))
        await house.down_for(seconds=50)
        await house.run_for(seconds=5)
        assert house.fired("tick") == times("10:01", "10:02")


async def test_a_backlog_behind_our_own_limiter_never_expires(tmp_path: Path) -> None:
    """Sixty runs at one in ten seconds: the last waits ten minutes, and fires, though it is `none`."""
    async with House(tmp_path, rate=Rate(0.1, 1)) as house:
        await house.apply(**{f"job{n}": {"cron": "5 10 * * *", "catch_up": "none"} for n in range(60)})
        await house.run_until(at("10:16"))
        assert sum(len(house.fired(f"job{n}")) for n in range(60)) == 60
        assert await house.rows(tables.skip) == []


async def test_seen_before_the_downtime_means_never_expired(tmp_path: Path) -> None:
    """They were due, seen, and waited for a token when the process died: the downtime is not their fault."""
    async with House(tmp_path, rate=Rate(0.1, 1)) as house:
        await house.apply(**{f"job{n}": {"cron": "5 10 * * *", "catch_up": "none"} for n in range(10)})
        await house.run_until(at("10:05:21"))
        assert sum(len(house.fired(f"job{n}")) for n in range(10)) == 3
        await house.down_for(minutes=30)
        await house.run_for(minutes=3)
        assert sum(len(house.fired(f"job{n}")) for n in range(10)) == 10


async def test_tried_once_means_never_expired(tmp_path: Path) -> None:
    """A run whose call failed before the downtime may exist over there: it is tried again, not skipped."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *", "catch_up": "none"})
        await house.run_until(at("10:04:59"))
        house.target.down = "no"
        await house.run_until(at("10:05"))
        house.target.down = None
        await house.down_for(minutes=30)
        await house.run_for(seconds=5)
        assert house.fired("tick") == times("10:05")


async def test_the_first_look_after_a_gap_skips_all_that_expired(tmp_path: Path) -> None:
    """However many: what it leaves would look, to the second look, as if it had been seen in time."""
    async with House(tmp_path, rate=Rate(5, 5)) as house:
        await house.apply(**{f"job{n}": {"cron": "5 10 * * *", "catch_up": "none"} for n in range(120)})
        await house.run_until(at("10:04"))
        await house.down_for(minutes=30)
        await house.run_for(minutes=2)
        assert house.calls == []
        assert sum(row._mapping["count"] for row in await house.rows(tables.skip)) == 120


async def test_on_time_goes_before_backlog_and_neither_starves(tmp_path: Path) -> None:
    """After an outage hundreds of old runs wait at two a second. A new minute's runs don't queue behind."""
    async with House(tmp_path, rate=Rate(2, 2)) as house:
        await house.apply(
            old={"every": 5, "catch_up": "all"},
            fresh={"cron": "* * * * *"},
        )
        await house.run_until(at("10:00:30"))
        await house.down_for(minutes=40)
        start = house.clock.now()
        await house.run_for(minutes=4)
        late = {slot: when - slot for when, name, slot, _ in house.calls if name == "fresh" and slot > start}
        assert len(late) == 4
        assert max(late.values()) <= timedelta(seconds=3)
        backlog = [slot for when, name, slot, _ in house.calls if name == "old" and slot < start < when]
        assert len(backlog) > 50


async def test_one_bad_trigger_does_not_stop_its_neighbours(tmp_path: Path) -> None:
    """A rule that can't be evaluated any more (its zone is gone from the database) costs itself alone."""
    async with House(tmp_path) as house:
        await house.apply(good={"cron": "* * * * *"}, bad={"cron": "* * * * *", "timezone": "Europe/Berlin"})
        spoil = tables.trigger_revision.update().where(
            tables.trigger_revision.c.digest == house.specs[key_of("bad")].digest()
        )
        broken = {
            **next(iter(house.specs.values())).to_json(),
            "schedule": {"cron": "* * * * *", "timezone": "Mars/Base"},
        }
        await house.write(spoil.values(spec=broken))
        await house.run_until(at("10:03"))
        assert house.fired("good") == times("10:01", "10:02", "10:03")
        rows = {row.deployment: row for row in await house.rows(tables.trigger)}
        assert "Mars/Base" in rows["bad"].error
        assert rows["bad"].plan_due_at is not None, "never stuck: it is tried again"
        assert rows["good"].error is None


async def test_the_database_away_for_a_while_makes_runs_late_not_lost(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        away = Away(house.store)
        house.start_engine(away)
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:02:30"))
        away.away = True
        house.clock.advance(timedelta(minutes=2, seconds=40))
        with pytest.raises(Exception, match="connection refused"):
            await house.turn()
        away.away = False
        await house.run_until(at("10:07"))
        assert house.fired("tick") == every("10:01", "10:07")


async def test_an_answer_that_is_none_is_a_failed_call_that_people_see(tmp_path: Path) -> None:
    """A target of somebody's own answers with what no target may say: it is tried again, nothing hangs."""
    async with House(tmp_path) as house:
        house.target.script(lambda _: "done")  # type: ignore[arg-type,return-value]  # the mistake
        await house.apply(tick={"cron": "0 * * * *"})
        await house.run_until(at("11:00"))
        assert house.executor.in_flight == 0
        (row,) = await house.rows(tables.attempt)
        assert (row.answer, "'done' is no answer" in row.reason) == ("unavailable", True)
        await house.run_until(at("11:01"))
        assert house.fired("tick") == times("11:00")
