"""Every protection is taken out of the shipped code, one at a time, and a named test must turn red.

A mutant is a patch to a copy of `src/`: a piece of text and what stands there instead. Where the text is no
longer found the mutant is stale, and its test fails, so that none rots unnoticed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNDAMENTALS = "tests/fundamentals"
INTERLEAVED = "store/test_interleavings.py::"


@dataclass(frozen=True)
class Mutant:
    """`name` says what is taken out; `test` is what must notice: `file::test` in the fundamentals, or in the
    folder of `tests/` that it begins with."""

    name: str
    module: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "no compare-and-set on a plan",
        "store/sqlite.py",
        "and trigger.revision = plan.revision and trigger.cursor = plan.old_cursor"
        " and trigger.plan_due_at = plan.token",
        "",
        "test_05_scenarios_of_others.py::test_sc_06_a_plan_of_the_old_rule_is_not_written[sqlite]",
    ),
    Mutant(
        "a name that is new at every try",
        "engine/executor.py",
        "        name=run.name,",
        '        name=f"{run.name}{run.attempt}",',
        "test_01_a_slot_becomes_one_run.py::test_a_lost_answer_is_asked_again_under_the_same_name",
    ),
    Mutant(
        "a lease that never ends",
        "store/sqlite.py",
        "and (r.attempt > 0 or r.due_at <= :late) order by r.due_at, r.id limit :n",
        "and r.lease_owner is null and (r.attempt > 0 or r.due_at <= :late) order by r.due_at, r.id limit :n",
        "test_04_a_crash_anywhere.py::test_a_crash_inside_a_call_of_the_target",
    ),
    Mutant(
        "a failed call is only logged",
        "engine/executor.py",
        "                        RunState.SCHEDULED,\n",
        "                        RunState.FIRED,\n",
        "test_01_a_slot_becomes_one_run.py::test_a_target_that_is_down_gets_the_run_when_it_is_back",
    ),
    Mutant(
        "withdrawn rows are kept",
        "core/trigger.py",
        "    withdrawn = [run.id for run in later]\n",
        "    withdrawn = []\n",
        "test_03_the_past_does_not_change.py::test_an_edit_leaves_the_owed_past_and_replaces_the_future",
    ),
    Mutant(
        "an edit withdraws what is owed",
        "core/trigger.py",
        "        run.scheduled_time > at\n        and run.attempt == 0",
        "        run.attempt == 0",
        "test_03_the_past_does_not_change.py::test_an_edit_leaves_the_owed_past_and_replaces_the_future",
    ),
    Mutant(
        "an edit forgets the owed past",
        "core/trigger.py",
        "cursor=at if trigger.status is Status.DELETED else min(trigger.cursor, at),",
        "cursor=at,",
        "test_03_the_past_does_not_change.py::test_an_edit_long_after_a_crash_still_owes_what_was_never_planned",
    ),
    Mutant(
        "a failure counts from anybody",
        "store/sqlite.py",
        "((run.attempt = o.attempt and run.state = 'scheduled' and run.lease_owner is not null)",
        "((run.state = 'scheduled' and run.lease_owner is not null)",
        "test_03_the_past_does_not_change.py"
        "::test_a_zombies_failure_does_not_touch_the_attempt_that_holds_the_run",
    ),
    Mutant(
        "a late success is dropped",
        "store/sqlite.py",
        "     or (o.state = 'fired' and run.state <> 'fired'))",
        "     or 0)",
        "test_03_the_past_does_not_change.py::test_a_late_success_is_evidence_and_counts",
    ),
    Mutant(
        "a failure undoes a success",
        "store/sqlite.py",
        "((run.attempt = o.attempt and run.state = 'scheduled' and run.lease_owner is not null)",
        "((1)",
        "test_03_the_past_does_not_change.py::test_a_zombies_late_failure_does_not_undo_a_success",
    ),
    Mutant(
        "the catch-up cap drops what exceeds it",
        "core/plan.py",
        "                    self.complete = False\n                    return\n",
        "                    self.cursor = self.now\n                    return\n",
        "test_02_downtime_and_catch_up.py::test_caps_bound_a_step_and_drop_nothing",
    ),
    Mutant(
        "planning starts from now",
        "core/plan.py",
        "        self.cursor = given.trigger.cursor\n",
        "        self.cursor = max(given.trigger.cursor, now)\n",
        "test_02_downtime_and_catch_up.py::test_all_makes_up_for_every_slot",
    ),
    Mutant(
        "lateness instead of looked_at",
        "store/sql/fire.py",
        "        t.run.c.due_at > before,\n",
        "",
        "test_02_downtime_and_catch_up.py::test_seen_before_the_downtime_means_never_expired",
    ),
    Mutant(
        "nothing ever expires",
        "core/revision.py",
        "    return min(ends, default=None)\n",
        "    return None\n",
        "test_02_downtime_and_catch_up.py::test_none_makes_up_for_nothing_older_than_the_grace",
    ),
    Mutant(
        "the first look is bounded",
        "store/sql/fire.py",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).with_for_update()",
        "select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).limit(50)",
        "test_02_downtime_and_catch_up.py::test_the_first_look_after_a_gap_skips_all_that_expired",
    ),
    Mutant(
        "claimed runs expire",
        "store/sql/fire.py",
        "        t.run.c.attempt == 0,\n        t.run.c.due_at > before,",
        "        t.run.c.due_at > before,",
        "test_02_downtime_and_catch_up.py::test_tried_once_means_never_expired",
    ),
    Mutant(
        "the allowance is not debited",
        "core/allowance.py",
        "return Allowance(max(0.0, self.tokens - taken), self.refilled_at)",
        "return self",
        "test_05_scenarios_of_others.py::test_sc_13_a_thousand_at_once_are_let_through_in_order[sqlite]",
    ),
    Mutant(
        "backlog before what is on time",
        "store/sqlite.py",
        '("backlog", "on time") if backlog_first else ("on time", "backlog")',
        '("backlog", "on time")',
        "test_02_downtime_and_catch_up.py::test_on_time_goes_before_backlog_and_neither_starves",
    ),
    Mutant(
        "a collision is taken for a duplicate",
        "store/sqlite.py",
        "        if inserted < len(rows):\n",
        "        if False:\n",
        "test_03_the_past_does_not_change.py::test_two_slots_with_one_name_are_two_runs",
    ),
    Mutant(
        "a bad trigger fails its batch",
        "engine/planner.py",
        "except Exception as error:  # whatever a rule raises costs its trigger",
        "except ZeroDivisionError as error:  #",
        "test_02_downtime_and_catch_up.py::test_one_bad_trigger_does_not_stop_its_neighbours",
    ),
    Mutant(
        "a pause owes its slots",
        "core/plan.py",
        "                    if state is Status.PAUSED:\n",
        "                    if False:\n",
        "test_03_the_past_does_not_change.py::test_a_pause_is_not_downtime",
    ),
    Mutant(
        "a new zone rule does not reach planned runs",
        "engine/planner.py",
        "    return zone is not None and zone.digest != trigger.zone_digest\n",
        "    return False\n",
        "test_06_new_tz_data.py::test_sc_14_later_runs_are_planned_anew",
    ),
    # What only shows where transactions interleave: on PostgreSQL, at a forced moment.
    Mutant(
        "no lock before an edit's delete",
        "store/sql/changes.py",
        """            .order_by(t.trigger.c.id)
            .with_for_update(key_share=True)
        )
        triggers = [trigger_of(row) for row in rows]
""",
        """            .order_by(t.trigger.c.id)
        )
        triggers = [trigger_of(row) for row in rows]
""",
        INTERLEAVED + "test_old_rule_rows_do_not_survive_an_edit_that_waited_for_the_planner[postgres]",
    ),
    Mutant(
        "the allowance is not locked",
        "store/postgres.py",
        "where target_id = any($1::bigint[]) order by target_id for no key update skip locked",
        "where target_id = any($1::bigint[]) order by target_id",
        INTERLEAVED + "test_two_claimers_never_exceed_one_allowance[postgres]",
    ),
    Mutant(
        "no compare-and-set on PostgreSQL",
        "store/postgres.py",
        "on t.id = p.id and t.revision = p.revision and t.cursor = p.cursor\n"
        "  and t.plan_due_at = p.token order",
        "on t.id = p.id order",
        INTERLEAVED + "test_a_to_b_to_a_while_a_plan_is_computed_loses_it[postgres]",
    ),
    Mutant(
        "a zombie's failure counts on PostgreSQL",
        "store/postgres.py",
        "((r.attempt = o.attempt and r.state = 'scheduled' and r.lease_owner is not null)",
        "((r.state = 'scheduled' and r.lease_owner is not null)",
        INTERLEAVED + "test_a_zombies_failure_that_waited_for_the_claim_that_took_over_is_nothing[postgres]",
    ),
    Mutant(
        "plans are not leased",
        "store/postgres.py",
        "order by plan_due_at, id limit $3 for no key update skip locked)\n"
        "update trigger t set plan_due_at = $2 from d",
        "order by plan_due_at, id limit $3)\nupdate trigger t set plan_due_at = $2 from d",
        INTERLEAVED + "test_two_planners_do_not_lease_one_trigger[postgres]",
    ),
    Mutant(
        "a prune does not ask again under the lock",
        "store/sql/housekeeping.py",
        "            t.trigger.c.id.in_(chunk), ~has_open_backfill(t.trigger.c.id)\n",
        "            t.trigger.c.id.in_(chunk)\n",
        INTERLEAVED + "test_a_prune_by_count_that_waited_for_a_backfill_takes_nothing_from_it[postgres]",
    ),
    Mutant(
        "two claims judge one trigger at once",
        "store/sql/completion.py",
        "            .with_for_update(key_share=True, skip_locked=True)\n",
        "",
        INTERLEAVED + "test_two_claims_for_two_targets_begin_one_run_of_a_trigger_at_a_time[postgres]",
    ),
    Mutant(
        "what is under way is judged without its lock",
        "store/sql/completion.py",
        "is_under_way())\n            .order_by(t.run.c.id)\n            .with_for_update()\n",
        "is_under_way())\n            .order_by(t.run.c.id)\n",
        INTERLEAVED + "test_an_end_that_comes_while_a_claim_judges_is_seen_or_wakes[postgres]",
    ),
    Mutant(
        "an edit begins before a slot that was claimed",
        "core/trigger.py",
        "    return at if state.claimed is None else max(at, state.claimed)\n",
        "    return at\n",
        "store/test_changes.py::"
        "test_a_change_takes_effect_no_earlier_than_a_slot_that_was_claimed_already[sqlite-inline]",
    ),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the shipped code, to be broken."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protection_taken_out_turns_its_test_red(copy: Path, mutant: Mutant) -> None:
    path = copy / "horarium" / mutant.module
    text = path.read_text()
    assert text.count(mutant.old) == 1, "the mutant is stale: its text is not in the code, once"
    path.write_text(text.replace(mutant.old, mutant.new))
    ended = run_test(copy, mutant.test)
    assert ended.returncode == 1, f"nobody noticed:\n{ended.stdout[-3000:]}{ended.stderr[-1000:]}"
    assert " failed" in ended.stdout


def test_without_a_mutant_the_same_tests_are_green(copy: Path) -> None:
    """Else a red one would say nothing. Each is run once here, in one process."""
    tests = sorted({mutant.test for mutant in MUTANTS})
    ended = run_test(copy, *tests)
    assert ended.returncode == 0, ended.stdout[-3000:]


def run_test(source: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """pytest on some fundamentals, against the code at `source`."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("CI", None)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-o",
            "pythonpath=.",  # not our own src/, which pyproject.toml names
            *(f"tests/{test}" if "/" in test else f"{FUNDAMENTALS}/{test}" for test in tests),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
