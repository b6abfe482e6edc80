"""The PostgreSQL store: where replicas meet. Hot statements with arrays, everyday scripts step by step.

One pool of asyncpg connections, held by SQLAlchemy's engine. SQLAlchemy compiles and runs the scripts of
`sql/`; the hot statements go to the driver's own connection. Both share a transaction that is begun and
ended here, so the engine is in autocommit and never begins one of its own. (The other way, a bare asyncpg
pool and compiled statements, would need our own copy of SQLAlchemy's typing of parameters and rows.)

Locks, everywhere in this order and by ascending id: trigger → allowance → run. A statement that waited for a
lock still reads from the snapshot it began with, so what must be seen after the wait is read by a statement
of its own. NOTIFY (a hint that something was changed) stays out of claim and settle: it serialises commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, Executable, Row, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from horarium.clock import Clock, OffsetClock
from horarium.core.allowance import Allowance
from horarium.core.deployment import DeploymentChange
from horarium.core.freeze import GuardState, Owed, Scope
from horarium.core.instant import from_seconds
from horarium.core.keys import DeploymentKey, TriggerKey, long_run_name
from horarium.core.outcome import UNKNOWN, Outcome
from horarium.core.plan import BackfillStep, Plan, PlanInput
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

CHANNEL = "horarium"
"""The channel of hints. Its payload is a word: `changed` or `planned`."""

MIGRATION_LOCK = 7_401_873_092_846
"""The advisory lock that a migration holds, so that two at once come one after the other."""

TRIES = 4
"""How often a transaction is run that lost a race (two inserts of one key, a deadlock) before it fails."""

SKIPPED_AGAIN_AFTER = timedelta(milliseconds=10)
"""When to ask again for a target whose allowance another replica held: a claim takes it some milliseconds."""

SOON = timedelta(seconds=2)
"""Planned runs that are due within this are told to the others; the rest they find by polling."""

_NETWORK = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)
"""What the driver raises that is no answer of the server's. The internal one among them: it is what a call
gets on a connection that the server has ended, until the driver has read that it is closed."""

_RACES = ("23505", "40001", "40P01")
"""unique_violation, serialization_failure, deadlock_detected"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what may take. `statement`, `lock` and `idle` (in a transaction) are kept by the server,
    `answer` (to one statement, the network among it) and `connect` by us: a connection that hangs is thrown
    away. A whole method has no limit: a first listing of 100,000 triggers takes minutes, and is well.
    """

    statement: timedelta = timedelta(seconds=10)
    lock: timedelta = timedelta(seconds=5)
    idle: timedelta = timedelta(seconds=15)
    answer: timedelta = timedelta(seconds=15)
    connect: timedelta = timedelta(seconds=5)


class PostgresStore:
    """See the module.

    `url` is libpq's (`postgresql://USER:PASSWORD@HOST/NAME?sslmode=verify-full`, `passfile`, several hosts).
    `clock` replaces the database's, for tests. `prepared_statements=False` is for PgBouncer in transaction
    mode, whose connections change between transactions. `pool` is the most connections at once. `between` is
    awaited before each statement with its name; tests stop a transaction there. `host` is corrected whenever
    the database's clock is read. `gone` says of an owner of local executions whether its process has ended;
    without it nobody else's are marked.
    """

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        pool: int = 10,
        prepared_statements: bool = True,
        limits: Limits | None = None,
        between: Callable[[str], Awaitable[None]] | None = None,
        host: OffsetClock | None = None,
        gone: Callable[[str], bool] | None = None,
    ) -> None:
        self.url = url
        self._host = host
        self._gone = gone
        self.between = between
        self._clock = clock
        self._pool = pool
        self._prepared = prepared_statements
        self._limits = limits or Limits()
        self._engine: AsyncEngine | None = None
        self._targets: dict[str, int] = {}
        self._next_due: datetime | None = None
        """What was last said to be due next; see `claim`."""
        self._faults = 0
        """How often a connection died or hung. A pooled one remembers the count of its beginning."""
        self._made: WeakSet[asyncpg.Connection] = WeakSet()

    async def open(self) -> None:
        self._engine = make_engine(
            self.url,
            limits=self._limits,
            prepared_statements=self._prepared,
            pool_size=self._pool,
            max_overflow=0,
            pool_timeout=self._limits.answer.total_seconds(),
            isolation_level="AUTOCOMMIT",
            made=self._made.add,
        )

        async def check(unit: _Unit) -> None:
            await unit.connection.run_sync(migrations.check)

        try:
            await self._read(check)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._engine is None:
            return
        engine, self._engine = self._engine, None
        try:
            async with asyncio.timeout(self._limits.connect.total_seconds()):
                await engine.dispose()
        except TimeoutError:
            pass  # a network that swallows would hold up the end of the process for ever
        finally:
            for raw in self._made:
                raw.terminate()

    async def clock(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()

        async def read(unit: _Unit) -> datetime:
            now: datetime = await unit.value("clock", "select clock_timestamp()")
            return now

        return await self._compared(lambda: self._read(read))

    async def _compared(self, read: Callable[[], Awaitable[datetime]]) -> datetime:
        """A reading of the database's clock, by which the host's is corrected."""
        return await (read() if self._host is None else self._host.compare(read))

    # plan

    async def lease_due(self, now: datetime, until: datetime, limit: int) -> list[PlanInput]:
        return await self._transaction(lambda unit: _lease_due(unit, now, until, limit))

    async def apply_plans(self, plans: Sequence[Plan], now: datetime) -> PlansApplied:
        if not plans:
            return PlansApplied(frozenset(), frozenset(), 0)
        tries = count()
        # Where a slot or a name was taken, the first try fails as a whole, and the next one looks at each.
        # The driver's COPY leaves a prepared statement behind, which PgBouncer would hand to another replica.
        return await self._transaction(
            lambda unit: self._apply_plans(unit, plans, now, careful=not self._prepared or next(tries) > 0)
        )

    async def replan_older_tzdata(self, version: str, now: datetime) -> int:
        return await self._script(lambda: changes.replan_older_tzdata(version, now))

    async def next_plan_due(self) -> datetime | None:
        async def read(unit: _Unit) -> datetime | None:
            found: datetime | None = await unit.value("next plan due", _NEXT_PLAN_DUE)
            return found

        return await self._read(read)

    async def plan_due(self) -> tuple[datetime, datetime | None]:
        if self._clock is not None:
            return self._clock.now(), await self.next_plan_due()
        due: datetime | None = None

        async def read(unit: _Unit) -> datetime:
            nonlocal due
            row = (await unit.rows("plan due", _PLAN_DUE))[0]
            due = row["due"]
            now: datetime = row["now"]
            return now

        return await self._compared(lambda: self._read(read)), due

    # change

    async def change(
        self, keys: Iterable[TriggerKey], decide: Decide, now: datetime, who: str
    ) -> list[Changed]:
        wanted = list(keys)
        return await self._script(lambda: changes.change(wanted, decide, now, who), hint="changed")

    async def change_run(self, run_id: int, decide: DecideRun, now: datetime, who: str) -> Changed | None:
        return await self._script(lambda: changes.change_run(run_id, decide, now, who), hint="changed")

    async def change_deployment(
        self, key: DeploymentKey, decide: DecideDeployment, now: datetime, who: str
    ) -> DeploymentChange | None:
        return await self._script(lambda: changes.change_deployment(key, decide, now, who), hint="changed")

    async def create_trigger(
        self, listing: Listing, now: datetime, who: str, *, expected_revision: int | None = None
    ) -> SyncResult:
        def decide(known: Known) -> Reconciled:
            return reconcile(listing, known, now, partial=True)

        return await self._script(
            lambda: sync.create_trigger(listing, decide, now, who, expected_revision=expected_revision),
            hint="changed",
        )

    async def source_version(self, source: str) -> int:
        return await self._script(lambda: sync.source_version(source))

    async def source_listed_at(self, source: str) -> datetime | None:
        return await self._script(lambda: sync.source_listed_at(source))

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
            lambda: sync.sync_source(listing, version, decide, now, who, dry_run=dry_run, path=path),
            hint="changed",
        )

    async def source_failed(self, source: str, error: str, now: datetime) -> None:
        await self._script(lambda: sync.source_failed(source, error, now))

    # fire

    async def targets(self) -> list[TargetRow]:
        return await self._read(lambda unit: run_script(unit, fire.targets()))  # one statement

    async def look(self, target_id: int, now: datetime, grace: timedelta, *, guard: int = 0) -> LookResult:
        return await self._script(lambda: fire.look(target_id, now, grace, guard))

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
        async def look(unit: _Unit) -> Claims:
            ids = [item.target_id for item in demands]
            row = (await unit.rows("quiet", _QUIET, ids, now, now - grace / 6))[0]
            return Claims(quiet=row["quiet"], next_due=row["next_due"])

        # A pass that expects nothing (a poll, a hint) asks by one statement whether a claim would find or
        # write anything; one that comes as a run falls due does not wait for that answer.
        expected = self._next_due is not None and self._next_due <= now
        if not expected and (found := await self._read(look)).quiet:
            self._next_due = found.next_due
            return found
        return await self._transaction(
            lambda unit: _claim(
                unit, demands, now, lease_until, owner, backlog_first, late_after, grace, guard
            )
        )

    async def settle(self, outcomes: Sequence[Outcome], now: datetime) -> set[int]:
        if not outcomes:
            return set()
        return await self._transaction(lambda unit: _settle(unit, outcomes, now))

    async def report(self, reports: Sequence[Report], now: datetime) -> int:
        return await self._script(lambda: completion.report(reports, now), hint="changed")

    async def reports_due(self, now: datetime, limit: int) -> list[tuple[FiredRun, datetime]]:
        async def look(unit: _Unit) -> bool:
            return bool(await unit.value("reports due", _REPORTS_DUE, now))

        if not await self._read(look):
            return []
        return await self._script(lambda: completion.reports_due(now, limit))

    async def next_due(self, now: datetime) -> datetime | None:
        async def read(unit: _Unit) -> datetime | None:
            found: datetime | None = await unit.value("next due", _NEXT_DUE, now)
            return found

        self._next_due = await self._read(read)
        return self._next_due

    async def create_manual(self, request: ManualRequest, now: datetime) -> tuple[Run, bool]:
        return await self._script(lambda: fire.create_manual(request, now), hint="changed")

    # freeze

    async def freeze(self, scope: Scope, note: str | None, who: str, now: datetime) -> Frozen:
        return await self._script(lambda: freeze.freeze(scope, note, who, now), hint="changed")

    async def release(self, scope: Scope, owed: Owed, who: str, now: datetime) -> Released:
        return await self._script(lambda: freeze.release(scope, owed, who, now), hint="changed")

    # housekeeping and reads

    async def prune(
        self, before: datetime, skips_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> Pruned:
        return await self._script(lambda: housekeeping.prune(before, skips_before, limit, audit_before))

    async def prune_beyond(
        self, keep_runs: int, keep_skips: int, after: int, triggers: int, limit: int
    ) -> PrunedBeyond:
        def look(unit: _Unit) -> Awaitable[housekeeping.Found]:
            return run_script(unit, housekeeping.beyond(keep_runs, keep_skips, after, triggers, limit))

        found = await self._read(look)
        gone = (
            await self._script(lambda: housekeeping.prune_found(found))
            if found.runs or found.skips
            else Pruned()
        )
        return PrunedBeyond(gone.runs, gone.skips, found.after)

    async def fetch(self, statement: Executable) -> Sequence[Row[Any]]:
        async def read(unit: _Unit) -> Sequence[Row[Any]]:
            rows: Sequence[Row[Any]] = await unit.step(statement)
            return rows

        return await self._read(read)

    async def remember(self, key: str, request_digest: str, now: datetime) -> Remembered | None:
        return await self._script(lambda: idempotency.remember(key, request_digest, now))

    async def answer(self, key: str, status: int | None, response: str | None) -> None:
        await self._script(lambda: idempotency.answer(key, status, response))

    # the local target's executions

    async def local_begin(self, run_name: str, owner: str, now: datetime) -> bool:
        return await self._script(lambda: local_runs.local_begin(run_name, owner, now))

    async def local_running(self, run_name: str, pid: int) -> None:
        await self._script(lambda: local_runs.local_running(run_name, pid))

    async def local_output(self, run_name: str, output: bytes, total: int) -> None:
        await self._script(lambda: local_runs.local_output(run_name, output, total))

    async def local_end(self, run: LocalRun) -> None:
        await self._script(lambda: local_runs.local_end(run))

    async def local_interrupt(self, owner: str, now: datetime) -> int:
        gone = self._gone or (lambda _: False)
        return await self._script(lambda: local_runs.local_interrupt(owner, now, gone))

    async def local_run(self, run_name: str) -> LocalRun | None:
        return await self._script(lambda: local_runs.local_run(run_name))

    # hints

    async def listen(self, hint: Callable[[str], None]) -> None:
        """Call `hint` with each hint's word, for as long as the connection lives.

        Returns only by `StoreUnavailable`, after which hints were lost: the caller looks for itself and
        listens again. It is given `listening` once hints will be heard.
        """
        lost = asyncio.Event()
        try:
            connection = await connect(self.url, self._limits, prepared_statements=self._prepared)
            try:
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(CHANNEL, lambda *given: hint(str(given[-1])))
                hint("listening")
                await lost.wait()
            finally:
                connection.terminate()
        except (asyncpg.PostgresError, *_NETWORK) as fault:
            raise StoreUnavailable(f"no hints: {fault}") from fault
        raise StoreUnavailable("no hints: the connection was lost")

    # how it runs

    async def _script(self, script: Callable[[], Script[T]], *, hint: str | None = None) -> T:
        """A script of `sql/` in one transaction; begun anew when it lost a race."""

        async def run(unit: _Unit) -> T:
            result = await run_script(unit, script())
            if hint is not None:
                await unit.value("hint", "select pg_notify($1, $2)", CHANNEL, hint)
            return result

        return await self._transaction(run)

    async def _transaction(self, work: Callable[[_Unit], Awaitable[T]]) -> T:
        """`work` in one transaction, again when it lost a race against another one."""
        for left in reversed(range(TRIES)):
            try:
                async with self._unit() as unit, unit.transaction():
                    return await work(unit)
            except (asyncpg.PostgresError, SQLAlchemyError) as fault:
                if left and _lost_a_race(fault):
                    continue
                raise _translated(fault) from fault
            except _NETWORK as fault:
                raise StoreUnavailable(_words(fault)) from fault
        raise AssertionError("the last try returns or raises")

    async def _read(self, work: Callable[[_Unit], Awaitable[T]]) -> T:
        """`work` of one statement, in no transaction of its own."""
        try:
            async with self._unit() as unit:
                return await work(unit)
        except (asyncpg.PostgresError, SQLAlchemyError) as fault:
            raise _translated(fault) from fault
        except _NETWORK as fault:
            raise StoreUnavailable(_words(fault)) from fault

    @asynccontextmanager
    async def _unit(self) -> AsyncIterator[_Unit]:
        """A connection that answers; thrown away if anything is wrong with it."""
        if self._engine is None:
            raise StoreUnavailable("the store is not open")
        connection, raw = await self._living(self._engine)
        try:
            yield _Unit(connection, raw, self._limits, self._prepared, self.between)
        except BaseException as fault:
            await self._put_away(connection, raw, fault)
            raise
        else:
            await connection.close()

    async def _living(self, engine: AsyncEngine) -> tuple[AsyncConnection, asyncpg.Connection]:
        """A connection that is as good as we know. Those that are closed are dropped; so are those that were
        there when another one died or hung: what ended that one, a restart or a network that swallows, has
        probably ended them too, and to find out would cost each of them the time of an answer."""
        while True:
            connection = await engine.connect()
            pooled = await connection.get_raw_connection()
            raw = pooled.driver_connection
            since = pooled.info.setdefault("horarium_faults", self._faults)
            if raw is not None and not raw.is_closed() and since == self._faults:
                return connection, raw
            if raw is not None:
                raw.terminate()
            await connection.invalidate()
            await connection.close()

    async def _put_away(
        self, connection: AsyncConnection, raw: asyncpg.Connection, fault: BaseException
    ) -> None:
        """Give a connection back after a fault; thrown away when it is dead, hung, or in a transaction."""
        answered, dead = _is_answer(fault), raw.is_closed()
        if answered and not dead and not connection.invalidated and not raw.is_in_transaction():
            await connection.close()
            return
        raw.terminate()
        if not connection.invalidated:
            await connection.invalidate()
        await connection.close()
        if dead or (not answered and isinstance(fault, Exception)):
            self._faults += 1

    async def _target_ids(self, unit: _Unit, names: set[str]) -> Mapping[str, int]:
        """Ids by name. A target keeps its id for ever, so what is known is never read again."""
        if not names <= self._targets.keys():
            rows = await unit.rows("targets", "select name, id from target")
            self._targets = {row["name"]: row["id"] for row in rows}
        return self._targets

    async def _apply_plans(
        self, unit: _Unit, plans: Sequence[Plan], now: datetime, *, careful: bool
    ) -> PlansApplied:
        won = await _compare_and_set(unit, plans)
        winners = [item for item in plans if item.input.trigger.id in won]
        names = {run.target for item in winners for run in item.runs}
        targets = await self._target_ids(unit, names)
        rows = [
            _RunRow(item.input.trigger.key, item.input.trigger.id, targets[run.target], run)
            for item in winners
            for run in item.runs
            if run.origin is not Origin.BACKFILL
        ]
        renamed = 0
        if careful:
            inserted = await _insert_runs(unit, rows)
            if inserted < len(rows):
                renamed = await _rename_collisions(unit, rows)
                inserted += renamed
        else:
            inserted = await _copy_runs(unit, rows)
        await _insert_skips(unit, winners, now)
        for item in winners:
            for step, runs in backfills.runs_of_steps(item):
                new, long = await _step_backfill(unit, item, step, runs, targets, now)
                inserted, renamed = inserted + new, renamed + long
        if any(row.run.due_at <= now + SOON for row in rows):
            await unit.value("hint", "select pg_notify($1, 'planned')", CHANNEL)
        lost = frozenset(item.input.trigger.id for item in plans) - won
        return PlansApplied(frozenset(won), lost, inserted, renamed)


async def migrate_postgres(url: str) -> tuple[str | None, str]:
    """Bring the schema up to date; the revision before, and the one now.

    Two at once come one after the other, and the second finds nothing to do. Raises `SchemaMismatch` when the
    schema is a newer Horarium's that this one can't work on, `StoreUnavailable`.
    """
    return await _migrate(url, migrations.bring_up)


async def downgrade_postgres(url: str, revision: str | None) -> tuple[str | None, str | None]:
    """Take the schema back; the revision before, and the one now. Raises as `migrations.downgrade`."""

    def work(connection: Connection) -> tuple[str | None, str | None]:
        before = migrations.current(connection)
        migrations.downgrade(connection, revision)
        return before, migrations.current(connection)

    return await _migrate(url, work)


async def _migrate(url: str, work: Callable[[Connection], T]) -> T:
    # A migration may take as long as it needs, and waits for the other one as long as that does.
    never = timedelta()
    patient = Limits(statement=never, lock=never, idle=never)
    engine = make_engine(url, limits=patient, prepared_statements=False)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            return await connection.run_sync(work)
    except (asyncpg.PostgresError, SQLAlchemyError) as fault:
        raise _translated(fault) from fault
    except _NETWORK as fault:
        raise StoreUnavailable(_words(fault)) from fault
    finally:
        await engine.dispose()


# connections


def make_engine(
    url: str,
    *,
    limits: Limits,
    prepared_statements: bool,
    made: Callable[[asyncpg.Connection], None] = lambda _: None,
    **rest: Any,
) -> AsyncEngine:
    """An engine whose connections are as all of Horarium's; see `connect`. `made` is told of each."""

    async def creator() -> asyncpg.Connection:
        connection = await connect(url, limits, prepared_statements=prepared_statements)
        made(connection)
        return connection

    given: dict[str, Any] = {"async_creator_fn": creator}
    if not prepared_statements:
        # Without a cache and without a name, a statement lives no longer than its transaction.
        given |= {"prepared_statement_cache_size": 0, "prepared_statement_name_func": str}
    return create_async_engine("postgresql+asyncpg://", connect_args=given, **rest)


async def connect(url: str, limits: Limits, *, prepared_statements: bool) -> asyncpg.Connection:
    """One connection. Limits are the session's; through PgBouncer each transaction sets them."""
    cached = {} if prepared_statements else {"statement_cache_size": 0}
    settings = _settings(limits) if prepared_statements else {}
    return await asyncpg.connect(
        dsn=_dsn(url),
        timeout=limits.connect.total_seconds(),
        server_settings={"application_name": "horarium", **settings},
        **cached,
    )


def _dsn(url: str) -> str:
    """libpq's spelling of a URL that may name SQLAlchemy's driver."""
    scheme, _, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}://{rest}"


def _settings(limits: Limits) -> dict[str, str]:
    return {
        name: str(limit // timedelta(milliseconds=1))
        for name, limit in (
            ("statement_timeout", limits.statement),
            ("lock_timeout", limits.lock),
            ("idle_in_transaction_session_timeout", limits.idle),
        )
    }


def _is_answer(fault: BaseException) -> bool:
    """Whether the connection can be used after `fault`: not hung, not given up in the middle, not ended."""
    if not isinstance(fault, Exception) or isinstance(fault, TimeoutError | asyncpg.InternalClientError):
        return False
    return not (_state(fault) or "").startswith(_ENDED)


def _lost_a_race(fault: BaseException) -> bool:
    """Whether the same transaction would do from its beginning: another one, or a migration, came first."""
    orig = fault.orig if isinstance(fault, DBAPIError) else fault
    cause = getattr(orig, "__cause__", None)
    if any(isinstance(item, asyncpg.InvalidCachedStatementError) for item in (orig, cause)):
        return True  # a migration changed a type; the driver has forgotten its statements
    return _state(fault) in _RACES


def _state(fault: BaseException) -> str | None:
    """The five characters of SQLSTATE, where the server has said them."""
    if isinstance(fault, DBAPIError):
        fault = fault.orig or fault
    found: str | None = getattr(fault, "sqlstate", None)
    return found


_ENDED = ("08", "57P", "25P03")
"""A fault of the connection, the server shut down, a transaction left open: the server closes the connection,
and has perhaps not come to that yet."""

_BROKEN = ("22", "23", "42", "0A", "21", "44", "P0")
"""Classes of faults that are in what was asked, not in the database: they would come again."""


def _translated(fault: Exception) -> Exception:
    state = _state(fault)
    if isinstance(fault, PoolTimeout):
        return StoreUnavailable("no connection was free in time")
    if state is not None and state.startswith(_BROKEN):
        return fault
    if state is None and isinstance(fault, SQLAlchemyError) and not isinstance(fault, DBAPIError):
        return fault
    return StoreUnavailable(_words(fault))


def _words(fault: BaseException) -> str:
    return str(fault) or type(fault).__name__


class _Unit:
    """One connection in use: the driver's own for hot statements, SQLAlchemy's for scripts."""

    def __init__(
        self,
        connection: AsyncConnection,
        raw: asyncpg.Connection,
        limits: Limits,
        prepared: bool,
        between: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        self.connection = connection
        self._raw = raw
        self._limits = limits
        self._prepared = prepared
        self._between = between
        self._steps = count(1)
        self._patience = limits.answer.total_seconds()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        transaction = self._raw.transaction()
        async with asyncio.timeout(self._patience):
            await transaction.start()
            if not self._prepared:
                limits = _settings(self._limits).items()
                await self._raw.execute("; ".join(f"set local {name} = {value}" for name, value in limits))
        try:
            yield
        except BaseException as fault:
            if _is_answer(fault) and not self._raw.is_closed():
                async with asyncio.timeout(self._patience):
                    await transaction.rollback()
            raise
        async with asyncio.timeout(self._patience):
            await self._at("commit")
            await transaction.commit()

    async def rows(self, name: str, statement: str, *given: Any) -> list[Any]:
        """A hot statement's rows."""
        async with asyncio.timeout(self._patience):
            await self._at(name)
            found: list[Any] = await self._raw.fetch(statement, *given)
            return found

    async def value(self, name: str, statement: str, *given: Any) -> Any:
        """The first column of a hot statement's first row."""
        async with asyncio.timeout(self._patience):
            await self._at(name)
            return await self._raw.fetchval(statement, *given)

    async def written(self, name: str, statement: str, *given: Any) -> int:
        """How many rows a hot statement wrote."""
        async with asyncio.timeout(self._patience):
            await self._at(name)
            status: str = await self._raw.execute(statement, *given)
            return int(status.rpartition(" ")[2])

    async def copied(self, name: str, table: str, columns: Sequence[str], rows: Iterable[Any]) -> None:
        """Rows put into a table by COPY, which writes all of them or raises."""
        async with asyncio.timeout(self._patience):
            await self._at(name)
            await self._raw.copy_records_to_table(table, columns=columns, records=rows)

    async def step(self, step: Step) -> Any:
        """One step of a script: its rows, or how many were written."""
        async with asyncio.timeout(self._patience):
            await self._at(f"step {next(self._steps)}")
            if isinstance(step, Many):
                if not step.rows:
                    return []
                result = await self.connection.execute(step.statement, list(step.rows))
            else:
                result = await self.connection.execute(step)
            return result.all() if result.returns_rows else result.rowcount

    async def _at(self, name: str) -> None:
        if self._between is not None:
            await self._between(name)


async def run_script(unit: _Unit, script: Script[T]) -> T:
    """Drive a script, awaiting each step, inside the caller's transaction."""
    try:
        step = next(script)
        while True:
            step = script.send(await unit.step(step))
    except StopIteration as done:
        result: T = done.value
        return result


# lease

_LEASE = """
with d as materialized (
  select id, plan_due_at from trigger where plan_due_at <= $1
  order by plan_due_at, id limit $3 for no key update skip locked)
update trigger t set plan_due_at = $2 from d where t.id = d.id returning t.id, d.plan_due_at
"""
"""Materialized: a subquery may be run again for each row of a join, and then lease more than its limit."""

_LOAD = """
select t.id, t.project, t.domain, t.deployment, t.name, t.hash_seed, t.source, t.revision, t.status,
       t.cursor, t.plan_due_at, t.paused, t.frozen, t.resume_at, t.error_count, t.zone_digest,
       t.tzdata_version, r.effective_from, r.state, r.spec::text as spec, r.what, r.who, r.shadow,
       r.deployment_paused, t.shadow as in_shadow,
       exists (select from backfill b where b.trigger_id = t.id and b.state = 'open') as has_backfill,
       exists (select from skip s where s.trigger_id = t.id and s.last_time > t.cursor)
       or exists (select from run u where u.trigger_id = t.id and u.origin <> 'manual'
                  and u.scheduled_time > t.cursor) as has_decided
from trigger t join trigger_revision r on r.trigger_id = t.id and r.number = t.revision
where t.id = any($1::bigint[])
"""

_OLDER_REVISIONS = """
select r.trigger_id, r.number, r.effective_from, r.state, r.spec::text as spec, r.what, r.who, r.shadow,
       r.deployment_paused
from trigger_revision r join trigger t on t.id = r.trigger_id
where r.trigger_id = any($1::bigint[]) and r.number < t.revision
and (r.trigger_id = any($2::bigint[])
     or r.number >= coalesce((select max(o.number) from trigger_revision o where o.trigger_id = t.id
                              and o.number < t.revision and o.effective_from <= t.cursor), 0))
order by r.trigger_id, r.number
"""

_OPEN_BACKFILLS = """
select id, trigger_id, from_time, to_time, cursor from backfill
where trigger_id = any($1::bigint[]) and state = 'open' order by id
"""

_DECIDED = """
select s.trigger_id, s.first_time, s.last_time, t.hash_seed, t.cursor, r.spec::text as spec
from skip s join trigger t on t.id = s.trigger_id
join trigger_revision r on r.trigger_id = s.trigger_id and r.number = s.revision
where s.trigger_id = any($1::bigint[]) and s.last_time > t.cursor
union all
select u.trigger_id, u.scheduled_time, u.scheduled_time, t.hash_seed, t.cursor, null
from run u join trigger t on t.id = u.trigger_id
where u.trigger_id = any($1::bigint[]) and u.origin <> 'manual' and u.scheduled_time > t.cursor
"""

_NEXT_PLAN_DUE = """
select plan_due_at from trigger where plan_due_at is not null order by plan_due_at limit 1
"""
"""In order: asked for the least, or whether any is due, the server may read a million triggers."""

_PLAN_DUE = f"select ({_NEXT_PLAN_DUE}) as due, clock_timestamp() as now"


async def _lease_due(unit: _Unit, now: datetime, until: datetime, limit: int) -> list[PlanInput]:
    """The lease and what a plan needs are two statements: the second sees what was committed before the locks
    were ours, such as a backfill whose own queue entry the lease has just overwritten."""
    leased = await unit.rows("lease", _LEASE, now, until, limit)
    if not leased:
        return []
    since = {row["id"]: (row["plan_due_at"], row["id"]) for row in leased}
    rows = await unit.rows("load", _LOAD, list(since))
    filling = [row["id"] for row in rows if row["has_backfill"]]
    changed = [row["id"] for row in rows if row["revision"] > 1 and row["effective_from"] > row["cursor"]]
    revisions: dict[int, list[Revision]] = {}
    backfills: dict[int, list[Backfill]] = {}
    decided: dict[int, list[tuple[datetime, datetime]]] = {}
    if filling or changed:
        for row in await unit.rows("revisions", _OLDER_REVISIONS, [*filling, *changed], filling):
            revisions.setdefault(row["trigger_id"], []).append(_revision(row, row["number"]))
    if filling:
        for row in await unit.rows("backfills", _OPEN_BACKFILLS, filling):
            backfills.setdefault(row["trigger_id"], []).append(
                Backfill(row["id"], row["trigger_id"], row["from_time"], row["to_time"], row["cursor"])
            )
    ahead = [row["id"] for row in rows if row["has_decided"]]
    if ahead:
        for row in await unit.rows("decided", _DECIDED, ahead):
            first, last, spec = row["first_time"], row["last_time"], row["spec"]
            decided.setdefault(row["trigger_id"], []).extend(
                [(first, last)]
                if spec is None
                else decided_slots(spec_of(spec), row["hash_seed"], first, last, row["cursor"])
            )
    return [
        PlanInput(
            _trigger(row),
            (*revisions.get(row["id"], ()), _revision(row, row["revision"])),
            row["plan_due_at"],
            tuple(backfills.get(row["id"], ())),
            tuple(decided.get(row["id"], ())),
        )
        for row in sorted(rows, key=lambda row: since[row["id"]])
    ]


def _trigger(row: Any) -> Trigger:
    return Trigger(
        id=row["id"],
        key=TriggerKey(row["project"], row["domain"], row["deployment"], row["name"]),
        hash_seed=row["hash_seed"],
        managed_by=row["source"],
        revision=row["revision"],
        status=Status(row["status"]),
        cursor=row["cursor"],
        plan_due_at=row["plan_due_at"],
        paused=row["paused"],
        resume_at=row["resume_at"],
        shadow=row["in_shadow"],
        frozen=row["frozen"],
        error_count=row["error_count"],
        zone_digest=row["zone_digest"],
        tzdata_version=row["tzdata_version"],
    )


def _revision(row: Any, number: int) -> Revision:
    return Revision(
        number,
        row["effective_from"],
        Status(row["state"]),
        spec_of(row["spec"]),
        row["what"],
        row["who"],
        row["shadow"],
        row["deployment_paused"],
    )


# apply

_APPLY = """
with p as (
  select * from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
                       $6::timestamptz[], $7::text[], $8::text[], $9::int[], $10::text[], $11::text[])
  p(id, revision, cursor, token, new_cursor, new_due, status, error, error_count, zone_digest,
    tzdata_version)),
l as materialized (
  select t.id from trigger t join p on t.id = p.id and t.revision = p.revision and t.cursor = p.cursor
  and t.plan_due_at = p.token order by t.id for no key update of t)
update trigger t set cursor = p.new_cursor, plan_due_at = p.new_due, status = p.status, error = p.error,
  error_count = p.error_count, zone_digest = coalesce(p.zone_digest, t.zone_digest),
  tzdata_version = coalesce(p.tzdata_version, t.tzdata_version)
from l join p using (id) where t.id = l.id returning t.id
"""

_INSERT_RUNS = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, expires_at, utc_offset)
select s.trigger_id, to_timestamp(s.slot), s.origin, s.project, s.domain, s.name, s.revision, s.target_id,
       s.state, s.due_at, s.due_at, s.expires_at, s.utc_offset
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[],
            $8::bigint[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::int[])
s(trigger_id, slot, origin, project, domain, name, revision, target_id, state, due_at, expires_at, utc_offset)
on conflict do nothing
"""

_WITHOUT_RUN = """
select s.n::int as n from unnest($1::bigint[], $2::bigint[]) with ordinality s(trigger_id, slot, n)
where not exists (select from run r where r.trigger_id = s.trigger_id
                  and r.scheduled_time = to_timestamp(s.slot) and r.origin <> 'manual')
order by s.n
"""

_INSERT_SKIPS = """
insert into skip (trigger_id, revision, first_time, last_time, count, reason, detail, at)
select s.*, $8 from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::int[],
                           $6::text[], $7::text[]) s
"""

_LOCK_TAKEN_OVER = """
select id, scheduled_time from run where trigger_id = $1 and scheduled_time = any($2::timestamptz[])
and origin = 'schedule' and origin <> 'manual' and state in ('scheduled', 'held') order by id for update
"""

_TAKE_OVER = """
update run set origin = 'backfill', expires_at = null, state = $2 where id = any($1::bigint[])
"""

_STEP_BACKFILL = """
update backfill set cursor = $2, state = $3, ended_at = $4, runs = runs + $5 where id = $1
"""


async def _compare_and_set(unit: _Unit, plans: Sequence[Plan]) -> set[int]:
    rows = await unit.rows(
        "compare and set",
        _APPLY,
        [item.input.trigger.id for item in plans],
        [item.input.trigger.revision for item in plans],
        [item.input.trigger.cursor for item in plans],
        [item.input.token for item in plans],
        [item.cursor for item in plans],
        [item.plan_due_at for item in plans],
        [item.status.value for item in plans],
        [item.error for item in plans],
        [item.input.trigger.error_count + 1 if item.error is not None else 0 for item in plans],
        [item.zone_digest for item in plans],
        [item.tzdata_version for item in plans],
    )
    return {row["id"] for row in rows}


class _RunRow(NamedTuple):
    key: TriggerKey
    trigger_id: int
    target_id: int
    run: PlannedRun


_RUN_COLUMNS = (
    *("trigger_id", "scheduled_time", "origin", "project", "domain", "name", "revision", "target_id"),
    *("state", "due_at", "first_due_at", "expires_at", "utc_offset"),
)


async def _copy_runs(unit: _Unit, rows: Sequence[_RunRow]) -> int:
    """Rows for slots that have none, as the planner's nearly always are: half the CPU of an insert that asks
    of each row whether its slot and its name are free. Raises where one is not."""
    if rows:
        await unit.copied(
            "insert runs",
            "run",
            _RUN_COLUMNS,
            (
                (
                    trigger_id,
                    from_seconds(run.scheduled_time),
                    run.origin.value,
                    key.project,
                    key.domain,
                    run.name,
                    run.revision,
                    target_id,
                    run.state.value,
                    run.due_at,
                    run.due_at,
                    run.expires_at,
                    run.utc_offset,
                )
                for key, trigger_id, target_id, run in rows
            ),
        )
    return len(rows)


async def _insert_runs(unit: _Unit, rows: Sequence[_RunRow], *, long: bool = False) -> int:
    if not rows:
        return 0
    return await unit.written(
        "insert runs",
        _INSERT_RUNS,
        [row.trigger_id for row in rows],
        [row.run.scheduled_time for row in rows],
        [row.run.origin.value for row in rows],
        [row.key.project for row in rows],
        [row.key.domain for row in rows],
        [_long_name(row) if long else row.run.name for row in rows],
        [row.run.revision for row in rows],
        [row.target_id for row in rows],
        [row.run.state.value for row in rows],
        [row.run.due_at for row in rows],
        [row.run.expires_at for row in rows],
        [row.run.utc_offset for row in rows],
    )


def _long_name(row: _RunRow) -> str:
    return long_run_name(row.key, from_seconds(row.run.scheduled_time))


async def _rename_collisions(unit: _Unit, rows: Sequence[_RunRow]) -> int:
    """Slots that got no row, though no run has their slot: another slot has their name. A collision is
    never taken for a duplicate."""
    found = await unit.rows(
        "collisions",
        _WITHOUT_RUN,
        [row.trigger_id for row in rows],
        [row.run.scheduled_time for row in rows],
    )
    without = [rows[row["n"] - 1] for row in found]
    inserted = await _insert_runs(unit, without, long=True)
    if inserted < len(without):
        raise RuntimeError("a long run name collided: two slots of one trigger, or 128 bits by chance")
    return inserted


async def _insert_skips(unit: _Unit, winners: Sequence[Plan], now: datetime) -> None:
    skips = [(item.input.trigger.id, skip) for item in winners for skip in item.skips]
    if not skips:
        return
    await unit.written(
        "insert skips",
        _INSERT_SKIPS,
        [trigger_id for trigger_id, _ in skips],
        [skip.revision for _, skip in skips],
        [skip.first for _, skip in skips],
        [skip.last for _, skip in skips],
        [skip.count for _, skip in skips],
        [str(skip.reason) for _, skip in skips],
        [skip.detail for _, skip in skips],
        now,
    )


async def _step_backfill(
    unit: _Unit,
    item: Plan,
    step: BackfillStep,
    runs: Sequence[PlannedRun],
    targets: Mapping[str, int],
    now: datetime,
) -> tuple[int, int]:
    """Runs for the slots of a backfill's step; how many rows are new, and how many have the long name.

    A pending automatic run becomes a backfill run, any other keeps its slot; skips over what is filled now
    are split. Runs are locked by ascending id before they are written.
    """
    trigger = item.input.trigger
    slots = [from_seconds(run.scheduled_time) for run in runs]
    made = renamed = 0
    taken: list[Any] = []
    if runs:
        taken = await unit.rows("lock taken over", _LOCK_TAKEN_OVER, trigger.id, slots)
        await unit.written("take over", _TAKE_OVER, [row["id"] for row in taken], runs[0].state.value)
        there = {row["scheduled_time"] for row in taken}
        rows = [
            _RunRow(trigger.key, trigger.id, targets[run.target], run)
            for run, slot in zip(runs, slots, strict=True)
            if slot not in there
        ]
        made = await _insert_runs(unit, rows)
        if made < len(rows):
            renamed = await _rename_collisions(unit, rows)
            made += renamed
    await unit.written(
        "step backfill",
        _STEP_BACKFILL,
        step.id,
        step.cursor,
        "done" if step.done else "open",
        now if step.done else None,
        made + len(taken),
    )
    if runs:
        await run_script(unit, backfills.carve(trigger.id, slots, item.input.revisions, trigger.hash_seed))
    return made, renamed


# claim

_QUIET = """
select not exists (
  select from target_allowance a where a.target_id = any($1::bigint[])
  and (a.guard_state <> 'none' or a.looked_at < $3
       or (select due_at from run where target_id = a.target_id and state = 'scheduled'
           order by due_at limit 1) <= $2)) as quiet,
  (select min(n.due_at) from target_allowance a cross join lateral
    (select due_at from run where target_id = a.target_id and state = 'scheduled' and due_at > $2
     order by due_at limit 1) n where not a.frozen) as next_due
"""
"""Whether a claim at $2 would find nothing, and no allowance has to be told that somebody looked; and what is
due next."""

_ALLOWANCES = """
select target_id, tokens, refilled_at, looked_at, frozen, guard_state, guard_from, guard_until
from target_allowance
where target_id = any($1::bigint[]) order by target_id for no key update skip locked
"""

_PICK = """
select w.target_id, p.* from unnest($1::bigint[], $2::int[]) w(target_id, n) cross join lateral (
  select * from (select 1 as arm, id, trigger_id, due_at, attempt, origin from run
                 where target_id = w.target_id and state = 'scheduled' and $5 and due_at <= $3
                 and (attempt > 0 or due_at <= $4) order by due_at, id limit w.n for update skip locked) x
  union all
  select * from (select 2 as arm, id, trigger_id, due_at, attempt, origin from run
                 where target_id = w.target_id and state = 'scheduled' and attempt = 0
                 and due_at > $4 and due_at <= $3 order by due_at, id limit w.n for update skip locked) y
  union all
  select * from (select 3 as arm, id, trigger_id, due_at, attempt, origin from run
                 where target_id = w.target_id and state = 'scheduled' and not $5 and due_at <= $3
                 and (attempt > 0 or due_at <= $4) order by due_at, id limit w.n for update skip locked) z
  limit w.n) p
"""

_STATUSES = """
select id, status, frozen from trigger
where id = any($1::bigint[]) and (frozen or status in ('paused', 'deleted'))
"""

_HOLD = """
update run set state = 'held', outcome_unknown = (outcome_unknown or lease_owner is not null),
               lease_owner = null where id = any($1::bigint[])
"""

_FAIL = """
update run set state = 'failed', reason = $2, settled_at = $3, lease_owner = null where id = any($1::bigint[])
"""

_TAKE = """
update run r set attempt = r.attempt + 1, outcome_unknown = (r.outcome_unknown or r.lease_owner is not null),
  lease_owner = $2, due_at = $3, first_claimed_at = coalesce(r.first_claimed_at, $4)
from trigger t, trigger_revision v
where r.id = any($1::bigint[]) and t.id = r.trigger_id
and v.trigger_id = r.trigger_id and v.number = r.revision
returning r.id, r.trigger_id, r.scheduled_time, r.origin, r.name as run_name, r.revision, r.target_id,
  r.first_due_at, r.expires_at, r.attempt, r.first_claimed_at, r.outcome_unknown, r.utc_offset, r.parameters,
  t.project, t.domain, t.deployment, t.name, v.spec::text as spec, v.shadow
"""

_STILL_DUE = """
select w.target_id from unnest($1::bigint[]) w(target_id) cross join lateral (
  select 1 from run where target_id = w.target_id and state = 'scheduled' and due_at <= $2
  order by due_at limit 1) d
"""

_DEBIT = """
update target_allowance a set tokens = d.tokens, refilled_at = d.refilled_at,
                              looked_at = greatest(a.looked_at, $4)
from unnest($1::bigint[], $2::float8[], $3::timestamptz[]) d(target_id, tokens, refilled_at)
where a.target_id = d.target_id
"""


@dataclass(frozen=True, slots=True)
class _Gap:
    """What the catch-up guard of a target judges: what came due in `(low, high]`."""

    state: str
    low: datetime
    high: datetime


@dataclass(slots=True)
class _Share:
    """What one target may have in this claim."""

    demand: Demand
    allowance: Allowance
    looked_at: datetime
    wanted: int
    granted: int
    gap: _Gap | None = None
    found: int = 0
    shadowed: int = 0
    """How many of those found are in shadow: they call nobody, and take no token."""


async def _claim(
    unit: _Unit,
    demands: Sequence[Demand],
    now: datetime,
    lease_until: datetime,
    owner: str,
    backlog_first: bool,
    late_after: timedelta,
    grace: timedelta,
    guard: int,
) -> Claims:
    shares, unlooked, skipped = await _shares(unit, demands, now, grace)
    guarded = [
        target_id
        for target_id, share in shares.items()
        if share.gap is not None and await _guards(unit, target_id, share.gap, now, guard)
    ]
    refill_at = now + SKIPPED_AGAIN_AFTER if skipped else None
    picked = await _pick(unit, shares, now, now - late_after, backlog_first)
    claimed = await _take(unit, picked, now, lease_until, owner)
    for item in claimed:
        shares[item.run.target_id].shadowed += item.shadow
    begun = claimed
    if completion.judges(claimed):
        begun = tuple(await run_script(unit, completion.admit(claimed, now)))
    put_off = completion.less(claimed, begun)
    # Where fewer were found than were asked for, no more can be had now, due or not.
    full = [target_id for target_id, share in shares.items() if share.found == share.granted]
    due = await unit.rows("still due", _STILL_DUE, full, now) if full else []
    still_due = {row["target_id"] for row in due}
    more = False
    limited: list[int] = []
    seen: list[_Share] = []
    for target_id, share in shares.items():
        left = share.found == share.granted and target_id in still_due
        more = more or (left and share.granted > 0)
        rate = share.demand.rate
        if rate is not None:
            spared = share.shadowed + put_off.get(target_id, 0)
            share.allowance = share.allowance.debited(share.found - spared)
            if left and share.granted < share.wanted:
                limited.append(target_id)
                next_at = share.allowance.next_at(rate)
                refill_at = next_at if refill_at is None else min(refill_at, next_at)
        if share.found or left or now - share.looked_at > grace / 6:
            # Where nothing is due, nothing came due since looked_at, so that moving it now and then is
            # exact; where something waits for us, it must be known to have been seen.
            seen.append(share)
    if seen:
        await unit.written(
            "debit",
            _DEBIT,
            [share.demand.target_id for share in seen],
            [share.allowance.tokens for share in seen],
            [share.allowance.refilled_at for share in seen],
            now,
        )
    return Claims(begun, tuple(unlooked), refill_at, more, tuple(limited), tuple(guarded))


async def _shares(
    unit: _Unit, demands: Sequence[Demand], now: datetime, grace: timedelta
) -> tuple[dict[int, _Share], list[int], bool]:
    """The allowances, locked; targets that need a look first; whether another replica held one of them."""
    rows = await unit.rows("allowances", _ALLOWANCES, [item.target_id for item in demands])
    locked = {row["target_id"]: row for row in rows}
    shares: dict[int, _Share] = {}
    unlooked: list[int] = []
    skipped = False
    for demand in sorted(demands, key=lambda item: item.target_id):
        row = locked.get(demand.target_id)
        if row is None:
            skipped = True
            continue
        if now - row["looked_at"] > grace:
            unlooked.append(demand.target_id)
            continue
        allowance = Allowance(row["tokens"], row["refilled_at"])
        wanted = granted = 0 if row["frozen"] else demand.wanted
        if demand.rate is not None:
            allowance = allowance.refilled(demand.rate, now)
            granted = allowance.granted(wanted)
        gap = None
        if row["guard_state"] != GuardState.NONE:
            gap = _Gap(row["guard_state"], row["guard_from"], row["guard_until"])
        shares[demand.target_id] = _Share(demand, allowance, row["looked_at"], wanted, granted, gap)
    return shares, unlooked, skipped


_WAITING = """
select count(*) from (
  select from run where target_id = $1 and state = 'scheduled' and due_at > $2 and due_at <= $3
  and origin = 'schedule' and attempt = 0 limit $4) w
"""

_BEHIND = """
select from trigger where plan_due_at <= $1 and cursor < $2 and status = 'active' and error is null limit 1
"""

_LOCK_GAP = """
select id from run where target_id = $1 and state = 'scheduled' and due_at > $2 and due_at <= $3
and origin = 'schedule' and attempt = 0 order by id for update
"""

_SET_GUARD = "update target_allowance set guard_state = $2 where target_id = $1"


async def _guards(unit: _Unit, target_id: int, gap: _Gap, now: datetime, guard: int) -> bool:
    """Judge what waits of the gap; whether the guard holds it. See `core/freeze.py`."""
    if gap.state == GuardState.OPEN:
        waiting = await unit.value("guard", _WAITING, target_id, gap.low, gap.high, guard + 1)
        if waiting <= guard or not guard:
            if not waiting and not await unit.rows("behind", _BEHIND, now + freeze.PLANNING, gap.high):
                await unit.written("guard ends", _SET_GUARD, target_id, GuardState.NONE.value)
            return False
        await unit.written("guard holds", _SET_GUARD, target_id, GuardState.HELD.value)
    if guard:
        rows = await unit.rows("lock gap", _LOCK_GAP, target_id, gap.low, gap.high)
        if rows:
            await unit.written("hold gap", _HOLD, [row["id"] for row in rows])
    return True


async def _pick(
    unit: _Unit, shares: Mapping[int, _Share], now: datetime, late: datetime, backlog_first: bool
) -> list[int]:
    """Ids to claim, in order and locked. A retry of a trigger that was paused, frozen or deleted meanwhile is
    put where that would have put it, had no lease been in the way.

    A pause or a freeze that comes after the statuses were read waits for the locks of these runs, and then
    finds them leased.
    """
    asked = {target_id: share.granted for target_id, share in shares.items() if share.granted > 0}
    if not asked:
        return []
    while True:
        rows = await unit.rows("pick", _PICK, list(asked), list(asked.values()), now, late, backlog_first)
        tried = {row["trigger_id"] for row in rows if row["attempt"] > 0}
        found = await unit.rows("statuses", _STATUSES, list(tried)) if tried else []
        statuses = {row["id"]: row["status"] for row in found}
        frozen = {row["id"] for row in found if row["frozen"]}
        held: list[int] = []
        failed: list[int] = []
        for row in rows:
            status = statuses.get(row["trigger_id"]) if row["attempt"] > 0 else None
            if status == "deleted":
                failed.append(row["id"])
            elif row["trigger_id"] in frozen or (status == "paused" and row["origin"] == "schedule"):
                held.append(row["id"])
        if not held and not failed:
            break
        await unit.written("hold", _HOLD, held)
        await unit.written("fail", _FAIL, failed, "trigger deleted while it waited" + UNKNOWN, now)
    for row in rows:
        shares[row["target_id"]].found += 1
    rows.sort(key=lambda row: (row["target_id"], row["arm"], row["due_at"], row["id"]))
    return [row["id"] for row in rows]


async def _take(
    unit: _Unit, ids: Sequence[int], now: datetime, lease_until: datetime, owner: str
) -> tuple[Claimed, ...]:
    if not ids:
        return ()
    rows = {row["id"]: row for row in await unit.rows("take", _TAKE, ids, owner, lease_until, now)}
    return tuple(_claimed(rows[run_id], owner, lease_until) for run_id in ids)


def _claimed(row: Any, owner: str, lease_until: datetime) -> Claimed:
    run = Run(
        id=row["id"],
        trigger_id=row["trigger_id"],
        scheduled_time=row["scheduled_time"],
        origin=Origin(row["origin"]),
        name=row["run_name"],
        revision=row["revision"],
        target_id=row["target_id"],
        state=RunState.SCHEDULED,
        due_at=lease_until,
        first_due_at=row["first_due_at"],
        expires_at=row["expires_at"],
        attempt=row["attempt"],
        lease_owner=owner,
        first_claimed_at=row["first_claimed_at"],
        outcome_unknown=row["outcome_unknown"],
        utc_offset=timedelta(seconds=row["utc_offset"]),
        parameters=row["parameters"],
    )
    key = TriggerKey(row["project"], row["domain"], row["deployment"], row["name"])
    return Claimed(run, key, spec_of(row["spec"]), lease_until, row["shadow"] and run.automatic)


# settle

_LOCK_RUNS = "select id from run where id = any($1::bigint[]) order by id for update"

_SETTLE = """
update run r set
  state = case when o.state = 'scheduled' and t.status = 'deleted' then 'failed'
               when o.state = 'scheduled' and t.frozen then 'held'
               when o.state = 'scheduled' and t.status = 'paused' and r.origin = 'schedule' then 'held'
               else o.state end,
  due_at = coalesce(o.due_at, r.due_at),
  lease_owner = null,
  reason = case when o.state = 'scheduled' and t.status = 'deleted'
                then coalesce(o.reason, '') || '; trigger deleted while it waited' else o.reason end,
  target_run_id = coalesce(o.target_run_id, r.target_run_id),
  outcome_unknown = (r.outcome_unknown or o.unknown),
  fired_at = case when o.state = 'fired' then o.answered_at else r.fired_at end,
  settled_at = case when o.state in ('fired', 'failed', 'shadowed') or t.status = 'deleted'
                    then $9::timestamptz else null end
from unnest($1::bigint[], $2::int[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::boolean[],
            $8::timestamptz[]) o(id, attempt, state, due_at, reason, target_run_id, unknown, answered_at),
  trigger t
where r.id = o.id and t.id = r.trigger_id
and ((r.attempt = o.attempt and r.state = 'scheduled' and r.lease_owner is not null)
     or (o.state = 'fired' and r.state <> 'fired'))
returning r.id
"""

_ATTEMPTS = """
insert into attempt (run_id, attempt, started_at, answered_at, answer, reason)
select o.* from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::text[])
  o(run_id, attempt, started_at, answered_at, answer, reason)
where exists (select from run r where r.id = o.run_id) on conflict do nothing
"""


async def _settle(unit: _Unit, outcomes: Sequence[Outcome], now: datetime) -> set[int]:
    """The runs are locked by a statement of its own, so that a pause that held them is seen."""
    chosen = fire.one_a_run(outcomes)
    await unit.rows("lock runs", _LOCK_RUNS, [item.run_id for item in chosen])
    rows = await unit.rows(
        "settle",
        _SETTLE,
        [item.run_id for item in chosen],
        [item.attempt for item in chosen],
        [item.state.value for item in chosen],
        [item.due_at for item in chosen],
        [item.reason for item in chosen],
        [item.target_run_id for item in chosen],
        [item.unknown for item in chosen],
        [item.answered_at for item in chosen],
        now,
    )
    await unit.written(
        "attempts",
        _ATTEMPTS,
        [item.run_id for item in outcomes],
        [item.attempt for item in outcomes],
        [item.started_at for item in outcomes],
        [item.answered_at for item in outcomes],
        [item.answer for item in outcomes],
        [item.reason for item in outcomes],
    )
    done = {row["id"] for row in rows}
    await run_script(unit, completion.after_settle(outcomes, done, now))
    return done


_REPORTS_DUE = "select exists (select from run where report_due_at <= $1)"


_NEXT_DUE = """
select min(n.due_at) from target_allowance a cross join lateral
  (select due_at from run where target_id = a.target_id and state = 'scheduled' and due_at > $1
   order by due_at limit 1) n where not a.frozen
"""
