"""What the tests of targets share: asyncio, rows in a real SQLite file, a request to fire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.clock import SystemClock
from horarium.targets.base import FireRequest
from tests.targets.rows import KEY, Rows

SLOT = datetime.fromisoformat("2026-01-05T10:00:00+00:00")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops: the server runs on uvloop, a program that embeds Horarium on either."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    rows = Rows(tmp_path / "rows.sqlite")
    yield rows
    rows.close()


@pytest.fixture
def request_for(clock: SystemClock) -> Callable[..., FireRequest]:
    """Makes a request: `request_for({"run": "date"}, run_name="r1")`."""

    def make(action: dict[str, Any] | None = None, **changes: Any) -> FireRequest:
        base = FireRequest(
            run_name="r1",
            trigger=KEY,
            origin="schedule",
            scheduled_time=SLOT,
            attempt=1,
            action=action or {},
            parameters={},
            deadline=clock.now() + timedelta(seconds=60),
        )
        return replace(base, **changes)

    return make
