"""What Horarium says about itself: log lines and metrics.

One line a decision: `decision(log, "fired", trigger=..., slot=..., run=..., revision=..., lateness=...,
outcome=...)`. The same words in the same order everywhere, so that one `grep` or one query follows a slot
through its stages. On a terminal a line is for people; elsewhere it is one JSON object. Everything goes
to standard error, the lines of libraries too.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, MutableMapping
from datetime import datetime, timedelta
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from horarium import __version__
from horarium.clock import Clock, SystemClock
from horarium.core.instant import rfc3339

WORDS = ("trigger", "slot", "run", "revision", "lateness", "outcome")
"""What a decision is about, in the order in which a line shows it."""

_LATENESS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    3_600,
    86_400,
)
_DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


def get_logger(name: str = "horarium") -> structlog.stdlib.BoundLogger:
    """The logger of a part: `get_logger(__name__)`. Works before `configure`, and follows it."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def decision(
    log: structlog.stdlib.BoundLogger,
    event: str,
    *,
    trigger: object | None = None,
    slot: datetime | None = None,
    run: str | None = None,
    revision: int | None = None,
    lateness: timedelta | None = None,
    outcome: str | None = None,
    level: int = logging.INFO,
    **more: object,
) -> None:
    """Log one decision. What is None is left out; `lateness` is shown in seconds."""
    if not log.isEnabledFor(level):
        return
    words = {
        "trigger": str(trigger) if trigger is not None else None,
        "slot": slot,
        "run": run,
        "revision": revision,
        "lateness": lateness,
        "outcome": outcome,
        **more,
    }
    log.log(level, event, **{word: value for word, value in words.items() if value is not None})


def configure(
    log_format: str = "auto",
    level: str = "info",
    *,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Set logging up for this process, once; again replaces it. `log_format` is auto, human or json."""
    out = stream if stream is not None else sys.stderr
    human = log_format == "human" or (log_format == "auto" and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _Stamp(clock or SystemClock(), human),
        structlog.stdlib.PositionalArgumentsFormatter(),
        _plain,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a second `configure` (tests, embedding) takes effect
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(human, out),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # Each says at `info` what our own lines say better.
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error", "aiohttp.access", "alembic", "asyncio"):
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.setLevel(max(logging.WARNING, root.level))


class Metrics:
    """The figures that `/metrics` shows. One object a running instance, with a registry of its own, so that
    two instances in one process don't meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.runs_fired = self._counter("runs_fired", "Answers of targets to runs.", "target", "outcome")
        self.runs_shadowed = self._counter(
            "runs_shadowed", "Runs in shadow that were decided, and called nobody.", "target"
        )
        self.shadow_lateness_seconds = self._histogram(
            "shadow_lateness_seconds",
            "From when a run in shadow was due to its decision.",
            _LATENESS,
            "target",
        )
        self.fire_lateness_seconds = self._histogram(
            "fire_lateness_seconds", "From when a run was due to the target's answer.", _LATENESS, "target"
        )
        self.fire_seconds = self._histogram(
            "fire_seconds", "How long a call of a target took.", _DURATIONS, "target"
        )
        self.runs_ahead = self._counter(
            "runs_ahead",
            "Runs that targets have before they are due: created, withdrawn, refused, failed passes.",
            "target",
            "result",
        )
        self.plans = self._counter("plans", "Plans, by result: won, lost, failed.", "result")
        self.plan_seconds = self._histogram(
            "plan_seconds", "How long a batch of plans took, with its reads and writes.", _DURATIONS
        )
        self.runs_planned = self._counter("runs_planned", "Runs that plans inserted.")
        self.slots_skipped = self._counter("slots_skipped", "Slots that policy decided not to run.", "reason")
        self.syncs = self._counter("syncs", "Passes over sources, by result.", "result")
        self.in_flight = self._gauge("in_flight", "Calls of targets under way.", "target")
        self.runs_ended = self._counter("runs_ended", "Runs whose end a target was asked for.", "result")
        self.loop_errors = self._counter("loop_errors", "Turns of a loop that ended in an error.", "loop")
        self.loop_turned = self._gauge(
            "loop_turned_timestamp_seconds", "When a loop last turned, seconds since the epoch.", "loop"
        )

        self.clock_offset = self._gauge(
            "clock_offset_seconds", "How far the database's clock is ahead of this host's; 0 on SQLite."
        )
        # Read from the database when they are asked for.
        self.database_up = self._gauge("database_up", "1 if the database answered this scrape.")
        self.due_runs = self._gauge("due_runs", "Runs that could be claimed now (10,000 or more).", "target")
        self.late_runs = self._gauge(
            "late_runs", "Runs past their time that have not been fired (10,000 or more).", "target"
        )
        self.held_runs = self._gauge(
            "held_runs", "Runs that a person or a pause holds (10,000 or more in all).", "target"
        )
        self.oldest_due_age = self._gauge(
            "oldest_due_age_seconds", "How long the first run in line has been due; 0 if none is.", "target"
        )
        self.target_frozen = self._gauge("target_frozen", "1 while a target is frozen.", "target")
        self.source_failing = self._gauge(
            "source_failing", "1 while a source can't be read or was refused.", "source"
        )
        self._of_database = (
            self.due_runs,
            self.late_runs,
            self.held_runs,
            self.oldest_due_age,
            self.target_frozen,
            self.source_failing,
        )
        self.triggers_with_errors = self._gauge("triggers_with_errors", "Triggers that can't be planned.")
        self._gauge("build_info", "1, with the version.", "version").labels(__version__).set(1)

    def database_is_up(self, triggers_with_errors: int) -> None:
        """The database answered: what it said before is forgotten, since targets and sources may be gone."""
        for gauge in self._of_database:
            gauge.clear()
        self.database_up.set(1)
        self.triggers_with_errors.set(triggers_with_errors)

    def database_is_down(self) -> None:
        """It did not: nothing is known of what it would say."""
        self.database_up.set(0)
        self.triggers_with_errors.set(math.nan)
        for gauge in self._of_database:
            gauge.clear()

    def render(self) -> tuple[bytes, str]:
        """The figures in Prometheus' text form, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"horarium_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"horarium_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"horarium_{name}", text, labels, buckets=buckets, registry=self.registry)


class ClockWatch:
    """Called with how far the database's clock is ahead of this host's, after every look at it: sets the
    gauge, and warns when it goes past `limit` (runs would be that much late or early without correction, and
    logs of hosts would disagree)."""

    def __init__(self, metrics: Metrics, limit: timedelta = timedelta(milliseconds=100)) -> None:
        self._gauge = metrics.clock_offset
        self._limit = limit
        self._far = False
        self._log = get_logger(__name__)

    def __call__(self, offset: timedelta) -> None:
        self._gauge.set(offset.total_seconds())
        far = abs(offset) > self._limit
        if far and not self._far:
            hint = "run NTP on this host and the database's; the database's time is used meanwhile"
            self._log.warning("the clocks of host and database disagree", ahead=offset, hint=hint)
        elif self._far and not far:
            self._log.info("the clocks of host and database agree again", ahead=offset)
        self._far = far


class _Stamp:
    """Adds the time: people want the seconds of their day, programs the whole instant."""

    def __init__(self, clock: Clock, human: bool) -> None:
        self._clock = clock
        self._human = human

    def __call__(
        self, _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        now = self._clock.now()
        event["timestamp"] = f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}" if self._human else rfc3339(now)
        return event


def _plain(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Values as text and numbers, the words of a decision first."""
    for word in WORDS:
        if word in event:
            event[word] = _value(event.pop(word))
    for word in [word for word in event if word not in WORDS and word not in _OWN]:
        event[word] = _value(event.pop(word))
    return event


_OWN = {"event", "level", "timestamp", "exc_info", "stack_info", "_record", "_from_structlog"}


def _value(value: object) -> object:
    match value:
        case datetime():
            return rfc3339(value)
        case timedelta():
            return round(value.total_seconds(), 6)
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {str(key): _value(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_value(item) for item in value]
        case _:
            return str(value)


def _renderers(human: bool, out: TextIO) -> list[structlog.typing.Processor]:
    if human:
        # An uncaught error is shown whole, but without the values of its locals: they may hold a secret.
        return [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(),
                sort_keys=False,
                pad_event_to=12,
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]


def configure_quietly() -> None:
    """As it is until `configure` is called (a program that embeds Horarium may never do it): lines go to the
    standard library's logging as they are, under its levels and handlers."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


if not structlog.is_configured():
    configure_quietly()
