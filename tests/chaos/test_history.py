"""The judge of the chaos tests sees what is wrong: each kind of fault in a small history, by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.history import (
    SECOND,
    Effect,
    Fault,
    Gap,
    Records,
    Row,
    Rule,
    Verdict,
    Word,
    check_words,
    judge,
    run_name,
    unexplained,
)

KEY = "default/default/a/default"
END = 60 * SECOND


def rules() -> list[Rule]:
    """A slot every 10 s from 0 on, paused in (20, 40], deleted at 55."""
    return [
        Rule(1, 0, "active", 10 * SECOND, what="create"),
        Rule(2, 20 * SECOND, "paused", 10 * SECOND, what="pause"),
        Rule(3, 40 * SECOND, "active", 10 * SECOND, what="resume"),
        Rule(4, 55 * SECOND, "deleted", 10 * SECOND, what="delete"),
    ]


def run(second: int, state: str = "fired", name: str | None = None) -> Row:
    slot = second * SECOND
    return Row(KEY, slot, name or run_name(KEY, slot), state, "schedule", "")


def effect(second: int, after: float = 0.5) -> Effect:
    slot = second * SECOND
    return Effect(run_name(KEY, slot), KEY, slot, slot + int(after * SECOND), 1)


def gap(first: int, last: int, count: int, reason: str = "paused", rule: int = 2) -> Gap:
    return Gap(KEY, rule, first * SECOND, last * SECOND, count, reason)


FIRED = (10, 20, 50)


def well() -> tuple[Records, dict[str, Effect]]:
    records = Records({KEY: rules()}, [run(second) for second in FIRED], [gap(30, 40, 2)])
    return records, {item.key: item for item in map(effect, FIRED)}


def verdict_of(records: Records, effects: dict[str, Effect]) -> Verdict:
    return judge(records, effects, END)


def test_a_history_in_which_all_is_well() -> None:
    verdict = verdict_of(*well())
    assert verdict == Verdict(slots=5, fired=3, skipped=2)


def test_a_slot_with_neither_run_nor_skip_is_lost() -> None:
    records, effects = well()
    lost = records.runs.pop(1)
    del effects[lost.name]
    assert verdict_of(records, effects).lost == 1


def test_a_fired_run_without_an_effect_is_lost() -> None:
    records, effects = well()
    name = run_name(KEY, 10 * SECOND)
    effects[name] = replace(effects[name], done=False)
    assert verdict_of(records, effects).lost == 1


def test_a_run_that_never_ended_is_lost() -> None:
    records, effects = well()
    records.runs[0] = run(10, state="scheduled")
    assert verdict_of(records, effects).lost == 1


def test_a_slot_in_a_run_and_a_skip_is_doubled() -> None:
    records, effects = well()
    records.gaps.append(gap(50, 50, 1, "deleted", 3))
    assert verdict_of(records, effects).doubled == 1


def test_an_effect_under_two_names_is_doubled() -> None:
    records, effects = well()
    effects["another"] = replace(effect(10), key="another")
    verdict = verdict_of(records, effects)
    assert verdict.doubled == 1
    assert any("no run explains" in line for line in verdict.wrong)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda records: records.runs.append(run(15)), "invented"),
        (lambda records: records.runs.append(run(60)), "invented"),
        (lambda records: records.runs.append(run(30)), "though paused"),
        (lambda records: records.gaps.append(gap(30, 40, 3)), "that has 2"),
        (lambda records: records.runs.__setitem__(0, run(10, name="other")), "misnamed"),
    ],
    ids=["between slots", "after the delete", "while paused", "a wrong count", "a wrong name"],
)
def test_what_should_not_be_there_is_seen(spoil: object, says: str) -> None:
    records, effects = well()
    assert callable(spoil)
    spoil(records)
    assert any(says in line for line in verdict_of(records, effects).wrong)


def test_a_skip_needs_a_reason_that_the_history_gives() -> None:
    records, effects = well()
    gone = records.runs.pop(0)
    del effects[gone.name]
    records.gaps.append(gap(10, 10, 1, "catch_up_latest", 1))
    assert verdict_of(records, effects).lost == 1
    records.rules[KEY][0] = replace(rules()[0], catch_up="latest")
    assert verdict_of(records, effects).wrong == []


def test_a_call_before_its_slot_is_early() -> None:
    records, effects = well()
    effects[run_name(KEY, 10 * SECOND)] = effect(10, after=-0.1)
    assert any("early" in line for line in verdict_of(records, effects).wrong)


def test_lateness_is_explained_by_what_was_away_and_no_more() -> None:
    records, effects = well()
    effects[run_name(KEY, 10 * SECOND)] = effect(10, after=9.0)
    most, recovery = 3 * SECOND, 2 * SECOND

    def late(*faults: Fault) -> int:
        return len(unexplained(records, effects, faults, most, recovery))

    assert late() == 1
    assert late(Fault("short", 9 * SECOND, 12 * SECOND)) == 1, "2 s of it and 2 s to recover, and 3 s: 7 of 9"
    assert late(Fault("long", 9 * SECOND, 15 * SECOND)) == 0
    assert late(Fault("before", 1 * SECOND, 7 * SECOND)) == 1


def test_what_was_acknowledged_must_be_in_force_and_what_is_in_force_asked_for() -> None:
    asked = [
        Word(KEY, "put", 0, 0, 10 * SECOND),
        Word(KEY, "pause", 20 * SECOND, 20 * SECOND),
        Word(KEY, "resume", 40 * SECOND, None),
        Word(KEY, "delete", 55 * SECOND, 55 * SECOND),
    ]
    assert check_words({KEY: rules()}, asked) == []
    (wrong,) = check_words({KEY: rules()[:3]}, asked)
    assert "acknowledged and not done" in wrong
    (wrong,) = check_words({KEY: rules()}, asked[:3])
    assert "nobody asked" in wrong
