"""Hosts whose clock is far from the database's are warned about, once, and the gauge says how far."""

from __future__ import annotations

from datetime import timedelta

from prometheus_client import generate_latest
from structlog.testing import capture_logs

from horarium.telemetry import ClockWatch, Metrics

MS = timedelta(milliseconds=1)


def test_above_a_hundred_milliseconds_there_is_one_warning_and_one_all_clear() -> None:
    metrics = Metrics()
    with capture_logs() as lines:
        watch = ClockWatch(metrics)
        for offset in (0, 100, -100, 101, 5_000, -200, 20):
            watch(offset * MS)
    assert [(line["log_level"], line["ahead"]) for line in lines] == [
        ("warning", 101 * MS),
        ("info", 20 * MS),
    ]
    assert b"horarium_clock_offset_seconds 0.02" in generate_latest(metrics.registry)
