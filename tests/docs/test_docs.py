"""The code blocks of README.md and docs/*.md do what the pages say. How: `runner.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.runner import ROOT, blocks_of, run_page

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_the_readme_shows_commands_that_are_run() -> None:
    assert any(
        block.language == "console" and block.opt_out is None for block in blocks_of(ROOT / "README.md")
    )


LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(outside_blocks(page.read_text())):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors that headings get: lower case, punctuation dropped, spaces to hyphens."""
    headings = re.findall(r"^#+ (.+)$", outside_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def outside_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
