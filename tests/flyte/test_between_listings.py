"""What happens to a trigger over there between two listings: each slot is decided by what held then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from horarium.store import tables
from tests.flyte.backend import Backend
from tests.flyte.reading import TICK, Reader, every_minute, parts
from tests.fundamentals.house import House, at, every, times


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["the same process", "another process"])
def seeing(request: pytest.FixtureRequest, house: House, reader: Reader, url: str) -> Callable[[], Reader]:
    """Who lists after the gap: the process that listed before it, or one that has just been started."""
    return (lambda: reader) if request.param == "the same process" else (lambda: Reader(house, url))


async def details_of_skips(house: House) -> list[tuple[str, str]]:
    return [(row.reason, row.detail) for row in await house.rows(tables.skip)]


async def test_off_and_on_again_owes_nothing_for_the_time_between(
    backend: Backend, house: House, reader: Reader, seeing: Callable[[], Reader], url: str
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.activate(parts(TICK), False, at("10:04:10"))
    backend.activate(parts(TICK), True, at("10:10:10"))
    await house.down_for(minutes=10)
    after = seeing()
    await after.sync()
    await house.run_until(at("10:15"))
    assert house.fired("tick") == [*every("10:00", "10:04"), *every("10:11", "10:15")]
    assert await house.skips("tick") == [(at("10:05"), at("10:10"), 6, "paused")]
    assert await details_of_skips(house) == [("paused", "deactivated in Flyte")]
    # It is done: what is listed again, by whomever, changes nothing.
    revisions = await house.rows(tables.trigger_revision)
    await Reader(house, url).sync()
    await after.sync()
    assert await house.rows(tables.trigger_revision) == revisions


async def test_deleted_and_deployed_again_owes_nothing_for_the_time_between(
    backend: Backend, house: House, reader: Reader, seeing: Callable[[], Reader]
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.delete(parts(TICK), at("10:04:10"))
    backend.deploy(every_minute(), at("10:10:10"))
    await house.down_for(minutes=10)
    await seeing().sync()
    await house.run_until(at("10:15"))
    assert house.fired("tick") == [*every("10:00", "10:04"), *every("10:11", "10:15")]
    assert await house.skips("tick") == [(at("10:05"), at("10:10"), 6, "deleted")]
    ((_, detail),) = await details_of_skips(house)
    assert detail == "deleted at its source from 2026-01-05T10:04:10Z to 2026-01-05T10:10:10Z"


async def test_what_was_fired_before_it_was_seen_stays_and_comes_once(
    backend: Backend, house: House, reader: Reader
) -> None:
    """Off and on again while we run: up to the listing nobody knew, and what was called has been called."""
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    backend.activate(parts(TICK), False, at("10:01:10"))
    await house.run_until(at("10:03"))
    backend.activate(parts(TICK), True, at("10:06:10"))
    await house.down_for(minutes=4)
    await reader.sync()
    await house.run_until(at("10:08"))
    assert house.fired("tick") == [*every("10:00", "10:03"), *times("10:07", "10:08")]
    assert len(house.calls) == 6
    assert await house.skips("tick") == [(at("10:04"), at("10:06"), 3, "paused")]


async def test_between_two_changes_the_rule_of_then_decides(
    backend: Backend, house: House, reader: Reader, seeing: Callable[[], Reader]
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.deploy(every_minute(expression="*/2 * * * *"), at("10:03:30"))
    backend.deploy(every_minute(expression="never"), at("10:05:30"))  # could not have been taken
    backend.deploy(every_minute(expression="*/5 * * * *"), at("10:09:30"))
    await house.down_for(minutes=10)
    await seeing().sync()
    await house.run_until(at("10:20"))
    assert house.fired("tick") == [
        *every("10:00", "10:03"),
        *times("10:04", "10:06", "10:08", "10:10", "10:15", "10:20"),
    ]


async def test_deployed_again_as_it_was_stays_owed(
    backend: Backend, house: House, reader: Reader, seeing: Callable[[], Reader]
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.deploy(every_minute(), at("10:06:10"))
    backend.deploy(every_minute(), at("10:08:10"))
    await house.down_for(minutes=8)
    await seeing().sync()
    await house.run_until(at("10:12"))
    assert house.fired("tick") == every("10:00", "10:12")
    assert await house.skips("tick") == []


async def test_a_listing_that_was_not_written_loses_no_step(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.activate(parts(TICK), False, at("10:02:10"))
    await house.down_for(minutes=4)
    await reader.source.version()
    await reader.source.read()
    await reader.source.version()  # and then the database was away
    backend.activate(parts(TICK), True, at("10:10:10"))
    await house.down_for(minutes=6)
    await reader.sync()
    await house.run_until(at("10:15"))
    assert house.fired("tick") == [*every("10:00", "10:02"), *every("10:11", "10:15")]


@pytest.mark.parametrize("code", [Code.UNIMPLEMENTED, Code.NOT_FOUND])
async def test_a_backend_without_revisions_leaves_the_slots_owed(
    backend: Backend, house: House, reader: Reader, code: Code
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.no_revisions = ConnectError(code, "no such thing")
    backend.activate(parts(TICK), False, at("10:02:10"))
    backend.activate(parts(TICK), True, at("10:04:10"))
    await house.down_for(minutes=4)
    await reader.sync()
    await house.run_until(at("10:08"))
    assert house.fired("tick") == every("10:00", "10:08")


async def test_one_whose_revisions_could_not_be_read_is_asked_for_again(
    backend: Backend, house: House, reader: Reader
) -> None:
    backend.deploy(every_minute(), at("09:59:30"))
    await reader.sync()
    await house.run_until(at("10:02"))
    backend.no_revisions = ConnectError(Code.PERMISSION_DENIED, "not today")
    backend.activate(parts(TICK), False, at("10:02:10"))
    backend.activate(parts(TICK), True, at("10:04:10"))
    await house.down_for(minutes=4)
    await reader.sync()
    assert "not today" in await reader.error()
    backend.no_revisions = None
    await reader.sync()
    await house.run_until(at("10:08"))
    assert house.fired("tick") == [*every("10:00", "10:02"), *every("10:05", "10:08")]
