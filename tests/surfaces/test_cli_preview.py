"""`horarium preview`: an expression needs nothing but itself, and clock changes are explained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from horarium.cli.commands.preview import words_of
from horarium.errors import InvalidInput
from tests.surfaces.cli import horarium


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HORARIUM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_json_has_the_items_that_programs_rely_on() -> None:
    ran = horarium(
        "preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2026-10-24T12:00:00Z", "-n", "2",
        "-o", "json",
    )  # fmt: skip
    assert ran.code == 0
    items = ran.json["items"]
    assert [(item["utc"], item["local"]) for item in items] == [
        ("2026-10-25T00:30:00Z", "2026-10-25T02:30:00+02:00"),
        ("2026-10-26T01:30:00Z", "2026-10-26T02:30:00+01:00"),
    ]
    assert set(items[0]) == {"utc", "local", "note"}
    assert "first pass" in items[0]["note"]
    assert items[1]["note"] is None


def test_people_read_the_wall_clock_and_why_it_moved() -> None:
    ran = horarium(
        "preview", "30 2 * * *", "-z", "Europe/Berlin", "--from", "2026-03-28T12:00:00Z", "-n", "1"
    )
    assert ran.code == 0
    assert ran.rows[1] == ["LOCAL", "UTC", "NOTE"]
    assert ran.rows[2][:5] == ["Sun", "2026-03-29", "03:00:00", "+02:00", "2026-03-29T01:00:00Z"]
    assert "02:30 does not exist on 2026-03-29" in ran.out


def test_it_needs_no_database_and_makes_none(tmp_path: Path) -> None:
    assert horarium("preview", "*/5 * * * *", "--db", "sqlite:///nowhere/x.db").code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("*/5 * * * *", {"cron": "*/5 * * * *"}),
        ("  @daily ", {"cron": "@daily"}),
        ("@every 5m", {"cron": "@every 5m"}),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", {"cron": "CRON_TZ=Europe/Berlin 0 9 * * *"}),
        ("every 20s", {"every": "20s"}),
        ("90s", {"every": "90s"}),
        ("1h30m", {"every": "1h30m"}),
        ("PT5M", {"every": "PT5M"}),
        ("FREQ=DAILY;BYHOUR=9", {"rrule": "FREQ=DAILY;BYHOUR=9"}),
        ("RRULE:FREQ=DAILY", {"rrule": "RRULE:FREQ=DAILY"}),
        ("2026-12-26T06:00:00+01:00", {"at": "2026-12-26T06:00:00+01:00"}),
        ('{"months": 1, "on_day": 31}', {"every": {"months": 1, "on_day": 31}}),
        ('{"cron": "0 9 * * *", "day_or": false}', {"cron": "0 9 * * *", "day_or": False}),
        ("tick", None),
        ("crm-sync/day", None),
        ("etl/production/crm-sync/day", None),
    ],
)
def test_what_is_typed_is_an_expression_or_the_name_of_a_trigger(expression: str, words: object) -> None:
    assert words_of(expression) == words


@pytest.mark.parametrize("expression", ["", "  ", "{", "{]", "[1]"])
def test_what_is_neither_is_refused(expression: str) -> None:
    if expression == "[1]":
        assert horarium("preview", expression).code == 1
        return
    with pytest.raises(InvalidInput):
        words_of(expression)


def test_an_ics_file_is_a_recurrence_rule(tmp_path: Path) -> None:
    (tmp_path / "week.ics").write_text(
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;TZID=Europe/Berlin:20260105T090000\r\n"
        "RRULE:FREQ=WEEKLY;COUNT=2\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    ran = horarium("preview", "week.ics", "--from", "2026-01-01", "-o", "json")
    assert [item["utc"] for item in ran.json["items"]] == ["2026-01-05T08:00:00Z", "2026-01-12T08:00:00Z"]


def test_policies_stand_side_by_side() -> None:
    ran = horarium(
        "preview", "30 2 * * *", "-z", "Europe/Berlin", "--from", "2026-03-28T12:00:00Z", "-n", "2",
        "--compare", "vixie,literal,skip_once", "-o", "json",
    )  # fmt: skip
    found = {
        policy: [item["utc"] for item in shown["items"]] for policy, shown in ran.json["compare"].items()
    }
    assert found == {
        "vixie": ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        "literal": ["2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"],
        "skip_once": ["2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"],
    }
    assert ran.json["items"] == ran.json["compare"]["vixie"]["items"]


def test_the_comparison_says_who_runs_when() -> None:
    ran = horarium(
        "preview", "30 2 * * *", "-z", "Europe/Berlin", "--from", "2026-03-28T12:00:00Z", "-n", "2",
        "--compare", "vixie,literal",
    )  # fmt: skip
    heading, moved, both = ran.rows[1:]
    assert heading == ["LOCAL", "UTC", "VIXIE", "LITERAL", "NOTE"]
    assert moved[4:7] == ["2026-03-29T01:00:00Z", "runs", "-"]
    assert both[4:7] == ["2026-03-30T00:30:00Z", "runs", "runs"]


def test_a_year_shows_only_what_clock_changes_touch() -> None:
    ran = horarium("preview", "30 2 * * *", "-z", "Europe/Berlin", "--year", "2026", "-o", "json")
    assert [(item["outcome"], item["runs"]) for item in ran.json["items"]] == [
        ("moved", ["2026-03-29T01:00:00Z"]),
        ("once", ["2026-10-25T00:30:00Z"]),
    ]
    assert horarium("preview", "0 12 * * *", "-z", "Europe/Berlin", "--year", "2026").out.endswith(
        "No clock change touches it in 2026.\n"
    )


def test_a_year_shows_what_is_dropped_too() -> None:
    ran = horarium(
        "preview", "30 2 * * *", "-z", "Europe/Berlin", "--year", "2026", "--dst", "skip_once", "-o", "json"
    )
    assert [(item["outcome"], item["runs"]) for item in ran.json["items"]] == [
        ("dropped", []),
        ("once", ["2026-10-25T00:30:00Z"]),
    ]
    assert "skipped" in ran.json["items"][0]["note"]


def test_a_year_of_every_minute_shows_the_repeated_hour() -> None:
    ran = horarium("preview", "* * * * *", "-z", "Europe/Berlin", "--year", "2026", "-o", "json")
    assert [(item["outcome"], len(item["runs"])) for item in ran.json["items"]] == [
        ("dropped", 0), ("twice", 120),
    ]  # fmt: skip


def test_a_hash_belongs_to_a_key() -> None:
    def first(key: str) -> str:
        ran = horarium("preview", "H H * * *", "--key", key, "--from", "2026-01-01", "-n", "1", "-o", "json")
        return str(ran.json["items"][0]["utc"])

    assert first("backup") == first("default/default/backup/default")
    assert len({first(f"job-{number}") for number in range(20)}) > 10


@pytest.mark.parametrize(
    ("arguments", "field", "rule"),
    [
        (["61 * * * *"], "/cron", "59"),
        (["* * * * *", "--timezone", "Europe/Berln"], "/timezone", "Europe/Berlin"),
        (["* * * * *", "--dst", "vixi"], "/dst", "vixie"),
        (["* * * * *", "-n", "0"], "/n", "1 to 1,000"),
        (["* * * * *", "--from", "yesterday"], "/from", "now"),
        (["* * * * *", "--from", "2026-02-30"], "/from", "2026-01-05T10:00:00Z"),
        (["* * * * *", "--compare", "vixie"], "/compare", "two"),
        (["every 5m", "--compare", "vixie,literal"], "/compare", "cron"),
        (["* * * * *", "--year", "0"], "/year", "9998"),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_rule(arguments: list[str], field: str, rule: str) -> None:
    ran = horarium("preview", *arguments)
    assert ran.code == 1
    assert ran.out == ""
    assert f"at    {field}" in ran.err
    assert rule in ran.err
    assert "Traceback" not in ran.err


def test_a_place_inside_an_expression_is_pointed_at() -> None:
    assert "  got   '24', at character 5\n" in horarium("preview", "*/5 24 * * *").err


def test_programs_get_the_error_as_json_too() -> None:
    ran = horarium("preview", "61 * * * *", "-o", "json")
    import json

    assert ran.out == ""
    assert json.loads(ran.err)["problems"][0]["pointer"] == "/cron"


# --- as a process -----------------------------------------------------------------------------------------


PATH = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "horarium", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PATH, **environment},
        timeout=60,
    )


FILES = {"sqlalchemy", "fastapi", "pydantic", "aiohttp", "uvicorn", "alembic", "asyncpg", "structlog"}
DATABASE = {"aiohttp", "uvicorn", "alembic", "asyncpg", "holidays"}


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["preview", "*/5 * * * *"], FILES),
        (["validate", "triggers.yaml"], FILES),
        (["lint", "triggers.yaml"], FILES),
        (["status", "--db", "sqlite:///x.db"], DATABASE),
        (["apply", "triggers.yaml", "--db", "sqlite:///x.db", "--dry-run"], DATABASE),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_waits_for_no_library_that_it_does_not_need(
    tmp_path: Path, arguments: list[str], heavy: set[str]
) -> None:
    (tmp_path / "triggers.yaml").write_text("deployments: {tick: {run: date, every: 5m}}")
    if heavy is DATABASE:
        assert horarium("db", "upgrade", "--db", "sqlite:///x.db").code == 0
    program = (
        f"import sys\nfrom horarium.cli.main import run\nassert run({arguments!r}) == 0\n"
        f"heavy = {heavy!r} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": PATH}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60
    )
    assert ran.returncode == 0, ran.stderr


def test_whoever_reads_may_close_the_pipe() -> None:
    command = f"{sys.executable} -m horarium preview '* * * * *' -n 1000 | head -n 1; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": PATH}
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=60)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[-1] in ("141", "0")  # 0: it had written all before the reader went


def test_a_pipe_gets_no_colour_and_no_wrapped_lines() -> None:
    ran = process(
        "preview", "30 2 * * *", "-z", "Europe/Berlin", "--from", "2026-03-28", "-n", "3", COLUMNS="40"
    )
    assert "\x1b" not in ran.stdout
    assert len(ran.stdout.splitlines()) == 5


def test_a_terminal_without_utf8_is_no_reason_to_fail() -> None:
    ran = process("preview", "every 5m", "-n", "1", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert ran.returncode == 0
