"""The executions of the targets that run here (`local`, `inline`). For both databases; see `LocalRuns`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import insert, select, update

from horarium.core.run import Report, Result
from horarium.store import tables as t
from horarium.store.sql.completion import report
from horarium.store.sql.script import Script, chunked
from horarium.targets.base import RESULTS, LocalRun


def local_begin(run_name: str, owner: str, now: datetime) -> Script[bool]:
    """See `LocalRuns.local_begin`."""
    rows = yield select(t.local_run.c.run_name).where(t.local_run.c.run_name == run_name).with_for_update()
    if rows:
        return False
    yield insert(t.local_run).values(
        run_name=run_name, owner=owner, state="starting", started_at=now, output=b""
    )
    return True


def local_running(run_name: str, pid: int) -> Script[None]:
    """See `LocalRuns.local_running`."""
    yield (
        update(t.local_run)
        .where(t.local_run.c.run_name == run_name, t.local_run.c.state == "starting")
        .values(state="running", pid=pid)
    )


def local_output(run_name: str, output: bytes, total: int) -> Script[None]:
    """See `LocalRuns.local_output`."""
    yield (
        update(t.local_run)
        .where(t.local_run.c.run_name == run_name)
        .values(output=output, output_total=total)
    )


def local_end(run: LocalRun) -> Script[None]:
    """See `LocalRuns.local_end`."""
    yield (
        update(t.local_run)
        .where(t.local_run.c.run_name == run.run_name)
        .values(
            state=run.state,
            ended_at=run.ended_at,
            exit_code=run.exit_code,
            output=run.output,
            output_total=run.output_total,
            detail=run.detail,
        )
    )
    at = run.ended_at or run.started_at
    yield from report([Report(run.run_name, RESULTS[run.state], at, run.detail)], at)


INTERRUPTED = "the server that ran it ended before it did; its process may have gone on"


def local_interrupt(owner: str, now: datetime, gone: Callable[[str], bool]) -> Script[int]:
    """See `LocalRuns.local_interrupt`. `gone`: whether another owner's process has ended."""
    live = t.local_run.c.state.in_(("starting", "running"))
    rows = yield select(t.local_run.c.owner).where(live, t.local_run.c.owner != owner).distinct()
    owners = [row.owner for row in rows if gone(row.owner)]
    if not owners:
        return 0
    rows = yield (
        update(t.local_run)
        .where(live, t.local_run.c.owner.in_(owners))
        .values(
            state="interrupted",
            ended_at=now,
            detail=INTERRUPTED,
        )
        .returning(t.local_run.c.run_name)
    )
    names = [row.run_name for row in rows]
    for chunk in chunked(names):
        yield from report([Report(name, Result.INTERRUPTED, now, INTERRUPTED) for name in chunk], now)
    return len(names)


def local_run(run_name: str) -> Script[LocalRun | None]:
    """See `LocalRuns.local_run`."""
    rows = yield select(t.local_run).where(t.local_run.c.run_name == run_name)
    if not rows:
        return None
    row = rows[0]
    return LocalRun(
        row.run_name,
        row.state,
        row.started_at,
        row.ended_at,
        row.exit_code,
        row.pid,
        bytes(row.output),
        row.output_total,
        row.detail,
    )
