"""The mirror: keeps what targets have of runs that are not due yet as our plan has them.

A target with `ahead` has runs over there before they are due, for its own UI and workers. Each pass compares
the upcoming automatic runs of such a target with what is there and has not begun: creates what is missing,
makes anew what was made of an older revision, and withdraws what is no longer planned: a slot that was edited
away, paused, held, frozen, deleted, cancelled or skipped. docs/design/ahead.md tells what that can't do.

It decides nothing and writes nothing here. At its time a run is claimed as always, and its target answers
that it exists; so several replicas may do this at once, and one that has died or lags harms no slot. What is
there is kept in memory and listed anew from time to time, and after any failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any

from sqlalchemy import Row, and_, select

from horarium.clock import Clock
from horarium.core.keys import TriggerKey
from horarium.core.run import Origin, RunState
from horarium.core.spec import Overlap, TriggerSpec
from horarium.engine.health import TargetHealth
from horarium.engine.pool import Running, TargetPool
from horarium.engine.requests import fire_request
from horarium.engine.wake import Wake
from horarium.errors import HorariumError
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.targets.base import AheadFailed, AheadTarget, Mirrored, Refused
from horarium.telemetry import Metrics, get_logger

LOG = get_logger(__name__)

POLL = timedelta(seconds=5)
"""Between passes, in case a wake hint was lost."""

BREATH = 0.5
"""Seconds between passes at least: while a large source is planned there are hints all the time."""

LISTED_ANEW = 600.0
"""Seconds after which what is over there is listed again: somebody else may have changed it."""

MOST = 20_000
"""Runs of one target that are there ahead, the nearest ones: they are in memory, and compared each pass."""

MOST_AT_ONCE = 500
"""Runs that a pass creates where the target has no rate; with one, as many as its rate gives in a `POLL`."""

GIVEN_UP = 3_600.0
"""Seconds for which what a target has ahead is tried to be withdrawn once the target itself was."""

CALLS = 4
"""Calls in flight to one target, so that what is due there finds a place."""

FAILURES = 5
"""Calls of one pass that may fail: a busy system drops some. More of them mean that it is not there."""

LOOK_BACK = timedelta(hours=1)
"""A run that is over there and has no record here was withdrawn in its last moment, if its slot is no older
than this. Records of settled runs live at least as long, so an older one may have been fired."""

_CHUNK = 500


class Fate(Enum):
    """What becomes of a run over there that is not among those upcoming."""

    KEEP = auto()
    FORGET = auto()
    WITHDRAW = auto()


@dataclass(slots=True)
class _There:
    """What is known of a target: its runs there by key, when to list them anew, which may be there besides (a
    creation failed, or its answer was lost), what it refused, and since when it is leaving."""

    running: Running
    runs: dict[str, Mirrored] = field(default_factory=dict)
    again: float | None = None
    unsure: set[str] = field(default_factory=set)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    failed: str | None = None
    leaves_since: float | None = None

    @property
    def complaint(self) -> str | None:
        if self.failed is not None:
            return self.failed
        if self.refused:
            reason = next(iter(self.refused.values()))
            return f"{len(self.refused)} upcoming runs are refused over there, one because: {reason}"
        return None


class Mirror:
    """See the module."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pool: TargetPool,
        wake: Wake,
        metrics: Metrics | None = None,
        poll: timedelta = POLL,
    ) -> None:
        self._poll = poll
        self._store = store
        self._clock = clock
        self._pool = pool
        self._wake = wake
        self._metrics = metrics or Metrics()
        self._there: dict[int, _There] = {}
        self._passed = 0.0

    @property
    def rest(self) -> timedelta:
        """The longest sleep between passes."""
        return self._poll

    async def run_once(self) -> int:
        """One pass over all targets. Returns how many have more to do at once."""
        more = 0
        running = {item.id: item for item in self._pool if _ahead(item) is not None}
        for key in [key for key in self._there if key not in running]:
            if await self._left(self._there[key]):
                del self._there[key]
        for key, item in running.items():
            there = self._there.get(key)
            if there is None or there.running.target is not item.target:
                there = self._there[key] = _There(item)
            there.running, there.leaves_since = item, None
            try:
                more += await self._reconcile(there)
            except AheadFailed as error:
                if there.failed != str(error):
                    LOG.warning("not mirrored", target=item.spec.name, outcome=str(error))
                there.failed, there.again = str(error), None
                self._metrics.runs_ahead.labels(item.spec.name, "failed").inc()
        self._passed = self._clock.monotonic()
        return more

    async def wait(self) -> None:
        """Sleep until something may have changed, and a breath at least."""
        await self._clock.wait(self._wake.mirror, self._poll / timedelta(seconds=1))
        left = self._passed + BREATH - self._clock.monotonic()
        if left > 0:
            await self._clock.wait(asyncio.Event(), left)
        self._wake.mirror.clear()

    def told(self, targets: Iterable[TargetHealth]) -> list[TargetHealth]:
        """`targets` with what this loop has to say of each."""
        said = {there.running.spec.name: there.complaint for there in self._there.values()}
        return [replace(item, ahead=said.get(item.name)) for item in targets]

    async def _reconcile(self, there: _There) -> bool:
        """One target. Returns whether there is more to create at once. Raises `AheadFailed`."""
        target = _ahead(there.running)
        assert target is not None
        if there.again is None or self._clock.monotonic() >= there.again:
            await self._list(there, target)
        now = await self._store.clock()
        frozen = there.running.frozen
        upcoming = {} if frozen else await self._upcoming(there.running.id, now, now + target.ahead)
        if there.unsure - upcoming.keys():  # it may be there, and is not wanted any more
            await self._list(there, target)
        await self._withdraw(there, target, [key for key in there.runs if key not in upcoming], now, frozen)
        missing = [
            (key, row)
            for key, row in upcoming.items()
            if (key not in there.runs or there.runs[key].revision != row.revision)
            and (key, row.revision) not in there.refused
        ]
        budget = self._budget(there.running)
        there.failed = await self._create(there, target, missing[:budget])
        return len(missing) > budget and there.running.rate is None

    async def _list(self, there: _There, target: AheadTarget) -> None:
        there.runs = {item.run_key: item for item in await target.list_ahead()}
        there.refused, there.unsure = {}, set()
        there.again = self._clock.monotonic() + LISTED_ANEW

    async def _left(self, there: _There) -> bool:
        """A target that was withdrawn, or has nothing ahead any more, takes with it what has not begun.

        Returns whether that is done, or given up.
        """
        now, name = self._clock.monotonic(), there.running.spec.name
        there.leaves_since = now if there.leaves_since is None else there.leaves_since
        try:
            async with self._pool.once(there.running.spec) as target:
                if there.runs and isinstance(target, AheadTarget):
                    await self._withdraw(there, target, [*there.runs], await self._store.clock(), True)
        except HorariumError as error:  # it may not even start, for want of a secret
            there.failed = str(error)
            if now - there.leaves_since < GIVEN_UP:
                return False
            LOG.error("left ahead", target=name, runs=len(there.runs), outcome=str(error))
        return True

    def _budget(self, running: Running) -> int:
        if running.rate is None:
            return MOST_AT_ONCE
        return max(1, int(running.rate.per_second * (self._poll / timedelta(seconds=1))))

    async def _upcoming(self, target_id: int, now: datetime, until: datetime) -> dict[str, Row[Any]]:
        """The automatic runs that come due in `(now, until]`, the nearest first, by key.

        Those that a policy may let expire, or that wait for another run to end, are left out: one that is
        over there would run there anyway.
        """
        rows = await self._store.fetch(
            select(
                t.run.c.trigger_id,
                t.run.c.name,
                t.run.c.revision,
                t.run.c.scheduled_time,
                t.run.c.due_at,
                t.run.c.utc_offset,
                t.trigger.c.project,
                t.trigger.c.domain,
                t.trigger.c.deployment,
                t.trigger.c.name.label("trigger_name"),
                t.trigger_revision.c.spec,
            )
            .join(t.trigger, t.trigger.c.id == t.run.c.trigger_id)
            .join(
                t.trigger_revision,
                and_(
                    t.trigger_revision.c.trigger_id == t.run.c.trigger_id,
                    t.trigger_revision.c.number == t.run.c.revision,
                ),
            )
            .where(
                t.run.c.target_id == target_id,
                t.run.c.state == RunState.SCHEDULED.value,
                t.run.c.origin == Origin.SCHEDULE.value,
                t.run.c.attempt == 0,
                t.run.c.expires_at.is_(None),
                t.trigger_revision.c.shadow.is_(False),
                t.run.c.due_at > now,
                t.run.c.due_at <= until,
            )
            .order_by(t.run.c.due_at, t.run.c.id)
            .limit(MOST)
        )
        count: Counter[int] = Counter()
        found: dict[str, Row[Any]] = {}
        for row in rows:
            if not _allows(row.spec):
                continue
            count[row.trigger_id] += 1
            most = row.spec.get("action", {}).get("ahead_runs")
            if most is None or count[row.trigger_id] <= most:
                found[f"{row.project}/{row.domain}/{row.name}"] = row
        return found

    async def _withdraw(
        self, there: _There, target: AheadTarget, keys: Sequence[str], now: datetime, frozen: bool
    ) -> None:
        fates = await self._fates(there, keys, now, frozen)
        gone = [key for key, fate in fates.items() if fate is Fate.WITHDRAW]
        if gone:
            await target.withdraw([there.runs[key].id for key in gone])
            self._metrics.runs_ahead.labels(there.running.spec.name, "withdrawn").inc(len(gone))
            LOG.info("withdrawn ahead", target=there.running.spec.name, runs=len(gone))
        for key, fate in fates.items():
            if fate is not Fate.KEEP:
                del there.runs[key]

    async def _fates(
        self, there: _There, keys: Sequence[str], now: datetime, frozen: bool
    ) -> dict[str, Fate]:
        rows: dict[str, Row[Any]] = {}
        for first in range(0, len(keys), _CHUNK):
            names = {key.rpartition("/")[2] for key in keys[first : first + _CHUNK]}
            columns = (
                t.run.c.project, t.run.c.domain, t.run.c.name, t.run.c.state, t.run.c.attempt, t.run.c.due_at,
                t.run.c.expires_at, t.run.c.target_id, t.trigger_revision.c.shadow, t.trigger_revision.c.spec,
            )  # fmt: skip
            found = select(*columns).outerjoin(
                t.trigger_revision,
                and_(
                    t.trigger_revision.c.trigger_id == t.run.c.trigger_id,
                    t.trigger_revision.c.number == t.run.c.revision,
                ),
            )
            for row in await self._store.fetch(found.where(t.run.c.name.in_(names))):
                rows[f"{row.project}/{row.domain}/{row.name}"] = row
        return {
            key: fate(
                here := rows.get(key),
                there.runs[key].scheduled_time,
                now,
                moved=here is not None and here.target_id != there.running.id,
                # What is in shadow is not ours to have there, and what waits for another run begins later.
                withheld=frozen or (here is not None and (bool(here.shadow) or not _allows(here.spec))),
            )
            for key in keys
        }

    async def _create(
        self, there: _There, target: AheadTarget, missing: Sequence[tuple[str, Row[Any]]]
    ) -> str | None:
        """Create them, the nearest first; why the next pass has to try some again, if it has.

        Raises `AheadFailed` once `FAILURES` calls have failed.
        """
        name = there.running.spec.name
        rest = iter(missing)
        failed: list[str] = []

        async def one_after_the_other() -> None:
            for key, row in rest:
                try:
                    answer = await target.create_ahead(self._request(row, there.running), row.due_at)
                except AheadFailed as error:
                    failed.append(str(error))
                    there.unsure.add(key)
                    if len(failed) >= FAILURES:
                        raise
                    continue
                there.unsure.discard(key)
                if isinstance(answer, Refused):
                    there.refused[key, row.revision] = answer.reason
                    LOG.warning("refused ahead", target=name, run=key, outcome=answer.reason)
                else:
                    there.runs[key] = answer
                what = "refused" if isinstance(answer, Refused) else "created"
                self._metrics.runs_ahead.labels(name, what).inc()

        tasks = [asyncio.ensure_future(one_after_the_other()) for _ in range(min(CALLS, len(missing)))]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return failed[0] if failed else None

    def _request(self, row: Row[Any], running: Running) -> Any:
        key = TriggerKey(row.project, row.domain, row.deployment, row.trigger_name)
        return fire_request(
            key,
            TriggerSpec.from_json(row.spec),
            name=row.name,
            origin=Origin.SCHEDULE,
            scheduled_time=row.scheduled_time,
            attempt=1,
            revision=row.revision,
            utc_offset=timedelta(seconds=row.utc_offset),
            parameters=None,
            deadline=self._clock.now() + running.target.timeout,
        )


def fate(row: Any, slot: datetime, now: datetime, *, withheld: bool, moved: bool = False) -> Fate:
    """What becomes of a run over there for `slot`, whose row here is `row` (None: there is none).

    `withheld`: it must not begin over there by itself (a freeze, a shadow, an overlap policy); `moved`: its
    slot is another target's by now.
    """
    if row is None:
        return Fate.WITHDRAW if slot > now - LOOK_BACK else Fate.FORGET
    if moved:
        return Fate.WITHDRAW
    if row.state in (RunState.FIRED.value, RunState.FAILED.value):
        return Fate.FORGET  # it was handed over, and is the target's now
    if row.state != RunState.SCHEDULED.value:
        return Fate.WITHDRAW
    if row.attempt > 0:
        return Fate.KEEP  # a call is under way, or is to be repeated
    return Fate.WITHDRAW if withheld or row.expires_at is not None else Fate.KEEP


def _allows(spec: Mapping[str, Any] | None) -> bool:
    """Whether its runs may begin whatever else of its trigger is under way."""
    return spec is None or spec.get("overlap") in (None, Overlap.ALLOW.value)


def _ahead(running: Running) -> AheadTarget | None:
    """The running target, if it is one that has runs ahead."""
    target: Mapping[str, Any] | object = running.target
    return target if isinstance(target, AheadTarget) and target.ahead > timedelta() else None
