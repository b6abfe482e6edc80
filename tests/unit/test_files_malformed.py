"""200 triggers files with one mistake each, and any number of texts that are no triggers file at all.

Each mistake is made by a named mutation of a valid file at a place that a seed picks. What comes back is
`InvalidInput` that names the place, with its line, and never another exception.
"""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from horarium.errors import InvalidInput, Problem
from horarium.sources.document import escape, read_document
from horarium.sources.files import parse_triggers
from horarium.targets import registry

EXAMPLES = Path(__file__).parents[2] / "examples"

VALID = """
source: git/etl
project: etl
domain: production
defaults: {timezone: Europe/Berlin, catch_up: all, late_after: 2m, retry_for: 1h, jitter: 1s, env: {A: b}}
calendars:
  de: {holidays: [DE, {country: DE, subdiv: BY}], dates: [2026-12-24]}
  weekend: {weekdays: [sat, sun]}
targets:
  crm:
    http: {url: "https://crm.internal/hooks", timeout: 10s}
    rate: {per_second: 50, burst: 100}
    max_in_flight: 32
  box: {local: {}}
deployments:
  tick: {run: date, every: 20s}
  backup: {run: ./backup.sh /srv, cron: "30 2 * * *", timeout: 1h, shell: false}
  crm-sync:
    target: crm
    path: /sync
    parameters: {table: customers, deep: {list: [1, 2, 3]}}
    owner: sales
    runbook: https://wiki.internal/crm
    triggers:
      day: {cron: "*/5 7-19 * * mon-fri", catch_up: latest, max_age: 30m, dst: vixie, day_or: true}
      night: {cron: "H 20-23,0-6 * * *", active: false, start: 2026-01-01, end: 2099-01-01}
      working: {cron: "H 9 * * *", exclude: [de, weekend], on_excluded: skip}
  report:
    run: [report, --weekly]
    target: box
    triggers:
      hotfix: {at: 2099-12-26T06:00:00+01:00}
      month-end: {every: {months: 1, on_day: 31, at: "18:00"}, renamed_from: end-of-month}
"""
TREE: dict[str, Any] = read_document(VALID).data  # type: ignore[assignment]  # it is a mapping, as seen above

Path_ = tuple[str | int, ...]


class Mistake(NamedTuple):
    """A file, the name it has, and where its mistake is: a JSON pointer, or a line."""

    text: str
    path: str
    pointer: str | None = None
    line: int | None = None


def everything(node: Any = TREE, at: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every value of the valid file with its path, parameters' insides left out: those are free."""
    yield at, node
    if "parameters" in at or at[-1:] == ("env",):
        return
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        yield from everything(inner, (*at, key))


SCALARS = [(at, value) for at, value in everything() if not isinstance(value, dict | list)]
MAPPINGS = [
    at for at, value in everything() if isinstance(value, dict) and at[-1:] not in (("env",), ("parameters",))
]
FREE_KEYS = {
    ("calendars",),
    ("targets",),
    ("deployments",),
    ("deployments", "crm-sync", "triggers"),
    ("deployments", "report", "triggers"),
}


def pointer_of(at: Path_) -> str:
    return "".join(f"/{escape(str(token))}" for token in at)


def changed(at: Path_, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(TREE)
    node: Any = tree
    for token in at[:-1]:
        node = node[token]
    node[at[-1]] = value
    return tree


def written(tree: dict[str, Any], rng: random.Random) -> tuple[str, str]:
    """`tree` as a file: JSON, JSON on one line, or block YAML."""
    match rng.randrange(3):
        case 0:
            return json.dumps(tree, indent=2), "triggers.json"
        case 1:
            return json.dumps(tree), "triggers.json"
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.version = (1, 2)
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue(), "triggers.yaml"


# --- the mutations ------------------------------------------------------------------------------------


def unknown_key(rng: random.Random) -> Mistake:
    at = rng.choice([path for path in MAPPINGS if path not in FREE_KEYS])
    word = rng.choice(["corn", "schedul", "Timezone", "x" * 50, "cron ", "é", "a:b", "0"])
    return Mistake(*written(changed((*at, word), "1"), rng), pointer=pointer_of((*at, word)))


def wrong_type(rng: random.Random) -> Mistake:
    at, _ = rng.choice([(at, value) for at, value in SCALARS if "run" not in at])
    value = rng.choice([{"a": 1}, [[1]], {}, []])
    return Mistake(*written(changed(at, value), rng), pointer=pointer_of(at))


def no_value(rng: random.Random) -> Mistake:
    at, _ = rng.choice(
        [(at, value) for at, value in SCALARS if not {"every", "http", "run", "rate"} & set(at[:-1])]
    )
    return Mistake(*written(changed(at, None), rng), pointer=pointer_of(at))


def a_mapping_that_is_none(rng: random.Random) -> Mistake:
    at = rng.choice([path for path in MAPPINGS if path and path[-1] != "local"])
    value = rng.choice([1, "text", True, ["a"], 0.5])
    if at[-1] == "every":
        value = rng.choice([True, ["a"], "text"])
    if at[-1] == "rate":
        value = rng.choice([1, "none", True])
    return Mistake(*written(changed(at, value), rng), pointer=pointer_of(at))


def bad_name(rng: random.Random) -> Mistake:
    at = rng.choice(sorted(FREE_KEYS))
    name = rng.choice(["a b", "-a", "a/b", "x" * 101, "", "ä", "a\tb", "a."])
    values: dict[Any, Any] = {
        "triggers": {"every": "1m"},
        "targets": {"local": {}},
        "calendars": {"holidays": "DE"},
    }
    value = values.get(at[-1], {"run": "date"})
    return Mistake(*written(changed((*at, name), value), rng), pointer=pointer_of((*at, name)))


def bad_duration(rng: random.Random) -> Mistake:
    words = {"late_after", "retry_for", "jitter", "max_age", "timeout"}
    at, _ = rng.choice([(at, value) for at, value in SCALARS if at[-1] in words])
    value = rng.choice(["-5m", "soon", "5x", "1M", "", "5m5m", -1, "1:30", "P1Y", "9" * 99, True])
    return Mistake(*written(changed(at, value), rng), pointer=pointer_of(at))


def bad_rule(rng: random.Random) -> Mistake:
    day = ("deployments", "crm-sync", "triggers", "day")
    at, values = rng.choice(
        [
            ((*day, "cron"), ["61 * * * *", "* * *", "* * * * * * *", "", "a b c d e", "0 0 31 2 *", 5]),
            ((*day, "timezone"), ["Europe/Berln", "CEST", "", "../etc/passwd", "UTC+25", 5]),
            ((*day, "dst"), ["vixi", "", True, "skip"]),
            ((*day, "day_or"), ["yes", 1, "true"]),
            ((*day, "catch_up"), ["no", "ALL ", "everything", 1, True]),
            ((*day, "overlap"), ["skip", "queue", "replace", "no", 1]),
            ((*day, "active"), ["yes", "no", 1, 0, "true"]),
            ((*day, "exclude"), [["nowhere"], "", 5, [], [[]], {"de": 1}]),
            (("calendars", "de", "holidays"), ["XX", "Germany", 5, {"country": "DE", "subdiv": "XX"}]),
            (("calendars", "de", "dates"), ["2026-02-30", "soon", 5, ["2026-01-02/2026-01-01"]]),
            (("deployments", "tick", "every"), ["0s", "-1s", "soon", 0, {"months": 0}, {"d": 1}, {}]),
            (("deployments", "report", "triggers", "hotfix", "at"), ["tomorrow", "2026-13-01", "06:00", 5]),
            (("deployments", "crm-sync", "triggers", "night", "end"), ["2025-01-01", "later", 5]),
            (("deployments", "report", "triggers", "hotfix", "renamed_from"), ["a/b/c", "", "a b", 5]),
        ]
    )  # fmt: skip
    return Mistake(*written(changed(at, rng.choice(values)), rng), pointer=pointer_of(at))


def two_rules(rng: random.Random) -> Mistake:
    at = rng.choice([("deployments", "backup"), ("deployments", "crm-sync", "triggers", "night")])
    return Mistake(*written(changed((*at, "every"), "1m"), rng), pointer=pointer_of(at))


def not_yet(rng: random.Random) -> Mistake:
    at, value = rng.choice(
        [
            (("deployments", "tick", "task"), "a.b.c"),
            (("deployments", "crm-sync", "flow"), "sales/report"),
            (("deployments", "backup", "kickoff_format"), "%Y"),
        ]
    )
    return Mistake(*written(changed(at, value), rng), pointer=pointer_of(at))


LINES = VALID.splitlines()


def line_of(rng: random.Random, keep: Callable[[str], bool]) -> int:
    return rng.choice([number for number, line in enumerate(LINES) if keep(line)])


def with_line(number: int, *new: str) -> str:
    return "\n".join([*LINES[:number], *new, *LINES[number + 1 :]]) + "\n"


def duplicate_key(rng: random.Random) -> Mistake:
    number = line_of(rng, lambda line: line.endswith("}") or ": " in line)
    return Mistake(with_line(number, LINES[number], LINES[number]), "triggers.yaml", line=number + 2)


def unquoted(rng: random.Random) -> Mistake:
    number = line_of(rng, lambda line: 'cron: "' in line)
    before, _, after = LINES[number].partition('cron: "')
    value = rng.choice(["*/5 * * * *", "@daily", "* * * * *", "%daily", "`date`", "*"])
    line = f"{before}cron: {value}{after[after.index(chr(34)) + 1 :]}"
    return Mistake(with_line(number, line), "triggers.yaml", line=number + 1)


def tab(rng: random.Random) -> Mistake:
    number = line_of(rng, lambda line: line.startswith("  "))
    return Mistake(with_line(number, "\t" + LINES[number].lstrip()), "triggers.yaml", line=number + 1)


def features_of_yaml(rng: random.Random) -> Mistake:
    number = line_of(rng, lambda line: ": {" in line)
    before, _, after = LINES[number].partition(": {")
    what = rng.choice(["&a ", "!!map ", "!x ", "*a #"])
    return Mistake(with_line(number, f"{before}: {what}{{{after}"), "triggers.yaml", line=number + 1)


def unfinished(rng: random.Random) -> Mistake:
    """Cut off inside a line of braces or quotes: an error at the end of the file."""
    number = line_of(rng, lambda line: line.endswith("}"))
    return Mistake("\n".join([*LINES[:number], LINES[number][:-1]]) + "\n", "triggers.yaml", line=number + 2)


def a_bad_character(rng: random.Random) -> Mistake:
    number = line_of(rng, lambda line: len(line) > 10)
    line = LINES[number]
    at = rng.randrange(4, len(line))
    character = rng.choice(["\x00", "\x07", "\x1b", "\ufffe", "\x7f"])
    return Mistake(with_line(number, line[:at] + character + line[at:]), "triggers.yaml", line=number + 1)


MUTATIONS: list[Callable[[random.Random], Mistake]] = [
    unknown_key, wrong_type, no_value, a_mapping_that_is_none, bad_name, bad_duration, bad_rule, two_rules,
    not_yet, duplicate_key, unquoted, tab, features_of_yaml, unfinished, a_bad_character,
]  # fmt: skip


def problems_of(text: str, path: str) -> list[Problem]:
    with pytest.raises(InvalidInput) as caught:
        parse_triggers(text, path, registry)
    return list(caught.value.problems)


def test_the_file_that_the_mistakes_are_made_in_is_valid() -> None:
    assert len(parse_triggers(VALID, "triggers.yaml", registry).listing.triggers) == 7


@pytest.mark.parametrize("seed", range(210))
def test_a_mistake_is_named_where_it_is(seed: int) -> None:
    rng = random.Random(seed)
    mistake = MUTATIONS[seed % len(MUTATIONS)](rng)
    found = problems_of(mistake.text, mistake.path)

    assert all(problem.rule and problem.line is not None and problem.line >= 1 for problem in found)
    if mistake.pointer is not None:
        assert any(problem.pointer.startswith(mistake.pointer) for problem in found), (mistake, found)
    if mistake.line is not None:
        assert any(problem.line == mistake.line for problem in found), (mistake, found)


def valid_or_named(text: str, path: str = "triggers.yaml") -> None:
    """Reads `text`: it is valid, or each of its problems has a line and a rule."""
    problems: tuple[Problem, ...] | None = None
    try:
        parse_triggers(text, path, registry)
    except InvalidInput as error:
        problems = error.problems
    if problems is not None:
        assert problems
        assert all(problem.rule and problem.line is not None for problem in problems)
        assert all(json.dumps(problem.to_json()).encode() for problem in problems)


@pytest.mark.parametrize("seed", range(60))
def test_a_file_with_its_characters_shuffled_is_valid_or_named(seed: int) -> None:
    rng = random.Random(seed)
    text = rng.choice([VALID, *(file.read_text() for file in EXAMPLES.glob("*.yaml")), json.dumps(TREE)])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text))
        match rng.randrange(4):
            case 0:
                text = text[:at] + text[at + rng.randrange(1, 4) :]
            case 1:
                text = text[:at] + rng.choice(list("{}[]:,'\"*&!%@`|>#-? \t\n\\~=0é😀\u2028")) + text[at:]
            case 2:
                other = rng.randrange(len(text))
                text = text[:at] + text[other : other + 20] + text[at:]
            case 3:
                text = text[:at]
        text = text or "x"
    valid_or_named(text)
    valid_or_named(text, "triggers.json")


SCALAR_TEXTS = st.sampled_from(
    [
        *{str(value) for _, value in SCALARS},
        "*",
        "@daily",
        "~",
        "",
        "1e999",
        "0x",
        "null",
        "'",
        '"',
        "|",
        ">",
        "- -",
    ]
)
KEYS = st.sampled_from(
    sorted({str(token) for at, _ in everything() for token in at} | {"rrule", "exclude", "x"})
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | SCALAR_TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(data=st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_data_is_valid_or_named(data: dict[str, Any]) -> None:
    valid_or_named(json.dumps(data), "triggers.json")


@settings(max_examples=200, deadline=None)
@given(at=st.sampled_from([at for at, _ in everything() if at]), value=VALUES)
@example(at=("deployments", "tick", "every"), value=float("nan"))
@example(at=("source",), value="\ud800")
def test_any_value_in_any_place_is_valid_or_named(at: Path_, value: Any) -> None:
    valid_or_named(json.dumps(changed(at, value)), "triggers.json")


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=60)
    | st.lists(SCALAR_TEXTS | KEYS | st.sampled_from([": ", "\n", "\n  ", "{", "}", "[", ", "])).map("".join)
)
@example("? ")
@example("!<")
@example("%")
@example("a: !<x")
@example("- - - ? -")
@example('"\\U00110000"')
@example("--- |\n%")
def test_any_text_is_valid_or_named(text: str) -> None:
    valid_or_named(text)
