"""Every role in a process of its own: sync, plan, fire and api meet only in the database."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import aiohttp

from horarium.store.postgres import migrate_postgres
from tests.chaos.database import Cluster
from tests.chaos.process import News, Receiver, Server

SETTINGS = {"lease": "2s", "execution_qps": "0", "min_scheduled_time": "4s", "resync_interval": "1s"}


def triggers(folder: Path, url: str, *names: str) -> Path:
    path = folder / "triggers.yaml"
    lines = [f"  {name}: {{target: sink, every: 1s}}" for name in names]
    path.write_text(
        f'source: chaos\ntargets: {{sink: {{http: {{url: "{url}"}}}}}}\ndeployments:\n'
        + "\n".join(lines)
        + "\n"
    )
    return path


async def test_each_role_in_a_process_of_its_own(tmp_path: Path) -> None:
    news = News()
    async with Cluster({"fsync": "off"}) as cluster, Receiver(news) as receiver:
        await migrate_postgres(cluster.url())
        path = triggers(tmp_path, receiver.url, "one")
        servers = {
            role: await Server.start(cluster.url(), path, news, roles=role, **SETTINGS)
            for role in ("fire", "api", "plan", "sync")
        }
        try:
            for role, server in servers.items():
                line = await server.says("^Horarium runs on ")
                assert ("without the API" in line) == (role != "api")
            await receiver.until(lambda: len(receiver.arrivals) >= 3)
            # A change of the file goes through all of them.
            triggers(tmp_path, receiver.url, "one", "two")
            await receiver.until(lambda: any("/two/" in arrival.subject for arrival in receiver.arrivals))
            address = await servers["api"].serves()
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{address}/readyz") as answer:
                    assert answer.status == 200
                async with session.get(f"{address}/api/v1/triggers") as answer:
                    assert len((await answer.json())["items"]) == 2
        finally:
            for server in servers.values():
                server.terminate()
            codes = {role: await server.exit() for role, server in servers.items()}
        assert codes == dict.fromkeys(servers, 0)
        for role, server in servers.items():
            fired = [line for line in server.log if '"event": "fired"' in line or " fired " in line]
            assert bool(fired) == (role == "fire"), role
    slots: dict[str, list[datetime]] = {}
    for arrival in receiver.arrivals:
        slots.setdefault(arrival.subject, []).append(datetime.fromisoformat(arrival.slot))
    for name, found in slots.items():
        steps = Counter((later - earlier).total_seconds() for earlier, later in pairwise(sorted(found)))
        assert steps.keys() <= {1.0}, f"{name} has a hole, or a slot came twice: {steps}"
