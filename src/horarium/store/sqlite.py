"""The SQLite store: one writer thread, a few readers, and the hot statements in SQLite's words.

A store method is one synchronous function on the writer's thread with the standard library's driver, in one
`BEGIN IMMEDIATE` transaction (a deferred one that reads and then writes fails at once despite the busy
timeout). WAL and `synchronous=FULL`: what was committed survives a power cut. SQLAlchemy serves the
everyday scripts of `sql/` on the same connection.

With `inline=True` there are no threads: each method runs where it is called. The simulator and small
tests use that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from horarium.clock import Clock
from horarium.core.allowance import Allowance
from horarium.core.deployment import DeploymentChange
from horarium.core.freeze import GuardState, Owed, Scope
from horarium.core.instant import from_micros, from_seconds, to_micros
from horarium.core.keys import DeploymentKey, TriggerKey, long_run_name
from horarium.core.outcome import UNKNOWN, Outcome
from horarium.core.plan import Plan, PlanInput
from horarium.core.reconcile import Known, Reconciled, reconcile
from horarium.core.revision import Revision, Status, decided_slots
from horarium.core.run import FiredRun, Origin, PlannedRun, Report, Run, RunState
from horarium.core.spec import Listing
from horarium.core.trigger import Backfill, Trigger
from horarium.errors import StoreUnavailable
from horarium.store import migrations
from horarium.store.base import (
    Changed,
    Claimed,
    Claims,
    Decide,
    DecideDeployment,
    DecideRun,
    Demand,
    Frozen,
    LookResult,
    ManualRequest,
    PlansApplied,
    Pruned,
    PrunedBeyond,
    Released,
    Remembered,
    SyncResult,
    TargetRow,
)
from horarium.store.rows import spec_of
from horarium.store.sql import (
    backfills,
    changes,
    completion,
    fire,
    freeze,
    housekeeping,
    idempotency,
    local_runs,
    sync,
)
from horarium.store.sql.script import Many, Script, Step
from horarium.targets.base import LocalRun

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
"""How long a statement waits for another process's write (a CLI command, a backup) before it gives up."""

READERS = 3


class SqliteStore:
    """See the module. `path` is the database file; it must have been migrated (`migrations.upgrade`)."""

    def __init__(self, path: str | Path, clock: Clock, *, inline: bool = False) -> None:
        self.path = str(path)
        self._clock = clock
        self._inline = inline
        self._writer: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._engine: Engine | None = None
        self._write_connection: Connection | None = None
        self._raw: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        """Device and inode of the file at `path` when it was opened; None: it has none (in memory)."""
        self._local = threading.local()
        self._read_connections: list[Connection] = []

    async def open(self) -> None:
        if not self._inline:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="horarium-write")
            self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="horarium-read")
        try:
            await self._on_writer(self._connect)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._on_writer(self._disconnect)
        for pool in (self._writer, self._readers):
            if pool is not None:
                pool.shutdown(wait=True)
        for connection in self._read_connections:
            connection.close()
        self._read_connections.clear()
        if self._engine is not None:
            self._engine.dispose()

    async def clock(self) -> datetime:
        return self._clock.now()

    # plan

    async def lease_due(self, now: datetime, until: datetime, limit: int) -> list[PlanInput]:
        # One server plans a file, so the queue needs no lease: the compare-and-set alone decides.
        return await self._on_writer(lambda: _lease_due(self._connection, to_micros(now), limit))

    async def apply_plans(self, plans: Sequence[Plan], now: datetime) -> PlansApplied:
        return await self._transaction(lambda db: self._apply_plans(db, plans, now))

    async def replan_older_tzdata(self, version: str, now: datetime) -> int:
        return await self._script(changes.replan_older_tzdata(version, now))

    async def next_plan_due(self) -> datetime | None:
        row = await self._on_writer(
            lambda: self._connection.execute(
                "select min(plan_due_at) from trigger where plan_due_at is not null"
            ).fetchone()
        )
        return None if row[0] is None else from_micros(row[0])

    async def plan_due(self) -> tuple[datetime, datetime | None]:
        return await self.clock(), await self.next_plan_due()

    # change

    async def change(
        self, keys: Iterable[TriggerKey], decide: Decide, now: datetime, who: str
    ) -> list[Changed]:
        return await self._script(changes.change(keys, decide, now, who))

    async def change_run(self, run_id: int, decide: DecideRun, now: datetime, who: str) -> Changed | None:
        return await self._script(changes.change_run(run_id, decide, now, who))

    async def change_deployment(
        self, key: DeploymentKey, decide: DecideDeployment, now: datetime, who: str
    ) -> DeploymentChange | None:
        return await self._script(changes.change_deployment(key, decide, now, who))

    async def create_trigger(
        self, listing: Listing, now: datetime, who: str, *, expected_revision: int | None = None
    ) -> SyncResult:
        def decide(known: Known) -> Reconciled:
            return reconcile(listing, known, now, partial=True)

        return await self._script(
            sync.create_trigger(listing, decide, now, who, expected_revision=expected_revision)
        )

    async def source_version(self, source: str) -> int:
        return await self._script(sync.source_version(source))

    async def source_listed_at(self, source: str) -> datetime | None:
        return await self._script(sync.source_listed_at(source))

    async def sync_source(
        self,
        listing: Listing,
        version: int,
        decide: Callable[[Known], Reconciled],
        now: datetime,
        who: str,
        *,
        dry_run: bool = False,
        path: str | None = None,
    ) -> SyncResult:
        return await self._script(
            sync.sync_source(listing, version, decide, now, who, dry_run=dry_run, path=path)
        )

    async def source_failed(self, source: str, error: str, now: datetime) -> None:
        await self._script(sync.source_failed(source, error, now))

    # fire

    async def targets(self) -> list[TargetRow]:
        return await self._script(fire.targets())

    async def look(self, target_id: int, now: datetime, grace: timedelta, *, guard: int = 0) -> LookResult:
        return await self._script(fire.look(target_id, now, grace, guard))

    async def claim(
        self,
        demands: Sequence[Demand],
        now: datetime,
        lease_until: datetime,
        owner: str,
        *,
        backlog_first: bool,
        late_after: timedelta,
        grace: timedelta,
        guard: int = 0,
    ) -> Claims:
        return await self._transaction(
            lambda db: self._admitted(
                _claim(db, demands, now, lease_until, owner, backlog_first, late_after, grace, guard),
                {item.target_id for item in demands if item.rate is not None},
                now,
            )
        )

    async def settle(self, outcomes: Sequence[Outcome], now: datetime) -> set[int]:
        return await self._transaction(lambda db: self._settled(outcomes, _settle(db, outcomes, now), now))

    async def report(self, reports: Sequence[Report], now: datetime) -> int:
        return await self._script(completion.report(reports, now))

    async def reports_due(self, now: datetime, limit: int) -> list[tuple[FiredRun, datetime]]:
        return await self._script(completion.reports_due(now, limit))

    async def next_due(self, now: datetime) -> datetime | None:
        row = await self._on_writer(
            lambda: self._connection.execute(_NEXT_DUE, {"now": to_micros(now)}).fetchone()
        )
        return None if row[0] is None else from_micros(row[0])

    async def create_manual(self, request: ManualRequest, now: datetime) -> tuple[Run, bool]:
        return await self._script(fire.create_manual(request, now))

    # freeze

    async def freeze(self, scope: Scope, note: str | None, who: str, now: datetime) -> Frozen:
        return await self._script(freeze.freeze(scope, note, who, now))

    async def release(self, scope: Scope, owed: Owed, who: str, now: datetime) -> Released:
        return await self._script(freeze.release(scope, owed, who, now))

    # housekeeping and reads

    async def prune(
        self, before: datetime, skips_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> Pruned:
        return await self._script(housekeeping.prune(before, skips_before, limit, audit_before))

    async def prune_beyond(
        self, keep_runs: int, keep_skips: int, after: int, triggers: int, limit: int
    ) -> PrunedBeyond:
        look = housekeeping.beyond(keep_runs, keep_skips, after, triggers, limit)
        found = await self._on_reader(lambda: _read_script(self._reader(), look))
        gone = await self._script(housekeeping.prune_found(found)) if found.runs or found.skips else Pruned()
        return PrunedBeyond(gone.runs, gone.skips, found.after)

    async def fetch(self, statement: Executable) -> Sequence[Row[Any]]:
        return await self._on_reader(lambda: _read(self._reader(), statement))

    async def remember(self, key: str, request_digest: str, now: datetime) -> Remembered | None:
        return await self._script(idempotency.remember(key, request_digest, now))

    async def answer(self, key: str, status: int | None, response: str | None) -> None:
        await self._script(idempotency.answer(key, status, response))

    # the local target's executions

    async def local_begin(self, run_name: str, owner: str, now: datetime) -> bool:
        return await self._script(local_runs.local_begin(run_name, owner, now))

    async def local_running(self, run_name: str, pid: int) -> None:
        await self._script(local_runs.local_running(run_name, pid))

    async def local_output(self, run_name: str, output: bytes, total: int) -> None:
        await self._script(local_runs.local_output(run_name, output, total))

    async def local_end(self, run: LocalRun) -> None:
        await self._script(local_runs.local_end(run))

    async def local_interrupt(self, owner: str, now: datetime) -> int:
        # One server runs on a file, so every other one has ended.
        return await self._script(local_runs.local_interrupt(owner, now, lambda _: True))

    async def local_run(self, run_name: str) -> LocalRun | None:
        return await self._script(local_runs.local_run(run_name))

    async def backup(self, destination: Path) -> None:
        """A live, consistent copy of the database. Raises `FileExistsError` when the file is there."""
        if destination.exists():
            raise FileExistsError(str(destination))

        def copy() -> None:
            with sqlite3.connect(self.path) as source, sqlite3.connect(destination) as copied:
                source.backup(copied, pages=2_000)

        await self._on_reader(copy)

    # how it runs

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._both()[1]

    def _connect(self) -> None:
        self._engine = engine(self.path)
        self._write_connection = self._engine.connect()
        raw = self._write_connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        self._raw = raw
        self._opened = _identity(self.path)
        with self._write_connection.begin():
            migrations.check(self._write_connection)

    def _disconnect(self) -> None:
        if self._write_connection is not None:
            self._write_connection.close()
        self._raw = None
        self._write_connection = None

    def _reader(self) -> Connection:
        """This thread's own connection for reads."""
        if self._engine is None:
            raise StoreUnavailable("the store is not open")
        self._check_file()
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._engine.connect()
            self._local.connection = found
            self._read_connections.append(found)
        return found

    async def _on_writer(self, work: Callable[[], T]) -> T:
        return await _in(self._writer, work)

    async def _on_reader(self, work: Callable[[], T]) -> T:
        return await _in(self._readers, work)

    async def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` in one IMMEDIATE transaction, with the driver's connection."""

        def run() -> T:
            with self._both()[0].begin():
                return work(self._connection)

        return await self._on_writer(run)

    def _admitted(self, claims: Claims, limited: Collection[int], now: datetime) -> Claims:
        """Those that begin now, as `overlap` has it; the tokens of the others are given back where their
        target is `limited`: nobody else took any."""
        if not completion.judges(claims.runs):
            return claims
        connection, db = self._both()
        begun = run_script(connection, completion.admit(claims.runs, now))
        for target_id, count in completion.less(claims.runs, begun).items():
            if target_id in limited:
                db.execute(
                    "update target_allowance set tokens = tokens + ? where target_id = ?", (count, target_id)
                )
        return replace(claims, runs=tuple(begun))

    def _settled(self, outcomes: Sequence[Outcome], done: set[int], now: datetime) -> set[int]:
        run_script(self._both()[0], completion.after_settle(outcomes, done, now))
        return done

    def _both(self) -> tuple[Connection, sqlite3.Connection]:
        if self._write_connection is None or self._raw is None:
            raise StoreUnavailable("the store is not open")
        self._check_file()
        return self._write_connection, self._raw

    def _check_file(self) -> None:
        """Raises `StoreUnavailable` where the path no longer leads to the file that is open.

        SQLite would go on with a file that was deleted or replaced: all that is written to it would be gone
        at the next start, and slots that have fired would fire again.
        """
        if self._opened is not None and (found := _identity(self.path)) != self._opened:
            what = "is gone" if found is None else "is another one than was opened"
            raise StoreUnavailable(f"the file {self.path} {what}: put it back, or stop this process")

    async def _script(self, script: Script[T]) -> T:
        """A script of `sql/` in one IMMEDIATE transaction."""

        def run() -> T:
            connection = self._both()[0]
            with connection.begin():
                return run_script(connection, script)

        return await self._on_writer(run)

    def _apply_plans(self, db: sqlite3.Connection, plans: Sequence[Plan], now: datetime) -> PlansApplied:
        won = _compare_and_set(db, plans)
        winners = [item for item in plans if item.input.trigger.id in won]
        targets = dict(db.execute("select name, id from target"))
        rows = [row for item in winners for row in _run_rows(item, _automatic(item), targets)]
        inserted = _insert_runs(db, rows)
        renamed = 0
        if inserted < len(rows):
            for item in winners:
                renamed += _rename_collisions(db, item, _automatic(item), targets)
            inserted += renamed
        skips = [
            (
                item.input.trigger.id,
                skip.revision,
                to_micros(skip.first),
                to_micros(skip.last),
                skip.count,
                str(skip.reason),
                skip.detail,
                to_micros(now),
            )
            for item in winners
            for skip in item.skips
        ]
        _write(db, _INSERT_SKIP, skips)
        for item in winners:
            if item.backfills:
                new, long = self._step_backfills(db, item, targets, now)
                inserted, renamed = inserted + new, renamed + long
        lost = frozenset(item.input.trigger.id for item in plans) - won
        return PlansApplied(frozenset(won), lost, inserted, renamed)

    def _step_backfills(
        self, db: sqlite3.Connection, item: Plan, targets: Mapping[str, int], now: datetime
    ) -> tuple[int, int]:
        """Runs for the slots of each backfill's step; how many rows are new, and how many have the long name.

        A pending automatic run becomes a backfill run, any other keeps its slot; skips over what is filled
        now are split.
        """
        trigger = item.input.trigger
        inserted = renamed = 0
        for step, runs in backfills.runs_of_steps(item):
            taken_over = 0
            new: list[PlannedRun] = []
            for run in runs:
                slot = run.scheduled_time * 1_000_000
                taken = db.execute(_TAKE_OVER, (run.state.value, trigger.id, slot)).rowcount
                taken_over += taken
                if not taken:
                    new.append(run)
            made = _insert_runs(db, _run_rows(item, new, targets))
            if made < len(new):
                long = _rename_collisions(db, item, new, targets)
                made, renamed = made + long, renamed + long
            inserted += made
            db.execute(
                "update backfill set cursor = ?, state = ?, ended_at = ?, runs = runs + ? where id = ?",
                (
                    to_micros(step.cursor),
                    "done" if step.done else "open",
                    to_micros(now) if step.done else None,
                    made + taken_over,
                    step.id,
                ),
            )
            if runs:
                slots = [from_seconds(run.scheduled_time) for run in runs]
                carve = backfills.carve(trigger.id, slots, item.input.revisions, trigger.hash_seed)
                run_script(self._both()[0], carve)
        return inserted, renamed


def migrate_sqlite(path: str | Path) -> tuple[str | None, str]:
    """Bring a file's schema up to date, and make the file; the revision before, and the one now.

    Raises `SchemaMismatch` when the schema is a newer Horarium's that this one can't work on,
    `StoreUnavailable`.
    """
    made = engine(str(path))
    try:
        with made.connect() as connection, connection.begin():
            return migrations.bring_up(connection)
    except (sqlite3.DatabaseError, DBAPIError) as fault:
        raise StoreUnavailable(f"{path}: {getattr(fault, 'orig', fault)}") from fault
    finally:
        made.dispose()


def downgrade_sqlite(path: str | Path, revision: str | None) -> tuple[str | None, str | None]:
    """Take a file's schema back; the revision before, and the one now. Raises as `migrations.downgrade`."""
    made = engine(str(path))
    try:
        with made.connect() as connection, connection.begin():
            before = migrations.current(connection)
            migrations.downgrade(connection, revision)
            return before, migrations.current(connection)
    except (sqlite3.DatabaseError, DBAPIError) as fault:
        raise StoreUnavailable(f"{path}: {getattr(fault, 'orig', fault)}") from fault
    finally:
        made.dispose()


def engine(path: str) -> Engine:
    """A SQLAlchemy engine on a SQLite file as every connection of Horarium has it."""
    made = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1_000},
    )

    @event.listens_for(made, "connect")
    def _set_up(raw: sqlite3.Connection, _: object) -> None:
        raw.isolation_level = None  # we say BEGIN ourselves
        for pragma in (
            "journal_mode = wal",
            "synchronous = full",
            "foreign_keys = on",
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
            "cache_size = -65536",
            "temp_store = memory",
        ):
            raw.execute(f"pragma {pragma}").close()

    @event.listens_for(made, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("begin" if connection.info.get("reads") else "begin immediate")

    return made


def run_script(connection: Connection, script: Script[T]) -> T:
    """Drive a script inline, inside the caller's transaction."""
    try:
        step = next(script)
        while True:
            step = script.send(_execute(connection, step))
    except StopIteration as done:
        result: T = done.value
        return result


def _execute(connection: Connection, step: Step) -> Any:
    if isinstance(step, Many):
        if not step.rows:
            return []
        result = connection.execute(step.statement, list(step.rows))
    else:
        result = connection.execute(step)
    return result.all() if result.returns_rows else result.rowcount


def _read(connection: Connection, statement: Executable) -> Sequence[Row[Any]]:
    connection.info["reads"] = True
    with connection.begin():
        return connection.execute(statement).all()


def _read_script(connection: Connection, script: Script[T]) -> T:
    connection.info["reads"] = True
    with connection.begin():
        return run_script(connection, script)


async def _in(pool: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
    """`work` on a pool's thread, or right here without one; a database's fault becomes `StoreUnavailable`."""
    try:
        if pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except (sqlite3.OperationalError, OperationalError) as fault:
        raise StoreUnavailable(_said(fault)) from fault
    except (sqlite3.DatabaseError, DBAPIError) as fault:
        if isinstance(fault, sqlite3.IntegrityError) or isinstance(
            getattr(fault, "orig", None), sqlite3.IntegrityError
        ):
            raise  # a broken promise, not an outage: it must be seen as what it is
        raise StoreUnavailable(_said(fault)) from fault


def _said(fault: Exception) -> str:
    """What SQLite said, without what SQLAlchemy lays around it."""
    return str(getattr(fault, "orig", None) or fault)


# lease

_LEASE = """
select t.id, t.project, t.domain, t.deployment, t.name, t.hash_seed, t.source, t.revision, t.status,
       t.cursor, t.plan_due_at, t.paused, t.resume_at, t.error_count, t.zone_digest, t.tzdata_version,
       r.effective_from, r.state, r.spec, r.what, r.who,
       exists (select 1 from backfill b where b.trigger_id = t.id and b.state = 'open'),
       exists (select 1 from skip s where s.trigger_id = t.id and s.last_time > t.cursor)
       or exists (select 1 from run u where u.trigger_id = t.id and u.origin <> 'manual'
                  and u.scheduled_time > t.cursor)
       , t.frozen, t.shadow, r.shadow, r.deployment_paused
from trigger t join trigger_revision r on r.trigger_id = t.id and r.number = t.revision
where t.plan_due_at <= ? order by t.plan_due_at limit ?
"""


def _lease_due(db: sqlite3.Connection, now: int, limit: int) -> list[PlanInput]:
    """The present revision comes with it; older ones, backfills and skips only where there are any."""
    db.execute("begin")
    try:
        return [_plan_input(db, row) for row in db.execute(_LEASE, (now, limit)).fetchall()]
    finally:
        db.execute("rollback")


def _plan_input(db: sqlite3.Connection, row: tuple[Any, ...]) -> PlanInput:
    trigger = Trigger(
        id=row[0],
        key=TriggerKey(row[1], row[2], row[3], row[4]),
        hash_seed=row[5],
        managed_by=row[6],
        revision=row[7],
        status=Status(row[8]),
        cursor=from_micros(row[9]),
        plan_due_at=from_micros(row[10]),
        paused=bool(row[11]),
        resume_at=None if row[12] is None else from_micros(row[12]),
        error_count=row[13],
        zone_digest=row[14],
        tzdata_version=row[15],
        frozen=bool(row[23]),
        shadow=bool(row[24]),
    )
    current = Revision(
        row[7],
        from_micros(row[16]),
        Status(row[17]),
        spec_of(row[18]),
        row[19],
        row[20],
        bool(row[25]),
        bool(row[26]),
    )
    has_backfill, has_decided = row[21], row[22]
    revisions: tuple[Revision, ...] = (current,)
    if has_backfill or (current.number > 1 and row[16] > row[9]):
        revisions = (*_older_revisions(db, trigger, everything=bool(has_backfill)), current)
    backfills: tuple[Backfill, ...] = ()
    if has_backfill:
        backfills = tuple(
            Backfill(item[0], trigger.id, from_micros(item[1]), from_micros(item[2]), from_micros(item[3]))
            for item in db.execute(
                "select id, from_time, to_time, cursor from backfill"
                " where trigger_id = ? and state = 'open' order by id",
                (trigger.id,),
            )
        )
    decided: tuple[tuple[datetime, datetime], ...] = ()
    if has_decided:
        decided = tuple(_decided(db, trigger, row[9]))
    assert trigger.plan_due_at is not None
    return PlanInput(trigger, revisions, trigger.plan_due_at, backfills, decided)


def _decided(db: sqlite3.Connection, trigger: Trigger, cursor: int) -> Iterator[tuple[datetime, datetime]]:
    """Slots past the cursor that have a run or lie in a skip."""
    for first, last, spec in db.execute(
        "select s.first_time, s.last_time, r.spec from skip s join trigger_revision r"
        " on r.trigger_id = s.trigger_id and r.number = s.revision"
        " where s.trigger_id = ? and s.last_time > ?",
        (trigger.id, cursor),
    ):
        yield from decided_slots(
            spec_of(spec), trigger.hash_seed, from_micros(first), from_micros(last), trigger.cursor
        )
    for (slot,) in db.execute(
        "select scheduled_time from run where trigger_id = ? and origin <> 'manual' and scheduled_time > ?",
        (trigger.id, cursor),
    ):
        yield from_micros(slot), from_micros(slot)


def _older_revisions(db: sqlite3.Connection, trigger: Trigger, *, everything: bool) -> list[Revision]:
    rows = db.execute(
        "select number, effective_from, state, spec, what, who, shadow, deployment_paused"
        " from trigger_revision"
        " where trigger_id = ? and number < ? order by number",
        (trigger.id, trigger.revision),
    ).fetchall()
    cursor = to_micros(trigger.cursor)
    if not everything:
        in_force = max((row[0] for row in rows if row[1] <= cursor), default=0)
        rows = [row for row in rows if row[0] >= in_force]
    return [
        Revision(
            row[0],
            from_micros(row[1]),
            Status(row[2]),
            spec_of(row[3]),
            row[4],
            row[5],
            bool(row[6]),
            bool(row[7]),
        )
        for row in rows
    ]


# apply


def _write(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[sqlite3.Cursor]:
    """A statement with all the rows that stand for its `{rows}`, in as few executions as SQLite's bound on
    variables lets them be.

    `executemany` is an execution a row. Each lets go of the interpreter's lock and waits to have it back, up
    to 5 ms while another thread works, as the planner's does at that very time: up to 20 s for 4,000 rows.
    """
    if not rows:
        return []
    width = len(rows[0])
    most = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    done = []
    first = 0
    while first < len(rows):
        # Powers of two, so that few texts are ever prepared, and are found prepared.
        count = 1 << (min(most, len(rows) - first).bit_length() - 1)
        marks = ", ".join([f"({', '.join('?' * width)})"] * count)
        values = [value for row in rows[first : first + count] for value in row]
        done.append(db.execute(statement.format(rows=marks), values))
        first += count
    return done


_APPLY = """
with plan (id, revision, old_cursor, token, cursor, plan_due_at, status, error, error_count,
           zone_digest, tzdata_version) as (values {rows})
update trigger set cursor = plan.cursor, plan_due_at = plan.plan_due_at, status = plan.status,
                   error = plan.error, error_count = plan.error_count,
                   zone_digest = coalesce(plan.zone_digest, trigger.zone_digest),
                   tzdata_version = coalesce(plan.tzdata_version, trigger.tzdata_version)
from plan where trigger.id = plan.id
and trigger.revision = plan.revision and trigger.cursor = plan.old_cursor and trigger.plan_due_at = plan.token
returning trigger.id
"""


def _compare_and_set(db: sqlite3.Connection, plans: Sequence[Plan]) -> set[int]:
    """Write what was decided of each trigger that is still as it was read; their ids."""
    rows = [
        (
            item.input.trigger.id,
            item.input.trigger.revision,
            to_micros(item.input.trigger.cursor),
            to_micros(item.input.token),
            to_micros(item.cursor),
            None if item.plan_due_at is None else to_micros(item.plan_due_at),
            item.status.value,
            item.error,
            0 if item.error is None else item.input.trigger.error_count + 1,
            item.zone_digest,
            item.tzdata_version,
        )
        for item in plans
    ]
    return {row[0] for cursor in _write(db, _APPLY, rows) for row in cursor}


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_INSERT_RUN = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, expires_at, utc_offset)
values {rows} on conflict do nothing
"""
_INSERT_SKIP = """
insert into skip (trigger_id, revision, first_time, last_time, count, reason, detail, at) values {rows}
"""


def _run_rows(item: Plan, runs: Sequence[PlannedRun], targets: Mapping[str, int]) -> list[tuple[Any, ...]]:
    trigger = item.input.trigger
    project, domain = trigger.key.project, trigger.key.domain
    return [
        (
            trigger.id,
            run.scheduled_time * 1_000_000,
            str(run.origin),
            project,
            domain,
            run.name,
            run.revision,
            targets[run.target],
            str(run.state),
            (due := to_micros(run.due_at)),
            due,
            None if run.expires_at is None else to_micros(run.expires_at),
            run.utc_offset,
        )
        for run in runs
    ]


def _insert_runs(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    return sum(cursor.rowcount for cursor in _write(db, _INSERT_RUN, rows))


def _automatic(item: Plan) -> list[PlannedRun]:
    return [run for run in item.runs if run.origin is not Origin.BACKFILL]


def _rename_collisions(
    db: sqlite3.Connection, item: Plan, runs: Sequence[PlannedRun], targets: Mapping[str, int]
) -> int:
    """Slots that got no row, though no run has their slot: another slot has their name. A collision is
    never taken for a duplicate."""
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        there = db.execute(
            "select 1 from run where trigger_id = ? and scheduled_time = ? and origin <> 'manual'",
            (item.input.trigger.id, run.scheduled_time * 1_000_000),
        ).fetchone()
        if there is None:
            long = long_run_name(item.input.trigger.key, from_seconds(run.scheduled_time))
            rows += _run_rows(item, [run._replace(name=long)], targets)
    inserted = _insert_runs(db, rows)
    if inserted < len(rows):
        raise RuntimeError("a long run name collided: two slots of one trigger, or 128 bits by chance")
    return inserted


_TAKE_OVER = """
update run set origin = 'backfill', expires_at = null, state = ?
where trigger_id = ? and scheduled_time = ? and origin = 'schedule' and state in ('scheduled', 'held')
"""


# claim

_ON_TIME = """
select id from run where target_id = :target and state = 'scheduled' and attempt = 0
and due_at > :late and due_at <= :now order by due_at, id limit :n
"""
_BACKLOG = """
select r.id, r.attempt, r.origin, t.status, t.frozen from run r join trigger t on t.id = r.trigger_id
where r.target_id = :target and r.state = 'scheduled' and r.due_at <= :now
and (r.attempt > 0 or r.due_at <= :late) order by r.due_at, r.id limit :n
"""
_TAKE = """
update run set attempt = attempt + 1, outcome_unknown = (outcome_unknown or lease_owner is not null),
               lease_owner = ?, due_at = ?, first_claimed_at = coalesce(first_claimed_at, ?)
where id in (select value from json_each(?))
"""
_TAKEN = """
select r.id, r.trigger_id, r.scheduled_time, r.origin, r.name, r.revision, r.target_id, r.first_due_at,
       r.expires_at, r.attempt, r.first_claimed_at, r.outcome_unknown, r.utc_offset, r.parameters,
       t.project, t.domain, t.deployment, t.name, v.spec, v.shadow
from json_each(?) j join run r on r.id = j.value join trigger t on t.id = r.trigger_id
join trigger_revision v on v.trigger_id = r.trigger_id and v.number = r.revision
order by j.key
"""


def _claim(
    db: sqlite3.Connection,
    demands: Sequence[Demand],
    now: datetime,
    lease_until: datetime,
    owner: str,
    backlog_first: bool,
    late_after: timedelta,
    grace: timedelta,
    guard: int,
) -> Claims:
    at = to_micros(now)
    ids: list[int] = []
    unlooked: list[int] = []
    limited: list[int] = []
    guarded: list[int] = []
    refill_at: datetime | None = None
    more = False
    for demand in sorted(demands, key=lambda item: item.target_id):
        row = db.execute(
            "select tokens, refilled_at, looked_at, frozen, guard_state, guard_from, guard_until"
            " from target_allowance where target_id = ?",
            (demand.target_id,),
        ).fetchone()
        if row is None:
            continue
        if now - from_micros(row[2]) > grace:
            unlooked.append(demand.target_id)
            continue
        if row[4] != GuardState.NONE and _guards(db, demand.target_id, at, guard, *row[4:]):
            guarded.append(demand.target_id)
        allowance = Allowance(row[0], from_micros(row[1]))
        wanted = 0 if row[3] else demand.wanted
        granted = wanted
        if demand.rate is not None:
            allowance = allowance.refilled(demand.rate, now)
            granted = allowance.granted(wanted)
        found = _due_ids(db, demand.target_id, at, at - to_us(late_after), granted, backlog_first)
        # Those in shadow call nobody, and take no token.
        shadowed = _in_shadow(db, found) if found and demand.rate is not None else 0
        ids += found
        left = len(found) == granted and _is_due(db, demand.target_id, at, len(found))
        more = more or (left and granted > 0)
        if demand.rate is not None:
            allowance = allowance.debited(len(found) - shadowed)
            if left and granted < wanted:
                limited.append(demand.target_id)
                next_at = allowance.next_at(demand.rate)
                refill_at = next_at if refill_at is None else min(refill_at, next_at)
        if found or left or at - row[2] > to_us(grace) // 6:
            # Where nothing is due, nothing came due since looked_at, so that moving it now and then is
            # exact; where something waits for us, it must be known to have been seen.
            db.execute(
                "update target_allowance set tokens = ?, refilled_at = ?, looked_at = max(looked_at, ?)"
                " where target_id = ?",
                (allowance.tokens, to_micros(allowance.refilled_at), at, demand.target_id),
            )
    if not ids:
        return Claims((), tuple(unlooked), refill_at, more, tuple(limited), tuple(guarded))
    taken = json.dumps(ids)
    db.execute(_TAKE, (owner, to_micros(lease_until), at, taken))
    rows = db.execute(_TAKEN, (taken,)).fetchall()
    claimed = tuple(_claimed(row, owner, lease_until) for row in rows)
    return Claims(claimed, tuple(unlooked), refill_at, more, tuple(limited), tuple(guarded))


_OF_GAP = """
from run where target_id = :target and state = 'scheduled' and due_at > :low and due_at <= :high
and origin = 'schedule' and attempt = 0
"""
_BEHIND = """
select 1 from trigger where plan_due_at <= ? and cursor < ? and status = 'active' and error is null limit 1
"""


def _guards(
    db: sqlite3.Connection, target_id: int, now: int, guard: int, state: str, low: int, high: int
) -> bool:
    """Judge what waits of the gap `(low, high]`; whether the guard holds it. See `core/freeze.py`."""
    given = {"target": target_id, "low": low, "high": high}
    if state == GuardState.OPEN:
        (waiting,) = db.execute(
            f"select count(*) from (select 1 {_OF_GAP} limit :n)", {**given, "n": guard + 1}
        ).fetchone()
        if waiting <= guard or not guard:
            planned_until = (now + to_us(freeze.PLANNING), high)
            if not waiting and db.execute(_BEHIND, planned_until).fetchone() is None:
                _set_guard(db, target_id, GuardState.NONE)
            return False
        _set_guard(db, target_id, GuardState.HELD)
    if guard:
        db.execute(f"update run set state = 'held' where id in (select id {_OF_GAP})", given)
    return True


def _set_guard(db: sqlite3.Connection, target_id: int, state: GuardState) -> None:
    db.execute("update target_allowance set guard_state = ? where target_id = ?", (state.value, target_id))


def _due_ids(
    db: sqlite3.Connection, target_id: int, now: int, late: int, wanted: int, backlog_first: bool
) -> list[int]:
    """Ids to claim, in order. Retries count as backlog, so that they can't starve behind what is on time."""
    if wanted <= 0:
        return []
    given = {"target": target_id, "now": now, "late": late}
    found: list[int] = []
    for arm in ("backlog", "on time") if backlog_first else ("on time", "backlog"):
        if arm == "on time":
            found += [row[0] for row in db.execute(_ON_TIME, {**given, "n": wanted - len(found)})]
        else:
            found += _backlog_ids(db, given, now, wanted - len(found))
        if len(found) >= wanted:
            break
    return found


def _in_shadow(db: sqlite3.Connection, ids: Sequence[int]) -> int:
    """How many of these runs are slots of a revision in shadow."""
    (found,) = db.execute(
        "select count(*) from json_each(?) j join run r on r.id = j.value and r.origin = 'schedule'"
        " join trigger_revision v on v.trigger_id = r.trigger_id and v.number = r.revision and v.shadow",
        (json.dumps(ids),),
    ).fetchone()
    return int(found)


def _is_due(db: sqlite3.Connection, target_id: int, now: int, claimed: int) -> bool:
    """Whether more is due than the `claimed` ids that are about to be taken."""
    rows = db.execute(
        "select 1 from run where target_id = ? and state = 'scheduled' and due_at <= ?"
        " order by due_at limit 1 offset ?",
        (target_id, now, claimed),
    )
    return rows.fetchone() is not None


def _backlog_ids(db: sqlite3.Connection, given: Mapping[str, int], now: int, wanted: int) -> list[int]:
    """Late runs, retries and expired leases. A retry of a trigger that was paused, frozen or deleted is put
    where that would have put it, had no lease been in the way."""
    found: list[int] = []
    while len(found) < wanted:
        rows = db.execute(_BACKLOG, {**given, "n": wanted}).fetchall()
        stopped = [
            row
            for row in rows
            if row[1] > 0 and (row[3] == "deleted" or row[4] or (row[3] == "paused" and row[2] == "schedule"))
        ]
        if not stopped:
            return [row[0] for row in rows][:wanted]
        for run_id, _, _, status, _ in stopped:
            if status != "deleted":
                db.execute(
                    "update run set state = 'held', outcome_unknown = (outcome_unknown or lease_owner"
                    " is not null), lease_owner = null where id = ?",
                    (run_id,),
                )
            else:
                db.execute(
                    "update run set state = 'failed', reason = ?, settled_at = ?, lease_owner = null"
                    " where id = ?",
                    ("trigger deleted while it waited" + UNKNOWN, now, run_id),
                )
    return found


def _claimed(row: tuple[Any, ...], owner: str, lease_until: datetime) -> Claimed:
    run = Run(
        id=row[0],
        trigger_id=row[1],
        scheduled_time=from_micros(row[2]),
        origin=Origin(row[3]),
        name=row[4],
        revision=row[5],
        target_id=row[6],
        state=RunState.SCHEDULED,
        due_at=lease_until,
        first_due_at=from_micros(row[7]),
        expires_at=None if row[8] is None else from_micros(row[8]),
        attempt=row[9],
        lease_owner=owner,
        first_claimed_at=from_micros(row[10]),
        outcome_unknown=bool(row[11]),
        utc_offset=timedelta(seconds=row[12]),
        parameters=None if row[13] is None else json.loads(row[13]),
    )
    key = TriggerKey(row[14], row[15], row[16], row[17])
    return Claimed(run, key, spec_of(row[18]), lease_until, bool(row[19]) and run.automatic)


# settle

_SETTLE = """
update run set
  state = case when o.state = 'scheduled' and t.status = 'deleted' then 'failed'
               when o.state = 'scheduled' and t.frozen then 'held'
               when o.state = 'scheduled' and t.status = 'paused' and run.origin = 'schedule' then 'held'
               else o.state end,
  due_at = coalesce(o.due_at, run.due_at),
  lease_owner = null,
  reason = case when o.state = 'scheduled' and t.status = 'deleted'
                then coalesce(o.reason, '') || '; trigger deleted while it waited' else o.reason end,
  target_run_id = coalesce(o.target_run_id, run.target_run_id),
  outcome_unknown = (run.outcome_unknown or o.unknown),
  fired_at = case when o.state = 'fired' then o.answered_at else run.fired_at end,
  settled_at = case when o.state in ('fired', 'failed', 'shadowed') or t.status = 'deleted'
                    then :now else null end
from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as attempt,
             json_extract(value, '$[2]') as state, json_extract(value, '$[3]') as due_at,
             json_extract(value, '$[4]') as reason, json_extract(value, '$[5]') as target_run_id,
             json_extract(value, '$[6]') as unknown, json_extract(value, '$[7]') as answered_at
      from json_each(:outcomes)) o, trigger t
where run.id = o.id and t.id = run.trigger_id
and ((run.attempt = o.attempt and run.state = 'scheduled' and run.lease_owner is not null)
     or (o.state = 'fired' and run.state <> 'fired'))
returning id
"""


def _settle(db: sqlite3.Connection, outcomes: Sequence[Outcome], now: datetime) -> set[int]:
    rows = [
        [
            item.run_id,
            item.attempt,
            item.state.value,
            None if item.due_at is None else to_micros(item.due_at),
            item.reason,
            item.target_run_id,
            int(item.unknown),
            to_micros(item.answered_at),
        ]
        for item in fire.one_a_run(outcomes)
    ]
    settled = db.execute(_SETTLE, {"outcomes": json.dumps(rows), "now": to_micros(now)}).fetchall()
    attempts = [
        (
            item.run_id,
            item.attempt,
            to_micros(item.started_at),
            to_micros(item.answered_at),
            item.answer,
            item.reason,
        )
        for item in outcomes
    ]
    _write(db, _INSERT_ATTEMPT, attempts)
    return {row[0] for row in settled}


_INSERT_ATTEMPT = """
with new (run_id, attempt, started_at, answered_at, answer, reason) as (values {rows})
insert into attempt (run_id, attempt, started_at, answered_at, answer, reason)
select * from new where exists (select 1 from run where id = new.run_id) on conflict do nothing
"""


_NEXT_DUE = """
select min(due) from (
  select (select r.due_at from run r where r.target_id = a.target_id and r.state = 'scheduled'
          and r.due_at > :now order by r.due_at limit 1) as due
  from target_allowance a where not a.frozen)
"""


def to_us(delta: timedelta) -> int:
    """Whole microseconds of a duration."""
    return delta // timedelta(microseconds=1)
