"""Settings: where they come from, what they refuse and how they say it, and what their table shows."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from horarium.config import Role, Settings, load_settings, settings_table, without_password
from horarium.core.spec import Rate
from horarium.errors import InvalidInput
from horarium.telemetry import Metrics, configure, configure_quietly, decision, get_logger
from horarium.testing import VirtualClock

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that runs the tests takes part."""
    import os

    for name in [name for name in os.environ if name.upper().startswith("HORARIUM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def wrong(**flags: object) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        load_settings(flags=flags)
    return [str(problem) for problem in caught.value.problems]


# --- where a value comes from ---------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_two_designs() -> None:
    settings = load_settings()
    assert settings.resync_interval == timedelta(seconds=30)
    assert settings.max_catchup_runs_per_loop == 100
    assert (settings.min_runs, settings.max_runs) == (3, 100)
    assert settings.max_scheduled_time == timedelta(days=100)
    assert settings.port == 8090
    assert settings.rate == Rate(10.0, 20)
    assert set(settings.roles) == set(Role)


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text('poll_interval = "3s"\ngrace = "2m"\nport = 1000\n')
    monkeypatch.setenv("HORARIUM_POLL_INTERVAL", "4s")
    monkeypatch.setenv("HORARIUM_PORT", "2000")

    settings = load_settings(config=file, flags={"port": "3000"})

    assert settings.grace == timedelta(minutes=2)
    assert settings.poll_interval == timedelta(seconds=4)
    assert settings.port == 3000


def test_a_flag_that_was_not_given_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_PORT", "2000")
    assert load_settings(flags={"port": None}).port == 2000


def test_the_file_is_named_by_a_variable_or_lies_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "horarium.toml").write_text("port = 1\n")
    assert load_settings().port == 1
    (tmp_path / "named.toml").write_text("port = 2\n")
    monkeypatch.setenv("HORARIUM_CONFIG", "named.toml")
    assert load_settings().port == 2


def test_roles_are_a_list_or_words_between_commas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "horarium.toml").write_text('roles = ["plan", "fire"]\n')
    assert load_settings().roles == (Role.PLAN, Role.FIRE)
    monkeypatch.setenv("HORARIUM_ROLES", "sync, api")
    assert load_settings().roles == (Role.SYNC, Role.API)


def test_settings_become_the_window_of_the_planner_and_the_rate_of_targets() -> None:
    settings = Settings(min_runs=5, max_catchup_runs_per_loop=7, grace="90s", execution_qps=0)
    assert settings.window.min_runs == 5
    assert settings.window.max_catchup_runs == 7
    assert settings.window.grace == timedelta(seconds=90)
    assert settings.rate is None


# --- what is refused ------------------------------------------------------------------------------------


def test_every_wrong_value_is_named_at_once_with_place_rule_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_LOG_LEVEL", "inf")
    assert wrong(port=99_999, lease="1s", grace="5 parsecs") == [
        "/port: got 99999: at most 65535 (set by --port); try: 65535",
        "/grace: got '5 parsecs': 'parsecs' is no unit of time (set by --grace); "
        "try: us, ms, s, m, h, d or w",
        "/lease: got 1s: at least 2 seconds (set by --lease); try: 2 seconds",
        "/log_level: got 'inf': one of 'debug', 'info', 'warning' or 'error' "
        "(set by HORARIUM_LOG_LEVEL); try: info",
    ]


def test_an_unknown_name_is_refused_with_what_is_close_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "horarium.toml").write_text('poll-interval = "1s"\n')
    monkeypatch.setenv("HORARIUM_RESYNC_INTERVALL", "3s")
    assert wrong(portt=3) == [
        "/poll-interval: got 'poll-interval': there is no such setting "
        "(set by horarium.toml: poll-interval); try: poll_interval",
        "/resync_intervall: got HORARIUM_RESYNC_INTERVALL: there is no such setting "
        "(set by the environment); try: HORARIUM_RESYNC_INTERVAL",
        "/portt: got 'portt': there is no such setting (set by --portt); try: port",
    ]


def test_variables_of_runs_and_secrets_are_none_of_our_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_RUN_NAME", "r1")
    monkeypatch.setenv("HORARIUM_WEBHOOK_KEY", "x")
    assert load_settings().port == 8090


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", ""])
def test_only_loopback_addresses_until_there_is_access_control(host: str) -> None:
    (problem,) = wrong(host=host)
    assert "this machine only" in problem


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]"])
def test_loopback_addresses_are_taken(host: str) -> None:
    assert load_settings(flags={"host": host}).host == host.strip("[]")


@pytest.mark.parametrize(
    ("db", "fix"),
    [
        ("sqlite:horarium.db", "sqlite:///"),
        ("sqlite://horarium.db", "sqlite:///"),
        ("sqlite:///:memory:", "sqlite:///horarium.db"),
        ("sqlite:///x.db?mode=ro", "leave out"),
        ("var/x.db", "sqlite:///var/x.db"),
        ("mysql://x", "sqlite:///horarium.db"),
    ],
)
def test_a_database_that_is_none_is_refused_with_the_form_that_is(db: str, fix: str) -> None:
    (problem,) = wrong(db=db)
    assert fix in problem.rpartition("try: ")[2]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"min_runs": 200}, "/max_runs"),
        ({"min_scheduled_time": "200d"}, "/max_scheduled_time"),
        ({"poll_interval": "50s"}, "/grace"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, object], named: str) -> None:
    (problem,) = wrong(**flags)
    assert problem.startswith(named)


@pytest.mark.parametrize(
    ("text", "rule"), [("port = ", "TOML"), ("\xff", "TOML")], ids=["syntax", "not utf-8"]
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "horarium.toml").write_bytes(text.encode("latin-1"))
    (problem,) = wrong()
    assert rule in problem


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="can't be read"):
        load_settings(config="nowhere.toml")


def test_a_wrong_name_in_code_is_refused_too() -> None:
    with pytest.raises(InvalidInput, match="there is no such setting; try: port"):
        Settings(prt=1)


# --- secrets --------------------------------------------------------------------------------------------


def test_a_password_shows_nowhere() -> None:
    settings = Settings(db="postgresql://horarium:s3cret@db/horarium?sslpassword=s3cret")
    assert "s3cret" not in repr(settings)
    assert settings.db_shown == "postgresql://horarium:***@db/horarium?sslpassword=***"
    with pytest.raises(InvalidInput) as caught:
        Settings(db="postgres:/horarium:s3cret@db/x", server="ftp://me:s3cret@host")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p:a@s@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u@h:5432/x", "postgresql://u@h:5432/x"),
        ("sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db"),
        ("http://localhost:8090", "http://localhost:8090"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_table_of_the_file_is_the_beginning_of_its_settings_names(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('[execution]\nqps = 5\n[max]\nscheduled.time = "10d"\n')
    settings = load_settings(config=file)
    assert settings.execution_qps == 5
    assert settings.max_scheduled_time == timedelta(days=10)


def test_a_mistake_in_a_table_of_the_file_is_named_as_the_file_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[execution]\nqsp = 5\nburst = 0\n")
    with pytest.raises(InvalidInput) as caught:
        load_settings(config=file)
    text = str(caught.value)
    assert f"{file}: execution.qsp" in text
    assert "execution_qps" in text
    assert f"{file}: execution.burst" in text


def test_a_setting_that_stands_in_the_file_both_ways_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("execution_qps = 5\n[execution]\nqps = 6\n")
    with pytest.raises(InvalidInput, match=r"execution\.qps.*stands once.*execution_qps"):
        load_settings(config=file)


# --- the table ------------------------------------------------------------------------------------------


def test_the_page_of_settings_has_every_setting_with_its_default_and_meaning() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = [
        f"| `{name}` | {f'`{default}`' if default else 'none'} | {text} |"
        for name, default, text in settings_table()
    ]
    assert rows == expected


def test_every_setting_is_described() -> None:
    assert [name for name, _, text in settings_table() if not text.endswith(".")] == []


# --- what is logged -------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers, root.level = handlers, level
    configure_quietly()


SLOT = datetime(2026, 1, 5, 10, tzinfo=UTC)


def test_a_decision_is_one_json_object_where_nobody_watches(logged: io.StringIO) -> None:
    configure("auto", "info", stream=logged, clock=VirtualClock(SLOT))
    decision(
        get_logger("horarium.engine"),
        "fired",
        outcome="created",
        trigger="default/default/tick/default",
        slot=SLOT,
        run="r1",
        revision=2,
        lateness=timedelta(milliseconds=3),
    )
    (line,) = logged.getvalue().splitlines()
    assert json.loads(line) == {
        "timestamp": "2026-01-05T10:00:00Z",
        "level": "info",
        "event": "fired",
        "trigger": "default/default/tick/default",
        "slot": "2026-01-05T10:00:00Z",
        "run": "r1",
        "revision": 2,
        "lateness": 0.003,
        "outcome": "created",
    }


def test_a_decision_is_a_line_for_people_on_a_terminal(logged: io.StringIO) -> None:
    configure("human", "info", stream=logged, clock=VirtualClock(SLOT))
    decision(get_logger(), "fired", trigger="a/b/c/d", slot=SLOT, run="r1")
    (line,) = logged.getvalue().splitlines()
    assert line.split() == [
        "10:00:00.000", "[info", "]", "fired", "trigger=a/b/c/d", "slot=2026-01-05T10:00:00Z", "run=r1",
    ]  # fmt: skip


def test_what_is_below_the_level_is_not_logged_and_libraries_share_the_form(logged: io.StringIO) -> None:
    configure("json", "warning", stream=logged, clock=VirtualClock(SLOT))
    decision(get_logger(), "fired", run="r1")
    logging.getLogger("some.library").warning("a %s", "thing")
    (line,) = logged.getvalue().splitlines()
    assert json.loads(line)["event"] == "a thing"


def test_two_instances_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.runs_fired.labels("local", "created").inc()
    assert b'horarium_runs_fired_total{outcome="created",target="local"} 1.0' in one.render()[0]
    assert b'outcome="created"' not in other.render()[0]
