"""The store's contract: each method is one transaction, named for its meaning.

What every implementation keeps, and one suite in `tests/store/` shows of each:

- `now` is an argument. No statement reads a clock.
- A method that raises has changed nothing. `StoreUnavailable` means: the database did not do it; try again.
- Lock order everywhere: deployment → trigger → allowance → run, ascending ids. SQLite has one writer and
  gets it for nothing.
- The database guards the promises: one run a slot, one run a name, an active trigger always has a
  `plan_due_at`.
- Decisions come from `core/` as functions or values; a store never has a policy of its own.

Reads for people go through `fetch`, which takes a SQLAlchemy Core select; the hot path never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

from sqlalchemy import Executable, Row

from horarium.core.deployment import DeploymentChange, DeploymentState
from horarium.core.freeze import Owed, Scope
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.outcome import Outcome
from horarium.core.plan import Plan, PlanInput
from horarium.core.reconcile import Known, Reconciled
from horarium.core.run import FiredRun, Report, Run
from horarium.core.spec import Json, Listing, Rate, TargetSpec, TriggerSpec
from horarium.core.trigger import Change, TriggerState
from horarium.targets.base import LocalRuns

Decide: TypeAlias = Callable[[TriggerState], Change | None]
DecideRun: TypeAlias = Callable[[TriggerState, Run], Change | None]
DecideDeployment: TypeAlias = Callable[[DeploymentState], DeploymentChange | None]


@dataclass(frozen=True, slots=True)
class PlansApplied:
    """`won` are ids of triggers whose plan was written; `runs` rows were inserted, `renamed` of them under
    the long name because another run had the short one; `lost` ids changed while the plan was computed."""

    won: frozenset[int]
    lost: frozenset[int]
    runs: int
    renamed: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """At most `wanted` runs of one target; `rate` None is no limit."""

    target_id: int
    wanted: int
    rate: Rate | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that is ours until `lease_until`: with its trigger's key and the spec of its revision.

    `shadow`: it is a slot of a revision in shadow, so nobody shall be called. `cancels` are runs to be
    cancelled at their targets before this one is called (`overlap: replace`).
    """

    run: Run
    key: TriggerKey
    spec: TriggerSpec
    lease_until: datetime
    shadow: bool = False
    cancels: tuple[FiredRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Claims:
    """`runs` in the order in which they are to be fired.

    `unlooked` are targets that need `look` first: nobody looked for longer than the grace. `refill_at` is
    when the earliest allowance that stood in the way has a token again; None when none did. `limited` are
    the targets whose due runs wait for a token, `guarded` those whose catch-up guard holds runs. `more`: a
    target has more that could be claimed now. `quiet`: the store saw at once that there was nothing to claim
    or to write, and `next_due` is what its method of that name would say.
    """

    runs: tuple[Claimed, ...] = ()
    unlooked: tuple[int, ...] = ()
    refill_at: datetime | None = None
    more: bool = False
    limited: tuple[int, ...] = ()
    guarded: tuple[int, ...] = ()
    quiet: bool = False
    next_due: datetime | None = None


@dataclass(frozen=True, slots=True)
class LookResult:
    """`gap` is how long nobody had looked (zero when within the grace), `skipped` how many runs expired."""

    gap: timedelta
    skipped: int


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A configured target as the store keeps it. `guarded`: its catch-up guard holds runs."""

    id: int
    spec: TargetSpec
    frozen: bool
    looked_at: datetime
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a freeze stopped: how many targets or triggers it covers, and how many runs became `held`."""

    targets: int = 0
    triggers: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Released:
    """What a release did: `released` owed or held runs may be fired, `skipped` owed ones became skips."""

    released: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """One trigger's change as it was written (or would be), with what was before it."""

    before: TriggerState
    change: Change
    key: TriggerKey
    backfill_id: int | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One reconcile pass.

    `stale`: a newer listing was written since `version` was read; nothing was changed. `decided` is what
    the pass did, or would have done where `written` is false (dry run, problems, a large withdrawal, or
    nothing to do). `changes` has the edits and withdrawals in full.
    """

    decided: Reconciled
    changes: tuple[Changed, ...] = ()
    written: bool = False
    stale: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class ManualRequest:
    """A manual run of a trigger. `request_key` makes a repeat harmless; `parameters` lie over the spec's.

    `name` is the run's name where the caller has one of its own, no slot's; `scheduled_time` is the instant
    that it is for where that is not the instant it is asked for.
    """

    key: TriggerKey
    request_key: str
    parameters: Mapping[str, Json] | None
    who: str
    name: str | None = None
    scheduled_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """Rows that retention took away: settled runs, skips, lines of the audit, idempotency keys."""

    runs: int = 0
    skips: int = 0
    audit: int = 0
    keys: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.runs + self.skips + self.audit + self.keys

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            self.runs + other.runs,
            self.skips + other.skips,
            self.audit + other.audit,
            self.keys + other.keys,
        )


@dataclass(frozen=True, slots=True)
class PrunedBeyond:
    """A step of retention by count: what went, and the id of the trigger after which the next step begins;
    None: it has come to the last trigger."""

    runs: int
    skips: int
    after: int | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """The answer that a request with this idempotency key got. `status` None: it is still under way."""

    request_digest: str
    status: int | None
    response: str | None


class Store(LocalRuns, Protocol):
    """See the module."""

    async def open(self) -> None:
        """Take connections; check the schema. Raises `SchemaMismatch`, `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...

    async def clock(self) -> datetime:
        """The database's clock; the host's on SQLite. Aware UTC."""
        ...

    # plan

    async def lease_due(self, now: datetime, until: datetime, limit: int) -> list[PlanInput]:
        """At most `limit` triggers with `plan_due_at <= now`, earliest first, with all that a plan needs.

        Where replicas share the queue their `plan_due_at` moves to `until`. `PlanInput.token` is the value
        that `apply_plans` compares with.
        """
        ...

    async def apply_plans(self, plans: Sequence[Plan], now: datetime) -> PlansApplied:
        """Write the plans of those triggers whose `(revision, cursor, plan_due_at)` is as it was read.

        For those, in one transaction: cursor, next `plan_due_at`, status, error; runs (a slot that has one
        keeps it; a name that another slot has gives way to the long name); skips; steps of backfills, where
        a pending automatic run becomes a backfill run and a skip that covers a filled slot is split.
        """
        ...

    async def replan_older_tzdata(self, version: str, now: datetime) -> int:
        """Have the planner look at every active trigger planned under tz data older than `version`."""
        ...

    async def next_plan_due(self) -> datetime | None:
        """The earliest `plan_due_at` of all."""
        ...

    async def plan_due(self) -> tuple[datetime, datetime | None]:
        """`clock` and `next_plan_due`: all that a quiet look of the planner needs, for one statement."""
        ...

    # change

    async def change(
        self, keys: Iterable[TriggerKey], decide: Decide, now: datetime, who: str
    ) -> list[Changed]:
        """Under each trigger's lock: read its state, decide, write. None from `decide` writes nothing.

        Raises `NotFound` for a key that was never there; an error out of `decide` changes none of them.
        """
        ...

    async def change_run(self, run_id: int, decide: DecideRun, now: datetime, who: str) -> Changed | None:
        """The same for one run, pending or settled. Raises `NotFound`."""
        ...

    async def change_deployment(
        self, key: DeploymentKey, decide: DecideDeployment, now: datetime, who: str
    ) -> DeploymentChange | None:
        """The same for a deployment and all of its triggers at once, while no trigger is made, revived or
        moved: one that another replica makes at this moment is among them, or finds what was decided.

        Raises `NotFound` for a deployment that was never there; a withdrawn one may still have triggers.
        """
        ...

    async def create_trigger(
        self, listing: Listing, now: datetime, who: str, *, expected_revision: int | None = None
    ) -> SyncResult:
        """Create or replace the triggers and deployments of `listing` (its source is ``api``, stored as
        nobody's).

        Nothing else that people manage is withdrawn. `expected_revision` is for a listing of one trigger: 0
        means it must not exist yet; another number than the one in force raises `StaleVersion`.
        """
        ...

    async def source_version(self, source: str) -> int:
        """The version of a source's last written listing; 0 when there is none."""
        ...

    async def source_listed_at(self, source: str) -> datetime | None:
        """When a source's last written listing was written; None when there is none."""
        ...

    async def sync_source(
        self,
        listing: Listing,
        version: int,
        decide: Callable[[Known], Reconciled],
        now: datetime,
        who: str,
        *,
        dry_run: bool = False,
        path: str | None = None,
    ) -> SyncResult:
        """One reconcile pass, written if the source is still at `version`; see `SyncResult`.

        `path` is where the source is, for people and for `apply --prune`.
        """
        ...

    async def source_failed(self, source: str, error: str, now: datetime) -> None:
        """Record that a source could not be read, for people to see. Removes nothing."""
        ...

    # fire

    async def targets(self) -> list[TargetRow]:
        """All targets that are not withdrawn or still have pending runs."""
        ...

    async def look(self, target_id: int, now: datetime, grace: timedelta, *, guard: int = 0) -> LookResult:
        """The first look at a target: if nobody looked for longer than `grace`, skip what expired in the gap.

        That is automatic runs never claimed (`attempt = 0`) that came due in the gap and whose `expires_at`
        has passed: all of them, before `looked_at` moves on. It never goes back. With a `guard` the gap is
        remembered, for claims to judge what came due in it.
        """
        ...

    async def claim(
        self,
        demands: Sequence[Demand],
        now: datetime,
        lease_until: datetime,
        owner: str,
        *,
        backlog_first: bool,
        late_after: timedelta,
        grace: timedelta,
        guard: int = 0,
    ) -> Claims:
        """Claim due runs under each target's allowance and debit it; moves `looked_at`.

        On-time runs (`attempt = 0` and `due_at > now - late_after`) first, else backlog first. A claimed run
        has `attempt + 1`, `lease_owner` and `due_at = lease_until`. A target nobody looked at for longer
        than `grace` is not claimed from. A run in shadow is claimed like any other, but takes no token. A
        retry whose trigger was paused or frozen meanwhile becomes `held`; one whose trigger was deleted ends
        `failed`.

        Once more than `guard` (0: no limit) automatic runs never claimed wait that came due in a gap, they
        become `held`, and so do those that catch-up plans later for that gap, until a release.

        A run of a trigger with an `overlap` policy is judged by it (`core/overlap.py`) where nobody else can
        begin one of that trigger: it may be claimed, wait for another run's end, or become a skip.
        """
        ...

    async def settle(self, outcomes: Sequence[Outcome], now: datetime) -> set[int]:
        """Write outcomes; the ids of those that took effect.

        `fired` is accepted from anyone and absorbs; anything else only from the attempt that holds the run.
        A retry of an automatic run of a paused trigger becomes `held`, and any retry of a frozen one.
        """
        ...

    async def report(self, reports: Sequence[Report], now: datetime) -> int:
        """Write what targets say of runs; how many took effect.

        The first end that is reported stands; `unknown` gives way to a better one. What waited for a run that
        has ended is due at once.
        """
        ...

    async def reports_due(self, now: datetime, limit: int) -> list[tuple[FiredRun, datetime]]:
        """Runs about which their target is to be asked now, each with when it is given up as `unknown`; they
        are asked about again later, by whoever comes first."""
        ...

    async def next_due(self, now: datetime) -> datetime | None:
        """The earliest `due_at` after `now` of targets that are not frozen."""
        ...

    async def create_manual(self, request: ManualRequest, now: datetime) -> tuple[Run, bool]:
        """A manual run, due now; the run and whether it is new. Raises `NotFound` and `Conflict`
        (a deleted trigger, the request key with other parameters, or a name that another run has)."""
        ...

    # freeze

    async def freeze(self, scope: Scope, note: str | None, who: str, now: datetime) -> Frozen:
        """Stop a target, every target, or all triggers of a deployment or project; see docs/design/freeze.md.

        What is frozen already stays so, with this note. A call that is under way is not stopped. Raises
        `NotFound`.
        """
        ...

    async def release(self, scope: Scope, owed: Owed, who: str, now: datetime) -> Released:
        """End a freeze, and what a target's catch-up guard holds; `owed` says what becomes of automatic runs
        that came due and were never claimed.

        Raises `NotFound`, and `Conflict` when nothing is frozen or held there, or when runs are to be given
        up while catch-up still plans some.
        """
        ...

    # housekeeping and reads

    async def prune(
        self, before: datetime, skips_before: datetime, limit: int, audit_before: datetime | None = None
    ) -> Pruned:
        """Delete at most `limit` settled runs (with their attempts and local executions) and idempotency keys
        from before `before`, as many skips from before `skips_before`, and lines of the audit from before
        `audit_before` (None: none).

        A trigger's `pruned_before` moves past what went. A trigger with an open backfill keeps its rows, and
        so does a run that the local target still executes.
        """
        ...

    async def prune_beyond(
        self, keep_runs: int, keep_skips: int, after: int, triggers: int, limit: int
    ) -> PrunedBeyond:
        """The same by count: of the `triggers` triggers whose ids follow `after`, delete at most `limit`
        settled runs beyond the newest `keep_runs` of each (manual ones are counted apart), and as many skips
        beyond the newest `keep_skips`; 0 keeps all. What to delete is looked for outside of the transaction.
        """
        ...

    async def fetch(self, statement: Executable) -> Sequence[Row[Any]]:
        """The rows of a select, on a read connection."""
        ...

    async def remember(self, key: str, request_digest: str, now: datetime) -> Remembered | None:
        """Take an idempotency key: None when it was free and is ours now, else what it stands for."""
        ...

    async def answer(self, key: str, status: int | None, response: str | None) -> None:
        """Keep the answer of our request under its key; status None gives the key up."""
        ...


@dataclass(frozen=True, slots=True)
class Audit:
    """One line of the audit table."""

    who: str
    what: str
    kind: str
    key: str
    detail: Mapping[str, Any] = field(default_factory=dict)
