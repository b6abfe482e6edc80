"""The `celery` target: a task of Celery's workers, sent by its name through the broker.

The run name is the task's id. Celery keeps no ids and would run a second message as well, so the names that
were sent are kept in the Redis that the workers write results to (`brokers.py`). A message is published once,
by a connection that must not try again on its own; AMQP confirms it.

What the results say of a run (Celery keeps them for `result_expires`, a day):

    nothing yet, RECEIVED, STARTED, RETRY, a state of its own    running
    SUCCESS                                                      succeeded
    FAILURE                                                      errored, with the exception
    REVOKED                                                      cancelled
    nothing, and no name is kept (any more)                      unknown

Results are read as the JSON that they are; a pickle is never opened.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

from horarium.clock import Clock
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json, TargetSpec
from horarium.targets.base import Answer, Created, FireRequest, TargetTraits
from horarium.targets.brokers import (
    REDIS,
    BrokerTarget,
    check_address,
    check_shared,
    check_task,
    instant,
    require,
    resolved,
    secrets_of,
)
from horarium.targets.checks import Fields, json_problem
from horarium.targets.secrets import Redactor

CONFIG_KEYS = ("broker", "backend", "timeout", "remember")
ACTION_KEYS = ("task_name", "args", "queue", "priority", "expires")

BROKERS = ("redis", "rediss", "amqp", "amqps")

LONGEST_EXPIRES = timedelta(days=366)

_CONNECTIONS = itertools.count(1)

_RESULT_KEY = "celery-task-meta-"
"""How the keys of Celery's results in Redis begin."""

_RESULTS = {
    "SUCCESS": Result.SUCCEEDED,
    "FAILURE": Result.ERRORED,
    "REVOKED": Result.CANCELLED,
}


class CeleryTarget(BrokerTarget):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        cancels=True,
        note="the run's name is the task's id; a crash between sending and noting it may send it again",
    )

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        super().__init__(spec, clock, "backend")
        self._app: Any = None
        # Of its own: a broker that hangs must not take the threads that others in this process work in.
        self._threads = ThreadPoolExecutor(self._max_in_flight, thread_name_prefix=f"horarium-{spec.name}")

    async def _connect(self, redis_url: str) -> str:
        from celery import Celery

        broker = resolved(self._config["broker"], BROKERS)
        self._redactor = Redactor([*secrets_of(broker), *secrets_of(redis_url)])
        # No result backend: its client would subscribe to each task that is sent. Results are read by us.
        app = Celery("horarium", broker=broker, set_as_current=False)
        seconds = self._timeout.total_seconds()
        # kombu shares a pool among all that connect alike; a name of its own makes it ours to close.
        own = {"client_properties": {"connection_name": f"horarium {next(_CONNECTIONS)}"}}
        options: dict[str, Any] = {"socket_timeout": seconds, "socket_connect_timeout": seconds / 2, **own}
        if broker.startswith("amqp"):
            options = {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds, **own}
        app.conf.update(
            broker_pool_limit=self._max_in_flight,
            broker_connection_timeout=seconds / 2,
            broker_transport_options=options,
            task_publish_retry=False,
            task_serializer="json",
            worker_hijack_root_logger=False,
        )
        self._app = app
        return "horarium:celery:"

    async def _hang_up(self) -> None:
        if self._app is not None:
            await self._in_thread(self._close_pool)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(self, request: FireRequest) -> Answer:
        await self._in_thread(self._publish, request)
        return Created(request.run_name)

    def _publish(self, request: FireRequest) -> None:
        action = request.action
        options = {word: action[word] for word in ("queue", "priority", "expires") if word in action}
        if self._clock.now() >= request.deadline:
            raise TimeoutError  # nobody waits for it any more, and another attempt may be under way
        self._app.send_task(
            action["task_name"],
            args=action.get("args"),
            kwargs=dict(request.parameters),
            task_id=request.run_name,
            retry=False,
            **options,
        )

    def _close_pool(self) -> None:
        self._app.pool.force_close_all()
        self._app.close()

    async def _has(self, run_name: str) -> bool:
        return bool(await self._redis.exists(_RESULT_KEY + run_name))

    async def _look(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        names = [run.name for run in runs]
        found = await self._redis.mget([_RESULT_KEY + name for name in names])
        kept = await self._names.kept(names)
        return [self._report(run, value, run.name in kept) for run, value in zip(runs, found, strict=True)]

    async def _stop(self, run: FiredRun) -> None:
        await self._in_thread(self._app.control.revoke, run.name, terminate=True)

    async def _in_thread(self, call: Callable[..., object], *args: object, **kwargs: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))

    def _report(self, run: FiredRun, value: bytes | None, sent: bool) -> Report:
        now = self._clock.now()
        if value is None:
            if sent:
                return Report(run.run_key, Result.RUNNING, now)
            return Report(run.run_key, Result.UNKNOWN, now, "Celery has no result of it, and it was not sent")
        try:
            meta = json.loads(value)
            result = _RESULTS.get(meta["status"], Result.RUNNING)
        except (ValueError, KeyError, TypeError):
            detail = "its result in Celery's backend is not JSON: set result_serializer = 'json'"
            return Report(run.run_key, Result.UNKNOWN, now, detail)
        if result is Result.RUNNING:
            return Report(run.run_key, result, now)
        detail = _exception(meta.get("result")) if result is Result.ERRORED else ""
        return Report(
            run.run_key,
            result,
            instant(meta.get("date_done"), self._clock.now),
            self._redactor.clean(detail, 1_000),
        )


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config: `broker` (Redis or AMQP) and `backend` (the Redis that the workers write results
    to), each an address or a reference to one; `timeout` (10 s), `remember` (how long a name that was sent is
    kept; 7 days).

    Raises `InvalidInput`; also where the extra `celery` is missing.
    """
    require("celery", ("celery", "redis"), pointer)
    fields = Fields(config, pointer, "a celery target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    check_address(fields, "broker", BROKERS, checked, "amqp://rabbit.example//")
    check_address(fields, "backend", REDIS, checked, "redis://redis.example:6379/1")
    check_shared(fields, checked)
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `task_name` (its name in Celery), `args` (positional; parameters are the keyword
    ones), `queue`, `priority` (0 to 255), `expires` (seconds after which no worker begins it).

    Raises `InvalidInput`.
    """
    fields = Fields(action, pointer, "a deployment of a celery target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    check_task(fields, checked, "shop.tasks.sync_orders")
    if fields.has("args"):
        checked["args"] = _check_args(fields)
    queue = fields.text("queue")
    if queue is not None:
        checked["queue"] = queue
    if fields.has("priority"):
        checked["priority"] = fields.whole("priority", 0, 255)
    if fields.has("expires"):
        checked["expires"] = fields.seconds("expires", LONGEST_EXPIRES)
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked


def _check_args(fields: Fields) -> list[Json]:
    args = fields.raw("args")
    if not isinstance(args, list):
        rule = "args is the list of positional arguments; keyword arguments are parameters"
        fields.problem("args", rule, "[16, hello]")
        return []
    why = json_problem(args)
    if why is not None:
        fields.problem("args", f"args are JSON: {why}")
    return args


def _exception(result: object) -> str:
    if not isinstance(result, dict):
        return str(result or "")
    message = result.get("exc_message")
    said = ", ".join(map(str, message)) if isinstance(message, list) else str(message or "")
    return f"{result.get('exc_type', 'an exception')}: {said}"
