"""The examples of `docs/schedules.md` name what the page says."""

from __future__ import annotations

import re
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from horarium.core.instant import from_seconds
from horarium.core.once import parse_instant
from horarium.core.schedule import parse

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
EXAMPLE = re.compile(r"```yaml rule from=(\S+)\n(.*?)```\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE.read_text())


def test_the_page_has_an_answer_for_each_example() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```yaml rule") >= 12


@pytest.mark.parametrize(("start", "text", "shown"), EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_names_what_the_page_says(start: str, text: str, shown: str) -> None:
    spec = YAML(typ="safe", pure=True).load(text)
    schedule = parse(spec)
    zone = schedule.zone
    assert zone is not None
    t = parse_instant(start, zone)
    for line in shown.splitlines():
        following = schedule.after(t)
        assert following is not None
        t = following
        east = timezone(timedelta(seconds=zone.offset_at(t)))
        assert from_seconds(t).astimezone(east).isoformat() == line
