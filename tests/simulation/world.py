"""A world in which the shipped service runs: replicas, a database, a target, people, and whatever goes wrong.

Every replica is the service as it ships (planner, executor, syncer, pool, under the shipped supervisor), on
one database: SQLite called inline, or the PostgreSQL store, one for each replica, on a PostgreSQL in memory
(`tests/memory/`), where others may go first before each statement. Between a replica and the database stands
a `Line`, which lets others go first before and after each call, and on which calls are lost, break off, or
never come back. All of it runs on one `SeededLoop`: no threads, no real time.

SQLite's file lies in memory (tmpfs) with `synchronous` off: a power cut is not among the faults here.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from importlib import resources
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import asyncpg

from horarium.clock import Clock, SystemClock
from horarium.core import deployment as deployments
from horarium.core import revision
from horarium.core import trigger as decisions
from horarium.core.deployment import DeploymentChange, DeploymentState
from horarium.core.instant import from_micros, to_micros
from horarium.core.keys import TriggerKey
from horarium.core.outcome import RetryPolicy
from horarium.core.plan import Window, plan_range
from horarium.core.reconcile import API, reconcile
from horarium.core.revision import Status
from horarium.core.run import FiredRun, Report
from horarium.core.run import Result as RunResult
from horarium.core.spec import (
    CatchUp,
    DeploymentSpec,
    Listing,
    Overlap,
    Rate,
    TargetSpec,
    TriggerEntry,
    TriggerSpec,
)
from horarium.core.trigger import Change, TriggerState
from horarium.core.zone import DEFAULT_ZONES, Zones
from horarium.engine import executor, mirror, planner, pool, reporter, service, syncer
from horarium.engine.executor import Executor, ExecutorSettings
from horarium.engine.health import Health
from horarium.engine.mirror import Mirror
from horarium.engine.planner import Planner, PlannerSettings
from horarium.engine.pool import TargetPool
from horarium.engine.reporter import Reporter
from horarium.engine.service import Parts, Service
from horarium.engine.syncer import Syncer
from horarium.engine.wake import Wake
from horarium.errors import Conflict, NotFound, StoreUnavailable
from horarium.store import migrations
from horarium.store.base import ManualRequest
from horarium.store.sqlite import SqliteStore, engine
from horarium.targets.base import (
    AheadFailed,
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Mirrored,
    Refused,
    TargetTraits,
    Unavailable,
)
from horarium.telemetry import Metrics
from tests.memory.server import Transaction
from tests.memory.store import Database, MemoryStore, Session
from tests.simulation.ahead import FarSide, Flow
from tests.simulation.history import CASABLANCA, History, Step
from tests.simulation.journal import Journal, entries_of
from tests.simulation.loop import SeededLoop
from tests.simulation.oracle import Commit, Entry, Limits, Oracle
from tests.simulation.rules import Spec, deployment_of, name_of

US = 1_000_000
SOURCE = "repo"
CASES = Path(__file__).parent.parent / "cases"

WINDOW = Window(
    min_runs=2,
    max_runs=10,
    min_scheduled_time=timedelta(minutes=4),
    max_scheduled_time=timedelta(days=2),
    max_catchup_runs=4,
    max_walk=12,
)
"""Small, so that short histories meet every bound."""
GRACE = LATE = LEASE = timedelta(seconds=60)
RETRY = RetryPolicy(cap=timedelta(seconds=40), total=timedelta(minutes=20))
EXECUTOR = ExecutorSettings(
    batch=5, lease=LEASE, late_after=LATE, grace=GRACE, poll=timedelta(seconds=25), retry=RETRY
)
PLANNER = PlannerSettings(batch=3, insert_batch=12, lease=timedelta(seconds=30), poll=timedelta(seconds=30))
RESYNC = timedelta(seconds=45)
ASK = timedelta(seconds=20)
"""The longest that the reporter sleeps; shipped, it is 2 s, which costs steps here and tells nothing more."""
PASS = timedelta(seconds=12)
"""The longest that the mirror sleeps; shipped, it is 5 s."""
TIMEOUT = timedelta(seconds=10)
IDLE = 15.0
"""Seconds after which PostgreSQL ends a session that leaves a transaction open; see `Limits.idle`."""
RANGE = 30
"""Slots that a request for a range may hold."""
QUIET = 330
"""Seconds of quiet after which nothing may be left to do."""
SHOWS = 60.0
"""Seconds for which a fault still shows once it is over."""
LIMITS = Limits(
    grace=60 * US,
    late_after=60 * US,
    retry_total=int(RETRY.total.total_seconds()) * US,
    stuck_after=150 * US,
    again=60 * US,
)


@dataclass(frozen=True)
class Result:
    """How a history ended: what was `wrong`, a digest of every step, figures, and the rows of runs."""

    history: History
    wrong: tuple[str, ...]
    trace: str
    figures: Mapping[str, int]
    runs: tuple[Mapping[str, Any], ...]
    flows: tuple[Flow, ...] = ()
    """What was at targets that have runs ahead."""


def simulate(history: History, trace: Callable[[str], None] | None = None) -> Result:
    """Run a history to its quiet end. `trace` is given a line for every commit, for people."""
    loop = SeededLoop(Random(f"order {history.seed}"))
    with _quiet_logs() as errors, _zones(history), _no_collector():
        world = World(history, loop, trace)
        main = loop.create_task(world.run())
        try:
            loop.run_until_complete(main)
            if world.broken is not None:
                raise world.broken
        finally:
            _end_all(loop)
    wrong = [*world.oracle.wrong, *errors]
    figures = {
        **world.oracle.figures(),
        "plans won": world.plans.won,
        "plans lost": world.plans.lost,
        "steps": loop.steps,
        **world.far.figures(),
    }
    runs, flows = tuple(world.oracle.runs.values()), tuple(world.far.flows)
    return Result(history, tuple(wrong), world.digest.hexdigest(), figures, runs, flows)


def _end_all(loop: SeededLoop) -> None:
    """Nothing stays behind: what is cancelled may begin another thing at its end."""
    for _ in range(20):
        rest = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if not rest:
            break
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.wait(rest, timeout=1))
    loop.close()


@dataclass
class Plans:
    """How many plans were written, and how many were lost to the compare-and-set."""

    won: int = 0
    lost: int = 0


@dataclass
class Replica:
    """One process. `ahead` is how far its clock is ahead, in seconds; `slow_until` is loop time."""

    index: int
    generation: int
    ahead: float
    alive: bool = True
    dies_in: int | None = None
    slow_until: float = 0.0
    service: Service | None = None
    wake: Wake = field(default_factory=Wake)
    store: Any = None
    """The shared one on SQLite; a process's own on PostgreSQL."""

    @property
    def owner(self) -> str:
        return f"replica{self.index}.{self.generation}"


class World:
    """See the module."""

    def __init__(self, history: History, loop: SeededLoop, trace: Callable[[str], None] | None) -> None:
        self.history = history
        self.loop = loop
        self.rng = Random(f"chance {history.seed}")
        self.oracle = Oracle(LIMITS)
        self.database = _in_memory(self) if history.store == "memory" else None
        if self.database is None:
            self.sqlite, self.journal = _database()
        self.digest = hashlib.blake2b(digest_size=16)
        self.trace = trace
        self.far = FarSide(self.oracle, self.excused)
        self.ahead = dict(history.ahead)
        """target → for how many seconds it has runs ahead"""
        self.troubles: list[tuple[float, float]] = []
        """From when until when something goes wrong, in loop time."""
        self.seq = 0
        self.mended = False
        self.outages: list[tuple[float, str, int]] = []
        """until, what, which replica (-1: all)"""
        self.listing_version = 1
        self.specs: dict[str, Spec] = {}
        self.renamed: dict[str, str] = {}
        self.current: dict[str, str] = {}
        self.before: dict[str, Spec] = {}
        self.rate = history.rate
        self.listings: dict[int, tuple[Listing, dict[str, Spec], dict[str, str]]] = {}
        self.replicas: list[Replica] = []
        self.dead: list[Replica] = []
        """Kept, so that what hangs in them hangs until the end, whenever garbage is collected."""
        self.plans = Plans()
        self.works: dict[str, Work] = {}
        """run name → what the target made of it, where targets tell of ends"""
        self.metrics = Metrics()
        self.broken: Exception | None = None
        self._forever = loop.create_future()
        self._numbers = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._known: dict[tuple[Any, ...], Any] = {}
        self._known_at = -1

    # time

    def true(self) -> int:
        """The real instant, in microseconds."""
        return self.history.start * US + round(self.loop.time() * US)

    def active(self, what: str, who: int = -1) -> bool:
        """Whether a fault is on now."""
        now = self.loop.time()
        return any(until > now and kind == what and which in (-1, who) for until, kind, which in self.outages)

    def trouble(self, length: float) -> None:
        """Something goes wrong from now on for so many seconds."""
        self.troubles.append((self.loop.time(), self.loop.time() + length))

    def excused(self, since: int, until: int) -> bool:
        """Whether something went wrong between two instants, or so shortly before that it still showed."""
        first, last = (at / US - self.history.start for at in (since, until))
        return any(begins <= last and ends + SHOWS >= first for begins, ends in self.troubles)

    # the whole

    async def run(self) -> None:
        await self._begin()
        for step in self.history.steps:
            self._task(self._at(step), f"step {step}")
        await asyncio.sleep(self.history.busy)
        self._mend()
        # A clock that was ahead has left times in the database that are still to come.
        await asyncio.sleep(QUIET + self.history.furthest)
        targets = {name: ahead * US for name, ahead in self.ahead.items() if ahead}
        self.far.quiet(targets, self.true(), round(self.history.furthest * US))
        self.oracle.quiet(self.true(), self.specs)
        self.digest.update(f"{self.loop.steps} {self.loop.time()}".encode())

    async def _begin(self) -> None:
        for index in range(self.history.replicas):
            self.replicas.append(Replica(index, 0, self.history.skews[index]))
            await self._connect(self.replicas[index])
        if self.history.rate is not None:  # what is due waits here for long
            self.trouble(self.history.busy)
        line = Line(self, self.replicas[0], person=("begin", ""), calm=True)
        for name, spec in self.history.first:
            self.current[name] = name
            if _is_managed(name):
                self.specs[name] = spec
        now = from_micros(self.true())
        listing = self.listing()
        await line.sync_source(
            listing, 0, lambda known: reconcile(listing, known, now), now, "sync", path=SOURCE
        )
        for name, spec in self.history.first:
            if not _is_managed(name):
                line.intent = ("put", name, spec)
                await line.create_trigger(_one(name, spec), now, "people")
        for replica in self.replicas:
            await self._start(replica)

    def _mend(self) -> None:
        """Whatever is broken is mended; targets can take all there is, and every replica is there."""
        self.mended = True
        self.trouble(0)
        self.outages.clear()
        self.rate = None
        self._changed_listing()
        for index, replica in enumerate(list(self.replicas)):
            replica.ahead = self.history.skews[index]
            replica.slow_until, replica.dies_in = 0.0, None
            if not replica.alive:
                self._task(self._restart(index, 0), "mend")

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._numbers += 1
        task = self.loop.create_task(work, name=f"{self._numbers:06} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # replicas

    async def _connect(self, replica: Replica) -> None:
        if self.database is None:
            replica.store = self.sqlite
        else:
            replica.store = MemoryStore(self.database, owner=replica)
            await replica.store.open()

    async def _start(self, replica: Replica) -> None:
        """A process: everything of it is made anew, and nothing is carried over but the database."""
        clock = ReplicaClock(self, replica)
        line: Any = Line(self, replica)
        wake = replica.wake
        health = Health(clock)
        targets = TargetPool(line, clock, partial(self._target, replica), None)
        parts = Parts(wake, health, self.metrics, targets)
        parts.planner = Planner(line, clock, WINDOW, wake, PLANNER, self.metrics)
        parts.executor = Executor(
            line, clock, _Ids(self), targets, wake, replica.owner, EXECUTOR, self.metrics
        )
        parts.syncer = Syncer(line, clock, self._sources(replica), wake, RESYNC, self.metrics)
        if self.history.ahead:
            parts.mirror = Mirror(line, clock, targets, wake, self.metrics, PASS)
        if self.history.reports:
            parts.reporter = Reporter(line, clock, targets, wake, self.metrics, ASK)
        replica.service = Service(parts, clock)
        await replica.service.start()

    def _target(self, replica: Replica, spec: TargetSpec) -> SimTarget:
        ahead = spec.config.get("ahead", 0)
        return AheadTarget(self, replica, spec, ahead) if self.ahead else SimTarget(self, replica, spec)

    async def _restart(self, index: int, after: float) -> None:
        self.trouble(after)
        await asyncio.sleep(after)
        old = self.replicas[index]
        if old.alive:
            return
        self.dead.append(old)
        self.replicas[index] = Replica(index, old.generation + 1, old.ahead)
        await self._connect(self.replicas[index])
        await self._start(self.replicas[index])

    def crash(self, replica: Replica) -> None:
        """It is gone: no call of it comes back, and none begins."""
        if replica.alive:
            replica.alive = False
            self.note(f"{replica.owner} dies")
            # The database hears of it at once, or when it has waited for the next statement for too long.
            if self.database is not None and self.rng.random() < 0.7:
                self.database.end(replica)
            elif self.database is not None:
                self.loop.call_later(IDLE, self.database.end, replica)

    async def _stop(self, replica: Replica) -> None:
        assert replica.service is not None
        await replica.service.stop(timedelta(seconds=15))
        if self.database is not None:
            await replica.store.close()
        replica.alive = False

    def _sources(self, replica: Replica) -> Callable[[], Coroutine[Any, Any, list[Repository]]]:
        async def discover() -> list[Repository]:
            return [Repository(self, replica)]

        return discover

    # the database

    async def boundary(self, replica: Replica, calm: bool = False) -> None:
        """A place where others may go first, where a process may die, and where it may take long."""
        if not replica.alive:
            await self.never()
        if replica.dies_in is not None:
            replica.dies_in -= 1
            if replica.dies_in < 0:
                self.crash(replica)
                await self.never()
        if calm:
            return
        if self.mended:
            await asyncio.sleep(0)
            return
        rng = self.rng
        slow = replica.slow_until > self.loop.time()
        if slow and rng.random() < 0.4:
            await asyncio.sleep(rng.choice((0.5, 5, 20, 75)))
        elif self.history.stalls and rng.random() < self.history.stalls:
            await asyncio.sleep(rng.choice((0.001, 0.02, 0.4, 3, 12)))
        else:
            await asyncio.sleep(0)
        if not replica.alive:
            await self.never()

    async def statement(self, session: Session, what: str) -> None:
        """Before a statement or a commit on the PostgreSQL in memory: a boundary inside a transaction."""
        replica: Replica = session.owner
        call = CALL.get()
        if not replica.alive:
            await self.never()
        if replica.dies_in is not None:
            replica.dies_in -= 1
            if replica.dies_in < 0:
                self.crash(replica)
                await self.never()
        if call is None or call.calm or self.mended:
            await asyncio.sleep(0)
            return
        if call.torn is not None:
            call.torn -= 1
        if (call.torn is not None and call.torn < 0) or (
            self.outages and self.active("store", replica.index)
        ):
            session.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the connection was closed in the middle")
        rng, between = self.rng, self.history.between
        if between and session.is_in_transaction() and rng.random() < between:
            await asyncio.sleep(rng.choice((0.001, 0.001, 0.02, 0.02, 0.4, 3)))
        else:
            await asyncio.sleep(0)
        if not replica.alive:
            await self.never()

    async def known(self, name: str, method: Any, *args: Any) -> Any:
        """What a read of SQLite gives: as long as nobody writes, what it gave before."""
        changes = self.journal.changes
        if self._known_at != changes:
            self._known.clear()
            self._known_at = changes
        if (name, *args) not in self._known:
            self._known[name, *args] = await method(*args)
        return self._known[name, *args]

    async def never(self) -> None:
        """Wait for what never comes."""
        await asyncio.shield(self._forever)

    def committed(self, c: Commit) -> None:
        """A call took effect."""
        self.digest.update(repr((c.true, c.method, c.owner, c.now, c.intent, c.entries)).encode())
        before = len(self.oracle.wrong)
        try:
            self.oracle.commit(c)
        except Exception as error:  # the oracle's own fault: no loop of the engine may swallow it
            self.broken = self.broken or error
        if self.trace is not None:
            self._show(c)
            for text in self.oracle.wrong[before:]:
                self.trace(f"             WRONG: {text}")

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.digest.update(text.encode())
        if self.trace is not None:
            self.trace(f"{self.loop.time():10.3f}  {text}")

    def _show(self, c: Commit) -> None:
        assert self.trace is not None
        skew = "" if c.now is None else f" now {(c.now - c.true) / US:+.3f}"
        self.trace(f"{self.loop.time():10.3f}  {c.owner} {c.method}{skew} {c.intent or ''} {c.details or ''}")
        for e in c.entries:
            row = {name: self._short(name, value) for name, value in e.row.items() if value is not None}
            self.trace(f"             {e.op} {e.table} " + " ".join(f"{k}={v}" for k, v in row.items()))

    def _short(self, name: str, value: Any) -> Any:
        if isinstance(value, int) and value > 10**14:
            return f"{(value - self.history.start * US) / US:.3f}"
        return value

    # what the target made, and how it tells of ends

    def begin_work(self, key: str, name: str) -> None:
        """It is under way at the target for as long as chance has it."""
        rng = self.rng
        length = rng.uniform(0.1, 2) if self.mended else rng.choice((0, 0, 0.3, 5, 30, 80, 150))
        result = rng.choice((RunResult.SUCCEEDED, RunResult.SUCCEEDED, RunResult.ERRORED))
        tells = self.mended or rng.random() > 0.08
        work = self.works[name] = Work(key, self.loop.time() + length, result, tells)
        self.note(f"target: {name} goes on for {length:.3f} s{'' if tells else ', and tells nobody'}")
        if tells:
            self._task(self._told(name, work), f"told {name}")

    async def _told(self, name: str, work: Work) -> None:
        """Messages of the target's own: that it has begun (some), and that it has ended."""
        rng = self.rng
        if rng.random() < 0.2:
            self._task(self._message(name, RunResult.RUNNING, rng.choice((0, 0.5, 20))), "message")
        while (left := work.ends_at - self.loop.time()) > 0:
            await asyncio.sleep(min(left, 5))  # a cancel can make it end before
        for _ in range(1 if self.mended else rng.choice((0, 1, 1, 1, 2))):
            after = 0 if self.mended else rng.choice((0, 0, 0.5, 20))
            self._task(self._message(name, work.result, after), "message")

    async def _message(self, name: str, result: RunResult, after: float) -> None:
        await asyncio.sleep(after)
        replica = self.replicas[self.rng.randrange(len(self.replicas))]
        if not replica.alive:
            return
        now = ReplicaClock(self, replica).now()
        work = self.works[name]
        try:
            line = Line(self, replica)
            if await line.report([Report(work.key, result, now)], await line.clock()):
                replica.wake.executor.set()
        except StoreUnavailable:
            self.note(f"the end of {name} is not written")

    def status(self, name: str) -> Report | None:
        """How a run is going, as the target says it; None where it says nothing."""
        work = self.works.get(name)
        if work is None:  # it waits for its time, which has come by our clock only
            return None
        ended = work.ends_at <= self.loop.time()
        at = from_micros(self.true())
        return Report(work.key, work.result if ended else RunResult.RUNNING, at) if work.tells else None

    async def worked(self, flow: Flow) -> None:
        """A worker takes a run that waits, some seconds before its time or after, and begins it."""
        takes = 0 if self.mended else self.rng.choice((-10, 0, 0, 8))
        await asyncio.sleep(max(0.0, (flow.start_at - self.true()) / US + takes))
        if flow.state != "waiting":
            return
        flow.state = "taken"
        await asyncio.sleep(max(0.0, (flow.start_at - self.true()) / US))
        self.far.begin(flow, self.true())
        self.note(f"{flow.target}: {flow.name} begins")
        if self.history.reports and flow.name not in self.works:
            self.begin_work(flow.key, flow.name)

    # people

    async def _at(self, step: Step) -> None:
        await asyncio.sleep(step.at)
        if self.mended:
            return
        now = self.loop.time()
        replica = self.replicas[step.who % len(self.replicas)]
        self.note(str(step))
        match step.what:
            case "crash":
                replica.dies_in = step.value
                self._task(self._dies_surely(replica, step.length), "crash")
            case "stop":
                await self._stop(replica)
                self._task(self._restart(replica.index, step.length), "restart")
            case "down":
                for item in list(self.replicas):
                    self.crash(item)
                    self._task(self._restart(item.index, step.length), "restart")
            case "slow":
                replica.slow_until = now + step.length
                self.trouble(step.length)
            case "away" | "hang" if step.name:
                self.outages.append((now + step.length, f"{step.what} {step.name}", -1))
                self.trouble(step.length)
            case "ahead":
                self.ahead[step.name] = step.value
                self._changed_listing()
            case "jump":
                replica.ahead += step.value
                self.trouble(self.history.busy)
            case "tz":
                revision.use_zones(NEW_ZONES)
            case "store" | "lost" | "torn" | "target" | "hang" | "refuse":
                self.outages.append((now + step.length, step.what, step.who if step.who >= 0 else -1))
                self.trouble(step.length)
            case "rate":
                self.rate = step.value
                self.trouble(self.history.busy)
                self._changed_listing()
            case _:
                await self._people(step, replica)

    async def _dies_surely(self, replica: Replica, after: float) -> None:
        await asyncio.sleep(1.0)
        self.crash(replica)
        self._task(self._restart(replica.index, after), "restart")

    async def _people(self, step: Step, replica: Replica) -> None:
        name = self.current.setdefault(step.name, step.name)
        managed = _is_managed(step.name)
        life = self.oracle.lives.get(name)
        match step.what:
            case "edit" | "add" | "back":
                spec: Spec | None = self.before.get(name) if step.what == "back" else step.value
                there = self.specs.get(name) if managed else (life.now.spec if life else None)
                if spec is None or spec.rule.kind == "once":
                    return
                if there is not None:
                    self.before[name] = there
                if managed:
                    self.specs[name] = spec
                    self._changed_listing()
                else:
                    await self._ask(replica, ("put", name, spec), partial(_put, name, spec))
            case "delete" if managed:
                if self.specs.pop(name, None) is not None:
                    self._changed_listing()
            case "rename":
                if managed and name in self.specs and len(name) < 5 and deployment_of(name) == name:
                    new = f"{name}r"
                    self.specs = {new if key == name else key: spec for key, spec in self.specs.items()}
                    self.renamed = {
                        **{key: (new if old == name else old) for key, old in self.renamed.items()},
                        new: self.renamed.get(name, name) if name not in self.oracle.lives else name,
                    }
                    self.current[step.name] = new
                    self._changed_listing()
            case "delete" | "pause" | "resume" | "backfill" | "shadow" | "range":
                await self._operate(step, name, replica)
            case "pause-deployment" | "resume-deployment":
                await self._operate_deployment(step, deployment_of(name), replica)
            case "manual":
                request = f"{name} {step.at}"
                await self._ask(replica, ("manual", name, request), partial(_manual, name, request))
            case "cancel" | "retry":
                await self._on_a_run(step, name, replica)

    async def _operate(self, step: Step, name: str, replica: Replica) -> None:
        def decide(state: TriggerState, now: datetime) -> Change | None:
            if state.trigger.status is Status.DELETED:
                return None
            match step.what:
                case "delete":
                    return decisions.delete(state, "people", now)
                case "pause":
                    until = None if step.value is None else now + timedelta(seconds=step.value)
                    return decisions.pause(state, "people", now, resume_at=until)
                case "resume":
                    return decisions.resume(state, "people", now, backfill=step.value, grace=GRACE)
                case "shadow":
                    return decisions.shadow(state, step.value, "people", now)
                case "range":
                    low, high = (now + timedelta(seconds=seconds) for seconds in step.value)
                    found = plan_range(state, low, high, now, RANGE, grace=GRACE)
                    if found.refused is not None or found.last is not None:
                        raise Conflict(f"not planned: {found}")
                    return found.change
                case _:
                    return decisions.start_backfill(state, now - timedelta(seconds=step.value), now, now)

        async def ask(line: Any, now: datetime) -> None:
            match step.what:
                case "pause":
                    until = None if step.value is None else to_micros(now + timedelta(seconds=step.value))
                    line.intent = ("pause", name, until)
                case "backfill":
                    line.intent = (
                        "backfill",
                        name,
                        to_micros(now - timedelta(seconds=step.value)),
                        to_micros(now),
                    )
                case "range":
                    low, high = (now + timedelta(seconds=seconds) for seconds in step.value)
                    line.intent = ("range", name, to_micros(low), to_micros(high), to_micros(now))
                case "resume" | "shadow":
                    line.intent = (step.what, name, step.value)
            await line.change([key_of(name)], partial(_decided, decide, now), now, "people")

        await self._ask(replica, (step.what, name), ask)

    async def _operate_deployment(self, step: Step, deployment: str, replica: Replica) -> None:
        def decide(state: DeploymentState, now: datetime) -> DeploymentChange | None:
            if step.what == "pause-deployment":
                return deployments.pause(state, "people", now)
            return deployments.resume(state, "people", now, backfill=step.value, grace=GRACE)

        async def ask(line: Any, now: datetime) -> None:
            key = key_of(deployment).deployment_key
            await line.change_deployment(key, lambda state: decide(state, now), now, "people")

        await self._ask(replica, (step.what, deployment, step.value), ask)

    async def _on_a_run(self, step: Step, name: str, replica: Replica) -> None:
        life = self.oracle.lives.get(name)
        wanted = ("scheduled", "held") if step.what == "cancel" else ("failed",)
        found = sorted(
            (row["scheduled_time"], row["id"])
            for row in self.oracle.runs.values()
            if life is not None and row["trigger_id"] == life.trigger_id and row["state"] in wanted
        )
        if not found:
            return
        run_id = found[0][1]

        async def ask(line: Any, now: datetime) -> None:
            def decide(state: TriggerState, run: Any) -> Change | None:
                if step.what == "cancel":
                    return decisions.cancel_run(state, run, "people", now)
                return decisions.retry_run(state, run, now)

            await line.change_run(run_id, decide, now, "people")

        await self._ask(replica, (step.what, name), ask)

    async def _ask(
        self,
        replica: Replica,
        intent: tuple[Any, ...],
        ask: Callable[[Any, datetime], Coroutine[Any, Any, None]],
    ) -> None:
        """Ask a replica; a person who gets no answer asks again, and again."""
        for _ in range(6):
            replica = self.replicas[replica.index]
            line = Line(self, replica, person=intent)
            now = ReplicaClock(self, replica).now()
            try:
                if replica.alive:
                    await asyncio.wait_for(ask(line, now), 40)
                    replica.wake.changed()
                    return
            except (StoreUnavailable, TimeoutError):
                pass
            except (NotFound, Conflict):
                return
            await asyncio.sleep(self.rng.uniform(1, 10))

    # the source

    def _changed_listing(self) -> None:
        self.listing_version += 1

    def listing(self) -> Listing:
        """What the repository says now."""
        there = self.listings.get(self.listing_version)
        if there is None:
            rate = None if self.rate is None else Rate(*self.rate)
            listing = Listing(
                SOURCE,
                (
                    TargetSpec("first", "sim", self._config("first"), rate=rate, unlimited=rate is None),
                    TargetSpec("second", "sim", self._config("second"), unlimited=True),
                ),
                tuple(
                    {
                        deployment_of(name): DeploymentSpec(key_of(name).deployment_key, spec.target)
                        for name, spec in self.specs.items()
                    }.values()
                ),
                tuple(
                    TriggerEntry(
                        key_of(name),
                        spec_of(spec),
                        f"{self.renamed[name]}/default" if name in self.renamed else None,
                    )
                    for name, spec in self.specs.items()
                ),
            )
            there = self.listings[self.listing_version] = (listing, dict(self.specs), dict(self.renamed))
        return there[0]

    def _config(self, target: str) -> dict[str, Any]:
        ahead = self.ahead.get(target, 0)
        return {"ahead": ahead} if ahead else {}


class Line:
    """The way from a replica to the database, and back."""

    def __init__(
        self, world: World, replica: Replica, person: tuple[Any, ...] | None = None, calm: bool = False
    ) -> None:
        self._world = world
        self._replica = replica
        self._calm = calm
        self.intent = person

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._replica.store, name)
        writes = name in WRITES and (name not in QUEUES or self._world.database is not None)
        call = partial(self._write if writes else self._read, name, method)
        setattr(self, name, call)
        return call

    async def clock(self) -> datetime:
        world, replica = self._world, self._replica
        if not replica.alive:
            await world.never()
        ahead = 0.0 if world.history.database_clock else replica.ahead
        return from_micros(world.true() + round(ahead * US))

    async def plan_due(self) -> tuple[datetime, datetime | None]:
        if self._world.database is not None:
            store = self._replica.store
            found: tuple[datetime, datetime | None] = await self._read("plan_due", store.plan_due)
            return found
        return await self.clock(), await self.next_plan_due()

    async def _read(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        world, replica = self._world, self._replica
        await world.boundary(replica, self._calm)
        if world.outages and world.active("store", replica.index):
            raise StoreUnavailable("the database does not answer")
        if name in REPEATED and world.database is None:
            return await world.known(name, method, *args)
        return await Call(self._calm).made(world, method, args, kwargs)

    async def _write(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        world, replica = self._world, self._replica
        await world.boundary(replica, self._calm)
        torn: int | None = None
        if world.outages:
            if world.active("store", replica.index):
                raise StoreUnavailable("the database does not answer")
            if world.active("torn", replica.index) and world.rng.random() < 0.5:
                torn = world.rng.randrange(6)
        call = Call(self._calm, torn)
        if name == "claim":
            call.could = {
                item.target_id: world.oracle.due(item.target_id, to_micros(args[1])) for item in args[0]
            }
        if name == "look":
            call.before = set(world.oracle.runs)
        call.began = world.seq
        if self.intent is not None:
            call.asked_of = world.oracle.known(self.intent)
        if world.database is None:
            entries, result = await self._inline(torn, method, args, kwargs)
        else:
            result = await call.made(world, method, args, kwargs)
            entries = call.written or []
        world.seq += 1
        c = Commit(world.seq, world.true(), name, replica.owner, None, entries, self.intent)
        WRITES[name](world, c, call, args, kwargs, result)
        world.committed(c)
        if world.outages and world.active("lost", replica.index) and world.rng.random() < 0.5:
            raise StoreUnavailable("the answer was lost")
        await world.boundary(replica, self._calm)
        return result

    async def _inline(self, torn: int | None, method: Any, args: Any, kwargs: Any) -> tuple[list[Entry], Any]:
        journal = self._world.journal
        journal.begin(torn)
        try:
            result = await method(*args, **kwargs)
        except BaseException:
            journal.take()
            raise
        return journal.take(), result


@dataclass
class Call:
    """A store call under way: what it wrote, once that is committed; and how the world was when it began,
    since on PostgreSQL others go on meanwhile.

    `torn`: after how many statements the connection breaks. `could`: what a claim could have, by target.
    `before`: ids of the runs there. `asked_of`: what a request is about, as it was. `began`: how many commits
    there had been.
    """

    calm: bool = False
    torn: int | None = None
    written: list[Entry] | None = None
    passed: frozenset[int] = frozenset()
    """Runs that it passed by, because somebody had them locked."""
    could: Mapping[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    before: set[int] | None = None
    asked_of: object = None
    began: int = 0

    async def made(self, world: World, method: Any, args: Any, kwargs: Any) -> Any:
        """The call's result. It comes in the same breath as its commit: nobody goes between."""
        token = CALL.set(self)
        try:
            return await method(*args, **kwargs)
        except BaseException:
            if self.written is not None:
                world.oracle.fail("torn: a call failed that had taken effect")
            raise
        finally:
            CALL.reset(token)


CALL: ContextVar[Call | None] = ContextVar("CALL", default=None)


# what each write tells the oracle beside its rows


def _plans(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[1])
    world.plans.won += len(result.won)
    world.plans.lost += len(result.lost)


def _changes(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[2])
    done = result if isinstance(result, list) else [result] if result is not None else []
    c.details = {"what": done[0].change.what} if done else {}
    if c.intent is not None:
        if done:
            world.oracle.did(c)
        else:
            world.oracle.declined(c.intent, call.asked_of)
    elif done and done[0].change.what == "resume":
        world.oracle.resumed(name_of(done[0].key.deployment, done[0].key.name), c)


def _deployment_changes(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[2])
    assert c.intent is not None
    if result is not None:
        world.oracle.did(c)
    else:
        world.oracle.declined(c.intent, call.asked_of)


def _put_written(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[1])
    assert c.intent is not None
    assert not result.decided.problems, result.decided.problems
    if result.written:
        world.oracle.did(c)
    else:
        world.oracle.declined(c.intent, call.asked_of)


def _synced(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now, c.intent = to_micros(args[3]), None
    assert not result.decided.problems, result.decided.problems
    for version, (listing, specs, renamed) in world.listings.items():
        if listing is args[0] and result.written:
            world.oracle.listing(version, specs, renamed, c)
        elif listing is args[0] and not result.stale and not kwargs.get("dry_run"):
            world.oracle.listed = max(world.oracle.listed, version)


def _looked(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now, c.details = to_micros(args[1]), {"target": args[0], "before": call.before}


def _claims(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    demands, now, until = args[0], args[1], args[2]
    c.now = to_micros(now)
    c.details = {
        "demands": [
            (
                item.target_id,
                item.wanted,
                None if item.rate is None else (item.rate.per_second, item.rate.burst),
            )
            for item in demands
        ],
        "until": to_micros(until),
        "backlog_first": kwargs["backlog_first"],
        "apart": world.history.apart,
        "could": call.could,
        "passed": call.passed,
        "began": call.began,
    }
    world.oracle.cancelling(
        {item.run.id: tuple(run.id for run in item.cancels) for item in result.runs if item.cancels}
    )


def _settled(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[1])
    outcomes: dict[int, set[int]] = {}
    for item in args[0]:
        outcomes.setdefault(item.run_id, set()).add(item.attempt)
    c.details = {"outcomes": outcomes, "passed": call.passed}


def _reported(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[1])
    c.details = {
        "reports": {item.run_key.split("/")[2]: item.result.value for item in args[0]},
        "passed": call.passed,
    }


def _asked(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[0])


def _leased(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[0])


def _manual_made(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    c.now = to_micros(args[1])
    world.oracle.did(c)


def _other(world: World, c: Commit, call: Call, args: Any, kwargs: Any, result: Any) -> None:
    return


WRITES: dict[str, Callable[[World, Commit, Call, Any, Any, Any], None]] = {
    "lease_due": _leased,
    "apply_plans": _plans,
    "change": _changes,
    "change_run": _changes,
    "change_deployment": _deployment_changes,
    "create_trigger": _put_written,
    "sync_source": _synced,
    "look": _looked,
    "claim": _claims,
    "settle": _settled,
    "report": _reported,
    "reports_due": _asked,
    "create_manual": _manual_made,
    "replan_older_tzdata": _other,
    "source_failed": _other,
}
REPEATED = ("targets", "source_version")
"""Reads that loops repeat each turn: a fifth of the time on SQLite, were they asked of it each time."""
QUEUES = ("lease_due",)
"""Calls that write only where replicas share a queue."""


# what people ask for


async def _put(name: str, spec: Spec, line: Any, now: datetime) -> None:
    await line.create_trigger(_one(name, spec), now, "people")


async def _manual(name: str, request: str, line: Any, now: datetime) -> None:
    await line.create_manual(ManualRequest(key_of(name), request, None, "people"), now)


def _decided(
    decide: Callable[[TriggerState, datetime], Change | None], now: datetime, state: TriggerState
) -> Change | None:
    return decide(state, now)


def _one(name: str, spec: Spec) -> Listing:
    key = key_of(name)
    return Listing(
        API,
        deployments=(DeploymentSpec(key.deployment_key, spec.target),),
        triggers=(TriggerEntry(key, spec_of(spec)),),
    )


def _is_managed(name: str) -> bool:
    """Triggers with even numbers are a source's, the others are people's through the API."""
    return int(name.strip("trs")) % 2 == 0


def key_of(name: str) -> TriggerKey:
    """The key of a trigger's name here."""
    deployment = deployment_of(name)
    return TriggerKey("default", "default", deployment, name.removeprefix(deployment) or "default")


def spec_of(spec: Spec) -> TriggerSpec:
    """The same for the engine."""
    return TriggerSpec(
        spec.rule.words(),
        spec.target,
        parameters={"mark": spec.mark},
        jitter=timedelta(seconds=spec.jitter),
        catch_up=CatchUp(spec.catch_up),
        max_age=None if spec.max_age is None else timedelta(seconds=spec.max_age),
        overlap=Overlap(spec.overlap),
        completion_timeout=None
        if spec.completion_timeout is None
        else timedelta(seconds=spec.completion_timeout),
        active=spec.active,
    )


# what a process is given


class ReplicaClock(SystemClock):
    """A replica's own clocks; how it waits is the shipped way."""

    def __init__(self, world: World, replica: Replica) -> None:
        self._world = world
        self._replica = replica

    def now(self) -> datetime:
        return from_micros(self._world.true() + round(self._replica.ahead * US))

    def monotonic(self) -> float:
        return self._world.loop.time()


class _Ids:
    def __init__(self, world: World) -> None:
        self._world = world

    def new_id(self) -> str:
        return f"{self._world.rng.getrandbits(128):032x}"

    def fraction(self) -> float:
        return self._world.rng.random()


class Repository:
    """Where the source's triggers are kept. Between its version and its text somebody may push."""

    name = SOURCE
    path = SOURCE

    def __init__(self, world: World, replica: Replica) -> None:
        self._world = world
        self._replica = replica

    async def version(self) -> str:
        found = str(self._world.listing_version)
        await self._world.boundary(self._replica)
        return found

    async def read(self) -> Listing:
        found = self._world.listing()
        await self._world.boundary(self._replica)
        return found


@dataclass
class Work:
    """What the target made of a run. `ends_at` is in loop time; `tells`: whether anybody ever hears of it."""

    key: str
    ends_at: float
    result: RunResult
    tells: bool
    ending: bool = False
    """Somebody has asked for its end."""


class SimTarget:
    """A target over a network. The far side goes on without us: an effect can come after we gave up, and
    after we died. Where the history has it so, it tells of ends: by a message that may be lost, doubled or
    early, and when it is asked."""

    timeout = TIMEOUT

    def __init__(self, world: World, replica: Replica, spec: TargetSpec) -> None:
        self._world = world
        self._replica = replica
        self._name = spec.name
        self.max_in_flight = world.history.places
        self.traits = TargetTraits(
            dedupes=True,
            reports_completion=world.history.reports,
            cancels=world.history.reports,
            note="simulated",
        )
        self._calls = 0

    def free(self) -> int:
        return self.max_in_flight - self._calls

    async def start(self) -> None:
        return

    async def create_run(self, request: FireRequest) -> Answer:
        world, replica = self._world, self._replica
        if not replica.alive:
            await world.never()
        self._calls += 1
        world.oracle.called(request.run_name)
        world.oracle.ahead[replica.owner] = max(
            world.oracle.ahead.get(replica.owner, 0),
            0
            if world.history.database_clock
            else round(max(0.0, replica.ahead, world.history.furthest) * US),
        )
        try:
            return await self._create(request, request.scheduled_time)
        finally:
            self._calls -= 1
            replica.wake.executor.set()

    async def _create(self, request: FireRequest, start_at: datetime) -> Answer:
        answer: Answer = await self._call(partial(self._made, request), f"call {request.run_name}")
        return answer

    async def _call(self, act: Callable[[bool], Any], name: str) -> Any:
        """What `act` gives over there, or `Unavailable`. It is told whether nobody waits for it any more."""
        world = self._world
        answered = world.loop.create_future()
        world._task(self._far_side(act, answered), name)
        deaf = not world.mended and world.rng.random() < 0.01
        try:
            return await asyncio.wait_for(answered, 300 if deaf else TIMEOUT.total_seconds())
        except TimeoutError:
            return Unavailable("no answer in time", unknown=True)

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        await self._reached()
        return [report for run in runs if (report := self._world.status(run.name)) is not None]

    async def cancel(self, run: FiredRun) -> Report | None:
        """Some ends take their time: nothing is reported until there is one."""
        world = self._world
        await self._reached()
        work = world.works.get(run.name)
        if work is None:
            return None
        if not work.ending and world.loop.time() < work.ends_at:
            work.ending, work.result = True, RunResult.CANCELLED
            work.ends_at = min(work.ends_at, world.loop.time() + world.rng.choice((0, 0, 0.1, 4, 40)))
            world.note(f"target: {run.name} is to end at {work.ends_at:.3f}")
            await self._answered()
        found = world.status(run.name)
        return None if found is None or found.result is RunResult.RUNNING else found

    async def _reached(self) -> None:
        world, replica = self._world, self._replica
        if not replica.alive:
            await world.never()
        await asyncio.sleep(world.rng.uniform(0.001, 0.2))
        if not world.mended and (self._is_away() or world.rng.random() < 0.05):
            raise OSError("down")

    async def _answered(self) -> None:
        world = self._world
        if not world.mended and world.rng.random() < 0.1:
            raise OSError("the answer is lost")
        await asyncio.sleep(world.rng.uniform(0.001, 0.2))

    async def drain(self, timeout: timedelta) -> None:
        return

    async def close(self) -> None:
        return

    def _is_away(self) -> bool:
        return self._world.active("target") or self._world.active(f"away {self._name}")

    async def _far_side(self, act: Callable[[bool], Any], answered: asyncio.Future[Any]) -> None:
        world, rng = self._world, self._world.rng
        if world.mended:
            await asyncio.sleep(rng.uniform(0.001, 0.2))
        elif (
            world.active("hang")
            or world.active(f"hang {self._name}")
            or rng.random() < world.history.slow_target
        ):
            await asyncio.sleep(rng.choice((2, 9, 15, 70, 150)))
            if rng.random() < 0.2:
                return  # it never arrived
        else:
            await asyncio.sleep(rng.uniform(0.001, 1.5))
        answer: Any
        if self._is_away() and rng.random() < 0.9:
            asked = None if rng.random() < 0.8 else from_micros(world.true() + rng.randrange(5, 60) * US)
            answer = Unavailable("down", asked)
        else:
            answer = act(answered.done() or not self._replica.alive)
        if not world.mended:
            if rng.random() < 0.05:
                return  # the answer is lost
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.5)))
        if not answered.done():
            answered.set_result(answer)

    def _is_refused(self, request: FireRequest) -> bool:
        world = self._world
        return world.active("refuse") and world.rng.random() < 0.4

    def _made(self, request: FireRequest, late: bool) -> Answer:
        world = self._world
        if self._is_refused(request) and request.run_name not in world.oracle.effects:
            world.oracle.refused(request.run_name, request.attempt)
            return Refused("no such job")
        new = world.oracle.effect(
            request.run_name,
            name_of(request.trigger.deployment, request.trigger.name),
            to_micros(request.scheduled_time) // US,
            request.origin,
            world.true(),
            self._replica.owner,
        )
        answer = Created() if new else AlreadyExists()
        if new and world.history.reports:
            world.begin_work(request.run_key, request.run_name)
        world.note(f"target: {request.run_name} attempt {request.attempt} {type(answer).__name__}")
        return answer


@dataclass(frozen=True)
class _Reply:
    """How a run over there was when it was made or found: `made` now, or was it there."""

    flow: Flow
    made: bool
    state: str


class AheadTarget(SimTarget):
    """One that has runs there before they are due, which workers begin; see `ahead.py`. As the target Prefect
    does, it replaces one of an older revision by three calls, each of which may fail."""

    def __init__(self, world: World, replica: Replica, spec: TargetSpec, ahead: int) -> None:
        super().__init__(world, replica, spec)
        self.ahead = timedelta(seconds=ahead)

    async def create_ahead(self, request: FireRequest, start_at: datetime) -> Mirrored | Refused:
        found = await self._replaced(request, start_at)
        if isinstance(found, Unavailable):
            raise AheadFailed(found.reason)
        if isinstance(found, Refused):
            return found
        return Mirrored(found.flow.id, request.run_key, request.scheduled_time, request.revision)

    async def list_ahead(self) -> Sequence[Mirrored]:
        def listed(late: bool) -> list[Mirrored]:
            return [
                Mirrored(flow.id, flow.key, from_micros(flow.slot * US), flow.revision)
                for flow in self._world.far.waiting(self._name)
            ]

        found: Sequence[Mirrored] = await self._ahead_call(listed, "list")
        return found

    async def withdraw(self, ids: Sequence[str]) -> None:
        await self._ahead_call(partial(self._withdrawn, ids), "withdraw")

    async def _create(self, request: FireRequest, start_at: datetime) -> Answer:
        found = await self._replaced(request, start_at)
        if isinstance(found, _Reply):
            return Created(found.flow.id) if found.made else AlreadyExists(found.flow.id)
        return found

    async def _replaced(self, request: FireRequest, start_at: datetime) -> _Reply | Refused | Unavailable:
        for last in (False, True):
            found: _Reply | Refused | Unavailable
            found = await self._call(partial(self._posted, request, start_at), f"make {request.run_name}")
            if not isinstance(found, _Reply) or found.made or found.state != "waiting" or last:
                break
            if found.flow.revision >= request.revision:
                break
            gone = await self._call(partial(self._withdrawn, [found.flow.id]), "replace")
            if isinstance(gone, Unavailable):
                return gone
        return found

    async def _ahead_call(self, act: Callable[[bool], Any], name: str) -> Any:
        found = await self._call(act, name)
        if isinstance(found, Unavailable):
            raise AheadFailed(found.reason)
        return found

    async def _call(self, act: Callable[[bool], Any], name: str) -> Any:
        if not self._replica.alive:
            await self._world.never()
        return await super()._call(act, name)

    def _withdrawn(self, ids: Sequence[str], late: bool) -> int:
        world = self._world
        gone = world.far.withdraw(ids, world.true(), late=late)
        world.note(f"{self._name}: {gone} of {len(ids)} are withdrawn")
        return gone

    def _posted(self, request: FireRequest, start_at: datetime, late: bool) -> _Reply | Refused:
        world, now = self._world, self._world.true()
        if self._is_refused(request) and not world.oracle.pending.get(request.run_name):
            world.oracle.refused(request.run_name, request.attempt)
            return Refused("no such job")
        flow, made = world.far.make(
            Flow(
                id=f"flow{len(world.far.flows)}",
                target=self._name,
                key=request.run_key,
                name=request.run_name,
                trigger=name_of(request.trigger.deployment, request.trigger.name),
                slot=to_micros(request.scheduled_time) // US,
                origin=request.origin,
                revision=request.revision,
                start_at=to_micros(start_at),
                made_at=now,
                ahead=to_micros(start_at) > now,
                late=late,
            )
        )
        reply = _Reply(flow, made, flow.state)
        world.note(f"{self._name}: {request.run_name} {'is made' if made else flow.state} as {flow.id}")
        if made:
            world._task(world.worked(flow), f"work {flow.id}")
        return reply


# the house


@dataclass(frozen=True)
class _Release:
    """One zone of a release of tz data."""

    version: str
    package: str

    def load(self, name: str) -> bytes | None:
        if name == CASABLANCA:
            return (CASES / f"tzdata-{self.package}" / "Africa-Casablanca.tzif").read_bytes()
        return (resources.files("tzdata") / "zoneinfo" / "UTC").read_bytes() if name == "UTC" else None

    def names(self) -> list[str]:
        return [CASABLANCA, "UTC"]

    def tzdata_version(self) -> str:
        return self.version


OLD_ZONES, NEW_ZONES = Zones(_Release("2026b", "2026.2")), Zones(_Release("2026c", "2026.3"))


@contextmanager
def _zones(history: History) -> Any:
    moves = any(step.what == "tz" for step in history.steps)
    zoned = any(spec.rule.zone for _, spec in history.first) or moves
    if not zoned:
        yield
        return
    revision.use_zones(OLD_ZONES)
    try:
        yield
    finally:
        revision.use_zones(DEFAULT_ZONES)


class _Silence:
    """A logger that keeps what must not happen: a loop that fails for another reason than the database."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors

    def isEnabledFor(self, level: int) -> bool:
        return False

    def info(self, event: str, **words: Any) -> None:
        return

    def warning(self, event: str, **words: Any) -> None:
        return

    def error(self, event: str, **words: Any) -> None:
        if event != "loop failed" or words.get("exc_info"):
            self._errors.append(f"error in the log: {event} {words.get('loop', '')}: {words.get('outcome')}")


@contextmanager
def _no_collector() -> Any:
    """A tenth of the time goes into looking for garbage, and a history leaves a few megabytes of it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _quiet_logs() -> Any:
    errors: list[str] = []
    parts: list[ModuleType] = [planner, executor, mirror, pool, reporter, service, syncer]
    kept = [part.__dict__["LOG"] for part in parts]
    for part in parts:
        part.__dict__["LOG"] = _Silence(errors)
    try:
        yield errors
    finally:
        for part, log in zip(parts, kept, strict=True):
            part.__dict__["LOG"] = log


@cache
def _opened() -> tuple[SqliteStore, Journal, sqlite3.Connection, sqlite3.Connection]:
    """One store for all histories of this process, its journal and connection, an empty database to copy."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="horarium-simulation-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = engine(str(folder / "empty.db"))
    with made.connect() as connection, connection.begin():
        migrations.upgrade(connection)
    made.dispose()
    shutil.copy(folder / "empty.db", folder / "horarium.db")
    clock: Clock = SystemClock()
    store = SqliteStore(folder / "horarium.db", clock, inline=True)
    asyncio.run(store.open())
    store._connection.execute("pragma synchronous = off")
    empty = sqlite3.connect(folder / "empty.db")
    atexit.register(empty.close)
    atexit.register(lambda: asyncio.run(store.close()))
    return store, Journal(store._connection), store._connection, empty


@cache
def _server() -> Database:
    """One for all histories of this process."""
    return Database()


def _in_memory(world: World) -> Database:
    """The PostgreSQL in memory, empty; it tells each call what it wrote."""
    made = _server()
    made.clear()
    made.before = world.statement
    made.server.clock = lambda: from_micros(world.true())

    def committed(transaction: Transaction) -> None:
        call = CALL.get()
        assert call is not None, "somebody wrote who made no call"
        if call.written is not None:
            world.oracle.fail("torn: one call took effect in two transactions")
        call.written = [*(call.written or ()), *entries_of(transaction.log)]
        call.passed = frozenset(key[0] for table, key in transaction.passed if table.name == "run")

    made.server.committed = committed
    return made


def _database() -> tuple[SqliteStore, Journal]:
    """The database as a migration leaves it."""
    store, journal, connection, empty = _opened()
    empty.backup(connection)
    journal.begin()
    return store, journal
