"""The examples of the pages on schedules name what the page says."""

from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from horarium.core.calendars import parse_calendars
from horarium.core.instant import from_seconds
from horarium.core.once import parse_instant
from horarium.core.schedule import parse
from horarium.core.zone import load_zone

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page: (DOCS / page).read_text() for page in ("schedules.md", "schedules-rules.md")}
EXAMPLE = re.compile(r"```yaml rule from=(\S+)\n(.*?)```\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = [example for text in PAGES.values() for example in EXAMPLE.findall(text)]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_has_an_answer_for_each_example(page: str) -> None:
    assert len(EXAMPLE.findall(PAGES[page])) == PAGES[page].count("```yaml rule") >= 12


@pytest.mark.parametrize(("start", "text", "shown"), EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_names_what_the_page_says(start: str, text: str, shown: str) -> None:
    spec = YAML(typ="safe", pure=True).load(text)
    calendars = parse_calendars(spec.pop("calendars", {}))
    schedule = parse(spec, calendars=calendars)
    zone = schedule.zone or load_zone(spec.get("timezone", "UTC"))
    t = parse_instant(start, zone)
    for line in shown.splitlines():
        following = schedule.after(t)
        if line == "no more":
            assert following is None
            return
        assert following is not None
        t = following
        east = timezone(timedelta(seconds=zone.offset_at(t)))
        assert from_seconds(t).astimezone(east).isoformat() == line
