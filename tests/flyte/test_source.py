"""The source `flyte`: a backend's triggers, listed over real sockets, reconciled into a real store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.task import common_pb2
from flyteidl2.task.common_pb2 import Cron, FixedRate, Inputs, NamedLiteral, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec

from horarium import wiring
from horarium.config import load_settings
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey, run_name
from horarium.core.spec import Listing
from horarium.errors import InvalidInput
from horarium.flyte.messages import literal
from horarium.sources.base import SourceUnavailable
from horarium.sources.flyte import FlyteSource
from horarium.store import tables
from horarium.testing import VirtualClock
from tests.flyte.backend import Backend, Refuse
from tests.flyte.reading import KEY, TICK, Reader, details, every_minute, named, parts, source_at
from tests.fundamentals.house import House, at, every, key_of, times

DEPLOYED = datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)
NOW = datetime(2026, 1, 5, 10, 0, 30, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def listing_of(source: FlyteSource) -> Listing:
    await source.version()
    return await source.read()


# --- what is listed -------------------------------------------------------------------------------------


async def test_a_trigger_comes_with_its_schedule_kickoff_inputs_and_run_spec(
    backend: Backend, url: str
) -> None:
    full = details(
        cron=Cron(expression="0 6 * * *", timezone="Europe/Berlin"), kickoff_time_input_arg="as_of"
    )
    full.spec.inputs.CopyFrom(Inputs(literals=[NamedLiteral(name="region", value=literal("eu"))]))
    full.spec.run_spec.CopyFrom(RunSpec(queue="fast"))
    backend.deploy(full, DEPLOYED)
    backend.triggers[parts(KEY)][-1].status.triggered_at.FromDatetime(NOW)
    listing = await listing_of(source_at(url))
    (entry,) = listing.triggers
    assert entry.key == KEY
    assert dict(entry.spec.schedule) == {
        "cron": "0 6 * * *",
        "dialect": "robfig",
        "timezone": "Europe/Berlin",
    }
    assert entry.spec.kickoff_time_arg == "as_of"
    assert entry.spec.action == {
        "trigger": {
            "project": "flytesnacks",
            "domain": "development",
            "task_name": "env.my_task",
            "name": "daily",
        },
        "inputs": {
            "literals": [{"name": "region", "value": {"scalar": {"primitive": {"string_value": "eu"}}}}]
        },
        "run_spec": {"queue": "fast"},
    }
    assert (entry.since, entry.last_slot) == (DEPLOYED, NOW)
    assert [(target.name, target.kind, target.config) for target in listing.targets] == [
        ("flyte", "flyte", {"endpoint": url})
    ]
    assert [(str(item.key), item.action) for item in listing.deployments] == [
        ("flytesnacks/development/env.my_task", {"task": {"name": "env.my_task"}})
    ]


async def test_offloaded_inputs_are_carried(backend: Backend, url: str) -> None:
    given = details(kickoff_time_input_arg="as_of", cron=Cron(expression="@daily"))
    given.spec.offloaded_input_data.CopyFrom(OffloadedInputData(uri="s3://b/in", inputs_hash="abc"))
    backend.deploy(given)
    (entry,) = (await listing_of(source_at(url))).triggers
    assert entry.spec.action["offloaded_inputs"] == {"uri": "s3://b/in", "inputs_hash": "abc"}
    assert entry.spec.kickoff_time_arg == "as_of"


async def test_only_what_time_starts_is_ours(backend: Backend, url: str) -> None:
    backend.deploy(details())
    other = details(named("by_hand"))
    other.automation_spec.CopyFrom(TriggerAutomationSpec(type=common_pb2.TYPE_NONE))
    backend.deploy(other)
    assert [entry.key for entry in (await listing_of(source_at(url))).triggers] == [KEY]


async def test_projects_narrow_what_is_listed(backend: Backend, url: str) -> None:
    elsewhere = TriggerKey("other", "production", "t", "n")
    backend.deploy(details())
    backend.deploy(details(elsewhere))
    every = await listing_of(source_at(url))
    assert [entry.key for entry in every.triggers] == [KEY, elsewhere]
    some = await listing_of(source_at(url, projects=["other/production"], target="mine"))
    assert [entry.key for entry in some.triggers] == [elsewhere]
    assert some.targets == ()
    assert some.triggers[0].spec.target == "mine"


async def test_twelve_thousand_triggers_are_listed(backend: Backend, url: str) -> None:
    backend.keep_calls = False
    keys = [named(f"t{n:05}", f"env.task_{n % 100}") for n in range(12_000)]
    for key in keys:
        backend.deploy(details(key), DEPLOYED)
    source = source_at(url)
    listing = await listing_of(source)
    assert {entry.key for entry in listing.triggers} == set(keys)
    assert len(listing.deployments) == 100
    assert backend.most_in_flight <= 16

    # An unchanged backend costs its pages alone; a change costs its own details.
    backend.keep_calls = True
    backend.activate(parts(keys[7]), False)
    again = await listing_of(source)
    asked = [call.path.rpartition("/")[2] for call in backend.calls]
    assert asked == ["ListTriggers"] * 61 + ["GetTriggerDetails"]  # the last of 200 each is empty
    assert [entry.key for entry in again.triggers if not entry.spec.active] == [keys[7]]


async def test_a_rates_phase_is_its_first_deploys(backend: Backend, url: str) -> None:
    rate = FixedRate(value=90, unit=common_pb2.FIXED_RATE_UNIT_MINUTE)
    first = backend.deploy(details(rate=rate), DEPLOYED)
    (before,) = (await listing_of(source_at(url))).triggers
    backend.deploy(first, DEPLOYED + timedelta(days=2, minutes=7))
    (after,) = (await listing_of(source_at(url))).triggers
    assert before.spec == after.spec
    assert dict(after.spec.schedule) == {"every": "1h30m", "start": rfc3339(DEPLOYED)}


# --- mistakes over there ----------------------------------------------------------------------------------


async def test_a_malformed_entry_costs_itself_alone(backend: Backend, url: str) -> None:
    backend.deploy(details())
    bad = {
        "cron": details(named("cron"), cron=Cron(expression="every day")),
        "never": details(named("never"), cron=Cron(expression="0 0 30 2 *")),
        "zero": details(named("zero"), rate=FixedRate(value=0, unit=common_pb2.FIXED_RATE_UNIT_MINUTE)),
        "zone": details(named("zone"), cron=Cron(expression="@daily", timezone="Mars/Base")),
        "empty": details(named("empty"), kickoff_time_input_arg="x"),
        "a/b": details(named("a/b")),
        "far": details(named("far")),
        "anchor": details(named("anchor"), rate=FixedRate(value=1, unit=common_pb2.FIXED_RATE_UNIT_MINUTE)),
    }
    bad["far"].spec.run_spec.run_start_time.seconds = 10**15
    for item in bad.values():
        backend.deploy(item)
    backend.triggers[parts(named("anchor"))][-1].status.deployed_at.seconds = 10**15
    listing = await listing_of(source_at(url))
    assert [entry.key for entry in listing.triggers] == [KEY]
    assert {key.name for key in listing.kept} == set(bad)
    for name in bad:
        assert f"/{named(name)}" in listing.complaint


async def test_one_whose_details_fail_is_kept_and_asked_for_again(backend: Backend, url: str) -> None:
    backend.deploy(details())
    backend.deploy(details(named("other")))
    backend.broken[parts(KEY)] = ConnectError(Code.INTERNAL, "can't unmarshal")
    source = source_at(url)
    first = await source.version()
    listing = await source.read()
    assert [entry.key.name for entry in listing.triggers] == ["other"]
    assert listing.kept == {KEY}
    assert "can't unmarshal" in listing.complaint
    assert await source.version() == first, "what was read is what the version said"
    del backend.broken[parts(KEY)]
    assert await source.version() != first, "and it is read again"
    again = await source.read()
    assert [entry.key.name for entry in again.triggers] == ["daily", "other"]
    assert (again.kept, again.complaint) == (frozenset(), "")


async def test_many_that_fail_mean_that_the_backend_is_not_there(backend: Backend, url: str) -> None:
    for n in range(40):
        key = named(f"t{n}")
        backend.deploy(details(key))
        backend.broken[parts(key)] = ConnectError(Code.PERMISSION_DENIED, "no")
    with pytest.raises(SourceUnavailable, match="permission_denied"):
        await listing_of(source_at(url))


@pytest.mark.parametrize(
    "down",
    [
        Refuse(503, "unavailable", "later"),
        Refuse(401, "unauthenticated", "who are you"),
        Refuse(200, body=b"<html>"),
        Refuse(404, body=b"nothing"),
    ],
)
async def test_a_backend_that_can_not_be_read_says_so(backend: Backend, url: str, down: Refuse) -> None:
    backend.deploy(details())
    backend.down = down
    with pytest.raises(SourceUnavailable):
        await source_at(url).version()


async def test_without_its_secret_it_says_which(url: str) -> None:
    with pytest.raises(SourceUnavailable, match="env:NO_SUCH_TOKEN"):
        await source_at(url, token="env:NO_SUCH_TOKEN").version()


async def test_a_page_that_moved_takes_no_trigger_with_it(backend: Backend, url: str) -> None:
    """A trigger of an earlier page is deleted between two pages: the next one moves out of sight."""
    backend.page = 2
    for name in "abcde":
        backend.deploy(details(named(name)))
    source = source_at(url)
    await listing_of(source)

    pages = backend.pages

    def deleting(number: int) -> None:
        if number == pages + 1:
            backend.delete(parts(named("a")))

    backend.after_page = deleting
    listing = await listing_of(source)
    assert [entry.key.name for entry in listing.triggers] == list("abcde"), "a was there when it was listed"
    later = await listing_of(source)
    assert [entry.key.name for entry in later.triggers] == list("bcde")


async def test_a_first_listing_looks_twice(backend: Backend, url: str) -> None:
    backend.page = 2
    for name in "abcde":
        backend.deploy(details(named(name)))

    def deleting(number: int) -> None:
        if number == 4:  # the first page of the second look
            backend.delete(parts(named("a")))

    backend.after_page = deleting
    listing = await listing_of(source_at(url))
    assert [entry.key.name for entry in listing.triggers] == ["b", "c", "d", "e"]


# --- reconciled -------------------------------------------------------------------------------------------


async def test_a_trigger_owes_its_slots_from_its_activation(
    backend: Backend, house: House, reader: Reader
) -> None:
    """It was deployed while nobody synced: Flyte's scheduler catches up from the activation, and so do we."""
    backend.deploy(every_minute(), at("09:57:30"))
    await reader.sync()
    await house.run_until(at("10:01"))
    assert house.fired("tick") == every("09:58", "10:01")


async def test_what_flytes_own_scheduler_has_fired_is_not_owed(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:00:30"))
    backend.triggers[parts(TICK)][-1].status.triggered_at.FromDatetime(at("09:58"))
    await reader.sync()
    await house.run_until(at("10:01"))
    assert house.fired("tick") == times("09:59", "10:00", "10:01")


async def test_a_changed_cron_begins_at_its_deploy_and_never_before(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    # Deployed at 10:04:30 and seen at 10:10, after a time in which nothing ran at all.
    backend.deploy(every_minute(expression="*/2 * * * *"), at("10:04:30"))
    await house.down_for(minutes=8)
    await reader.sync()
    await house.run_until(at("10:12"))
    assert house.fired("tick") == times(
        "10:00", "10:01", "10:02", "10:03", "10:04", "10:06", "10:08", "10:10", "10:12"
    )


async def test_what_was_fired_before_a_change_was_seen_stays_and_comes_once(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    backend.deploy(every_minute(expression="*/5 * * * *"), at("10:00:30"))
    await house.run_until(at("10:03"))  # the change is not seen before here
    await reader.sync()
    await house.run_until(at("10:11"))
    assert house.fired("tick") == [*every("10:00", "10:03"), *times("10:05", "10:10")]
    assert len(house.calls) == 6


async def test_deactivation_and_activation_take_effect_at_their_instants(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.activate(parts(TICK), False, at("10:02:10"))
    await house.run_for(seconds=30)
    await reader.sync()
    await house.run_until(at("10:10"))
    assert house.fired("tick") == every("10:00", "10:02")
    backend.activate(parts(TICK), True, at("10:10:10"))
    await house.down_for(minutes=3)
    await reader.sync()
    await house.run_until(at("10:15"))
    assert house.fired("tick") == [*every("10:00", "10:02"), *every("10:11", "10:15")]
    assert await house.skips("tick") == [(at("10:03"), at("10:10"), 8, "paused")]


async def test_a_deleted_trigger_is_withdrawn(backend: Backend, house: House, reader: Reader) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.delete(parts(TICK))
    await reader.sync()
    await house.run_until(at("10:10"))
    assert house.fired("tick") == every("10:00", "10:02")


async def test_a_backend_that_is_away_removes_nothing_and_planned_runs_fire(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    backend.down = Refuse(503, "unavailable", "maintenance")
    await reader.sync()
    assert "answered 503 unavailable: maintenance" in await reader.error()
    await house.run_until(at("10:05"))
    assert house.fired("tick") == every("10:00", "10:05")
    backend.down = None
    await reader.sync()
    assert await reader.error() == ""


async def test_a_trigger_that_becomes_malformed_keeps_its_last_good_state(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    backend.deploy(every_minute(key_of("other")), at("09:59:30"))
    await reader.sync()
    backend.deploy(every_minute(expression="never"), at("10:00:30"))
    backend.deploy(every_minute(key_of("other"), "*/2 * * * *"), at("10:00:30"))
    await house.run_until(at("10:00:40"))
    await reader.sync()
    assert f"/{TICK}/automation_spec/schedule/cron/expression" in await reader.error()
    await reader.sync()
    assert f"/{TICK}/automation_spec/schedule/cron/expression" in await reader.error(), (
        "it stays until it is mended"
    )
    await house.run_until(at("10:04"))
    assert house.fired("tick") == every("10:00", "10:04")
    assert house.fired("other") == times("10:00", "10:02", "10:04")
    backend.deploy(every_minute(expression="*/3 * * * *"), at("10:04:30"))
    await house.run_until(at("10:04:40"))
    await reader.sync()
    assert await reader.error() == ""
    await house.run_until(at("10:06"))
    assert house.fired("tick") == [*every("10:00", "10:04"), at("10:06")]


async def test_names_with_colons_never_fold_two_slots_into_one(
    backend: Backend, house: House, reader: Reader
) -> None:
    """`a` + `b:c` and `a:b` + `c` hash alike: Flyte takes the second slot for a repeat of the first."""
    one = TriggerKey("default", "default", "a", "b:c")
    two = TriggerKey("default", "default", "a:b", "c")
    assert run_name(one, at("10:00")) == run_name(two, at("10:00"))
    for key in (one, two):
        backend.deploy(every_minute(key), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    fired = [(request.trigger, request.scheduled_time) for request in house.target.created.values()]
    assert sorted(fired) == [(key, slot) for key in (one, two) for slot in every("10:00", "10:02")]
    assert len({request.run_name for request in house.target.created.values()}) == 6


async def test_a_slow_replica_does_not_revert_a_newer_listing(
    backend: Backend, house: House, reader: Reader, url: str
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    other = Reader(house, url)
    await other.sync()
    read = other.source.read

    async def slow() -> Listing:
        """What was read is old when it is written: the trigger was deactivated, and `reader` saw it."""
        listing = await read()
        backend.activate(parts(TICK), False, at("10:00:10"))
        await reader.sync()
        return listing

    backend.deploy(every_minute(expression="*/2 * * * *"), at("10:00:05"))
    other.source.read = slow  # type: ignore[method-assign]
    await house.run_until(at("10:00:30"))
    await other.sync()
    rows = await house.rows(tables.trigger)
    assert [row.status for row in rows] == ["paused"]


async def test_a_redeploy_of_the_same_changes_nothing(backend: Backend, house: House, reader: Reader) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    again = every_minute()
    again.spec.task_version = "v2"
    backend.deploy(again, at("10:00:30"))
    await house.run_until(at("10:01"))
    await reader.sync()
    rows = await house.rows(tables.trigger)
    assert [row.revision for row in rows] == [1]


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"projects": ["flytesnacks"]}, "/projects/0"),
        ({"projects": ["a/b/c"]}, "/projects/0"),
        ({"target": 3}, "/target"),
        ({"token": "abc"}, "/token"),
    ],
)
def test_a_wrong_config_is_answered_with_its_field(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        source_at("http://127.0.0.1:1", **config)
    assert [item.pointer for item in wrong.value.problems] == [pointer]


async def test_what_waits_for_the_rate_limit_says_so(backend: Backend, url: str, tmp_path: Path) -> None:
    """Flyte's limits, 10 a second and 20 at once: what is over waits in the database, and people see it."""
    for n in range(30):
        backend.deploy(every_minute(key_of(f"t{n}")), at("09:59:30"))
    file = tmp_path / "horarium.toml"
    file.write_text(f'db = "sqlite:///{tmp_path}/horarium.db"\n[sources.flyte]\nendpoint = "{url}"\n')
    settings = load_settings(config=file)
    wiring.migrate(settings)
    clock = VirtualClock(at("09:59:40"))
    instance = wiring.build(settings, clock=clock)
    running = instance.service.parts
    assert running.syncer is not None
    assert running.planner is not None
    assert running.executor is not None
    await instance.store.open()
    try:
        await running.syncer.run_once()
        while await running.planner.run_once():
            pass
        clock.advance(timedelta(seconds=20))
        await running.executor.run_once()
        assert running.executor.waiting == {"flyte": "rate"}
        targets = {item["name"]: item for item in (await instance.queries.status())["targets"]}
        assert targets["flyte"]["waiting"] == "rate"
        while len(backend.runs) < 20:
            backend.called.clear()
            await backend.called.wait()
        assert len(backend.runs) == 20
        await running.pool.drain(timedelta(seconds=10))
    finally:
        await instance.store.close()
