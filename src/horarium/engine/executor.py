"""The executor: claims due runs under each target's allowance, fires them, settles their answers.

One pass: look where nobody has looked for a while, claim what is due and fits, start a task for each call.
Answers are settled in small batches as they come: while one batch is being written the next one gathers.
The executor is the sole owner of a run's lease, state and outcome.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from horarium.clock import Clock, Ids
from horarium.core.outcome import UNKNOWN, Outcome, RetryPolicy, retry_at
from horarium.core.run import RunState
from horarium.core.spec import Overlap
from horarium.engine.database_time import DatabaseTime
from horarium.engine.health import TargetHealth
from horarium.engine.pool import Running, TargetPool
from horarium.engine.requests import fire_request
from horarium.engine.wake import Wake
from horarium.errors import StoreUnavailable
from horarium.store.base import Claimed, Claims, Demand, Store
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    CancelsRuns,
    Created,
    FireRequest,
    Refused,
    Unavailable,
)
from horarium.telemetry import Metrics, decision, get_logger

LOG = get_logger(__name__)

BACKLOG_EVERY = 5
"""One claim in five is backlog first, so that neither what is on time nor what is late starves."""

MANY = 32
LINGER = 0.02
MOST_REPORTS = 10_000
REPORTS = 50
"""With more calls under way than `MANY`, answers gather for `LINGER` seconds before they are settled, and log
lines wait until fewer are left or so many have gathered: both cost much beside a call, and ten thousand runs
that are due at once wait for each other. Then `REPORTS` of them are written at a time, as what becomes due
meanwhile must not wait for all."""

START_MARGIN = timedelta(seconds=1)
"""From a claim to the start of its last call, which still has its whole timeout: ample for a batch."""


SETTLE_AGAIN = 0.25
"""Seconds between tries to write the last answers while the database is away."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """`batch` runs a claim at most; `lease` is how long a claim holds a run (longer
    where a target's timeout needs it); `late_after`, `grace` and `guard` (0 is off) are of
    design §5; `poll` the longest sleep; `retry` what `Unavailable` leads to."""

    batch: int = 500
    lease: timedelta = timedelta(seconds=60)
    late_after: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=60)
    guard: int = 1_000
    poll: timedelta = timedelta(seconds=1)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(slots=True)
class _Call:
    """A run that is ours, from its claim to its settled answer."""

    claimed: Claimed
    running: Running
    started_at: datetime | None = None
    task: asyncio.Task[None] | None = None


class Executor:
    """See the module. `owner` is this process's name on leases."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        pool: TargetPool,
        wake: Wake,
        owner: str,
        settings: ExecutorSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._time = DatabaseTime(store, clock)
        self._ids = ids
        self._pool = pool
        self._wake = wake
        self._owner = owner
        self._settings = settings or ExecutorSettings()
        self._metrics = metrics or Metrics()
        self._calls: dict[tuple[int, int], _Call] = {}
        self._queues: dict[int, deque[_Call]] = {}
        """Target id → calls that wait for a place there, in the order of their claims."""
        self._reports: deque[tuple[_Call, Outcome, bool]] = deque()
        self._answered: list[tuple[_Call, Outcome]] = []
        self._has_answers = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._refreshed = False
        self._claims = 0
        self._children: dict[tuple[int, tuple[str, ...]], Any] = {}
        self._passed_at: datetime | None = None
        """Up to when the last pass looked."""
        self._quiet_pass = False
        self._next_due: datetime | None = None
        """Whether that pass saw at once that nothing was due, and what it saw to be due next."""
        self.refill_at: datetime | None = None
        """When the earliest allowance that stood in the way of the last claim has a token again."""
        self.waiting: dict[str, str] = {}
        """Why a target's due runs wait: frozen, guard (some), rate, full, unavailable."""

    @property
    def rest(self) -> timedelta:
        """The longest sleep between passes."""
        return self._settings.poll

    async def run_once(self) -> int:
        """One pass. Returns how many runs it claimed; 0: nothing is due that could be fired now."""
        now = self._passed_at = await self._time.read()
        if not self._refreshed:
            await self._pool.refresh()
        self._refreshed = False
        self._give_up_overdue(now)
        for target_id in list(self._queues):
            self._begin(target_id)
        demands = self._demands()
        self._quiet_pass = False
        if not demands:
            return 0
        claims = await self._claim(demands, now)
        self._claims += 1
        self.refill_at = claims.refill_at
        self._quiet_pass, self._next_due = claims.quiet, claims.next_due
        for why, waiting in (("guard", claims.guarded), ("rate", claims.limited)):
            for target_id in waiting:
                running = self._pool.get(target_id)
                if running is not None:
                    self.waiting.setdefault(running.spec.name, why)
        for item in claims.runs:
            self._start(item)
        for target_id in claims.unlooked:
            await self._look(target_id, now)
        return len(claims.runs) + len(claims.unlooked)

    async def wait(self) -> None:
        """Sleep until something can be fired: the next due run, a token, a hint, or the poll interval.

        A timer can wake a millisecond early; the next pass reads the clock again, finds nothing and comes
        back here for the rest.
        """
        # Now rather than when the time has come: what is due then must not wait for it. A hint can mean that
        # a target was changed, so the next pass looks again after one.
        await self._pool.refresh()
        now = self._time.now()
        wakes = [now + self._settings.poll]
        due = self._next_due
        if not self._quiet_pass:
            # After the last pass, not after now: what came due while that pass ran was not claimed by it, and
            # would else be seen a whole poll interval late.
            due = await self._store.next_due(self._passed_at or now)
        wakes += [at for at in (due, self.refill_at) if at is not None]
        seconds = max(0.0, (min(wakes) - self._time.now()) / timedelta(seconds=1))
        self._refreshed = not await self._clock.wait(self._wake.executor, seconds)
        self._wake.executor.clear()

    async def settle_once(self) -> None:
        """Wait for answers, then settle them. Raises `StoreUnavailable` and keeps them."""
        await self._has_answers.wait()
        if len(self._calls) - len(self._answered) > MANY:
            await self._clock.wait(self._quiet, LINGER)
        await self.settle_now()

    async def settle_now(self) -> int:
        """Write the answers that there are; how many. Raises `StoreUnavailable` and keeps them."""
        batch = self._answered
        self._answered = []
        self._has_answers.clear()
        if not batch:
            return 0
        try:
            done = await self._store.settle([outcome for _, outcome in batch], self._time.now())
        except BaseException:
            self._answered = batch + self._answered
            self._has_answers.set()
            raise
        for call, _ in batch:
            self._calls.pop((call.claimed.run.id, call.claimed.run.attempt), None)
        self._wake.executor.set()
        self._reports.extend((call, outcome, outcome.run_id in done) for call, outcome in batch)
        if not self._calls:
            self._quiet.set()
        while self._reports and (len(self._calls) <= MANY or len(self._reports) > MOST_REPORTS):
            for _ in range(min(REPORTS, len(self._reports))):
                self._report(*self._reports.popleft())
            if self._reports:
                await asyncio.sleep(0)
        return len(batch)

    async def drain(self, timeout: timedelta) -> bool:
        """Claim no more (the caller's loop has ended); let calls end, at most `timeout`, and settle them.

        A call that does not end is cancelled: its outcome is unknown and the run is tried again by whoever
        comes next, under the same name. False: some answer could not be written, as the database is away;
        its run is tried again, too.
        """
        until = self._clock.monotonic() + timeout / timedelta(seconds=1)
        settler = asyncio.create_task(self._settle_all())
        try:
            await self._clock.wait(self._quiet, max(0.0, until - self._clock.monotonic()))
            for call in list(self._calls.values()):
                self._give_up(call)
            await self._clock.wait(self._quiet, 5.0)
        finally:
            settler.cancel()
            await asyncio.gather(settler, return_exceptions=True)
            self._report_all()
        return not self._calls

    @property
    def in_flight(self) -> int:
        """How many claimed runs have not been settled."""
        return len(self._calls)

    def targets(self) -> list[TargetHealth]:
        """Each target's places and calls, and why its due runs wait."""
        calls = Counter(call.running.spec.name for call in self._calls.values())
        found = [
            TargetHealth(
                running.spec.name,
                max(0, running.target.free()),
                calls[running.spec.name],
                self.waiting.get(running.spec.name),
                error=running.unasked,
            )
            for running in self._pool
        ]
        broken = self._pool.broken().items()
        return found + [
            TargetHealth(name, 0, 0, "unavailable", error=f"not started: {why}") for name, why in broken
        ]

    async def _settle_all(self) -> None:
        while True:
            try:
                await self.settle_once()
            except StoreUnavailable as error:
                LOG.error("not settled", outcome=str(error), answers=len(self._answered))
                await self._clock.wait(asyncio.Event(), SETTLE_AGAIN)

    async def _claim(self, demands: Sequence[Demand], now: datetime) -> Claims:
        """One claim for all targets; one more for those whose call may take longer than the lease holds.

        No call begins with less lease left than its timeout, so a lease that is too short for a target would
        keep its runs from ever being fired.
        """
        found = Claims(quiet=True)
        for lease, group in self._by_lease(demands):
            claims = await self._store.claim(
                group,
                now,
                now + lease,
                self._owner,
                backlog_first=self._claims % BACKLOG_EVERY == BACKLOG_EVERY - 1,
                late_after=self._settings.late_after,
                grace=self._settings.grace,
                guard=self._settings.guard,
            )
            refills = [at for at in (found.refill_at, claims.refill_at) if at is not None]
            found = Claims(
                found.runs + claims.runs,
                found.unlooked + claims.unlooked,
                min(refills, default=None),
                found.more or claims.more,
                found.limited + claims.limited,
                found.guarded + claims.guarded,
                found.quiet and claims.quiet,
                claims.next_due,
            )
        return found

    def _by_lease(self, demands: Sequence[Demand]) -> list[tuple[timedelta, list[Demand]]]:
        groups: dict[timedelta, list[Demand]] = {}
        for demand in demands:
            running = self._pool.get(demand.target_id)
            assert running is not None, "demands are those of running targets"
            lease = max(self._settings.lease, running.target.timeout + START_MARGIN)
            groups.setdefault(lease, []).append(demand)
        return list(groups.items())

    def _demands(self) -> list[Demand]:
        demands: list[Demand] = []
        self.waiting = dict.fromkeys(self._pool.broken(), "unavailable")
        for running in self._pool:
            free = min(self._settings.batch, running.free())
            if running.frozen:
                free = 0
            if free <= 0:
                self.waiting[running.spec.name] = "frozen" if running.frozen else "full"
            # A full target is asked for nothing, but looked at all the same: its runs wait for us.
            demands.append(Demand(running.id, max(0, free), running.rate))
        return demands

    async def _look(self, target_id: int, now: datetime) -> None:
        looked = await self._store.look(target_id, now, self._settings.grace, guard=self._settings.guard)
        if looked.gap:
            running = self._pool.get(target_id)
            LOG.info(
                "looked after a gap",
                target=running.spec.name if running else target_id,
                gap=looked.gap,
                skipped=looked.skipped,
            )
        if looked.skipped:
            self._metrics.slots_skipped.labels("expired").inc(looked.skipped)

    def _start(self, claimed: Claimed) -> None:
        running = self._pool.get(claimed.run.target_id)
        assert running is not None, "claims are only made for running targets"
        call = _Call(claimed, running)
        self._calls[claimed.run.id, claimed.run.attempt] = call
        self._quiet.clear()
        queue = self._queues.setdefault(running.id, deque())
        if claimed.shadow:
            self._shadow(call)
            return
        running.unstarted += 1
        queue.append(call)
        self._begin(running.id)

    def _shadow(self, call: _Call) -> None:
        """Another scheduler fires this slot: here it ends decided, and nobody is called."""
        run, now = call.claimed.run, self._time.now()
        call.started_at = now
        outcome = Outcome(run.id, run.attempt, RunState.SHADOWED, "shadowed", now, now)
        self._settles(call, replace(outcome, exclusive=call.claimed.spec.overlap is not Overlap.ALLOW))

    def _begin(self, target_id: int) -> None:
        """Begin the calls that have a place."""
        queue = self._queues[target_id]
        while queue:
            call = queue[0]
            current = self._pool.get(target_id)
            if current is None:
                self._give_up(call)
                continue
            if call.running is not current:  # the target was changed since the claim
                call.running.unstarted -= 1
                current.unstarted += 1
                call.running = current
            if current.target.free() <= current.beginning:
                return
            queue.popleft()
            call.running.beginning += 1
            call.task = asyncio.create_task(self._fire(call))

    async def _fire(self, call: _Call) -> None:
        answer: Answer
        running = call.running
        started = False
        try:
            now = call.started_at = self._time.now()
            target = running.target
            started = True
            running.begins()
            in_the_way = await self._cancel(call.claimed)
            left = call.claimed.lease_until - self._time.now()
            if in_the_way is not None:
                answer = Unavailable(in_the_way)
            elif left < target.timeout:
                answer = Unavailable("too little of the lease was left to call the target")
            else:
                answer = await target.create_run(_request(call.claimed, self._clock.now() + target.timeout))
                running.took((self._time.now() - now) / timedelta(seconds=1))
        except asyncio.CancelledError:
            answer = Unavailable("the call was given up", unknown=True)
        except Exception as error:  # a target that raises has not said that nothing happened
            answer = Unavailable(f"{type(error).__name__}: {error}", unknown=True)
        finally:
            if not started:
                running.begins()
        self._answer(call, answer)
        self._begin(running.id)

    async def _cancel(self, claimed: Claimed) -> str | None:
        """Cancel what a run replaces, while its lease lasts; why that is not done yet, or None."""
        for run in claimed.cancels:
            found = self._pool.get(run.target_id)
            target: object = None if found is None else found.target
            if not isinstance(target, CancelsRuns):
                return f"the target of run {run.name}, which this one replaces, can't cancel it"
            try:
                left = claimed.lease_until - self._time.now()
                async with asyncio.timeout(max(0.0, left / timedelta(seconds=1))) as bound:
                    report = await target.cancel(run)
            except TimeoutError as error:
                said = "its target did not answer in time" if bound.expired() else str(error)
                return f"run {run.name}, which this one replaces, was not cancelled: {said}"
            except Exception as error:  # nothing has been asked for this run yet, so nothing is unknown
                return f"run {run.name}, which this one replaces, was not cancelled: {error}"
            if report is None:
                return f"run {run.name}, which this one replaces, has not ended yet"
            await self._store.report([report], self._time.now())
        return None

    def _answer(self, call: _Call, answer: Answer) -> None:
        try:
            outcome = self._outcome(call, answer)
            reports = call.running.target.traits.completes(call.claimed.spec.action)
        except Exception as error:  # a target of somebody's own: its call must end as one that people see
            said = f"the target's answer can't be used: {type(error).__name__}: {error}"
            outcome, reports = self._outcome(call, Unavailable(said, unknown=True)), False
        exclusive = call.claimed.spec.overlap is not Overlap.ALLOW
        self._settles(call, replace(outcome, reports=reports, exclusive=exclusive))

    def _settles(self, call: _Call, outcome: Outcome) -> None:
        self._answered.append((call, outcome))
        self._has_answers.set()

    def _outcome(self, call: _Call, answer: Answer) -> Outcome:
        """From the answer to what becomes of the run; the policy is `core/outcome.py`."""
        run, spec = call.claimed.run, call.claimed.spec
        now = self._time.now()
        started = call.started_at or now
        unknown = UNKNOWN if run.outcome_unknown else ""
        match answer:
            case Created(target_run_id=there):
                return Outcome(
                    run.id, run.attempt, RunState.FIRED, "created", started, now, target_run_id=there
                )
            case AlreadyExists(target_run_id=there):
                return Outcome(
                    run.id, run.attempt, RunState.FIRED, "exists", started, now, target_run_id=there
                )
            case Refused(reason=reason):
                return Outcome(
                    run.id, run.attempt, RunState.FAILED, "refused", started, now, reason=reason + unknown
                )
            case Unavailable(reason=reason, retry_at=asked, unknown=lost):
                policy = self._settings.retry
                if spec.retry_for is not None:
                    policy = RetryPolicy(policy.first, policy.cap, spec.retry_for)
                due = retry_at(
                    attempt=run.attempt,
                    first_claimed_at=run.first_claimed_at or started,
                    answered_at=now,
                    asked_for=asked,
                    policy=policy,
                    fraction=self._ids.fraction(),
                )
                if due is not None:
                    return Outcome(
                        run.id,
                        run.attempt,
                        RunState.SCHEDULED,
                        "unavailable",
                        started,
                        now,
                        due_at=due,
                        reason=reason,
                        unknown=lost,
                    )
                gave_up = f"given up after {run.attempt} attempts: {reason}"
                return Outcome(
                    run.id,
                    run.attempt,
                    RunState.FAILED,
                    "unavailable",
                    started,
                    now,
                    reason=gave_up + (UNKNOWN if lost or run.outcome_unknown else ""),
                    unknown=lost,
                )
            case _:
                raise TypeError(f"{answer!r} is no answer")

    def _give_up_overdue(self, now: datetime) -> None:
        """Calls that outlive their lease are no longer ours; a target that hangs must not hold its place."""
        for call in self._calls.values():
            if call.claimed.lease_until <= now:
                self._give_up(call)

    def _give_up(self, call: _Call) -> None:
        if call.task is not None:
            call.task.cancel()
            if call.started_at is None:
                # A task that is cancelled before its first step never runs: nobody else would give its place
                # back, nor answer for it.
                call.started_at = self._time.now()
                call.running.begins()
                self._answer(call, Unavailable("its lease was over before it was begun"))
        elif call in (queue := self._queues[call.running.id]):
            queue.remove(call)
            call.running.unstarted -= 1
            self._answer(call, Unavailable("it was not begun: the target had no place for it in time"))

    def _report_all(self) -> None:
        while self._reports:
            self._report(*self._reports.popleft())

    def _labelled(self, metric: Any, *labels: str) -> Any:
        """A metric's child of these labels: looking one up costs more than counting with it."""
        child = self._children.get((id(metric), labels))
        if child is None:
            child = self._children[id(metric), labels] = metric.labels(*labels)
        return child

    def _report(self, call: _Call, outcome: Outcome, took_effect: bool) -> None:
        run, name = call.claimed.run, call.running.spec.name
        # A backfill or a manual run has no time that it could miss.
        late = outcome.answered_at - run.first_due_at if run.automatic else None
        if outcome.state is RunState.SHADOWED:
            self._labelled(self._metrics.runs_shadowed, name).inc()
        else:
            self._labelled(self._metrics.runs_fired, name, outcome.answer).inc()
            self._labelled(self._metrics.fire_seconds, name).observe(
                (outcome.answered_at - outcome.started_at) / timedelta(seconds=1)
            )
        if outcome.state in (RunState.FIRED, RunState.SHADOWED) and late is not None:
            fired = outcome.state is RunState.FIRED
            lateness = self._metrics.fire_lateness_seconds if fired else self._metrics.shadow_lateness_seconds
            self._labelled(lateness, name).observe(max(0.0, late / timedelta(seconds=1)))
        words = {
            RunState.FIRED: "fired",
            RunState.FAILED: "failed",
            RunState.SCHEDULED: "retry",
            RunState.SHADOWED: "shadowed",
        }
        decision(
            LOG,
            words[outcome.state],
            trigger=call.claimed.key,
            slot=run.scheduled_time,
            run=run.name,
            revision=run.revision,
            lateness=late,
            outcome=outcome.answer,
            level=20 if outcome.state in (RunState.FIRED, RunState.SHADOWED) else 30,
            attempt=run.attempt,
            reason=outcome.reason,
            retry_at=outcome.due_at,
            took_effect=None if took_effect else "no: another answer came first",
        )


def _request(claimed: Claimed, deadline: datetime) -> FireRequest:
    run = claimed.run
    return fire_request(
        claimed.key,
        claimed.spec,
        name=run.name,
        origin=run.origin,
        scheduled_time=run.scheduled_time,
        attempt=run.attempt,
        revision=run.revision,
        utc_offset=run.utc_offset,
        parameters=run.parameters,
        deadline=deadline,
    )
