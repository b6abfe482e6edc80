"""The JSON Schema of the triggers file says what the parser says, as far as a schema can.

It may let through what only meaning shows (a cron expression, a zone, a name that is used twice), but it
never refuses what the parser takes, and it refuses every mistake of structure.
"""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from horarium.core.lint import CODES
from horarium.errors import InvalidInput
from horarium.sources import files
from horarium.sources.document import read_document
from horarium.sources.starter import STARTER
from horarium.targets import celery, docket, flyte, http, inline, kubernetes, local, prefect, ray, registry
from tests.unit.test_files_malformed import (
    KEYS,
    MUTATIONS,
    TREE,
    VALID,
    VALUES,
    Path_,
    changed,
    everything,
    unknown_key,
    wrong_type,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
SCHEMA: dict[str, Any] = json.loads(resources.files("horarium.sources").joinpath("schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)


def words(*path: str) -> set[str]:
    node = SCHEMA
    for step in path:
        node = node[step]
    return set(node["properties"])


def takes(text: str) -> bool:
    """Whether the parser takes the file."""
    try:
        files.parse_triggers(text, "triggers.yaml", registry)
    except InvalidInput:
        return False
    return True


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


def test_both_know_the_same_words() -> None:
    kinds = {
        "local": local,
        "http": http,
        "inline": inline,
        "flyte": flyte,
        "prefect": prefect,
        "docket": docket,
        "celery": celery,
        "kubernetes": kubernetes,
        "ray": ray,
    }
    actions = {word for kind in kinds.values() for word in kind.ACTION_KEYS}
    assert words() == set(files.TOP_WORDS)
    assert words("$defs", "defaults") == set(files.DEFAULT_WORDS)
    assert words("$defs", "trigger") == set(files.TRIGGER_WORDS)
    assert words("$defs", "deployment") == set(files.DEPLOYMENT_WORDS) | actions
    assert words("$defs", "target") == set(files.TARGET_WORDS) | set(kinds)
    for kind, module in kinds.items():
        described = SCHEMA["$defs"]["target"]["properties"][kind].get("properties", {})
        assert set(described) == set(module.CONFIG_KEYS)


def test_both_know_the_same_codes_of_lint() -> None:
    one, several = SCHEMA["$defs"]["lint"]["properties"]["ignore"]["anyOf"]
    assert tuple(one["enum"]) == tuple(several["items"]["enum"]) == CODES


def test_every_word_is_described() -> None:
    for part in (SCHEMA, *(SCHEMA["$defs"][name] for name in ("defaults", "trigger", "deployment"))):
        assert [word for word, rule in part["properties"].items() if not rule.get("description")] == []


@pytest.mark.parametrize(
    "text", [VALID, STARTER, *(file.read_text() for file in sorted(EXAMPLES.glob("*.yaml")))]
)
def test_valid_files_pass(text: str) -> None:
    assert takes(text)
    assert [error.message for error in VALIDATOR.iter_errors(read_document(text).data)] == []


@pytest.mark.parametrize(
    "text",
    [
        "defaults:\ntargets:\ncalendars:\ndeployments:\n",
        "targets: {a: {local: }, b: {http: {url: env:URL, secret: [env:A, env:B]}, rate: unlimited}}",
        "targets: {a: {flyte: {endpoint: 'https://x', token: env:T}}}\n"
        "deployments: {d: {target: a, every: 1m, task: {name: x}, inputs: {}, run_spec: {queue: q}}}",
        "targets: {p: {prefect: {url: 'http://x/api', api_key: env:K, ahead: 1h, tags: [a], marker: b}}}\n"
        "deployments: {d: {target: p, every: 1m, deployment: a/b, work_queue: q, job_variables: {a: 1}}}",
        "deployments: {a: {run: x, every: 90, jitter: 0.5, max_age: PT5M, late_after: 1h30m}}",
        "deployments: {a: {run: [x, y], every: {weeks: 2, on: mon, at: ['09:00', '17:00']}}}",
        "deployments: {a: {run: x, parameters: , triggers: }}",
        "deployments: {a: {target: elsewhere, body: , path: /x, every: 1m}}",
        "deployments: {a: {run: x, at: '2099-01-01 09:00'}, b: {run: x, every: 1m, start: 2026-01-01}}",
        "deployments: {a: {run: x, env: {N: 1, M: two}, every: 1m, overlap: allow}}",
        "deployments: {a: {run: x, rrule: 'FREQ=DAILY'}, b: {run: x, rrule: ['RRULE:FREQ=DAILY']}}",
        "calendars: {a: {holidays: DE, dates: 12-24}, b: {holidays: [{country: DE, subdiv: BY}, FR]}}",
        "calendars: {a: {ranges: [{from: 2026-01-01, to: 2026-01-05}, 2026-02-01/2026-02-03]}}",
        "lint: {ignore: [rare, never]}\ndeployments: {a: {run: x, every: 1m, lint: {ignore: day_or}}}",
        "calendars: {a: {weekdays: [sat, sun]}}\ndeployments: {j: {run: x, every: 1d, exclude: a}}",
    ],
)
def test_what_the_parser_takes_passes(text: str) -> None:
    assert takes(text), "the example itself is wrong"
    assert VALIDATOR.is_valid(read_document(text).data)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("mutation", [unknown_key, wrong_type], ids=lambda mutation: mutation.__name__)
def test_mistakes_of_structure_are_refused(mutation: Any, seed: int) -> None:
    text = mutation(random.Random(seed)).text
    assert not VALIDATOR.is_valid(read_document(text).data)


@pytest.mark.parametrize(
    "text",
    [
        "deploymnts: {}",
        "deployments: {a b: {run: x}}",
        "deployments: {a: }",
        "deployments: {a: {run: x, cron: '@daily', every: 1m}}",
        "deployments: {a: {run: x, cron: '@daily', triggers: {}}}",
        "deployments: {a: {run: x, active: true, triggers: {}}}",
        "deployments: {a: {run: x, triggers: {t: {}}}}",
        "deployments: {a: {run: x, triggers: {t: {cron: '@daily', at: 2099-01-01}}}}",
        "deployments: {a: {run: x, triggers: {t: {cron: '@daily', target: y}}}}",
        "deployments: {a: {run: x, every: 1m, active: 'no'}}",
        "deployments: {a: {run: x, every: 1m, catch_up: no}}",
        "deployments: {a: {run: x, every: 1m, overlap: skipp}}",
        "deployments: {a: {run: x, every: 1m, runbook: 'javascript:x'}}",
        "deployments: {a: {run: x, every: {months: 1, days: 1}}}",
        "deployments: {a: {run: x, every: {}}}",
        "deployments: {a: {run: x, every: soon}}",
        "deployments: {a: {run: x, at: tomorrow}}",
        "targets: {a: {}}",
        "targets: {a: {local: {}, http: {url: 'https://x/'}}}",
        "targets: {a: {flyte: {}}}",
        "targets: {a: {flyte: {endpoint: 'https://x', token: 3}}}",
        "targets: {a: {flyte: {endpoint: 'https://x'}}}\ndeployments: {d: {target: a, task: x, every: 1m}}",
        "targets: {a: {local: {}, max_in_flight: 0}}",
        "targets: {a: {local: {}, rate: {burst: 5}}}",
        "targets: {a: {http: {}}}",
        "defaults: {run: x}",
        "lint: [rare]",
        "lint: {ignore: [rar]}",
        "deployments: {a: {run: x, every: 1m, lint: {silence: [rare]}}}",
        "calendars: {a: {}}",
        "calendars: {a: }",
        "calendars: {a b: {holidays: DE}}",
        "calendars: {a: {holiday: DE}}",
        "calendars: {a: {holidays: {code: DE}}}",
        "deployments: {a: {run: x, every: 1m, on_excluded: move}}",
    ],
)
def test_both_refuse(text: str) -> None:
    assert not takes(text)
    assert not VALIDATOR.is_valid(read_document(text).data)


@settings(max_examples=300, deadline=None)
@given(at=st.sampled_from([at for at, _ in everything() if at]), value=VALUES)
def test_the_schema_never_refuses_what_the_parser_takes(at: Path_, value: Any) -> None:
    text = json.dumps(changed(at, value))
    if takes(text):
        assert [error.message for error in VALIDATOR.iter_errors(json.loads(text))] == []


@settings(max_examples=200, deadline=None)
@given(
    at=st.sampled_from([at for at, value in everything() if isinstance(value, dict)]), key=KEYS, value=VALUES
)
def test_nor_with_one_more_key(at: Path_, key: str, value: Any) -> None:
    text = json.dumps(changed((*at, key), value))
    if takes(text):
        assert [error.message for error in VALIDATOR.iter_errors(json.loads(text))] == []


def test_the_mutations_are_of_the_tree_that_the_schema_takes() -> None:
    assert VALIDATOR.is_valid(TREE)
    assert len(MUTATIONS) == 15
