"""A crontab becomes a triggers file that behaves as cron does, and what can't is named.

The rules come from crontab(5) of Vixie cron as Debian and cronie have it, and from what cron's
`do_command.c` says of `%`. The expected values are written out by hand from them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horarium.core.spec import CatchUp, TriggerSpec
from horarium.errors import InvalidInput
from horarium.sources.crontab import host_timezone, import_crontab
from horarium.sources.document import read_document
from horarium.sources.files import parse_triggers
from horarium.sources.imported import Imported, quoted
from horarium.targets import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "crontab"


def imported(text: str, **options: Any) -> Imported:
    return import_crontab(text, "/var/spool/cron/joe", **{"timezone": "Europe/Berlin", **options})


def specs(result: Imported) -> dict[str, TriggerSpec]:
    """What the written file means, by deployment."""
    listing = parse_triggers(result.text, "imported.yaml", registry).listing
    assert all(entry.key.name == "default" for entry in listing.triggers)
    return {entry.key.deployment: entry.spec for entry in listing.triggers}


def only(text: str, **options: Any) -> TriggerSpec:
    result = imported(text, **options)
    assert result.dropped == ()
    (spec,) = specs(result).values()
    return spec


def test_an_entry_behaves_as_under_cron() -> None:
    spec = only("30 2 * * 1-5 /usr/local/bin/backup.sh /srv > /dev/null 2>&1", home="/home/joe")

    assert spec.schedule == {"cron": "30 2 * * 1-5", "timezone": "Europe/Berlin", "dst": "vixie"}
    assert spec.catch_up is CatchUp.NONE
    assert spec.action == {
        "run": "/usr/local/bin/backup.sh /srv > /dev/null 2>&1",
        "shell": True,
        "cwd": "/home/joe",
        "env": {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "HOME": "/home/joe"},
    }


def test_the_source_is_the_crontab() -> None:
    path = "/var/spool/cron/joe"
    assert parse_triggers(imported("").text, "x", registry).listing.source == path
    empty = import_crontab("# nothing\n", "-", timezone="UTC")
    assert parse_triggers(empty.text, "x", registry).listing.source == "crontab"


def test_variables_hold_for_the_lines_below_them() -> None:
    text = """
* * * * * first
PATH = /opt/bin:/bin
NAME="a quoted # value"
'odd name'='single quoted'
EMPTY=
* * * * * second
  PATH=/usr/bin
\t* * * * * third
"""
    found = specs(imported(text))
    base = {"SHELL": "/bin/sh"}
    more = {"NAME": "a quoted # value", "odd name": "single quoted", "EMPTY": ""}
    assert found["first"].action["env"] == {**base, "PATH": "/usr/bin:/bin"}
    assert found["second"].action["env"] == {**base, **more, "PATH": "/opt/bin:/bin"}
    assert found["third"].action["env"] == {**base, **more, "PATH": "/usr/bin"}


def test_a_comment_after_a_command_belongs_to_the_command() -> None:
    assert only("* * * * * echo a # b").action["run"] == "echo a # b"


def test_home_is_where_jobs_start() -> None:
    assert only("HOME=/srv/app\n* * * * * x", home="/home/joe").action["cwd"] == "/srv/app"
    assert "cwd" not in only("* * * * * x").action


def test_another_shell_is_called_as_cron_calls_it() -> None:
    spec = only("SHELL=/bin/bash\n* * * * * [[ -e /x ]] && echo 'y'")
    assert spec.action["run"] == ["/bin/bash", "-c", "[[ -e /x ]] && echo 'y'"]
    assert "shell" not in spec.action


def test_cron_tz_is_the_schedules_zone_and_tz_the_commands() -> None:
    text = "* * * * * a\nTZ=Asia/Tokyo\n* * * * * b\nCRON_TZ=America/New_York\n0 9 * * * c"
    result = imported(text)
    found = specs(result)
    assert [found[name].schedule["timezone"] for name in "abc"] == [
        "Europe/Berlin",
        "Europe/Berlin",
        "America/New_York",
    ]
    assert found["b"].action["env"]["TZ"] == "Asia/Tokyo"
    assert "CRON_TZ" not in found["c"].action["env"]
    assert [note.line for note in result.notes] == [2]


def test_an_empty_cron_tz_is_the_hosts_zone_again() -> None:
    found = specs(imported("CRON_TZ=Asia/Tokyo\n0 1 * * * a\nCRON_TZ=\n0 2 * * * b"))

    assert found["a"].schedule["timezone"] == "Asia/Tokyo"
    assert found["b"].schedule["timezone"] == "Europe/Berlin"


@pytest.mark.parametrize(
    ("written", "cron"),
    [
        ("@yearly", "@yearly"),
        ("@annually", "@yearly"),
        ("@monthly", "@monthly"),
        ("@weekly", "@weekly"),
        ("@daily", "@daily"),
        ("@midnight", "@daily"),
        ("@hourly", "@hourly"),
        ("@Daily", "@daily"),
        ("@every_minute", "* * * * *"),
        ("*/7 0-23/2 1,15 jan-mar,12 7", "*/7 0-23/2 1,15 jan-mar,12 7"),
        ("0 0 13 * FRI", "0 0 13 * FRI"),
        ("5\t4  *  *\tsun", "5 4 * * sun"),
        ("-5 4 * * *", "5 4 * * *"),
        ("-*/5 4 * * *", "*/5 4 * * *"),
        ("~ 4 * * *", "H 4 * * *"),
        ("0~30 4,~ * * *", "H(0-30) 4,H * * *"),
        ("10~ ~3 * * *", "H(10-59) H(0-3) * * *"),
    ],
)
def test_when(written: str, cron: str) -> None:
    assert only(f"{written} x").schedule["cron"] == cron


@pytest.mark.parametrize(
    ("command", "run", "stdin"),
    [
        ("cat%a%b", "cat", "a\nb\n"),
        ("cat%a%", "cat", "a\n"),
        ("cat%%a", "cat", "\na\n"),
        ("cat%", "cat", None),
        (r"date +\%Y-\%m", "date +%Y-%m", None),
        (r"cat \%%a\%b", "cat %", "a%b\n"),
        (r"printf 'a\tb'", r"printf 'a\tb'", None),
        (r"printf a\\%b", r"printf a\\", "b\n"),
        (r"cat%a\nb", "cat", "a\\nb\n"),
        ("cat%a\\", "cat", "a\\\n"),
        (r"cat%a\\%b", "cat", "a\\%b\n"),
    ],
)
def test_percent_signs(command: str, run: str, stdin: str | None) -> None:
    action = only(f"* * * * * {command}").action
    assert (action["run"], action.get("stdin")) == (run, stdin)


def test_the_input_is_what_the_command_reads() -> None:
    action = only(r"* * * * * tr a-z A-Z%hello,%100\% sure").action
    done = subprocess.run(
        ["/bin/sh", "-c", action["run"]], input=action["stdin"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "HELLO,\n100% SURE\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot x", "an event, not a time"),
        ("@fortnightly x", "is none of"),
        ("@daily", "no command"),
        ("* * * * *", "no command"),
        ("* * * * * %input", "no command"),
        ("* * * *", "five fields"),
        ("hello", "five fields"),
        ("61 * * * * x", "minute is 0 to 59"),
        ("* * * * fryday x", ""),
        ("0 0 30 2 * x", "never"),
        ("0~5/2 * * * * x", "mixes ~"),
        ("* * * * * a\0b", "NUL"),
        ("* * * * * caf\udce9", "UTF-8"),
        ("NAME='unclosed", "five fields"),
    ],
)
def test_what_cannot_be_carried_over_is_named(line: str, reason: str) -> None:
    result = imported(f"# first\n* * * * * kept\n{line}\n")
    (dropped,) = result.dropped
    assert (dropped.line, dropped.text) == (3, line.strip())
    assert reason in dropped.reason
    assert list(specs(result)) == ["kept"]
    assert "Not carried over, line 3" in result.text


def test_a_zone_that_is_none_drops_its_entries_only() -> None:
    result = imported("* * * * * a\nCRON_TZ=Nowhere/Land\n* * * * * b\n")
    assert [(item.line, "tz database" in item.reason) for item in result.dropped] == [(3, True)]
    with pytest.raises(InvalidInput):
        imported("", timezone="Nowhere/Land")


def test_a_variable_that_would_mean_something_else_here_drops_its_entries() -> None:
    assert "reference" in imported("A=env:HOME\n* * * * * x").dropped[0].reason
    assert "own" in imported("HORARIUM_X=1\n* * * * * x").dropped[0].reason


def test_a_random_delay_is_a_jitter() -> None:
    assert only("RANDOM_DELAY=15\n* * * * * x").jitter.total_seconds() == 900
    assert only("RANDOM_DELAY=0\n* * * * * x").jitter.total_seconds() == 0
    assert "no number of minutes" in imported("RANDOM_DELAY=x\n* * * * * x").notes[0].text


SYSTEM = """
SHELL=/bin/sh
17 *  * * *  root  cd / && run-parts --report /etc/cron.hourly
25 6\t* * *\twww-data\ttest -x /usr/sbin/anacron || run-parts /etc/cron.daily
@daily joe  /usr/bin/tidy
0 0 * * * lonely
"""


def test_the_system_form_has_a_user() -> None:
    result = imported(SYSTEM, system=True)
    assert [spec.action["run"] for spec in specs(result).values()] == [
        "cd / && run-parts --report /etc/cron.hourly",
        "test -x /usr/sbin/anacron || run-parts /etc/cron.daily",
        "/usr/bin/tidy",
    ]
    assert [note.text for note in result.notes] == [
        f"cron ran it as {user}; Horarium runs it as itself" for user in ("root", "www-data", "joe")
    ]
    assert [(item.line, "user" in item.reason) for item in result.dropped] == [(6, True)]


def test_entries_of_another_user_are_not_run_as_this_one() -> None:
    result = imported(SYSTEM, system=True, user="root")
    assert len(specs(result)) == 1
    assert [item.line for item in result.dropped] == [4, 5, 6]
    assert "it runs as www-data" in result.dropped[0].reason


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh /srv", "backup"),
        ("cd /var/www && php artisan schedule:run >> /dev/null 2>&1", "artisan-schedule-run"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts --report /etc/cron.daily )", "run-parts"),
        ("/usr/bin/env FOO=1 python3.11 -m certbot renew", "certbot-renew"),
        ("flock -n /tmp/x.lock timeout 5m /opt/sync.py", "sync"),
        ("/usr/bin/nice -n 10 /opt/Report_Weekly.py --all", "report-weekly"),
        ("[ -d /x ] && find /x -delete", "find"),
        ("'/opt/quoted' thing", "quoted-thing"),
        ("0", "job"),
    ],
)
def test_names_say_what_runs(command: str, name: str) -> None:
    (found,) = specs(imported(f"* * * * * {command}"))
    assert found == name


def test_a_name_stays_when_other_lines_come_and_go() -> None:
    text = "0 1 * * * backup /home\n0 2 * * * backup /srv\n0 3 * * * other\n"
    names = imported(text).names
    assert list(names.values())[::2] == ["backup", "other"]
    assert names[2].startswith("backup-")
    more = imported(
        "0 0 * * * backup /home\n" + text[text.index("\n") + 1 :] + "0 4 * * * backup /var\n"
    ).names
    assert more[2] == names[2]
    assert len(set(more.values())) == 4


def test_equal_lines_have_names_of_their_own() -> None:
    assert len(specs(imported("* * * * * x\n" * 4))) == 4


def test_comments_above_an_entry_go_along() -> None:
    text = imported("# about nothing\n\n# nightly\n#backup\n0 2 * * * backup\n").text
    assert "  # nightly\n  # backup\n  backup:\n" in text
    assert "about nothing" not in text


def test_the_example_is_imported() -> None:
    result = import_crontab(EXAMPLE.read_text(), "examples/crontab", timezone="Europe/Berlin")
    assert len(specs(result)) == 6
    assert [item.text.split()[0] for item in result.dropped] == ["@reboot"]


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=30
)
FIELD = st.sampled_from(["*", "*/7", "0", "1-5", "2,4", "1-5/2"])
VARIABLE = st.builds(
    lambda name, value: f'{name}="{value}"', st.sampled_from("ABC"), TEXT.map(lambda t: t.replace('"', ""))
)
ENTRY = st.builds(lambda fields, text: f"{' '.join(fields)} {text}", st.tuples(*[FIELD] * 5), TEXT)
LINE = VARIABLE | ENTRY | TEXT | st.builds("#{}".format, TEXT) | st.builds("@daily {}".format, TEXT)


def expected(line: str) -> tuple[str, str | None] | None:
    """Command and input by a small calculator of its own; None for a line that is no entry."""
    text = line.strip(" \t")
    rest = text.split(" ", 5)
    if len(rest) < 6 or not all(set(field) <= set("*/0123456789,-") for field in rest[:5]):
        return None
    command = rest[5].lstrip(" \t")
    at = next((i for i, c in enumerate(command) if c == "%" and backslashes(command, i) % 2 == 0), None)
    if at is None:
        return command, None
    return command[:at], command[at + 1 :]


def backslashes(text: str, at: int) -> int:
    count = 0
    while at > count and text[at - count - 1] == "\\":
        count += 1
    return count


@settings(max_examples=300, deadline=None)
@given(st.lists(LINE, max_size=8))
@example(["* * * * * \u00a0"])
@example(["* * * * * é😀\u200b\ufeff\u00a0#: {"])
@example(['A="\t"', "* * * * * - ? *", "* * * * * - ? *"])
def test_whatever_is_imported_reads_back_as_it_was(lines: list[str]) -> None:
    result = imported("\n".join(lines), home="/home/joe")
    found = specs(result)
    assert set(found) == set(result.names.values())
    for line, name in result.names.items():
        action = found[name].action
        calculated = expected(lines[line - 1])
        if calculated is not None and "\\" not in lines[line - 1]:
            command, rest = calculated
            assert action["run"] == command
            if rest:
                assert action["stdin"].rstrip("\n") == rest.replace("%", "\n").rstrip("\n")
            else:
                assert "stdin" not in action
    lines_said = set(result.names) | {item.line for item in result.dropped}
    for number, text in enumerate(lines, 1):
        if expected(text) is not None:
            assert number in lines_said, "an entry is carried over or named"


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
@example("no")
@example("\ufeff")
@example("a: b # c")
@example("\x7f\x85\u2028\ud7ff\ue000\ufffe\U0010ffff")
def test_a_quoted_text_reads_back(text: str) -> None:
    assert read_document(f"a: {quoted(text)}\nb: [{quoted(text)}]\nc: {{{quoted(text)}: 1}}\n").data == {
        "a": text,
        "b": [text],
        "c": {text: 1},
    }


def test_the_hosts_zone(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    assert host_timezone({}, tmp_path) is None
    (etc / "timezone").write_text("Asia/Tokyo\n")
    assert host_timezone({}, tmp_path) == "Asia/Tokyo"
    os.symlink("/usr/share/zoneinfo/posix/America/New_York", etc / "localtime")
    assert host_timezone({}, tmp_path) == "America/New_York"
    assert host_timezone({"TZ": ":Europe/Berlin"}, tmp_path) == "Europe/Berlin"
    assert host_timezone({"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}, tmp_path) == "America/New_York"


@pytest.mark.parametrize(
    "line",
    ["0 0 L * * a", "H * * * * a", "0 9 * * fri#2 a", "0 9 15W * * a", "0 0 ? * mon a", "0 0 * * monday a"],
)
def test_what_cron_refuses_is_not_carried_over(line: str) -> None:
    """It never ran under cron, so it must not begin to run here."""
    imported = import_crontab(line + "\n", "crontab", timezone="UTC", system=False, home="/root", user=None)
    assert not imported.names
    (dropped,) = imported.dropped
    assert "cron refuses the line" in dropped.reason
