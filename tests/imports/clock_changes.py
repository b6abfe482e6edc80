"""Where other schedulers are an oracle, and where not: at a change of the clock each has its own ways.

So made-up rules are compared up to the next change, and what happens at one is told by examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo


def before_the_next_change(times: Iterable[datetime], after: datetime, place: ZoneInfo) -> list[datetime]:
    """Those of `times` before the clock of `place` next changes after `after`, to the day."""
    change = after
    offset = after.astimezone(place).utcoffset()
    while change < after + timedelta(days=400) and change.astimezone(place).utcoffset() == offset:
        change += timedelta(days=1)
    if change >= after + timedelta(days=400):
        return list(times)
    return [at for at in times if at < change - timedelta(days=1)]
