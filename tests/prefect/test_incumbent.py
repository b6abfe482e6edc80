"""What Prefect's own scheduler made, for the shadow's report."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.sources.base import SourceUnavailable
from horarium.sources.incumbents import Incumbents
from horarium.targets.prefect import check_config
from tests.prefect.server import PrefectServer
from tests.prefect.test_faults import planned, scheduled
from tests.prefect.test_target import Patient, request, started

LOW = datetime(2030, 1, 7, 10, 0, tzinfo=UTC)
HIGH = LOW + timedelta(hours=1)


async def test_flow_runs_by_schedule_and_slot(prefect: PrefectServer) -> None:
    both = [scheduled("*/20 * * * *", "a"), scheduled("7 * * * *", "b"), {"schedule": {"interval": 1_800}}]
    deployment = prefect.deployment("incumbent", "d", schedules=both)
    planned(prefect, deployment, start_time=LOW.isoformat(), end_time=(HIGH + timedelta(hours=1)).isoformat())
    async with started(prefect.url, Patient) as target:  # ours and a person's, which are none of Prefect's
        await target.create_run(request("incumbent/d", scheduled_time=LOW + timedelta(minutes=3)))
    prefect.good("POST", f"/deployments/{deployment}/create_flow_run", {})
    spec = TargetSpec("prefect", "prefect", check_config({"url": prefect.url}, ""))
    incumbent = Incumbents(SystemClock()).of_target(spec)
    assert incumbent is not None
    (nameless,) = [item for item in prefect.schedules(deployment) if item["slug"] is None]
    keys = [
        TriggerKey("prefect", "incumbent", "d", name)
        for name in ("a", "b", f"schedule-{nameless['id'][-12:]}", "never")
    ]
    found = await incumbent.runs(keys, LOW, HIGH)
    minutes = {
        key.name: sorted(int((run.at - LOW).total_seconds() // 60) for run in runs)
        for key, runs in found.items()
    }
    assert (minutes["a"], minutes["b"], minutes["never"]) == ([20, 40, 60], [7], [])
    assert len(minutes[keys[2].name]) == 2
    assert all(run.created_at is not None for run in found[keys[0]])


async def test_a_server_that_is_away_is_no_scheduler_that_made_nothing() -> None:
    spec = TargetSpec("prefect", "prefect", check_config({"url": "http://127.0.0.1:9/api"}, ""))
    incumbent = Incumbents(SystemClock()).of_target(spec)
    assert incumbent is not None
    with pytest.raises(SourceUnavailable, match="can't be listed"):
        await incumbent.runs([TriggerKey("prefect", "f", "d", "a")], LOW, HIGH)
