"""The commands on a real database: straight on its file, and through a server process."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from horarium.cli.failure import MEANINGS, Exit, failure_of
from horarium.errors import AlreadyServing, NotFound, SchemaMismatch, StoreUnavailable
from horarium.sources.files import parse_triggers
from horarium.store import migrations
from horarium.targets import registry
from tests.surfaces.cli import Ran, horarium

ROOT = Path(__file__).parents[2]

TRIGGERS = """\
source: git/etl
deployments:
  nightly: {run: [echo, good night], cron: "30 2 * * *", timezone: Europe/Berlin, catch_up: latest}
  report:
    run: [echo, report]
    owner: sales
    parameters: {format: pdf}
    triggers:
      weekly: {cron: "0 7 * * mon"}
      monthly: {cron: "0 7 1 * *", active: false}
"""


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HORARIUM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def triggers(tmp_path: Path) -> Path:
    file = tmp_path / "triggers.yaml"
    file.write_text(TRIGGERS)
    return file


@pytest.fixture
def applied(triggers: Path) -> Path:
    """The database `horarium.db` of the working directory, with the triggers above."""
    ran = horarium("apply", str(triggers))
    assert ran.code == 0, ran.err
    return triggers


@contextmanager
def serving(folder: Path, *arguments: str, ends: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process on the database `horarium.db` of `folder`: its address, and the process."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    log = folder / "server.log"
    with log.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "horarium", "serve", "--port", "0", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "HORARIUM_DRAIN_TIMEOUT": "5s"},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://[^/\s]+", line):
                yield found[0], process
                break
        else:
            pytest.fail(f"the server ended before it said where it listens: {log.read_text()}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        process.stdout.close()
        assert process.wait(timeout=60) == ends


@pytest.fixture(scope="module", params=["database", "server"])
def reading(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Ran]]:
    """`horarium` on applied triggers that no test changes, straight on the database and over HTTP."""
    folder = tmp_path_factory.mktemp("reading")
    (folder / "triggers.yaml").write_text(TRIGGERS)
    db = f"sqlite:///{folder}/horarium.db"
    assert horarium("apply", str(folder / "triggers.yaml"), "--db", db).code == 0
    if request.param == "database":
        yield lambda *arguments: horarium(*arguments, "--db", db)
        return
    with serving(folder, "--roles", "api") as (url, _):
        yield lambda *arguments: horarium(*arguments, "--server", url)


@pytest.fixture(params=["database", "server"])
def command(request: pytest.FixtureRequest, applied: Path, tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    """`horarium` on the applied triggers, straight on the database and over HTTP."""
    if request.param == "database":
        yield horarium
        return
    with serving(tmp_path, "--roles", "api") as (url, _):
        yield lambda *arguments: horarium(*arguments, "--server", url)


# --- apply ------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_what_comes_and_writes_nothing(triggers: Path) -> None:
    ran = horarium("apply", str(triggers), "--dry-run", "--exit-code")
    assert ran.code == 2
    assert "source git/etl\n" in ran.out
    assert "  + nightly  30 2 * * *  (Europe/Berlin)\n" in ran.out
    assert "3 added, 0 edited, 0 withdrawn, 0 unchanged" in ran.out
    assert "nothing was written" in ran.out
    assert horarium("triggers", "list", "-o", "json").json["items"] == []


def test_an_edit_shows_each_field_old_and_new_and_the_slots_that_move(applied: Path) -> None:
    applied.write_text(TRIGGERS.replace("30 2 * * *", "45 2 * * *").replace("format: pdf", "format: xlsx"))
    ran = horarium("apply", str(applied))
    assert ran.code == 0
    assert '      cron  "30 2 * * *" → "45 2 * * *"\n' in ran.out
    assert '      parameters.format  "pdf" → "xlsx"\n' in ran.out
    assert re.search(r"^      \+ \d{4}-\d\d-\d\dT0[01]:45:00Z$", ran.out, re.MULTILINE)
    assert "0 added, 3 edited, 0 withdrawn, 0 unchanged" in ran.out


def test_the_exit_code_tells_changes_from_none_only_when_asked(applied: Path) -> None:
    assert horarium("apply", str(applied), "--exit-code").code == 0
    applied.write_text(TRIGGERS.replace("30 2", "45 2"))
    assert horarium("apply", str(applied), "--dry-run").code == 0
    assert horarium("apply", str(applied), "--dry-run", "--exit-code").code == 2
    assert horarium("apply", str(applied), "--exit-code").code == 2
    ran = horarium("apply", str(applied), "--exit-code")
    assert (ran.code, ran.out) == (0, "Nothing to change in 3 triggers.\n")


def test_what_a_file_no_longer_names_is_withdrawn(applied: Path) -> None:
    applied.write_text(TRIGGERS.replace("      weekly", "      # weekly"))
    assert "  - report/weekly\n" in horarium("apply", str(applied)).out
    assert {item["name"] for item in horarium("triggers", "list", "-o", "json").json["items"]} == {
        "default", "monthly",
    }  # fmt: skip


def test_a_mistake_is_named_with_its_line_and_nothing_is_written(triggers: Path) -> None:
    triggers.write_text(TRIGGERS.replace("catch_up: latest", "catchup: latest").replace("0 7 1", "0 7 32"))
    ran = horarium("apply", str(triggers))
    assert ran.code == 1
    assert "line 3: /deployments/nightly/catchup" in ran.err
    assert re.search(r"try .*catch_up", ran.err)
    assert "line 10: /deployments/report/triggers/monthly/cron" in ran.err
    assert horarium("triggers", "list", "-o", "json").json["items"] == []


def test_prune_withdraws_the_sources_whose_file_has_left_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"deployments: {{{name}: {{run: [date], every: 1h}}}}\n")
    assert horarium("apply", str(folder)).code == 0
    (folder / "two.yaml").unlink()

    def left() -> list[str]:
        return [item["deployment"] for item in horarium("triggers", "list", "-o", "json").json["items"]]

    assert horarium("apply", str(folder)).code == 0
    assert left() == ["one", "two"]
    assert "  - two\n" in horarium("apply", str(folder), "--prune").out
    assert left() == ["one"]


def test_a_pass_that_would_withdraw_much_is_stopped_until_it_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    rows = [f"  job-{number}: {{run: [date], every: 1h}}\n" for number in range(20)]
    file.write_text("deployments:\n" + "".join(rows))
    assert horarium("apply", str(file)).code == 0
    file.write_text("deployments:\n" + rows[0])
    ran = horarium("apply", str(file))
    assert ran.code == 1
    assert "--allow-withdraw" in ran.err
    assert "(refused: nothing was written)" in ran.out
    assert len(horarium("triggers", "list", "-o", "json").json["items"]) == 20
    assert horarium("apply", str(file), "--allow-withdraw").code == 0
    assert len(horarium("triggers", "list", "-o", "json").json["items"]) == 1


# --- reading ----------------------------------------------------------------------------------------------


def test_triggers_are_listed_and_filtered(reading: Callable[..., Ran]) -> None:
    rows = reading("triggers", "list").rows
    assert rows[0][:3] == ["TRIGGER", "STATUS", "SCHEDULE"]
    assert [row[:2] for row in rows[1:]] == [
        ["nightly", "active"], ["report/monthly", "inactive"], ["report/weekly", "active"],
    ]  # fmt: skip
    found = reading("triggers", "list", "--owner", "sales", "-o", "json").json["items"]
    assert [item["name"] for item in found] == ["monthly", "weekly"]
    assert reading("triggers", "list", "-q", "nothing").out == "No trigger matches.\n"


def test_status_says_how_everything_stands(reading: Callable[..., Ran]) -> None:
    ran = reading("status")
    assert ran.code == 0, ran.err
    assert "2 active, 1 paused" in ran.out
    found = reading("status", "-o", "json").json
    assert found["counts"]["triggers"]["active"] == 2
    assert [source["name"] for source in found["sources"]] == ["git/etl"]


def test_a_trigger_is_shown_whole(reading: Callable[..., Ran]) -> None:
    ran = reading("triggers", "show", "nightly")
    assert "timezone    Europe/Berlin\n" in ran.out
    assert "managed by  git/etl\n" in ran.out
    assert reading("triggers", "show", "nightly", "-o", "json").json["catch_up"] == "latest"


def test_a_trigger_is_previewed_with_its_own_rule(reading: Callable[..., Ran]) -> None:
    ran = reading("preview", "report/weekly", "--from", "2026-11-29", "-n", "2", "-o", "json")
    assert [item["utc"] for item in ran.json["items"]] == ["2026-11-30T07:00:00Z", "2026-12-07T07:00:00Z"]


def test_why_gives_a_verdict_for_any_instant(reading: Callable[..., Ran]) -> None:
    ran = reading("why", "nightly", "1999-01-01 02:30", "--timezone", "Europe/Berlin")
    assert ran.code == 0
    assert ran.out.startswith("never: ")
    assert "1999-01-01T01:30:00Z (1999-01-01 02:30:00 in Europe/Berlin)" in ran.out
    assert reading("why", "report/weekly", "-2h", "-o", "json").json["verdict"] == "never"


def test_skips_and_runs_are_listed(reading: Callable[..., Ran]) -> None:
    assert reading("skips", "list").out == "No skip matches.\n"
    assert reading("runs", "list", "--from", "-1d", "--to", "now").out == "No run matches.\n"
    assert reading("runs", "list", "-o", "json").json == {"items": []}


# --- naming a trigger -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("nightly", "default/default/nightly/default"),
        ("nightly/default", "default/default/nightly/default"),
        ("report/weekly", "default/default/report/weekly"),
        ("weekly", "default/default/report/weekly"),
        ("default/default/report/weekly", "default/default/report/weekly"),
    ],
)
@pytest.mark.usefixtures("applied")
def test_a_trigger_is_typed_by_any_ending_that_is_its_own(typed: str, key: str) -> None:
    assert horarium("triggers", "show", typed, "-o", "json").json["key"] == key


@pytest.mark.usefixtures("applied")
def test_an_ambiguous_name_lists_the_candidates() -> None:
    ran = horarium("triggers", "show", "report")
    assert ran.code == Exit.CONFLICT
    assert "'report' could be 2 triggers" in ran.err
    assert "default/default/report/monthly, default/default/report/weekly" in ran.err


@pytest.mark.usefixtures("applied")
def test_a_mistyped_name_is_answered_with_what_is_close() -> None:
    ran = horarium("triggers", "show", "nihgtly")
    assert ran.code == Exit.NOT_FOUND
    assert "try   nightly" in ran.err
    assert horarium("runs", "show", "r123").code == Exit.NOT_FOUND
    assert horarium("triggers", "show", "a/b/c/d/e").code == Exit.FAILED


# --- what people do ---------------------------------------------------------------------------------------


def test_a_pause_carries_a_note_and_a_time_and_resume_ends_it(command: Callable[..., Ran]) -> None:
    ran = command("triggers", "pause", "nightly", "--note", "too loud", "--until", "+2h")
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"default/default/nightly/default is paused; it resumes at \S+Z\.\n", ran.out)
    assert "too loud" in command("triggers", "show", "nightly").out
    assert command("triggers", "list", "--status", "paused", "-q", "nightly").rows[1][:2] == [
        "nightly",
        "paused",
    ]
    assert command("triggers", "resume", "nightly").out.startswith(
        "default/default/nightly/default is active"
    )


def test_a_deployment_is_paused_apart_from_its_trigger(command: Callable[..., Ran]) -> None:
    key = "default/default/nightly"
    ran = command("deployments", "pause", "nightly", "--note", "moving house")
    assert (ran.code, ran.out) == (0, f"{key} is paused: 1 trigger.\n"), ran.err
    assert command("deployments", "list", "-q", "nightly").rows[1][:2] == [key, "paused"]
    assert "moving house" in command("deployments", "show", "nightly").out
    assert f"deployment {key} is paused since " in command("status").out
    assert command("triggers", "list", "-q", "nightly").rows[1][:2] == ["nightly", "deployment-paused"]
    assert f"its deployment is paused: `horarium deployments resume {key}`" in (
        command("triggers", "show", "nightly").out
    )
    refused = command("triggers", "resume", "nightly")
    assert refused.code == Exit.CONFLICT
    assert f"horarium deployments resume {key}" in refused.err
    command("triggers", "pause", "nightly")
    assert command("triggers", "resume", "nightly").out == (
        f"{key}/default is no longer paused itself, but its deployment is:"
        f" `horarium deployments resume {key}` ends that.\n"
    )
    ran = command("deployments", "resume", "nightly", "--backfill")
    assert ran.out == f"{key} goes on: 1 trigger; the slots of the pause are filled by backfills.\n"
    assert command("triggers", "show", "nightly", "-o", "json").json["status"] == "active"
    ran = command("deployments", "resume", "nightly", "--backfill")
    assert ran.code == Exit.CONFLICT, "nobody is told that a pause is filled which has ended"
    assert "no pause to fill" in ran.err


def test_a_resume_of_a_deployment_names_who_stays_paused(command: Callable[..., Ran]) -> None:
    key = "default/default/nightly"
    command("triggers", "pause", "nightly")
    command("deployments", "pause", "nightly")
    ran = command("deployments", "resume", "nightly", "--backfill")
    assert ran.out == f"{key} goes on: 0 triggers.\nPaused by something else still: {key}/default.\n"
    assert command("triggers", "resume", "nightly").code == 0


def test_a_resume_names_whose_slots_it_does_not_fill(command: Callable[..., Ran]) -> None:
    key = "default/default/nightly"
    command("shadow", "on", "nightly")
    command("deployments", "pause", "nightly")
    ran = command("deployments", "resume", "nightly", "--backfill")
    unfilled = f"Not filled, since in shadow those slots are another scheduler's: {key}/default.\n"
    assert ran.out == f"{key} goes on: 1 trigger.\n{unfilled}"


def test_a_pause_of_a_deployment_that_was_withdrawn_is_seen_and_ended(
    command: Callable[..., Ran], applied: Path
) -> None:
    command("deployments", "pause", "nightly")
    applied.write_text(TRIGGERS.replace("nightly:", "weekly:"))
    horarium("apply", str(applied))
    assert command("deployments", "list", "-q", "nightly").out == "No deployment matches.\n"
    ran = command("deployments", "list", "--withdrawn")
    assert [row[:2] for row in ran.rows[1:]] == [["default/default/nightly", "paused"]]
    assert command("deployments", "pause", "nightly").code == Exit.NOT_FOUND
    assert command("deployments", "resume", "nightly").out.startswith("default/default/nightly goes on")
    assert command("deployments", "list", "--withdrawn").rows[1][1] == "active"


def test_a_deployment_that_could_be_several_or_none_is_said_so(command: Callable[..., Ran]) -> None:
    ran = command("deployments", "pause", "nightli")
    assert ran.code == Exit.NOT_FOUND
    assert "try   nightly\n" in ran.err
    assert "its name, or project/domain/name" in command("deployments", "show", "a/b/c/d").err
    assert command("deployments", "show", "default/default/nightly", "-o", "json").json["paused"] is False


def test_what_a_source_manages_is_not_deleted_here(command: Callable[..., Ran]) -> None:
    ran = command("triggers", "delete", "nightly")
    assert ran.code == Exit.CONFLICT
    assert "git/etl" in ran.err
    assert "Traceback" not in ran.err


def test_a_manual_run_takes_parameters_and_a_request_key(command: Callable[..., Ran]) -> None:
    arguments = ["triggers", "run", "weekly", "-p", "format=csv", "-p", "pages=3", "--request-key", "once"]
    first = command(*arguments, "-o", "json").json
    assert first["origin"] == "manual"
    assert first["parameters"] == {"format": "csv", "pages": 3}
    assert command(*arguments, "-o", "json").json["name"] == first["name"]
    assert first["name"] in command("runs", "list", "--origin", "manual").out
    assert "cancelled" in command("runs", "cancel", first["name"]).out
    assert command("runs", "cancel", first["name"]).code == Exit.CONFLICT
    assert command("runs", "retry", first["name"]).code == Exit.CONFLICT


def test_a_parameter_without_a_value_is_refused(command: Callable[..., Ran]) -> None:
    ran = command("triggers", "run", "weekly", "-p", "format")
    assert ran.code == Exit.FAILED
    assert "NAME=VALUE" in ran.err


def test_a_backfill_is_previewed_and_made(command: Callable[..., Ran]) -> None:
    ran = command("backfill", "weekly", "--from", "2026-01-01", "--to", "2026-01-31", "--dry-run")
    assert ran.code == 0, ran.err
    made = command("backfill", "weekly", "--from", "2026-01-01", "--to", "2026-01-31", "-o", "json")
    assert made.code == 0, made.err
    future = command("backfill", "weekly", "--from", "-1h", "--to", "+1h")
    assert future.code == Exit.FAILED
    assert "at    /to" in future.err


def test_a_range_ahead_is_planned_and_says_what_it_did(command: Callable[..., Ran]) -> None:
    year = str(datetime.now(UTC).year + 1)
    january = ("--from", f"{year}-01-01", "--to", f"{year}-01-28")
    made = command("plan", "weekly", *january)
    assert made.code == 0, made.err
    assert made.out.endswith(": 4 runs planned, 0 there already.\n")
    again = command("plan", "--deployment", "report", *january, "-o", "json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert (found["planned"], found["existing"]) == (0, 4)
    assert [item["problem"] is None for item in found["triggers"]] == [False, True]
    shown = command("plan", "--deployment", "report", *january)
    assert "  report/monthly: trigger default/default/report/monthly is not active" in shown.out
    assert command("plan", "weekly", "--from", "now", "--to", "+1h").code == 0, "now is when it arrives"
    past = command("plan", "weekly", "--from", "-1h", "--to", "+1h")
    assert past.code == Exit.FAILED
    assert "at    /from" in past.err
    for wrong in (("weekly", "--deployment", "weekly"), ()):
        assert command("plan", *wrong, "--to", "+1h").code == 2
    assert command("plan", "--deployment", "a/b", "--to", "+1h").code == Exit.NOT_FOUND


# --- a server that fires ----------------------------------------------------------------------------------


def test_a_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "triggers.yaml"
    file.write_text(
        "deployments:\n"
        "  good: {run: [echo, all is well], at: 2099-01-01}\n"
        "  bad: {run: [sh, -c, 'echo oh no; exit 3'], at: 2099-01-01}\n"
    )
    with serving(tmp_path, "--apply", str(file)) as (url, _):
        ran = horarium("triggers", "run", "good", "--follow", "--server", url)
        assert (ran.code, ran.out.splitlines()[1:]) == (0, ["all is well"]), ran.err
        ran = horarium("triggers", "run", "bad", "--follow", "--server", url)
        assert (ran.code, ran.out.splitlines()[1:]) == (1, ["oh no"]), ran.err
        name = ran.out.split()[1]
        assert horarium("runs", "logs", name, "--server", url).out == "oh no\n"
        shown = horarium("runs", "show", name, "--server", url)
        assert "created" in shown.out
        found = horarium("runs", "logs", name, "--server", url, "-o", "json").json
        assert found["exit_code"] == 3


def test_two_servers_on_one_file_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--roles", "api"):
        ran = horarium("serve", "--port", "0")
    assert ran.code == Exit.CONFLICT
    assert "another server" in ran.err


def test_serve_refuses_an_address_that_others_can_reach() -> None:
    ran = horarium("serve", "--host", "0.0.0.0")
    assert ran.code == Exit.FAILED
    assert "at    /host" in ran.err


# --- places -----------------------------------------------------------------------------------------------


def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    ran = horarium("status", "--db", "sqlite:///nowhere.db")
    assert ran.code == Exit.UNREACHABLE
    assert "there is no database at sqlite:///nowhere.db" in ran.err
    assert not (tmp_path / "nowhere.db").exists()


def test_a_file_that_is_no_database_is_said_to_be_none(triggers: Path, tmp_path: Path) -> None:
    for arguments in (["status"], ["db", "check"], ["apply", str(triggers)]):
        ran = horarium(*arguments, "--db", f"sqlite:///{triggers}")
        assert ran.code == Exit.UNREACHABLE
        assert "file is not a database" in ran.err
    assert triggers.read_text() == TRIGGERS
    (tmp_path / "folder").mkdir()
    assert horarium("apply", "folder").code == Exit.FAILED
    assert horarium("apply", "nowhere").code == Exit.FAILED


def test_a_server_that_does_not_answer_is_said_to() -> None:
    ran = horarium("status", "--server", "http://127.0.0.1:1")
    assert ran.code == Exit.UNREACHABLE
    assert "no server answers at http://127.0.0.1:1: connection refused" in ran.err


def test_a_password_in_an_address_is_not_shown() -> None:
    ran = horarium("status", "--server", "http://me:s3cret@127.0.0.1:1")
    assert ran.code == Exit.UNREACHABLE
    assert "s3cret" not in ran.out + ran.err


def test_the_flag_wins_over_the_environment(applied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORARIUM_SERVER", "http://127.0.0.1:1")
    assert horarium("status").code == Exit.UNREACHABLE
    assert horarium("status", "--db", "sqlite:///horarium.db").code == 0
    assert horarium("status", "--db", "sqlite:///x.db", "--server", "http://x").code == Exit.USAGE


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "horarium.toml").write_text("prt = 1\n")
    ran = horarium("status")
    assert ran.code == Exit.FAILED
    assert "try   port" in ran.err


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_is_validated_without_a_database(triggers: Path, tmp_path: Path) -> None:
    assert horarium("validate", str(triggers)).out == f"{triggers}: 3 triggers, no problem.\n"
    triggers.write_text(TRIGGERS.replace("30 2", "61 2"))
    ran = horarium("validate", str(triggers))
    assert ran.code == Exit.FAILED
    assert "line 3: /deployments/nightly/cron" in ran.err
    found = horarium("validate", str(triggers), "-o", "json")
    assert found.code == Exit.FAILED
    assert found.json["problems"][0]["line"] == 3
    assert horarium("validate", "nowhere.yaml").code == Exit.FAILED
    assert not list(tmp_path.glob("*.db"))


def test_the_starter_file_is_valid_and_not_written_over(tmp_path: Path) -> None:
    assert horarium("init").code == 0
    assert horarium("validate", "triggers.yaml").code == 0
    (tmp_path / "triggers.yaml").write_text("mine")
    assert horarium("init").code == Exit.CONFLICT
    assert (tmp_path / "triggers.yaml").read_text() == "mine"
    assert horarium("init", "--force").code == 0


SURPRISES = """\
deployments:
  payroll: {run: [echo, pay], cron: "0 9 13 * fri"}
  plain: {run: [echo, plain], cron: "0 9 * * *"}
"""


def test_lint_names_what_will_surprise_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "surprise.yaml").write_text(SURPRISES)
    ran = horarium("lint", "surprise.yaml")
    assert ran.code == Exit.FAILED
    assert ran.out.startswith("surprise.yaml:2: day_or payroll: ")
    assert "    try: " in ran.out
    (finding,) = horarium("lint", "surprise.yaml", "-o", "json").json["findings"]
    assert (finding["code"], finding["line"]) == ("day_or", 2)
    ran = horarium("lint", "surprise.yaml", "--ignore", "day_or")
    assert (ran.code, ran.out) == (0, "2 triggers, nothing to say.\n")
    assert "day_or" in horarium("lint", "surprise.yaml", "--ignore", "dayor").err


def test_apply_lints_what_comes_and_changes_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "surprise.yaml"
    file.write_text(SURPRISES)
    assert "surprise.yaml:2: day_or payroll: " in horarium("apply", str(file)).out
    file.write_text(SURPRISES.replace("0 9 * * *", "0 8 * * *"))
    ran = horarium("apply", str(file), "-o", "json")
    assert ran.json["lint"] == []
    assert [item["key"] for item in ran.json["sources"][0]["edited"]] == ["default/default/plain/default"]


CRONJOB = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec: {schedule: "30 2 * * *", timeZone: UTC}
"""
JOB = {
    "id": "a",
    "func": "gc:collect",
    "next_run_time": datetime(2030, 1, 1, tzinfo=UTC),
    "trigger": ("apscheduler.triggers.date:DateTrigger", {}),
}
PICKLED = {"__apscheduler_pickle__": base64.b64encode(pickle.dumps(JOB)).decode()}
CRONTAB = b"""\
# nightly
MAILTO=ops@example.org
30 2 * * * /usr/local/bin/backup --all
@reboot /usr/local/bin/warm-up
0 7 * * 1 printf 'a\\%b'
"""


def test_a_crontab_becomes_a_triggers_file(tmp_path: Path) -> None:
    ran = horarium("import", "crontab", "-", "--timezone", "Europe/Berlin", stdin=CRONTAB)
    assert ran.code == Exit.FAILED  # an entry was left out
    assert "line 4: left out: @reboot" in ran.err
    assert "2 of 3 entries carried over" in ran.err
    (tmp_path / "cron.yaml").write_text(ran.out)
    assert horarium("validate", "cron.yaml").code == 0
    (tmp_path / "crontab").write_bytes(CRONTAB.replace(b"@reboot", b"@daily"))
    ran = horarium("import", "crontab", "crontab", "-z", "UTC", "-o", "out.yaml")
    assert (ran.code, ran.out) == (0, "")
    assert horarium("validate", "out.yaml").code == 0
    assert horarium("import", "crontab", "crontab", "-z", "UTC", "-o", "out.yaml").code == Exit.CONFLICT
    assert horarium("import", "crontab", "nowhere").code == Exit.FAILED


def test_cronjobs_become_a_triggers_file(tmp_path: Path) -> None:
    jobs = b"""\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec: {schedule: "30 2 * * *", timeZone: UTC, concurrencyPolicy: Forbid}
"""
    ran = horarium("import", "kubernetes", "-", stdin=jobs)
    assert ran.code == Exit.FAILED  # a part was left out
    assert "line 4: left out: concurrencyPolicy: Forbid" in ran.err
    assert "1 of 1 entry carried over." in ran.err
    (tmp_path / "jobs.yaml").write_text(ran.out)
    assert horarium("validate", "jobs.yaml").code == 0
    ran = horarium("import", "kubernetes", "-", "-o", "out.yaml", stdin=jobs.replace(b"Forbid", b"Allow"))
    assert (ran.code, ran.out) == (0, "")
    assert horarium("import", "kubernetes", "-", stdin=b"a: [").code == Exit.FAILED
    assert "not UTF-8" in horarium("import", "kubernetes", "-", stdin=b"\xff").err


def test_a_beat_schedule_becomes_a_triggers_file(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text(
        "from celery.schedules import crontab, solar\n"
        "beat_schedule = {\n"
        "  'a': {'task': 't', 'schedule': crontab(hour=4)},\n"
        "  'b': {'task': 't', 'schedule': solar('dusk', 1, 2)},\n}\n"
    )
    ran = horarium("import", "celery", "conf.py", "--app", "proj", "-o", "out.yaml")
    assert ran.code == Exit.FAILED  # an entry was left out
    assert "line 4: left out: b" in ran.err
    assert "1 of 2 entries carried over to out.yaml." in ran.err
    assert horarium("validate", "out.yaml").code == 0
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "sets no beat_schedule" in horarium("import", "celery", "empty.py").err


def test_an_export_of_jobs_becomes_a_triggers_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text('{"version": 1, "jobs": [{"id": "a", "trigger": null}]}')
    ran = horarium("import", "apscheduler", "jobs.json", "-o", "out.yaml")
    assert ran.code == Exit.FAILED  # a job was left out
    assert "job 1: left out: a" in ran.err
    assert "0 of 1 entry carried over to out.yaml." in ran.err
    assert horarium("validate", "out.yaml").code == 0
    assert "export_jobs" in horarium("import", "apscheduler", "redis://host").err
    assert horarium("import", "apscheduler", "nowhere").code == Exit.FAILED


def test_a_prefect_yaml_becomes_a_triggers_file(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text("@flow(name='Load it')\ndef load(): ...\n")
    (tmp_path / "prefect.yaml").write_text(
        "deployments:\n- name: a\n  entrypoint: flows.py:load\n  schedule: {cron: '@daily', timezone: UTC}\n"
    )
    ran = horarium("import", "prefect", "prefect.yaml", "--url", "http://prefect/api", "-o", "out.yaml")
    assert (ran.code, ran.out) == (0, "")
    written = (tmp_path / "out.yaml").read_text()
    assert 'deployment: "Load it/a"' in written
    assert '"http://prefect/api"' in written
    assert horarium("validate", "out.yaml").code == 0
    assert "list of deployments" in horarium("import", "prefect", "-", stdin=b"a: 1").err


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("crontab", "crontab", "0 4 * * * true\n"),
        ("apscheduler", "jobs.json", json.dumps({"version": 1, "jobs": [PICKLED]})),
        ("celery", "conf.py", "beat_schedule = {'a': {'task': 't', 'schedule': 60}}\n"),
        ("kubernetes", "jobs.yaml", CRONJOB),
        ("prefect", "prefect.yaml", "deployments:\n- {name: a, flow_name: f, schedule: {cron: '@daily'}}\n"),
    ],
)
def test_every_import_is_written_by_the_same_options(kind: str, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    into = ("--shadow", "--project", "shop", "--domain", "live", "-o", "out.yaml")
    assert horarium("import", kind, name, *into).code == 0
    (trigger,) = parse_triggers((tmp_path / "out.yaml").read_text(), "out.yaml", registry).listing.triggers
    assert (trigger.key.project, trigger.key.domain, trigger.shadow) == ("shop", "live", True)
    assert horarium("import", kind, name, *into).code == Exit.CONFLICT
    assert horarium("import", kind, name, *into, "--force").code == 0
    ran = horarium("import", kind, name, "--domain", "a/b")
    assert (ran.code, ran.out) == (Exit.FAILED, "")
    assert "domain" in ran.err
    assert "a/b" in ran.err


def test_the_system_form_has_users() -> None:
    text = b"0 1 * * * root /bin/true\n0 2 * * * www-data /bin/true\n"
    ran = horarium("import", "crontab", "-", "--system", "--user", "root", "-z", "UTC", stdin=text)
    assert ran.code == Exit.FAILED
    assert "line 2: left out" in ran.err
    assert horarium("import", "crontab", "-", "--user", "root", stdin=text).code == Exit.USAGE


# --- db ---------------------------------------------------------------------------------------------------


def test_the_schema_is_made_checked_and_copied(applied: Path, tmp_path: Path) -> None:
    assert horarium("db", "check").code == 0
    assert "is up to date" in horarium("db", "upgrade").out
    assert horarium("db", "check", "--db", "sqlite:///other.db").code == Exit.UNREACHABLE
    assert horarium("db", "upgrade", "--db", "sqlite:///other.db").code == 0
    assert horarium("db", "check", "--db", "sqlite:///other.db").code == 0
    ran = horarium("db", "backup", "copy.db", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json["bytes"] == (tmp_path / "copy.db").stat().st_size
    assert horarium("triggers", "list", "--db", "sqlite:///copy.db").rows == horarium("triggers", "list").rows
    assert horarium("db", "backup", "copy.db").code == Exit.CONFLICT
    assert horarium("db", "backup", "x.db", "--db", "sqlite:///nowhere.db").code == Exit.UNREACHABLE


def test_a_newer_schema_says_who_can_work_on_it(applied: Path, tmp_path: Path) -> None:
    checked = horarium("db", "check", "-o", "json").json
    assert checked["schema"] == checked["built_for"] == migrations.head()
    assert checked["readable_by"] == "0004"
    with sqlite3.connect(tmp_path / "horarium.db") as raw:
        raw.execute("update alembic_version set version_num = '0009'")
    assert "a newer schema, 0009, on which versions built for 0004 or later" in horarium("db", "check").out
    assert (
        f"is newer than this version's {migrations.head()}, and fit for it" in horarium("db", "upgrade").out
    )
    assert horarium("status").code == 0
    down = horarium("db", "downgrade")
    assert down.code == Exit.UNREACHABLE
    assert "use its 'horarium db downgrade'" in down.err
    with sqlite3.connect(tmp_path / "horarium.db") as raw:
        raw.execute("update schema_compatibility set readable_by = '0009'")
    for words in (("db", "check"), ("db", "upgrade"), ("status",), ("db", "downgrade")):
        refused = horarium(*words)
        assert refused.code == Exit.UNREACHABLE, words
        assert "made by a newer Horarium" in refused.err or "version that made it" in refused.err


def test_an_older_database_is_copied_before_its_upgrade(tmp_path: Path) -> None:
    assert horarium("db", "upgrade").code == 0
    with sqlite3.connect(tmp_path / "horarium.db") as raw:
        raw.execute("update alembic_version set version_num = '0000'")
    assert horarium("db", "check").code == Exit.UNREACHABLE
    assert horarium("db", "backup", "before.db").code == 0
    with sqlite3.connect(tmp_path / "before.db") as raw:
        assert raw.execute("select version_num from alembic_version").fetchall() == [("0000",)]


@pytest.mark.usefixtures("applied")
def test_a_list_of_runs_shows_what_has_come_unless_asked_for_more() -> None:
    horarium("triggers", "run", "weekly")
    plain = horarium("runs", "list", "-o", "json").json["items"]
    assert [item["origin"] for item in plain] == ["manual"]
    assert horarium("backfill", "weekly", "--from", "-1d", "--to", "now").code == 0
    both = horarium("runs", "list", "--planned", "-o", "json").json["items"]
    assert [item["name"] for item in both if item["origin"] == "manual"] == [plain[0]["name"]]


def test_the_last_slot_of_a_trigger_is_owed_until_it_is_fired(tmp_path: Path) -> None:
    (tmp_path / "triggers.yaml").write_text("deployments: {tick: {run: date, every: 1s}}")
    assert horarium("apply", "triggers.yaml").code == 0
    with sqlite3.connect(tmp_path / "horarium.db") as raw:
        raw.execute(
            "insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id,"
            " state, due_at, first_due_at) select t.id, t.cursor, 'schedule', t.project, t.domain, 'r1', 1,"
            " target.id, 'scheduled', t.cursor, t.cursor from trigger t, target"
        )
    listed = horarium("triggers", "list").out
    assert "owed" in listed
    assert "scheduled" not in listed
    assert " owed" in horarium("triggers", "show", "tick").out


def test_a_deployment_without_a_trigger_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "triggers.yaml").write_text("deployments: {hand: {run: date}, tick: {run: date, every: 1h}}")
    assert horarium("apply", "triggers.yaml").code == 0
    ran = horarium("triggers", "run", "hand")
    assert ran.code == Exit.NOT_FOUND
    assert "deployment 'hand' has no trigger" in ran.err
    assert "active: false" in ran.err


def test_a_trigger_that_is_not_active_runs_by_hand(tmp_path: Path) -> None:
    text = "deployments: {hand: {run: date, every: 1h, active: false}}"
    (tmp_path / "triggers.yaml").write_text(text)
    assert horarium("apply", "triggers.yaml").code == 0
    run = horarium("triggers", "run", "hand", "-o", "json").json
    assert (run["origin"], run["state"]) == ("manual", "scheduled")


def test_a_deleted_trigger_is_told_from_one_that_was_never_there(tmp_path: Path) -> None:
    (tmp_path / "triggers.yaml").write_text("deployments: {tick: {run: date, every: 1h}}")
    assert horarium("apply", "triggers.yaml").code == 0
    (tmp_path / "triggers.yaml").write_text("deployments: {tock: {run: date, every: 1h}}")
    assert horarium("apply", "triggers.yaml").code == 0
    ran = horarium("triggers", "show", "tick")
    assert ran.code == Exit.NOT_FOUND
    assert "default/default/tick/default was deleted" in ran.err
    assert horarium("why", "tick", "now").code == 0


def test_prune_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "triggers.yaml").write_text("deployments: {tick: {run: date, every: 1h}}")
    ran = horarium("apply", "triggers.yaml", "--prune")
    assert ran.code == Exit.USAGE
    assert "no folder" in ran.err


# --- how commands end -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("trigger", "x"), Exit.NOT_FOUND),
        (AlreadyServing("taken"), Exit.CONFLICT),
        (SchemaMismatch("old"), Exit.UNREACHABLE),
        (StoreUnavailable("gone"), Exit.UNREACHABLE),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    assert failure_of(error).code == code  # type: ignore[arg-type]  # all of them are HorariumErrors


def test_the_page_of_commands_has_every_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]


@pytest.mark.parametrize(
    "arguments",
    [["prevew"], ["triggers", "lst"], ["status", "--nope"], ["why", "x"], ["runs", "list", "-n", "0"]],
)
def test_wrong_usage_says_where_help_is(arguments: list[str]) -> None:
    ran = horarium(*arguments)
    assert ran.code == Exit.USAGE
    assert "--help" in ran.err


def test_every_command_has_help_and_the_version_is_told() -> None:
    import importlib

    import click

    from horarium.cli.main import COMMANDS

    for name, (module, _) in COMMANDS.items():
        command = getattr(importlib.import_module(f"horarium.cli.commands.{module}"), f"{name}_command")
        names = [[name], *([name, sub] for sub in getattr(command, "commands", {}))]
        assert isinstance(command, click.Command)
        for words in names:
            assert horarium(*words, "--help").code == 0, words
    assert re.fullmatch(r"horarium \d+\.\d+\.\d+\S*\n", horarium("--version").out)


def test_control_characters_from_outside_do_not_reach_a_terminal(applied: Path) -> None:
    horarium("triggers", "pause", "nightly", "--note", "plain")
    ran = horarium("triggers", "show", "\x1b[31mred")
    assert "\x1b" not in ran.err
    assert json.dumps("plain") in json.dumps(horarium("triggers", "show", "nightly", "-o", "json").json)


def test_ctrl_c_while_following_ends_with_130(tmp_path: Path) -> None:
    file = tmp_path / "triggers.yaml"
    file.write_text("deployments: {long: {run: [sh, -c, 'echo started; exec sleep 300'], at: 2099-01-01}}\n")
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with serving(tmp_path, "--apply", str(file)) as (url, _):
        process = subprocess.Popen(
            [sys.executable, "-m", "horarium", "triggers", "run", "long", "--follow", "--server", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            # As a terminal starts it; the processes that share these tests ignore Ctrl-C, and so would it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line == "started\n":
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == Exit.INTERRUPTED
        assert err == "interrupted\n"
        # The run is the server's: it goes on.
        ran = horarium("runs", "list", "--origin", "manual", "--server", url)
        assert "running" in ran.out or "fired" in ran.out
