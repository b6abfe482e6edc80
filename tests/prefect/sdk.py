"""Runs in Prefect's own environment: does with Prefect's SDK what the tests ask, one JSON line each."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

PROTOCOL = sys.stdout
sys.stdout = sys.stderr  # what Prefect prints is not an answer


def deploy(flow: str, name: str, schedules: list[dict[str, Any]], **words: Any) -> str:
    """Deploy the flow of `flows.py` as users do; the deployment's id."""
    import flows
    from prefect.schedules import Cron, Interval, RRule

    made = []
    for item in schedules:
        kind, rule = item.pop("kind"), item.pop("rule")
        if kind == "interval":
            if "anchor_date" in item:
                item["anchor_date"] = datetime.fromisoformat(item["anchor_date"])
            made.append(Interval(timedelta(seconds=rule), **item))
        else:
            made.append({"cron": Cron, "rrule": RRule}[kind](rule, **item))
    deployment = getattr(flows, flow).to_deployment(name, schedules=made, **words)
    return str(deployment.apply())


def dates(schedules: list[dict[str, Any]], start: str, n: int) -> list[Any]:
    """What Prefect's server names of each schedule from `start` on, or what it raises."""
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

    kinds = {"cron": CronSchedule, "interval": IntervalSchedule, "rrule": RRuleSchedule}
    found: list[Any] = []
    for words in schedules:
        try:
            (kind,) = [kinds[word] for word in kinds if word in words]
            named = asyncio.run(kind(**words).get_dates(n, datetime.fromisoformat(start)))
            found.append([int(item.timestamp()) for item in named])
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def main() -> None:
    known: dict[str, Callable[..., Any]] = {"deploy": deploy, "dates": dates}
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"result": known[words.pop("what")](**words)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=PROTOCOL, flush=True)


if __name__ == "__main__":
    main()
