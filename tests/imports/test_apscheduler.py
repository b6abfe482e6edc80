"""Jobs of APScheduler 3 become triggers that name the instants that its own triggers compute.

The stores are APScheduler's own, written by it; its triggers are the oracle. What is pickled is never run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import pickletools
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from horarium.core.spec import CatchUp
from horarium.errors import InvalidInput
from horarium.sources.apscheduler import import_apscheduler
from horarium.sources.imported import Imported
from horarium.sources.job_store import Job, read_jobs
from horarium.sources.pickles import PickleRefused, read_pickle
from tests.imports.clock_changes import before_the_next_change
from tests.imports.written import instants, only, specs
from tests.store.conftest import PostgresServer

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOW = datetime(1971, 1, 1, tzinfo=UTC)
"""When jobs are imported: before any of them."""


def state(trigger: object, **more: Any) -> dict[str, Any]:
    """What `Job.__getstate__` gives its store to pickle."""
    return {
        "version": 1,
        "id": "job",
        "func": "shop.tasks:clean",
        "trigger": trigger,
        "executor": "default",
        "args": (),
        "kwargs": {},
        "name": "clean",
        "misfire_grace_time": None,
        "coalesce": False,
        "max_instances": 1,
        "next_run_time": NOON,
        **more,
    }


def imported(trigger: object, protocol: int = pickle.HIGHEST_PROTOCOL, **more: Any) -> Imported:
    data = pickle.dumps(state(trigger, **more), protocol)
    return import_apscheduler([Job("job", lambda: read_pickle(data))], "jobs", NOW)


def nested(kind: type, levels: int = 30) -> Any:
    """A few hundred bytes of pickle that stand for 9**30 values."""
    value = kind("a")
    for _ in range(levels):
        value = kind([value] * 9)
    return value


@pytest.mark.parametrize(
    "hostile",
    [
        {"args": (nested(list),)},
        {"kwargs": {"a": nested(tuple)}},
        {"kwargs": {"a": 1, "b": nested(list)}, "args": (1,)},
        {"max_instances": nested(list)},
        {"executor": nested(tuple)},
        {"func": nested(list)},
        {"next_run_time": nested(list)},
    ],
    ids=lambda hostile: "-".join(hostile),
)
def test_a_pickle_that_stands_for_terabytes_costs_nothing(hostile: dict[str, Any]) -> None:
    assert imported(DateTrigger(NOON), **hostile).dropped


def test_a_key_that_takes_for_ever_to_hash_is_refused() -> None:
    # pickle can't write one: t0 = ("a",); t1 = (t0, t0); ... {t60: None}
    deep = b"(Vx\nt" + b"".join(b"p%d\n0(g%d\ng%d\nt" % (n, n, n) for n in range(60))
    for data in (
        b"(" + deep + b"Nd.",
        b"}" + deep + b"Ns.",
        b"\x80\x04\x8f(" + deep + b"\x90.",
        b"\x80\x04(" + deep + b"\x91.",
    ):
        with pytest.raises(PickleRefused, match="a tuple of tuples"):
            read_pickle(data)


def test_a_job_whose_time_has_passed_is_named() -> None:
    (dropped,) = imported(DateTrigger(NOW), next_run_time=NOW).dropped
    assert "1971-01-01T00:00:00Z has passed" in dropped.reason
    later = NOW + timedelta(seconds=1)
    assert only(imported(DateTrigger(later), next_run_time=later)).schedule["at"] == "1971-01-01T00:00:01Z"


def test_a_function_of_the_script_that_was_run_is_named() -> None:
    (dropped,) = imported(CronTrigger(hour=4, timezone=BERLIN), func="__main__:tick").dropped
    assert "__main__:tick is in the script that was run" in dropped.reason


def nothing(**kwargs: Any) -> None:
    """A function that jobs can name."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A job store that APScheduler wrote."""
    path = tmp_path / "jobs.sqlite"
    scheduler = BackgroundScheduler(timezone=BERLIN)
    scheduler.add_jobstore(SQLAlchemyJobStore(f"sqlite:///{path}"))
    scheduler.start(paused=True)
    reference = "tests.imports.test_apscheduler:nothing"
    scheduler.add_job(
        reference,
        CronTrigger(hour="7-19/2", day_of_week="mon-fri", timezone=BERLIN),
        id="report",
        kwargs={"to": "sales"},
        coalesce=True,
        misfire_grace_time=600,
    )
    every = IntervalTrigger(minutes=5, start_date="2030-01-01", timezone=BERLIN)
    scheduler.add_job(reference, every, id="poll", misfire_grace_time=None, coalesce=False)
    scheduler.add_job(reference, "date", run_date="2030-01-01 09:00:00", id="once").pause()
    scheduler.export_jobs(str(tmp_path / "jobs.json"))
    scheduler.shutdown()
    return path


@pytest.mark.parametrize("where", ["{}", "sqlite:///{}", "{folder}/jobs.json"])
def test_a_job_store_is_read(store: Path, where: str) -> None:
    jobs, source = asyncio.run(read_jobs(where.format(store, folder=store.parent)))
    result = import_apscheduler(jobs, source, NOW)

    found = specs(result)
    assert result.dropped == ()
    assert set(found) == {"once", "poll", "report"}
    report = found["report"]
    assert report.schedule == {
        "cron": "0 7-19/2 * * 1-5",
        "timezone": "Europe/Berlin",
        "dst": "literal",
        "day_or": False,
    }
    assert report.catch_up is CatchUp.LATEST
    assert report.max_age == timedelta(minutes=10)
    assert report.action == {"python": "tests.imports.test_apscheduler:nothing"}
    assert report.parameters == {"to": "sales"}
    assert found["poll"].schedule == {"every": "5m", "start": "2029-12-31T23:00:00Z"}
    assert found["poll"].catch_up is CatchUp.ALL
    assert found["once"].schedule["at"] == "2030-01-01T08:00:00Z"
    assert [found[name].active for name in ("once", "poll")] == [False, True]
    assert Path(source).parent == store.parent


def test_a_job_store_in_postgresql_is_read(postgres: PostgresServer) -> None:
    async def read() -> tuple[list[Job], str]:
        url = await postgres.emptied()
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("create schema jobs")
            await connection.execute(
                "create table jobs.apscheduler_jobs"
                " (id varchar(191) primary key, next_run_time float, job_state bytea not null)"
            )
            row = pickle.dumps(state(CronTrigger(hour=4, timezone="UTC")))
            await connection.execute("insert into jobs.apscheduler_jobs values ('a', 0, $1)", row)
            with pytest.raises(InvalidInput, match="UndefinedTable"):
                await read_jobs(url, "other")
            return await read_jobs(
                url.replace("postgresql:", "postgresql+psycopg2:"), "jobs.apscheduler_jobs"
            )
        finally:
            await connection.execute("drop schema if exists jobs cascade")
            await connection.close()

    jobs, source = asyncio.run(read())
    assert only(import_apscheduler(jobs, source, NOW)).schedule["cron"] == "0 4 * * *"
    assert source.startswith("postgresql://")
    assert "@" not in source


def test_nothing_is_written_into_the_store(store: Path) -> None:
    before = store.read_bytes()
    asyncio.run(read_jobs(str(store)))
    assert store.read_bytes() == before


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "list.json").write_text("[]")
    for where in ("text", "empty", "list.json"):
        with pytest.raises(InvalidInput, match="no SQLite file"):
            asyncio.run(read_jobs(str(tmp_path / where)))
    with pytest.raises(InvalidInput, match="export_jobs"):
        asyncio.run(read_jobs("redis://secret@host"))
    with pytest.raises(InvalidInput, match="table's name"):
        asyncio.run(read_jobs(str(tmp_path / "text"), "x; drop table y"))
    with pytest.raises(OSError, match="nowhere"):
        asyncio.run(read_jobs(str(tmp_path / "nowhere")))


def test_a_table_that_is_not_there_is_said(store: Path) -> None:
    with pytest.raises(InvalidInput, match="no such table"):
        asyncio.run(read_jobs(str(store), "other"))


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_of_pickle(protocol: int) -> None:
    cron = CronTrigger(
        hour=4, day="last,1st mon", timezone=BERLIN, start_date=NOON, end_date=NOON.replace(year=2030)
    )
    spec = only(imported(cron, protocol))
    assert spec.schedule["cron"] == "0 4 L * 1#1"
    assert spec.schedule["start"] == "2026-06-01T12:00:00Z"
    interval = IntervalTrigger(hours=2, timezone="UTC", start_date=NOON)
    assert only(imported(interval, protocol)).schedule == {"every": "2h", "start": "2026-06-01T12:00:00Z"}
    both = specs(imported(OrTrigger([cron, interval]), protocol))
    assert set(both) == {"job/cron", "job/every"}


# --- what it calls ----------------------------------------------------------------------------------------


def test_arguments_that_json_cannot_say_are_written_as_python() -> None:
    spec = only(imported(DateTrigger(NOON), args=(7, "it's"), kwargs={"x": (1, None), "y": {2: b"\0"}}))
    assert spec.action["run"] == [
        *("python3", "-c"),
        "import shop.tasks; shop.tasks.clean(7, \"it's\", x=(1, None, ), y={2: b'\\x00'})",
    ]


def test_the_command_calls_the_function(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(
        "class Job:\n    @staticmethod\n    def go(*a, **k): print(a, k)\n"
    )
    more = {"func": "shop.tasks:Job.go", "args": (7, "it's"), "kwargs": {"x": (1,)}}
    command = only(imported(DateTrigger(NOON), pickle.HIGHEST_PROTOCOL, **more)).action["run"]
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "(7, \"it's\") {'x': (1,)}\n"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"args": (NOON,)}, "<datetime.datetime>, which a command line can't carry"),
        ({"func": "print('x')"}, "no reference to a function"),
        ({"trigger": None}, "no trigger"),
        ({"kwargs": {"a b": 1}, "args": (1,)}, "no name of Python's"),
        ({"args": (float("nan"),)}, "can't carry"),
        ({"trigger": CronTrigger(week=3)}, "week"),
        ({"trigger": CronTrigger(year="2030,2032")}, "year"),
        ({"trigger": CronTrigger(day="1st mon", day_of_week="tue")}, "day_of_week restricts"),
        ({"trigger": IntervalTrigger(seconds=0.5)}, "whole seconds"),
        (
            {"trigger": AndTrigger([IntervalTrigger(hours=1), CronTrigger(hour=1)])},
            "all of its triggers are cron",
        ),
        ({"trigger": CalendarIntervalTrigger(months=1, start_date=date(2026, 1, 31))}, "29th to 31st"),
        ({"trigger": DateTrigger(datetime(1, 1, 1, tzinfo=UTC)), "next_run_time": "soon"}, "no time"),
        ({"trigger": CronTrigger(timezone=timezone(timedelta(minutes=30)))}, "no zone of the tz database"),
    ],
)
def test_what_cannot_be_carried_over_is_named(more: dict[str, Any], reason: str) -> None:
    trigger = (
        more.pop("trigger", DateTrigger(NOON)) if more.get("trigger", 0) is not None else more.pop("trigger")
    )
    result = imported(trigger, **more)
    (dropped,) = result.dropped
    assert (dropped.line, dropped.text, dropped.whole) == (1, "job", True)
    assert reason in dropped.reason
    assert specs(result) == {}
    assert "# Not carried over, job 1: job: " in result.text


def test_an_executor_is_named_at_its_place() -> None:
    result = imported(DateTrigger(NOON), executor="processpool")
    assert [(item.text, item.whole) for item in result.dropped] == [("executor 'processpool'", False)]
    assert list(specs(result)) == ["job"]


# --- hostile pickles --------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("place", ["args", "kwargs", "trigger", "func", "next_run_time", "whole"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_never_run(tmp_path: Path, place: str, protocol: int) -> None:
    bomb = Bomb(tmp_path / "was run")
    values = {"args": (bomb,), "kwargs": {"a": bomb}, "trigger": bomb, "func": bomb, "next_run_time": bomb}
    whole: Any = bomb if place == "whole" else {**state(DateTrigger(NOON)), place: values[place]}
    data = pickle.dumps(whole, protocol)
    result = import_apscheduler([Job("job", lambda: read_pickle(data))], "jobs", NOW)
    assert len(result.dropped) == 1
    assert list(tmp_path.iterdir()) == []
    pickle.loads(data)
    assert [path.name for path in tmp_path.iterdir()] == ["was run"], (
        "the pickle does something when it is run"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"]",
        b"\x80\x05]q\xff",
        b"cos\nsystem\n.",
        b"(lp0\nh\x00a.",
        b"\x82\x01.",
        b"Pid\n.",
        b"\x8b\xff\xff\xff\x7f.",
        b"r\xff\xff\xff\x7fN.",
        b"Nr\xff\xff\xff\xff.",
        b"N}b.",
        b"}]Ns.",
        b"x" * 2_000_000,
    ],
)
def test_broken_pickles_cost_their_job_alone(data: bytes) -> None:
    good = pickle.dumps(state(DateTrigger(NOON)))
    jobs = [Job("bad", lambda: read_pickle(data)), Job("good", lambda: read_pickle(good))]
    result = import_apscheduler(jobs, "jobs", NOW)
    assert [item.text for item in result.dropped] == ["bad"]
    assert list(specs(result)) == ["good"]


def test_text_with_a_doubtful_escape_is_read_without_a_warning() -> None:
    assert read_pickle(b"S'\\d'\n.") == "\\d"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.data())
def test_any_bytes_are_a_value_or_refused(noise: bytes, data: st.DataObject) -> None:
    real = pickle.dumps(state(CronTrigger(hour=4, timezone="UTC")), data.draw(st.integers(0, 5)))
    at = data.draw(st.integers(0, len(real)))
    for text in (noise, real[:at] + noise + real[at + len(noise) :]):
        result = import_apscheduler([Job("job", lambda text=text: read_pickle(text))], "jobs", NOW)  # type: ignore[misc]
        assert len(result.names) + len(result.dropped) >= 1
        specs(result)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(PLAIN, st.integers(3, 5))
def test_plain_data_is_what_pickle_makes_of_it(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert read_pickle(data) == value
    assert read_pickle(pickletools.optimize(data)) == value


def test_a_set_and_a_shared_list_are_read() -> None:
    shared = [1]
    for protocol in range(6):
        if protocol >= 4:
            assert read_pickle(pickle.dumps({frozenset({1}): {2}}, protocol)) == {frozenset({1}): {2}}
        found = read_pickle(pickle.dumps([shared, shared], protocol))
        assert found[0] is found[1]
    with pytest.raises(PickleRefused):
        read_pickle(b"\x80\x02")


# --- APScheduler's own answers ----------------------------------------------------------------------------


def theirs(trigger: BaseTrigger, after: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    previous, now = None, after + timedelta(seconds=1)
    while len(found) < count:
        at = trigger.get_next_fire_time(previous, now)
        if at is None:
            break
        found.append(at.astimezone(UTC))
        if isinstance(trigger, AndTrigger):  # told of a previous time, it looks for the next one without end
            now = at + timedelta(seconds=1)
        else:
            previous = now = at
    return found


def same(trigger: BaseTrigger, after: datetime, zone: str, count: int = 10) -> None:
    result = imported(trigger)
    expected = theirs(trigger, after, count)
    if result.dropped:
        assume(False)
    spec = only(result)
    found = instants(spec, after, count + 2)
    place = ZoneInfo(zone)
    theirs_here = before_the_next_change(expected, after, place)
    ours_here = before_the_next_change(found, after, place)
    assert ours_here[: len(theirs_here)] == theirs_here
    if len(theirs_here) < count:  # neither has one that the other lacks
        assert len(ours_here) == len(theirs_here)


def expression(low: int, high: int, more: list[str]) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(sorted)
    part = (
        number.map(str)
        | st.just("*")
        | st.builds("*/{}".format, st.integers(1, max(1, (high - low) // 2)))
        | span.map(lambda pair: f"{pair[0]}-{pair[1]}")
        | span.filter(lambda p: p[1] > p[0]).map(lambda p: f"{p[0]}-{p[1]}/{max(1, (p[1] - p[0]) // 2)}")
        | st.sampled_from(more or ["*"])
    )
    return st.lists(part, min_size=1, max_size=3).map(",".join)


FIELDS = {
    "month": expression(1, 12, ["jan", "mar-oct"]),
    "day": expression(1, 31, ["last", "1st mon", "last fri", "5th tue", "3rd sun"]),
    "day_of_week": expression(0, 6, ["mon", "mon-fri", "sat,sun"]),
    "hour": expression(0, 23, []),
    "minute": expression(0, 59, []),
    "second": expression(0, 59, []),
}
ZONES = ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York"]


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries({}, optional=FIELDS),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    st.none() | st.integers(-(10**7), 10**7),
    st.integers(0, 10**8),
)
@example({"day": "1,1st mon", "hour": "4"}, "UTC", datetime(2026, 1, 1), None, 10**8)
@example({"day": "*/10,1st mon", "hour": "4"}, "UTC", datetime(2026, 1, 1), None, 10**8)
@example({"day": "last", "day_of_week": "fri", "hour": "4"}, "UTC", datetime(2026, 1, 1), None, 10**8)
def test_the_instants_of_cron_are_apschedulers(
    fields: dict[str, str], zone: str, naive: datetime, start: int | None, end: int
) -> None:
    after = naive.replace(microsecond=0, tzinfo=UTC)
    # Without an end a trigger of no date walks to the year 9999.
    bounds = {"end_date": after + timedelta(seconds=end + max(0, start or 0), microseconds=7)}
    if start is not None:
        bounds["start_date"] = after + timedelta(seconds=start, microseconds=7)
    try:
        trigger = CronTrigger(**fields, timezone=zone, **bounds)
    except ValueError:
        assume(False)
    same(trigger, after, zone)


def test_an_hour_that_comes_twice_is_apschedulers() -> None:
    trigger = CronTrigger(minute="30", hour="1,2", timezone="America/New_York")
    after = datetime(2026, 10, 31, tzinfo=UTC)
    assert instants(only(imported(trigger)), after, 8) == theirs(trigger, after, 8)


def test_years_are_bounds() -> None:
    trigger = CronTrigger(year="2027-2028", month=1, timezone="Asia/Tokyo")
    spec = only(imported(trigger))
    after = datetime(2026, 1, 1, tzinfo=UTC)
    assert instants(spec, after, 9) == theirs(trigger, after, 9)


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {"hour": FIELDS["hour"]}, optional={"day": FIELDS["day"], "month": FIELDS["month"]}
    ),
    st.fixed_dictionaries({"minute": FIELDS["minute"]}, optional={"day_of_week": FIELDS["day_of_week"]}),
)
def test_the_instants_of_an_and_are_apschedulers(one: dict[str, str], other: dict[str, str]) -> None:
    triggers = [
        CronTrigger(**{"hour": "*", "minute": "*", **words}, timezone="UTC") for words in (one, other)
    ]
    for trigger in triggers:
        trigger.fields[-1].compile_expressions("0")
    same(AndTrigger(triggers), NOON, "UTC", count=5)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**6), st.integers(-(10**6), 10**6), st.sampled_from(ZONES))
def test_the_instants_of_an_interval_are_apschedulers(seconds: int, start: int, zone: str) -> None:
    trigger = IntervalTrigger(seconds=seconds, start_date=NOON + timedelta(seconds=start), timezone=zone)
    following = trigger.get_next_fire_time(None, NOON)
    spec = only(imported(trigger, next_run_time=following))
    before = following.astimezone(UTC) - timedelta(seconds=1)
    assert instants(spec, before, 5) == theirs(trigger, before, 5)


def test_an_or_has_a_trigger_for_each() -> None:
    inner = [CronTrigger(hour=4, timezone="UTC"), CronTrigger(hour=5, timezone="UTC"), DateTrigger(NOON)]
    found = specs(imported(OrTrigger(inner, jitter=30)))
    assert len(found) == 3
    assert {spec.jitter for spec in found.values()} == {timedelta(seconds=30)}
    merged = sorted(at for spec in found.values() for at in instants(spec, NOON - timedelta(hours=1), 3))[:4]
    assert merged == theirs(OrTrigger(inner), NOON - timedelta(hours=1), 1) + merged[1:]


@pytest.mark.parametrize("step", [{"days": 3}, {"weeks": 2}, {"months": 5}, {"years": 1}])
def test_the_instants_of_a_calendar_interval_are_apschedulers(step: dict[str, int]) -> None:
    trigger = CalendarIntervalTrigger(**step, hour=4, start_date=date(2026, 5, 28), timezone="Europe/Berlin")
    spec = only(imported(trigger))
    before = datetime(2026, 5, 27, tzinfo=UTC)
    assert instants(spec, before, 8) == theirs(trigger, before, 8)


def test_one_instance_at_a_time_is_carried_over_and_more_are_named() -> None:
    every = IntervalTrigger(minutes=5, start_date="2030-01-01", timezone=BERLIN)
    (spec,) = specs(imported(every)).values()
    assert spec.overlap.value == "skip"
    several = imported(every, max_instances=3)
    (spec,) = specs(several).values()
    assert spec.overlap.value == "allow"
    assert [(item.text, item.whole) for item in several.dropped] == [("max_instances 3", False)]
