"""A busy server for a while, killed and restarted at random: was each slot called exactly once?

    python -m bench.soak --seconds 60 [--triggers 40] [--seed N]

A real `horarium serve` on a SQLite file fires into a receiver in another process. A trigger has a slot every
one to seven seconds; what is expected is counted from the clock alone. The last line says slots, calls, lost
and doubled. After a kill a call is repeated under the same name, since its answer was lost, which is no
doubled slot; a second name, or one attempt that is called twice, is one. Exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.fire import SETTINGS, Receiver, Server, write_triggers


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--triggers", type=int, default=40)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1_000_000))
    given = options.parse_args()
    chance = random.Random(given.seed)
    SETTINGS.update(HORARIUM_LEASE="2s", HORARIUM_MIN_SCHEDULED_TIME="5s")
    steps = {f"job-{number}": 1 + number % 7 for number in range(given.triggers)}
    receiver = Receiver()
    with TemporaryDirectory(prefix="horarium-soak-") as made:
        folder = Path(made)
        texts = {name: f"{{target: sink, every: {step}s}}" for name, step in steps.items()}
        write_triggers(folder, receiver.url, texts)
        server = Server(folder, sync=True)
        kills, until = 0, time.monotonic() + given.seconds
        server.until_serving()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(0.1, 10.0)))
            if time.monotonic() < until:
                server.process.kill()
                server.process.wait()
                kills += 1
                server = Server(folder, sync=True)
                if chance.random() < 0.7:
                    server.until_serving()
        end = int(time.time())
        created = dict(_rows(server.database, "select deployment, created_at / 1e6 from trigger"))
        wanted = {
            (name, slot)
            for name, step in steps.items()
            for slot in range(int(created[name] // step) * step + step, end + 1, step)
        }
        patience = time.monotonic() + 60
        while len(_fired(server.database, end)) < len(wanted) and time.monotonic() < patience:
            time.sleep(0.2)
        server.process.terminate()
        code = server.process.wait()
        arrived = [item for item in receiver.take() if item.slot <= end]
        receiver.stop()
        fired = _fired(server.database, end)
    names: dict[tuple[str, int], set[str]] = {}
    for item in arrived:
        names.setdefault((item.deployment, item.slot), set()).add(item.key)
    calls = Counter((item.key, item.attempt) for item in arrived)
    lost = len(wanted - names.keys()) + len(wanted - fired.keys())
    doubled = (
        sum(len(found) - 1 for found in names.values())
        + sum(count - 1 for count in calls.values())
        + sum(count - 1 for count in fired.values())
        + len(names.keys() - wanted)
    )
    print(f"seed {given.seed}: {kills} kills, {given.triggers} triggers")
    print(f"slots {len(wanted)}, calls {len(arrived)}, lost {lost}, doubled {doubled}")
    return 0 if lost == doubled == code == 0 else 1


def _fired(database: Path, end: int) -> Counter[tuple[str, int]]:
    query = (
        "select t.deployment, r.scheduled_time / 1000000 from run r join trigger t on t.id = r.trigger_id"
        " where r.state = 'fired' and r.scheduled_time <= ?"
    )
    return Counter(_rows(database, query, end * 1_000_000))


def _rows(database: Path, query: str, *values: int) -> list[Any]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return connection.execute(query, values).fetchall()


if __name__ == "__main__":
    sys.exit(main())
