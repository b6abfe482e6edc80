"""How many trivial commands a second the `local` target starts, and what that does to the event loop.

    python bench/local_target.py [--runs 1000] [--places 8] [--command true]

Rows go to a dict, so that the figure is the target's own; the store's is measured apart.
The loop's lag is how late a timer of 5 ms wakes meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
from datetime import datetime, timedelta

import uvloop

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.targets.base import Created, FireRequest, LocalRun
from horarium.targets.local import LocalTarget


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--places", type=int, default=8)
    options.add_argument("--command", default="true")
    options.add_argument("--asyncio-loop", action="store_true", help="the standard loop instead of uvloop")
    given = options.parse_args()
    loop_factory = None if given.asyncio_loop else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_measure(given.runs, given.places, given.command))


class _Rows:
    """Rows in a dict: a name is begun once."""

    def __init__(self) -> None:
        self.rows: dict[str, LocalRun | None] = {}

    async def local_begin(self, run_name: str, owner: str, now: datetime) -> bool:
        if run_name in self.rows:
            return False
        self.rows[run_name] = None
        return True

    async def local_running(self, run_name: str, pid: int) -> None:
        pass

    async def local_output(self, run_name: str, output: bytes, total: int) -> None:
        pass

    async def local_end(self, run: LocalRun) -> None:
        self.rows[run.run_name] = run

    async def local_interrupt(self, owner: str, now: datetime) -> int:
        return 0

    async def local_run(self, run_name: str) -> LocalRun | None:
        return self.rows[run_name]


async def _measure(runs: int, places: int, command: str) -> None:
    clock = SystemClock()
    start = clock.monotonic()
    for _ in range(200):
        subprocess.run([command], check=False)
    plain = 200 / (clock.monotonic() - start)

    rows, freed, lags = _Rows(), asyncio.Event(), list[float]()
    target = LocalTarget(TargetSpec("bench", "local", max_in_flight=places), rows, clock, "bench", freed.set)
    await target.start()
    watching = asyncio.create_task(_watch(clock, lags))
    key, now = TriggerKey("bench", "production", "true", "default"), clock.now()
    took: list[float] = []

    async def one(number: int) -> None:
        begun = clock.monotonic()
        answer = await target.create_run(
            FireRequest(
                f"r{number:x}", key, "schedule", now, 1, {"run": command}, {}, now + timedelta(minutes=5)
            )
        )
        took.append(clock.monotonic() - begun)
        assert isinstance(answer, Created), answer

    start = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(runs):
            while not target.free():
                freed.clear()
                await freed.wait()
            group.create_task(one(number))
            # A place is taken once the call has begun.
            await asyncio.sleep(0)
    await target.drain(timedelta(seconds=60))
    seconds = clock.monotonic() - start
    watching.cancel()
    await target.close()
    assert all(row is not None and row.state == "succeeded" for row in rows.rows.values())
    print(f"subprocess.run, one after the other: {plain:,.0f} a second")
    print(f"local target, {places} places: {runs} runs in {seconds:.2f} s, {runs / seconds:,.0f} a second")
    print(f"create_run: {_percentiles(took)}")
    print(f"the loop's lag: {_percentiles(lags)}")


def _percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return (
        f"p50 {statistics.median(ordered) * 1e3:.1f} ms, p99 {ordered[int(len(ordered) * 0.99)] * 1e3:.1f} ms"
    )


async def _watch(clock: SystemClock, lags: list[float]) -> None:
    while True:
        before = clock.monotonic()
        await asyncio.sleep(0.005)
        lags.append(clock.monotonic() - before - 0.005)


if __name__ == "__main__":
    main()
