"""claim: what is due, in order, under the allowance, and by one executor at a time."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select, update

from horarium.core.plan import Window
from horarium.core.run import RunState
from horarium.core.spec import Rate
from horarium.store import tables as t
from horarium.store.base import Claims, Demand, ManualRequest
from tests.store.world import GRACE, LATE, LEASE, NOW, World, at, fired, key, minutes, refused, unavailable

SECOND = timedelta(seconds=1)


def slots(claims: Claims) -> list[datetime]:
    return [item.run.scheduled_time for item in claims.runs]


async def test_a_claimed_run_is_ours_until_the_lease_ends(world: World) -> None:
    await world.add("a", parameters={"day": "monday"})
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"), owner="me")).runs

    assert item.key == key("a")
    assert item.spec.parameters == {"day": "monday"}
    assert item.lease_until == at("10:06")
    assert (item.run.attempt, item.run.lease_owner, item.run.due_at) == (1, "me", at("10:06"))
    (stored, *_) = await world.runs("a")
    assert stored == item.run


async def test_nothing_is_claimed_before_it_is_due(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    assert slots(await world.claim(at("10:05") - timedelta(microseconds=1))) == []
    assert slots(await world.claim(at("10:05"))) == [at("10:05")]


async def test_what_one_claimer_has_another_does_not_get(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    first = await world.claim(at("10:05"), 3, owner="one")
    second = await world.claim(at("10:05"), owner="two")
    assert sorted(slots(first) + slots(second)) == minutes(1, NOW, at("10:05"))
    assert len(first.runs) == 3


async def test_an_expired_lease_is_claimed_again_and_its_outcome_is_unknown(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (first,) = (await world.claim(at("10:05"), owner="dead")).runs
    assert (await world.claim(at("10:05:59"), owner="me")).runs == ()
    (again,) = (await world.claim(at("10:06"), owner="me")).runs
    assert (again.run.id, again.run.attempt, again.run.lease_owner) == (first.run.id, 2, "me")
    assert again.run.outcome_unknown
    assert again.run.first_claimed_at == at("10:05")


async def test_a_settled_retry_is_not_unknown(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (first,) = (await world.claim(at("10:05"))).runs
    await world.settle(unavailable(first.run, at("10:05"), at("10:05:10")), now=at("10:05"))
    (again,) = (await world.claim(at("10:05:10"))).runs
    assert not again.run.outcome_unknown


async def test_the_spec_is_that_of_the_runs_own_revision(world: World) -> None:
    await world.add("a", "*/5 * * * *", parameters={"v": 1})
    await world.plan(NOW)
    await world.edit("a", "*/5 * * * *", at("10:06"), parameters={"v": 2})
    await world.plan(at("10:06"))
    claims = await world.claim(at("10:10"))
    assert sorted((item.run.scheduled_time, item.spec.parameters["v"]) for item in claims.runs) == [
        (at("10:05"), 1),
        (at("10:10"), 2),
    ]


# order


async def test_on_time_goes_before_backlog_and_one_claim_in_five_the_other_way(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = at("10:10")
    await world.look(now)
    backlog = minutes(1, NOW, now - LATE)
    on_time = minutes(1, now - LATE, now)
    assert slots(await world.claim(now, 4)) == [*on_time, *backlog[:3]]
    assert slots(await world.claim(now, 2, backlog_first=True)) == backlog[3:5]


async def test_backlog_first_takes_what_is_on_time_where_room_is_left(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = at("10:04")
    assert slots(await world.claim(now, backlog_first=True)) == [*minutes(1, NOW, at("10:03")), now]


async def test_a_retry_counts_as_backlog(world: World) -> None:
    """Else, at a load just under the limit, it would wait behind all that is on time, for ever."""
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    (tried,) = (await world.claim(at("10:01"))).runs
    await world.settle(unavailable(tried.run, at("10:01"), at("10:02")), now=at("10:01"))
    assert slots(await world.claim(at("10:02"), 1)) == [at("10:02")]
    (again,) = (await world.claim(at("10:02"), 1, backlog_first=True)).runs
    assert again.run.id == tried.run.id


async def test_several_targets_are_claimed_from_at_once_each_for_what_it_wants(world: World) -> None:
    await world.add("a", "* * * * *", target="one")
    await world.add("b", "* * * * *", target="two")
    await world.plan(NOW)
    now = at("10:05")
    for name in ("one", "two"):
        await world.look(now, name)
    claims = await world.store.claim(
        [Demand(await world.target_id("two"), 1, None), Demand(await world.target_id("one"), 2, None)],
        now,
        now + LEASE,
        "me",
        backlog_first=True,
        late_after=LATE,
        grace=GRACE,
    )
    assert sorted((item.key.deployment, item.run.scheduled_time) for item in claims.runs) == [
        ("a", at("10:01")),
        ("a", at("10:02")),
        ("b", at("10:01")),
    ]
    assert claims.more


# allowance


async def test_a_burst_goes_through_then_one_token_at_a_time(world: World) -> None:
    rate = Rate(2.0, 3)
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = at("10:10")
    first = await world.claim(now, rate=rate)
    assert len(first.runs) == 3
    assert first.refill_at == now + timedelta(milliseconds=500)
    assert (await world.claim(now + timedelta(milliseconds=499), rate=rate)).runs == ()
    second = await world.claim(now + timedelta(milliseconds=500), rate=rate)
    assert len(second.runs) == 1
    assert second.refill_at == now + timedelta(seconds=1)
    later = await world.claim(now + timedelta(seconds=30), rate=rate)
    assert len(later.runs) == 3


async def test_two_claimers_share_one_allowance(world: World) -> None:
    rate = Rate(1.0, 5)
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = at("10:10")
    one = await world.claim(now, 3, rate=rate, owner="one")
    two = await world.claim(now, 3, rate=rate, owner="two")
    assert (len(one.runs), len(two.runs)) == (3, 2)


async def test_a_clock_earlier_than_the_last_refill_adds_nothing_and_moves_nothing_back(world: World) -> None:
    rate = Rate(10.0, 4)
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    now = at("10:10")
    assert len((await world.claim(now, 3, rate=rate)).runs) == 3
    before = await world.allowance()
    assert before.refilled_at == now
    assert before.tokens == 1
    behind = await world.claim(now - timedelta(seconds=30), rate=rate)
    assert len(behind.runs) == 1
    after = await world.allowance()
    assert (after.refilled_at, after.looked_at, after.tokens) == (now, now, 0)


async def test_a_claim_names_the_targets_whose_due_runs_wait_for_a_token(world: World) -> None:
    """`limited`: not one that nothing waits for, nor one that wanted no more."""
    rate = Rate(1.0, 2)
    for name, target in (("a", "busy"), ("b", "quiet")):
        await world.add(name, "*/5 * * * *", target=target)
    await world.plan(NOW)
    now = at("10:10")
    busy, quiet = await world.target_id("busy"), await world.target_id("quiet")
    assert (await world.claim(now, rate=rate, target="quiet")).limited == ()  # two due, two tokens
    for name in ("c", "d"):
        await world.add(name, "*/5 * * * *", target="busy", now=NOW)
    await world.plan(NOW)
    assert (await world.claim(now, 1, rate=rate, target="busy")).limited == ()  # it asked for no more
    claims = await world.store.claim(
        [Demand(quiet, 10, rate), Demand(busy, 10, rate)],
        now,
        now + timedelta(seconds=60),
        "me",
        backlog_first=False,
        late_after=timedelta(seconds=60),
        grace=timedelta(seconds=60),
    )
    assert len(claims.runs) == 1
    assert claims.limited == (busy,)
    assert (await world.claim(now, rate=rate, target="busy")).limited == (busy,)
    assert (await world.claim(now, rate=None, target="busy")).limited == ()


async def test_without_a_rate_there_is_no_limit_and_no_refill(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    claims = await world.claim(at("11:00"), rate=None)
    assert len(claims.runs) == 60
    assert (claims.refill_at, claims.more) == (None, False)


async def test_more_says_that_others_are_due(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    assert (await world.claim(at("10:10"), 4)).more
    assert not (await world.claim(at("10:10"), 6)).more


async def test_tokens_are_debited_for_what_was_claimed_only(world: World) -> None:
    rate = Rate(0.001, 10)
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    assert len((await world.claim(at("10:02"), rate=rate)).runs) == 2
    assert round((await world.allowance()).tokens) == 8


async def test_a_frozen_target_is_not_claimed_from_but_is_looked_at(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    await world.look(at("10:02"))
    await world.run_sql(update(t.target_allowance).values(frozen=True))
    assert (await world.claim(at("10:02:30"), look=False)).runs == ()
    assert (await world.allowance()).looked_at == at("10:02:30")
    assert await world.store.next_due(NOW) is None


# looked_at


async def test_a_target_nobody_looked_at_is_not_claimed_from(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    claims = await world.claim(at("10:05"), look=False)
    assert claims.runs == ()
    assert claims.unlooked == (await world.target_id(),)
    assert (await world.allowance()).looked_at == NOW


async def test_a_claim_that_found_something_moves_looked_at(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    await world.claim(at("10:01"), look=False)
    assert (await world.allowance()).looked_at == at("10:01")
    # A backlog that waits for its limit has been seen, or it would expire by our own slowness.
    await world.claim(at("10:01:50"), 0, look=False)
    await world.claim(at("10:02"), 0, look=False)
    assert (await world.allowance()).looked_at == at("10:02")


# stopped meanwhile


async def test_a_retry_whose_trigger_was_paused_meanwhile_becomes_held(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (run,) = (await world.claim(at("10:05"), owner="dead")).runs
    await world.pause("a", at("10:05:30"))  # the lease lives: the pause can't touch it
    assert (await world.claim(at("10:06"), owner="me")).runs == ()
    (stored,) = await world.runs("a")
    assert (stored.state, stored.lease_owner, stored.outcome_unknown) == (RunState.HELD, None, True)
    await world.resume("a", at("10:08"))
    (again,) = (await world.claim(at("10:08"))).runs
    assert (again.run.id, again.run.attempt) == (run.run.id, 2)


async def test_a_retry_whose_trigger_was_deleted_meanwhile_ends_failed(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.claim(at("10:05"), owner="dead")
    await world.delete("a", at("10:05:30"))
    assert (await world.claim(at("10:06"), owner="me")).runs == ()
    (stored,) = await world.runs("a")
    assert stored.state is RunState.FAILED
    assert stored.settled_at == at("10:06")
    assert stored.reason is not None
    assert stored.reason.startswith("trigger deleted while it waited; the answer to an earlier call was lost")


async def test_a_manual_run_of_a_trigger_that_was_deleted_meanwhile_ends_failed_too(world: World) -> None:
    await world.add("a")
    await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), NOW)
    await world.claim(NOW, owner="dead")
    await world.delete("a", NOW + SECOND)
    assert (await world.claim(NOW + LEASE, owner="me")).runs == ()
    (stored,) = await world.runs("a", origin="manual")
    assert stored.state is RunState.FAILED


async def test_what_was_stopped_takes_no_place_from_the_others(world: World) -> None:
    for name in ("a", "b"):
        await world.add(name)
    await world.plan(NOW)
    await world.claim(at("10:05"), owner="dead")
    await world.pause("a", at("10:05:30"))
    assert [item.key for item in (await world.claim(at("10:06"), 1)).runs] == [key("b")]


# next due


async def test_next_due_is_the_earliest_after_now_retries_and_leases_among_them(world: World) -> None:
    await world.add("a")
    await world.plan(NOW, Window(min_runs=1, max_runs=1))
    assert await world.store.next_due(NOW) == at("10:05")
    (run,) = (await world.claim(at("10:05"))).runs
    assert await world.store.next_due(at("10:05")) == at("10:06")
    await world.settle(unavailable(run.run, at("10:05"), at("10:05:10")), now=at("10:05"))
    assert await world.store.next_due(at("10:05")) == at("10:05:10")
    assert await world.store.next_due(at("10:05:10")) is None


# settle


async def test_fired_is_written_with_its_times_and_its_attempt(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    assert await world.settle(fired(item.run, at("10:05:01")), now=at("10:05:02")) == {item.run.id}
    (run, *_) = await world.runs("a")
    assert (run.state, run.lease_owner, run.target_run_id) == (RunState.FIRED, None, "job-1")
    assert (run.fired_at, run.settled_at) == (at("10:05:01"), at("10:05:02"))
    (row,) = await world.store.fetch(select(t.attempt))
    assert (row.run_id, row.attempt, row.answer) == (run.id, 1, "created")
    assert (await world.claim(at("10:30"), look=False)).runs == () or at("10:05") not in slots(
        await world.claim(at("10:30"))
    )


async def test_a_failure_and_a_retry_are_written(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    one, two = (await world.claim(at("10:02"))).runs
    await world.settle(
        refused(one.run, at("10:02:01")),
        unavailable(two.run, at("10:02:01"), at("10:02:09")),
        now=at("10:02:02"),
    )
    by_id = {run.id: run for run in await world.runs("a")}
    assert by_id[one.run.id].state is RunState.FAILED
    assert by_id[one.run.id].settled_at == at("10:02:02")
    assert by_id[one.run.id].reason == "no such job"
    retried = by_id[two.run.id]
    assert (retried.state, retried.due_at, retried.lease_owner) == (RunState.SCHEDULED, at("10:02:09"), None)
    assert (retried.settled_at, retried.reason, retried.attempt) == (None, "down", 1)


async def test_a_zombies_late_failure_does_not_undo_a_success(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (old,) = (await world.claim(at("10:05"), owner="zombie")).runs
    (new,) = (await world.claim(at("10:06"), owner="me")).runs
    await world.settle(fired(new.run, at("10:06")), now=at("10:06"))
    assert await world.settle(refused(old.run, at("10:07")), now=at("10:07")) == set()
    (run, *_) = await world.runs("a")
    assert run.state is RunState.FIRED


async def test_a_zombies_late_failure_does_not_take_a_lease_away(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (old,) = (await world.claim(at("10:05"), owner="zombie")).runs
    (new,) = (await world.claim(at("10:06"), owner="me")).runs
    late = unavailable(old.run, at("10:06:10"), at("10:06:20"))
    assert await world.settle(late, now=at("10:06:10")) == set()
    (run, *_) = await world.runs("a")
    assert (run.lease_owner, run.due_at, run.attempt) == ("me", new.lease_until, 2)


async def test_a_zombies_late_success_undoes_a_failure(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (old,) = (await world.claim(at("10:05"), owner="zombie")).runs
    (new,) = (await world.claim(at("10:06"), owner="me")).runs
    await world.settle(refused(new.run, at("10:06")), now=at("10:06"))
    assert await world.settle(fired(old.run, at("10:07")), now=at("10:07")) == {old.run.id}
    (run, *_) = await world.runs("a")
    assert (run.state, run.reason, run.fired_at) == (RunState.FIRED, None, at("10:07"))


async def test_a_zombies_late_success_ends_a_retry_and_a_lease(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (old,) = (await world.claim(at("10:05"), owner="zombie")).runs
    (new,) = (await world.claim(at("10:06"), owner="me")).runs
    await world.settle(fired(old.run, at("10:06:10")), now=at("10:06:10"))
    assert (
        await world.settle(unavailable(new.run, at("10:06:20"), at("10:06:30")), now=at("10:06:20")) == set()
    )
    (run, *_) = await world.runs("a")
    assert (run.state, run.lease_owner) == (RunState.FIRED, None)


async def test_a_success_and_a_failure_of_one_run_in_one_batch_is_a_success(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (old,) = (await world.claim(at("10:05"), owner="me")).runs
    (new,) = (await world.claim(at("10:06"), owner="me")).runs
    for outcomes in (
        (fired(old.run, at("10:06")), unavailable(new.run, at("10:06"), at("10:07"))),
        (unavailable(new.run, at("10:06"), at("10:07")), fired(old.run, at("10:06"))),
    ):
        await world.run_sql(
            update(t.run)
            .where(t.run.c.id == new.run.id)
            .values(state="scheduled", lease_owner="me", due_at=new.lease_until)
        )
        await world.settle(*outcomes, now=at("10:06"))
        (run, *_) = await world.runs("a")
        assert run.state is RunState.FIRED
    assert len(await world.rows(t.attempt)) == 2


async def test_an_answer_that_is_settled_twice_takes_effect_once(world: World) -> None:
    """A settle whose own answer was lost is sent again."""
    await world.add("a")
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    retry = unavailable(item.run, at("10:05"), at("10:05:30"))
    assert await world.settle(retry, now=at("10:05")) == {item.run.id}
    assert await world.settle(retry, now=at("10:05:01")) == set()
    done = fired(item.run, at("10:05:02"))
    assert await world.settle(done, now=at("10:05:02")) == {item.run.id}
    assert await world.settle(done, now=at("10:05:03")) == set()
    assert len(await world.rows(t.attempt)) == 1


async def test_a_retry_of_a_paused_trigger_is_held_and_of_a_deleted_one_failed(world: World) -> None:
    for name in ("paused", "deleted"):
        await world.add(name)
    await world.plan(NOW)
    claims = await world.claim(at("10:05"))
    await world.pause("paused", at("10:05:10"))
    await world.delete("deleted", at("10:05:10"))
    await world.settle(
        *(unavailable(item.run, at("10:05:20"), at("10:06")) for item in claims.runs), now=at("10:05:20")
    )
    (held,) = await world.runs("paused")
    assert (held.state, held.due_at) == (RunState.HELD, at("10:06"))
    (failed,) = await world.runs("deleted")
    assert (failed.state, failed.settled_at) == (RunState.FAILED, at("10:05:20"))
    assert failed.reason == "down; trigger deleted while it waited"


async def test_the_settled_run_is_the_only_one_touched(world: World) -> None:
    await world.add("a", "* * * * *")
    await world.plan(NOW)
    (item, *_) = (await world.claim(at("10:05"))).runs
    before = {run.id: run for run in await world.runs()}
    await world.settle(fired(item.run, at("10:05")), now=at("10:05"))
    after = {run.id: run for run in await world.runs()}
    assert {run_id for run_id in before if before[run_id] != after[run_id]} == {item.run.id}
    assert await world.settle(now=at("10:05")) == set()
