"""The real process, killed and stopped in every way: nothing is lost, nothing is doubled.

`HORARIUM_CHAOS_SECONDS` is for how long the server is killed again and again (15), `HORARIUM_CHAOS_SEED`
repeats the kills of a run as far as chance outside of this test lets it. What is expected comes from the few
lines at the end of this file, which know nothing of Horarium's code.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.process import PATIENCE, News, Receiver, Server, rows

SECONDS = float(os.environ.get("HORARIUM_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("HORARIUM_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)

# A killed server's claims are tried again when their lease has passed, so that is short here; the window
# ahead is short too, so that the planner writes all the time and is killed while it does.
SETTINGS = {"lease": "2s", "execution_qps": "0", "min_scheduled_time": "4s", "max_runs": "20"}

STEPS = {"one": 1, "two": 2, "three": 3, "five": 5, "seven": 7}
"""Deployment → seconds between its slots, counted from the epoch."""


async def test_killed_at_random_every_slot_arrives_once(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    database, news = tmp_path / "horarium.db", News()
    async with Receiver(news) as receiver:
        triggers = _write(
            tmp_path,
            receiver.url,
            one="{target: sink, every: 1s}",
            two="{target: sink, every: 2s}",
            three='{target: sink, cron: "*/3 * * * * *"}',  # three divides a minute, so the slots are even
            five='{target: sink, cron: "*/5 * * * * *", timezone: Asia/Kathmandu}',
            seven="{target: sink, triggers: {odd: {every: 7s}}}",
        )
        server = await Server.start(database, triggers, news, **SETTINGS)
        await server.serves()
        kills, lost_answers = 0, 0
        until = time.monotonic() + SECONDS
        while time.monotonic() < until or kills < 3:
            lost_answers += await _moment_to_kill(chance, server, receiver)
            await server.kill()
            assert server.process.returncode == -signal.SIGKILL, "\n".join(server.log)
            kills += 1
            receiver.hold = False
            server = await Server.start(database, triggers, news, **SETTINGS)
        await server.serves()
        end = int(time.time())
        created = min(at for (at,) in rows(database, "select created_at from trigger")) / 1e6
        expected = {
            _name(deployment, slot): (deployment, slot)
            for deployment, step in STEPS.items()
            for slot in _slots(created, end, step)
        }
        await receiver.until(lambda: expected.keys() <= {item.key for item in receiver.arrivals})
        # One whose caller was killed after it arrived is asked for again when its lease is over.
        waiting = "select 1 from run where state = 'scheduled' and scheduled_time <= :end"
        while rows(database, waiting, {"end": end * 1_000_000}):
            await server.logs_more('"fired"')
        server.terminate()
        assert await server.exit() == 0, "\n".join(server.log)

    print(
        f"seed {SEED}: {kills} kills, {lost_answers} answers lost, {len(expected)} slots, "
        f"{len(receiver.arrivals)} requests"
    )
    # Nothing but slots arrived, under the name of each, and a repeat is another attempt at the same slot.
    seen = [item for item in receiver.arrivals if _seconds(item.slot) <= end]
    assert {item.key: (item.subject.split("/")[2], _seconds(item.slot)) for item in seen} == expected
    assert all(item.key == _name(item.subject.split("/")[2], _seconds(item.slot)) for item in seen)
    calls = Counter((item.key, item.attempt) for item in receiver.arrivals)
    assert max(calls.values()) == 1, calls.most_common(3)
    # The database says the same: one run a slot, fired, and no slot was skipped.
    found = rows(
        database,
        "select t.deployment, r.scheduled_time / 1000000, r.state, count(*) from run r"
        " join trigger t on t.id = r.trigger_id where r.scheduled_time <= :end group by 1, 2",
        {"end": end * 1_000_000},
    )
    assert sorted((deployment, slot) for deployment, slot, _, _ in found) == sorted(expected.values())
    assert {(state, count) for _, _, state, count in found} == {("fired", 1)}
    assert rows(database, "select * from skip") == []
    assert lost_answers == 0 or len(receiver.arrivals) > len({item.key for item in receiver.arrivals})


async def test_a_second_server_on_the_file_is_refused(tmp_path: Path) -> None:
    async with _serving(tmp_path, one="{target: sink, every: 1s}") as (server, receiver, database):
        second = await Server.start(database, tmp_path / "triggers.yaml", receiver.news, **SETTINGS)
        assert await second.exit() == 4
        message = "\n".join(second.log)
        assert "another server" in message
        assert str(server.process.pid) in message
        assert "Traceback" not in message
        # The first one did not notice.
        before = len(receiver.arrivals)
        await receiver.until(lambda: len(receiver.arrivals) > before)


async def test_sigterm_lets_a_call_in_flight_finish(tmp_path: Path) -> None:
    async with _serving(tmp_path, one="{target: sink, every: 1s}", hold=True) as (server, receiver, database):
        await receiver.until(lambda: len(receiver.arrivals) > 0)
        server.terminate()
        await server.says("^stopping")
        asked = [item.key for item in receiver.arrivals]
        receiver.release()
        assert await server.exit() == 0, "\n".join(server.log)
        settled = dict(rows(database, "select name, state from run where attempt > 0"))
        assert settled == dict.fromkeys([item.key for item in receiver.arrivals], "fired")
        assert set(asked) <= settled.keys()
        assert server.out[-1] == "stopped"


async def test_a_second_sigterm_exits_at_once_and_loses_nothing(tmp_path: Path) -> None:
    async with _serving(tmp_path, one="{target: sink, every: 1s}", hold=True) as (server, receiver, database):
        await receiver.until(lambda: len(receiver.arrivals) > 0)
        server.terminate()
        await server.says("^stopping")
        server.terminate()  # the answer is still held back: only leaving at once ends it
        assert await server.exit() == 128 + signal.SIGTERM
        assert "stopped" not in server.out
        key = receiver.arrivals[0].key
        assert rows(database, "select state from run where name = :key", {"key": key}) == [("scheduled",)]
        receiver.release()
        again = await Server.start(database, tmp_path / "triggers.yaml", receiver.news, **SETTINGS)
        try:
            await again.logs(f'"fired".*"run": "{key}"')
        finally:
            await again.kill()
        state = rows(database, "select state, attempt from run where name = :key", {"key": key})
        assert state == [("fired", 2)]


async def test_a_command_cut_off_by_a_kill_is_marked_and_not_rerun(tmp_path: Path) -> None:
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    async with _started_commands(pipe) as started:
        command = f"sh -c 'echo $$ $HORARIUM_RUN_NAME > {pipe}; exec sleep 600'"
        triggers = _write(tmp_path, "", one=f'{{target: one-place, run: "{command}", every: 1s}}')
        database, news = tmp_path / "horarium.db", News()
        server = await Server.start(database, triggers, news, **SETTINGS)
        try:
            _, name = (await asyncio.wait_for(started.get(), PATIENCE)).split()
            await server.logs(f'"fired".*"run": "{name}"')
        finally:
            await server.kill()
        again = await Server.start(database, triggers, news, **SETTINGS)
        try:
            # The place of the one that was cut off is free again, and the next slot's command takes it.
            _, next_name = (await asyncio.wait_for(started.get(), PATIENCE)).split()
            await again.logs(f'"fired".*"run": "{next_name}"')
        finally:
            await again.kill()
        assert next_name != name
        found = rows(database, "select state from local_run where run_name like '%' || :name", {"name": name})
        assert found == [("interrupted",)]
        found = rows(database, "select state, result, attempt from run where name = :name", {"name": name})
        assert found == [("fired", "interrupted", 1)]
        assert started.empty()


async def test_at_start_it_says_what_is_owed_and_why(tmp_path: Path) -> None:
    async with _serving(tmp_path, tick="{target: sink, every: 1s}") as (server, receiver, database):
        await receiver.until(lambda: len(receiver.arrivals) >= 2)
        await server.kill()
        await _until_instant(int(time.time()) + 4)  # the downtime, which is what this is about
        before = int(time.time())
        # What nobody has called is owed at once; what was called is when its lease is over.
        claimed = "select count(*) from run where attempt > 0 and state = 'scheduled'"
        ((unanswered,),) = rows(database, claimed)
        ((last,),) = rows(database, "select max(scheduled_time) / 1000000 from run where attempt > 0")
        again = await Server.start(database, tmp_path / "triggers.yaml", receiver.news, **SETTINGS)
        try:
            line = await again.says(r"owes")
            after = int(time.time())
            match = re.fullmatch(
                r"down \d\S*: tick owes (\d+) slots; catch_up=all, firing (\d+)", line.strip()
            )
            assert match is not None, line
            owed, firing = int(match[1]), int(match[2])
            assert before - last <= owed <= after - last + unanswered
            assert firing == owed
            assert again.out[0] == line  # before it serves, so before anything fires
            due = {_name("tick", slot) for slot in _slots(last, before, 1)}
            await receiver.until(lambda: due <= {item.key for item in receiver.arrivals})
        finally:
            await again.kill()


# how


@asynccontextmanager
async def _serving(
    folder: Path, *, hold: bool = False, **deployments: str
) -> AsyncIterator[tuple[Server, Receiver, Path]]:
    """A server and its receiver; afterwards the server is gone, however the test ended."""
    database, news = folder / "horarium.db", News()
    async with Receiver(news, hold=hold) as receiver:
        server = await Server.start(database, _write(folder, receiver.url, **deployments), news, **SETTINGS)
        try:
            await server.serves()
            yield server, receiver, database
        finally:
            await server.kill()


async def _moment_to_kill(chance: random.Random, server: Server, receiver: Receiver) -> int:
    """Return when the server shall die: 1 if it is then waiting for an answer that it will never get."""
    seen, logged, said = len(receiver.arrivals), len(server.log), len(server.out)
    news, more = receiver.news, chance.randint(1, 8)
    match chance.choice(["unanswered", "unanswered", "answered", "log", "start", "any time"]):
        case "unanswered":
            await receiver.until(lambda: len(receiver.arrivals) >= seen + more)
            receiver.hold = True
            seen = len(receiver.arrivals)
            await receiver.until(lambda: len(receiver.arrivals) > seen)
            return 1
        case "answered":
            await receiver.until(lambda: len(receiver.arrivals) >= seen + more)
        case "log":
            await news.until(lambda: len(server.log) >= logged + more)
        case "start":
            await news.until(lambda: len(server.out) > said or len(server.log) > logged)
        case _:
            # No signal is needed for "at any moment": it waits for an end that does not come by itself.
            with suppress(TimeoutError):
                await asyncio.wait_for(server.process.wait(), chance.uniform(0.05, 2.5))
    return 0


@asynccontextmanager
async def _started_commands(pipe: Path) -> AsyncIterator[asyncio.Queue[str]]:
    """Lines `PID NAME` of commands as they start; what still runs is ended afterwards."""
    loop = asyncio.get_running_loop()
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    queue: asyncio.Queue[str] = asyncio.Queue()
    pids: list[int] = []

    def read() -> None:
        for line in os.read(descriptor, 65_536).decode().splitlines():
            pids.append(int(line.split()[0]))
            queue.put_nowait(line)

    loop.add_reader(descriptor, read)
    try:
        yield queue
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _until_instant(seconds: int) -> None:
    come = asyncio.Event()
    asyncio.get_running_loop().call_later(max(0.0, seconds - time.time()), come.set)
    await come.wait()


def _write(folder: Path, url: str, **deployments: str) -> Path:
    """A triggers file with the targets `sink` (the receiver) and `one-place` (commands, one at a time)."""
    lines = ["source: chaos", "targets:", "  one-place: {local: {}, max_in_flight: 1}"]
    if url:
        lines.append(f'  sink: {{http: {{url: "{url}", timeout: 1s}}}}')
    lines += ["deployments:", *(f"  {name}: {text}" for name, text in deployments.items())]
    path = folder / "triggers.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


# the calculator


def _slots(after: float, until: int, step: int) -> Iterator[int]:
    """The multiples of `step` seconds in `(after, until]`."""
    first = int(after // step) * step + step
    return iter(range(first, until + 1, step))


def _name(deployment: str, slot: int) -> str:
    """Flyte's name of a slot: FNV-1, 64 bits, over the key and the UTC time, unpadded."""
    at = datetime.fromtimestamp(slot, UTC)
    trigger = "odd" if deployment == "seven" else "default"
    text = f"default:default:{deployment}:{trigger}:"
    text += ":".join(str(part) for part in (at.year, at.month, at.day, at.hour, at.minute, at.second))
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = value * 0x100000001B3 % 2**64 ^ byte
    return f"r{value:x}"


def _seconds(instant: str) -> int:
    return int(datetime.fromisoformat(instant).timestamp())


@pytest.mark.parametrize(("after", "until", "step", "slots"), [(10.0, 16, 3, [12, 15]), (9.5, 12, 3, [12])])
def test_the_calculator(after: float, until: int, step: int, slots: list[int]) -> None:
    assert list(_slots(after, until, step)) == slots
