"""How fast the `flyte` target creates runs, beside a bare aiohttp client that posts the same bytes.

    python -m bench.flyte_target [--runs 2000] [--rounds 5] [--in-flight 64]

The run service is the tests' stand-in, on the server code that flyteidl2 generates, in a process of its own.
Prints calls a second of both and their ratio, of the target without gzip, and of connectrpc's own client, and
what a call costs of this process's CPU, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection

import aiohttp
import uvicorn
import uvloop
from flyteidl2.task.common_pb2 import Inputs, NamedLiteral
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.trigger.trigger_definition_pb2 import TriggerDetails, TriggerSpec
from flyteidl2.workflow.run_service_connect import RunServiceClient

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.flyte.messages import create_run_request, literal, trigger_action, trigger_name
from horarium.targets.base import Created, FireRequest
from horarium.targets.flyte import FlyteTarget, check_config

KEY = TriggerKey("flytesnacks", "development", "env.my_task", "daily")
SPEC = TriggerSpec(
    inputs=Inputs(literals=[NamedLiteral(name="region", value=literal("eu"))]), run_spec=RunSpec(queue="fast")
)
SLOT = datetime(2026, 1, 5, 10, tzinfo=UTC)
PATH = "flyteidl2.workflow.RunService/CreateRun"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--runs", type=int, default=2_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--in-flight", type=int, default=64)
    given = options.parse_args()
    near, far = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=_receive, args=(far,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{near.recv()}"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure(url, given.runs, given.rounds, given.in_flight))
    receiver.terminate()


async def _measure(url: str, runs: int, rounds: int, in_flight: int) -> None:
    clock = SystemClock()
    kinds: dict[str, Callable[[list[FireRequest]], Awaitable[float]]] = {
        "bare aiohttp": lambda asked: _bare(clock, url, asked, in_flight),
        "flyte target": lambda asked: _target(clock, {"endpoint": url}, asked, in_flight),
        "flyte target, no gzip": lambda asked: _target(
            clock, {"endpoint": url, "gzip": False}, asked, in_flight
        ),
        "connectrpc client": lambda asked: _connectrpc(clock, url, asked, in_flight),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    cpu: dict[str, list[float]] = {name: [] for name in kinds}
    made = 0
    for _ in range(rounds):
        for name, work in kinds.items():
            asked = [_request(made + number, clock) for number in range(runs)]
            made += runs
            before = time.process_time()
            seconds[name].append(await work(asked))
            cpu[name].append((time.process_time() - before) / runs * 1e6)
    bare = statistics.median(seconds["bare aiohttp"])
    for name, each in seconds.items():
        middle = statistics.median(each)
        print(
            f"{name:22} {runs:,} runs in {middle:.3f} s (best {min(each):.3f}), "
            f"{runs / middle:,.0f} calls/s, {bare / middle:.2f} of bare; "
            f"{min(cpu[name]):.0f} µs of CPU a call here"
        )


async def _bare(clock: SystemClock, url: str, asked: list[FireRequest], in_flight: int) -> float:
    """The same bytes, made before the clock starts."""
    bodies = [gzip.compress(create_run_request(item).SerializeToString(), 1, mtime=0) for item in asked]
    headers = {"Content-Type": "application/proto", "Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def post(body: bytes) -> None:
            async with session.post(f"{url}/{PATH}", data=body, headers=headers) as response:
                assert response.status == 200
                await response.read()

        return await _timed(clock, [lambda body=body: post(body) for body in bodies], in_flight)  # type: ignore[misc]


async def _target(
    clock: SystemClock, config: dict[str, object], asked: list[FireRequest], in_flight: int
) -> float:
    spec = TargetSpec("flyte", "flyte", check_config(config, ""), max_in_flight=in_flight)
    target = FlyteTarget(spec, clock)
    await target.start()

    async def create(item: FireRequest) -> None:
        assert isinstance(await target.create_run(item), Created)

    try:
        return await _timed(clock, [lambda item=item: create(item) for item in asked], in_flight)  # type: ignore[misc]
    finally:
        await target.close()


async def _connectrpc(clock: SystemClock, url: str, asked: list[FireRequest], in_flight: int) -> float:
    messages = [create_run_request(item) for item in asked]
    client = RunServiceClient(url)

    async def create(message: object) -> None:
        await client.create_run(message)

    return await _timed(clock, [lambda item=item: create(item) for item in messages], in_flight)  # type: ignore[misc]


async def _timed(clock: SystemClock, calls: list[Callable[[], Awaitable[None]]], in_flight: int) -> float:
    """Seconds that all calls take, so many at once."""
    rest = iter(calls)

    async def one_after_the_other() -> None:
        for call in rest:
            await call()

    began = clock.monotonic()
    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    return clock.monotonic() - began


def _request(number: int, clock: SystemClock) -> FireRequest:
    return FireRequest(
        run_name=f"r{number:x}",
        trigger=KEY,
        origin="schedule",
        scheduled_time=SLOT,
        attempt=1,
        action=trigger_action(trigger_name(KEY), SPEC),
        parameters={"as_of": "2026-01-05T10:00:00Z"},
        deadline=clock.now() + timedelta(minutes=5),
        kickoff_time_arg="as_of",
    )


def _receive(pipe: Connection) -> None:
    from tests.flyte.backend import Backend, listener

    backend = Backend()
    backend.keep_calls = False
    details = TriggerDetails(spec=SPEC)
    details.id.name.CopyFrom(trigger_name(KEY))
    backend.deploy(details)
    sock = listener()
    config = uvicorn.Config(backend, loop="uvloop", log_level="critical", access_log=False, lifespan="off")
    pipe.send(sock.getsockname()[1])
    uvloop.run(uvicorn.Server(config).serve(sockets=[sock]))


if __name__ == "__main__":
    main()
