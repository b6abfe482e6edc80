"""The triggers file: what it means, and what is said when it is wrong."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.core import schedule as schedules
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.spec import CatchUp, Overlap, Rate, TargetSpec, TriggerEntry, TriggerSpec
from horarium.errors import InvalidInput, Problem
from horarium.sources.base import Source, SourceUnavailable, TargetChecks
from horarium.sources.document import MAX_BYTES, MAX_DEPTH, read_document
from horarium.sources.files import (
    MAX_PROBLEMS,
    FileSource,
    Parsed,
    parse_triggers,
    read_parsed,
    read_path,
)
from horarium.sources.starter import STARTER
from horarium.targets import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
CHECKS: TargetChecks = registry


def parsed(text: str, path: str = "triggers.yaml") -> Parsed:
    return parse_triggers(text, path, CHECKS)


def trigger(text: str, name: str = "default") -> TriggerEntry:
    found = [entry for entry in parsed(text).listing.triggers if entry.key.name == name]
    assert len(found) == 1
    return found[0]


def problems(text: str, path: str = "triggers.yaml") -> list[Problem]:
    with pytest.raises(InvalidInput) as caught:
        parsed(text, path)
    assert all(problem.line is not None for problem in caught.value.problems)
    return list(caught.value.problems)


def problem(text: str, path: str = "triggers.yaml") -> Problem:
    found = problems(text, path)
    assert len(found) == 1, found
    return found[0]


def one(body: str) -> str:
    """A file of one deployment with those fields."""
    return f"deployments:\n  job: {{run: date, {body}}}\n"


# --- what it means ------------------------------------------------------------------------------------


def test_the_short_form_is_one_trigger_named_default() -> None:
    listing = parsed("deployments:\n  tick: {run: date, every: 20s}\n", "git/tick.yaml").listing

    assert listing.source == "git/tick.yaml"
    assert [str(entry.key) for entry in listing.triggers] == ["default/default/tick/default"]
    (entry,) = listing.triggers
    assert entry.spec.schedule == {"every": "20s"}
    assert (entry.spec.target, entry.spec.action) == ("local", {"run": "date"})
    assert listing.targets == (), "local is there without being listed, and belongs to no source"


def test_source_project_and_domain_are_the_files() -> None:
    listing = parsed("source: git/etl\nproject: etl\ndomain: production\n" + one("every: 1m")).listing

    assert listing.source == "git/etl"
    assert listing.deployments[0].key == DeploymentKey("etl", "production", "job")
    assert listing.triggers[0].key == TriggerKey("etl", "production", "job", "default")


def test_the_long_form_has_triggers_by_name() -> None:
    text = """
deployments:
  crm-sync:
    run: sync
    parameters: {table: customers, mode: quick}
    triggers:
      day: {cron: "*/5 7-19 * * mon-fri", catch_up: latest, max_age: 30m, jitter: 90s}
      night: {cron: "H 2 * * *", parameters: {mode: full}, active: false}
"""
    day, night = trigger(text, "day").spec, trigger(text, "night").spec

    assert (day.catch_up, day.max_age, day.jitter) == (
        CatchUp.LATEST,
        timedelta(minutes=30),
        timedelta(seconds=90),
    )
    assert (day.active, night.active) == (True, False)
    assert day.parameters == {"table": "customers", "mode": "quick"}
    assert night.parameters == {"table": "customers", "mode": "full"}
    assert parsed(text).pointers[TriggerKey("default", "default", "crm-sync", "day")] == (
        "/deployments/crm-sync/triggers/day"
    )


def test_a_deployment_needs_no_trigger() -> None:
    listing = parsed("deployments: {by-hand: {run: date}}").listing
    assert (len(listing.deployments), len(listing.triggers)) == (1, 0)


def test_a_deployments_words_reach_the_deployment_and_its_triggers() -> None:
    text = """
deployments:
  ledger:
    run: [ledger, close]
    kickoff_time_arg: as_of
    owner: finance
    runbook: https://wiki.internal/ledger
    late_after: 10m
    retry_for: 6h
    every: 1h
"""
    (deployment,) = parsed(text).listing.deployments
    spec = trigger(text).spec
    for found in (deployment, spec):
        assert found.action == {"run": ["ledger", "close"]}
        assert (found.kickoff_time_arg, found.owner, found.runbook) == (
            "as_of",
            "finance",
            "https://wiki.internal/ledger",
        )
        assert (found.late_after, found.retry_for) == (timedelta(minutes=10), timedelta(hours=6))


def test_the_nearest_word_counts() -> None:
    text = """
defaults: {timezone: Europe/Berlin, catch_up: none, dst: literal, owner: all-of-us}
deployments:
  a:
    run: date
    timezone: Europe/Paris
    catch_up: latest
    owner: team-a
    triggers:
      own: {cron: "0 9 * * *", timezone: Asia/Tokyo, dst: skip_once, catch_up: all}
      deployments: {cron: "0 9 * * *"}
  b: {run: date, cron: "0 9 * * *"}
"""
    entries = {f"{e.key.deployment}/{e.key.name}": e.spec for e in parsed(text).listing.triggers}

    def seen(name: str) -> tuple[Any, ...]:
        spec = entries[name]
        return spec.schedule["timezone"], spec.schedule["dst"], spec.catch_up, spec.owner

    assert seen("a/own") == ("Asia/Tokyo", "skip_once", CatchUp.ALL, "team-a")
    assert seen("a/deployments") == ("Europe/Paris", "literal", CatchUp.LATEST, "team-a")
    assert seen("b/default") == ("Europe/Berlin", "literal", CatchUp.NONE, "all-of-us")


@pytest.mark.parametrize(
    ("body", "schedule"),
    [
        ("every: 20s", {"every": "20s"}),
        ("at: 2099-01-01T00:00:00Z", {"at": "2099-01-01T00:00:00Z"}),
        ('cron: "CRON_TZ=Asia/Tokyo 0 9 * * *"', {"cron": "CRON_TZ=Asia/Tokyo 0 9 * * *", "dst": "literal"}),
        (
            'cron: "0 9 * * *", dialect: robfig',
            {"cron": "0 9 * * *", "dialect": "robfig", "timezone": "Asia/Tokyo"},
        ),
        ("every: {days: 1}", {"every": {"days": 1}, "timezone": "Asia/Tokyo"}),
        ("every: 1h, start: 2026-01-01", {"every": "1h", "start": "2026-01-01", "timezone": "Asia/Tokyo"}),
        ("at: 2099-01-01T00:00", {"at": "2099-01-01T00:00", "timezone": "Asia/Tokyo"}),
    ],
)
def test_a_default_that_means_nothing_to_a_rule_stays_out_of_it(body: str, schedule: dict[str, Any]) -> None:
    """So that a change of the default is no edit of that trigger."""
    entry = trigger("defaults: {timezone: Asia/Tokyo, dst: literal}\n" + one(body))
    assert entry.spec.schedule == schedule


def test_defaults_of_commands_reach_commands_only() -> None:
    text = """
defaults: {timeout: 5m, shell: true, env: {A: "1", B: "1"}, cwd: /srv}
targets: {hook: {http: {url: "https://example.com/"}}}
deployments:
  line: {run: "a | b", env: {B: "2"}, timeout: 1m}
  list: {run: [a, b]}
  function: {python: "platform:platform"}
  request: {target: hook, path: /x}
"""
    actions = {item.key.name: item.action for item in parsed(text).listing.deployments}
    common = {"env": {"A": "1", "B": "1"}, "cwd": "/srv", "timeout": 300}
    assert actions == {
        "line": {"run": "a | b", "shell": True, "env": {"A": "1", "B": "2"}, "cwd": "/srv", "timeout": 60},
        "list": {"run": ["a", "b"], **common},
        "function": {"python": "platform:platform", **common},
        "request": {"path": "/x"},
    }


def test_targets_have_a_kind_a_rate_and_places() -> None:
    text = """
targets:
  crm: {http: {url: "https://crm.internal/"}, rate: {per_second: 2.5}, max_in_flight: 32}
  fast: {http: {url: "https://fast.internal/"}, rate: unlimited}
  local: {local: , rate: {per_second: 50, burst: 100}}
deployments: {}
"""
    url = "https://crm.internal/"
    assert parsed(text).listing.targets == (
        TargetSpec("crm", "http", {"url": url}, Rate(2.5, 3), False, 32),
        TargetSpec("fast", "http", {"url": "https://fast.internal/"}, None, True),
        TargetSpec("local", "local", {}, Rate(50.0, 100)),
    )


def test_a_target_that_is_defined_elsewhere_is_reported_not_refused() -> None:
    text = "deployments: {job: {target: crm, path: /x, every: 1m}}"
    found = parsed(text)
    assert found.elsewhere == (("crm", "/deployments/job/target"),)
    assert found.listing.deployments[0].action == {"path": "/x"}

    assert parse_triggers(text, "x", CHECKS, targets={"crm": TargetSpec("crm", "http")}).elsewhere == ()
    with pytest.raises(InvalidInput, match="run or python"):
        parse_triggers(
            "deployments: {job: {target: box}}", "x", CHECKS, targets={"box": TargetSpec("box", "local")}
        )


@pytest.mark.parametrize(
    ("text", "former"),
    [
        (one("every: 1m, renamed_from: old"), "default/default/old/default"),
        (one("every: 1m, renamed_from: old/daily"), "default/default/old/daily"),
        (one("every: 1m, renamed_from: p/d/old/daily"), "p/d/old/daily"),
        ("deployments: {a: {run: x, triggers: {t: {every: 1m, renamed_from: u}}}}", "default/default/a/u"),
        ("deployments: {a: {run: x, triggers: {t: {every: 1m, renamed_from: b/u}}}}", "default/default/b/u"),
        ("deployments: {a: {run: x, renamed_from: b, triggers: {t: {every: 1m}}}}", "default/default/b/t"),
        (
            "deployments: {a: {run: x, renamed_from: b, triggers: {t: {every: 1m, renamed_from: u}}}}",
            "default/default/b/u",
        ),
    ],
)
def test_renamed_from_is_the_whole_former_key(text: str, former: str) -> None:
    assert [entry.renamed_from for entry in parsed(text).listing.triggers] == [former]


def test_parameters_that_only_a_trigger_completes_are_checked_as_a_run_will_have_them() -> None:
    text = """
deployments:
  job:
    python: "platform:platform"
    parameters: {aliased: true}
    kickoff_time_arg: terse
    triggers:
      whole: {every: 1m}
"""
    assert trigger(text, "whole").spec.parameters == {"aliased": True}
    wrong = text.replace("{every: 1m}", "{every: 1m, parameters: {alias: true}}")
    assert "alias" in str(problem(wrong))


CALENDARS = """
defaults: {timezone: Europe/Berlin, exclude: [de]}
calendars:
  de: {holidays: DE}
  close: {dates: [2026-12-24, 2026-12-31]}
  off: {weekdays: [sat, sun]}
deployments:
  daily: {run: x, cron: "0 9 * * *"}
  closing: {run: x, cron: "0 4 L * *", only: close, exclude: [off], on_excluded: previous_business_day}
  once: {run: x, at: 2099-01-01T00:00:00Z}
"""


def test_a_rule_holds_the_calendars_that_it_keeps_to() -> None:
    """So that a revision means the same when the file has changed."""
    found = {entry.key.deployment: entry.spec.schedule for entry in parsed(CALENDARS).listing.triggers}
    assert found["daily"]["exclude"] == ["de"]
    assert found["daily"]["calendars"] == {"de": {"holidays": [{"country": "DE"}]}}
    assert found["closing"]["calendars"] == {
        "close": {"dates": ["2026-12-24", "2026-12-31"]},
        "off": {"weekdays": ["sat", "sun"]},
    }
    assert found["once"] == {"at": "2099-01-01T00:00:00Z"}, "an instant is said outright"


def test_the_stored_rule_is_whole() -> None:
    """What a revision stores is enough to evaluate it, without the file."""
    for text in (CALENDARS, *(file.read_text() for file in EXAMPLES.glob("*.yaml"))):
        for entry in parsed(text).listing.triggers:
            stored = json.loads(json.dumps(entry.spec.to_json()))["schedule"]
            schedules.parse(stored, seed=str(entry.key))
    (daily, *_) = parsed(CALENDARS).listing.triggers
    new_year = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp())
    after = schedules.parse(daily.spec.schedule).after(new_year)
    assert after == int(datetime(2027, 1, 2, 8, tzinfo=UTC).timestamp())


def test_yaml_is_1_2() -> None:
    text = one("parameters: {a: no, b: 010, c: 0o10, d: 18:00, e: 1_000, f: 2026-01-01, g: ~, h: 1e3, i: on}")
    assert parsed(text).listing.deployments[0].parameters == {
        "a": "no",
        "b": 10,
        "c": 8,
        "d": "18:00",
        "e": "1_000",
        "f": "2026-01-01",
        "g": None,
        "h": 1000.0,
        "i": "on",
    }


def test_json_is_a_triggers_file_too() -> None:
    data = {"deployments": {"tick": {"run": "date", "every": "1m"}}}
    for path in ("triggers.json", "triggers.yaml"):
        assert (
            parsed(json.dumps(data), path).listing.triggers
            == parsed(STARTER.replace("hello", "tick"), path[:8]).listing.triggers
        )


def test_the_same_text_has_the_same_digest_and_another_order_too() -> None:
    a = "deployments: {a: {run: x, every: 1m}, b: {run: y, every: 2m}}"
    b = "deployments: {b: {every: 2m, run: y}, a: {every: 60s, run: x}}"
    assert parsed(a).listing.digest() == parsed(a).listing.digest()
    assert parsed(a).listing.deployments[0].digest() == parsed(b).listing.deployments[1].digest()


def test_empty_sections_are_none_at_all() -> None:
    listing = parsed("defaults:\ntargets:\ncalendars:\ndeployments:\n").listing
    assert (listing.targets, listing.deployments, listing.triggers) == ((), (), ())


def test_the_starter_is_valid_as_it_stands_and_with_its_comments_taken_out() -> None:
    assert len(parsed(STARTER).listing.triggers) == 1
    lines = []
    for line in STARTER.splitlines():
        bare = line.lstrip()
        # A commented line of YAML; prose ends in a full stop or a comma, or has no colon before its end.
        yaml = bare.startswith("# ") and (": " in bare or bare.endswith(":")) and not bare[2].isupper()
        lines.append(line.replace("# ", "", 1) if yaml else line)
    whole = "\n".join(lines)
    assert {e.key.name for e in parsed(whole).listing.triggers} == {"default", "daily", "month-end", "once"}
    assert parsed(whole).listing.targets[0].name == "crm"


def test_the_examples_are_valid_and_one_fires_within_a_minute() -> None:
    listings = {listing.source: listing for listing in read_path(EXAMPLES, CHECKS)}
    assert {"examples/triggers", "examples/schedules", "examples/http"} <= set(listings)
    schedules = [entry.spec.schedule for entry in listings["examples/triggers"].triggers]
    assert {"every": "20s"} in schedules


LINTED = """
lint: {ignore: [day_or]}
deployments:
  plain: {run: x, every: 20s}
  short: {run: x, every: 20s, lint: {ignore: sub_minute}}
  long:
    run: x
    lint: {ignore: [rare]}
    triggers:
      a: {every: 20s}
      b: {every: 20s, lint: {ignore: [sub_minute]}}
"""


def test_lint_is_silenced_for_a_file_a_deployment_or_a_trigger() -> None:
    found = parsed(LINTED)
    assert {
        str(key).removeprefix("default/default/"): set(codes) for key, codes in found.silenced.items()
    } == {
        "plain/default": {"day_or"},
        "short/default": {"day_or", "sub_minute"},
        "long/a": {"day_or", "rare"},
        "long/b": {"day_or", "rare", "sub_minute"},
    }


def test_to_silence_lint_is_no_edit() -> None:
    silenced = parsed("deployments: {a: {run: x, every: 20s, lint: {ignore: [sub_minute]}}}")
    plain = parsed("deployments: {a: {run: x, every: 20s}}")
    assert silenced.listing == plain.listing
    assert plain.silenced == {}


# --- what is said when it is wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pointer", "code", "hint"),
    [
        ("deploymnts: {}", "/deploymnts", "unknown-key", "did you mean deployments?"),
        ("a/b~c: {}", "/a~1b~0c", "unknown-key", ""),
        ("'': {}", "/", "unknown-key", ""),
        (one('corn: "0 2 * * *"'), "/deployments/job/corn", "unknown-key", "did you mean cron?"),
        (one('schedule: "0 2 * * *"'), "/deployments/job/schedule", "unknown-key", "did you mean cron?"),
        (one("every: 1m, enabled: true"), "/deployments/job/enabled", "unknown-key", "active"),
        (one("every: 1m, path: /x"), "/deployments/job/path", "unknown-key", "this one is local"),
        (one("cron: '* * * * *', 30 * * * *"),
         "/deployments/job/30 * * * *", "unknown-key", "quote the whole cron"),
        (one("every: 1m, flow: x"), "/deployments/job/flow", "not-yet", "take it out"),
        (one("every: 1m, overlap: skipp"), "/deployments/job/overlap", "invalid", "skip"),
        ("targets: {f: {celery: {broker: x, backend: env:R}}}\ndeployments: {}",
         "/targets/f/celery/broker", "url", "amqp://"),
        ("targets: {f: {docket: {url: 'redis://:pw@h'}}}\ndeployments: {}",
         "/targets/f/docket/url", "secret", "env:REDIS_URL"),
        ("targets: {f: {prefect: {url: x}}}\ndeployments: {}", "/targets/f/prefect/url", "url", "https://"),
        ("targets: {f: {flyte: {endpoint: x}}}\ndeployments: {}", "/targets/f/flyte/endpoint", "url", "https://"),
        ("deployments: {a b: {run: x}}", "/deployments/a b", "name", ""),
        ("deployments: {a: {run: x, triggers: {t t: {every: 1m}}}}",
         "/deployments/a/triggers/t t", "name", ""),
        ("deployments: {1: {run: x}}", "/deployments", "key", 'quote it: "1"'),
        ("deployments: {a: {run: x}, a: {run: y}}", "/deployments/a", "duplicate", "rename or remove one"),
        ("deployments: {a: {run: x, triggers: {t: {}}}}", "/deployments/a/triggers/t", "schedule", "cron:"),
        (one('cron: "@daily", every: 1m'), "/deployments/job", "conflict", "one trigger for each"),
        (one("jitter: 1m"), "/deployments/job/jitter", "conflict", "add cron"),
        (one("every: 1m, triggers: {}"), "/deployments/job/every", "conflict", "move every into a trigger"),
        (one("every: 1m, active: no"), "/deployments/job/active", "invalid", "false; in YAML 1.2 no is text"),
        (one("every: 1m, catch_up: no"), "/deployments/job/catch_up", "invalid", "none"),
        (one("every: 1m, catch_up: lates"), "/deployments/job/catch_up", "invalid", "latest"),
        (one("every: 1m, max_age: 0s"), "/deployments/job/max_age", "duration", "1s"),
        (one("every: 1m, late_after: soon"), "/deployments/job/late_after", "duration", ""),
        (one("every: "), "/deployments/job/every", "empty", "write one"),
        (one("every: 1m, runbook: 'javascript:x'"), "/deployments/job/runbook", "invalid", "https"),
        (one("every: 1m, owner: 5"), "/deployments/job/owner", "invalid", "quote it"),
        (one("every: 1m, parameters: [1]"), "/deployments/job/parameters", "mapping", ""),
        (one("every: 1m, renamed_from: a/b/c"), "/deployments/job/renamed_from", "invalid", ""),
        (one("every: 1m, renamed_from: job"), "/deployments/job/renamed_from", "invalid", "take it out"),
        (one('cron: "61 * * * *"'), "/deployments/job/cron", None, ""),
        (one('cron: "0 9 * * *", timezone: Europe/Berln'),
         "/deployments/job/timezone", None, "Europe/Berlin"),
        (one("every: 1m, exclude: [de]"), "/deployments/job/exclude/0", "calendar", "calendars:"),
        ("defaults: {timezone: Europe/Berln}\n" + one('cron: "@daily"'),
         "/defaults/timezone", None, "Europe/Berlin"),
        ("defaults: {dst: vixi}\n" + one('cron: "@daily"'), "/defaults/dst", None, "vixie"),
        ("defaults: {run: x}\ndeployments: {}", "/defaults/run", "unknown-key", "a deployment"),
        ("targets: {x: {}}\ndeployments: {}", "/targets/x", "invalid", "{local: {}}"),
        ("targets: {x: {local: {}, http: {}}}\ndeployments: {}", "/targets/x", "invalid", ""),
        ("targets: {local: {http: {url: 'https://a/'}}}\ndeployments: {}", "/targets/local", "name", ""),
        ("targets: {x: {local: {}, rate: {per_second: 0}}}\ndeployments: {}",
         "/targets/x/rate/per_second", "invalid", "50"),
        ("targets: {x: {local: {}, max_in_flight: 0}}\ndeployments: {}",
         "/targets/x/max_in_flight", "invalid", "32"),
        ("targets: {x: {http: {}}}\ndeployments: {}", "/targets/x/http/url", None, ""),
        ("deployments: [a]", "/deployments", "mapping", ""),
        ("deployments: {a: }", "/deployments/a", "mapping", "{run: date}"),
        ("defaults: {on_excluded: move}\ndeployments: {}", "/defaults/on_excluded", "invalid", "skip"),
        ("defaults: {exclude: [de]}\ndeployments: {}", "/defaults/exclude/0", "calendar", "calendars:"),
        ("calendars: {de: {dates: 12-24}}\n" + one("every: 1m, only: dee"),
         "/deployments/job/only", "calendar", "de"),
        ("calendars: {a: {holidays: XX}}\n" + one("every: 1m, only: a"), "/calendars/a/holidays", None, ""),
        ("source: ''\ndeployments: {}", "/source", "invalid", ""),
        ("- a\n- b", "", "invalid", ""),
        ("", "", "invalid", "deployments: {}"),
        ("# nothing", "", "invalid", "deployments: {}"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_field_and_a_fix(
    text: str, pointer: str, code: str | None, hint: str
) -> None:
    found = problem(text)
    assert found.pointer == pointer
    assert code is None or found.code == code
    assert hint in found.hint
    assert found.rule


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("deployments:\n  a:\n    run: x\n    cron: */5 * * * *\n", 4, 11, 'quote it: cron: "*/5 * * * *"'),
        ("deployments:\n  a:\n    run: x\n    cron: * * * * *\n", 4, 11, 'quote it: cron: "* * * * *"'),
        ("deployments:\n  a: {run: x, cron: @daily}\n", 2, 21, 'quote it: cron: "@daily"'),
        ("deployments:\n  a: {run: x, cron: */5 0,12 * * *, jitter: 5m}\n", 2, 21, 'cron: "*/5 0,12 * * *"'),
        ("deployments:\n  a:\n    run: %x\n", 3, 10, 'quote it: run: "%x"'),
        ("deployments:\n\ta: {run: x}\n", 2, 1, "use spaces"),
        ("deployments:\n  a:\n    run: echo a: b\n", 3, 16, "quote the whole value"),
        ("deployments:\n  a: {run: x\n", 3, 1, "close the bracket"),
        ("deployments:\n  a: {run: 'x}\n", 3, 1, "close the quote"),
        ("deployments:\n  a: &x {run: x}\n  b: *x\n", 3, 6, "alias"),
        ("deployments:\n  a: &x {run: x}\n", 2, 6, "anchors are not used"),
        ("deployments:\n  a: !!map {run: x}\n", 2, 6, "tags are not used"),
        ("deployments:\n  a:\n    <<: {run: x}\n    run: y\n", 3, 5, "merge keys are not used"),
        ("deployments:\n  a: {run: x}\n---\ndeployments: {}\n", 3, 1, "one document"),
        ("%YAML 1.1\n---\ndeployments: {}\n", 2, 1, "YAML 1.2"),
        ("deployments:\n  a:\n    run: x\n   b: 1\n", 4, 4, "line the key up"),
        ("deployments:\n  a: {run: x}\n  ? [b]\n  : {run: y}\n", 3, 5, "a key is text"),
        ('deployments:\n  a: {run: "\\UFFFFFFFF"}\n', 2, None, "not YAML"),
        ('deployments:\n  a: {run: "a\\0b"}\n', 2, 12, "NUL"),
        ('deployments:\n  a: {run: "\\ud800"}\n', 2, 12, "surrogate"),
        ("deployments:\n  a: {run: \x07}\n", 2, 12, "printable"),
        ("deployments:\n  a: {run: x, parameters: {n: .nan}}\n", 2, 31, "finite"),
        ("deployments:\n  a: {run: x, parameters: {n: 1e999}}\n", 2, 31, "finite"),
        ("deployments:\n  a: {run: x, parameters: {n: 9223372036854775808}}\n", 2, 31, "2^63"),
    ],
)
def test_what_yaml_makes_hard_is_explained(text: str, line: int, column: int | None, said: str) -> None:
    found = problems(text)[0] if "&x" not in text else problems(text)[-1]
    assert (found.line, found.column) == (line, column)
    assert said in str(found)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('{"deployments": {"a": {"run": "x",}}}', 1, "not JSON"),
        ('{"deployments":\n {"a": {"run": "x", "run": "y"}}}', 2, "a key is there once"),
        ('{"deployments":\n {"a": {"run": "x", "parameters": {"n": NaN}}}}', 2, "finite"),
        ('{"deployments":\n {"a": {"run": "x", "parameters": {"n": 1e999}}}}', 2, "finite"),
        ('{"deployments":\n {"a": {"run": "x", "parameters":\n {"n": 9223372036854775808}}}}', 3, "2^63"),
        ('{"deployments":\n {"a": {"run": "\\u0000"}}}', 2, "NUL"),
        ('{"deployments":\n {"a": {"run": "\\ud800"}}}', 2, "surrogate"),
        ('{"deployments":\n {"a": {"run": "x", "evry": "1m"}}}', 2, "did you mean every?"),
        ('{"deployments":\n {"a": {"run": ["x", "y"],\n "every": "soon"}}}', 3, "duration"),
        ("deployments: {}", 1, "name the file .yaml"),
    ],
)
def test_json_has_its_lines_too(text: str, line: int, said: str) -> None:
    found = problems(text, "triggers.json")
    assert found[0].line == line
    assert any(said in str(item) for item in found)


def test_all_problems_are_named_at_once_in_the_order_of_the_file() -> None:
    text = """
defaults: {timezone: Nowhere/Land}
deployments:
  a: {run: x, corn: "@daily"}
  b: {run: x, cron: "99 * * * *"}
  c: {run: x, every: 1m, jitter: -1s}
"""
    assert [(item.line, item.pointer) for item in problems(text)] == [
        (2, "/defaults/timezone"),
        (4, "/deployments/a/corn"),
        (5, "/deployments/b/cron"),
        (6, "/deployments/c/jitter"),
    ]


def test_every_unquoted_star_is_named_though_the_first_ends_the_reading() -> None:
    text = "deployments:\n" + "".join(f"  j{n}:\n    run: x\n    cron: */{n} * * * *\n" for n in (5, 7, 9))
    assert [item.line for item in problems(text)] == [4, 7, 10]


def test_two_triggers_cannot_take_over_from_one_nor_from_one_that_is_there() -> None:
    text = """
deployments:
  a:
    run: x
    triggers:
      one: {every: 1m, renamed_from: old}
      two: {every: 2m, renamed_from: old}
      three: {every: 3m, renamed_from: one}
"""
    assert [item.line for item in problems(text)] == [7, 8]


def test_a_huge_number_of_mistakes_is_bounded() -> None:
    text = "deployments:\n" + "".join(f"  j{n}: {{rn: x}}\n" for n in range(2 * MAX_PROBLEMS))
    found = problems(text)
    assert len(found) == MAX_PROBLEMS + 1
    assert any(item.code == "more" for item in found)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "a: " + "- " * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "a: &a [x]\nb: &b [*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c]",
        "a: " + "9" * 100_000,
        '{"a": ' + "9" * 100_000 + "}",
        "x" * (MAX_BYTES + 1),
        "a: *" + " " * 300_000,
        "a: *" + ", " * 100_000,
        "a: 1\n" * 50_000,
        '{"a": 1' + ', "a": 1' * 50_000 + "}",
    ],
    ids=[
        *("lists", "maps", "dashes", "json", "just too deep", "laughs", "digits", "json digits", "size"),
        *("spaces", "commas", "keys", "json keys"),
    ],
)
def test_hostile_texts_are_refused(text: str) -> None:
    assert problems_of_document(text)


def problems_of_document(text: str) -> list[Problem]:
    try:
        return list(read_document(text).problems)
    except InvalidInput as error:
        return list(error.problems)


def test_a_value_that_may_be_secret_is_not_shown() -> None:
    assert "hunter2" not in str(problem("targets:\n  a:\n    http: {url: x}\n    secret: hunter2: b\n"))


# --- files and folders --------------------------------------------------------------------------------


def test_a_folder_is_one_source_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(one("every: 1m"))
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "b.json").write_text('{"source": "b", "deployments": {"other": {"run": "x"}}}')
    (tmp_path / "team" / "notes.txt").write_text("no")
    (tmp_path / ".hidden.yaml").write_text("no: 1")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.yaml").write_text("no: 1")

    assert [listing.source for listing in read_path(tmp_path, CHECKS)] == [str(tmp_path / "a.yaml"), "b"]


def test_the_default_source_is_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(one("every: 1m"))
    monkeypatch.chdir(tmp_path)
    assert [listing.source for listing in read_path("./a.yaml", CHECKS)] == [str(tmp_path / "a.yaml")]


def test_a_target_may_be_defined_in_another_file_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("deployments: {job: {target: crm, path: /x, every: 1m}}")
    (tmp_path / "b.yaml").write_text("targets: {crm: {http: {url: 'https://crm.internal/'}}}")
    first, _ = read_parsed(tmp_path, CHECKS)
    assert first.elsewhere == ()

    (tmp_path / "a.yaml").write_text("deployments: {job: {target: crm, run: x, every: 1m}}")
    with pytest.raises(InvalidInput, match=r"this one is http.*a\.yaml|a\.yaml.*this one is http"):
        read_parsed(tmp_path, CHECKS)


@pytest.mark.parametrize(
    ("b", "what"),
    [
        ("source: s\ndeployments: {}", "source"),
        ("source: b\ndeployments: {job: {run: x}}", "deployment"),
        ("source: b\ntargets: {crm: {local: {}}}", "target"),
    ],
)
def test_two_files_of_a_folder_share_nothing(tmp_path: Path, b: str, what: str) -> None:
    (tmp_path / "a.yaml").write_text("source: s\ntargets: {crm: {local: {}}}\n" + one("every: 1m"))
    (tmp_path / "b.yaml").write_text(b)
    with pytest.raises(InvalidInput) as caught:
        read_path(tmp_path, CHECKS)
    (found,) = caught.value.problems
    assert f"one file defines a {what}" in found.rule
    assert (found.code, found.line is not None) == ("duplicate", True)


def test_problems_of_a_folder_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: 1\n")
    (tmp_path / "b.yaml").write_text("deployments: {}\ny: 1\n")
    with pytest.raises(InvalidInput) as caught:
        read_path(tmp_path, CHECKS)
    assert [(item.pointer, item.line) for item in caught.value.problems] == [("/x", 1), ("/y", 2)]
    assert str(tmp_path / "b.yaml") in caught.value.problems[1].rule


def test_what_cannot_be_read_is_unavailable_not_empty(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(SourceUnavailable):
            read_path(path, CHECKS)
    (tmp_path / "latin.yaml").write_bytes(b"deployments:\n  a: {run: caf\xe9}\n")
    with pytest.raises(InvalidInput, match=r"line 2: .*0xe9"):
        read_path(tmp_path / "latin.yaml", CHECKS)
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfdeployments: {}\n")
    assert len(read_path(tmp_path / "bom.yaml", CHECKS)) == 1


async def test_a_source_checks_actions_by_the_kinds_of_targets_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("deployments: {job: {target: crm, method: post, every: 1m}}")
    targets: dict[str, TargetSpec] = {}
    source = FileSource(path, CHECKS, targets=lambda: targets)
    assert (await source.read()).deployments[0].action == {"method": "post"}
    targets["crm"] = TargetSpec("crm", "http")
    assert (await source.read()).deployments[0].action == {"method": "POST"}
    targets["crm"] = TargetSpec("crm", "local")
    with pytest.raises(InvalidInput, match="this one is local"):
        await source.read()
    targets["crm"] = TargetSpec("crm", "http")
    assert (await source.read()).deployments[0].action == {"method": "POST"}


async def test_a_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("source: git/a\n" + one("every: 1m"))
    source: Source = FileSource(path, CHECKS)
    assert source.name == str(path)

    before = await source.version()
    listing = await source.read()
    assert (source.name, listing.source) == ("git/a", "git/a")
    assert (await source.read()).digest() == listing.digest()

    path.write_text("source: git/a\n" + one("every: 2m"))
    assert await source.version() != before
    assert (await source.read()).digest() != listing.digest()

    path.write_text("source: git/a\n" + one("evry: 2m"))
    with pytest.raises(InvalidInput) as first:
        await source.read()
    with pytest.raises(InvalidInput) as again:
        await source.read()
    assert again.value.problems is first.value.problems, "a wrong file is not parsed again"
    assert source.name == "git/a"
    os.unlink(path)
    with pytest.raises(SourceUnavailable):
        await source.read()
    with pytest.raises(SourceUnavailable):
        await source.version()


@pytest.mark.parametrize("word", ["allow", "skip", "queue", "replace"])
def test_overlap_is_the_nearest_word(word: str) -> None:
    found = trigger(f"defaults: {{overlap: {word}}}\n" + one("every: 1m"))
    assert found.spec.overlap is Overlap(word)
    found = trigger("defaults: {overlap: skip}\n" + one(f"every: 1m, overlap: {word}"))
    assert found.spec.overlap is Overlap(word)


def test_overlap_needs_a_target_that_reports_the_end_of_a_run() -> None:
    http = "targets: {hook: {http: {url: 'https://a.example/'}}}\n"
    found = problem(http + "deployments:\n  job: {target: hook, every: 1m, overlap: queue}\n")
    assert (found.pointer, found.code) == ("/deployments/job/overlap", "overlap")
    assert "does not report when a run has ended" in str(found)


def test_replace_needs_a_target_that_can_cancel() -> None:
    inline = "targets: {here: {inline: {}}}\n"
    job = "{target: here, call: work, every: 1m, overlap: replace}"
    found = problem(f"{inline}deployments:\n  job: {job}\n")
    assert "can't cancel a run" in str(found)


def test_a_word_that_came_later_changes_no_rule_that_does_not_use_it() -> None:
    """Else a new release would make a new revision of every trigger."""
    spec = trigger(one("every: 1m")).spec
    assert not {"overlap", "completion_timeout"} & set(spec.to_json())
    assert TriggerSpec.from_json(spec.to_json()) == spec
    longer = trigger(one("every: 1m, overlap: skip, completion_timeout: 3d")).spec
    assert TriggerSpec.from_json(longer.to_json()) == longer
    assert longer.completion_timeout == timedelta(days=3)
