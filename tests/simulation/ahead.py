"""Systems in which runs wait until they are due, as a target with `ahead` has it, and what is promised.

Whoever made a run there, and whatever has become of us since: at its time a worker begins it. So what we
withdraw too late begins, and what we never made is made when it is due. Each run that begins is judged at
once, and all that waits once all is quiet. Like the oracle, this imports nothing of Horarium.

Instants are microseconds since the epoch, slots whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.oracle import Life, Oracle, Version

US = 1_000_000
PROMPT = 30 * US
"""What is withdrawn here may begin there if its time comes sooner: a pass, and a worker's prefetch."""
LISTED_ANEW = 600 * US
"""What came over there after its caller was gone is nobody's until somebody lists it."""
SETTLED = 20 * US
"""What has come within reach just now need not be there yet."""


@dataclass
class Flow:
    """A run over there. `state` is waiting, taken (by a worker: it can't be withdrawn), begun or gone.
    `ahead`: made before it was due. `late`: when it came, its caller had given up or was dead."""

    id: str
    target: str
    key: str
    name: str
    trigger: str
    slot: int
    origin: str
    revision: int
    start_at: int
    made_at: int
    ahead: bool
    late: bool
    state: str = "waiting"
    begun_at: int = 0

    @property
    def pending(self) -> bool:
        return self.state in ("waiting", "taken")


class FarSide:
    """All runs of targets that have them ahead. A key is taken at its target until its run is withdrawn."""

    def __init__(self, oracle: Oracle, excused: Callable[[int, int], bool]) -> None:
        self._oracle = oracle
        self._excused = excused
        """Whether anything has gone wrong between two instants, or shortly before"""
        self.flows: list[Flow] = []
        self._keys: dict[tuple[str, str], Flow] = {}
        self._ids: dict[str, Flow] = {}
        self.missed: dict[tuple[str, str], int] = {}
        """Target and key → when it was withdrawn by a call that came late"""

    def make(self, flow: Flow) -> tuple[Flow, bool]:
        """The run of its key, and whether it was made now."""
        there = self._keys.get((flow.target, flow.key))
        if there is not None:
            return there, False
        self.flows.append(flow)
        self._keys[flow.target, flow.key] = self._ids[flow.id] = flow
        self._oracle.pending[flow.name] = self._oracle.pending.get(flow.name, 0) + 1
        return flow, True

    def waiting(self, target: str) -> list[Flow]:
        return [flow for flow in self.flows if flow.target == target and flow.state == "waiting"]

    def withdraw(self, ids: Iterable[str], now: int, *, late: bool) -> int:
        """Those of them that no worker has taken are gone; how many."""
        found = [flow for key in ids if (flow := self._ids[key]).state == "waiting"]
        for flow in found:
            flow.state = "gone"
            del self._keys[flow.target, flow.key]
            self._oracle.pending[flow.name] -= 1
            if late:
                self.missed[flow.target, flow.key] = now
        return len(found)

    def begin(self, flow: Flow, now: int) -> None:
        """A worker begins it."""
        oracle, name = self._oracle, flow.name
        flow.state, flow.begun_at = "begun", now
        oracle.pending[name] -= 1
        what = f"{flow.trigger} {flow.slot} ({name}, {flow.target})"
        stray = self._stray(flow)
        if stray is not None:
            since = now - oracle.touched.get(name, 0)
            nobodys = flow.late and now - flow.made_at < LISTED_ANEW
            if since > PROMPT and not nobodys and not self._excused(now - since, now):
                oracle.fail(f"stray: {what} began {since / US:.0f} s after {stray}")
            oracle.strays.add(name)
        if name in oracle.effects:
            if name not in oracle.strays:
                oracle.fail(f"doubled: {what} began a second time")
            return
        oracle.effect(name, flow.trigger, flow.slot, flow.origin, now, flow.target)

    def _stray(self, flow: Flow) -> str | None:
        """Why it should not begin; None where it should."""
        oracle = self._oracle
        row = next((row for row in oracle.runs.values() if row["name"] == flow.name), None)
        if row is None:
            return "its slot was withdrawn here"
        if row["state"] not in ("scheduled", "fired", "failed"):
            return f"it became {row['state']} here"
        if row["origin"] == "manual":
            return None
        if row["revision"] != flow.revision:
            return f"it was decided anew, by revision {row['revision']} instead of {flow.revision}"
        version = oracle.by_id[row["trigger_id"]].version(row["revision"])
        if version is None or version.shadow or version.spec.target != flow.target:
            return "its slot became another's"
        if row["state"] == "failed" and not row["outcome_unknown"] and "lost" not in (row["reason"] or ""):
            return "it failed here"
        if row["state"] == "scheduled" and row["attempt"] == 0 and not _is_ahead(version):
            return "a policy may give it up"
        return None

    def quiet(self, targets: Mapping[str, int], now: int, furthest: int) -> None:
        """Nothing has gone wrong for a while. `targets`: how long ahead each has its runs, in microseconds;
        `furthest`: how far any of our clocks is ahead."""
        oracle = self._oracle
        for flow in self.flows:
            if flow.state == "begun" and flow.name not in oracle.strays:
                self._overtaken(flow)
            stray = self._stray(flow) if flow.state == "waiting" else None
            if stray is not None and not (flow.late and now - flow.made_at < LISTED_ANEW):
                oracle.fail(
                    f"stray: {flow.trigger} {flow.slot} ({flow.name}) is at {flow.target} and {stray}"
                )
            elif flow.state == "waiting" and not targets.get(flow.target) and flow.start_at > now + furthest:
                oracle.fail(f"stray: {flow.target} has nothing ahead any more, and has {flow.name}")
            elif flow.pending and flow.start_at < now - SETTLED:
                oracle.fail(f"stuck: {flow.name} waits at {flow.target} for nobody")
        for life in oracle.lives.values():
            for slot, version in life.owed(now // US, (now + max(targets.values(), default=0)) // US):
                self._there(life, slot, version, targets.get(version.spec.target, 0), now)

    def _overtaken(self, flow: Flow) -> None:
        """It began while its run waited here to be claimed, and was withdrawn here then."""
        stray, withdrawn = self._stray(flow), self._oracle.touched[flow.name]
        if stray is not None:
            if withdrawn - flow.begun_at > PROMPT and not self._excused(flow.begun_at, withdrawn):
                waited = (withdrawn - flow.begun_at) / US
                self._oracle.fail(
                    f"stray: {flow.name} had begun for {waited:.0f} s at {flow.target}, when {stray}"
                )
            self._oracle.strays.add(flow.name)

    def _there(self, life: Life, slot: int, version: Version, ahead: int, now: int) -> None:
        """A slot that will come due is there, once it is within reach."""
        oracle = self._oracle
        row: Mapping[str, Any] | None = oracle.runs.get(oracle.slots.get((life.trigger_id, slot), 0))
        if not _is_ahead(version) or version.shadow or row is None:
            return
        if row["origin"] != "schedule" or row["attempt"] > 0 or row["state"] != "scheduled":
            return
        if not now + SETTLED < row["first_due_at"] < now + ahead - SETTLED:
            return
        there = [flow for flow in self.flows if flow.name == row["name"] and flow.pending]
        missed = any(
            now - at < LISTED_ANEW
            for (target, key), at in self.missed.items()
            if target == version.spec.target and key.endswith(f"/{row['name']}")
        )
        if not there and not missed:
            oracle.fail(f"missing: {life.name} {slot} ({row['name']}) is not at {version.spec.target} ahead")
        if any(flow.start_at != row["first_due_at"] for flow in there):
            oracle.fail(f"early: {life.name} {slot} waits there for another instant than it is due at")

    def figures(self) -> dict[str, int]:
        begun = [flow for flow in self.flows if flow.state == "begun"]
        return {
            "ahead": sum(flow.ahead for flow in begun),
            "withdrawn": sum(flow.state == "gone" for flow in self.flows),
            "strays": len(self._oracle.strays),
        }


def _is_ahead(version: Version) -> bool:
    """Whether no policy may give its slots up, so that they can be there ahead."""
    spec = version.spec
    return spec.catch_up == "all" and spec.max_age is None and spec.overlap == "allow"
