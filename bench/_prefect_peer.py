"""A pass of Prefect's own scheduler over as many deployments. `bench.prefect` runs it, in Prefect's Python.

    python bench/_prefect_peer.py FOLDER COUNT

It fills a new SQLite database through Prefect's models, then calls the function that is its scheduler
service's loop, cold and once more when there is nothing to add. Prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

FOLDER, COUNT = sys.argv[1], int(sys.argv[2])
os.environ |= {
    "PREFECT_HOME": FOLDER,
    "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{FOLDER}/prefect.db",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
}


async def main() -> None:
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface
    from prefect.server.schemas.schedules import CronSchedule
    from prefect.server.services.scheduler import schedule_deployments

    db = provide_database_interface()
    await db.create_db()
    async with db.session_context(begin_transaction=True) as session:
        flow = db.Flow(name="etl")
        session.add(flow)
        await session.flush()
        made = [
            db.Deployment(name=f"deployment-{n}", flow_id=flow.id, parameters={"table": f"table_{n}"})
            for n in range(COUNT)
        ]
        session.add_all(made)
        await session.flush()
        every = CronSchedule(cron="*/5 * * * *", timezone="UTC")
        session.add_all(
            db.DeploymentSchedule(deployment_id=item.id, schedule=every, active=True, slug="often")
            for item in made
        )
    figures: dict[str, float] = {}
    for name in ("cold", "again"):
        start, used = time.perf_counter(), time.process_time()
        await schedule_deployments()
        figures[name] = time.perf_counter() - start
        figures[f"{name}_cpu"] = time.process_time() - used
        async with db.session_context() as session:
            figures[f"{name}_runs"] = await session.scalar(sa.select(sa.func.count()).select_from(db.FlowRun))
    print(json.dumps(figures))


asyncio.run(main())
