"""Kinds of targets: built in, from another package, mistyped, broken; and references to secrets."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets import registry
from horarium.targets.base import Target
from horarium.targets.secrets import Redactor, SecretMissing, check_reference, resolve
from tests.targets.rows import Rows

PLUGIN = """
from horarium.targets.registry import TargetKind
from horarium.testing import FakeTarget

KIND = TargetKind(
    "smtp",
    build=lambda spec, context: FakeTarget(max_in_flight=spec.config["places"], on_free=context.on_free),
    check_config=lambda config, pointer: {"places": 3, **config},
    check_action=lambda action, parameters, pointer: {"to": "ops@example.com", **action},
    config_keys=("places",),
    action_keys=("to",),
)
NOT_A_KIND = "smtp"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with the given line in its entry points."""

    def clear() -> None:
        registry._installed.cache_clear()
        registry._load.cache_clear()

    def install(line: str) -> None:
        (tmp_path / "horarium_smtp_plugin.py").write_text(PLUGIN)
        info = tmp_path / "horarium_smtp-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horarium-smtp\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{line}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        clear()

    yield install
    monkeypatch.undo()
    clear()


def context(rows: Rows) -> registry.TargetContext:
    return registry.TargetContext(SystemClock(), rows, "me", lambda: None)


@pytest.mark.parametrize(
    ("kind", "config"), [("local", {}), ("http", {"url": "http://127.0.0.1/"}), ("inline", {})]
)
async def test_every_built_in_kind_is_a_target(rows: Rows, kind: str, config: dict[str, object]) -> None:
    checked = registry.check_config(kind, config, "/targets/x")
    target: Target = registry.build(TargetSpec("x", kind, checked, max_in_flight=5), context(rows))
    await target.start()
    assert target.free() == target.max_in_flight == 5
    assert target.timeout.total_seconds() > 0
    await target.close()
    assert target.free() == 0
    found = registry.kind(kind)
    assert set(config) <= set(found.config_keys)


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(InvalidInput) as caught:
        registry.check_config("htpp", {}, "/targets/crm")
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.hint) == ("/targets/crm", "http")
    assert "http, inline, kubernetes, local" in problem.rule


async def test_another_package_brings_a_kind(rows: Rows, plugin: Callable[[str], None]) -> None:
    plugin("smtp = horarium_smtp_plugin:KIND")
    assert "smtp" in registry.kinds()
    checked = registry.check_config("smtp", {}, "/targets/mail")
    target = registry.build(TargetSpec("mail", "smtp", checked), context(rows))
    assert target.max_in_flight == 3
    assert registry.check_action("smtp", {}, {}, "/d") == {"to": "ops@example.com"}


@pytest.mark.parametrize(
    "line",
    [
        "smtp = horarium_smtp_plugin:GONE",
        "smtp = no_such_module:KIND",
        "smtp = horarium_smtp_plugin:NOT_A_KIND",
    ],
)
def test_a_broken_package_is_named(plugin: Callable[[str], None], line: str) -> None:
    plugin(line)
    with pytest.raises(registry.BrokenPlugin, match="smtp"):
        registry.kind("smtp")


def test_a_package_cannot_replace_what_is_built_in(plugin: Callable[[str], None]) -> None:
    built_in = registry.kind("http")
    plugin("http = horarium_smtp_plugin:KIND")
    assert registry.kind("http") is built_in


def test_a_reference_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\r\n")
    assert resolve("env:KEY", {"KEY": "from the environment"}) == "from the environment"
    assert resolve(f"file:{tmp_path}/key") == "from a file"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"x" * 70_000, "larger"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecretMissing, match=words):
        resolve(f"file:{tmp_path}/key")


def test_a_variable_that_is_not_set_says_so() -> None:
    for env in ({}, {"KEY": ""}):
        with pytest.raises(SecretMissing, match="env:KEY: the variable is not set"):
            resolve("env:KEY", env)


@pytest.mark.parametrize(
    "value", ["hunter2", "ENV:KEY", "env:", "env:9", "env:A B", "file:", "", None, 7, ["env:A"]]
)
def test_what_is_no_reference_is_refused_and_not_shown(value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_reference(value, "/targets/crm/secret", "the secret", "CRM_KEY")
    (problem,) = caught.value.problems
    assert problem.got == "(hidden)"
    assert "env:CRM_KEY" in problem.hint


def test_a_redactor_finds_a_secret_within_another() -> None:
    redactor = Redactor(["hunter2", "hunter2-extended", "abc"])
    assert redactor.clean("hunter2-extended hunter2 abc") == "(hidden) (hidden) abc"
    assert Redactor().clean("text") == "text"
    assert redactor.clean("two\nlines\t\0") == "two lines  "


@pytest.mark.parametrize("size", range(1, 40))
def test_a_redactor_leaves_no_beginning_of_a_secret_at_a_cut(size: int) -> None:
    secret = "grün-ünter-hunter2-" * 3
    redactor = Redactor([secret, "another one"])
    text = (f"{secret}, {secret}" * 5).encode()[:-size].decode("utf-8", "replace")
    cleaned = redactor.clean(text, cut=True)
    assert cleaned.replace("(hidden)", "").strip(", ") == ""


@pytest.mark.parametrize("quoting", [json.dumps, html.escape, lambda text: quote(text, safe="")])
def test_a_redactor_knows_how_texts_quote(quoting: Callable[[str], str]) -> None:
    secret = 'a "quoted" <ünter> & more'
    assert "ünter" not in Redactor([secret]).clean(quoting(secret))
    assert "more" not in Redactor([secret]).clean(quoting(secret))
