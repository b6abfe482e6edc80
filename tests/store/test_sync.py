"""sync_source and create_trigger: a source owns what it names, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from horarium.core.keys import DeploymentKey
from horarium.core.plan import Window
from horarium.core.reconcile import Known, Reconciled
from horarium.core.revision import Status
from horarium.core.spec import DeploymentSpec, Listing, Rate, TargetSpec, TriggerEntry, TriggerSpec
from horarium.errors import StaleVersion
from horarium.store import tables as t
from horarium.store.sql import script
from tests.store.world import NOW, World, at, entry, key, listing, minutes, spec

SECOND = timedelta(seconds=1)


async def test_a_new_source_adds_targets_deployments_and_triggers_in_one_pass(world: World) -> None:
    result = await world.sync(listing(entry("a"), entry("b", active=False)))

    assert result.written
    assert result.version == 1
    assert await world.store.source_version("team.yaml") == 1
    a, b = await world.triggers()
    assert (a.key, a.managed_by, a.revision, a.status) == (key("a"), "team.yaml", 1, Status.ACTIVE)
    assert b.status is Status.PAUSED
    assert (a.cursor, a.plan_due_at, a.hash_seed) == (NOW, NOW, "default/default/a/default")
    assert [row.name for row in await world.rows(t.target)] == [
        "local",
        "work",
    ]  # the first comes with the schema
    assert [row.name for row in await world.rows(t.deployment)] == ["a", "b"]
    allowance = await world.allowance()
    assert (allowance.looked_at, allowance.refilled_at, allowance.frozen) == (NOW, NOW, False)


async def test_the_same_listing_again_changes_no_trigger(world: World) -> None:
    given = listing(entry("a"), entry("b"))
    await world.sync(given)
    await world.plan(NOW)
    triggers, revisions = await world.triggers(), await world.rows(t.trigger_revision)
    result = await world.sync(given, at("10:01"))
    assert (result.decided.unchanged, result.decided.empty, result.written) == (2, True, False)
    assert result.version == 2
    assert await world.triggers() == triggers
    assert await world.rows(t.trigger_revision) == revisions


async def test_gone_is_withdrawn_changed_is_edited_new_is_added(world: World) -> None:
    await world.sync(listing(entry("gone"), entry("changed"), entry("same")))
    await world.plan(NOW)
    result = await world.sync(
        listing(entry("changed", "*/7 * * * *"), entry("same"), entry("new")), at("10:06")
    )
    decided = result.decided
    assert [item.key for item in decided.withdrawn] == [key("gone")]
    assert [item.entry.key for item in decided.edited] == [key("changed")]
    assert [item.key for item in decided.added] == [key("new")]
    assert decided.unchanged == 1
    assert sorted(item.change.what for item in result.changes) == ["delete", "edit"]
    assert (await world.trigger("gone")).status is Status.DELETED
    assert await world.skips("gone") == [(at("10:05"), at("10:05"), 1, "deleted")]
    await world.plan(at("10:06"))
    assert await world.slots("changed") == [at("10:05"), *minutes(7, at("10:06"), at("12:06"))]
    assert [row.withdrawn for row in await world.rows(t.deployment)] == [True, False, False, False]


async def test_a_new_trigger_owes_its_slots_since_its_source_says(world: World) -> None:
    early = replace(entry("a"), since=at("09:42"))
    fired = replace(entry("b"), since=at("09:42"), last_slot=at("09:50"))
    ahead = replace(entry("c"), since=at("10:30"))
    await world.sync(listing(early, fired, ahead))
    assert [(item.cursor, item.created_at) for item in await world.triggers()] == [
        (at("09:42"), NOW),
        (at("09:50"), NOW),
        (NOW, NOW),
    ]
    await world.plan(NOW)
    assert (await world.slots("a"))[:4] == [at("09:45"), at("09:50"), at("09:55"), at("10:00")]
    assert (await world.slots("b"))[:2] == [at("09:55"), at("10:00")]
    assert (await world.slots("c"))[0] == at("10:05")


async def test_an_edit_begins_since_its_source_says_but_after_what_was_claimed(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    await world.plan(NOW)
    claims = await world.claim(at("10:06"))  # 10:05 of both
    assert len(claims.runs) == 2
    changed = [
        replace(entry(name, "*/3 * * * *"), since=at(when)) for name, when in (("a", "10:10"), ("b", "10:02"))
    ]
    await world.sync(listing(*changed), at("10:20"))
    await world.plan(at("10:20"))
    begun = [row.effective_from for row in await world.rows(t.trigger_revision) if row.number == 2]
    assert sorted(begun) == [at("10:05"), at("10:10")]
    assert (await world.slots("a"))[:5] == [at("10:05"), at("10:10"), at("10:12"), at("10:15"), at("10:18")]
    assert (await world.slots("b"))[:5] == [at("10:05"), at("10:06"), at("10:09"), at("10:12"), at("10:15")]


async def test_a_stale_listing_is_refused(world: World) -> None:
    await world.sync(listing(entry("a")))
    version = await world.store.source_version("team.yaml")
    await world.sync(listing(entry("a"), entry("b")), version=version)
    before = await world.everything()
    result = await world.sync(listing(entry("a")), at("10:01"), version=version)
    assert result.stale
    assert result.version == version + 1
    assert await world.everything() == before


async def test_an_unchanged_listing_makes_older_ones_stale_too(world: World) -> None:
    """A slow replica that listed before it must not bring back what it saw."""
    await world.sync(listing(entry("a"), entry("b")))
    version = await world.store.source_version("team.yaml")
    await world.sync(listing(entry("a"), entry("b")), version=version)
    assert (await world.sync(listing(entry("a")), version=version)).stale


async def test_entries_that_could_not_be_read_are_neither_gone_nor_changed(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    result = await world.sync(listing(entry("a"), kept=frozenset({key("b")})), at("10:01"))
    assert result.decided.empty
    assert (await world.trigger("b")).status is Status.ACTIVE


async def test_a_large_withdrawal_is_refused_until_it_is_allowed(world: World) -> None:
    entries = [entry(f"t{number:02}") for number in range(20)]
    await world.sync(listing(*entries))
    before = await world.everything()
    result = await world.sync(listing(*entries[6:]), at("10:01"))
    assert not result.written
    assert result.decided.refused is not None
    assert "6 of the 20" in result.decided.refused
    assert await world.everything() == before

    assert (await world.sync(listing(*entries[5:]), at("10:02"))).written
    assert (await world.sync(listing(*entries[19:]), at("10:03"), allow_withdraw=True)).written
    assert [item.key for item in await world.triggers() if item.status is Status.ACTIVE] == [key("t19")]


async def test_a_key_of_another_source_or_of_people_is_refused_and_nothing_is_written(world: World) -> None:
    await world.sync(listing(entry("a"), source="one.yaml"))
    await world.add("mine")
    before = await world.everything()
    taken = listing(entry("a"), entry("mine"), entry("new"), source="two.yaml")
    result = await world.sync(replace(taken, targets=()))
    assert not result.written
    pointers = {problem.pointer for problem in result.decided.problems}
    assert "/deployments/a/triggers/default" in pointers
    assert "/deployments/mine/triggers/default" in pointers
    assert all(problem.code == "managed" for problem in result.decided.problems)
    assert await world.everything() == before


async def test_a_target_that_another_source_defines_otherwise_is_refused(world: World) -> None:
    await world.sync(listing(entry("a"), source="one.yaml"))
    other = replace(
        listing(entry("b"), source="two.yaml"), targets=(TargetSpec("work", "http", rate=Rate(1.0, 1)),)
    )
    (problem,) = (await world.sync(other)).decided.problems
    assert problem.pointer == "/targets/work"
    assert (await world.sync(listing(entry("b"), source="two.yaml"))).written  # the same is shared


async def test_a_dry_run_says_what_it_would_do_and_does_nothing(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    await world.plan(NOW)
    before = await world.everything()
    result = await world.sync(listing(entry("a", "*/7 * * * *")), at("10:01"), dry_run=True)
    assert not result.written
    assert sorted(item.change.what for item in result.changes) == ["delete", "edit"]
    assert await world.everything() == before


async def test_a_decision_that_raises_changes_nothing(world: World) -> None:
    await world.sync(listing(entry("a")))
    before = await world.everything()

    def decide(known: Known) -> Reconciled:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await world.store.sync_source(listing(entry("b")), 1, decide, at("10:01"), "sync")
    assert await world.everything() == before


async def test_a_rename_keeps_id_seed_cursor_and_planned_runs(world: World) -> None:
    await world.sync(listing(entry("old")))
    await world.plan(NOW)
    old, runs = await world.trigger("old"), await world.runs()
    result = await world.sync(listing(entry("new", renamed_from="old/default")), at("10:01"))
    assert result.decided.withdrawn == ()
    (new,) = await world.triggers()
    assert (new.id, new.hash_seed, new.cursor, new.revision) == (old.id, old.hash_seed, old.cursor, 1)
    assert new.key == key("new")
    assert await world.runs() == runs
    again = await world.sync(listing(entry("new", renamed_from="old/default")), at("10:02"))
    assert again.decided.empty


async def test_a_rename_with_an_edit_is_both(world: World) -> None:
    await world.sync(listing(entry("old")))
    await world.plan(NOW)
    old = await world.trigger("old")
    await world.sync(listing(entry("new", "*/7 * * * *", renamed_from="old/default")), at("10:06"))
    new = await world.trigger("new")
    assert (new.id, new.hash_seed, new.revision) == (old.id, old.hash_seed, 2)
    await world.plan(at("10:06"))
    assert await world.slots("new") == [at("10:05"), *minutes(7, at("10:06"), at("12:06"))]


async def test_a_rename_whose_old_name_is_still_listed_is_refused(world: World) -> None:
    await world.sync(listing(entry("old")))
    before = await world.everything()
    both = listing(entry("old"), entry("new", renamed_from="old/default"))
    (problem,) = (await world.sync(both, at("10:01"))).decided.problems
    assert problem.pointer == "/deployments/new/triggers/default/renamed_from"
    twice = listing(entry("one", renamed_from="old/default"), entry("two", renamed_from="old/default"))
    (problem,) = (await world.sync(twice, at("10:01"))).decided.problems
    assert problem.pointer == "/deployments/two/triggers/default/renamed_from"
    assert await world.everything() == before


async def test_added_again_after_a_delete_it_is_the_same_trigger(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b")))
    first = await world.trigger("a")
    await world.sync(listing(entry("b")), at("10:02"))
    await world.sync(listing(entry("a"), entry("b")), at("10:31"))
    again = await world.trigger("a")
    assert (again.id, again.hash_seed, again.cursor) == (first.id, first.hash_seed, at("10:31"))
    await world.plan_all(at("10:31"))
    assert await world.slots("a") == minutes(5, at("10:31"), at("12:31"))


async def test_a_tombstone_may_be_revived_by_another_source(world: World) -> None:
    await world.sync(listing(entry("a"), entry("b"), source="one.yaml"))
    await world.sync(listing(entry("b"), source="one.yaml"), at("10:01"))
    given = replace(listing(entry("a"), source="two.yaml"), targets=())
    assert (await world.sync(given, at("10:02"))).written
    assert (await world.trigger("a")).managed_by == "two.yaml"


async def test_an_operators_pause_survives_a_sync(world: World) -> None:
    await world.sync(listing(entry("a")))
    await world.pause("a", at("10:01"))
    await world.sync(listing(entry("a", "*/7 * * * *")), at("10:02"))
    trigger = await world.trigger("a")
    assert (trigger.paused, trigger.status) == (True, Status.PAUSED)


async def test_a_withdrawn_target_with_pending_runs_is_still_fired_into(world: World) -> None:
    await world.sync(listing(entry("a")))
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.sync(Listing("team.yaml"), at("10:05:10"), allow_withdraw=True)
    assert [row.spec.name for row in await world.store.targets()] == ["local", "work"]
    from tests.store.world import fired

    await world.settle(fired(claimed.run, at("10:05:20")), now=at("10:05:20"))
    assert [row.spec.name for row in await world.store.targets()] == ["local"]


async def test_a_source_that_fails_is_seen_and_removes_nothing(world: World) -> None:
    await world.sync(listing(entry("a")))
    await world.store.source_failed("team.yaml", "line 3: not a rule", at("10:01"))
    await world.store.source_failed("never.yaml", "no such file", at("10:01"))
    rows = {row.name: row for row in await world.rows(t.source)}
    assert (rows["team.yaml"].error, rows["team.yaml"].version) == ("line 3: not a rule", 1)
    assert (rows["never.yaml"].error_at, rows["never.yaml"].version) == (at("10:01"), 0)
    assert (await world.trigger("a")).status is Status.ACTIVE
    await world.sync(listing(entry("a")), at("10:02"))
    (row,) = await world.store.fetch(select(t.source).where(t.source.c.name == "team.yaml"))
    assert (row.error, row.error_at) == (None, None)


# create_trigger


def people(name: str = "a", cron: str = "*/5 * * * *") -> Listing:
    return Listing(
        "api",
        (TargetSpec("work", "http"),),
        (DeploymentSpec(DeploymentKey("default", "default", name), "work"),),
        (TriggerEntry(key(name), spec(cron)),),
    )


async def test_people_create_one_trigger_and_withdraw_no_other(world: World) -> None:
    await world.add("a")
    await world.add("b")
    assert [item.managed_by for item in await world.triggers()] == [None, None]
    assert {item.status for item in await world.triggers()} == {Status.ACTIVE}


async def test_expected_revision_guards_create_and_replace(world: World) -> None:
    store = world.store
    assert (await store.create_trigger(people(), NOW, "ann", expected_revision=0)).written
    with pytest.raises(StaleVersion):
        await store.create_trigger(people(cron="0 * * * *"), NOW, "bob", expected_revision=0)
    await store.create_trigger(people(cron="0 * * * *"), at("10:01"), "ann", expected_revision=1)
    before = await world.everything()
    with pytest.raises(StaleVersion, match="2, not 1"):
        await store.create_trigger(people(cron="1 * * * *"), at("10:02"), "bob", expected_revision=1)
    assert await world.everything() == before


async def test_a_deleted_trigger_counts_as_not_there(world: World) -> None:
    await world.add("a")
    await world.delete("a", at("10:01"))
    await world.store.create_trigger(people(), at("10:02"), "ann", expected_revision=0)
    assert (await world.trigger("a")).status is Status.ACTIVE


async def test_people_cannot_take_what_a_source_manages(world: World) -> None:
    await world.sync(listing(entry("a")))
    result = await world.store.create_trigger(people(cron="0 * * * *"), at("10:01"), "ann")
    assert not result.written
    assert result.decided.problems


async def test_more_triggers_than_one_statement_takes_come_in_one_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "CHUNK", 40)
    entries = [entry(f"t{number:03}") for number in range(210)]
    result = await world.sync(listing(*entries))
    assert len(result.decided.added) == 210
    assert [item.key for item in await world.triggers()] == [item.key for item in entries]
    edited = [replace(item, spec=spec("0 * * * *")) for item in entries[:50]]
    assert len((await world.sync(listing(*edited, *entries[50:]), at("10:01"))).changes) == 50


async def test_a_once_in_the_past_is_refused_when_new_and_left_alone_when_old(world: World) -> None:
    once = TriggerSpec(schedule={"at": "2026-01-05T11:00:00Z"}, target="work")
    assert (await world.sync(listing(TriggerEntry(key("a"), once)))).written
    late = await world.sync(listing(TriggerEntry(key("a"), once), TriggerEntry(key("b"), once)), at("11:01"))
    assert [problem.pointer for problem in late.decided.problems] == ["/deployments/b/triggers/default/at"]
    await world.plan_all(at("11:02"), Window())
    renamed = listing(TriggerEntry(key("c"), once, "a/default"))
    result = await world.sync(renamed, at("11:03"))
    assert result.decided.problems == ()
    assert result.written
