"""Around a claim: targets, the look at what expired, skips, and runs by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import groupby
from typing import Any

from sqlalchemy import Executable, and_, delete, insert, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from horarium.core.freeze import GuardState
from horarium.core.instant import to_seconds
from horarium.core.keys import manual_run_name
from horarium.core.outcome import Outcome
from horarium.core.revision import Skip, Status, expired_reason, schedule_of
from horarium.core.run import Run, RunState
from horarium.core.schedule import Schedule
from horarium.core.spec import TargetSpec, TriggerSpec
from horarium.errors import Conflict, NotFound
from horarium.store import tables as t
from horarium.store.base import Audit, LookResult, ManualRequest, TargetRow
from horarium.store.rows import run_of, trigger_of
from horarium.store.sql.changes import skip_values, write_audit
from horarium.store.sql.script import Many, Script, chunked
from horarium.store.sql.terms import has_open_backfill, is_key


@cache
def _targets() -> Executable:
    """Built once: every pass of every executor asks for it."""
    pending = (
        select(t.run.c.id)
        .where(t.run.c.target_id == t.target.c.id, t.run.c.state == "scheduled")
        .limit(1)
        .exists()
    )
    return (
        select(t.target.c.id, t.target.c.name, t.target.c.spec, t.target_allowance)
        .join(t.target_allowance, t.target_allowance.c.target_id == t.target.c.id)
        .where(or_(~t.target.c.withdrawn, pending))
        .order_by(t.target.c.id)
    )


def targets() -> Script[list[TargetRow]]:
    """See `Store.targets`."""
    rows = yield _targets()
    return [
        TargetRow(
            row.id,
            TargetSpec.from_json(row.name, row.spec),
            row.frozen,
            row.looked_at,
            row.guard_state == GuardState.HELD,
        )
        for row in rows
    ]


def look(target_id: int, now: datetime, grace: timedelta, guard: int = 0) -> Script[LookResult]:
    """See `Store.look`.

    Triggers are locked before the allowance and the runs, as everywhere: a backfill that is being written
    would else take over a run that is going, and call its slot filled.
    """
    allowance = t.target_allowance
    rows = yield select(allowance.c.looked_at).where(allowance.c.target_id == target_id)
    if not rows:
        return LookResult(timedelta(), 0)
    if now - rows[0].looked_at > grace:
        rows = yield (
            select(t.run.c.trigger_id).where(_expired(target_id, rows[0].looked_at, now)).distinct()
        )
        for chunk in chunked(sorted(row.trigger_id for row in rows)):
            yield (
                select(t.trigger.c.id)
                .where(t.trigger.c.id.in_(chunk))
                .order_by(t.trigger.c.id)
                .with_for_update(key_share=True)
            )
    rows = yield (
        select(allowance.c.looked_at, allowance.c.guard_state, allowance.c.guard_from)
        .where(allowance.c.target_id == target_id)
        .with_for_update(key_share=True)
    )
    before = rows[0].looked_at
    gap = now - before
    skipped = 0
    if gap > grace:
        expired = yield (
            select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).with_for_update()
        )
        skipped = yield from skip_runs(
            [run_of(row) for row in expired],
            lambda spec, run: expired_reason(spec, run.first_due_at, now),
            "nobody looked in time",
            now,
        )
        if guard:
            fresh = rows[0].guard_state == GuardState.NONE
            yield (
                update(allowance)
                .where(allowance.c.target_id == target_id)
                .values(
                    guard_state=GuardState.OPEN.value if fresh else rows[0].guard_state,
                    guard_from=before if fresh else rows[0].guard_from,
                    guard_until=now,
                )
            )
    if now > before:
        yield update(allowance).where(allowance.c.target_id == target_id).values(looked_at=now)
    return LookResult(gap if gap > grace else timedelta(), skipped)


def _expired(target_id: int, before: datetime, now: datetime) -> ColumnElement[bool]:
    """Automatic runs never claimed that came due in `(before, now]` and whose time is over."""
    return and_(
        t.run.c.target_id == target_id,
        t.run.c.state == "scheduled",
        t.run.c.origin == "schedule",
        t.run.c.attempt == 0,
        t.run.c.due_at > before,
        t.run.c.due_at <= now,
        t.run.c.expires_at <= now,
    )


def skip_runs(
    runs: Sequence[Run], reason_of: Callable[[TriggerSpec, Run], str], detail: str, now: datetime
) -> Script[int]:
    """Runs become skips, adjacent slots of one rule and reason one skip. Their triggers must be locked."""
    if not runs:
        return 0
    runs = sorted(runs, key=lambda run: (run.trigger_id, run.revision, run.scheduled_time))
    rules: dict[tuple[int, int], tuple[TriggerSpec, str]] = {}
    for chunk in chunked(sorted({run.trigger_id for run in runs})):
        rows = yield (
            select(t.trigger_revision, t.trigger.c.hash_seed)
            .join(t.trigger, t.trigger.c.id == t.trigger_revision.c.trigger_id)
            .where(t.trigger_revision.c.trigger_id.in_(chunk))
        )
        for row in rows:
            rules[row.trigger_id, row.number] = TriggerSpec.from_json(row.spec), row.hash_seed
    skips: list[dict[str, Any]] = []
    for (trigger_id, number), group in groupby(runs, key=lambda run: (run.trigger_id, run.revision)):
        spec, seed = rules[trigger_id, number]
        skips += [
            skip_values(trigger_id, skip, now)
            for skip in _adjacent(group, schedule_of(spec, seed), partial(reason_of, spec), detail)
        ]
    for chunk in chunked([run.id for run in runs]):
        yield delete(t.run).where(t.run.c.id.in_(chunk))
    yield Many(insert(t.skip), skips)
    for chunk in chunked(sorted({run.trigger_id for run in runs})):
        # A backfill's plan may have been computed from what these runs were; its compare-and-set must fail.
        yield (
            update(t.trigger)
            .where(
                t.trigger.c.id.in_(chunk),
                has_open_backfill(t.trigger.c.id),
            )
            .values(plan_due_at=now)
        )
    return len(runs)


def _adjacent(
    runs: Iterable[Run], rule: Schedule, reason_of: Callable[[Run], str], detail: str
) -> Iterator[Skip]:
    current: Skip | None = None
    for run in runs:
        reason = reason_of(run)
        if (
            current is not None
            and current.reason == reason
            and rule.after(to_seconds(current.last)) == to_seconds(run.scheduled_time)
        ):
            current = replace(current, last=run.scheduled_time, count=current.count + 1)
            continue
        if current is not None:
            yield current
        current = Skip(run.revision, run.scheduled_time, run.scheduled_time, 1, reason, detail)
    if current is not None:
        yield current


def one_a_run(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each run, by ascending id, where a batch has several: success before all else, then the
    latest attempt, because no earlier one can hold the run."""
    best: dict[int, Outcome] = {}
    for item in outcomes:
        known = best.get(item.run_id)
        if known is None or _weight(item) > _weight(known):
            best[item.run_id] = item
    return sorted(best.values(), key=lambda item: item.run_id)


def _weight(item: Outcome) -> tuple[bool, int]:
    return item.state is RunState.FIRED, item.attempt


def create_manual(request: ManualRequest, now: datetime) -> Script[tuple[Run, bool]]:
    """See `Store.create_manual`."""
    rows = yield select(t.trigger).where(is_key(request.key)).with_for_update(key_share=True)
    if not rows:
        raise NotFound("trigger", str(request.key))
    row = trigger_of(rows[0])
    name = request.name or manual_run_name(row.key, request.request_key)
    parameters = None if request.parameters is None else dict(request.parameters)
    rows = yield select(t.run).where(
        t.run.c.project == row.key.project, t.run.c.domain == row.key.domain, t.run.c.name == name
    )
    if rows:
        run = run_of(rows[0])
        if (run.trigger_id, run.request_key) != (row.id, request.request_key):
            raise Conflict(f"there is a run {name} already, and it is another one", "another name")
        if (run.parameters or None) != (parameters or None):
            raise Conflict(
                f"request key {request.request_key!r} was used for a run with other parameters",
                "another request key",
            )
        return run, False
    if row.status is Status.DELETED:
        raise Conflict(f"trigger {row.key} is deleted", "add it again first")
    rows = yield select(t.trigger_revision.c.spec).where(
        t.trigger_revision.c.trigger_id == row.id, t.trigger_revision.c.number == row.revision
    )
    spec = TriggerSpec.from_json(rows[0].spec)
    rows = yield select(t.target.c.id).where(t.target.c.name == spec.target)
    inserted = yield (
        insert(t.run)
        .values(
            trigger_id=row.id,
            scheduled_time=request.scheduled_time or now,
            origin="manual",
            project=row.key.project,
            domain=row.key.domain,
            name=name,
            revision=row.revision,
            target_id=rows[0].id,
            state="held" if row.frozen else "scheduled",
            due_at=now,
            first_due_at=now,
            parameters=parameters,
            request_key=request.request_key,
        )
        .returning(t.run)
    )
    yield write_audit(Audit(request.who, "run", "trigger", str(row.key), {"run": name}), now)
    return run_of(inserted[0]), True
