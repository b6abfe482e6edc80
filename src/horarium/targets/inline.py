"""The `inline` target: functions of the program that Horarium is embedded in.

An async function runs in the program's event loop, any other in a thread of its own. A deployment names
one with `{"call": "NAME"}`; the parameters are its keyword arguments, and `current_run()` tells it which run
it serves.

What is promised: a name is executed once, since a row is committed before the call. What is not: a process of
its own. A function that blocks the loop blocks Horarium, one that crashes the program crashes it, a thread
can't be stopped (so a sync function takes no `timeout`), and what is printed is not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from horarium.clock import Clock
from horarium.core.spec import Json, TargetSpec
from horarium.targets.base import FireRequest, LocalRun, LocalRuns, TargetTraits
from horarium.targets.checks import Fields
from horarium.targets.embedded import QUICK, CannotStart, EmbeddedTarget, Execution
from horarium.targets.output import BoundedOutput

CONFIG_KEYS = ()
ACTION_KEYS = ("call", "timeout")
DEFAULT_MAX_IN_FLIGHT = 16

LONGEST_TIMEOUT = timedelta(days=366)

_CANCEL_GRACE = 5.0
"""Seconds that a cancelled function has to clean up."""

_current: contextvars.ContextVar[FireRequest] = contextvars.ContextVar("horarium_current_run")


def current_run() -> FireRequest:
    """The run that the calling function serves. Raises `LookupError` outside of one."""
    return _current.get()


class InlineTarget(EmbeddedTarget):
    """See the module. `functions` may grow while the target runs."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        holds_place=True,
        note="in the program's own process: no isolation, output is not kept, threads can't be stopped",
        names_kept_here=True,
    )

    def __init__(
        self,
        spec: TargetSpec,
        functions: Mapping[str, Callable[..., Any]],
        runs: LocalRuns,
        clock: Clock,
        owner: str,
        on_free: Callable[[], None],
    ) -> None:
        super().__init__(runs, clock, owner, on_free, spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT)
        self._functions = functions

    async def _check(self, request: FireRequest) -> None:
        name = request.action["call"]
        function = self._functions.get(name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            raise CannotStart(f"no function is registered as {name!r}; registered: {known}")
        if request.action.get("timeout") and not _is_async(function):
            raise CannotStart(
                f"{name!r} runs in a thread, which can't be stopped, so it takes no timeout; "
                "make it async, or run it as python: with the local target"
            )
        try:
            inspect.signature(function).bind(**request.parameters)
        except TypeError as error:
            raise CannotStart(f"{name!r} can't be called with these parameters: {error}") from error

    async def _begin(self, request: FireRequest) -> Execution:
        function = self._functions[request.action["call"]]
        context = contextvars.copy_context()
        context.run(_current.set, request)
        if _is_async(function):
            loop = asyncio.get_running_loop()
            work: asyncio.Future[Any] = loop.create_task(
                _guarded(function, request.parameters), context=context
            )
        else:
            work = _in_thread(request.run_name, lambda: context.run(function, **request.parameters))
        return _Call(work, request.action.get("timeout"), self._runs, self._clock, self._stopping)


class _Call(Execution):
    def __init__(
        self,
        work: asyncio.Future[Any],
        timeout: float | None,
        runs: LocalRuns,
        clock: Clock,
        stopping: asyncio.Event,
    ) -> None:
        self.pid = os.getpid()
        self._work = work
        self._timeout = timeout
        self._runs = runs
        self._clock = clock
        self._stopping = stopping

    def cancel(self) -> None:
        self._work.cancel()

    async def follow(self, row: LocalRun) -> LocalRun:
        row = replace(row, pid=self.pid)
        done, ended = asyncio.Event(), asyncio.Event()
        self._work.add_done_callback(lambda _: done.set())
        self._work.add_done_callback(lambda _: ended.set())
        stop = asyncio.ensure_future(self._stopping.wait())
        stop.add_done_callback(lambda _: ended.set())
        reason = ""
        try:
            begun = self._clock.monotonic()
            if not await self._clock.wait(ended, min(QUICK, self._timeout or QUICK)):
                await self._runs.local_running(row.run_name, self.pid or 0)
                left = 86_400.0 * 366
                if self._timeout:
                    left = max(0.0, begun + self._timeout - self._clock.monotonic())
                if not await self._clock.wait(ended, left):
                    reason = f"timed out after {self._timeout:g} s"
            if not self._work.done():
                self._work.cancel()
                reason = reason or "stopped with the server"
                # One that does not let itself be cancelled is left behind; its row says what was asked of it.
                await self._clock.wait(done, _CANCEL_GRACE)
        finally:
            stop.cancel()
        return self._result(row, reason)

    def _result(self, row: LocalRun, reason: str) -> LocalRun:
        row = replace(row, ended_at=self._clock.now())
        if self._work.done() and not self._work.cancelled():
            self._work.exception()  # read, or asyncio complains that nobody did
        if reason.startswith("stopped"):
            return replace(row, state="interrupted", detail=reason)
        if reason or self._work.cancelled():
            return replace(row, state="failed", detail=reason or "it was cancelled")
        error = self._work.exception()
        if error is None:
            return replace(row, state="succeeded", exit_code=0)
        output = BoundedOutput()
        output.write("".join(traceback.format_exception(error)).encode("utf-8", "replace"))
        return replace(
            row,
            state="failed",
            exit_code=1,
            detail=f"{type(error).__name__}: {error}"[:1000],
            output=output.kept(),
            output_total=output.total,
        )


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """An inline target has no fields of its own. Raises `InvalidInput`."""
    Fields(config, pointer, "an inline target", CONFIG_KEYS).raise_problems()
    return {}


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `call` (a registered name), `timeout` (async functions only).

    Whether the name is registered shows when it is called: the file may be checked in another program.
    Raises `InvalidInput`.
    """
    fields = Fields(action, pointer, "a deployment of an inline target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    call = fields.text("call")
    if call is not None:
        checked["call"] = call
    elif not fields.has("call"):
        fields.problem("call", "a deployment of an inline target names a registered function", "call: NAME")
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    fields.raise_problems()
    return checked


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
    )


async def _guarded(function: Callable[..., Any], parameters: Mapping[str, Json]) -> Any:
    try:
        return await function(**parameters)
    except (SystemExit, KeyboardInterrupt) as error:
        # Out of a task these would end the program's event loop.
        raise RuntimeError(f"the function raised {type(error).__name__}") from error


def _in_thread(name: str, call: Callable[[], Any]) -> asyncio.Future[Any]:
    """The result of `call` in a daemon thread, so that a thread that hangs can't keep the program alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # also SystemExit: it ends the call, not the program
            error = raised
        if isinstance(error, StopIteration):
            error = RuntimeError("the function raised StopIteration")
        # A closed loop: the program is ending, and the row says interrupted.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"horarium-{name}", daemon=True).start()
    return future
