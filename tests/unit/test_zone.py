"""Zones: the tables say what the standard library says, from the same data, at every jump and between."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.zone import DEFAULT_ZONES, FAR, Transition, Zone, load_zone
from horarium.errors import InvalidInput
from tests.unit.zones_of import ZONES_2025B, library_zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = tuple(DEFAULT_ZONES.loader.names())


def library_offset(name: str, utc: int) -> int:
    east = (EPOCH + timedelta(seconds=utc)).astimezone(library_zone(name)).utcoffset()
    assert east is not None
    return int(east.total_seconds())


@pytest.mark.parametrize("letter", sorted({name[0] for name in NAMES}))
def test_every_zone_agrees_with_the_standard_library(letter: str) -> None:
    rng = Random(letter)
    for name in (name for name in NAMES if name[0] == letter):
        zone = load_zone(name)
        jumps = [change.at for change in zone.transitions(MIN_SECONDS, 4_000_000_000)]
        instants = [at + d for at in jumps for d in (-1, 0, 1)]
        instants += [rng.randint(MIN_SECONDS + 172_800, MAX_SECONDS - 172_800) for _ in range(10)]
        for utc in instants:
            assert zone.offset_at(utc) == library_offset(name, utc), (name, utc)
            assert utc in zone.resolve(zone.to_local(utc)), (name, utc)


@pytest.mark.parametrize(
    ("name", "transition"),
    [
        ("Europe/Berlin", Transition(1_774_746_000, 3_600, 7_200)),  # 2026-03-29, by an hour
        (
            "Australia/Lord_Howe",
            Transition(1_775_314_800, 39_600, 37_800),
        ),  # 2026-04-04T15:00Z, by half of one
        ("Antarctica/Troll", Transition(1_774_746_000, 0, 7_200)),  # by two
        ("Pacific/Apia", Transition(1_325_239_200, -36_000, 50_400)),  # a whole day
    ],
)
def test_a_jump(name: str, transition: Transition) -> None:
    zone = load_zone(name)
    assert zone.transitions(transition.at - 1, transition.at) == [transition]
    assert zone.transitions(transition.at, transition.at + 1) == []
    local = transition.at + (transition.before + transition.after) // 2  # in the middle of what jumps
    expected = 0 if transition.jump > 0 else 2
    assert len(zone.resolve(local)) == expected
    if expected:
        assert zone.resolve(local) == (local - transition.before, local - transition.after)


def test_the_footer_rules_to_the_year_9999() -> None:
    zone = Zone("Europe/Berlin", DEFAULT_ZONES.loader.load("Europe/Berlin") or b"")
    summer, winter = 253_386_800_000, 253_370_000_000  # July and January 9999
    assert zone.offset_at(summer) == 7_200
    assert zone.offset_at(winter) == 3_600
    assert zone.table(MAX_SECONDS).until == FAR


def test_far_years_asked_first_or_last_are_the_same() -> None:
    data = DEFAULT_ZONES.loader.load("America/New_York") or b""
    near_first, far_first = Zone("a", data), Zone("b", data)
    far_first.table(MAX_SECONDS)
    for year in range(2000, 9999, 500):
        near_first.table((year - 1970) * 31_556_952)
    assert near_first.table(MAX_SECONDS) == far_first.table(MAX_SECONDS)


def test_a_table_never_shrinks() -> None:
    # Two threads may ask for different years at once; the one that comes second must not undo the first.
    zone = Zone("Europe/Berlin", DEFAULT_ZONES.loader.load("Europe/Berlin") or b"")
    far = zone.table(200_000_000_000)
    zone._extend(2_300)
    assert zone.table(0) == far


def test_a_fixed_zone_never_jumps() -> None:
    for name in ("UTC", "Etc/GMT+5", "Etc/UTC"):
        assert load_zone(name).is_fixed
        assert load_zone(name).transitions(MIN_SECONDS, MAX_SECONDS) == []
    assert load_zone("Etc/GMT+5").offset_at(0) == -5 * 3_600
    assert not load_zone("Europe/Berlin").is_fixed


def test_the_digest_follows_the_clock_not_the_name() -> None:
    assert load_zone("Europe/Kyiv").digest == load_zone("Europe/Kiev").digest
    assert load_zone("Europe/Berlin").digest != load_zone("Europe/Paris").digest
    for name in ("Africa/Casablanca", "America/Havana"):
        assert load_zone(name).digest != ZONES_2025B.get(name).digest
    assert load_zone("Europe/Berlin").digest == ZONES_2025B.get("Europe/Berlin").digest


def test_a_zone_is_read_once() -> None:
    assert load_zone("Europe/Berlin") is load_zone("Europe/Berlin")
    assert ZONES_2025B.version < DEFAULT_ZONES.version


def test_the_hosts_zones_are_not_asked() -> None:
    code = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None)\n"
        "from horarium.core.zone import load_zone\n"
        "load_zone('Asia/Tokyo')\n"
        "print([path for path in opened if 'Tokyo' in path])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tzdata" in ran.stdout
    assert "/usr/share/zoneinfo" not in ran.stdout


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Berlim", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("CST", "America/Chicago or Asia/Shanghai"),
        ("UTC+5", "Etc/GMT-5"),
        ("-03:00", "Etc/GMT+3"),
        ("+05:30", "Asia/Kolkata"),
        ("../../etc/passwd", "Europe/Berlin"),
        ("", "Europe/Berlin"),
        (5, "Europe/Berlin"),
        ("x" * 1_000, "Europe/Berlin"),
    ],
)
def test_an_unknown_zone_says_what_is_close(typed: object, hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        DEFAULT_ZONES.get(typed, "/defaults/timezone")
    (problem,) = refused.value.problems
    assert problem.pointer == "/defaults/timezone"
    assert problem.code == "timezone"
    assert hint in problem.hint


@pytest.mark.parametrize("data", [b"", b"TZif", b"TZif2" + bytes(39), b"\x00" * 200, b"TZif" + b"\xff" * 60])
def test_what_is_no_zone_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="TZif"):
        Zone("broken", data)
