"""Reads ride on indexes: no everyday read walks all runs, or sorts them, however many there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, Row, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.expression import ClauseElement

from horarium.app.paging import Filters, Paging
from horarium.app.queries import Queries
from horarium.core.keys import TriggerKey
from horarium.store import tables as t
from tests.surfaces.api_world import TICK, World, blank_file, open_world

KEY = TriggerKey("default", "default", "tick", "default")
FROM, TO = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)
PAGE = Paging(limit=10)

READS: dict[str, Callable[[Queries], Coroutine[Any, Any, Any]]] = {
    "status": lambda q: q.status(),
    "owed": lambda q: q.owed_report(TO),
    "trigger": lambda q: q.trigger(KEY),
    "why": lambda q: q.why(KEY, FROM),
    "triggers": lambda q: q.triggers(PAGE),
    "triggers of a project": lambda q: q.triggers(PAGE, Filters(project="default")),
    "triggers of a source": lambda q: q.triggers(PAGE, Filters(source="git/etl")),
    "triggers paused": lambda q: q.triggers(PAGE, Filters(status="paused")),
    "triggers with errors": lambda q: q.triggers(PAGE, Filters(status="error")),
    "runs": lambda q: q.runs(PAGE),
    "runs of a day": lambda q: q.runs(PAGE, Filters(from_time=FROM, to_time=TO)),
    "runs of a trigger": lambda q: q.runs(PAGE, Filters(trigger=KEY)),
    "runs of a trigger that failed": lambda q: q.runs(PAGE, Filters(trigger=KEY, state="failed")),
    "runs that failed": lambda q: q.runs(PAGE, Filters(state="failed")),
    "runs held": lambda q: q.runs(PAGE, Filters(state="held")),
    "runs of a project": lambda q: q.runs(PAGE, Filters(project="default")),
    "runs of a target": lambda q: q.runs(PAGE, Filters(target="local")),
    "runs late": lambda q: q.runs(PAGE, Filters(late=True)),
    "skips": lambda q: q.skips(PAGE),
    "skips of a day": lambda q: q.skips(PAGE, Filters(from_time=FROM, to_time=TO)),
    "skips of a trigger": lambda q: q.skips(PAGE, Filters(trigger=KEY)),
    "slots of a day": lambda q: q.slots(FROM, TO, PAGE),
    "slots of a trigger": lambda q: q.slots(FROM, TO, PAGE, Filters(trigger=KEY)),
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def test_no_everyday_read_walks_all_runs(world: World) -> None:
    await world.put(TICK, {"run": "date", "cron": "* * * * *"})
    await world.plan()
    world.clock.advance(61)
    await world.fire()
    asked: list[Executable] = []
    fetch = world.store.fetch

    async def recorded(statement: Executable) -> Sequence[Row[Any]]:
        asked.append(statement)
        return await fetch(statement)

    world.store.fetch = recorded  # type: ignore[method-assign] # to see what is asked
    slow: dict[str, list[str]] = {}
    with sqlite3.connect(world.path) as raw:
        for name, read in READS.items():
            asked.clear()
            await read(world.queries)
            assert asked, name
            found = [step for statement in asked for step in wrong_steps(raw, statement)]
            if found:
                slow[name] = found
    raw.close()
    assert slow == {}


def test_a_walk_over_all_runs_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(blank_file())
    with sqlite3.connect(path) as raw:
        for statement in (
            select(t.run.c.id).where(t.run.c.result == "errored"),
            select(t.run.c.id).where(t.run.c.project == "p").order_by(t.run.c.scheduled_time),
        ):
            assert wrong_steps(raw, statement) != []
        assert wrong_steps(raw, select(t.run.c.id).order_by(t.run.c.scheduled_time)) == []
    raw.close()


def wrong_steps(raw: sqlite3.Connection, statement: Executable) -> list[str]:
    """The steps of SQLite's plan that read a whole large table, or a whole project's runs."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
    text = str(compiled)
    values = [0] * text.count("?")
    steps = [row[3] for row in raw.execute(f"explain query plan {text}", values)]
    whole = [step for step in steps if re.fullmatch(r"SCAN (run|skip|trigger_revision)", step)]
    by_name = [step for step in steps if re.search(r"run USING INDEX run_name \(project=\?\)", step)]
    return whole + by_name
