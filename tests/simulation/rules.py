"""The oracle's own slots: small calculators that share nothing with Horarium. Instants are whole seconds
since the epoch, UTC.

A rule here is one of five kinds, each so plain that its slots can be listed by counting. `words` is how a
triggers file says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

DAY = 86_400
FAR = 3 * DAY
"""How far a search for the next slot goes: every recurring rule here has one within a day."""


@dataclass(frozen=True)
class Rule:
    """`kind` is minutes (every n-th minute of the hour), hourly (these minutes), every (so many seconds from
    the epoch), daily (hour, minute) or once (an instant). `zone` only for whole-hour offsets and `hourly`,
    where the slots are those of UTC."""

    kind: str
    numbers: tuple[int, ...]
    zone: str | None = None

    def words(self) -> dict[str, Any]:
        """The schedule as a triggers file has it."""
        numbers = self.numbers
        match self.kind:
            case "minutes":
                words: dict[str, Any] = {"cron": f"*/{numbers[0]} * * * *"}
            case "hourly":
                words = {"cron": f"{','.join(str(number) for number in numbers)} * * * *"}
            case "every":
                words = {"every": f"{numbers[0]}s"}
            case "daily":
                words = {"cron": f"{numbers[1]} {numbers[0]} * * *"}
            case _:
                at = datetime.fromtimestamp(numbers[0], UTC)
                words = {"at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        if self.zone is not None:
            words["timezone"] = self.zone
        return words

    def within(self, low: int, high: int) -> list[int]:
        """The slots in `(low, high]`, ascending."""
        if high <= low:
            return []
        numbers = self.numbers
        match self.kind:
            case "every":
                step = numbers[0]
                return list(range((low // step + 1) * step, high + 1, step))
            case "once":
                return [at for at in numbers if low < at <= high]
            case "daily":
                second = numbers[0] * 3_600 + numbers[1] * 60
                days = range(low // DAY, high // DAY + 1)
                return [day * DAY + second for day in days if low < day * DAY + second <= high]
            case "minutes":
                minutes: tuple[int, ...] = tuple(range(0, 60, numbers[0]))
            case _:
                minutes = numbers
        found: list[int] = []
        for hour in range(low // 3_600, high // 3_600 + 1):
            found += [at for minute in minutes if low < (at := hour * 3_600 + minute * 60) <= high]
        return found

    def after(self, at: int) -> int | None:
        """The first slot after an instant."""
        for reach in (7_200, FAR):
            found = self.within(at, at + reach)
            if found:
                return found[0]
        return next((slot for slot in self.numbers if slot > at), None) if self.kind == "once" else None

    def has(self, at: int) -> bool:
        """Whether an instant is one of its slots."""
        return bool(self.within(at - 1, at))


@dataclass(frozen=True)
class Spec:
    """What a person says of a trigger. `catch_up` is all, latest or none; `overlap` allow, skip, queue or
    replace; `max_age`, `jitter` and `completion_timeout` are in seconds; `mark` is a parameter, so that two
    specs can differ in it alone."""

    rule: Rule
    catch_up: str = "all"
    max_age: int | None = None
    jitter: int = 0
    active: bool = True
    mark: int = 0
    target: str = "first"
    overlap: str = "allow"
    completion_timeout: int | None = None

    def but(self, **changes: Any) -> Spec:
        """The same with something else."""
        return replace(self, **changes)


def deployment_of(name: str) -> str:
    """The deployment of a trigger, by its name here: `t1s` is the second one of `t1`."""
    return name.removesuffix("s")


def name_of(deployment: str, trigger: str) -> str:
    """A trigger's name here, by its deployment and its own name there."""
    return deployment if trigger == "default" else f"{deployment}{trigger}"


def shown(spec: Spec) -> str:
    """One line, for people."""
    words = " ".join(str(value) for value in spec.rule.words().values())
    rest: Mapping[str, Any] = {
        "catch_up": spec.catch_up if spec.catch_up != "all" else None,
        "max_age": spec.max_age,
        "jitter": spec.jitter or None,
        "active": None if spec.active else False,
        "mark": spec.mark or None,
        "target": spec.target if spec.target != "first" else None,
        "overlap": spec.overlap if spec.overlap != "allow" else None,
        "completion_timeout": spec.completion_timeout,
    }
    return " ".join([f"[{words}]", *(f"{name}={value}" for name, value in rest.items() if value is not None)])
