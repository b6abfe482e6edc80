"""From Prefect to Prefect: its deployments are read, their flow runs created, while it is edited and killed.

Every slot is compared with what Prefect's own code names for the rule that was in force.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.clock import SystemClock
from horarium.core.reconcile import reconcile
from horarium.sources.base import SourceUnavailable
from horarium.sources.prefect import PrefectSource, check_source
from horarium.targets.prefect import check_config
from tests.prefect.server import PrefectServer, Sdk
from tests.prefect.test_ahead import START, RealHouse

SCHEDULES: dict[str, dict[str, Any]] = {
    "often": {"cron": "*/5 * * * *", "timezone": "UTC"},
    "berlin": {"cron": "7 */1 * * *", "timezone": "Europe/Berlin"},
    "seventh": {"interval": 420, "anchor_date": "2029-12-31T00:01:00+00:00", "timezone": "UTC"},
    "rule": {
        "rrule": "DTSTART:20300101T000000\nRRULE:FREQ=MINUTELY;INTERVAL=20",
        "timezone": "Europe/Berlin",
    },
}
SLOWER = {"interval": 1_140, "anchor_date": "2029-12-31T00:02:00+00:00", "timezone": "UTC"}
EDITED = {"cron": "3-59/10 * * * *", "timezone": "UTC"}


class FromPrefect(RealHouse):
    """A house that syncs a Prefect server and fires into it."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, url)
        self.words = check_config({"url": url}, "")
        self.prefect = PrefectSource(check_source({"url": url}, ""), SystemClock())

    async def sync_prefect(self) -> None:
        """One pass of the syncer. Raises `SourceUnavailable`."""
        version = await self.store.source_version("prefect")
        await self.prefect.version()
        listing = await self.prefect.read()
        await self.prefect.version()
        assert listing.left_out == ()
        now = self.clock.now()
        result = await self.store.sync_source(
            listing, version, lambda known: reconcile(listing, known, now), now, "test"
        )
        assert not result.decided.problems


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """A server that this test may kill."""
    server = PrefectServer(tmp_path / "prefect")
    server.start()
    yield server
    server.stop()


async def test_every_slot_is_one_flow_run(own: PrefectServer, sdk: Sdk, tmp_path: Path) -> None:
    schedules = [{"schedule": schedule, "slug": slug} for slug, schedule in SCHEDULES.items()]
    deployment = own.deployment("etl", "all", schedules=schedules, parameters={"table": "orders"})

    def edit(slug: str, words: dict[str, Any]) -> None:
        (found,) = [item for item in own.schedules(deployment) if item["slug"] == slug]
        own.good("PATCH", f"/deployments/{deployment}/schedules/{found['id']}", words)

    def named(schedule: dict[str, Any], low: float, high: float) -> list[datetime]:
        """What Prefect names in the minutes `(low, high]`."""
        first, last = (START + timedelta(minutes=minute) for minute in (low, high))
        (found,) = sdk.ask("dates", schedules=[schedule], start=first.isoformat(), n=60)
        at = [datetime.fromtimestamp(second, first.tzinfo) for second in found]
        return [slot for slot in at if first < slot <= last]

    async with FromPrefect(tmp_path, own.url) as house:
        await house.sync_prefect()
        await house.run_until(START + timedelta(minutes=21))
        edit("often", {"schedule": EDITED})
        await house.sync_prefect()
        await house.run_until(START + timedelta(minutes=31))

        own.kill()
        with pytest.raises(SourceUnavailable):
            await house.sync_prefect()
        await house.run_until(START + timedelta(minutes=64))
        assert len(await house.rows_of("scheduled")) > 4, "what came due meanwhile waits"
        own.start()

        edit("seventh", {"schedule": SLOWER})
        await house.sync_prefect()
        await house.run_until(START + timedelta(minutes=110))

    wanted = sorted(
        named(SCHEDULES["often"], 0, 21)
        + named(EDITED, 21, 110)
        + named(SCHEDULES["berlin"], 0, 110)
        + named(SCHEDULES["seventh"], 0, 64)  # what was owed stays owed
        + named(SLOWER, 64, 110)
        + named(SCHEDULES["rule"], 0, 110)
    )
    assert own.slots(deployment) == wanted
    keys = [item["idempotency_key"] for item in own.flow_runs(deployment)]
    assert len({*keys}) == len(keys) == len(wanted)
    assert all(item["parameters"] == {"table": "orders"} for item in own.flow_runs(deployment))
