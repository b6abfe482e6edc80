"""What holds for every interval, recurrence rule and calendar, whatever its words.

`after` goes strictly on, `before` undoes it, `between` is `after` repeated, and nothing depends on where a
question starts. Calendar intervals and calendars are also compared with small calculators from their rules.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horarium.core.calendars import Calendar, Filtered, OnExcluded, parse_calendar
from horarium.core.civil import day_of
from horarium.core.duration import format_duration, parse_duration
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, to_seconds
from horarium.core.interval import Interval, canonical_every, parse_every
from horarium.core.once import Once, parse_instant
from horarium.core.rrule import canonical_rrule, parse_rrule
from horarium.core.schedule import Schedule
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput

ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Asia/Kathmandu",
]
DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

instants = st.integers(
    to_seconds(datetime(1990, 1, 1, tzinfo=UTC)), to_seconds(datetime(2040, 1, 1, tzinfo=UTC))
)
any_instant = st.one_of(instants, st.integers(-(10**12), 10**12), st.just(MIN_SECONDS), st.just(MAX_SECONDS))
places = st.sampled_from(ZONES).map(load_zone)
times = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))


@pytest.fixture(scope="module", autouse=True)
def _the_packages_zones() -> Iterator[None]:
    """`zoneinfo` reads the `tzdata` package, as Horarium does, whatever the host has."""
    zoneinfo.reset_tzpath(to=())
    ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    ZoneInfo.clear_cache()


@st.composite
def calendar_steps(draw: st.DrawFn) -> dict[str, object]:
    step = draw(st.sampled_from(["days", "weeks", "months", "years"]))
    spec: dict[str, object] = {step: draw(st.integers(1, 20))}
    if draw(st.booleans()):
        spec["at"] = draw(st.lists(times, min_size=1, max_size=3))
    if step == "weeks" and draw(st.booleans()):
        names = st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
        spec["on"] = draw(st.lists(names, min_size=1, max_size=4))
    if step in ("months", "years") and draw(st.booleans()):
        spec["on_day"] = draw(st.lists(st.integers(1, 31), min_size=1, max_size=3))
    if step == "years" and draw(st.booleans()):
        spec["in_month"] = draw(st.integers(1, 12))
    return spec


def numbers(low: int, high: int, most: int = 5) -> st.SearchStrategy[str]:
    items = st.lists(st.integers(low, high), min_size=1, max_size=most, unique=True)
    return items.map(lambda found: ",".join(map(str, found)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]))
    parts = [f"FREQ={freq}"]

    def maybe(key: str, values: st.SearchStrategy[str]) -> None:
        if draw(st.integers(0, 3)) == 0:
            parts.append(f"{key}={draw(values)}")

    maybe("INTERVAL", st.integers(1, 400).map(str))
    maybe("BYMONTH", numbers(1, 12))
    maybe("BYHOUR", numbers(0, 23))
    maybe("BYMINUTE", numbers(0, 59))
    maybe("BYSECOND", numbers(0, 60, 3))
    maybe("BYDAY", st.lists(st.sampled_from(DAYS), min_size=1, max_size=4, unique=True).map(",".join))
    if freq != "WEEKLY":
        maybe("BYMONTHDAY", numbers(1, 31, 8))
    if freq == "YEARLY":
        maybe("BYWEEKNO", numbers(1, 53))
    if len(parts) > 2 and any(part.startswith("BY") for part in parts):
        maybe("BYSETPOS", st.sampled_from(["1", "-1", "2", "1,-1", "3,-2"]))
    maybe("COUNT", st.integers(1, 2_000).map(str))
    maybe("WKST", st.sampled_from(DAYS))
    return ";".join(parts)


@st.composite
def recurrences(draw: st.DrawFn) -> Callable[[], Schedule]:
    """A way to build the same recurrence set again and again."""
    zone, start, rule = draw(places), draw(instants), draw(rules())
    lines = [f"RRULE:{rule}"]
    with contextlib.suppress(InvalidInput):
        first = parse_rrule(rule, zone, start).after(-(10**20))
        assert first is not None
        if draw(st.integers(0, 2)) == 0:
            lines.append(f"EXDATE:{from_seconds(first):%Y%m%dT%H%M%SZ}")
        if draw(st.integers(0, 2)) == 0:
            lines.append(f"RDATE:{from_seconds(first + draw(st.integers(1, 10**7))):%Y%m%dT%H%M%SZ}")
    return lambda: parse_rrule("\n".join(lines), zone, start)


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    days = draw(st.lists(st.integers(day_of(2025, 12, 20), day_of(2026, 2, 28)), max_size=30, unique=True))
    weekdays = draw(st.frozensets(st.integers(0, 6), max_size=3))
    return Calendar("c", tuple(sorted(days)), weekdays=weekdays)


@st.composite
def schedules(draw: st.DrawFn) -> Callable[[], Schedule]:
    match draw(st.integers(0, 4)):
        case 0:
            seconds, anchor = draw(st.integers(1, 10**9)), draw(instants)
            return lambda: Interval(seconds, anchor)
        case 1:
            steps, zone, start = draw(calendar_steps()), draw(places), draw(st.none() | instants)
            return lambda: parse_every(steps, timezone=zone, start=start)
        case 2:
            at = draw(instants)
            return lambda: Once(at)
        case 3:
            return draw(recurrences())
        case _:
            steps, zone, start = draw(calendar_steps()), draw(places), draw(st.none() | instants)
            calendar, word = draw(calendars()), draw(st.sampled_from(list(OnExcluded)))
            return lambda: Filtered(
                parse_every(steps, timezone=zone, start=start), zone, (calendar,), (), word
            )


@settings(quick, max_examples=500)
@given(schedules(), any_instant, st.integers(0, 10**7))
def test_questions_agree_with_each_other(build: Callable[[], Schedule], t: int, later: int) -> None:
    try:
        schedule = build()
    except InvalidInput:
        return
    following = schedule.after(t)
    last = schedule.before(t)
    assert last is None or MIN_SECONDS <= last <= t
    if following is None:
        return
    assert t < following <= MAX_SECONDS
    assert schedule.before(following) == following
    assert schedule.before(following - 1) == last
    if last is not None:
        assert schedule.after(last) == following
        assert schedule.after(last - 1) == last
    # Nothing depends on what was asked before.
    assert build().after(min(following - 1, t + later)) == following
    walked = [following]
    while len(walked) < 20 and (more := schedule.after(walked[-1])) is not None:
        walked.append(more)
    assert walked == sorted(set(walked))
    assert build().between(t, walked[-1], 50) == walked
    assert build().between(t, walked[-1], 3) == walked[:3]
    backwards = [walked[-1]]
    while len(backwards) < len(walked):
        earlier = schedule.before(backwards[-1] - 1)
        assert earlier is not None
        backwards.append(earlier)
    assert backwards[::-1] == walked


def local_instants(zone: ZoneInfo, on: date, at: str) -> int | None:
    """The rule of a local time, by `zoneinfo`: first pass; first instant after a gap under three hours."""
    hour, minute = map(int, at.split(":"))
    local = datetime(on.year, on.month, on.day, hour, minute)
    before, after = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    offsets = before.utcoffset(), after.utcoffset()
    assert offsets[0] is not None
    assert offsets[1] is not None
    if before.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local:
        return to_seconds(before.astimezone(UTC))
    if offsets[1] - offsets[0] >= timedelta(hours=3):
        return None
    # The gap's end: the first instant whose offset is the later one.
    low, high = (
        to_seconds((local - offsets[1]).replace(tzinfo=UTC)),
        to_seconds((local - offsets[0]).replace(tzinfo=UTC)),
    )
    while low < high:
        middle = (low + high) // 2
        if from_seconds(middle).astimezone(zone).utcoffset() == offsets[1]:
            high = middle
        else:
            low = middle + 1
    return low


@quick
@given(calendar_steps(), st.sampled_from(ZONES), st.dates(date(2000, 1, 1), date(2030, 1, 1)))
def test_calendar_intervals_are_what_their_words_say(spec: dict[str, object], name: str, start: date) -> None:
    zone = ZoneInfo(name)
    begin = datetime(start.year, start.month, start.day, 12, tzinfo=zone).astimezone(UTC)
    if begin.astimezone(zone).replace(tzinfo=None) != datetime(start.year, start.month, start.day, 12):
        return  # the day that Samoa never had is nobody's start
    schedule = parse_every(spec, timezone=load_zone(name), start=to_seconds(begin))
    step = next(iter(spec))
    count = spec[step]
    assert isinstance(count, int)
    at = spec.get("at", ["12:00"])
    assert isinstance(at, list)
    expected: set[int] = set()
    monday = start - timedelta(days=start.weekday())
    for offset in range(800):
        day = start + timedelta(days=offset)
        last = (date(day.year + day.month // 12, day.month % 12 + 1, 1) - timedelta(days=1)).day
        on_day = spec.get("on_day", [start.day])
        assert isinstance(on_day, list)
        of_month = day.day in [min(wanted, last) for wanted in on_day]
        names = spec.get("on", [["mon", "tue", "wed", "thu", "fri", "sat", "sun"][start.weekday()]])
        assert isinstance(names, list)
        hit = {
            "days": offset % count == 0,
            "weeks": (day - monday).days // 7 % count == 0 and day.strftime("%a").lower() in names,
            "months": (day.year * 12 + day.month - start.year * 12 - start.month) % count == 0 and of_month,
            "years": (day.year - start.year) % count == 0
            and day.month == spec.get("in_month", start.month)
            and of_month,
        }[step]
        if hit:
            expected.update(t for one in at if (t := local_instants(zone, day, one)) is not None)
    first = to_seconds(datetime(start.year, start.month, start.day, tzinfo=zone).astimezone(UTC)) - 1
    end = to_seconds(begin) + 798 * 86_400
    assert schedule.between(first, end) == sorted(t for t in expected if first < t <= end)


@quick
@given(
    st.integers(2_400, 300_000), calendars(), calendars(), st.sampled_from(list(OnExcluded)), st.booleans()
)
def test_calendars_do_what_their_words_say(
    seconds: int, exclude: Calendar, second: Calendar, word: OnExcluded, both: bool
) -> None:
    """In UTC, where a day is a day: each slot of January 2026 by the definition."""
    excluded = (exclude, second) if both else (exclude,)
    schedule = Filtered(Interval(seconds), load_zone("UTC"), excluded, (), word)
    weekend = set() if any(calendar.weekdays for calendar in excluded) else {5, 6}

    def out(day: int) -> bool:
        return any(day in calendar.days or (day + 3) % 7 in calendar.weekdays for calendar in excluded)

    expected: set[int] = set()
    margin = 100 * 86_400
    low, high = day_of(2026, 1, 1) * 86_400, day_of(2026, 2, 1) * 86_400
    for slot in Interval(seconds).between(low - margin - 1, high + margin, 10**6):
        day = slot // 86_400
        if not out(day):
            expected.add(slot)
        elif word is not OnExcluded.SKIP:
            step = 1 if word is OnExcluded.NEXT else -1
            moves = (
                d
                for d in range(1, 367)
                if not out(day + step * d) and (day + step * d + 3) % 7 not in weekend
            )
            distance = next(moves, None)
            if distance is not None:
                expected.add(slot + step * distance * 86_400)
    assert schedule.between(low - 1, high - 1, 10**6) == sorted(t for t in expected if low <= t < high)


@quick
@given(st.text(max_size=60) | st.text(alphabet="0123456789.PTHMSWDdhmsw +-:", max_size=20))
def test_any_text_is_a_duration_or_is_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        found = parse_duration(text)
        assert parse_duration(format_duration(found)) == found


@quick
@given(st.text(max_size=40) | st.text(alphabet="0123456789-:TZ+ ", max_size=26))
def test_any_text_is_an_instant_or_is_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert MIN_SECONDS <= parse_instant(text, load_zone("Europe/Berlin")) <= MAX_SECONDS


PIECES = [
    *(
        "FREQ=DAILY",
        "FREQ=SECONDLY",
        "INTERVAL=",
        "COUNT=",
        "UNTIL=",
        "BYDAY=",
        "BYHOUR=",
        "BYSETPOS=",
        "WKST=",
    ),
    *(
        "DTSTART:",
        "DTSTART;TZID=",
        "RRULE:",
        "EXRULE:",
        "RDATE:",
        "EXDATE;VALUE=DATE:",
        "BEGIN:VEVENT",
        "END:VEVENT",
    ),
    *(
        "20260101",
        "T000000Z",
        "T250000",
        "Europe/Berlin",
        "MO",
        "-1FR",
        "5",
        "-1",
        "0",
        "99",
        ",",
        ";",
        "\n",
        ":",
        " ",
    ),
]


@quick
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=80))
def test_any_text_is_a_recurrence_set_or_is_refused(text: str) -> None:
    try:
        found = parse_rrule(text, load_zone("UTC"), 0)
    except InvalidInput as refused:
        problems = refused.problems
    else:
        problems = ()
        assert canonical_rrule(found.text) == found.text
        first = found.after(-(10**20))
        assert parse_rrule(found.text, load_zone("UTC"), 0).after(-(10**20)) == first
    assert all(problem.pointer == "/rrule" and problem.rule for problem in problems)


@quick
@given(calendar_steps())
def test_a_canonical_interval_means_the_same(spec: dict[str, object]) -> None:
    zone = load_zone("Europe/Berlin")
    canonical = canonical_every(spec)
    assert canonical_every(canonical) == canonical
    assert parse_every(canonical, timezone=zone, start=0) == parse_every(spec, timezone=zone, start=0)


@quick
@given(st.lists(st.dates(date(1, 1, 1), date(9999, 12, 31)), min_size=1, max_size=20))
def test_a_calendar_of_dates_holds_just_these(dates: list[date]) -> None:
    calendar = parse_calendar("c", {"dates": [str(found) for found in dates]}, "")
    held = {day_of(found.year, found.month, found.day) for found in dates}
    assert all(day in calendar for day in held)
    assert all((day + 1 in calendar) == (day + 1 in held) for day in held if day < 2_932_896)


def test_a_hidden_fault_would_show() -> None:
    """The agreement of questions is no empty check: a rule that forgets its last instance breaks it."""

    class Forgetful(Schedule):
        zone = None

        def after(self, t: int) -> int | None:
            return Interval(60).after(t)

        def before(self, t: int) -> int | None:
            return Interval(60).before(t - 1)

        def describe(self) -> str:
            return "forgetful"

    with pytest.raises(AssertionError):
        test_questions_agree_with_each_other.hypothesis.inner_test(  # type: ignore[attr-defined]  # hypothesis adds it
            Forgetful, 0, 1
        )


# --- fuzz -----------------------------------------------------------------------------------------------

FUZZ_SECONDS = float(os.environ.get("HORARIUM_FUZZ_SECONDS", "4"))
SEEDS = [
    "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;BYHOUR=9,17;BYMINUTE=30",
    "FREQ=YEARLY;BYWEEKNO=1,-1,53;BYDAY=SA;BYSECOND=0,59,60;WKST=SU;COUNT=400",
    "FREQ=MONTHLY;BYMONTHDAY=-1,31,30;BYMONTH=2,4;BYSETPOS=1,-1;UNTIL=20301231T235959Z",
    "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=3;BYYEARDAY=60,-1,366",
    "FREQ=MINUTELY;INTERVAL=1439;BYDAY=SU;BYMONTHDAY=29;BYMONTH=2;BYMINUTE=0",
    "DTSTART;TZID=Africa/Cairo:20260424T003000\nRRULE:FREQ=DAILY;COUNT=9\nEXDATE;VALUE=DATE:20260425\n"
    "RDATE:20260501T000000Z\nEXRULE:FREQ=WEEKLY;BYDAY=FR",
    "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;TZID=America/New_York:00010101T020000\n"
    "RRULE:FREQ=HOURLY;INTERVAL=5\nSTATUS:CONFIRMED\nEND:VEVENT\n"
    "BEGIN:VEVENT\nRECURRENCE-ID:20260101T000000Z\nDTSTART:20260102T000000Z\nEND:VEVENT\nEND:VCALENDAR",
    *("1h30m", "PT1H30M", "2 hours", "0.5d", "99999999999999999999s"),
    *("2026-03-29T02:30", "9999-12-31T23:59:59-12:00", "0001-01-01"),
    *("2026-01-01/2026-02-01", "02-29", "DE"),
]
LETTERS = "0123456789;:=,-+/TZPDHMSWmhsd \nMOFR\x00é٣"


def test_fuzz_the_parsers_of_rules() -> None:
    """Mutated texts: an answer or a refusal, in a moment. `HORARIUM_FUZZ_SECONDS=120` is the nightly run."""
    rng = random.Random(20261129)
    zone = load_zone("America/Havana")
    end, tried, understood = time.monotonic() + FUZZ_SECONDS, 0, 0
    while time.monotonic() < end:
        text = rng.choice(SEEDS)
        for _ in range(rng.choice([1, 1, 2, 3, 8])):
            i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            text = rng.choice(
                [
                    text[:i] + rng.choice(LETTERS) + text[i:],
                    text[:i] + rng.choice(LETTERS) + text[i + 1 :],
                    text[:i] + text[min(j, i + 3) :],
                    text[:j] + text[i:j] * rng.choice([1, 1, 50]) + text[j:],
                    text[:i] + str(rng.choice([0, -1, 53, 366, 10**9, 10**30])) + text[i:],
                ]
            )[:2_000]
        began = time.process_time()
        readers: list[Callable[[], object]] = [
            lambda text=text: parse_rrule(text, zone, rng.choice([None, 0, MIN_SECONDS])),  # type: ignore[misc]  # mypy can't type defaults
            lambda text=text: parse_every(text),  # type: ignore[misc]  # as above
            lambda text=text: parse_every({"days": 1, "at": text}, zone),  # type: ignore[misc]  # as above
            lambda text=text: parse_instant(text, zone),  # type: ignore[misc]  # as above
            lambda text=text: parse_calendar("c", {"dates": [text], "holidays": text}, "/c"),  # type: ignore[misc]  # as above
        ]
        for read in readers:
            try:
                found = read()
            except InvalidInput:
                continue
            understood += 1
            for t in (-(10**20), rng.randrange(MIN_SECONDS, MAX_SECONDS), 10**20):
                if isinstance(found, Schedule):
                    following, last = found.after(t), found.before(t)
                    assert following is None or (following > t and found.before(following) == following), text
                    assert last is None or (last <= t and found.before(last) == last), text
        tried += 1
        assert time.process_time() - began < 1.0, text
    assert tried > 50
    assert understood > tried // 50  # by chance: about one in twenty is a rule
