"""The inline target: functions of this very program, each name once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import AlreadyExists, Created, FireRequest, Refused, Unavailable
from horarium.targets.inline import InlineTarget, check_action, check_config, current_run
from tests.targets.rows import Rows

MakeRequest = Callable[..., FireRequest]


@asynccontextmanager
async def started(rows: Rows, *functions: Callable[..., Any], **spec: Any) -> AsyncIterator[InlineTarget]:
    named = {getattr(function, "__name__", "unnamed"): function for function in functions}
    target = InlineTarget(
        TargetSpec("inline", "inline", **spec), named, rows, SystemClock(), "me", lambda: None
    )
    await target.start()
    yield target
    await target.drain(timedelta())
    await target.close()


async def test_an_async_function_runs_in_the_programs_loop(rows: Rows, request_for: MakeRequest) -> None:
    seen: list[Any] = []

    async def sync_crm(mode: str) -> None:
        seen.append((mode, current_run().run_name, asyncio.get_running_loop()))

    async with started(rows, sync_crm) as target:
        answer = await target.create_run(request_for({"call": "sync_crm"}, parameters={"mode": "full"}))
        row = await rows.ended("r1")
    assert answer == Created("r1")
    assert seen == [("full", "r1", asyncio.get_running_loop())]
    assert (row.state, row.exit_code, row.pid) == ("succeeded", 0, os.getpid())


async def test_any_other_function_runs_in_a_thread(rows: Rows, request_for: MakeRequest) -> None:
    seen: list[Any] = []

    def report() -> None:
        seen.append((current_run().run_name, threading.current_thread() is threading.main_thread()))

    async with started(rows, report) as target:
        await target.create_run(request_for({"call": "report"}))
        assert (await rows.ended("r1")).state == "succeeded"
    assert seen == [("r1", False)]
    with pytest.raises(LookupError):
        current_run()


async def test_a_repeated_name_is_called_once(rows: Rows, request_for: MakeRequest) -> None:
    calls: list[str] = []

    async def job() -> None:
        calls.append(current_run().run_name)

    async with started(rows, job, max_in_flight=20) as target:
        answers = await asyncio.gather(*(target.create_run(request_for({"call": "job"})) for _ in range(10)))
        await rows.ended("r1")
    assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyExists"] * 9 + ["Created"]
    assert calls == ["r1"]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_it_raises_is_kept(rows: Rows, request_for: MakeRequest, in_thread: bool) -> None:
    def sync_job() -> None:
        raise ValueError("no data")

    async def async_job() -> None:
        raise ValueError("no data")

    job = sync_job if in_thread else async_job
    async with started(rows, job) as target:
        await target.create_run(request_for({"call": job.__name__}))
        row = await rows.ended("r1")
    assert (row.state, row.exit_code, row.detail) == ("failed", 1, "ValueError: no data")
    assert b"Traceback" in row.output
    assert f"in {job.__name__}".encode() in row.output


async def test_an_exit_ends_the_call_and_not_the_program(rows: Rows, request_for: MakeRequest) -> None:
    async def leaves() -> None:
        sys.exit(3)

    def leaves_too() -> None:
        sys.exit(3)

    def stops() -> None:
        raise StopIteration

    async with started(rows, leaves, leaves_too, stops) as target:
        for name in ("leaves", "leaves_too", "stops"):
            await target.create_run(request_for({"call": name}, run_name=name))
            assert (await rows.ended(name)).state == "failed"


async def test_what_cannot_be_called_is_refused_without_a_row(rows: Rows, request_for: MakeRequest) -> None:
    def job(day: str) -> None: ...

    async with started(rows, job) as target:
        unknown = await target.create_run(request_for({"call": "gone"}))
        arguments = await target.create_run(request_for({"call": "job"}, parameters={"dya": "x"}))
        stopped = await target.create_run(
            request_for({"call": "job", "timeout": 1.0}, parameters={"day": "x"})
        )
        assert target.free() == target.max_in_flight
    assert unknown == Refused("no function is registered as 'gone'; registered: job")
    assert isinstance(arguments, Refused)
    assert "'day'" in arguments.reason
    assert isinstance(stopped, Refused)
    assert "takes no timeout" in stopped.reason
    assert await rows.row("r1") is None


async def test_an_async_function_has_its_timeout(rows: Rows, request_for: MakeRequest) -> None:
    cleaned: list[bool] = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async with started(rows, hangs) as target:
        await target.create_run(request_for({"call": "hangs", "timeout": 0.2}))
        row = await rows.ended("r1")
        assert target.free() == target.max_in_flight
    assert (row.state, row.detail) == ("failed", "timed out after 0.2 s")
    assert cleaned == [True]


async def test_a_drain_waits_and_then_interrupts(rows: Rows, request_for: MakeRequest) -> None:
    release = threading.Event()

    async def hangs() -> None:
        await asyncio.Event().wait()

    def blocks() -> None:
        release.wait()

    async with started(rows, hangs, blocks) as target:
        await target.create_run(request_for({"call": "hangs"}, run_name="r1"))
        await target.create_run(request_for({"call": "blocks"}, run_name="r2"))
        await rows.until("r2", lambda row: row.state == "running")
        await target.drain(timedelta())
        for name in ("r1", "r2"):
            row = await rows.row(name)
            assert row is not None
            assert (row.state, row.detail) == ("interrupted", "stopped with the server")
        refused = await target.create_run(request_for({"call": "hangs"}, run_name="r3"))
        assert refused == Unavailable("the server is stopping")
    release.set()


async def test_an_object_with_an_async_call_is_async(rows: Rows, request_for: MakeRequest) -> None:
    class Job:
        def __init__(self) -> None:
            self.loop: Any = None

        async def __call__(self) -> None:
            self.loop = asyncio.get_running_loop()

    job = Job()
    async with started(rows, job) as target:
        await target.create_run(request_for({"call": "unnamed"}))
        await rows.ended("r1")
        again = await target.create_run(request_for({"call": "unnamed"}))
    assert job.loop is asyncio.get_running_loop()
    assert again == AlreadyExists("r1")


def test_its_mappings_are_checked() -> None:
    assert check_config({}, "") == {}
    assert check_action({"call": "job", "timeout": "5s"}, {}, "") == {"call": "job", "timeout": 5.0}
    with pytest.raises(InvalidInput) as caught:
        check_action({"timeout": "x", "cal": "job"}, {}, "/d")
    assert {problem.pointer for problem in caught.value.problems} == {"/d/call", "/d/timeout", "/d/cal"}
    with pytest.raises(InvalidInput):
        check_config({"places": 1}, "/t")


STUCK = """
import asyncio, sys, threading
from datetime import timedelta
from pathlib import Path
from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.core.keys import TriggerKey
from horarium.targets.base import FireRequest
from horarium.targets.inline import InlineTarget
from tests.targets.rows import Rows

async def main():
    rows, clock = Rows(Path(sys.argv[1])), SystemClock()
    functions = {"stuck": threading.Event().wait}
    target = InlineTarget(TargetSpec("inline", "inline"), functions, rows, clock, "me", lambda: None)
    await target.start()
    key, now = TriggerKey("etl", "production", "job", "day"), clock.now()
    request = FireRequest("r1", key, "manual", now, 1, {"call": "stuck"}, {}, now + timedelta(minutes=1))
    await target.create_run(request)
    await target.drain(timedelta())
    await target.close()
    print((await rows.row("r1")).state)
    rows.close()

asyncio.run(main())
"""


def test_a_thread_that_hangs_does_not_keep_the_program_alive(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path / "rows.sqlite")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
