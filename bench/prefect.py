"""How long a whole planning pass over a Prefect server's deployments takes: listing, reading, sync, plan.

    python -m bench.prefect [--deployments 5000] [--rounds 3] [--peer]

`--peer` makes the environment of a real Prefect and has its scheduler's own function plan as many deployments
on SQLite, once (`bench/_prefect_peer.py`): that takes minutes.


The server is a stand-in that answers Prefect's `filter` calls out of memory, 200 at once as Prefect does: to
fill a real one with 5,000 deployments takes longer than everything else here, and its own time to answer is
not ours to measure. It runs in this process, so its work counts in each figure. Beside the time stands the
processor time of the best round, which says more where the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from aiohttp import web
from sqlalchemy import func, select

from bench._house import figure, opened, plan_all, run, sync
from horarium.clock import SystemClock
from horarium.core.plan import Window
from horarium.sources.prefect import PrefectSource, check_source
from horarium.store import tables
from horarium.testing import VirtualClock

PAGE = 200
PEER = Path(__file__).with_name("_prefect_peer.py")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--deployments", type=int, default=5_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--peer", action="store_true", help="measure Prefect's own scheduler beside it")
    given = options.parse_args()
    for window, words in ((Window(), "two hours ahead, as it ships"), (AS_FAR, "an hour ahead, as Prefect")):
        print(f"{given.deployments:,} deployments with '*/5 * * * *', planned {words}; seconds:")
        run(lambda window=window: _measured(given.deployments, given.rounds, window))  # type: ignore[misc]
    if given.peer:
        _peer(given.deployments)


AS_FAR = Window(min_scheduled_time=timedelta(minutes=30))
"""A plan fills to twice what it promises; with this, to the hour that Prefect's scheduler fills."""


async def _measured(count: int, rounds: int, window: Window) -> None:
    first, read, synced, planned, whole, same, processor = [], [], [], [], [], [], []
    async with _serving(count) as url:
        for _ in range(rounds):
            clock = VirtualClock()
            source = PrefectSource(check_source({"url": url}, ""), SystemClock())
            async with opened(clock) as store:
                start = time.perf_counter()
                await source.version()  # of a new process: it looks twice
                await source.read()
                first.append(time.perf_counter() - start)
                await source.version()
                begin, used = time.perf_counter(), time.process_time()
                await source.version()
                listing = await source.read()
                read.append(time.perf_counter() - begin)
                assert len(listing.triggers) == count
                start = time.perf_counter()
                await sync(store, listing, clock.now())
                synced.append(time.perf_counter() - start)
                start = time.perf_counter()
                assert await plan_all(store, clock, window) == count
                planned.append(time.perf_counter() - start)
                whole.append(time.perf_counter() - begin)
                processor.append(time.process_time() - used)
                made = (await store.fetch(select(func.count()).select_from(tables.run)))[0][0]
                await source.version()
                start = time.perf_counter()
                await source.version()
                same.append(time.perf_counter() - start)
    figure("  a new process reads them (twice)", first, "s", least=True)
    figure("  list and read", read, "s", least=True)
    figure("  sync, all new", synced, "s", least=True)
    figure("  plan, cold", planned, "s", least=True, runs_now=f"{made:,}")
    figure("  all three", whole, "s", least=True)
    figure("  all three, of the processor", processor, "s", least=True)
    figure("  a pass that finds nothing changed", same, "s", least=True)


def _peer(count: int) -> None:
    """A pass of Prefect's own scheduler, in a process of its own."""
    from tests.environments import environment

    with TemporaryDirectory(prefix="horarium-bench-") as folder:
        # -P: a module `prefect` lies beside the script, and is not the one that it wants.
        command = [str(environment("prefect")), "-P", str(PEER), folder, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    print(f"Prefect's own scheduler, {count:,} deployments, on SQLite:")
    for name, words in (("cold", "plan, cold"), ("again", "a second pass at once")):
        runs = f"{said[f'{name}_runs']:,.0f}"
        figure(f"  {words}", [said[name]], "s", cpu=f"{said[f'{name}_cpu']:.3g} s", runs_now=runs)


@asynccontextmanager
async def _serving(count: int) -> AsyncIterator[str]:
    """The url of the stand-in."""
    pages = [
        json.dumps([_deployment(n) for n in range(low, min(low + PAGE, count))])
        for low in range(0, count, PAGE)
    ]

    async def answer(call: web.Request) -> web.Response:
        body = json.loads(await call.read())
        if call.path.endswith("/flows/filter"):
            found = json.dumps([{"id": "f", "name": "etl"}] if not body["offset"] else [])
        else:
            page = body["offset"] // PAGE
            found = pages[page] if page < len(pages) else "[]"
        return web.Response(text=found, content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    finally:
        await runner.cleanup()


def _deployment(n: int) -> dict[str, object]:
    """As Prefect answers it, with the fields that are not ours too."""
    schedule = {
        "id": str(UUID(int=n + 1_000_000)),
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
        "deployment_id": str(UUID(int=n)),
        "schedule": {"cron": "*/5 * * * *", "timezone": "UTC", "day_or": True},
        "active": True,
        "max_scheduled_runs": None,
        "parameters": {},
        "slug": "often",
    }
    schema = {
        "type": "object",
        "title": "Parameters",
        "properties": {"table": {"type": "string", "position": 0}},
    }
    return {
        "id": str(UUID(int=n)),
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
        "name": f"deployment-{n}",
        "flow_id": "f",
        "paused": False,
        "schedules": [schedule],
        "parameters": {"table": f"table_{n}"},
        "tags": ["team:data"],
        "parameter_openapi_schema": schema,
        "work_pool_name": "default",
        "status": "READY",
        "entrypoint": "flows/etl.py:etl",
        "path": "/srv/flows",
    }


if __name__ == "__main__":
    main()
