"""Pauses of deployments between replicas, in the worst order there is."""

from __future__ import annotations

from datetime import timedelta

from horarium.core.keys import TriggerKey
from horarium.core.revision import Status
from horarium.core.run import RunState
from horarium.core.spec import Listing, TriggerEntry
from horarium.store import tables as t
from tests.store.test_deployment_pause import of_a, statuses, triggers_of_a
from tests.store.test_interleavings import Replicas, planned
from tests.store.test_interleavings import replicas as replicas
from tests.store.world import NOW, at, entry, listing, spec, unavailable


async def test_a_pause_waits_for_a_trigger_that_is_being_added(replicas: Replicas) -> None:
    """Else it would not see the new trigger, which did not see the pause."""
    one, two = replicas.one, replicas.two
    await one.sync(triggers_of_a("one"))
    await replicas.interleaved(
        "commit",
        one.sync(triggers_of_a("one", "two"), version=1),
        two.pause_deployment("a", at("10:01")),
    )
    assert await statuses(two) == {"a/one": "paused", "a/two": "paused"}


async def test_a_trigger_that_is_added_waits_for_a_pause(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.sync(triggers_of_a("one"))
    await replicas.interleaved(
        "commit",
        one.pause_deployment("a", at("10:01")),
        two.store.create_trigger(Listing("api", triggers=(of_a("two"),)), at("10:01"), "ben"),
    )
    assert await statuses(two) == {"a/one": "paused", "a/two": "paused"}


async def test_a_trigger_that_is_revived_waits_for_a_pause(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.sync(triggers_of_a("one", "two"))
    await one.sync(triggers_of_a("one"))
    await replicas.interleaved(
        "commit",
        one.pause_deployment("a", at("10:01")),
        two.sync(triggers_of_a("one", "two"), at("10:01"), version=2),
    )
    assert await statuses(two) == {"a/one": "paused", "a/two": "paused"}


async def test_a_trigger_that_is_moved_here_waits_for_a_pause(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.sync(listing(of_a("one"), entry("b")))
    moved = TriggerEntry(
        TriggerKey("default", "default", "a", "two"), spec(), renamed_from="default/default/b/default"
    )
    await replicas.interleaved(
        "commit",
        one.pause_deployment("a", at("10:01")),
        two.sync(listing(of_a("one"), moved), at("10:01"), version=1),
    )
    assert await statuses(two) == {"a/one": "paused", "a/two": "paused"}


async def test_a_put_that_names_the_version_waits_for_the_pause_before_it_looks(replicas: Replicas) -> None:
    """It would else hold the trigger that the pause comes to, and wait for what the pause has taken first."""
    one, two = replicas.one, replicas.two
    await one.add("a")
    await replicas.interleaved(
        "commit",
        one.pause_deployment("a", at("10:01")),
        two.store.create_trigger(
            Listing("api", triggers=(entry("a", "*/2 * * * *"),)), at("10:01"), "ben", expected_revision=2
        ),
    )
    (found,) = await two.triggers()
    assert (found.status, found.revision) == (Status.PAUSED, 3)


async def test_a_resume_of_a_trigger_that_waited_for_the_pause_of_its_deployment_leaves_it_paused(
    replicas: Replicas,
) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.pause("a", at("10:01"))
    await replicas.interleaved("commit", one.pause_deployment("a", at("10:02")), two.resume("a", at("10:02")))
    (found,) = await two.triggers()
    assert (found.status, found.paused) == (Status.PAUSED, False)
    await one.resume_deployment("a", at("10:03"))
    assert (await two.triggers())[0].status is Status.ACTIVE


async def test_a_pause_that_waited_for_the_resume_of_a_trigger_stops_it(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.pause("a", at("10:01"))
    await replicas.interleaved("commit", one.resume("a", at("10:02")), two.pause_deployment("a", at("10:02")))
    (found,) = await two.triggers()
    assert (found.status, found.paused) == (Status.PAUSED, False)


async def test_runs_that_a_planner_is_writing_are_withdrawn_by_the_pause_that_waited(
    replicas: Replicas,
) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    await replicas.interleaved("commit", one.store.apply_plans(plans, NOW), two.pause_deployment("a", NOW))
    assert await two.runs() == []


async def test_a_planner_that_waited_for_a_pause_writes_nothing(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    plans = await planned(one)
    _, applied = await replicas.interleaved(
        "commit", one.pause_deployment("a", NOW), two.store.apply_plans(plans, NOW)
    )
    assert applied.won == frozenset()
    await two.plan_all(NOW + timedelta(seconds=31))
    assert await two.runs() == []


async def test_a_run_that_is_being_claimed_is_fired_and_its_retry_is_held(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.plan(NOW)
    await one.look(at("10:05"))
    claims, _ = await replicas.interleaved(
        "commit", one.claim(at("10:05"), look=False), two.pause_deployment("a", at("10:05"))
    )
    (claimed,) = claims.runs
    assert await two.slots(state="scheduled") == await two.slots() == [at("10:05")]
    await one.settle(unavailable(claimed.run, at("10:06"), at("10:07")), now=at("10:06"))
    assert [run.state for run in await two.runs()] == [RunState.HELD]


async def test_a_claim_that_waited_for_a_pause_takes_nothing(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    await one.plan(NOW)
    await one.look(at("10:05"))
    await two.look(at("10:05"))
    _, claims = await replicas.interleaved(
        "commit",
        one.pause_deployment("a", at("10:05")),
        two.claim(at("10:05"), look=False),
        waits=False,
    )
    assert claims.runs == ()
    assert [run.state for run in await two.runs()] == [RunState.HELD]


async def test_of_two_pauses_at_once_one_finds_it_so(replicas: Replicas) -> None:
    one, two = replicas.one, replicas.two
    await one.add("a")
    first, second = await replicas.interleaved(
        "commit", one.pause_deployment("a", at("10:01")), two.pause_deployment("a", at("10:01"))
    )
    assert (first is not None, second) == (True, None)
    assert [row.number for row in await two.rows(t.trigger_revision)] == [1, 2]
