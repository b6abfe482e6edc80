"""Celery beat's schedule becomes triggers that name the instants that Celery itself computes.

Celery's own `crontab` is the oracle; its module is never run by the import.
"""

from __future__ import annotations

import base64
import importlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import ParseException, crontab
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horarium import wiring
from horarium.core.spec import CatchUp, TriggerSpec
from horarium.errors import InvalidInput
from horarium.sources.celery_beat import import_celery
from horarium.sources.files import parse_triggers
from horarium.sources.imported import Imported
from horarium.targets import registry
from tests.imports.clock_changes import before_the_next_change
from tests.imports.written import instants, only, specs

EXAMPLE = Path(__file__).parents[2] / "examples" / "celeryconfig.py"
HEAD = "from celery.schedules import crontab, schedule, solar\nfrom datetime import timedelta\n"


def imported(body: str, **options: Any) -> Imported:
    return import_celery(HEAD + body, "celeryconfig.py", **{"app": "proj", **options})


def one(schedule: str, rest: str = "", more: str = "") -> TriggerSpec:
    entry = f"{{'task': 'tasks.add', 'schedule': {schedule}, {rest}}}"
    return only(imported(f"{more}\nbeat_schedule = {{'add': {entry}}}\n"))


def test_an_entry_sends_its_task() -> None:
    spec = one(
        "crontab(hour=7, minute=30, day_of_week=1)",
        "'args': (16, 'x'), 'kwargs': {'a': [1.5, None]}, 'options': {'queue': 'slow', 'expires': 60}",
        "timezone = 'Europe/London'",
    )
    assert spec.schedule == {"cron": "30 7 * * 1", "timezone": "Europe/London", "day_or": False}
    assert spec.catch_up is CatchUp.LATEST
    assert spec.action["run"] == [
        *("celery", "--app", "proj", "call", "tasks.add", "--args", '[16, "x"]'),
        *("--kwargs", '{"a": [1.5, null]}', "--queue", "slow", "--expires", "60"),
    ]


def test_the_command_puts_the_task_into_the_broker(tmp_path: Path) -> None:
    """Celery itself takes the command; a broker of files shows what it sent."""
    (tmp_path / "out").mkdir()
    (tmp_path / "proj.py").write_text(
        "from celery import Celery\n"
        "app = Celery('proj', broker='filesystem://')\n"
        f"app.conf.broker_transport_options = {{name: {str(tmp_path / 'out')!r} for name in "
        "('data_folder_in', 'data_folder_out', 'control_folder')}\n"
    )
    spec = one("30", "'args': (16, 'it\\'s'), 'kwargs': {'a': 'ü'}, 'options': {'queue': 'slow'}")
    command = [sys.executable, "-m", *spec.action["run"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (sent,) = (tmp_path / "out").glob("*.slow.msg")
    message = json.loads(sent.read_text())
    assert message["headers"]["task"] == "tasks.add"
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == ([16, "it's"], {"a": "ü"})


CONNECTION = {"broker": "env:BROKER_URL", "backend": "env:RESULT_BACKEND"}


def by_target(options: str, more: str = "", task: str = "shop.add") -> Imported:
    entry = f"{{'task': {task!r}, 'schedule': 30, 'args': (1,), 'kwargs': {{'b': 2}}, 'options': {options}}}"
    return imported(f"{more}\nbeat_schedule = {{'add': {entry}}}\n", app=None, connection=CONNECTION)


def test_with_a_broker_a_target_sends_the_task() -> None:
    result = by_target("{'queue': 'slow', 'expires': 90, 'priority': 3, 'serializer': 'json'}")
    spec = only(result)
    assert (spec.target, spec.parameters) == ("celery", {"b": 2})
    assert spec.action == {
        "task_name": "shop.add",
        "args": [1],
        "queue": "slow",
        "expires": 90.0,
        "priority": 3,
    }
    (target,) = parse_triggers(result.text, "imported.yaml", registry).listing.targets
    assert (target.name, target.kind, target.config) == ("celery", "celery", CONNECTION)
    assert [note.text for note in result.notes if "--app" in note.text] == []


def test_what_a_target_has_no_word_for_is_named() -> None:
    result = by_target("{'countdown': 5, 'headers': {'a': 'b'}, 'priority': 'high', 'queue': None}")
    assert [(item.text, item.whole) for item in result.dropped] == [
        *(("option countdown", False), ("option headers", False), ("option priority", False))
    ]
    assert list(specs(result)) == ["add"]
    for elsewhere in ("{'routing_key': 'a.b'}", "{'exchange': 'x'}", "{'queue': 5}"):
        (dropped,) = by_target(elsewhere).dropped
        assert dropped.whole, "a task that would go elsewhere is not sent at all"


ROUTES = "{'shop.*': 'any', 'shop.add': {'queue': 'one'}, 'mail.*': {'exchange': 'post'}}"


@pytest.mark.parametrize(
    ("more", "task", "queue"),
    [
        ("task_default_queue = 'shop'", "shop.add", "shop"),
        (f"CELERY_TASK_ROUTES = {ROUTES}", "shop.add", "one"),
        (f"task_routes = {ROUTES}", "shop.sub", "any"),
        (f"task_routes = {ROUTES}", "other", None),
        (f"task_routes = {ROUTES}\ntask_default_queue = 'rest'", "other", "rest"),
    ],
)
def test_the_routes_of_the_app_are_written_out(more: str, task: str, queue: str | None) -> None:
    assert only(by_target("{}", more, task)).action.get("queue") == queue
    assert only(by_target("{'queue': 'own'}", more, task)).action["queue"] == "own"


@pytest.mark.parametrize(
    "more", ["task_routes = ('shop.routes.Router',)", f"task_routes = {ROUTES}", "task_routes = routes()"]
)
def test_routes_that_cannot_be_told_are_named(more: str) -> None:
    (dropped,) = by_target("{}", more, "mail.send").dropped
    assert (dropped.text, dropped.whole) == ("the app's routes", False)
    assert by_target("{'queue': 'q'}", more, "mail.send").dropped == ()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"broker": "env:BROKER_URL"}, "/backend"),
        ({"backend": "env:RESULT_BACKEND"}, "/broker"),
        ({"broker": "amqp://user:secret@rabbit//", "backend": "env:RESULT_BACKEND"}, "/broker"),
        ({"broker": "env:BROKER_URL", "backend": "db+postgresql://host/db"}, "/backend"),
    ],
)
def test_an_address_is_checked_and_holds_no_secret(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wiring.import_celery("beat_schedule = {'a': {'task': 't', 'schedule': 30}}", "x", **given)
    assert [problem.pointer for problem in caught.value.problems] == [named]
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "beat_schedule = {'a': {'task': 't', 'schedule': 30}}",
        "CELERY_BEAT_SCHEDULE = {'a': {'task': 't', 'schedule': 30.0}}",
        "CELERYBEAT_SCHEDULE: dict = {'a': {'task': 't', 'schedule': timedelta(seconds=30)}}",
        "app.conf.beat_schedule = {'a': dict(task='t', schedule=schedule(run_every=30))}",
        "app.conf['beat_schedule'] = {'a': {'task': 't', 'schedule': schedule(30)}}",
        "app.conf.update(beat_schedule={'a': {'task': 't', 'schedule': 30}})",
        "app.conf.update({'beat_schedule': {'a': {'task': 't', 'schedule': 30}}})",
        "app.conf.beat_schedule.update({'a': {'task': 't', 'schedule': 30}})",
        "app.conf.beat_schedule['a'] = {'task': 't', 'schedule': 30}",
        "class Config:\n    beat_schedule = {'a': {'task': 't', 'schedule': 30}}",
        "EVERY = timedelta(minutes=1) / 2\nbeat_schedule = {'a': {'task': 't', 'schedule': EVERY}}",
        "A = {'a': {'task': 't', 'schedule': 60 // 2}}\nbeat_schedule = {**A}",
        "BASE = {'task': 't'}\nbeat_schedule = dict(a={**BASE, 'schedule': 10 * 3})",
        "def f(s, **kw):\n    s.add_periodic_task(30.0, s.signature('t'), name='a')",
        "from p import t\ndef f(s, **kw):\n    s.add_periodic_task(30, t.s(), name='a')",
        "@app.task(name='t')\ndef x(): ...\ndef f(s, **kw):\n    s.add_periodic_task(30, x.s(), name='a')",
    ],
)
def test_wherever_the_schedule_stands(body: str) -> None:
    result = imported(body)
    assert result.dropped == ()
    assert list(result.names.values()) == ["a"]
    assert only(result).schedule == {"every": "30s"}


@pytest.mark.parametrize(
    ("app", "path", "own", "relative"),
    [
        ("proj.celery", "/srv/proj/celery.py", "proj.celery.here", "proj.tasks.add"),
        ("proj.celery:app", "/srv/proj/celery.py", "proj.celery.here", "proj.tasks.add"),
        ("proj", "/srv/proj/celery.py", "proj.celery.here", "proj.tasks.add"),
        ("proj", "/srv/proj/__init__.py", "proj.here", "proj.tasks.add"),
        ("jobs", "/srv/jobs.py", "jobs.here", None),
        ("proj", "/srv/settings.py", None, None),
        (None, "/srv/proj/celery.py", None, None),
        ("proj", "-", None, None),
    ],
)
def test_tasks_of_the_module_are_named_as_it_is_imported(
    app: str | None, path: str, own: str | None, relative: str | None
) -> None:
    text = (
        "from .tasks import add\n@app.task\ndef here(a): ...\n"
        "def f(s):\n    s.add_periodic_task(10, here.s(1), name='own')\n"
        "    s.add_periodic_task(10, add.s(1), name='relative')\n"
    )
    result = import_celery(text, path, app=app, connection=CONNECTION)
    named = {name: spec.action["task_name"] for name, spec in specs(result).items()}
    assert named == {key: name for key, name in (("own", own), ("relative", relative)) if name is not None}
    assert len(result.dropped) == 2 - len(named)


def test_the_names_are_those_that_celery_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shopping").mkdir()
    (tmp_path / "shopping" / "__init__.py").write_text("")
    text = (
        "from celery import Celery, shared_task\napp = Celery('other')\n"
        "@app.task(bind=True)\ndef one(self): ...\n@shared_task\ndef two(): ...\n"
        "def f(s):\n    s.add_periodic_task(10, one.s())\n    s.add_periodic_task(10, two.s())\n"
    )
    module = tmp_path / "shopping" / "celery.py"
    module.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("shopping.celery")
    result = import_celery(text, str(module), app="shopping", connection=CONNECTION)
    assert [spec.action["task_name"] for spec in specs(result).values()] == [theirs.one.name, theirs.two.name]


def test_a_signature_has_arguments() -> None:
    body = "def f(s, **kw):\n    s.add_periodic_task(60, tasks.add.s(1, b=2), queue='q')"
    result = imported("from proj import tasks\n" + body)
    assert list(result.names.values()) == ["proj.tasks.add"]
    assert only(result).action["run"][3:] == [
        *("call", "proj.tasks.add", "--args", "[1]", "--kwargs", '{"b": 2}', "--queue", "q")
    ]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("solar('sunset', -37.8, 144.9)", "no sunrise"),
        ("crontab(hour=HOUR)", "HOUR is not written out (line 4)"),
        ("crontab(hour=int('7'))", "int('7') is not written out (line 4)"),
        ("crontab(hour=25)", "hour is 0 to 23"),
        ("crontab(minute='*/0')", "no step"),
        ("crontab(day_of_month=30, month_of_year=2)", ""),
        ("crontab(day_of_week='mo')", "no number and no name"),
        ("crontab(0, 0, 0, 1, 1, 1)", "too many arguments"),
        ("crontab(nowfun=1)", "given nowfun"),
        ("crontab(hour=[])", "empty"),
        ("0.5", "whole seconds"),
        ("schedule()", "none that is known"),
        ("my.schedules.tide(3)", "no schedule that is known here (line 4)"),
        ("timedelta(days=10**9)", "is not written out"),
        ("__import__('os').system('exit 1')", "not written out"),
        ("'hourly'", "neither seconds nor five fields"),
    ],
)
def test_what_cannot_be_carried_over_is_named_with_its_line(schedule: str, reason: str) -> None:
    kept = "'kept': {'task': 't', 'schedule': 30}"
    lost = f"'lost': {{'task': 't', 'schedule': {schedule}}}"
    result = imported(f"beat_schedule = {{{kept},\n  {lost}}}\n")
    (dropped,) = result.dropped
    assert (dropped.line, dropped.text, dropped.whole) == (4, "lost", True)
    assert reason in dropped.reason
    assert list(specs(result)) == ["kept"]
    assert "Not carried over, line 4: lost" in result.text


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("beat_schedule = make()", "beat_schedule"),
        ("beat_schedule = {NAME: {'task': 't', 'schedule': 30}}", "NAME"),
        ("beat_schedule = {**OTHER}", "beat_schedule"),
        ("def f(s):\n    s.add_periodic_task(30, here.s())\ndef here(): ...", "add_periodic_task"),
        ("def f(s):\n    s.add_periodic_task(*x)", "add_periodic_task"),
    ],
)
def test_what_is_not_written_out_is_named(body: str, what: str) -> None:
    result = imported(body)
    assert [item.text for item in result.dropped] == [what]
    assert "(line" in result.dropped[0].reason
    assert specs(result) == {}


A = "beat_schedule = {'a': {'task': 't', 'schedule': 30}}\n"
B = "{'b': {'task': 't', 'schedule': 60}}"


@pytest.mark.parametrize(
    "more",
    [
        f"beat_schedule |= {B}",
        f"app.conf.beat_schedule |= {B}",
        f"beat_schedule.update({B})",
        "beat_schedule.update(b={'task': 't', 'schedule': 60})",
        f"beat_schedule.update(**{B})",
        "beat_schedule['b'] = {'task': 't', 'schedule': 60}",
    ],
)
def test_what_is_put_into_a_schedule_later_is_taken(more: str) -> None:
    assert list(specs(imported(A + more))) == ["a", "b"]


def test_a_schedule_that_has_a_name_of_its_own_is_followed_under_it() -> None:
    result = imported(
        f"JOBS = {B}\nJOBS['c'] = {{'task': 't', 'schedule': 90}}\napp.conf.beat_schedule = JOBS"
    )
    assert (list(specs(result)), result.dropped) == (["b", "c"], ())


@pytest.mark.parametrize(
    "more",
    [
        "del beat_schedule['a']",
        "beat_schedule.pop('a')",
        f"beat_schedule.setdefault('b', {B})",
        "beat_schedule['a']['schedule'] = 5",
        "app.conf.beat_schedule['a']['options'].update(queue='x')",
        "beat_schedule['a'] |= {'schedule': 5}",
        "beat_schedule['b'], x = 1, 2",
        "TASK = ['t']\nTASK.append('u')\nbeat_schedule.update(b={'task': 't', 'schedule': 9, 'args': TASK})",
        "REST = {}\nREST['b'] = 1\nbeat_schedule.update(**REST)",
    ],
)
def test_what_changes_a_schedule_in_other_ways_is_named(more: str) -> None:
    result = imported(A + more)
    assert list(specs(result)) == ["a"]
    (dropped,) = result.dropped
    assert dropped.line > 3
    assert "(line" in dropped.reason


def test_of_one_name_the_last_counts_as_in_beat() -> None:
    twice = "beat_schedule = {'a': {'task': 't', 'schedule': 30},\n 'a': {'task': 't', 'schedule': 60}}"
    result = imported(twice)
    assert only(result).schedule == {"every": "1m"}
    assert "a is set in line 3 too; the last one counts" in [note.text for note in result.notes]
    calls = "from p import t\nt0 = 1\ndef f(s):\n    s.add_periodic_task(30, t.s(1))\n"
    result = imported(calls + "    s.add_periodic_task(60, t.s(1))\n    s.add_periodic_task(60, t.s(2))")
    assert [spec.action["run"][-1] for spec in specs(result).values()] == ["[1]", "[2]"]


def test_schedules_in_several_places_are_all_taken_and_that_is_said() -> None:
    result = imported(f"class Base:\n    {A}class Live(Base):\n    beat_schedule = {{**Base.x, **{B}}}")
    assert list(specs(result)) == ["a", "b"]
    assert [(item.line, item.whole) for item in result.dropped] == [(6, True), (6, False)]
    assert "Base.x is no mapping" in result.dropped[0].reason
    assert "set in lines 4, 6" in result.dropped[1].reason


def test_a_condition_is_taken_to_hold_and_said() -> None:
    result = imported(f"{A}if DEBUG:\n    beat_schedule['b'] = {B[6:-1]}")
    assert list(specs(result)) == ["a", "b"]
    assert (5, "it is under the condition of line 4, taken to hold") in [
        (note.line, note.text) for note in result.notes
    ]


def test_an_option_without_a_flag_is_named_at_its_place() -> None:
    result = imported("beat_schedule = {'a': {'task': 't', 'schedule': 30, 'options': {'priority': 9}}}")
    assert [(item.text, item.whole) for item in result.dropped] == [("option priority", False)]
    assert "  # Not carried over, line 3: option priority: celery call has no flag for it" in result.text
    assert list(specs(result)) == ["a"]


def test_the_zone_is_the_apps() -> None:
    entry = "\nbeat_schedule = {'a': {'task': 't', 'schedule': crontab()}}"
    assert only(imported(entry)).schedule.get("timezone", "UTC") == "UTC"
    assert only(imported("CELERY_TIMEZONE = 'Asia/Tokyo'" + entry)).schedule["timezone"] == "Asia/Tokyo"
    assert only(imported("app.conf.timezone = 'Asia/Tokyo'" + entry)).schedule["timezone"] == "Asia/Tokyo"
    assert (
        only(imported("timezone = x()" + entry, timezone="Asia/Tokyo")).schedule["timezone"] == "Asia/Tokyo"
    )
    overruled = imported("timezone = 'Europe/Berlin'" + entry, timezone="Asia/Tokyo")
    assert only(overruled).schedule["timezone"] == "Asia/Tokyo"
    assert "the file says timezone Europe/Berlin; --timezone Asia/Tokyo" in overruled.notes[0].text
    assert not imported("timezone = 'Asia/Tokyo'" + entry, timezone="Asia/Tokyo").notes
    for unclear in ("timezone = x()", "enable_utc = False", "timezone = 'Nowhere'"):
        with pytest.raises(InvalidInput, match=r"(?i)zone"):
            imported(unclear + entry)


def test_a_starting_deadline_is_a_max_age() -> None:
    spec = one("crontab()", more="beat_cron_starting_deadline = 600")
    assert spec.max_age == timedelta(minutes=10)


def test_the_module_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "was run"
    imported(f"open({str(mark)!r}, 'w')\nbeat_schedule = {{'a': {{'task': 't', 'schedule': 30}}}}")
    assert not mark.exists()


@pytest.mark.parametrize(
    "text", ["x = (", "a\0b", "x = 1\n", "beat_schedule = {}", "(" * 500, "{", "x = " + "1+" * 9_000 + "1"]
)
def test_a_text_without_a_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        import_celery(text, "x")


def test_a_value_that_stands_for_terabytes_costs_nothing() -> None:
    names = "".join(f"a{n} = [{', '.join([f'a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    result = imported(
        f"a0 = [1]\n{names}beat_schedule = {{'a': {{'task': 't', 'schedule': 9, 'args': a29}}}}"
    )
    assert "holds more than 20,000" in result.dropped[0].reason


HOSTILE = ["+".join(["1"] * 900), "9**9**9", "9" * 25 + "*9", "'a' * 9"]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_arithmetic_costs_nothing(value: str) -> None:
    result = imported(f"beat_schedule = {{'a': {{'task': 't', 'schedule': {value}}}}}")
    assert [item.text for item in result.dropped] == ["a"]


@pytest.mark.parametrize(
    ("schedule", "written"),
    [
        (30, {"every": "30s"}),
        ("*/5 2 * * mon", {"cron": "*/5 2 * * 1", "dst": "skip_once", "day_or": False}),
        (
            "<crontab: */5 2 * * mon (m/h/dM/MY/d)>",
            {"cron": "*/5 2 * * 1", "dst": "skip_once", "day_or": False},
        ),
        ("<freq: 30.00 seconds>", {"every": "30s"}),
        ({"minute": 0, "hour": [1, 2]}, {"cron": "0 1,2 * * *", "day_or": False}),
        ({"crontab": {"minute": "0", "hour": "4"}}, {"cron": "0 4 * * *", "day_or": False}),
        ({"every": 90}, {"every": "1m30s"}),
    ],
)
def test_json(schedule: object, written: dict[str, Any]) -> None:
    entry = {"task": "t", "schedule": schedule, "args": [1]}
    for data in ({"a": entry}, {"beat_schedule": {"a": entry}, "timezone": "UTC"}):
        found = only(import_celery(json.dumps(data, indent=1), "-"))
        assert {key: value for key, value in found.schedule.items() if key != "timezone"} == written


def test_entries_of_one_line_are_counted_each() -> None:
    entry = {"task": "t", "schedule": "0 4 * * *"}
    found = import_celery(json.dumps({"a": entry, "b": entry, "c": entry}), "beat.json", app="proj")
    assert (found.carried, len(specs(found))) == (3, 3)


def test_what_celery_shows_of_its_schedules_is_read() -> None:
    """`celery inspect conf --json` has representations in place of schedules."""
    shown = repr(crontab(minute="*/15", hour="8-17", day_of_week="mon-fri"))
    data = {"beat_schedule": {"a": {"task": "t", "schedule": shown}}}
    assert only(import_celery(json.dumps(data), "-")).schedule["cron"] == "*/15 8-17 * * 1-5"


def test_the_example_is_imported() -> None:
    result = import_celery(EXAMPLE.read_text(), "examples/celeryconfig.py", app="proj")
    assert list(specs(result)) == ["clean-up", "report", "heartbeat"]
    assert [item.text for item in result.dropped] == ["lights", "from-the-environment"]


# --- Celery's own answers ---------------------------------------------------------------------------------


def theirs(kwargs: dict[str, Any], zone: str, after: datetime, count: int) -> list[datetime]:
    app = Celery("oracle", set_as_current=False)
    app.conf.timezone = zone
    found: list[datetime] = []
    at = after
    for _ in range(count):
        # As beat asks: it keeps the times of its app's zone.
        here = at.astimezone(ZoneInfo(zone))
        rule = crontab(**kwargs, app=app, nowfun=lambda here=here: here)
        at = at + rule.remaining_estimate(here)
        found.append(at)
    return found


def field(low: int, high: int, names: list[str]) -> st.SearchStrategy[object]:
    number = st.integers(low, high)
    part = (
        number.map(str)
        | st.sampled_from(names or ["*"])
        | st.builds("{}-{}".format, number, number)
        | st.builds("{}-{}/{}".format, number, number, st.integers(1, 9))
        | st.builds("*/{}".format, st.integers(1, 20))
    )
    return (
        st.just("*")
        | number
        | st.lists(number, min_size=1, max_size=3)
        | st.lists(part, min_size=1, max_size=3).map(",".join)
    )


WORDS = {
    "minute": field(0, 59, []),
    "hour": field(0, 23, []),
    "day_of_week": field(0, 6, ["mon", "Sunday", "fri-mon", "tue-thu"]),
    "day_of_month": field(1, 31, []),
    "month_of_year": field(1, 12, ["jan", "October", "nov-feb"]),
}


@settings(max_examples=200, deadline=None)
@given(
    st.fixed_dictionaries({}, optional=WORDS),
    st.sampled_from(["UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
@example({"day_of_week": "1", "day_of_month": "1-7"}, "UTC", datetime(2026, 1, 1))
def test_the_instants_are_celerys(kwargs: dict[str, Any], zone: str, naive: datetime) -> None:
    after = naive.replace(second=0, microsecond=0, tzinfo=UTC)
    arguments = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
    result = imported(
        f"timezone = {zone!r}\nbeat_schedule = {{'a': {{'task': 't', 'schedule': crontab({arguments})}}}}"
    )
    try:
        expected = theirs(kwargs, zone, after, 12)
    except (ValueError, ParseException, RuntimeError):
        assert result.dropped, "what Celery refuses is not carried over"
        return
    spec = only(result)
    found = instants(spec, after, 14)
    place = ZoneInfo(zone)
    theirs_here = before_the_next_change(expected, after, place)
    ours_here = before_the_next_change(found, after, place)
    assert ours_here[: len(theirs_here)] == theirs_here
    if len(theirs_here) < len(expected):
        assert len(ours_here) == len(theirs_here)


def test_an_hour_that_comes_twice_is_celerys() -> None:
    after = datetime(2026, 10, 24, tzinfo=UTC)
    kwargs = {"minute": "30", "hour": "2"}
    line = "{'task': 't', 'schedule': crontab(minute='30', hour='2')}"
    spec = only(imported(f"timezone = 'Europe/Berlin'\nbeat_schedule = {{'a': {line}}}"))
    assert instants(spec, after, 6) == theirs(kwargs, "Europe/Berlin", after, 6)
