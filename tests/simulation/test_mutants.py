"""Every protection is taken out of the shipped code, one at a time, and some seed must fail.

A mutant is a patch by text to a copy of `src/`. Where its text is no longer in the code, once, it is stale,
and its test fails. Each runs until a seed fails, from the seed named here on: that one is known to be quick.

Those of the PostgreSQL store, and of the locks that SQLite's one writer does not need, run on the PostgreSQL
in memory. What no single commit can be blamed for (who starves, whose plans are wasted) is judged by the
histories of `directed.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.simulation.__main__ import drawn
from tests.simulation.world import simulate

ROOT = Path(__file__).parents[2]
MOST = 150
"""Seeds after which a mutant has got away."""


@dataclass(frozen=True)
class Mutant:
    """`name` says what is taken out; `first` is the seed to begin with, on `store`. `directed`: the histories
    made by hand must notice; `ahead`: those whose targets have runs ahead."""

    name: str
    module: str
    old: str
    new: str
    first: int = 0
    store: str = "sqlite"
    directed: bool = False
    ahead: bool = False


MUTANTS = [
    Mutant(
        "random names",
        "engine/executor.py",
        "        name=run.name,",
        '        name=f"{run.name}{run.attempt}",',
    ),
    Mutant(
        "cursor before rows",
        "store/sqlite.py",
        "        winners = [item for item in plans if item.input.trigger.id in won]\n",
        '        db.execute("commit")\n        db.execute("begin immediate")\n'
        "        winners = [item for item in plans if item.input.trigger.id in won]\n",
        first=4,
    ),
    Mutant(
        "no lease expiry",
        "store/sqlite.py",
        "and (r.attempt > 0 or r.due_at <= :late) order by r.due_at, r.id limit :n",
        "and r.lease_owner is null and (r.attempt > 0 or r.due_at <= :late) order by r.due_at, r.id limit :n",
        first=8,
    ),
    Mutant(
        "no compare-and-set",
        "store/sqlite.py",
        "and trigger.revision = plan.revision and trigger.cursor = plan.old_cursor"
        " and trigger.plan_due_at = plan.token",
        "",
        first=3,
    ),
    Mutant(
        "withdrawn rows kept",
        "core/trigger.py",
        "    withdrawn = [run.id for run in later]\n",
        "    withdrawn = []\n",
    ),
    Mutant(
        "an edit forgets the owed past",
        "core/trigger.py",
        "cursor=at if trigger.status is Status.DELETED else min(trigger.cursor, at),",
        "cursor=at,",
        first=18,
    ),
    Mutant(
        "the attempt is not checked on a failure",
        "store/sqlite.py",
        "((run.attempt = o.attempt and run.state = 'scheduled' and run.lease_owner is not null)",
        "((run.state = 'scheduled' and run.lease_owner is not null)",
        first=62,
    ),
    Mutant(
        "log and forget",
        "engine/executor.py",
        "                        RunState.SCHEDULED,\n",
        "                        RunState.FIRED,\n",
    ),
    Mutant(
        "the cursor comes from the clock",
        "core/plan.py",
        "        self.cursor = given.trigger.cursor\n",
        "        self.cursor = max(given.trigger.cursor, now)\n",
        first=3,
    ),
    Mutant(
        "the allowance is not debited",
        "core/allowance.py",
        "return Allowance(max(0.0, self.tokens - taken), self.refilled_at)",
        "return self",
    ),
    Mutant(
        "a catch-up cap that drops",
        "core/plan.py",
        "                    self.complete = False\n                    return\n",
        "                    self.cursor = self.now\n                    return\n",
        first=31,
    ),
    Mutant(
        "the cursor goes along with a range that a person has planned",
        "core/plan.py",
        "    changed = replace(trigger, plan_due_at=now, updated_at=now)\n",
        "    end = max(trigger.cursor, from_seconds(slots[-1]))\n"
        "    changed = replace(trigger, cursor=end, plan_due_at=now, updated_at=now)\n",
        first=23,
    ),
    Mutant(
        "a withdraw that touches owed runs",
        "core/trigger.py",
        "        run.scheduled_time > at\n        and run.attempt == 0",
        "        run.attempt == 0",
        first=3,
    ),
    Mutant(
        "a withdraw that touches claimed runs",
        "core/trigger.py",
        "        run.scheduled_time > at\n        and run.attempt == 0\n",
        "        run.scheduled_time > at - timedelta(minutes=5)\n",
        first=3,
    ),
    Mutant(
        "lateness instead of looked_at",
        "store/sql/fire.py",
        "        t.run.c.due_at > before,\n",
        "",
        first=4,
    ),
    Mutant(
        "no expires_at",
        "core/revision.py",
        "    return min(ends, default=None)\n",
        "    return None\n",
        first=4,
    ),
    Mutant(
        "the first look is bounded",
        "store/sql/fire.py",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).with_for_update()",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).limit(1)",
        first=5,
    ),
    Mutant(
        "claimed runs expire",
        "store/sql/fire.py",
        "        t.run.c.attempt == 0,\n        t.run.c.due_at > before,",
        "        t.run.c.due_at > before,",
        first=31,
    ),
    Mutant(
        "looked_at goes back",
        "store/sqlite.py",
        "looked_at = max(looked_at, ?)",
        "looked_at = ?",
        first=4,
    ),
    Mutant(
        "backlog before what is on time",
        "store/sqlite.py",
        '("backlog", "on time") if backlog_first else ("on time", "backlog")',
        '("backlog", "on time")',
        first=3,
    ),
    Mutant(
        "a stale listing is written",
        "store/sql/sync.py",
        "    if current != version:\n        return SyncResult(Reconciled(), stale=True, version=current)\n",
        "    version = current\n",
        first=45,
    ),
    Mutant(
        "no lock before an edit's delete",
        "store/sql/changes.py",
        "            .order_by(t.trigger.c.id)\n            .with_for_update(key_share=True)\n        )\n"
        "        triggers = ",
        "            .order_by(t.trigger.c.id)\n        )\n        triggers = ",
        store="memory",
    ),
    Mutant(
        "a look reads the allowance without a lock",
        "store/sql/fire.py",
        "        select(allowance.c.looked_at, allowance.c.guard_state, allowance.c.guard_from)\n"
        "        .where(allowance.c.target_id == target_id)\n        .with_for_update(key_share=True)\n",
        "        select(allowance.c.looked_at, allowance.c.guard_state, allowance.c.guard_from)\n"
        "        .where(allowance.c.target_id == target_id)\n",
        first=15,
        store="memory",
    ),
    Mutant(
        "the allowance is not locked",
        "store/postgres.py",
        "order by target_id for no key update skip locked",
        "order by target_id",
        store="memory",
    ),
    Mutant(
        "no compare-and-set, PostgreSQL",
        "store/postgres.py",
        "and t.revision = p.revision and t.cursor = p.cursor\n  and t.plan_due_at = p.token order by",
        "order by",
        first=35,
        store="memory",
    ),
    Mutant(
        "a plan is compared before its trigger is locked",
        "store/postgres.py",
        "order by t.id for no key update of t)",
        "order by t.id)",
        first=65,
        store="memory",
    ),
    Mutant(
        "cursor before rows, PostgreSQL",
        "store/postgres.py",
        "        won = await _compare_and_set(unit, plans)\n",
        "        won = await self._transaction(lambda other: _compare_and_set(other, plans))\n",
        store="memory",
    ),
    Mutant(
        "the attempt is not checked on a failure, PostgreSQL",
        "store/postgres.py",
        "((r.attempt = o.attempt and r.state = 'scheduled' and r.lease_owner is not null)",
        "((r.state = 'scheduled' and r.lease_owner is not null)",
        store="memory",
        directed=True,
    ),
    Mutant(
        "looked_at goes back, PostgreSQL",
        "store/postgres.py",
        "looked_at = greatest(a.looked_at, $4)",
        "looked_at = $4",
        first=4,
        store="memory",
    ),
    Mutant(
        "what is under way is read without a lock",
        "store/sql/completion.py",
        "            .where(t.run.c.trigger_id.in_(chunk), is_under_way())\n"
        "            .order_by(t.run.c.id)\n            .with_for_update()\n",
        "            .where(t.run.c.trigger_id.in_(chunk), is_under_way())\n"
        "            .order_by(t.run.c.id)\n",
        first=13,
        store="memory",
    ),
    Mutant(
        "what is put back keeps its attempt",
        "store/sql/completion.py",
        "                attempt=t.run.c.attempt - 1,\n",
        "",
        first=1,
        store="memory",
    ),
    Mutant(
        "an end wakes nobody",
        "store/sql/completion.py",
        "    yield from _wake_waiting(sorted(triggers), now)\n    return len(written)",
        "    return len(written)",
        first=1,
        store="memory",
    ),
    Mutant(
        "an end that is never reported is waited for",
        "engine/reporter.py",
        "overdue = [run for run, until in due if until <= now]",
        "overdue: list[FiredRun] = []",
        first=1,
        store="memory",
    ),
    Mutant(
        "a new trigger of a paused deployment starts active",
        "store/sql/sync.py",
        "        stopped = [entry.key.deployment_key in paused for entry in chunk]\n",
        "        stopped = [False for _ in chunk]\n",
        first=22,
    ),
    Mutant(
        "two planners lease one trigger",
        "store/postgres.py",
        "order by plan_due_at, id limit $3 for no key update skip locked)",
        "order by plan_due_at, id limit $3)",
        store="memory",
        directed=True,
    ),
    Mutant(
        "a lease does not move the queue",
        "store/postgres.py",
        "update trigger t set plan_due_at = $2 from d",
        "update trigger t set plan_due_at = t.plan_due_at from d",
        store="memory",
        directed=True,
    ),
    Mutant(
        "what is late always waits",
        "engine/executor.py",
        "backlog_first=self._claims % BACKLOG_EVERY == BACKLOG_EVERY - 1,",
        "backlog_first=False,",
        directed=True,
    ),
    Mutant(
        "what is on time always waits",
        "engine/executor.py",
        "backlog_first=self._claims % BACKLOG_EVERY == BACKLOG_EVERY - 1,",
        "backlog_first=True,",
        directed=True,
    ),
    Mutant(
        "what is there is not withdrawn",
        "engine/mirror.py",
        "            await target.withdraw([there.runs[key].id for key in gone])\n",
        "",
        first=1,
        ahead=True,
    ),
    Mutant(
        "a slot that has moved to another target stays at the one before",
        "engine/mirror.py",
        "    if moved:\n        return Fate.WITHDRAW\n",
        "",
        first=45,
        ahead=True,
    ),
    Mutant(
        "a run ahead begins at once",
        "engine/mirror.py",
        "target.create_ahead(self._request(row, there.running), row.due_at)",
        "target.create_ahead(self._request(row, there.running), self._clock.now())",
        ahead=True,
    ),
]


BUDGET = 120.0
"""Seconds for all of them on a machine with two cores that does nothing else."""


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """How each mutant's simulation ended; as many run at once as there are cores."""
    chosen = [
        mutant
        for item in request.session.items
        if item.path == Path(__file__) and isinstance(item, pytest.Function) and hasattr(item, "callspec")
        for mutant in item.callspec.params.values()
        if isinstance(mutant, Mutant)
    ]
    folder, began = tmp_path_factory.mktemp("mutants"), time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {mutant.name: pool.submit(simulated, mutant, folder) for mutant in chosen}
    print(f"{len(chosen)} mutants; {time.monotonic() - began:.1f} s of {BUDGET:.0f} s")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protection_taken_out_makes_a_seed_fail(
    ended: dict[str, Future[subprocess.CompletedProcess[str]]], mutant: Mutant
) -> None:
    assert original(mutant).count(mutant.old) == 1, "the mutant is stale: its text is not in the code, once"
    found = ended[mutant.name].result()
    assert found.returncode == 1, f"no seed failed:\n{found.stdout[-3000:]}{found.stderr[-3000:]}"
    assert re.search(r"^seed \d+ fails: ", found.stdout, re.MULTILINE), found.stdout + found.stderr[-3000:]
    print(f"{mutant.name}: {found.stdout.splitlines()[0][:150]}")


def test_the_seeds_that_tell_are_green_without_a_mutant() -> None:
    """Else a red one would say nothing. (The histories made by hand have a test of their own.)"""
    told = sorted({(mutant.store, mutant.first, mutant.ahead) for mutant in MUTANTS if not mutant.directed})
    for store, seed, ahead in told:
        result = simulate(drawn(seed, store, ahead))
        assert not result.wrong, f"seed {seed} on {store}\n" + "\n".join(result.wrong)


def original(mutant: Mutant) -> str:
    """The shipped code that it is a change to."""
    return (ROOT / "src" / "horarium" / mutant.module).read_text()


def simulated(mutant: Mutant, folder: Path) -> subprocess.CompletedProcess[str]:
    """The simulation against a copy of the code with the protection taken out."""
    source = Path(tempfile.mkdtemp(dir=folder)) / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "horarium" / mutant.module
    path.write_text(original(mutant).replace(mutant.old, mutant.new))
    if mutant.directed:
        return simulation(source, "--store", mutant.store, module="tests.simulation.directed")
    return simulation(source, *seeds(mutant, MOST))


def seeds(mutant: Mutant, number: int) -> tuple[str, ...]:
    words = ("--store", mutant.store, "--first", str(mutant.first), "--seeds", str(number), "--no-shrink")
    return (*words, "--ahead") if mutant.ahead else words


def simulation(
    source: Path, *arguments: str, module: str = "tests.simulation"
) -> subprocess.CompletedProcess[str]:
    """The simulation against the code at `source`."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
