"""`horarium sync flyte`, and `[sources.flyte]` in the settings, from the command line and the API down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyteidl2.task.common_pb2 import Cron

from horarium import wiring
from horarium.config import load_settings
from horarium.errors import InvalidInput
from tests.flyte.backend import Backend, Refuse, beside
from tests.flyte.reading import details, named, parts
from tests.surfaces.cli import Ran, horarium


@pytest.fixture
def backend() -> Backend:
    found = Backend()
    found.deploy(details(named("daily")))
    found.deploy(details(named("hourly"), cron=Cron(expression="0 * * * *", timezone="Europe/Berlin")))
    return found


@pytest.fixture
def url(backend: Backend) -> Iterator[str]:
    with beside(backend) as url:
        yield url


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/horarium.db"


def sync(db: str, *arguments: str) -> Ran:
    return horarium("sync", "flyte", "--db", db, *arguments)


def test_a_dry_run_shows_the_diff_and_writes_nothing(db: str, url: str) -> None:
    shown = sync(db, "--endpoint", url, "--dry-run")
    assert shown.code == 0, shown.err
    assert "+ flytesnacks/development/env.my_task/daily  0 10 * * *" in shown.out
    assert "+ flytesnacks/development/env.my_task/hourly  0 * * * *  (Europe/Berlin)" in shown.out
    assert "2 added, 0 edited, 0 withdrawn, 0 unchanged" in shown.out
    assert "(dry run: nothing was written)" in shown.out
    assert sync(db, "--endpoint", url, "--dry-run", "--exit-code").code == 2
    assert horarium("triggers", "list", "--db", db, "-o", "json").json["items"] == []


def test_it_makes_the_triggers_edits_them_and_withdraws_them(db: str, backend: Backend, url: str) -> None:
    assert sync(db, "--endpoint", url).code == 0
    listed = horarium("triggers", "list", "--db", db, "-o", "json").json["items"]
    assert {item["key"]: item["managed_by"] for item in listed} == {
        str(named("daily")): "flyte",
        str(named("hourly")): "flyte",
    }
    again = sync(db, "--endpoint", url, "--exit-code")
    assert (again.code, "Nothing to change in 2 triggers." in again.out) == (0, True)
    backend.activate(parts(named("daily")), False)
    backend.delete(parts(named("hourly")))
    changed = sync(db, "--endpoint", url)
    assert "1 edited, 1 withdrawn" in changed.out
    shown = horarium("triggers", "show", str(named("daily")), "--db", db, "-o", "json").json
    assert shown["status"] == "paused"


def test_a_mistake_over_there_is_named_and_costs_itself_alone(db: str, backend: Backend, url: str) -> None:
    backend.deploy(details(named("never"), cron=Cron(expression="0 0 30 2 *")))
    done = sync(db, "--endpoint", url, "-o", "json").json
    (source,) = done["sources"]
    assert len(source["added"]) == 2
    assert [item["pointer"] for item in source["left_out"]] == [
        f"/{named('never')}/automation_spec/schedule/cron/expression"
    ]
    shown = sync(db, "--endpoint", url)
    assert shown.code == 1
    assert "1 mistake over there" in shown.out
    status = horarium("status", "--db", db, "-o", "json").json
    assert "never names a time" in status["sources"][0]["error"]


def test_a_backend_that_is_away_changes_nothing_and_is_no_fault_of_ours(
    db: str, backend: Backend, url: str
) -> None:
    assert sync(db, "--endpoint", url).code == 0
    backend.down = Refuse(503, "unavailable", "maintenance")
    failed = sync(db, "--endpoint", url)
    assert (failed.code, failed.out) == (5, "")
    assert "source 'flyte' can't be read: answered 503 unavailable: maintenance" in failed.err
    assert len(horarium("triggers", "list", "--db", db, "-o", "json").json["items"]) == 2


def test_a_pass_that_would_withdraw_much_is_refused(db: str, backend: Backend, url: str) -> None:
    for n in range(10):
        backend.deploy(details(named(f"t{n}")))
    assert sync(db, "--endpoint", url).code == 0
    for n in range(10):
        backend.delete(parts(named(f"t{n}")))
    refused = sync(db, "--endpoint", url)
    assert refused.code != 0
    assert "would withdraw 10 of the 12 triggers" in refused.err
    assert sync(db, "--endpoint", url, "--allow-withdraw").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "in [sources.flyte]"),
        (("--org", "acme"), "--org says how Flyte is reached"),
        (("--endpoint", "dns:///flyte.example.com"), "https://flyte.example.com"),
        (("--endpoint", "http://127.0.0.1:1", "--token", "abc"), "env:FLYTE_TOKEN"),
        (("--endpoint", "http://127.0.0.1:1", "--header", "X"), "X-Team: etl"),
        (("--endpoint", "http://127.0.0.1:1", "--project", "a"), "flytesnacks/development"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(db: str, arguments: tuple[str, ...], said: str) -> None:
    failed = sync(db, *arguments)
    assert failed.code != 0
    assert said in failed.err
    assert "abc" not in failed.err


def test_the_settings_name_a_source_that_sync_uses_too(tmp_path: Path, db: str, url: str) -> None:
    file = tmp_path / "horarium.toml"
    file.write_text(
        f'db = "{db}"\n[sources.flyte]\nendpoint = "{url}"\nheaders = ["X-Team: etl"]\n'
        'projects = ["flytesnacks/development"]\n'
    )
    done = horarium("sync", "flyte", "--config", str(file), "-o", "json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["sources"][0]["added"]) == 2


def test_a_wrong_setting_is_named_as_the_settings_have_it(tmp_path: Path) -> None:
    file = tmp_path / "horarium.toml"
    file.write_text(
        f'db = "sqlite:///{tmp_path}/h.db"\n[sources.flyte]\nendpoint = "flyte.example.com"\n'
        'token = "abc"\nheaders = ["X-Team"]\nprojects = ["a"]\n'
    )
    settings = load_settings(config=file)
    with pytest.raises(InvalidInput) as wrong:
        wiring.build(settings)
    assert {item.pointer for item in wrong.value.problems} == {
        "/sources_flyte_endpoint",
        "/sources_flyte_token",
        "/sources_flyte_headers",
        "/sources_flyte_projects/0",
    }
    assert "abc" not in str(wrong.value)
    assert "abc" not in repr(settings)
