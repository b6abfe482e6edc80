"""Where the tests of targets keep executions: `LocalRuns` on a real SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from horarium.core.instant import from_micros, to_micros
from horarium.core.keys import TriggerKey
from horarium.errors import StoreUnavailable
from horarium.targets.base import LocalRun

KEY = TriggerKey("etl", "production", "crm-sync", "day")
"""The trigger of all requests in these tests."""


class Rows:
    """`LocalRuns` on an SQLite file, each method one transaction. `away` makes it unavailable.

    Tests ask for rows by the bare name of a run of `KEY`; the target itself uses whole keys.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute(
            "create table local_run (run_name text primary key, owner text, state text, started_at integer,"
            " ended_at integer, exit_code integer, pid integer, output blob, output_total integer,"
            " detail text)"
        )
        self.away = False
        self.writes: list[tuple[str, str]] = []
        self.changed = asyncio.Condition()

    def close(self) -> None:
        self._db.close()

    async def local_begin(self, run_name: str, owner: str, now: datetime) -> bool:
        added = await self._write(
            "begin",
            run_name,
            "insert or ignore into local_run values (?, ?, 'starting', ?, null, null, null, x'', 0, '')",
            (run_name, owner, to_micros(now)),
        )
        return added == 1

    async def local_running(self, run_name: str, pid: int) -> None:
        await self._write(
            "running",
            run_name,
            "update local_run set state = 'running', pid = ? where run_name = ?",
            (pid, run_name),
        )

    async def local_output(self, run_name: str, output: bytes, total: int) -> None:
        await self._write(
            "output",
            run_name,
            "update local_run set output = ?, output_total = ? where run_name = ?",
            (output, total, run_name),
        )

    async def local_end(self, run: LocalRun) -> None:
        assert run.ended_at is not None
        await self._write(
            "end",
            run.run_name,
            "update local_run set state = ?, ended_at = ?, exit_code = ?, pid = ?, output = ?,"
            " output_total = ?, detail = ? where run_name = ?",
            (
                run.state,
                to_micros(run.ended_at),
                run.exit_code,
                run.pid,
                run.output,
                run.output_total,
                run.detail,
                run.run_name,
            ),
        )

    async def local_interrupt(self, owner: str, now: datetime) -> int:
        return await self._write(
            "interrupt",
            "",
            "update local_run set state = 'interrupted', ended_at = ?"
            " where owner <> ? and state in ('starting', 'running')",
            (to_micros(now), owner),
        )

    async def local_run(self, run_name: str) -> LocalRun | None:
        row = self._db.execute(
            "select run_name, state, started_at, ended_at, exit_code, pid, output, output_total, detail"
            " from local_run where run_name = ?",
            (run_name,),
        ).fetchone()
        if row is None:
            return None
        ended = None if row[3] is None else from_micros(row[3])
        return LocalRun(row[0], row[1], from_micros(row[2]), ended, *row[4:])

    async def row(self, run_name: str) -> LocalRun | None:
        return await self.local_run(f"{KEY.project}/{KEY.domain}/{run_name}")

    async def until(self, run_name: str, wanted: Callable[[LocalRun], bool]) -> LocalRun:
        """The row, as soon as it is as wanted; a minute is far more than any test needs."""
        async with asyncio.timeout(60), self.changed:
            while True:
                row = await self.row(run_name)
                if row is not None and wanted(row):
                    return row
                await self.changed.wait()

    async def ended(self, run_name: str) -> LocalRun:
        return await self.until(run_name, lambda row: row.ended_at is not None)

    async def _write(self, what: str, run_name: str, sql: str, values: tuple[object, ...]) -> int:
        if self.away:
            raise StoreUnavailable("the database is away")
        with self._db:
            count = self._db.execute(sql, values).rowcount
        self.writes.append((what, run_name))
        async with self.changed:
            self.changed.notify_all()
        return count
