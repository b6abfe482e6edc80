"""Runs in Prefect's own environment: does with Prefect's SDK what the tests ask, one JSON line each.

It can call the code of the server, too, on the server's database.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

PROTOCOL = sys.stdout
sys.stdout = sys.stderr  # what Prefect prints is not an answer


def deploy(flow: str, name: str, schedules: list[dict[str, Any]], **words: Any) -> str:
    """Deploy the flow of `flows.py` as users do; the deployment's id."""
    import flows
    from prefect.schedules import Cron, Interval, RRule

    made = []
    for item in map(dict, schedules):
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


def redeploy_while_planning(flow: str, name: str, schedules: list[dict[str, Any]]) -> str:
    """Deploy, and let Prefect's scheduler work twice on that deployment; its id. The first time there is a
    redeploy of the same between its planning and its writing.
    """
    import sqlalchemy
    from prefect.server.services import scheduler

    deployment = deploy(flow, name, schedules)
    scheduler._get_select_recent_deployments_to_schedule_query = lambda db, *_: sqlalchemy.select(
        db.Deployment.id
    ).where(db.Deployment.id == UUID(deployment))
    collect = scheduler._collect_flow_runs

    async def collect_and_redeploy(*args: Any, **words: Any) -> Any:
        scheduler._collect_flow_runs = collect
        runs = await collect(*args, **words)
        await asyncio.to_thread(deploy, flow, name, schedules)
        return runs

    async def work() -> None:
        scheduler._collect_flow_runs = collect_and_redeploy
        await scheduler.schedule_recent_deployments()
        await scheduler.schedule_recent_deployments()

    asyncio.run(work())
    return deployment


def walked(rrule: str, start: str, n: int) -> int:
    """How many instances of a rule dateutil names, until Prefect's server has `n` of them from `start` on."""
    from dateutil import rrule as dateutil

    rule: Any = dateutil.rrule
    count, names = 0, rule._iter

    def counted(self: Any) -> Any:
        nonlocal count
        for instance in names(self):
            count += 1
            yield instance

    rule._iter = counted
    try:
        dates([{"rrule": rrule}], start, n)
    finally:
        rule._iter = names
    return count


def main() -> None:
    functions: list[Callable[..., Any]] = [deploy, dates, redeploy_while_planning, walked]
    known = {function.__name__: function for function in functions}
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"result": known[words.pop("what")](**words)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=PROTOCOL, flush=True)


if __name__ == "__main__":
    main()
