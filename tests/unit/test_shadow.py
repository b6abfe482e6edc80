"""Comparing with another scheduler: what is a difference, and how what it ran is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from horarium.core.keys import TriggerKey
from horarium.core.shadow import OurSlot, TheirRun, compare
from horarium.errors import InvalidInput
from horarium.sources import incumbents
from horarium.sources.crontab import import_crontab
from horarium.sources.files import parse_triggers
from horarium.sources.imported import Entry, Report, written
from horarium.targets import registry

MINUTE = timedelta(minutes=1)
KEY = TriggerKey("default", "default", "nightly", "default")


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-05T{text}+00:00")


def ours(*texts: str) -> list[OurSlot]:
    return [OurSlot(at(text), f"r{text}", at(text)) for text in texts]


def told(*texts: str) -> list[TheirRun]:
    return [TheirRun(None, at(text)) for text in texts]


def times(runs: Sequence[TheirRun | OurSlot]) -> list[str]:
    return [f"{run.at if isinstance(run, TheirRun) else run.scheduled_time:%H:%M:%S}" for run in runs]


def test_both_have_a_slot_and_the_difference_is_said() -> None:
    found = compare([OurSlot(at("10:00:00"), "r1", at("10:00:01"))], told("10:00:04"), MINUTE)
    assert found.equal
    assert [pair.difference for pair in found.both] == [timedelta(seconds=-3)]


def test_a_slot_that_only_one_side_has_is_a_difference() -> None:
    found = compare(ours("10:00:00", "10:05:00"), told("10:05:02", "10:12:00"), MINUTE)
    assert (times(found.only_ours), times(found.only_theirs)) == (["10:00:00"], ["10:12:00"])


def test_what_they_ran_twice_is_one_too_many() -> None:
    found = compare(ours("10:00:00"), told("10:00:01", "10:00:02"), MINUTE)
    assert (len(found.both), times(found.only_theirs)) == (1, ["10:00:02"])


def test_a_name_counts_whatever_the_time() -> None:
    late = TheirRun(None, at("11:30:00"), "r10:00:00")
    found = compare(ours("10:00:00", "11:30:00"), [late], MINUTE)
    assert [pair.ours.name for pair in found.both] == ["r10:00:00"]


def test_a_slot_that_is_told_is_matched_with_no_other() -> None:
    found = compare(ours("10:00:00"), [TheirRun(at("10:00:30"), at("10:00:30"))], MINUTE)
    assert (times(found.only_ours), times(found.only_theirs)) == (["10:00:00"], ["10:00:30"])


def test_beyond_the_time_in_shadow_nothing_of_theirs_is_too_much() -> None:
    part = [(at("10:00:30"), at("10:10:00"))]
    theirs = [
        *told("10:00:59"),  # of 10:00, which was not ours to decide
        *told("10:04:02", "10:10:09"),
        TheirRun(at("10:00:00")),
        TheirRun(at("10:15:00")),
    ]
    found = compare(ours("10:10:00"), theirs, MINUTE, part)
    assert (len(found.both), times(found.only_theirs)) == (1, ["10:04:02"])


# what they ran, as text


async def test_lines_of_csv_and_of_json_say_the_same() -> None:
    csv = "trigger,created_at,name\nnightly,2026-01-05T10:00:01.25Z,abc\nnightly,2026-01-05 10:05:00,\n"
    lines = (
        '{"trigger": "nightly", "created_at": "2026-01-05T11:00:01.25+01:00", "name": "abc"}\n\n'
        '{"trigger": "default/default/nightly/default", "created_at": "2026-01-05T10:05:00Z"}\n'
    )
    expected = [
        TheirRun(None, at("10:00:01.250000"), "abc"),
        TheirRun(None, at("10:05:00")),
    ]
    for text in (csv, lines, "\ufeff" + csv):
        found = await incumbents.of_text(text).runs([KEY], at("09:00:00"), at("11:00:00"))
        assert found == {KEY: expected}


async def test_a_slot_may_be_told_and_when_it_was_made_too() -> None:
    text = "trigger, time, created_at\nnightly, 2026-01-05T10:00:00Z, 2026-01-05T10:00:09Z\n"
    found = await incumbents.of_text(text).runs([KEY], at("09:00:00"), at("11:00:00"))
    assert found == {KEY: [TheirRun(at("10:00:00"), at("10:00:09"))]}


async def test_runs_beyond_the_time_that_is_asked_for_are_left_out() -> None:
    text = "trigger,time\nnightly,2026-01-05T10:00:00Z\nnightly,2026-01-05T10:01:00Z\n"
    found = await incumbents.of_text(text).runs([KEY], at("10:00:00"), at("10:01:00"))
    assert found == {KEY: [TheirRun(at("10:01:00"))]}


@pytest.mark.parametrize(
    ("text", "line", "pointer", "rule"),
    [
        ("", 1, "/incumbent", "the first line names the columns"),
        ("nightly,2026-01-05T10:00:00Z\n", 1, "/incumbent", "the first line names the columns"),
        ("trigger,when\n", 1, "/incumbent", "the first line names the columns"),
        ("trigger,name\nnightly,x\n", 1, "/incumbent", "the first line names the columns"),
        ("trigger,time\nnightly,2026-01-05T10:00:00Z,x\n", 2, "/incumbent", "a line has 2 fields"),
        ("trigger,time\nnightly,soon\n", 2, "/incumbent/time", "RFC 3339"),
        ("trigger,time\nnightly,\n", 2, "/incumbent/time", "a run has a time or a created_at"),
        ("trigger,time\n,2026-01-05T10:00:00Z\n", 2, "/incumbent/trigger", "a run is of a trigger"),
        ("trigger,time\na/b/c,2026-01-05T10:00:00Z\n", 2, "/incumbent/trigger", "a trigger is"),
        ('trigger,time\n"nightly,2026\n', 2, "/incumbent", "unexpected end"),
        ('{"trigger": "nightly"\n', 1, "/incumbent", "one JSON object"),
        ('{"trigger": "nightly", "time": 7}\n', 1, "/incumbent/time", "time is text"),
        ('{"trigger": "nightly", "tim": "x"}\n', 1, "/incumbent/tim", "there is no such field"),
        ('{"trigger": "a", "time": "2026-01-05T10:00:00Z"}\n[]\n', 2, "/incumbent", "one JSON object"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(text: str, line: int, pointer: str, rule: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        incumbents.of_text(text)
    (problem,) = raised.value.problems
    assert (problem.line, problem.pointer) == (line, pointer)
    assert rule in problem.rule


def test_every_wrong_line_is_named_up_to_a_bound() -> None:
    with pytest.raises(InvalidInput) as raised:
        incumbents.of_text("trigger,time\n" + "nightly,soon\n" * 2_000)
    assert len(raised.value.problems) == incumbents.MAX_PROBLEMS


# imports


def test_an_imported_file_can_have_its_triggers_start_in_shadow() -> None:
    imported = import_crontab("15 2 * * * backup\n", "-", timezone="UTC").in_shadow()
    (entry,) = parse_triggers(imported.text, "cron.yaml", registry).listing.triggers
    assert entry.shadow is True
    plain = written("x", "s", [Entry("a", 1, {"run": "date", "every": "1m"})], Report()).in_shadow()
    (entry,) = parse_triggers(plain.text, "a.yaml", registry).listing.triggers
    assert entry.shadow is True


def test_the_nearest_word_says_where_a_new_trigger_starts() -> None:
    text = """
defaults: {shadow: true}
deployments:
  a: {run: date, every: 1m}
  b: {run: date, every: 1m, shadow: false}
  c: {run: date, shadow: false, triggers: {d: {every: 1m}, e: {every: 1m, shadow: true}}}
"""
    found = parse_triggers(text, "a.yaml", registry).listing.triggers
    assert [(entry.key.deployment, entry.key.name, entry.shadow) for entry in found] == [
        ("a", "default", True),
        ("b", "default", False),
        ("c", "d", False),
        ("c", "e", True),
    ]
    bare = parse_triggers("deployments: {a: {run: date, every: 1m}}", "a.yaml", registry)
    assert [entry.shadow for entry in bare.listing.triggers] == [None]
    with pytest.raises(InvalidInput, match="shadow is true or false"):
        parse_triggers("deployments: {a: {run: date, every: 1m, shadow: yes}}", "a.yaml", registry)


def test_the_word_is_no_part_of_the_rule() -> None:
    """A file whose word changes edits nothing: where a trigger is, is for people to say."""
    texts = [f"deployments: {{a: {{run: date, every: 1m{more}}}}}" for more in ("", ", shadow: true")]
    without, with_it = (parse_triggers(text, "a.yaml", registry).listing for text in texts)
    assert without.triggers[0].spec.digest() == with_it.triggers[0].spec.digest()
