"""The case files about cron, each case by file and index.

`robfig_*.json` were written by the Go library itself (robfig/cron v3), with the tz database of 2025b.
`schedule_evaluation.json` was worked out by hand and checked with two libraries; each case says why.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.interval import Interval
from horarium.core.schedule import Schedule, parse
from horarium.errors import InvalidInput
from tests.unit.zones_of import CASES, ZONES_2025B


def cases(name: str) -> list[Any]:
    found = json.loads((CASES / name).read_text())
    return [pytest.param(case, id=f"{name}-{index}") for index, case in enumerate(found)]


def seconds(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text))


def series(schedule: Schedule, after: int, count: int) -> list[str]:
    found: list[str] = []
    following = schedule.after(after)
    while following is not None and len(found) < count:
        found.append(rfc3339(from_seconds(following)))
        following = schedule.after(following)
    return found


def robfig(case: dict[str, Any]) -> Schedule:
    spec = {"cron": case["expr"], "timezone": case.get("tz", "UTC"), "dialect": "robfig"}
    return parse(spec, zones=ZONES_2025B)


@pytest.mark.parametrize("case", cases("robfig_next.json"))
def test_the_go_librarys_own_answers(case: dict[str, Any]) -> None:
    schedule = robfig(case)
    t = seconds(case["from"])
    for expected in map(seconds, case["next"]):
        found = schedule.after(t)
        assert found is not None
        assert found > t
        if expected <= t:
            # The library answers with the instant that it was asked about, for ever. We go on.
            assert case["tz"] == "Pacific/Chatham", case
            break
        assert found == expected, rfc3339(from_seconds(found))
        assert schedule.before(found) == found
        t = found


def test_the_library_stands_still_in_one_case_only() -> None:
    stuck = [
        index
        for index, case in enumerate(json.loads((CASES / "robfig_next.json").read_text()))
        if len(set(case["next"])) < len(case["next"])
    ]
    assert len(stuck) == 1


@pytest.mark.parametrize("case", cases("robfig_next_standard.json"))
def test_the_go_librarys_table(case: dict[str, Any]) -> None:
    found = robfig(case).after(seconds(case["from"]))
    assert found == seconds(case["next"])
    if "not_next" in case:
        assert found != seconds(case["not_next"])


@pytest.mark.parametrize("case", cases("robfig_parse.json"))
def test_what_the_go_parser_takes(case: dict[str, Any]) -> None:
    if not case["ok"]:
        with pytest.raises(InvalidInput) as refused:
            robfig(case)
        assert refused.value.problems[0].pointer in ("/cron", "/timezone")
        return
    found = robfig(case).after(seconds("2026-01-01T00:00:00+00:00"))
    expected = case["next_from_2026_01_01"]
    assert found == (None if expected == "never" else seconds(expected))


def test_no_search_without_end_where_the_go_library_has_one() -> None:
    schedule = parse({"cron": "26 * */15 */1 */3", "timezone": "Pacific/Apia", "dialect": "robfig"})
    t: int | None = seconds("2011-12-29T00:00:00+00:00")
    days = set()
    while t is not None and t < seconds("2012-02-01T00:00:00+00:00"):
        t = schedule.after(t)
        assert t is not None
        days.add(rfc3339(from_seconds(t + 14 * 3600))[:10])
    # Days 1, 16 and 31, and Sunday, Wednesday and Saturday; star steps are restricted there, so either.
    assert "2011-12-31" in days
    assert "2011-12-30" not in days


EVALUATION = [case for case in cases("schedule_evaluation.json") if case.values[0]["input"]["kind"] == "cron"]


@pytest.mark.parametrize("case", EVALUATION)
def test_worked_cases(case: dict[str, Any]) -> None:
    given, expected = case["input"], case["expected"]
    spec = {"cron": given["expr"], "timezone": given["tz"]}
    if expected.get("must_terminate"):
        for text in (given["expr"], *expected["also_never"]):
            with pytest.raises(InvalidInput, match="no date matches"):
                parse({**spec, "cron": text})
        assert series(parse({**spec, "cron": "0 0 31 4,5 *"}), seconds("2026-01-01T00:00:00+00:00"), 1) == [
            "2026-05-31T00:00:00Z"
        ]
        return
    start = seconds(given["start_exclusive"])
    answers = {given["dst_policy"]: expected["fires_utc"], **expected.get("by_policy", {})}
    for policy, fires in answers.items():
        if policy in ("vixie", "literal", "skip_once"):
            assert series(parse({**spec, "dst": policy}), start, len(fires)) == fires, policy
    for edge, fire in expected.get("edge", {}).items():
        text, _, after = edge.partition(" after ")
        assert series(parse({**spec, "cron": text}), seconds(after + "T00:00:00+00:00"), 1) == [fire]


@pytest.mark.parametrize("case", EVALUATION)
def test_a_walk_back_meets_the_same_instants(case: dict[str, Any]) -> None:
    if case["expected"].get("must_terminate"):
        return  # nothing to walk
    given = case["input"]
    schedule = parse({"cron": given["expr"], "timezone": given["tz"], "dst": given["dst_policy"]})
    forward = series(schedule, seconds(given["start_exclusive"]), 10)
    back: list[str] = []
    t: int | None = seconds(forward[-1])
    while t is not None and len(back) < 10:
        back.append(rfc3339(from_seconds(t)))
        t = schedule.before(t - 1)
    assert back[::-1] == forward


@pytest.mark.parametrize("space", ["  ", "\t", " \t"])
def test_every_after_a_zone_keeps_its_one_space(space: str) -> None:
    """`Parse` trims what follows the zone and leaves what is inside it as it was written."""
    spec = {"cron": f"CRON_TZ=Asia/Tokyo  @every{space}5m", "dialect": "robfig"}
    with pytest.raises(InvalidInput):
        parse(spec)
    assert parse({**spec, "cron": "CRON_TZ=Asia/Tokyo \t@every 5m\n"}) == Interval(300)
