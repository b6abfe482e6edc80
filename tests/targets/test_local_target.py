"""The local target with real processes and rows in a real SQLite file, on both event loops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.clock import SystemClock
from horarium.core.run import FiredRun, Result
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets import local
from horarium.targets.base import AlreadyExists, Created, FireRequest, LocalRun, Refused, Unavailable
from horarium.targets.local import LocalTarget, check_action, check_config
from horarium.targets.output import HEAD, TAIL, BoundedOutput
from tests.targets.rows import KEY, Rows

MakeRequest = Callable[..., FireRequest]
Run = Callable[..., Awaitable[LocalRun]]


@asynccontextmanager
async def started(
    rows: Rows, config: dict[str, Any] | None = None, on_free: Callable[[], None] = lambda: None, **spec: Any
) -> AsyncIterator[LocalTarget]:
    checked = check_config(config or {}, "")
    target = LocalTarget(
        TargetSpec("local", "local", checked, **spec), rows, SystemClock(), "this server", on_free
    )
    await target.start()
    try:
        yield target
    finally:
        await target.drain(timedelta())
        await target.close()


@pytest.fixture
def run(rows: Rows, request_for: MakeRequest) -> Run:
    """Runs one action to its end and returns its row."""

    async def once(action: dict[str, Any], config: dict[str, Any] | None = None, **changes: Any) -> LocalRun:
        checked = check_action(action, changes.get("parameters", {}), "")
        async with started(rows, config) as target:
            assert await target.create_run(request_for(checked, **changes)) == Created("r1")
            return await rows.ended("r1")

    return once


async def test_a_command_runs_and_its_output_and_code_are_kept(run: Run) -> None:
    row = await run({"run": "echo hello there"})
    assert (row.state, row.exit_code, row.output, row.output_total) == ("succeeded", 0, b"hello there\n", 12)
    assert row.pid is not None
    assert row.pid != os.getpid()
    assert row.ended_at is not None
    assert row.started_at <= row.ended_at


async def test_a_string_is_split_and_no_shell_sees_it(run: Run) -> None:
    row = await run({"run": "printf '%s|' $HOME 'two words' ; *"})
    assert row.output == b"$HOME|two words|;|*|"


async def test_a_list_is_the_arguments_as_they_are(run: Run) -> None:
    row = await run({"run": ["printf", "%s|", "a b", "", "'c'"]})
    assert row.output == b"a b||'c'|"


async def test_a_shell_is_opted_in(run: Run) -> None:
    row = await run({"run": 'echo "$((6 * 7))" | sed s/4/four/; exit 3', "shell": True})
    assert row.output == b"four2\n"
    assert (row.state, row.exit_code, row.detail) == ("failed", 3, "exit code 3")


async def test_the_shell_is_the_jobs_own(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "mine got $1 $2"\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", "/bin/false")
    row = await run({"run": "date -u", "shell": True, "env": {"SHELL": str(shell)}})
    assert row.output == b"mine got -c date -u\n"


async def test_both_outputs_are_kept_in_their_order(run: Run) -> None:
    row = await run({"run": "echo 1; echo 2 >&2; echo 3", "shell": True})
    assert row.output == b"1\n2\n3\n"


async def test_stdin_is_what_was_given_and_else_empty(run: Run) -> None:
    text = "grüße\n" * 50_000
    row = await run({"run": "wc -c", "stdin": text})
    assert int(row.output) == len(text.encode())


async def test_without_stdin_there_is_nothing_to_read(run: Run) -> None:
    assert (await run({"run": "wc -c"})).output.strip() == b"0"


async def test_the_child_knows_which_run_it_is(run: Run) -> None:
    row = await run({"run": "env"}, parameters={"mode": "full", "day": "für"})
    env = dict(line.split("=", 1) for line in row.output.decode().splitlines())
    assert env["HORARIUM_RUN_NAME"] == "r1"
    assert env["HORARIUM_SCHEDULED_TIME"] == "2026-01-05T10:00:00Z"
    assert env["HORARIUM_TRIGGER"] == str(KEY)
    assert json.loads(env["HORARIUM_PARAMETERS"]) == {"mode": "full", "day": "für"}


async def test_the_servers_environment_does_not_leak(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_DB", "postgresql://u:hunter2@db/h")
    monkeypatch.setenv("CRM_KEY", "hunter2")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("LC_TIME", "de_DE.UTF-8")
    monkeypatch.setenv("ELSEWHERE", "referenced")
    row = await run(
        {"run": "env", "env": {"OWN": "1", "KEY": "env:ELSEWHERE", "N": 7}}, {"inherit_env": ["WANTED"]}
    )
    env = dict(line.split("=", 1) for line in row.output.decode().splitlines())
    assert b"hunter2" not in row.output
    assert {"PATH", "HOME"} <= set(env)
    expected = {
        "TZ": "Europe/Berlin",
        "LC_TIME": "de_DE.UTF-8",
        "WANTED": "yes",
        "OWN": "1",
        "KEY": "referenced",
        "N": "7",
    }
    assert expected.items() <= env.items()
    assert "ELSEWHERE" not in env


async def test_it_runs_where_it_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "here.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here.sh").chmod(0o755)
    row = await run({"run": "./here.sh", "cwd": str(tmp_path)})
    assert row.output.decode().strip() == str(tmp_path.resolve())


async def test_a_signal_that_ends_it_is_named(run: Run) -> None:
    row = await run({"run": "kill -SEGV $$", "shell": True})
    assert (row.state, row.exit_code, row.detail) == ("failed", -signal.SIGSEGV, "killed by SIGSEGV")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ({"run": "no-such-command-anywhere -x"}, "command not found: 'no-such-command-anywhere'"),
        ({"run": "./not-there.sh"}, "command not found: './not-there.sh'"),
        ({"run": "/etc/passwd"}, "not executable: '/etc/passwd'"),
        ({"run": "/"}, "command not found"),
        ({"run": "date", "cwd": "/no/such/folder"}, "is no directory"),
    ],
)
async def test_what_cannot_start_is_refused_and_can_be_tried_again(
    rows: Rows, request_for: MakeRequest, action: dict[str, Any], words: str
) -> None:
    async with started(rows) as target:
        answer = await target.create_run(request_for(action))
        assert isinstance(answer, Refused)
        assert words in answer.reason
        # No row, so that the same name can start once the cause is mended.
        assert await rows.row("r1") is None
        assert await target.create_run(request_for({"run": "true"})) == Created("r1")
        assert (await rows.ended("r1")).state == "succeeded"
        assert target.free() == target.max_in_flight


async def test_a_run_waits_for_a_variable_that_is_not_set(
    rows: Rows, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOB_KEY", raising=False)
    action = {"run": "printenv KEY", "env": {"KEY": "env:JOB_KEY"}}
    async with started(rows) as target:
        answer = await target.create_run(request_for(action))
        assert answer == Unavailable("env KEY: env:JOB_KEY is not set in the server's environment")
        assert target.free() == target.max_in_flight
        monkeypatch.setenv("JOB_KEY", "here")
        assert await target.create_run(request_for(action)) == Created("r1")
        assert (await rows.ended("r1")).output == b"here\n"


async def test_what_fails_to_start_after_its_row_is_never_taken_for_a_success(
    rows: Rows, request_for: MakeRequest, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    async with started(rows) as target:
        first = await target.create_run(request_for({"run": str(script)}))
        again = await target.create_run(request_for({"run": str(script)}))
        assert target.free() == target.max_in_flight
    assert isinstance(first, Refused)
    assert "interpreter" in first.reason
    assert again == first
    row = await rows.row("r1")
    assert row is not None
    assert (row.state, row.detail) == ("failed", first.reason)


async def test_a_repeated_name_runs_once(rows: Rows, request_for: MakeRequest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    action = {"run": f"echo ran >> {log}", "shell": True}
    async with started(rows, max_in_flight=50) as target:
        answers = await asyncio.gather(*(target.create_run(request_for(action)) for _ in range(30)))
        await rows.ended("r1")
        later = await target.create_run(request_for(action))
    assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyExists"] * 29 + ["Created"]
    assert later == AlreadyExists("r1")
    assert log.read_text() == "ran\n"


async def test_the_row_is_committed_before_the_child_starts(
    rows: Rows, request_for: MakeRequest, tmp_path: Path
) -> None:
    rows.away = True
    mark = tmp_path / "mark"
    async with started_away(rows) as target:
        answer = await target.create_run(request_for({"run": f"touch {mark}"}))
        assert target.free() == target.max_in_flight
    assert isinstance(answer, Unavailable)
    assert not answer.unknown
    assert not mark.exists()


@asynccontextmanager
async def started_away(rows: Rows) -> AsyncIterator[LocalTarget]:
    rows.away = False
    async with started(rows) as target:
        rows.away = True
        yield target
        rows.away = False


async def test_an_end_is_written_once_the_database_is_back(
    rows: Rows, request_for: MakeRequest, tmp_path: Path
) -> None:
    freed = asyncio.Event()
    async with started(rows, on_free=freed.set) as target:
        fifo = make_fifo(tmp_path)
        assert await target.create_run(request_for({"run": f"cat {fifo}"})) == Created("r1")
        rows.away = True
        release(fifo, b"done")
        await freed.wait()
        row = await rows.row("r1")
        assert row is not None
        assert row.ended_at is None
        rows.away = False
        row = await rows.ended("r1")
    assert (row.state, row.output) == ("succeeded", b"done")


def make_fifo(folder: Path, name: str = "fifo") -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


def release(fifo: Path, data: bytes = b"go\n") -> None:
    """Write to a FIFO that a child reads, or will read; it is kept open both ways, so nobody blocks."""
    descriptor = os.open(fifo, os.O_RDWR)
    os.write(descriptor, data)
    # A reader that opened before us has its own end; closing ours gives it the end of the file.
    while not is_open_elsewhere(fifo):
        os.sched_yield()
    os.close(descriptor)


def is_open_elsewhere(fifo: Path) -> bool:
    me = str(os.getpid())
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != me:
            try:
                if any(os.readlink(entry) == str(fifo) for entry in (process / "fd").iterdir()):
                    return True
            except OSError:
                continue
    return False


async def test_a_place_is_held_until_the_process_has_ended(
    rows: Rows, request_for: MakeRequest, tmp_path: Path
) -> None:
    freed: list[int] = []
    fifo = make_fifo(tmp_path)
    async with started(rows, on_free=lambda: freed.append(1), max_in_flight=2) as target:
        assert (target.free(), target.max_in_flight) == (2, 2)
        action = {"run": f"cat {fifo}"}
        assert await target.create_run(request_for(action)) == Created("r1")
        assert await target.create_run(request_for(action, run_name="r2")) == Created("r2")
        assert target.free() == 0
        full = await target.create_run(request_for(action, run_name="r3"))
        assert full == Unavailable("all 2 places are taken")
        assert freed == []
        for name in ("r1", "r2"):
            row = await rows.until(name, lambda row: row.state == "running")
            assert row.pid is not None
            os.kill(row.pid, signal.SIGTERM)
            assert (await rows.ended(name)).detail == "killed by SIGTERM"
        assert target.free() == 2
        assert freed == [1, 1]


def test_places_are_as_many_as_processors_and_four_at_least(rows: Rows) -> None:
    target = LocalTarget(TargetSpec("local", "local"), rows, SystemClock(), "me", lambda: None)
    assert target.max_in_flight == max(4, os.cpu_count() or 1)


async def test_a_timeout_ends_the_whole_group(rows: Rows, request_for: MakeRequest) -> None:
    # The leader goes at TERM; its child ignores TERM and must be gone nevertheless.
    script = "(trap '' TERM; echo $$; exec sleep 1000) & echo $!; wait"
    action = check_action({"run": script, "shell": True, "timeout": "300ms"}, {}, "")
    async with started(rows) as target:
        await target.create_run(request_for(action))
        row = await rows.ended("r1")
    assert (row.state, row.detail) == ("failed", "timed out after 0.3 s")
    assert row.exit_code == -signal.SIGTERM
    await until_gone(max(int(line) for line in row.output.split()))


async def test_who_ignores_term_is_killed(rows: Rows, request_for: MakeRequest) -> None:
    action = check_action({"run": "trap '' TERM; while :; do sleep 1000; done", "shell": True}, {}, "")
    async with started(rows, {"kill_after": "200ms"}) as target:
        await target.create_run(request_for({**action, "timeout": 0.2}))
        row = await rows.ended("r1")
    assert (row.state, row.exit_code) == ("failed", -signal.SIGKILL)


async def until_gone(pid: int) -> None:
    """Return once no process has that number, or it is only waiting to be reaped by init."""
    async with asyncio.timeout(60):
        while is_alive(pid):
            await asyncio.sleep(0)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_command_has_a_session_of_its_own(run: Run) -> None:
    code = "import os; print(os.getpid() == os.getpgid(0) == os.getsid(0))"
    assert (await run({"run": [sys.executable, "-c", code]})).output == b"True\n"


async def test_what_stays_in_the_background_does_not_hold_the_place(
    rows: Rows, request_for: MakeRequest
) -> None:
    async with started(rows) as target:
        await target.create_run(request_for({"run": "sleep 1000 & echo $!", "shell": True}))
        row = await rows.ended("r1")
        assert row.state == "succeeded"
        assert target.free() == target.max_in_flight
        os.kill(int(row.output), signal.SIGKILL)


async def test_long_output_keeps_its_beginning_and_its_end(run: Run) -> None:
    code = "import sys; sys.stdout.write('a' * 40000 + 'm' * 3000000 + 'z' * 40000)"
    row = await run({"run": [sys.executable, "-c", code]})
    total = 3_080_000
    marker = f"\n... {total - HEAD - TAIL} bytes left out ...\n".encode()
    assert row.output == b"a" * HEAD + marker + b"z" * TAIL
    assert row.output_total == total


@pytest.mark.parametrize("size", [0, 1, HEAD - 1, HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 1, 500_000])
@pytest.mark.parametrize("step", [1, 7, 4096, 65_536, 1_000_000])
def test_the_bound_is_exact_however_the_bytes_come(size: int, step: int) -> None:
    data = bytes(number * 31 % 251 for number in range(size))
    output = BoundedOutput()
    for at in range(0, size, step):
        output.write(data[at : at + step])
    assert output.total == size
    if size <= HEAD + TAIL:
        assert output.kept() == data
    else:
        marker = f"\n... {size - HEAD - TAIL} bytes left out ...\n".encode()
        assert output.kept() == data[:HEAD] + marker + data[-TAIL:]


async def test_what_was_written_just_before_the_end_is_kept() -> None:
    command = local._Command(("echo", "last words"), {"PATH": os.environ["PATH"]}, None, None, None)
    process, pipe = local._start(command)
    child = local._Child(process, pipe)
    # Ended, and the event loop had no turn to read anything.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert child.output.total == 0
    assert child.reap() == 0
    assert child.output.kept() == b"last words\n"
    while not child.ended:
        child.news.clear()
        await child.news.wait()


async def test_output_can_be_followed_while_it_runs(
    rows: Rows, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "FLUSH_INTERVAL", 0.02)
    fifo = make_fifo(tmp_path)
    async with started(rows) as target:
        await target.create_run(request_for({"run": f"echo first; cat {fifo}", "shell": True}))
        row = await rows.until("r1", lambda row: row.output == b"first\n")
        assert (row.state, row.ended_at, row.output_total) == ("running", None, 6)
        release(fifo, b"last\n")
        assert (await rows.ended("r1")).output == b"first\nlast\n"


async def test_a_flood_of_output_is_written_at_most_once_an_interval(
    rows: Rows, request_for: MakeRequest, clock: SystemClock
) -> None:
    action = {"run": "yes | head -c 30000000; sleep 0.2", "shell": True}
    begun = clock.monotonic()
    async with started(rows) as target:
        await target.create_run(request_for(action))
        row = await rows.ended("r1")
    assert row.output_total == 30_000_000
    flushes = sum(what == "output" for what, _ in rows.writes)
    assert flushes <= (clock.monotonic() - begun) / local.FLUSH_INTERVAL


async def test_a_quick_run_costs_two_transactions(rows: Rows, run: Run) -> None:
    await run({"run": "true"})
    writes = [what for what, name in rows.writes if name.endswith("/r1")]
    # Unless the machine is so busy that `true` is not quick.
    assert writes in (["begin", "end"], ["begin", "running", "end"])


async def test_one_name_in_two_projects_is_two_runs(rows: Rows, request_for: MakeRequest) -> None:
    elsewhere = replace(KEY, project="other")
    async with started(rows) as target:
        first = await target.create_run(request_for({"run": "echo first"}))
        second = await target.create_run(request_for({"run": "echo second"}, trigger=elsewhere))
        assert (first, second) == (Created("r1"), Created("r1"))
        assert (await rows.ended("r1")).output == b"first\n"
    other = await rows.local_run("other/production/r1")
    assert other is not None
    assert other.output in (b"second\n", b"")


async def test_drain_lets_what_runs_end(rows: Rows, request_for: MakeRequest, tmp_path: Path) -> None:
    fifo = make_fifo(tmp_path)
    async with started(rows) as target:
        await target.create_run(request_for({"run": f"cat {fifo}"}))
        draining = asyncio.create_task(target.drain(timedelta(seconds=60)))
        await asyncio.sleep(0)
        assert target.free() == 0
        late = await target.create_run(request_for({"run": "true"}, run_name="r2"))
        assert late == Unavailable("the server is stopping")
        assert not draining.done()
        release(fifo)
        await draining
        row = await rows.row("r1")
    assert row is not None
    assert (row.state, row.output) == ("succeeded", b"go\n")


async def test_a_drain_that_is_over_stops_the_group_and_marks_it(
    rows: Rows, request_for: MakeRequest
) -> None:
    async with started(rows) as target:
        await target.create_run(request_for({"run": "echo begun; sleep 1000 & echo $!; wait", "shell": True}))
        await rows.until("r1", lambda row: row.state == "running")
        await target.drain(timedelta())
        row = await rows.row("r1")
    assert row is not None
    assert (row.state, row.detail) == ("interrupted", "stopped with the server")
    assert row.ended_at is not None
    begun, _, pid = row.output.decode().strip().partition("\n")
    assert begun == "begun"
    await until_gone(int(pid))


async def test_a_start_marks_what_an_earlier_server_left(rows: Rows, request_for: MakeRequest) -> None:
    now = SystemClock().now()
    await rows.local_begin("etl/production/left", "an earlier server", now)
    await rows.local_running("etl/production/left", 4_000_000)
    async with started(rows) as target:
        row = await rows.ended("left")
        assert row.state == "interrupted"
        # It is not run again by itself: the name is taken.
        assert await target.create_run(request_for({"run": "true"}, run_name="left")) == AlreadyExists("left")


async def test_a_caller_that_gives_up_leaves_no_row_without_its_run(
    rows: Rows, request_for: MakeRequest
) -> None:
    async with started(rows) as target:
        calling = asyncio.create_task(target.create_run(request_for({"run": "echo here"})))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        row = await rows.ended("r1")
        assert (row.state, row.output) == ("succeeded", b"here\n")


async def test_without_pidfd_it_works_as_well(
    rows: Rows, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    async with started(rows) as target:
        for number in range(5):
            name = f"r{number}"
            await target.create_run(request_for({"run": f"echo {number}"}, run_name=name))
            assert (await rows.ended(name)).output == f"{number}\n".encode()
        await target.create_run(request_for({"run": "sleep 1000", "timeout": 0.1}, run_name="slow"))
        assert (await rows.ended("slow")).detail == "timed out after 0.1 s"


async def test_no_descriptor_is_left_behind(rows: Rows, request_for: MakeRequest, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    async with started(rows, max_in_flight=20) as target:
        await target.create_run(request_for({"run": "echo warm", "stdin": "x"}, run_name="warm"))
        await rows.ended("warm")
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            action = {"run": "cat" if number % 2 else str(broken), "stdin": "x"}
            await target.create_run(request_for(action, run_name=f"r{number}"))
        for number in range(1, 20, 2):
            await rows.ended(f"r{number}")
        assert len(os.listdir("/proc/self/fd")) <= before


JOBS = """
import asyncio, os, sys

def train(epochs, *, rate=0.1):
    print("trained", epochs, rate, os.environ["HORARIUM_RUN_NAME"], os.getpid() != os.getppid())
    print("to stderr", file=sys.stderr)

async def fetch(url: str):
    await asyncio.sleep(0)
    print("fetched", url)

def broken():
    raise ValueError("no data for monday")

def leaves():
    sys.exit(7)

def positional(a, /, b=1): ...
def anything(**options): print(sorted(options))
def decorate(function): return lambda **options: function()

@decorate
def decorated(): print("decorated")

class Report:
    @staticmethod
    def weekly(n=1): print("weekly", n)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    package = tmp_path / "ml"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "jobs.py").write_text(JOBS)
    (package / "wide.py").write_text("from ml.jobs import *\nif True:\n    def maybe(): ...\n")
    return str(tmp_path)


async def test_a_function_gets_the_parameters_as_keyword_arguments(run: Run, jobs: str) -> None:
    row = await run({"python": "ml.jobs:train", "cwd": jobs}, parameters={"epochs": 3})
    assert row.output == b"trained 3 0.1 r1 True\nto stderr\n"
    assert (row.state, row.exit_code) == ("succeeded", 0)


async def test_an_async_function_is_run_to_its_end(run: Run, jobs: str) -> None:
    row = await run({"python": "ml.jobs:fetch", "cwd": jobs}, parameters={"url": "x"})
    assert (row.state, row.output) == ("succeeded", b"fetched x\n")


async def test_a_function_that_raises_leaves_its_traceback(run: Run, jobs: str) -> None:
    row = await run({"python": "ml.jobs:broken", "cwd": jobs})
    assert (row.state, row.exit_code) == ("failed", 1)
    assert b"ValueError: no data for monday" in row.output


async def test_a_function_may_choose_its_exit_code(run: Run, jobs: str) -> None:
    assert (await run({"python": "ml.jobs:leaves", "cwd": jobs})).exit_code == 7


async def test_a_method_and_a_decorated_function_can_be_named(run: Run, jobs: str) -> None:
    row = await run({"python": "ml.jobs:Report.weekly", "cwd": jobs}, parameters={"n": 2})
    assert row.output == b"weekly 2\n"


async def test_a_module_that_is_not_there_says_so(run: Run, jobs: str) -> None:
    row = await run({"python": "ml.gone:train", "cwd": jobs})
    assert (row.state, row.exit_code) == ("failed", 2)
    assert b"ml.gone:train can't be loaded" in row.output


@pytest.mark.parametrize(
    ("reference", "parameters"),
    [
        ("ml.jobs:train", {"epochs": 1}),
        ("ml.jobs:train", {"epochs": 1, "rate": 0.5}),
        ("ml.jobs:anything", {"x": 1, "y": 2}),
        ("ml.jobs:decorated", {"what": "ever"}),
        ("ml.jobs:Report.weekly", {"what": "ever"}),
        ("ml.wide:train", {"what": "ever"}),
        ("ml.wide:maybe", {"what": "ever"}),
        ("not_here.at_all:train", {"what": "ever"}),
    ],
)
def test_what_may_be_callable_passes(jobs: str, reference: str, parameters: dict[str, Any]) -> None:
    checked = check_action({"python": reference, "cwd": jobs}, parameters, "/d")
    assert checked == {"python": reference, "cwd": jobs}
    assert not any(name == "ml" or name.startswith("ml.") for name in sys.modules), "nothing is imported"


@pytest.mark.parametrize(
    ("reference", "parameters", "pointers", "words"),
    [
        ("ml.jobs:train", {}, ["/d/parameters"], "needs an argument 'epochs'"),
        (
            "ml.jobs:train",
            {"epoch": 1},
            ["/d/parameters", "/d/parameters/epoch"],
            "takes no argument 'epoch'",
        ),
        ("ml.jobs:positional", {"b": 1}, ["/d/parameters"], "by position only"),
        ("ml.jobs:trane", {}, ["/d/python"], "has no trane"),
        ("ml.jobs.train", {}, ["/d/python"], "package.module:function"),
        ("ml.jobs:train(3)", {}, ["/d/python"], "package.module:function"),
        (":train", {}, ["/d/python"], "package.module:function"),
    ],
)
def test_what_surely_cannot_be_called_is_refused(
    jobs: str, reference: str, parameters: dict[str, Any], pointers: list[str], words: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_action({"python": reference, "cwd": jobs}, parameters, "/d")
    assert [problem.pointer for problem in caught.value.problems] == pointers
    assert words in str(caught.value)


def test_a_changed_source_is_read_anew(jobs: str) -> None:
    source = Path(jobs) / "ml" / "jobs.py"
    check_action({"python": "ml.jobs:train", "cwd": jobs}, {"epochs": 1}, "/d")
    source.write_text("def train(steps): ...\n")
    with pytest.raises(InvalidInput):
        check_action({"python": "ml.jobs:train", "cwd": jobs}, {"epochs": 1}, "/d")


@pytest.mark.parametrize(
    ("action", "pointers"),
    [
        ({}, ["/d"]),
        ({"run": "date", "python": "a:b"}, ["/d"]),
        ({"run": ""}, ["/d/run"]),
        ({"run": "# only a comment", "shell": False, "env": {"": "x"}}, ["/d/env/"]),
        ({"run": "echo 'open"}, ["/d/run"]),
        ({"run": []}, ["/d/run"]),
        ({"run": ["date", 5]}, ["/d/run"]),
        ({"run": [""]}, ["/d/run"]),
        ({"run": "a\0b"}, ["/d/run"]),
        ({"run": 5}, ["/d/run"]),
        ({"run": ["date"], "shell": True}, ["/d/run"]),
        ({"python": "os:getpid", "shell": True}, ["/d/shell"]),
        ({"run": "date", "shell": "yes"}, ["/d/shell"]),
        (
            {"run": "date", "env": {"A=B": "x", "HORARIUM_X": "1", "N": None}},
            ["/d/env/A=B", "/d/env/HORARIUM_X", "/d/env/N"],
        ),
        ({"run": "date", "env": "A=B"}, ["/d/env"]),
        ({"run": "date", "timeout": "-1s"}, ["/d/timeout"]),
        ({"run": "date", "timeout": "400d"}, ["/d/timeout"]),
        ({"run": "date", "stdin": "x" * 1_100_000}, ["/d/stdin"]),
        ({"run": "date", "stdin": 5, "cwd": "", "when": 1}, ["/d/when", "/d/cwd", "/d/stdin"]),
    ],
)
def test_an_action_that_cannot_be_is_refused_with_its_fields(action: Any, pointers: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_action(action, {}, "/d")
    assert [problem.pointer for problem in caught.value.problems] == pointers


def test_parameters_that_no_process_can_take_are_refused() -> None:
    with pytest.raises(InvalidInput, match="120,000 bytes"):
        check_action({"run": "date"}, {"big": "x" * 130_000}, "/d")
    with pytest.raises(InvalidInput, match="no NaN"):
        check_action({"run": "date"}, {"nan": float("nan")}, "/d")


async def test_the_largest_parameters_that_pass_the_check_do_start(run: Run) -> None:
    row = await run({"run": "true"}, parameters={"big": "x" * 119_900})
    assert row.state == "succeeded"


def test_a_config_is_normalised_and_checked() -> None:
    assert check_config({"inherit_env": ["B", "A", "A"], "kill_after": "1s"}, "") == {
        "inherit_env": ["A", "B"],
        "kill_after": 1.0,
    }
    with pytest.raises(InvalidInput) as caught:
        check_config({"inherit_env": "PATH", "kill_after": "1h", "places": 3}, "/t")
    assert {problem.pointer for problem in caught.value.problems} == {
        "/t/inherit_env",
        "/t/kill_after",
        "/t/places",
    }


def fired_run(name: str) -> FiredRun:
    return FiredRun(1, name, KEY, 1, SystemClock().now())


async def test_it_says_how_a_run_is_going(rows: Rows, request_for: MakeRequest, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    action = check_action({"run": f"read line < {gate}; exit 3", "shell": True}, {}, "")
    async with started(rows) as target:
        await target.create_run(request_for(action))
        assert await target.status([fired_run("r1")]) == []
        with gate.open("w") as opened:
            opened.write("go\n")
        await rows.ended("r1")
        (report,) = await target.status([fired_run("r1")])
        assert (report.result, report.detail) == (Result.ERRORED, "exit code 3")
        (nobody,) = await target.status([fired_run("r2")])
        assert nobody.result is Result.UNKNOWN


async def test_a_run_that_is_cancelled_ends_with_its_whole_group(
    rows: Rows, request_for: MakeRequest, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    line = f"sleep 1000 & echo $! > {pids}; wait"
    action = check_action({"run": line, "shell": True}, {}, "")
    async with started(rows, max_in_flight=1) as target:
        await target.create_run(request_for(action))
        child = int(await asyncio.to_thread(pids.read_text))
        report = await target.cancel(fired_run("r1"))
        assert report is not None
        assert (report.run_key, report.result) == ("etl/production/r1", Result.CANCELLED)
        assert (await rows.ended("r1")).state == "cancelled"
        await until_gone(child)
        assert target.free() == 1
        # Asked again, or after its end, it says the same.
        assert await target.cancel(fired_run("r1")) == report


async def test_a_run_that_another_server_has_is_not_cancelled_from_here(
    rows: Rows, request_for: MakeRequest
) -> None:
    await rows.local_begin("etl/production/r1", "another server", SystemClock().now())
    target = LocalTarget(
        TargetSpec("local", "local", check_config({}, "")), rows, SystemClock(), "this server", lambda: None
    )
    assert await target.cancel(fired_run("r1")) is None
    await target.close()
