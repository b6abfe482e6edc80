"""How flow runs go and how they are cancelled, by a real Prefect server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from horarium.core.run import FiredRun, Report, Result
from horarium.targets.base import Created, FireRequest
from horarium.targets.connection import CallFailed
from horarium.targets.prefect import PrefectTarget
from tests.prefect.server import PrefectServer
from tests.prefect.test_target import KEY, Patient, request, started


def fired(run: FireRequest, there: str | None = None) -> FiredRun:
    return FiredRun(1, run.run_name, KEY, 1, datetime.now(UTC), there)


async def created(target: PrefectTarget, deployment: str) -> tuple[FireRequest, str]:
    run = request(deployment)
    answer = await target.create_run(run)
    assert isinstance(answer, Created)
    assert answer.target_run_id is not None
    return run, answer.target_run_id


def come_to(prefect: PrefectServer, flow_run: str, kind: str, message: str = "") -> None:
    """What a worker would tell Prefect of a flow run."""
    state: dict[str, Any] = {"type": kind, "message": message}
    told = prefect.good("POST", f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
    assert told["status"] == "ACCEPT", told


async def result(target: PrefectTarget, run: FireRequest) -> Report:
    (report,) = await target.status([fired(run)])
    assert report.run_key == run.run_key
    return report


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", Result.RUNNING),
        ("RUNNING", Result.RUNNING),
        ("PAUSED", Result.RUNNING),
        ("COMPLETED", Result.SUCCEEDED),
        ("FAILED", Result.ERRORED),
        ("CRASHED", Result.INTERRUPTED),
        ("CANCELLED", Result.CANCELLED),
    ],
)
async def test_the_state_of_a_flow_run_is_the_result_of_its_run(
    prefect: PrefectServer, state: str, expected: Result
) -> None:
    deployment = prefect.deployment("etl", f"status-{state.lower()}")
    async with started(prefect.url, Patient) as target:
        run, there = await created(target, deployment)
        assert (await result(target, run)).result is Result.RUNNING
        before = datetime.now(UTC)
        come_to(prefect, there, state, "no such\ntable")
        report = await result(target, run)
    assert report.result is expected
    if expected in (Result.ERRORED, Result.INTERRUPTED, Result.CANCELLED):
        assert report.detail == "no such table"
    assert before <= report.at <= datetime.now(UTC)


async def test_many_are_asked_about_in_one_call_and_one_that_is_gone_is_unknown(
    prefect: PrefectServer,
) -> None:
    deployment = prefect.deployment("etl", "status-many")
    async with started(prefect.url, Patient) as target:
        made = [await created(target, deployment) for _ in range(4)]
        come_to(prefect, made[1][1], "COMPLETED")
        prefect.good("DELETE", f"/flow_runs/{made[2][1]}")
        never = request(deployment)
        reports = await target.status([fired(run) for run, _ in [*made, (never, "")]])
    assert [report.result for report in reports] == [
        Result.RUNNING,
        Result.SUCCEEDED,
        Result.UNKNOWN,
        Result.RUNNING,
        Result.UNKNOWN,
    ]


async def test_a_flow_run_that_waits_is_cancelled_at_once(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("etl", "cancel-waits")
    async with started(prefect.url, Patient) as target:
        run, _ = await created(target, deployment)
        report = await target.cancel(fired(run))
        assert report is not None
        assert report.result is Result.CANCELLED
        again = await target.cancel(fired(run))
        assert again is not None
        assert again.result is Result.CANCELLED
    assert [item["state_type"] for item in prefect.flow_runs(deployment)] == ["CANCELLED"]


async def test_a_flow_run_that_goes_on_has_ended_when_its_worker_says_so(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("etl", "cancel-goes-on")
    async with started(prefect.url, Patient) as target:
        run, there = await created(target, deployment)
        prefect.call("PATCH", f"/flow_runs/{there}", {"infrastructure_pid": "process-1"})
        come_to(prefect, there, "RUNNING")
        assert await target.cancel(fired(run, there)) is None
        assert [item["state_type"] for item in prefect.flow_runs(deployment)] == ["CANCELLING"]
        assert await target.cancel(fired(run, there)) is None
        come_to(prefect, there, "CANCELLED")
        report = await target.cancel(fired(run, there))
        assert report is not None
        assert report.result is Result.CANCELLED


async def test_one_that_has_ended_is_left_as_it_is(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("etl", "cancel-ended")
    async with started(prefect.url, Patient) as target:
        run, there = await created(target, deployment)
        come_to(prefect, there, "COMPLETED")
        report = await target.cancel(fired(run, there))
        gone = await target.cancel(fired(request(deployment)))
    assert report is not None
    assert report.result is Result.SUCCEEDED
    assert gone is not None
    assert gone.result is Result.UNKNOWN


async def test_a_server_that_is_away_tells_nothing() -> None:
    async with started("http://127.0.0.1:9/api") as target:
        with pytest.raises(CallFailed):
            await target.status([fired(request("etl/nightly"))])
        with pytest.raises(CallFailed):
            await target.cancel(fired(request("etl/nightly")))
