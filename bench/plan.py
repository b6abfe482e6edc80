"""How fast triggers are read in, planned cold and topped up, and what a look with nothing due costs.

    python -m bench.plan [--triggers 5000] [--rounds 3] [--quiet 100000]

Beside planning stands a bare `sqlite3.executemany` of the very same rows, in the same table with the same
indexes and in transactions of the same size: what the database alone would take.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

from bench._house import START, figure, listing, migrate, opened, plan_all, ratio, run, sync
from horarium.core.instant import from_micros
from horarium.core.plan import Window
from horarium.engine.executor import Executor
from horarium.engine.planner import Planner
from horarium.engine.pool import TargetPool
from horarium.engine.wake import Wake
from horarium.store.sqlite import SqliteStore
from horarium.testing import FakeTarget, SequenceIds, VirtualClock

BATCH = 4_000
"""Runs a transaction, as the planner has them while nothing is about to fire."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--triggers", type=int, default=5_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--quiet", type=int, default=100_000, help="triggers of which none is due; 0: none")
    given = options.parse_args()
    run(lambda: _planned(given.triggers, given.rounds, "*/5 * * * *"))
    run(lambda: _planned(given.triggers, given.rounds, "30 2 * * *"))
    if given.quiet:
        run(lambda: _quiet(given.quiet))


async def _planned(count: int, rounds: int, cron: str) -> None:
    cold, limits, synced, again = [], [], [], []
    top, top_runs = [], []
    for _ in range(rounds):
        clock = VirtualClock(START)
        async with opened(clock) as store:
            wanted = listing(count, cron)
            start = time.perf_counter()
            await sync(store, wanted, clock.now())
            synced.append(count / (time.perf_counter() - start))
            start = time.perf_counter()
            await sync(store, wanted, clock.now())
            again.append(count / (time.perf_counter() - start))
            start = time.perf_counter()
            assert await plan_all(store, clock) == count
            took = time.perf_counter() - start
            before = _runs(store)
            cold.append(before / took)
            limits.append(_bare(store))
            clock.advance(_last_due(store) - clock.now())
            start = time.perf_counter()
            looked = await plan_all(store, clock)
            took = time.perf_counter() - start
            assert looked == count
            top.append(count / took)
            top_runs.append((_runs(store) - before) / took)
    print(f"{count:,} triggers {cron!r}:")
    figure("  sync, all new", synced, "triggers/s")
    figure("  sync, all the same", again, "triggers/s")
    figure("  bare executemany of the same rows", limits, "runs/s")
    figure("  plan, cold", cold, "runs/s", of_bare=ratio(cold, limits))
    figure("  top-up", top, "triggers/s", of_bare=ratio(top_runs, limits))


async def _quiet(count: int) -> None:
    clock = VirtualClock(START)
    async with opened(clock) as store:
        start = time.perf_counter()
        await sync(store, listing(count, "0 3 1 1 *"), clock.now())
        print(f"{count:,} triggers, none due:")
        figure("  sync, all new", [count / (time.perf_counter() - start)], "triggers/s")
        await plan_all(store, clock)
        planner = Planner(store, clock, Window(), Wake())
        await planner.run_once()  # the first look of a process also asks for triggers with older tz data
        pool = TargetPool(store, clock, lambda spec: FakeTarget(), None)
        executor = Executor(store, clock, SequenceIds(), pool, Wake(), "bench")
        await executor.run_once()
        looks, passes = [], []
        for _ in range(200):
            start = time.perf_counter()
            assert await planner.run_once() == 0
            looks.append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            assert await executor.run_once() == 0
            passes.append((time.perf_counter() - start) * 1e3)
        figure("  a look of the planner", looks, "ms", least=True, worst=f"{max(looks):.2f}")
        figure("  a pass of the executor", passes, "ms", least=True, worst=f"{max(passes):.2f}")


def _runs(store: SqliteStore) -> int:
    with closing(sqlite3.connect(store.path)) as connection:
        return int(connection.execute("select count(*) from run").fetchone()[0])


def _last_due(store: SqliteStore) -> datetime:
    """When every trigger is due for a top-up."""
    with closing(sqlite3.connect(store.path)) as connection:
        return from_micros(connection.execute("select max(plan_due_at) from trigger").fetchone()[0])


def _bare(store: SqliteStore) -> float:
    """The runs of the store, inserted again into an empty database as fast as the driver can; runs/s."""
    with closing(sqlite3.connect(store.path)) as connection:
        columns = [row[1] for row in connection.execute("pragma table_info(run)")]
        rows = connection.execute("select * from run order by id").fetchall()
        parents = {
            name: connection.execute(f"select * from {name}").fetchall() for name in ("target", "trigger")
        }
    path = Path(store.path).with_name("bare.db")
    migrate(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("journal_mode = wal", "synchronous = full", "cache_size = -65536"):
            connection.execute(f"pragma {name}").close()
        for name, found in parents.items():
            connection.execute(f"delete from {name}")
            marks = ",".join("?" * len(found[0]))
            connection.execute("begin")
            connection.executemany(f"insert into {name} values ({marks})", found)
            connection.execute("commit")
        connection.execute("pragma foreign_keys = on")
        insert = f"insert into run values ({','.join('?' * len(columns))})"
        start = time.perf_counter()
        for first in range(0, len(rows), BATCH):
            connection.execute("begin immediate")
            connection.executemany(insert, rows[first : first + BATCH])
            connection.execute("commit")
        took = time.perf_counter() - start
    path.unlink()
    return len(rows) / took


if __name__ == "__main__":
    main()
