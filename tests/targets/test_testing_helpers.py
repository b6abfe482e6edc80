"""The helpers that users get for their own tests keep the contracts they stand in for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from horarium.clock import Clock, Ids
from horarium.targets.base import AlreadyExists, Created, FireRequest, Refused, Target, Unavailable
from horarium.testing import START, FakeTarget, LostAnswer, SequenceIds, VirtualClock

MakeRequest = Callable[..., FireRequest]


async def test_a_virtual_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = (virtual := VirtualClock())
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    virtual.advance(90)
    virtual.advance(timedelta(microseconds=1))
    assert clock.now() == START + timedelta(seconds=90, microseconds=1)
    assert clock.monotonic() == pytest.approx(90.000001)


async def test_a_wait_ends_when_its_time_has_come() -> None:
    clock = VirtualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 10))
    await clock.until_waiting()
    clock.advance(9.999)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(0.001)
    assert await waiting is False
    assert clock.waiting == 0


async def test_a_wait_ends_when_its_event_is_set() -> None:
    clock, event = VirtualClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 10))
    await clock.until_waiting()
    event.set()
    assert await waiting is True
    assert event.is_set(), "it does not clear the event"
    assert await clock.wait(event, 10) is True
    assert await clock.wait(asyncio.Event(), 0) is False
    assert clock.waiting == 0


async def test_a_wait_can_be_cancelled() -> None:
    clock = VirtualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 10))
    await clock.until_waiting()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock.waiting == 0
    await clock.run_for(20)


async def test_run_for_stops_wherever_a_loop_wants_to_wake() -> None:
    clock, stop, woken = VirtualClock(), asyncio.Event(), list[float]()

    async def loop() -> None:
        while not await clock.wait(stop, 2.5):
            woken.append(clock.monotonic())

    looping = asyncio.create_task(loop())
    await clock.run_for(10)
    assert woken == [2.5, 5.0, 7.5, 10.0]
    stop.set()
    await looping


async def test_the_wall_clock_can_be_wrong_and_nobody_wakes() -> None:
    clock = VirtualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 10))
    await clock.until_waiting()
    clock.skew(-3600)
    assert clock.now() == START - timedelta(hours=1)
    assert clock.monotonic() == 0
    clock.skew(7200)
    await asyncio.sleep(0)
    assert not waiting.done()
    await clock.run_for(10)
    assert await waiting is False
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_ids_count_and_fractions_repeat() -> None:
    ids: Ids = SequenceIds((0.25, 0.75))
    assert [ids.new_id() for _ in range(2)] == ["0" * 31 + "1", "0" * 31 + "2"]
    assert [ids.fraction() for _ in range(3)] == [0.25, 0.75, 0.25]
    for wrong in ((), (1.0,), (-0.1,)):
        with pytest.raises(ValueError, match="fractions"):
            SequenceIds(wrong)


async def test_a_fake_target_creates_a_name_once(request_for: MakeRequest) -> None:
    target: Target = (fake := FakeTarget())
    assert await target.create_run(request_for()) == Created()
    assert await target.create_run(request_for(attempt=2)) == AlreadyExists()
    assert await target.create_run(request_for(run_name="r2")) == Created()
    assert [call.attempt for call in fake.calls_of("r1")] == [1, 2]
    assert list(fake.created) == ["r1", "r2"]


async def test_answers_come_from_the_script(request_for: MakeRequest) -> None:
    fake = FakeTarget()
    fake.script(Unavailable("busy"), Created("job-1"))
    fake.script(Refused("never"), OSError("cable"), run_name="r2")
    assert await fake.create_run(request_for(run_name="r2")) == Refused("never")
    assert await fake.create_run(request_for()) == Unavailable("busy")
    with pytest.raises(OSError, match="cable"):
        await fake.create_run(request_for(run_name="r2"))
    assert await fake.create_run(request_for()) == Created("job-1")
    assert await fake.create_run(request_for(run_name="r2")) == Created()


async def test_a_lost_answer_happened_or_not(request_for: MakeRequest) -> None:
    fake = FakeTarget()
    fake.script(LostAnswer(), LostAnswer(happened=False))
    first = await fake.create_run(request_for())
    assert isinstance(first, Unavailable)
    assert first.unknown
    await fake.create_run(request_for(run_name="r2"))
    assert list(fake.created) == ["r1"]
    assert await fake.create_run(request_for()) == AlreadyExists()
    assert await fake.create_run(request_for(run_name="r2")) == Created()


async def test_a_function_may_answer(request_for: MakeRequest) -> None:
    async def slowly(request: FireRequest) -> Created:
        await asyncio.sleep(0)
        return Created(f"job-{request.attempt}")

    fake = FakeTarget()
    fake.script(slowly, lambda request: Unavailable(request.run_name), slowly)
    assert await fake.create_run(request_for()) == Created("job-1")
    assert await fake.create_run(request_for()) == Unavailable("r1")
    assert await fake.create_run(request_for(attempt=3)) == AlreadyExists("job-3")


async def test_held_calls_keep_their_places_until_released(request_for: MakeRequest) -> None:
    freed: list[bool] = []
    fake = FakeTarget(max_in_flight=2, on_free=lambda: freed.append(True))
    fake.hold()
    calls = [asyncio.create_task(fake.create_run(request_for(run_name=f"r{n}"))) for n in range(2)]
    await fake.until_calls(2)
    assert (fake.free(), list(fake.created)) == (0, [])
    fake.release()
    assert await asyncio.gather(*calls) == [Created(), Created()]
    assert (fake.free(), len(freed)) == (2, 2)


async def test_a_created_run_may_hold_its_place(request_for: MakeRequest) -> None:
    fake = FakeTarget(max_in_flight=1, holds_places=True)
    await fake.create_run(request_for())
    assert fake.free() == 0
    fake.finish("r1")
    assert fake.free() == 1


async def test_a_target_that_is_down_answers_so(request_for: MakeRequest) -> None:
    fake = FakeTarget(down="maintenance")
    assert await fake.create_run(request_for()) == Unavailable("maintenance")
    fake.down = None
    assert await fake.create_run(request_for()) == Created()
