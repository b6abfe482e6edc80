"""On the way to the workers of Docket and Celery things go wrong: nothing is lost, repeats are known."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.core.keys import TriggerKey
from horarium.core.run import Result
from horarium.errors import InvalidInput
from horarium.targets import registry
from horarium.targets.base import AlreadyExists, Created, FireRequest, Refused, Unavailable
from horarium.targets.brokers import BrokerTarget
from horarium.testing.target_suite import CLOCK, as_fired, fresh, report, running, until, until_ended
from tests.brokers.redis_server import RedisServer
from tests.brokers.test_conformance import BrokerHarness, CeleryHarness, DocketHarness, point_to
from tests.brokers.workers import Notes, Worker, celery_worker, docket_worker

StartWorker = Callable[[RedisServer, Path], Worker]


class World:
    """A Redis, a target of one kind, and workers; `start_worker` does nothing where one is there for all."""

    def __init__(self, kind: str, server: RedisServer, folder: Path, *, shared: bool = False) -> None:
        self.kind = kind
        self.folder = folder
        self.shared = shared
        self.server = server
        self.notes = Notes(server)
        harnesses: dict[str, type[BrokerHarness]] = {"docket": DocketHarness, "celery": CeleryHarness}
        self.harness = harnesses[kind](server)
        self.workers: list[Worker] = []

    def start_worker(self) -> Worker:
        assert not self.shared
        starters: dict[str, StartWorker] = {"docket": docket_worker, "celery": celery_worker}
        worker = starters[self.kind](self.server, self.folder)
        self.workers.append(worker)
        return worker

    @asynccontextmanager
    async def target(self) -> AsyncIterator[BrokerTarget]:
        async with running(self.harness) as target:
            assert isinstance(target, BrokerTarget)
            yield target

    def request(self, target: BrokerTarget, task: str = "quick") -> FireRequest:
        return fresh(self.harness, target, {"task_name": task})

    async def seen(self, request: FireRequest, times: int = 1) -> int:
        return len(await asyncio.to_thread(self.notes.seen, request.run_name, times))

    def age_unacknowledged(self) -> None:
        """As after Celery's `visibility_timeout`, an hour; Docket's workers are told 2 s."""
        if self.kind == "celery":
            with self.server.client(1) as client:
                for tag in client.zrange("unacked_index", 0, -1):
                    client.zadd("unacked_index", {tag: 0})

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()


KINDS = ["docket", "celery"]


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Nobody else's: it may be broken."""
    server = RedisServer(tmp_path)
    server.start()
    point_to(server, monkeypatch)
    world = World(request.param, server, tmp_path)
    yield world
    world.close()
    server.kill()


@pytest.fixture(params=KINDS)
def world(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """The one of all tests, with its worker."""
    assert isinstance(request.getfixturevalue(request.param), Worker)
    point_to(redis_server, monkeypatch)
    return World(request.param, redis_server, tmp_path, shared=True)


def later(request: FireRequest) -> FireRequest:
    """The next attempt, after the deadline of the one before."""
    return replace(request, attempt=request.attempt + 1, deadline=CLOCK.now() + timedelta(seconds=3))


async def test_a_worker_that_dies_does_not_take_its_run_along(own: World) -> None:
    first = own.start_worker()
    async with own.target() as target:
        request = own.request(target, "hold")
        assert await target.create_run(request) == Created(request.run_name)
        await own.seen(request)
        first.kill()
        run = as_fired(request)
        assert (await report(target, run)).result is Result.RUNNING
        own.age_unacknowledged()
        own.start_worker()
        assert await own.seen(request, times=2) == 2, "it runs again, as docs/engines.md says"
        own.notes.let_go(request.run_name)
        assert (await until_ended(own.harness, target, run)).result is Result.SUCCEEDED


async def test_a_restart_of_redis_in_the_middle_loses_and_repeats_nothing(own: World) -> None:
    async with own.target() as target:
        requests = [own.request(target) for _ in range(20)]
        before = [await target.create_run(request) for request in requests[:10]]
        assert all(isinstance(answer, Created) for answer in before), before
        own.server.kill()
        during = await asyncio.gather(*(target.create_run(request) for request in requests[10:]))
        assert all(isinstance(answer, Unavailable) for answer in during), during
        await asyncio.to_thread(own.server.start)
        after = [await target.create_run(later(request)) for request in requests]
        assert [type(answer) for answer in after] == [AlreadyExists] * 10 + [Created] * 10
        own.start_worker()
        fence = own.request(target)
        for request in [*requests, fence]:
            await target.create_run(later(request))
            assert await own.seen(request) == 1
        assert [await own.seen(request) for request in requests] == [1] * 20


async def test_what_died_before_it_sent_is_sent_by_the_next_attempt(world: World) -> None:
    async with world.target() as target:
        request = replace(world.request(target), deadline=CLOCK.now())
        await target._names.claim(request, CLOCK.now())  # and then its process died
        assert await target.create_run(later(request)) == Created(request.run_name)
        assert await world.seen(request) == 1


async def test_what_died_before_it_noted_that_it_sent_is_found_by_its_record(world: World) -> None:
    async with world.target() as target:
        request = replace(world.request(target), deadline=CLOCK.now() + timedelta(seconds=3))
        await target._names.claim(request, request.deadline - timedelta(seconds=3))
        await target._send(request)  # and then its process died
        assert (await until_ended(world.harness, target, as_fired(request))).result is Result.SUCCEEDED
        await target._names.give_up(request)  # the deadline has passed
        assert await target.create_run(later(request)) == AlreadyExists(request.run_name)
        fence = world.request(target)
        await target.create_run(fence)
        await world.seen(fence)
        assert await world.seen(request) == 1


async def test_what_died_so_while_it_waits_in_the_queue(own: World) -> None:
    """The one gap: Docket knows what waits. Celery does not, and the run is sent twice rather than lost."""
    async with own.target() as target:
        request = own.request(target)
        await target._names.claim(request, CLOCK.now())
        await target._send(request)
        await target._names.give_up(request)
        again = await target.create_run(later(request))
        own.start_worker()
        if own.kind == "docket":
            assert again == AlreadyExists(request.run_name)
            assert await own.seen(request) == 1
        else:
            assert again == Created(request.run_name)
            assert await own.seen(request, times=2) == 2


async def test_a_name_is_known_after_the_engine_forgot_the_run(world: World) -> None:
    async with world.target() as target:
        request = world.request(target)
        await target.create_run(request)
        run = as_fired(request)
        await until_ended(world.harness, target, run)
        keys = {"docket": f"docket:runs:{run.name}", "celery": f"celery-task-meta-{run.name}"}
        with world.server.client(2 if world.kind == "celery" else 0) as client:
            assert client.delete(keys[world.kind]) == 1  # as after execution_ttl, result_expires
        assert await target.create_run(later(request)) == AlreadyExists(request.run_name)


async def test_another_attempt_that_may_be_sending_is_waited_for(world: World) -> None:
    async with world.target() as target:
        request = world.request(target)
        await target._names.claim(request, CLOCK.now())
        for _ in range(2):  # and who asks meanwhile does not put it off
            answer = await target.create_run(later(request))
            assert isinstance(answer, Unavailable)
            assert answer.unknown
            assert answer.retry_at is not None
            assert abs(answer.retry_at - request.deadline) < timedelta(milliseconds=2)


async def test_a_name_of_another_triggers_run_is_no_duplicate(world: World) -> None:
    async with world.target() as target:
        request = world.request(target)
        await target.create_run(request)
        other = replace(request, trigger=TriggerKey("shop", "staging", "sync", "hourly"))
        answer = await target.create_run(other)
        assert answer == Refused(f"run {request.run_key} has this name over there already")


@pytest.mark.parametrize("own", ["docket"], indirect=True)
async def test_a_strike_lets_runs_wait(own: World) -> None:
    """The worker comes after it: one that has not yet heard of the restore drops what it takes, as Docket has
    it."""
    from docket import Docket

    async with own.target() as target, Docket(url=own.server.url) as docket:
        request = own.request(target)
        await docket.strike("quick")
        await target._docket.strike("quick")  # type: ignore[attr-defined]  # as its monitor hears of it
        answer = await target.create_run(request)
        assert isinstance(answer, Unavailable)
        assert "strike" in answer.reason
        await docket.restore("quick")
        await target._docket.restore("quick")  # type: ignore[attr-defined]
        assert await target.create_run(later(request)) == Created(request.run_name)
        own.start_worker()
        assert await own.seen(request) == 1


@pytest.mark.parametrize("own", ["docket"], indirect=True)
async def test_a_task_that_no_worker_has_waits(own: World) -> None:
    """A worker of Docket would complete it, and have done nothing."""
    async with own.target() as target:
        assert isinstance(await target.create_run(own.request(target, "hold")), Created), "one may come"
        worker = own.start_worker()
        workers = target._docket.workers_set  # type: ignore[attr-defined]
        assert await until(own.harness, lambda: target._redis.zcard(workers), bool)
        answer = await target.create_run(own.request(target, "nobody_wrote_it"))
        assert isinstance(answer, Unavailable)
        assert "no worker of the docket docket has the task nobody_wrote_it" in answer.reason
        assert isinstance(await target.create_run(own.request(target)), Created)
        worker.kill()


@pytest.mark.parametrize("own", ["docket"], indirect=True)
async def test_a_cancelled_task_goes_on_until_its_worker_has_let_it_go(own: World) -> None:
    worker = own.start_worker()
    async with own.target() as target:
        request = own.request(target, "hold")
        await target.create_run(request)
        await own.seen(request)
        worker.kill()
        run = as_fired(request)
        assert await target.cancel(run) is None, "Docket says cancelled; a worker may have it still"
        own.start_worker()
        assert (await until_ended(own.harness, target, run)).result is Result.CANCELLED


@pytest.mark.parametrize("world", ["celery"], indirect=True)
async def test_a_task_that_no_worker_knows_has_errored(world: World) -> None:
    async with world.target() as target:
        request = world.request(target, "nobody.wrote.it")
        await target.create_run(request)
        ended = await until_ended(world.harness, target, as_fired(request))
        assert ended.result is Result.ERRORED
        assert "nobody.wrote.it" in ended.detail


@pytest.mark.parametrize("world", ["celery"], indirect=True)
async def test_a_result_that_is_not_json_is_not_opened(world: World) -> None:
    async with world.target() as target:
        run = as_fired(world.request(target))
        with world.server.client(2) as client:
            client.set(f"celery-task-meta-{run.name}", b"\x80\x04cos\nsystem\n")
        told = await report(target, run)
        assert told.result is Result.UNKNOWN
        assert "result_serializer" in told.detail


@pytest.mark.parametrize("world", ["celery"], indirect=True)
async def test_what_a_message_may_have_of_its_own(world: World) -> None:
    own = {"queue": "mail", "priority": 3, "args": [16, {"a": None}], "expires": "1h"}
    async with world.target() as target:
        action = registry.check_action("celery", {"task_name": "quick", **own}, {}, "")
        request = fresh(world.harness, target, action)
        assert await target.create_run(request) == Created(request.run_name)
        with world.server.client(1) as client:
            (queue,) = client.keys("mail*")
            message = json.loads(client.lindex(queue, 0))
    assert json.loads(base64.b64decode(message["body"]))[0] == own["args"]
    left = datetime.fromisoformat(message["headers"]["expires"]) - CLOCK.now()
    assert timedelta(minutes=55) < left <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("action", "rule"),
    [
        ({"args": {"a": 1}}, "args is the list of positional arguments"),
        ({"args": [math.nan]}, "args are JSON"),
        ({"expires": "0s"}, "longer than zero"),
        ({"expires": "2 years"}, "expires"),
        ({"priority": 256}, "0 to 255"),
    ],
)
def test_what_a_deployment_of_celery_may_not_say(action: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule) as caught:
        registry.check_action("celery", {"task_name": "t", **action}, {}, "/deployments/a")
    assert [problem.pointer for problem in caught.value.problems] == [f"/deployments/a/{next(iter(action))}"]
