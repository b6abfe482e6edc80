"""Runs that have not ended: which begin, which wait, and what their targets say of them. For both databases.

Two locks make it right with several replicas. Whoever judges runs of a trigger holds that trigger's row, so
that of two claims of one trigger one judges and the other comes back. And the runs that stand in the way are
read under their own locks, which whoever ends one takes too: a judge either sees the end, or whoever ends it
sees who waits.

A claim has runs locked when it comes here, and everybody else locks a trigger before its runs; so it takes
only triggers that are free, and gives the rest back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    literal,
    not_,
    null,
    or_,
    select,
    tuple_,
    update,
)

from horarium.core.keys import TriggerKey
from horarium.core.outcome import UNKNOWN, Outcome
from horarium.core.overlap import (
    AGAIN,
    COMPLETION_TIMEOUT,
    Candidate,
    GiveUp,
    Go,
    Stage,
    UnderWay,
    Verdict,
    Wait,
    ask_again,
    judge,
)
from horarium.core.revision import SkipReason
from horarium.core.run import FiredRun, Origin, Report, Result, RunState
from horarium.core.spec import Overlap, TriggerSpec
from horarium.store import tables as t
from horarium.store.base import Claimed
from horarium.store.rows import run_of
from horarium.store.sql.fire import skip_runs
from horarium.store.sql.script import Script, chunked

_OPEN = or_(t.run.c.result.is_(None), t.run.c.result.in_((Result.RUNNING, Result.UNKNOWN)))
"""A better report is taken."""


def judges(claimed: Sequence[Claimed]) -> bool:
    """Whether any of a claim has an `overlap` policy: for most, `admit` need not be asked."""
    return any(item.spec.overlap is not Overlap.ALLOW for item in claimed)


def less(claimed: Sequence[Claimed], begun: Sequence[Claimed]) -> Counter[int]:
    """How many calls of a claim are not made, by target; a run in shadow would have made none."""
    count = Counter(item.run.target_id for item in claimed if not item.shadow)
    count.subtract(item.run.target_id for item in begun if not item.shadow)
    return +count


def admit(claimed: Sequence[Claimed], now: datetime) -> Script[list[Claimed]]:
    """Those of a claim that begin now. The others have been put back, made to wait, or skipped."""
    judged = [item for item in claimed if item.spec.overlap is not Overlap.ALLOW]
    triggers = sorted({item.run.trigger_id for item in judged})
    free: set[int] = set()
    for chunk in chunked(triggers):
        rows = yield (
            select(t.trigger.c.id)
            .where(t.trigger.c.id.in_(chunk))
            .order_by(t.trigger.c.id)
            .with_for_update(key_share=True, skip_locked=True)
        )
        free |= {row.id for row in rows}
    busy = [item for item in judged if item.run.trigger_id not in free]
    judged = [item for item in judged if item.run.trigger_id in free]
    yield from _put_back(busy, now, now)
    under_way = yield from _under_way(sorted(free), now, [item.run.id for item in judged])
    due = yield from _due(sorted(free), now, [item.run.id for item in judged])
    verdicts: dict[int, Verdict] = {}
    judged.sort(key=lambda item: (item.run.trigger_id, item.run.scheduled_time, item.run.id))
    for trigger_id, group in groupby(judged, key=lambda item: item.run.trigger_id):
        verdicts |= _verdicts(list(group), under_way.get(trigger_id, []), due.get(trigger_id, []))
    yield from _write(judged, verdicts, now)
    dropped = {item.run.id for item in busy} | {
        run_id for run_id, verdict in verdicts.items() if not isinstance(verdict, Go)
    }
    cancels = {
        run_id: [run.id for run in verdict.cancels]
        for run_id, verdict in verdicts.items()
        if isinstance(verdict, Go) and verdict.cancels
    }
    going = [item for item in claimed if item.run.id not in dropped]
    if not cancels:
        return going
    rows = yield _running(t.run.c.id.in_(sorted({run_id for ids in cancels.values() for run_id in ids})))
    running = {row.id: running_of(row, now) for row in rows}
    return [
        replace(item, cancels=tuple(running[run_id] for run_id in cancels.get(item.run.id, ())))
        for item in going
    ]


def _verdicts(
    group: Sequence[Claimed], under_way: Sequence[UnderWay], due: Sequence[datetime]
) -> dict[int, Verdict]:
    """What becomes of the candidates of one trigger, in the order of their slots."""
    again = [item for item in group if item.run.attempt > 1]
    fresh = [item for item in group if item.run.attempt == 1]
    going = [*under_way, *(UnderWay(item.run.id, item.run.name, Stage.RETRYING) for item in again)]
    waiting = [*due, *(item.run.scheduled_time for item in fresh if item.run.automatic)]
    found: dict[int, Verdict] = {}
    for item in [*again, *fresh]:
        run = item.run
        mine = run.automatic and run.attempt == 1
        others = list(waiting)
        if mine:
            others.remove(run.scheduled_time)
        candidate = Candidate(
            run.id, run.scheduled_time, item.spec.overlap, run.origin is not Origin.SCHEDULE, run.attempt
        )
        verdict = found[run.id] = judge(candidate, going, others)
        if mine and not isinstance(verdict, Wait):
            waiting = others
        if isinstance(verdict, Go):
            gone = {run.id, *(other.id for other in (*verdict.cancels, *verdict.supersedes))}
            going = [other for other in going if other.id not in gone]
            going.append(UnderWay(run.id, run.name, Stage.CALLING))
    return found


def _under_way(
    triggers: Sequence[int], now: datetime, mine: Sequence[int]
) -> Script[dict[int, list[UnderWay]]]:
    found: dict[int, list[UnderWay]] = {}
    for chunk in chunked(triggers):
        rows = yield (
            select(t.run)
            .where(t.run.c.trigger_id.in_(chunk), is_under_way())
            .order_by(t.run.c.id)
            .with_for_update()
        )
        for row in sorted(rows, key=lambda row: (row.scheduled_time, row.id)):
            if row.id in mine:
                continue
            stage = Stage.RUNNING
            if row.state == "scheduled":
                stage = Stage.CALLING if run_of(row).leased(now) else Stage.RETRYING
            there = stage is Stage.RETRYING and row.report_due_at is not None
            found.setdefault(row.trigger_id, []).append(UnderWay(row.id, row.name, stage, there))
    return found


def is_under_way() -> ColumnElement[bool]:
    """Runs that were called and have not ended; see `core/overlap.py`."""
    return or_(
        and_(t.run.c.state == "scheduled", t.run.c.attempt > 0),
        t.run.c.report_due_at.is_not(None),
    )


def _due(triggers: Sequence[int], now: datetime, mine: Sequence[int]) -> Script[dict[int, list[datetime]]]:
    found: dict[int, list[datetime]] = {}
    for chunk in chunked(triggers):
        rows = yield select(t.run.c.id, t.run.c.trigger_id, t.run.c.scheduled_time).where(
            t.run.c.trigger_id.in_(chunk),
            t.run.c.state == "scheduled",
            t.run.c.origin == "schedule",
            t.run.c.attempt == 0,
            t.run.c.first_due_at <= now,
        )
        for row in rows:
            if row.id not in mine:
                found.setdefault(row.trigger_id, []).append(row.scheduled_time)
    return found


def _write(judged: Sequence[Claimed], verdicts: dict[int, Verdict], now: datetime) -> Script[None]:
    begun = [item.run.id for item in judged if isinstance(verdicts[item.run.id], Go)]
    for chunk in chunked(begun):
        yield (
            update(t.run).where(t.run.c.id.in_(chunk), t.run.c.waits_for.is_not(None)).values(waits_for=None)
        )
    given_up: dict[str, list[Claimed]] = {}
    for item in judged:
        verdict = verdicts[item.run.id]
        if isinstance(verdict, Wait):
            yield from _put_back([item], now, now + AGAIN, verdict.behind.id)
    for item in judged:
        match verdicts[item.run.id]:
            case GiveUp(detail=detail):
                given_up.setdefault(detail, []).append(item)
            case Go(supersedes=superseded) if superseded:
                yield from _supersede([run.id for run in superseded], item.run.name, now)
    for detail, items in given_up.items():
        yield from skip_runs(
            [item.run for item in items], lambda _spec, _run: SkipReason.OVERLAP, detail, now
        )


def _put_back(
    items: Sequence[Claimed], now: datetime, due_at: datetime, waits_for: int | None = None
) -> Script[None]:
    """As if it had not been claimed `now`, but due later; its retry time has not begun with that."""
    before = and_(t.run.c.attempt > 1, t.run.c.first_claimed_at != now)
    for chunk in chunked([item.run.id for item in items]):
        yield (
            update(t.run)
            .where(t.run.c.id.in_(chunk))
            .values(
                attempt=t.run.c.attempt - 1,
                lease_owner=None,
                due_at=due_at,
                first_claimed_at=case((before, t.run.c.first_claimed_at), else_=null()),
                waits_for=waits_for,
            )
        )


def _supersede(ids: Sequence[int], by: str, now: datetime) -> Script[None]:
    lost = or_(t.run.c.outcome_unknown, t.run.c.lease_owner.is_not(None))
    reason = f"replaced by run {by} while it waited to be tried again"
    yield (
        update(t.run)
        .where(t.run.c.id.in_(ids))
        .values(
            state="failed",
            reason=case((lost, reason + UNKNOWN), else_=reason),
            outcome_unknown=lost,
            settled_at=now,
            lease_owner=None,
        )
    )


# reports


def after_settle(outcomes: Sequence[Outcome], done: Collection[int], now: datetime) -> Script[None]:
    """What settled outcomes mean for reports and for runs that wait; nothing for most."""
    fired = {
        item.run_id
        for item in outcomes
        if item.reports and item.state is RunState.FIRED and item.run_id in done
    }
    settled = {
        item.run_id
        for item in outcomes
        if item.exclusive and item.state is not RunState.SCHEDULED and item.run_id in done
    }
    yield from _expect_reports(fired, now)
    yield from _wake_behind(settled, now)


def _expect_reports(ids: Collection[int], now: datetime) -> Script[None]:
    """Fired runs whose target will say when they have ended; an end that came first stays."""
    for chunk in chunked(sorted(ids)):
        yield (
            update(t.run)
            .where(t.run.c.id.in_(chunk), t.run.c.state == "fired", t.run.c.result.is_(None))
            .values(result=Result.RUNNING, report_due_at=ask_again(now, now))
        )


def report(reports: Sequence[Report], now: datetime) -> Script[int]:
    """See `Store.report`."""
    wanted = {item.run_key: item for item in reports}
    at = literal(now, t.UtcTime())
    written: set[int] = set()
    triggers: set[int] = set()
    for chunk in chunked(sorted(wanted)):
        rows = yield (
            select(t.run.c.id, t.run.c.trigger_id, t.run.c.project, t.run.c.domain, t.run.c.name)
            .where(_is_run(chunk), _OPEN)
            .order_by(t.run.c.id)
            .with_for_update()
        )
        for row in rows:
            item = wanted[f"{row.project}/{row.domain}/{row.name}"]
            # A report is evidence that the run exists: what nobody got an answer for did happen.
            happened = and_(t.run.c.outcome_unknown, t.run.c.lease_owner.is_(None), t.run.c.state != "fired")
            yield (
                update(t.run)
                .where(t.run.c.id == row.id, _OPEN)
                .values(
                    state=case((happened, "fired"), else_=t.run.c.state),
                    fired_at=case((happened, at), else_=t.run.c.fired_at),
                    settled_at=case((happened, at), else_=t.run.c.settled_at),
                    result=item.result.value,
                    result_at=None if item.result is Result.RUNNING else item.at,
                    result_detail=item.detail or None,
                    report_due_at=ask_again(now, now) if item.result is Result.RUNNING else None,
                )
            )
            written.add(row.id)
            if item.result is not Result.RUNNING:
                triggers.add(row.trigger_id)
    yield from _wake_waiting(sorted(triggers), now)
    return len(written)


def _wake_waiting(triggers: Sequence[int], now: datetime) -> Script[None]:
    """Of each trigger the first run that waits is due now: what it waited for has ended.

    One that is locked is being judged, and its judge waits for our lock on what has ended.
    """
    for chunk in chunked(triggers):
        rows = yield (
            select(t.run.c.id, t.run.c.trigger_id, t.run.c.scheduled_time)
            .where(
                t.run.c.trigger_id.in_(chunk),
                t.run.c.state == "scheduled",
                t.run.c.waits_for.is_not(None),
            )
            .order_by(t.run.c.id)
            .with_for_update(skip_locked=True)
        )
        first: dict[int, tuple[datetime, int]] = {}
        for row in rows:
            mine = row.scheduled_time, row.id
            first[row.trigger_id] = min(first.get(row.trigger_id, mine), mine)
        ids = sorted(run_id for _, run_id in first.values())
        if ids:
            yield update(t.run).where(t.run.c.id.in_(ids)).values(due_at=now)


def _wake_behind(ids: Collection[int], now: datetime) -> Script[None]:
    """What waits for the triggers of those runs that are under way no more is due now: they have failed, or
    their end was reported before their call was answered."""
    for chunk in chunked(sorted(ids)):
        rows = yield (
            select(t.run.c.trigger_id).where(t.run.c.id.in_(chunk), not_(is_under_way())).distinct()
        )
        yield from _wake_waiting(sorted(row.trigger_id for row in rows), now)


def reports_due(now: datetime, limit: int) -> Script[list[tuple[FiredRun, datetime]]]:
    """See `Store.reports_due`."""
    rows = yield (
        select(t.run.c.id)
        .where(t.run.c.report_due_at <= now)
        .order_by(t.run.c.report_due_at, t.run.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found: list[tuple[FiredRun, datetime]] = []
    for chunk in chunked(sorted(row.id for row in rows)):
        rows = yield _running(t.run.c.id.in_(chunk))
        for row in rows:
            running = running_of(row, now)
            timeout = TriggerSpec.from_json(row.spec).completion_timeout or COMPLETION_TIMEOUT
            found.append((running, running.fired_at + timeout))
            yield (
                update(t.run)
                .where(t.run.c.id == row.id, t.run.c.report_due_at.is_not(None))
                .values(report_due_at=ask_again(running.fired_at, now))
            )
    return found


def _running(which: ColumnElement[bool]) -> Select[Any]:
    """Runs with what their target knows them by, and their revision's spec."""
    return (
        select(
            t.run,
            t.trigger.c.deployment.label("trigger_deployment"),
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
        .where(which)
        .order_by(t.run.c.id)
    )


def running_of(row: Row[Any], now: datetime) -> FiredRun:
    """A value from a row of `_running`."""
    trigger = TriggerKey(row.project, row.domain, row.trigger_deployment, row.trigger_name)
    return FiredRun(row.id, row.name, trigger, row.target_id, row.fired_at or now, row.target_run_id)


def _is_run(keys: Sequence[str]) -> ColumnElement[bool]:
    """Runs by `project/domain/name`."""
    return tuple_(t.run.c.project, t.run.c.domain, t.run.c.name).in_([tuple(key.split("/")) for key in keys])
