"""Every protection is taken out of the shipped code, one at a time, and some seed must fail.

A mutant is a patch by text to a copy of `src/`. Where its text is no longer in the code, once, it is stale,
and its test fails. Each runs until a seed fails, from the seed named here on: that one is known to be quick.

Two of the protections show only where statements of two transactions interleave. SQLite has one writer, so
they are left to the forced interleavings on PostgreSQL: see `docs/design/simulation.md`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 150
"""Seeds after which a mutant has got away."""


@dataclass(frozen=True)
class Mutant:
    """`name` says what is taken out; `first` is the seed to begin with."""

    name: str
    module: str
    old: str
    new: str
    first: int = 0


MUTANTS = [
    Mutant(
        "random names",
        "engine/executor.py",
        "        run_name=run.name,",
        '        run_name=f"{run.name}{run.attempt}",',
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
    ),
    Mutant(
        "no compare-and-set",
        "store/sqlite.py",
        "where id = ? and revision = ? and cursor = ? and plan_due_at = ?",
        "where id = ? and (1 or (revision = ? and cursor = ? and plan_due_at = ?))",
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
        first=45,
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
    ),
    Mutant(
        "a withdraw that touches owed runs",
        "core/trigger.py",
        "        run.scheduled_time > at\n        and run.attempt == 0",
        "        run.attempt == 0",
    ),
    Mutant(
        "a withdraw that touches claimed runs",
        "core/trigger.py",
        "        run.scheduled_time > at\n        and run.attempt == 0\n",
        "        run.scheduled_time > at - timedelta(minutes=5)\n",
    ),
    Mutant(
        "lateness instead of looked_at",
        "store/sql.py",
        "        t.run.c.due_at > before,\n",
        "",
    ),
    Mutant(
        "no expires_at",
        "core/revision.py",
        "    return min(ends, default=None)\n",
        "    return None\n",
    ),
    Mutant(
        "the first look is bounded",
        "store/sql.py",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).with_for_update()",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).limit(1)",
    ),
    Mutant(
        "claimed runs expire",
        "store/sql.py",
        "        t.run.c.attempt == 0,\n        t.run.c.due_at > before,",
        "        t.run.c.due_at > before,",
        first=4,
    ),
    Mutant(
        "looked_at goes back",
        "store/sqlite.py",
        "looked_at = max(looked_at, ?)",
        "looked_at = ?",
    ),
    Mutant(
        "backlog before what is on time",
        "store/sqlite.py",
        '("backlog", "on time") if backlog_first else ("on time", "backlog")',
        '("backlog", "on time")',
    ),
    Mutant(
        "a stale listing is written",
        "store/sql.py",
        "    if current != version:\n        return SyncResult(Reconciled(), stale=True, version=current)\n",
        "    version = current\n",
        first=45,
    ),
    Mutant(
        "a plan does not see the runs past its cursor",
        "store/sqlite.py",
        "        yield from_micros(slot), from_micros(slot)\n",
        "        continue\n",
        first=70,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protection_taken_out_makes_a_seed_fail(tmp_path: Path, mutant: Mutant) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src" / "horarium" / mutant.module
    text = path.read_text()
    assert text.count(mutant.old) == 1, "the mutant is stale: its text is not in the code, once"
    path.write_text(text.replace(mutant.old, mutant.new))
    ended = simulation(tmp_path / "src", "--first", str(mutant.first), "--seeds", str(MOST), "--no-shrink")
    assert ended.returncode == 1, f"no seed failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    assert re.search(r"^seed \d+ fails: ", ended.stdout, re.MULTILINE), ended.stdout + ended.stderr[-3000:]
    print(f"{mutant.name}: {ended.stdout.splitlines()[0][:150]}")


def test_the_seeds_that_tell_are_green_without_a_mutant(tmp_path: Path) -> None:
    """Else a red one would say nothing."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for first in sorted({mutant.first for mutant in MUTANTS}):
        ended = simulation(tmp_path / "src", "--first", str(first), "--seeds", "1", "--no-shrink")
        assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]


def simulation(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulation against the code at `source`."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
