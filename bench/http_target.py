"""How fast the `http` target posts, beside a bare aiohttp client doing the same against the same receiver.

    python bench/http_target.py [--runs 1000] [--rounds 5] [--in-flight 64]

The receiver is a process of its own. Prints posts a second of both and their ratio, and how long the
given number of runs takes when all of them are due at once.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
from datetime import timedelta
from multiprocessing.connection import Connection

import aiohttp
import uvloop
from aiohttp import web

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.targets.base import Created, FireRequest
from horarium.targets.http import HttpTarget


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--in-flight", type=int, default=64)
    options.add_argument("--asyncio-loop", action="store_true", help="the standard loop instead of uvloop")
    given = options.parse_args()
    near, far = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=_receive, args=(far,), daemon=True)
    receiver.start()
    url = f"http://127.0.0.1:{near.recv()}/run"
    work = _measure(url, given.runs, given.rounds, given.in_flight)
    loop_factory = None if given.asyncio_loop else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work)
    receiver.terminate()


async def _measure(url: str, runs: int, rounds: int, in_flight: int) -> None:
    clock = SystemClock()
    results: dict[str, list[float]] = {"bare aiohttp": [], "http target": [], "http target, signed": []}
    for _ in range(rounds):
        results["bare aiohttp"].append(await _bare(clock, url, runs, in_flight))
        results["http target"].append(await _target(clock, {"url": url}, runs, in_flight))
        signed: dict[str, object] = {"url": url, "secret": f"file:{__file__}"}
        results["http target, signed"].append(await _target(clock, signed, runs, in_flight))
    bare = statistics.median(results["bare aiohttp"])
    for name, seconds in results.items():
        middle = statistics.median(seconds)
        print(
            f"{name:20} {runs} runs in {middle:.3f} s (best {min(seconds):.3f}), "
            f"{runs / middle:,.0f} posts/s, {bare / middle:.2f} of bare"
        )


async def _bare(clock: SystemClock, url: str, runs: int, in_flight: int) -> float:
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(number: int) -> None:
            async with session.post(url, json={"n": number}) as response:
                await response.read()

        start = clock.monotonic()
        await asyncio.gather(*(one(number) for number in range(runs)))
        return clock.monotonic() - start


async def _target(clock: SystemClock, config: dict[str, object], runs: int, in_flight: int) -> float:
    target = HttpTarget(TargetSpec("bench", "http", config, max_in_flight=in_flight), clock)
    await target.start()
    now = clock.now()
    key = TriggerKey("bench", "production", "post", "default")
    requests = [
        FireRequest(f"r{number:x}", key, "schedule", now, 1, {}, {"n": number}, now + timedelta(minutes=1))
        for number in range(runs)
    ]
    start = clock.monotonic()
    answers = await asyncio.gather(*(target.create_run(request) for request in requests))
    took = clock.monotonic() - start
    await target.close()
    assert all(isinstance(answer, Created) for answer in answers), answers[:3]
    return took


def _receive(pipe: Connection) -> None:
    async def serve() -> None:
        async def answer(request: web.Request) -> web.Response:
            await request.read()
            return web.Response(status=201)

        app = web.Application()
        app.router.add_post("/run", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
