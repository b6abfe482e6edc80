"""What a written triggers file means, for the tests of imports."""

from __future__ import annotations

from datetime import datetime

from horarium.core.instant import from_seconds, to_seconds
from horarium.core.schedule import parse
from horarium.core.spec import TriggerSpec
from horarium.core.zone import Zones
from horarium.sources.files import parse_triggers
from horarium.sources.imported import Imported
from horarium.targets import registry


def specs(result: Imported) -> dict[str, TriggerSpec]:
    """The triggers of the written file, by deployment, or `deployment/name` unless it is `default`."""
    listing = parse_triggers(result.text, "imported.yaml", registry).listing
    return {
        entry.key.deployment + ("" if entry.key.name == "default" else f"/{entry.key.name}"): entry.spec
        for entry in listing.triggers
    }


def only(result: Imported) -> TriggerSpec:
    """The one trigger of a file, of which nothing was left out."""
    assert result.dropped == ()
    (spec,) = specs(result).values()
    return spec


def instants(spec: TriggerSpec, after: datetime, count: int, zones: Zones | None = None) -> list[datetime]:
    """The next instants of a written trigger, as `preview` has them."""
    rule = parse(spec.schedule, zones=zones)
    found: list[datetime] = []
    at = rule.after(to_seconds(after))
    while at is not None and len(found) < count:
        found.append(from_seconds(at))
        at = rule.after(at)
    return found
