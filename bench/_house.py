"""What the benches of the engine share: databases, listings, and how figures are printed.

The machine that a bench runs on is often shared, so each figure is a median over rounds with the best round
beside it, and stands beside a raw limit that was measured in the same round.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import uvloop

from horarium.clock import Clock
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import Window
from horarium.core.reconcile import reconcile
from horarium.core.spec import DeploymentSpec, Listing, TargetSpec, TriggerEntry, TriggerSpec
from horarium.engine.planner import Planner
from horarium.engine.wake import Wake
from horarium.store import migrations
from horarium.store.base import Store, SyncResult
from horarium.store.sqlite import SqliteStore, engine
from horarium.wiring import spare_collector

START = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
T = TypeVar("T")


@asynccontextmanager
async def opened(clock: Clock, folder: str | None = None) -> AsyncIterator[SqliteStore]:
    """A new, migrated database in a file of its own, opened."""
    with TemporaryDirectory(prefix="horarium-bench-", dir=folder) as made:
        path = Path(made) / "horarium.db"
        migrate(path)
        store = SqliteStore(path, clock)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def migrate(path: Path) -> None:
    """Make the schema in a file."""
    made = engine(str(path))
    with made.connect() as connection, connection.begin():
        migrations.upgrade(connection)
    made.dispose()


def listing(count: int, cron: str, source: str = "bench", target: TargetSpec | None = None) -> Listing:
    """`count` triggers with one rule, ten to a deployment."""
    sink = target or TargetSpec("sink", "http", {"url": "http://127.0.0.1:9/run"}, unlimited=True)
    spec = TriggerSpec({"cron": cron}, sink.name, parameters={"region": "eu"})
    keys = [TriggerKey("bench", "production", f"job-{n // 10}", f"t{n % 10}") for n in range(count)]
    deployments = dict.fromkeys(key.deployment for key in keys)
    return Listing(
        source,
        (sink,),
        tuple(
            DeploymentSpec(DeploymentKey("bench", "production", name), sink.name, {}, {"region": "eu"})
            for name in deployments
        ),
        tuple(TriggerEntry(key, spec) for key in keys),
    )


async def sync(store: Store, wanted: Listing, now: datetime) -> SyncResult:
    """One pass of a source, as the syncer makes it."""
    version = await store.source_version(wanted.source)
    result = await store.sync_source(
        wanted, version, lambda known: reconcile(wanted, known, now), now, "bench"
    )
    assert not result.decided.problems, result.decided.problems
    return result


async def plan_all(store: Store, clock: Clock, window: Window | None = None) -> int:
    """Plan until nothing is due; how many triggers were looked at."""
    planner = Planner(store, clock, window or Window(), Wake())
    looked = 0
    while found := await planner.run_once():
        looked += found
    return looked


def figure(name: str, values: Sequence[float], unit: str, *, least: bool = False, **beside: object) -> None:
    """Print a figure's median, its best round (the greatest, or the `least`), and what stands beside it."""
    best = min(values) if least else max(values)
    rest = "".join(f"  {word} {value}" for word, value in beside.items())
    print(f"{name:44} {_text(statistics.median(values))} {unit} (best {_text(best)}){rest}", flush=True)


def ratio(values: Sequence[float], limits: Sequence[float]) -> str:
    """The median of `value / limit`, round by round."""
    return f"{statistics.median(a / b for a, b in zip(values, limits, strict=True)):.2f}"


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on the loop that the server runs on, with its collector of garbage; raw limits run on them too."""
    spare_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def seconds(delta: timedelta) -> float:
    """A duration as a number."""
    return delta / timedelta(seconds=1)


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
