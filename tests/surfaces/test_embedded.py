"""Horarium inside a program: functions as work, the same engine, a real SQLite file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from horarium import Horarium, current_run
from horarium.errors import AlreadyServing, Conflict, InvalidInput
from horarium.store import tables


def instance(folder: Path) -> Horarium:
    return Horarium(f"sqlite:///{folder}/jobs.db", drain_timeout="5s")


async def test_an_async_function_runs_at_its_slots(tmp_path: Path) -> None:
    horarium = instance(tmp_path)
    calls: list[tuple[str, str]] = []
    twice = asyncio.Event()

    @horarium.trigger(every="1s", parameters={"table": "customers"})
    async def refresh(table: str) -> None:
        calls.append((table, current_run().run_name))
        if len(calls) >= 2:
            twice.set()

    async with horarium:
        await asyncio.wait_for(twice.wait(), 30)
    assert {table for table, _ in calls} == {"customers"}
    names = [name for _, name in calls]
    assert len(names) == len(set(names)), "every slot is one call"


async def test_a_sync_function_runs_in_a_thread_on_request(tmp_path: Path) -> None:
    horarium = instance(tmp_path)
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    seen: list[int] = []

    @horarium.trigger(cron="0 0 1 1 *")
    def yearly(number: int = 1) -> None:
        seen.append(number)
        loop.call_soon_threadsafe(called.set)

    async with horarium:
        run = await horarium.run("yearly", {"number": 7})
        await asyncio.wait_for(called.wait(), 30)
        assert run.name.startswith("m")
        first, second = await horarium.upcoming("yearly", 2)
        assert (second.year - first.year, first.month, first.day) == (1, 1, 1)
    assert seen == [7]


async def test_what_the_code_no_longer_names_is_withdrawn(tmp_path: Path) -> None:
    before = instance(tmp_path)

    @before.trigger(cron="0 3 * * *")
    async def nightly() -> None: ...

    @before.trigger(cron="0 4 * * *")
    async def later() -> None: ...

    async with before:
        pass

    after = instance(tmp_path)

    @after.trigger("nightly", cron="0 3 * * *")
    async def renamed_in_code_only() -> None: ...

    async with after:
        rows = await after.queries.store.fetch(select(tables.trigger).order_by(tables.trigger.c.deployment))
        assert {row.deployment: (row.status, row.revision) for row in rows} == {
            "later": ("deleted", 2),
            "nightly": ("active", 1),
        }


async def test_a_wrong_declaration_is_refused_before_anything_runs(tmp_path: Path) -> None:
    horarium = instance(tmp_path)

    @horarium.trigger(cron="61 * * * *")
    async def never() -> None: ...

    with pytest.raises(InvalidInput, match="61"):
        await horarium.start()
    with pytest.raises(Conflict, match="does not run"):
        _ = horarium.commands


async def test_two_programs_on_one_file_are_refused(tmp_path: Path) -> None:
    async with instance(tmp_path):
        with pytest.raises(AlreadyServing, match="another server"):
            await instance(tmp_path).start()


async def test_a_name_is_declared_once(tmp_path: Path) -> None:
    horarium = instance(tmp_path)

    @horarium.trigger("job", cron="0 3 * * *")
    async def one() -> None: ...

    with pytest.raises(Conflict, match="job"):

        @horarium.trigger("job", cron="0 4 * * *")
        async def two() -> None: ...
