"""Time zones as tables of whole seconds: where the wall clock of a place changes, and by how much.

Owns the reading of TZif data (RFC 9636) and of the POSIX rule in its footer, out to the year 9999. The
data come from a loader that is passed in, by default from the `tzdata` package, and never from the
host, so that replicas agree. A zone is read once a process.

Two kinds of `int` pass through here: an instant (seconds since the epoch, UTC), and *local seconds*
(the wall clock read as if it were UTC). `local = instant + offset`.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from typing import NamedTuple, Protocol

from horarium.core.instant import MAX_SECONDS
from horarium.errors import InvalidInput, Problem, shown

DAY = 86_400
FAR = 1 << 60
"""An instant beyond every calendar; its negative opens the first stretch of every table."""

WIDEST_OFFSET = 57_600
"""16 hours: no place's clock was ever further from UTC (Manila before 1845: 15:56:08 behind, Sitka before
1867: 14:58:47 ahead), so that local seconds and instants differ by less than this."""

_READY_UNTIL_YEAR = 2100  # what a table holds from the start; later years are added when asked for


AMBIGUOUS_ABBREVIATIONS = {
    "AST": "America/Halifax or Asia/Riyadh",
    "BST": "Europe/London or Asia/Dhaka",
    "CST": "America/Chicago or Asia/Shanghai",
    "CDT": "America/Chicago",
    "ECT": "America/Guayaquil or Europe/Paris",
    "EDT": "America/New_York",
    "IST": "Asia/Kolkata, Europe/Dublin or Asia/Jerusalem",
    "JST": "Asia/Tokyo",
    "MDT": "America/Denver",
    "PDT": "America/Los_Angeles",
    "PST": "America/Los_Angeles or Asia/Manila",
    "SST": "Pacific/Pago_Pago or Asia/Singapore",
}
"""Letters that people write for zones and that are no zone: each with the names they may have meant."""


class Transition(NamedTuple):
    """The wall clock jumps at the instant `at`, from `before` to `after` seconds east of UTC."""

    at: int
    before: int
    after: int

    @property
    def jump(self) -> int:
        """Seconds that the clock goes forward: positive is a gap, negative an overlap."""
        return self.after - self.before


class Table(NamedTuple):
    """Stretches of constant offset: stretch `i` is `[starts[i], starts[i + 1])`, `offsets[i]` east.

    `starts[0]` is `-FAR`. Neighbours differ in offset. The last stretch is sound up to `until`.
    """

    starts: list[int]
    offsets: list[int]
    until: int


class Zone:
    """One zone's table. Compare by `digest`: two zones with one digest have the same clock for ever."""

    __slots__ = ("_fixed", "_lock", "_rule", "_table", "digest", "name")

    def __init__(self, name: str, data: bytes) -> None:
        """Reads TZif `data`; raises `ValueError` if they are not that."""
        self.name = name
        starts, offsets, known_until, footer = _read_tzif(data)
        self.digest = hashlib.blake2b(repr((starts, offsets, footer)).encode(), digest_size=16).hexdigest()
        self._rule = _PosixRule.parse(footer)
        self._lock = threading.Lock()
        self._table = Table(starts, offsets, known_until)
        if self._rule is None or not self._rule.changes:
            self._settle_last_offset()
            self._table = Table(self._table.starts, self._table.offsets, FAR)
        else:
            self._extend(max(_READY_UNTIL_YEAR, _year_of(max(known_until, 0)) + 1))
        self._fixed = len(self._table.starts) == 1 and self._table.until == FAR

    def __repr__(self) -> str:
        return f"Zone({self.name!r})"

    @property
    def is_fixed(self) -> bool:
        """The clock of this zone never jumps."""
        return self._fixed

    def table(self, until: int) -> Table:
        """The table, sound at least up to the instant `until` (or the year 9999, if that is sooner)."""
        table = self._table
        if until >= table.until:
            # One stretch of years at a time: a far date costs its way there once a process.
            self._extend(_year_of(min(until, MAX_SECONDS)) + 100)
            table = self._table
        return table

    def offset_at(self, utc: int) -> int:
        """Seconds east of UTC at the instant `utc`."""
        table = self._table if utc < self._table.until else self.table(utc)
        return table.offsets[bisect_right(table.starts, utc) - 1]

    def to_local(self, utc: int) -> int:
        """What the wall clock shows at `utc`, as local seconds."""
        return utc + self.offset_at(utc)

    def resolve(self, local: int) -> tuple[int, ...]:
        """The instants at which the wall clock shows `local`, ascending: none in a gap, two in an overlap."""
        table = self.table(local + WIDEST_OFFSET)
        starts, offsets = table.starts, table.offsets
        first = bisect_right(starts, local - WIDEST_OFFSET) - 1
        last = bisect_left(starts, local + WIDEST_OFFSET)
        found = []
        for i in range(max(first, 0), last):
            utc = local - offsets[i]
            if starts[i] <= utc and (i + 1 == len(starts) or utc < starts[i + 1]):
                found.append(utc)
        return tuple(found)

    def transitions(self, a: int, b: int) -> list[Transition]:
        """The jumps of the clock in `(a, b]`, ascending."""
        starts, offsets, _ = self.table(b)
        first = max(bisect_right(starts, a), 1)
        last = bisect_right(starts, b)
        return [Transition(starts[i], offsets[i - 1], offsets[i]) for i in range(first, last)]

    def _settle_last_offset(self) -> None:
        """A zone without transitions at the end follows its footer from the last one on."""
        if self._rule is not None and len(self._table.starts) == 1:
            self._table.offsets[0] = self._rule.standard

    def _extend(self, year: int) -> None:
        """Add what the footer's rule says for the years up to and including `year`."""
        rule = self._rule
        assert rule is not None  # a table without a rule reaches FAR from the start
        with self._lock:
            old = self._table
            starts, offsets = list(old.starts), list(old.offsets)
            year = min(year, 10_000)
            first = _year_of(old.until) if old.until > -FAR else 1
            if year < first or old.until == FAR:
                return  # another thread went further in the meantime
            for y in range(first, year + 1):
                for at, offset in rule.jumps(y):
                    # `until` is past the last jump that the data name, so nothing is decided twice.
                    if at >= old.until and offset != offsets[-1]:
                        starts.append(at)
                        offsets.append(offset)
            until = _days_before_year(year + 1) * DAY - WIDEST_OFFSET if year < 10_000 else FAR
            self._table = Table(starts, offsets, until)


class ZoneLoader(Protocol):
    """Where zones' data come from."""

    def load(self, name: str) -> bytes | None:
        """The TZif data of `name`, or None if there is no such zone."""
        ...

    def names(self) -> Sequence[str]:
        """Every zone that `load` knows."""
        ...

    def tzdata_version(self) -> str:
        """The release of the data, e.g. `2026f`; later releases compare greater."""
        ...


class TzdataLoader:
    """The `tzdata` package of this Python, never the host's files."""

    def __init__(self) -> None:
        self._root = resources.files("tzdata")
        self._names: tuple[str, ...] | None = None
        self._version: str | None = None

    def load(self, name: str) -> bytes | None:
        if name not in self.names():  # before any path is built from what somebody typed
            return None
        return self._root.joinpath("zoneinfo", *name.split("/")).read_bytes()

    def names(self) -> Sequence[str]:
        if self._names is None:
            self._names = tuple(self._root.joinpath("zones").read_text().split())
        return self._names

    def tzdata_version(self) -> str:
        if self._version is None:  # asked for by every plan
            package = importlib.import_module("tzdata")  # late: the package is a choice of this loader alone
            self._version = str(getattr(package, "IANA_VERSION", "")) or metadata.version("tzdata")
        return self._version


class Zones:
    """Zones by name, each read once."""

    def __init__(self, loader: ZoneLoader) -> None:
        self.loader = loader
        self._cache: dict[str, Zone] = {}

    @property
    def version(self) -> str:
        """The release of the tz data that decides."""
        return self.loader.tzdata_version()

    def get(self, name: object, pointer: str = "/timezone") -> Zone:
        """The zone called `name`; raises `InvalidInput` with what is close to it."""
        if isinstance(name, str):
            zone = self._cache.get(name)
            if zone is not None:
                return zone
            data = self.loader.load(name) if 0 < len(name) <= 100 else None
            if data is not None:
                return self._cache.setdefault(name, Zone(name, data))
        raise InvalidInput(
            Problem(
                pointer,
                shown(name),
                "a time zone is a name of the tz database, in its spelling",
                self._hint(name),
                code="timezone",
            )
        )

    def _hint(self, name: object) -> str:
        if not isinstance(name, str) or not name or len(name) > 100:
            return "Europe/Berlin"
        if name.upper() in AMBIGUOUS_ABBREVIATIONS:
            return AMBIGUOUS_ABBREVIATIONS[name.upper()]
        offset = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?", name)
        if offset:
            sign, hours, minutes = offset.groups()
            if minutes in (None, "00") and int(hours) <= 12:
                # POSIX signs: Etc/GMT-5 is five hours east.
                return f"Etc/GMT{'-' if sign == '+' else '+'}{int(hours)}"
            return "the name of a place that keeps that offset, such as Asia/Kolkata for +05:30"
        names = self.loader.names()
        lowered = {known.lower(): known for known in names}
        wanted = name.strip().lower().replace(" ", "_")
        if wanted in lowered:
            return lowered[wanted]
        city = [known for low, known in lowered.items() if low.rsplit("/", 1)[-1] == wanted]
        close = city or [lowered[low] for low in difflib.get_close_matches(wanted, lowered, n=3, cutoff=0.6)]
        return " or ".join(close[:3]) or "Europe/Berlin"


DEFAULT_ZONES = Zones(TzdataLoader())
"""The process's zones."""


def load_zone(name: str, pointer: str = "/timezone") -> Zone:
    """The zone called `name` of the process's tz data; raises `InvalidInput`."""
    return DEFAULT_ZONES.get(name, pointer)


# --- TZif -----------------------------------------------------------------------------------------------


def _read_tzif(data: bytes) -> tuple[list[int], list[int], int, str]:
    """Starts and offsets of stretches of constant offset, where the data end, the footer. RFC 9636 §3."""
    try:
        version, counts = _header(data, 0)
        at = 44
        width, form = 4, "l"
        if version >= 2:
            at += _block_size(counts, 4)
            version, counts = _header(data, at)
            at += 44
            width, form = 8, "q"
        _, _, _, timecnt, typecnt, _ = counts
        times = struct.unpack_from(f">{timecnt}{form}", data, at)
        kinds = data[at + timecnt * width : at + timecnt * (width + 1)]
        types_at = at + timecnt * (width + 1)
        east = [struct.unpack_from(">lBB", data, types_at + 6 * i)[0] for i in range(typecnt)]
        footer = ""
        if version >= 2:
            footer = data[at + _block_size(counts, width) :].decode("ascii").strip("\n")
        starts, offsets = [-FAR], [east[0]]
        for time, kind in zip(times, kinds, strict=True):
            if east[kind] != offsets[-1]:  # a change of name alone does not move the clock
                starts.append(time)
                offsets.append(east[kind])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError("not TZif data") from error
    # The footer rules after the last entry, even if that entry changed only a name.
    return starts, offsets, times[-1] + 1 if times else -FAR, footer


def _header(data: bytes, at: int) -> tuple[int, tuple[int, ...]]:
    if data[at : at + 4] != b"TZif":
        raise ValueError("not TZif data")
    version = data[at + 4]
    return (version - 48 if version else 1), struct.unpack_from(">6l", data, at + 20)


def _block_size(counts: tuple[int, ...], width: int) -> int:
    isutcnt, isstdcnt, leapcnt, timecnt, typecnt, charcnt = counts
    return timecnt * (width + 1) + typecnt * 6 + charcnt + leapcnt * (width + 4) + isstdcnt + isutcnt


# --- the footer -----------------------------------------------------------------------------------------

_POSIX = re.compile(
    r"(?:<[^>]+>|[A-Za-z]{3,})(?P<std>[+-]?[\d:]+)"
    r"(?:(?:<[^>]+>|[A-Za-z]{3,})(?P<dst>[+-]?[\d:]+)?(?:,(?P<on>[^,]+),(?P<off>[^,]+))?)?"
)
_DAY_RULE = re.compile(r"(?:M(\d+)\.(\d)\.(\d)|J(\d+)|(\d+))(?:/([+-]?[\d:]+))?")


@dataclass(frozen=True, slots=True)
class _DayRule:
    """When the clock changes: `kind` M (month, week, weekday), J (1..365, no 29 Feb) or N (0..365)."""

    kind: str
    month: int
    week: int
    day: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> _DayRule:
        match = _DAY_RULE.fullmatch(text)
        if match is None:
            raise ValueError(f"not a POSIX day rule: {text!r}")
        month, week, weekday, julian, plain, time = match.groups()
        seconds = _hms(time) if time else 7_200
        if month is not None:
            return cls("M", int(month), int(week), int(weekday), seconds)
        return cls("J", 0, 0, int(julian), seconds) if julian else cls("N", 0, 0, int(plain), seconds)

    def local(self, year: int) -> int:
        """The change in `year`, in local seconds of the clock that is left."""
        first = _days_before_year(year)
        leap = _is_leap(year)
        if self.kind == "N":
            return (first + self.day) * DAY + self.seconds
        if self.kind == "J":
            return (first + self.day - 1 + (leap and self.day > 59)) * DAY + self.seconds
        start = first + _BEFORE_MONTH[self.month] + (leap and self.month > 2)
        # 1970-01-01 was a Thursday (4 with Sunday as 0).
        day = start + (self.day - (start + 4)) % 7 + (self.week - 1) * 7
        length = _BEFORE_MONTH[self.month + 1] - _BEFORE_MONTH[self.month] + (leap and self.month == 2)
        if day >= start + length:
            day -= 7
        return day * DAY + self.seconds


@dataclass(frozen=True, slots=True)
class _PosixRule:
    """`CET-1CEST,M3.5.0,M10.5.0/3`: POSIX.1-2017 §8.3, with the hours to ±167 of RFC 9636 §3.3.1."""

    standard: int
    daylight: int
    on: _DayRule | None
    off: _DayRule | None

    @property
    def changes(self) -> bool:
        return self.on is not None

    @classmethod
    def parse(cls, text: str) -> _PosixRule | None:
        if not text:
            return None
        match = _POSIX.fullmatch(text)
        if match is None:
            raise ValueError(f"not a POSIX TZ rule: {text!r}")
        standard = -_hms(match["std"])
        if match["on"] is None:
            return cls(standard, standard, None, None)
        daylight = -_hms(match["dst"]) if match["dst"] else standard + 3_600
        return cls(standard, daylight, _DayRule.parse(match["on"]), _DayRule.parse(match["off"]))

    def jumps(self, year: int) -> list[tuple[int, int]]:
        """`(instant, new offset)` of the two changes of `year`, ascending."""
        assert self.on is not None
        assert self.off is not None
        return sorted(
            (
                (self.on.local(year) - self.standard, self.daylight),
                (self.off.local(year) - self.daylight, self.standard),
            )
        )


def _hms(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3_600, 60, 1), strict=False))


_BEFORE_MONTH = (0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days_before_year(year: int) -> int:
    """Days from 1970-01-01 to 1 January of `year`."""
    y = year - 1
    return y * 365 + y // 4 - y // 100 + y // 400 - 719_162


def _year_of(instant: int) -> int:
    """The UTC year of `instant`."""
    days = instant // DAY
    year = days * 400 // 146_097 + 1970
    while _days_before_year(year) > days:
        year -= 1
    while _days_before_year(year + 1) <= days:
        year += 1
    return year
