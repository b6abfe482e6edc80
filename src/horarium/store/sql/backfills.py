"""Backfills: holes in skips, and the runs of a step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, select

from horarium.core.instant import from_seconds, to_seconds
from horarium.core.plan import BackfillStep, Plan
from horarium.core.revision import Revision, Skip, count_range, schedule_of
from horarium.core.run import Origin, PlannedRun
from horarium.store import tables as t
from horarium.store.sql.changes import skip_values
from horarium.store.sql.script import Many, Script


def carve(
    trigger_id: int, slots: Sequence[datetime], revisions: Sequence[Revision], seed: str
) -> Script[None]:
    """Split the skips that cover freshly filled `slots` (ascending, all that lie between them are filled)."""
    first, last = slots[0], slots[-1]
    rows = yield (
        select(t.skip)
        .where(t.skip.c.trigger_id == trigger_id, t.skip.c.last_time >= first, t.skip.c.first_time <= last)
        .order_by(t.skip.c.id)
        .with_for_update()
    )
    for row in rows:
        spec = next((item.spec for item in revisions if item.number == row.revision), revisions[-1].spec)
        rule = schedule_of(spec, seed)
        # Another rule may have filled slots between its ends; those were never among its own.
        filled = [
            slot
            for slot in slots
            if row.first_time <= slot <= row.last_time
            and rule.after(to_seconds(slot) - 1) == to_seconds(slot)
        ]
        if not filled:
            continue
        rest: list[dict[str, Any]] = []
        left = row.count - len(filled)
        before = count_range(rule, to_seconds(row.first_time) - 1, to_seconds(filled[0]) - 1)
        if before is not None:
            rest.append({"first": before[0], "last": before[1], "count": before[2]})
            left -= before[2]
        if left > 0:
            following = rule.after(to_seconds(filled[-1]))
            if following is not None:
                rest.append({"first": following, "last": to_seconds(row.last_time), "count": left})
        yield delete(t.skip).where(t.skip.c.id == row.id)
        if rest:
            yield Many(
                insert(t.skip),
                [
                    skip_values(
                        trigger_id,
                        Skip(
                            row.revision,
                            from_seconds(item["first"]),
                            from_seconds(item["last"]),
                            item["count"],
                            row.reason,
                            row.detail,
                        ),
                        row.at,
                    )
                    for item in rest
                ],
            )


def runs_of_steps(item: Plan) -> list[tuple[BackfillStep, list[PlannedRun]]]:
    """Each backfill's step with the runs in its part of the range."""
    ranges = {given.id: given for given in item.input.backfills}
    filled = [run for run in item.runs if run.origin is Origin.BACKFILL]
    return [
        (
            step,
            [
                run
                for run in filled
                if ranges[step.id].cursor < from_seconds(run.scheduled_time) <= step.cursor
            ],
        )
        for step in item.backfills
    ]
