"""The runner of documentation itself: a page that is wrong in any way must turn red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import runner
from tests.docs.runner import DocumentationError, blocks_of, comparable, pattern_of, run_page


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's own folder."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text.replace("'''", "```"))
    return page


# Says that it listens, and why it stopped.
JOB = """
'''text file=job.py
import signal
awaited = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("listening on 8090")
print("stopped by", signal.sigwait(awaited).name)
'''
"""


@pytest.mark.parametrize(
    "text",
    [
        "'''console\n$ echo one; echo two\none\ntwo\n'''",
        "'''console\n$ printf 'a   b\\nc\\nd\\n'\na b\n...\nd\n'''",
        "'''console\n$ echo at $(date -u +%FT%TZ) in 12 ms\nat 2025-11-12T13:14:15Z in 7 ms\n'''",
        "'''console\n$ export WORD=kept\n$ mkdir -p in && cd in\n$ echo $WORD $(basename $PWD)\nkept in\n'''",
        "'''console\n$ false\n$ echo $?\n1\n'''",
        "'''console\n$ echo a \\\n>   b\na b\n'''",
        "'''text file=note.txt\nkept\n'''\n\n'''console\n$ cat note.txt\nkept\n'''",
        "'''python\nimport pathlib\npathlib.Path('made').touch()\n'''\n'''console\n$ ls made\nmade\n'''",
        "'''python\n>>> sum([1, 2])\n3\n'''",
        "'''yaml\na: [1, 2]\n'''\n'''json\n{}\n'''\n'''toml\na = 1\n'''",
        "<!-- not run: needs a clean clone -->\n\n'''console\n$ make serve\n'''",
        JOB + "'''console\n$ python job.py\nlistening on 8090\n^C\nstopped by SIGINT\n'''",
        JOB + "'''console\n$ python job.py &\nlistening on 8090\n$ echo meanwhile\nmeanwhile\n$ kill %1\n"
        "stopped by SIGTERM\n'''",
        JOB + "'''console\n$ python job.py &\n...\n$ kill -9 %1\n'''",
    ],
)  # fmt: skip
def test_a_page_that_is_right_passes(tmp_path: Path, folder: Path, text: str) -> None:
    run_page(write(tmp_path, text), folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("'''console\n$ echo one\ntwo\n'''", "page.md:2: .*echo one"),
        ("'''console\n$ echo one; echo more\none\n'''", "it printed"),
        ("'''console\n$ echo one\n'''", "it printed"),
        ("'''console\n$ true\nsomething\n'''", "the page says"),
        ("'''console\n$ echo one; false\none\n'''", "exit code 1"),
        ("'''console\n$ no-such-command\n...\n'''", "exit code 127"),
        ("'''console\n$ echo 2026-01-02T03:04:05Z\n2026-01-02T03:04:06Z\n'''", "it printed"),
        ("'''console\nhorarium status\n'''", "begins with"),
        ("'''console\n$ kill %1\n'''", "no job %1"),
        (
            JOB + "'''console\n$ python job.py &\nlistening elsewhere\n$ kill %1\n'''",
            "after 1 s it still ran",
        ),
        (JOB + "'''console\n$ python job.py\n...\n'''", "after 1 s it still ran"),
        (
            JOB + "'''console\n$ python job.py\nlistening on 8090\n^C\nstopped by SIGTERM\n'''",
            "stopped by SIGINT",
        ),
        ("'''python\nassert 1 == 2\n'''", "page.md:2: python failed"),
        ("'''python\n>>> sum([1, 2])\n4\n'''", "python failed"),
        ("'''yaml\na: [1\n'''", "not yaml"),
        ("'''json\n{\n'''", "not json"),
        ("'''toml\na =\n'''", "not toml"),
        ("'''sh\nhorarium status\n'''", "got a block of 'sh'"),
        ("'''\nhorarium status\n'''", "got a block of 'no language'"),
        ("'''console\n$ true\n", "never closed"),
        ("<!-- not run -->\n'''console\n$ true\n'''", "needs a reason"),
        ("'''yaml triggers\ndeployments: {tick: {run: date, evry: 20s}}\n'''", "horarium validate"),
    ],
)
def test_a_page_that_is_wrong_fails(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    if "still ran" in message:
        monkeypatch.setattr(runner, "PATIENCE", 1.0)
    with pytest.raises(DocumentationError, match=f"(?s){message}"):
        run_page(write(tmp_path, text), folder)


def test_what_differs_each_time_is_compared_by_its_shape() -> None:
    text = "fired rb4c0ffee12345 2026-11-29T21:41:22Z 0.4 ms late, next 21:41:40"
    other = "fired r00aa11bb22cc3 2027-01-01T00:00:20Z 12 ms late, next 00:00:40"
    assert comparable(text, exact=False) == comparable(other, exact=False)
    assert comparable(text, exact=True) != comparable(other, exact=True)


def test_the_words_are_compared_all_the_same() -> None:
    assert comparable("down 60 s: tick owes 3", exact=False) != comparable(
        "down 60 s: tick owes 4", exact=False
    )


def test_dots_stand_for_lines_and_for_text() -> None:
    pattern = pattern_of(("a", "...", "b...d"), exact=False, to_end=True)
    assert pattern.fullmatch("a\nb c d\n")
    assert pattern.fullmatch("a\nx\ny\nbd\n")
    assert not pattern.fullmatch("a\nx\nb c\n")


def test_a_block_knows_its_line_and_its_words(tmp_path: Path) -> None:
    (block,) = blocks_of(write(tmp_path, "# Title\n\n'''yaml triggers file=a.yaml\na: 1\n'''\n"))
    assert (block.line, block.language, block.words, block.file) == (
        4,
        "yaml",
        ("triggers", "file=a.yaml"),
        "a.yaml",
    )
