"""The target `prefect` against a real Prefect server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import AlreadyExists, Answer, Created, FireRequest, Refused, Unavailable
from horarium.targets.prefect import PrefectTarget, check_action, check_config
from tests.prefect.server import PrefectServer, Sdk

KEY = TriggerKey("default", "default", "etl.nightly", "weekday")
SLOT = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


class Patient(PrefectTarget):
    """Asks again where Prefect's SQLite is busy, as the executor does of whatever is unavailable."""

    async def create_run(self, request: FireRequest) -> Answer:
        for _ in range(20):
            answer = await super().create_run(request)
            if not (isinstance(answer, Unavailable) and answer.reason.startswith("answered 503")):
                break
        return answer


@asynccontextmanager
async def started(
    url: str, kind: type[PrefectTarget] = PrefectTarget, **config: Any
) -> AsyncIterator[PrefectTarget]:
    """A target of these words, started."""
    checked = check_config({"url": url, **config}, "")
    target = kind(TargetSpec("prefect", "prefect", checked), SystemClock())
    await target.start()
    try:
        yield target
    finally:
        await target.close()


def request(deployment: str, **changes: Any) -> FireRequest:
    """A run of a deployment, under a name that nobody has."""
    words: dict[str, Any] = {
        name: changes.pop(name) for name in ("tags", "work_queue", "job_variables") if name in changes
    }
    base = FireRequest(
        run_name=f"r{uuid4().hex[:16]}",
        trigger=KEY,
        origin="schedule",
        scheduled_time=SLOT,
        attempt=1,
        action=check_action({"deployment": deployment, **words}, {}, ""),
        parameters={},
        deadline=SystemClock().now() + timedelta(seconds=60),
    )
    return replace(base, **changes)


async def test_a_run_is_a_scheduled_flow_run_under_its_name(prefect: PrefectServer, sdk: Sdk) -> None:
    deployment = sdk.ask("deploy", flow="etl", name="as-scheduled", schedules=[], tags=["team:data"],
                         parameters={"table": "orders"})  # fmt: skip
    run = request("etl/as-scheduled", parameters={"limit": 3}, tags=["nightly"])
    async with started(prefect.url, Patient, tags=["horarium-eu"]) as target:
        answer = await target.create_run(run)
    (there,) = prefect.flow_runs(deployment)
    assert answer == Created(there["id"])
    assert there["idempotency_key"] == there["name"] == run.run_name
    assert (there["state_type"], there["state_name"]) == ("SCHEDULED", "Scheduled")
    assert datetime.fromisoformat(there["next_scheduled_start_time"]) == SLOT
    assert there["parameters"] == {"table": "orders", "limit": 3}
    assert set(there["tags"]) == {"auto-scheduled", "horarium", "horarium-eu", "nightly", "team:data"}
    assert there["labels"]["horarium.trigger"] == str(KEY)
    assert there["labels"]["horarium.slot"] == "2026-01-05T10:00:00Z"


async def test_a_repeated_name_makes_no_second_flow_run(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("etl", "repeated")
    run = request("etl/repeated")
    async with started(prefect.url, Patient) as target:
        first, *others = await asyncio.gather(*(target.create_run(run) for _ in range(8)))
        again = await target.create_run(replace(run, attempt=2, scheduled_time=SLOT + timedelta(minutes=5)))
    assert any(isinstance(answer, Created) for answer in (first, *others)), (first, *others)
    (there,) = prefect.flow_runs(deployment)
    assert again == AlreadyExists(there["id"])
    answers = [first, *others]
    assert answers.count(Created(there["id"])) == 1, "exactly one of them made it"
    for other in answers:
        # A Prefect on SQLite whose writers meet answers 503, which only means: again.
        assert other in (Created(there["id"]), AlreadyExists(there["id"])) or isinstance(other, Unavailable)
    assert datetime.fromisoformat(there["expected_start_time"]) == SLOT, "the first one decided"


async def test_a_run_by_hand_is_not_auto_scheduled(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("etl", "by-hand", paused=True)
    async with started(prefect.url, Patient) as target:
        await target.create_run(request(deployment, origin="manual"))
    (there,) = prefect.flow_runs(deployment)
    assert there["tags"] == ["horarium"]


async def test_the_work_queue_is_the_deployments_unless_the_action_says_another(
    prefect: PrefectServer,
) -> None:
    prefect.call("POST", "/work_pools/", {"name": "pool", "type": "process"})
    deployment = prefect.deployment("etl", "queued", work_pool_name="pool", work_queue_name="slow")
    async with started(prefect.url, Patient) as target:
        await target.create_run(request(deployment))
        await target.create_run(request(deployment, work_queue="fast", job_variables={"env": {"A": "1"}},
                                        scheduled_time=SLOT + timedelta(hours=1)))  # fmt: skip
    slow, fast = prefect.flow_runs(deployment)
    assert (slow["work_queue_name"], fast["work_queue_name"]) == ("slow", "fast")
    assert fast["job_variables"] == {"env": {"A": "1"}}


async def test_what_prefect_refuses_is_refused_with_its_reason(prefect: PrefectServer, sdk: Sdk) -> None:
    sdk.ask("deploy", flow="etl", name="strict", schedules=[])
    async with started(prefect.url, Patient) as target:
        nowhere = await target.create_run(request("etl/nowhere"))
        no_such = await target.create_run(request(str(uuid4())))
        wrong = await target.create_run(request("etl/strict", parameters={"limit": "many"}))
        malformed = await target.create_run(request("etl/strict", run_name="r" * 5_000))
    assert isinstance(nowhere, Refused)
    assert "no deployment 'etl/nowhere'" in nowhere.reason
    assert no_such == Refused("answered 404: Deployment not found")
    assert isinstance(wrong, Refused)
    assert wrong.reason.startswith("answered 409: Error creating flow run")
    assert "limit" in wrong.reason
    assert isinstance(malformed, Created | Refused)


async def test_a_deployment_that_is_made_anew_keeps_its_name(prefect: PrefectServer) -> None:
    old = prefect.deployment("etl", "made-anew")
    async with started(prefect.url, Patient) as target:
        await target.create_run(request("etl/made-anew"))
        # In a thread: a loop that stands still does not hear that the server has closed its connection.
        await asyncio.to_thread(prefect.good, "DELETE", f"/deployments/{old}")
        new = await asyncio.to_thread(prefect.deployment, "etl", "made-anew")
        assert isinstance(await target.create_run(request("etl/made-anew")), Created)
    assert len(prefect.flow_runs(new)) == 1


async def test_a_name_that_another_deployment_of_the_flow_has_is_no_duplicate(prefect: PrefectServer) -> None:
    prefect.deployment("etl", "one")
    other = prefect.deployment("etl", "other")
    run = request("etl/one")
    async with started(prefect.url, Patient) as target:
        assert isinstance(await target.create_run(run), Created)
        answer = await target.create_run(replace(run, action={"deployment": other}))
    assert isinstance(answer, Refused)
    assert "another deployment" in answer.reason
    assert prefect.flow_runs(other) == []


async def test_a_server_that_is_away_is_unavailable_and_nothing_is_lost(prefect: PrefectServer) -> None:
    async with started("http://127.0.0.1:9/api") as target:
        answer = await target.create_run(request("etl/any"))
    assert isinstance(answer, Unavailable)
    assert not answer.unknown, "nothing was sent"


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({}, "/url"),
        ({"url": "ftp://x"}, "/url"),
        ({"url": "http://x/api", "api_key": "pnu_123"}, "/api_key"),
        ({"url": "http://x/api", "api_key": "env:A", "auth_string": "env:B"}, "/auth_string"),
        ({"url": "http://x/api", "headers": {"Authorization": "Bearer x"}}, "/headers/Authorization"),
        ({"url": "http://x/api", "tags": "a"}, "/tags"),
        ({"url": "http://x/api", "ahead": "8d"}, "/ahead"),
        ({"url": "http://x/api", "verify": 3}, "/verify"),
        ({"url": "http://x/api", "apikey": "env:A"}, "/apikey"),
    ],
)
def test_a_wrong_target_is_named(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as error:
        check_config(config, "")
    assert [problem.pointer for problem in error.value.problems] == [pointer]
    assert "pnu_123" not in str(error.value)


@pytest.mark.parametrize(
    ("action", "pointer"),
    [
        ({}, "/deployment"),
        ({"deployment": "nightly"}, "/deployment"),
        ({"deployment": "a/b/c"}, "/deployment"),
        ({"deployment": "a/b", "job_variables": {"x": float("nan")}}, "/job_variables"),
        ({"deployment": "a/b", "ahead_runs": 0}, "/ahead_runs"),
        ({"deployment": "a/b", "queue": "x"}, "/queue"),
    ],
)
def test_a_wrong_deployment_is_named(action: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as error:
        check_action(action, {}, "")
    assert [problem.pointer for problem in error.value.problems] == [pointer]
