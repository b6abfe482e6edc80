"""The shapes of requests and answers, for validation of bodies and for the OpenAPI document.

Bodies are strict: no unknown field, no text for a number. Answers are built by `app/views.py`; the models of
them here are the contract that is published, and a test holds that answers keep it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Time = Annotated[
    str,
    Field(json_schema_extra={"format": "date-time"}, description="RFC 3339, in UTC with Z", max_length=64),
]
Mapping = dict[str, Any]


COMPARE = "DST policies side by side: at least two of vixie,literal,skip_once"
YEAR = "instead of the next instants: what clock changes do in this year of UTC"


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Answer(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


# requests


class NoteBody(Body):
    note: str | None = Field(None, description="why, for people; at most 500 characters")


class PauseBody(NoteBody):
    until: Time | None = Field(None, description="when it resumes by itself")


class ResumeBody(Body):
    backfill: bool = Field(False, description="also fill the slots of the paused time")


class ResultBody(Body):
    result: Literal["running", "succeeded", "errored", "failed", "cancelled"] = Field(
        description="`failed` means `errored`: a run that `failed` here never reached its target"
    )
    detail: str | None = Field(None, description="for people, such as an error; at most 2,000 characters")
    at: Time | None = Field(None, description="when it came to that; now unless given")


class OwedBody(Body):
    owed: Literal["all", "latest", "drop"] = Field(
        description="what becomes of automatic runs that came due and were never claimed: all may be fired, "
        "the latest of each trigger, or none; the others become skips"
    )


class Place(Body):
    """Exactly one of the three."""

    scope: Literal["all"] | None = Field(None, description="every target")
    project: str | None = Field(None, description="all triggers of this project")
    deployment: str | None = Field(None, description="all triggers of `project/domain/name`, or of `name`")


class FreezeBody(Place, NoteBody):
    pass


class ReleaseBody(Place, OwedBody):
    pass


class ShadowBody(Body):
    """Exactly one of the two."""

    scope: Literal["all"] | None = Field(None, description="every trigger")
    source: str | None = Field(None, description="all triggers of this source; `api` for those of people")


class ReportBody(Body):
    triggers: list[str] = Field(
        [], max_length=10_000, description="keys; empty: those of `source`, or all that were in shadow"
    )
    source: str | None = None
    from_: Time | None = Field(None, alias="from", description="not included; a day before `to` unless given")
    to: Time | None = Field(None, description="included; a minute ago unless given")
    tolerance: Any = Field(
        None,
        description="how far a run that only says when it was made may lie from its slot; 60s unless given",
    )
    incumbent: str | None = Field(
        None,
        description="what the other scheduler ran: CSV with a header (`trigger`, `time` or `created_at`, "
        "`name`), or a JSON object a line; not needed where the triggers' targets can be asked",
    )
    everything: bool = Field(False, description="name the slots that both have, too")


class RunBody(Body):
    parameters: Mapping | None = Field(None, description="laid over the trigger's parameters")
    request_key: str | None = Field(
        None, description="the same key gives the same run; the Idempotency-Key unless given"
    )


class BackfillBody(Body):
    from_: Time = Field(alias="from", description="the first instant of the range, included")
    to: Time = Field(description="the last instant of the range, included; at most now")
    dry_run: bool = False


class PlanBody(Body):
    from_: Time | None = Field(
        None, alias="from", description="the first instant of the range, included; now unless given"
    )
    to: Time = Field(description="the last instant of the range, included")


class File(Body):
    path: str = Field(min_length=1, max_length=4_096, description="names the source where the text does not")
    text: str


class FilesBody(Body):
    files: list[File] = Field(max_length=10_000)


class ApplyBody(FilesBody):
    dry_run: bool = False
    prune: bool = Field(False, description="withdraw sources whose file has left `folder`")
    folder: str | None = Field(None, description="absolute path; needed by `prune`")
    allow_withdraw: bool = Field(False, description="allow a pass that withdraws over 10% of a source")


class SyncBody(Body):
    kind: str = Field(description="which source: `flyte`, `prefect`")
    config: dict[str, Any] | None = Field(
        None, description="where it is (`endpoint`, `url`, `token`, …), in place of the settings'"
    )
    dry_run: bool = False
    allow_withdraw: bool = Field(False, description="allow a pass that withdraws over 10% of a source")


class PreviewBody(Body):
    cron: Any = None
    every: Any = None
    at: Any = None
    rrule: Any = None
    timezone: Any = None
    dialect: Any = None
    dst: Any = None
    day_or: Any = None
    start: Any = None
    end: Any = None
    exclude: Any = None
    only: Any = None
    on_excluded: Any = None
    calendars: Any = Field(None, description="what the names in `exclude` and `only` mean")
    n: int = Field(10, ge=1, le=1_000)
    from_: Time | None = Field(
        None, alias="from", description="the instant after which it begins; now unless given"
    )
    key: str | None = Field(None, max_length=500, description="the trigger whose hash `H` takes")
    compare: str | None = Field(None, max_length=200, description=COMPARE)
    year: int | None = Field(None, description=YEAR)


class TriggerWords(BaseModel):
    """The words of one trigger in the triggers file, its deployment's among them.

    Published for readers; the reader of triggers files is what checks them. Without any of the deployment's
    words the trigger runs the deployment that is there.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    cron: str | None = None
    every: str | int | float | Mapping | None = None
    rrule: str | None = None
    at: str | None = None
    timezone: str | None = None
    dialect: Literal["horarium", "robfig"] | None = None
    dst: Literal["vixie", "literal", "skip_once"] | None = None
    day_or: bool | None = None
    start: str | None = None
    end: str | None = None
    catch_up: Literal["all", "latest", "none"] | None = None
    max_age: str | int | float | None = None
    jitter: str | int | float | None = None
    active: bool | None = None
    target: str | None = None
    run: str | list[str] | None = None
    python: str | None = None
    shell: bool | None = None
    stdin: str | None = None
    env: dict[str, str] | None = None
    cwd: str | None = None
    timeout: str | int | float | None = None
    parameters: Mapping | None = None
    kickoff_time_arg: str | None = None
    owner: str | None = None
    runbook: str | None = None
    late_after: str | int | float | None = None
    retry_for: str | int | float | None = None
    completion_timeout: str | int | float | None = None


# answers


class ProblemItem(Answer):
    pointer: str = Field(description="JSON pointer to the field")
    got: str
    rule: str
    try_: str | None = Field(None, alias="try")
    code: str
    line: int | None = None
    column: int | None = None
    position: int | None = None


class ProblemDetails(Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    try_: str | None = Field(None, alias="try", description="what would help")
    problems: list[ProblemItem] | None = None


class Run(Answer):
    name: str
    project: str
    domain: str
    trigger: str
    scheduled_time: Time
    local_time: str
    origin: Literal["schedule", "backfill", "manual"]
    state: Literal["scheduled", "held", "fired", "failed", "shadowed", "cancelled"]
    late: bool
    lateness_seconds: float | None
    due_at: Time
    expires_at: Time | None
    attempt: int
    leased: bool
    target: str
    revision: int
    fired_at: Time | None
    settled_at: Time | None
    reason: str | None
    result: Literal["running", "succeeded", "errored", "interrupted", "cancelled", "unknown"] | None
    result_at: Time | None
    result_detail: str | None
    waits_for: str | None = Field(None, description="the run whose end it waits for (overlap)")
    target_run_id: str | None
    outcome_unknown: bool
    parameters: Mapping | None
    request_key: str | None


class Reported(Answer):
    run: str
    result: Literal["running", "succeeded", "errored", "interrupted", "cancelled", "unknown"]
    written: bool = Field(description="false: it was known already")


class Attempt(Answer):
    attempt: int
    started_at: Time
    answered_at: Time
    answer: str
    reason: str | None


class RunWithAttempts(Run):
    attempts: list[Attempt]


class Policy(Answer):
    catch_up: Literal["all", "latest", "none"]
    max_age: str | None
    jitter: str | None
    overlap: str
    target: str
    action: Mapping
    parameters: Mapping
    kickoff_time_arg: str | None
    owner: str | None
    runbook: str | None
    late_after: str | None
    retry_for: str | None
    completion_timeout: str | None


class Trigger(Policy):
    key: str
    project: str
    domain: str
    deployment: str
    name: str
    status: Literal["active", "paused", "finished", "deleted"]
    active: bool
    inactive_because: str | None = Field(description="why its source has it not active")
    paused: bool
    pause_note: str | None
    paused_by: str | None
    paused_at: Time | None
    resume_at: Time | None
    deployment_paused: bool = Field(description="its deployment is paused, whatever it is itself")
    shadow: bool = Field(description="it is planned and decided, and nothing of it is fired")
    frozen: bool = Field(description="its deployment or project is")
    schedule: Mapping
    describe: str
    timezone: str
    managed_by: str | None = Field(description="its source; null: people, through the API")
    revision: int
    etag: str
    cursor: Time
    plan_due_at: Time | None
    error: str | None
    next: list[Time]
    last_run: Run | None
    created_at: Time | None
    updated_at: Time | None


class Spec(Policy):
    schedule: Mapping
    active: bool
    inactive_because: str | None


class Revision(Answer):
    number: int
    effective_from: Time
    until: Time | None
    state: Literal["active", "paused", "deleted"]
    what: str
    who: str
    shadow: bool
    deployment_paused: bool
    spec: Spec


class Skip(Answer):
    trigger: str
    first: Time
    last: Time
    count: int
    reason: str
    detail: str
    revision: int
    at: Time | None


class Nearest(Answer):
    before: Time | None
    after: Time | None


class Why(Answer):
    trigger: str
    time: Time
    verdict: Literal[
        "fired", "late", "shadowed", "skipped", "owed", "planned", "held", "failed", "never", "pruned"
    ]
    slot: bool
    reason: str
    run: Run | None
    skip: Skip | None
    revision: int | None
    nearest: Nearest


class PreviewItem(Answer):
    utc: Time
    local: str
    note: str | None
    due_at: Time | None = Field(None, description="with the trigger's jitter")
    outcome: Literal["moved", "dropped", "once", "twice"] | None = Field(None, description="with `year`")
    jump_seconds: int | None = None
    runs: list[Time] | None = None


class PolicyPreview(Answer):
    items: list[PreviewItem]


class Preview(Answer):
    items: list[PreviewItem]
    describe: str
    canonical: Mapping
    compare: dict[str, PolicyPreview] | None = Field(None, description="with `compare`: by DST policy")
    year: int | None = None


class BackfillSlots(Answer):
    id: int | None = None
    trigger: str
    from_: Time = Field(alias="from")
    to: Time
    slots: list[Time] = Field(description="the first 1,000")
    count: int
    at_least: bool


class Backfill(Answer):
    id: int
    trigger: str
    from_: Time = Field(alias="from")
    to: Time
    cursor: Time
    state: Literal["open", "done", "ended"]
    runs: int
    created_by: str
    created_at: Time | None
    ended_at: Time | None


class TriggerPlanned(Answer):
    trigger: str
    planned: int = Field(description="slots that have become runs now")
    existing: int = Field(description="slots that had a run that is still to be fired")
    decided: int = Field(description="slots that are decided otherwise: cancelled, or fired already")
    problem: str | None = Field(description="why nothing of it was planned, and what would help")


class RangePlanned(Answer):
    from_: Time = Field(alias="from")
    to: Time
    planned: int
    existing: int
    decided: int
    triggers: list[TriggerPlanned]


class Logs(Answer):
    output: str
    offset: int
    total: int
    state: str | None
    exit_code: int | None
    detail: str


class Cancelled(Answer):
    outcome: Literal["skipped", "cancelled", "failed"]
    run: RunWithAttempts | None


class Frozen(Answer):
    kind: Literal["all", "target", "project", "deployment"]
    key: str
    targets: int
    triggers: int
    held: int = Field(description="runs that are held now; those of a frozen target are not, they wait")


class ShadowItem(Answer):
    trigger: str
    after: Time = Field(description="slots after it are the other side's")


class ShadowSet(Answer):
    shadow: bool
    items: list[ShadowItem]


class ShadowPart(Answer):
    after: Time
    to: Time


class ShadowSlot(Answer):
    time: Time
    in_: Literal["both", "ours", "theirs", "pending"] = Field(alias="in")
    name: str | None
    their_name: str | None
    decided_at: Time | None
    created_at: Time | None
    later_seconds: float | None = Field(description="by how much ours was decided later than theirs was made")
    reason: str | None = Field(description="why we have no run for one of theirs")


class ShadowLateness(Answer):
    slots: int
    median_seconds: float
    least_seconds: float
    most_seconds: float


class ShadowCounts(Answer):
    both: int
    only_ours: int
    only_theirs: int
    pending: int = Field(description="ours that nobody has decided yet, and that they have no run of")


class ReportCounts(ShadowCounts):
    triggers: int


class ReportedTrigger(ShadowCounts):
    trigger: str
    in_shadow: bool = Field(description="now")
    shadow: list[ShadowPart] = Field(description="the parts of the period in which it was in shadow")
    lateness: ShadowLateness | None
    slots: list[ShadowSlot]
    more_slots: int


class ShadowReport(Answer):
    from_: Time = Field(alias="from")
    to: Time
    tolerance: str
    equal: bool
    counts: ReportCounts
    lateness: ShadowLateness | None
    triggers: list[ReportedTrigger]
    unknown: list[str] = Field(description="triggers of the other side that are not here")
    not_in_shadow: list[str] = Field(description="triggers of the other side that were not in shadow here")


class Released(Answer):
    kind: Literal["all", "target", "project", "deployment"]
    key: str
    released: int
    skipped: int


class Rate(Answer):
    per_second: float
    burst: int


class Target(Answer):
    name: str
    kind: str
    config: Mapping
    rate: Rate | Literal["unlimited"] | None
    max_in_flight: int | None
    source: str | None
    frozen: bool
    looked_at: Time | None
    due: int | None = None


class Deployment(Answer):
    key: str
    project: str
    domain: str
    name: str
    target: str
    action: Mapping
    parameters: Mapping
    kickoff_time_arg: str | None
    owner: str | None
    runbook: str | None
    late_after: str | None
    retry_for: str | None
    completion_timeout: str | None
    managed_by: str | None
    paused: bool
    pause_note: str | None
    paused_by: str | None
    paused_at: Time | None
    etag: str
    updated_at: Time | None
    triggers: list[str] | None = None


class Projected(Answer):
    scheduled_time: Time
    local_time: str
    revision: int
    target: str


class Slot(Answer):
    kind: Literal["run", "skip", "projected"]
    time: Time
    trigger: str
    run: Run | None = None
    skip: Skip | None = None
    projected: Projected | None = None


class FieldChange(Answer):
    field: str
    old: Any
    new: Any


class Slots(Answer):
    runs_withdrawn: list[Time] | None = None
    runs_withdrawn_count: int | None = None
    runs_added: list[Time] | None = None
    runs_added_count: int | None = None
    runs_kept: int | None = None
    slots_skipped: int | None = None


class Added(Slots):
    key: str
    schedule: Mapping


class Edited(Slots):
    key: str
    what: str
    renamed_from: str | None
    changes: list[FieldChange]


class Withdrawn(Slots):
    key: str


class AppliedSource(Answer):
    source: str
    added: list[Added]
    edited: list[Edited]
    withdrawn: list[Withdrawn]
    unchanged: int
    targets: list[str]
    targets_withdrawn: list[str]
    deployments: list[str]
    deployments_withdrawn: list[str]
    refused: str | None = Field(description="why this pass was stopped; allow_withdraw lets it go")
    left_out: list[ProblemItem] = Field(description="entries that can't be taken, and are kept as they were")


class Finding(Answer):
    """What a linter says of a trigger that was given; advice, no refusal."""

    code: str
    trigger: str
    reason: str
    fix: str
    file: str
    line: int | None


class Applied(Answer):
    written: bool
    changed: bool
    refused: bool
    sources: list[AppliedSource]
    lint: list[Finding]


class Validated(Answer):
    ok: bool
    problems: list[ProblemItem]
    lint: list[Finding]


class DatabaseStatus(Answer):
    kind: str
    location: str
    schema_: str | None = Field(alias="schema")


class TriggerCounts(Answer):
    active: int
    paused: int
    finished: int
    deleted: int
    error: int
    shadow: int


class RunCounts(Answer):
    scheduled: int
    held: int
    late: int
    backlog: int
    fired_24h: int
    failed_24h: int
    shadowed_24h: int
    bound: int = Field(description="a count that reaches it means at least")


class Counts(Answer):
    triggers: TriggerCounts
    runs: RunCounts


class TargetStatus(Answer):
    name: str
    kind: str
    free: int | None
    in_flight: int | None
    due: int
    frozen: bool
    rate: Rate | Literal["unlimited"] | None
    ahead: str | None = Field(description="what is wrong with runs that are to be there before they are due")
    error: str | None = Field(
        description="why it could not be started, or not be asked how its runs go; both are tried again"
    )
    waiting: str | None
    looked_at: Time


class Freeze(Answer):
    kind: Literal["all", "target", "project", "deployment"]
    key: str
    note: str | None
    who: str
    at: Time


class PausedDeployment(Answer):
    deployment: str
    note: str | None
    who: str
    at: Time


class SourceStatus(Answer):
    name: str
    version: int
    path: str | None
    listed_at: Time | None
    error: str | None
    error_at: Time | None


class TriggerError(Answer):
    trigger: str
    error: str
    error_count: int
    plan_due_at: Time | None


class Loop(Answer):
    name: str
    turned_at: Time | None
    error: str | None
    alive: bool


class Status(Answer):
    version: str
    now: Time
    database: DatabaseStatus
    down_since: Time | None
    counts: Counts
    next_due_at: Time | None
    next_plan_due_at: Time | None
    targets: list[TargetStatus]
    freezes: list[Freeze]
    paused_deployments: list[PausedDeployment]
    sources: list[SourceStatus]
    triggers_with_errors: list[TriggerError]
    loops: list[Loop]


class OwedTarget(Answer):
    name: str
    kind: str
    frozen: bool
    owed: int
    repeated_names: Literal["known", "forgotten", "unknown"] = Field(
        description="a run's name that it has had before this database was restored to an earlier moment"
    )
    note: str


class OwedTrigger(Answer):
    trigger: str
    target: str
    catch_up: str
    slots: int
    firing: int
    holding: int
    held_by: str | None
    skipping: int
    at_least: bool


class OwedNow(Answer):
    now: Time
    last_looked_at: Time | None
    targets: list[OwedTarget]
    triggers: list[OwedTrigger]
    more_triggers: int
    more_slots: int
    at_least: bool


class Page(Answer):
    next_page_token: str | None


class Deployments(Page):
    items: list[Deployment]


class Targets(Page):
    items: list[Target]


class Triggers(Page):
    items: list[Trigger]


class Revisions(Page):
    items: list[Revision]


class Runs(Page):
    items: list[Run]


class Skips(Page):
    items: list[Skip]


class Backfills(Page):
    items: list[Backfill]


class ProjectedTriggers(Answer):
    shown: int
    more: bool


class SlotPage(Page):
    items: list[Slot]
    projected_triggers: ProjectedTriggers


class Alive(Answer):
    ok: bool
    loops: list[Loop]


class Ready(Answer):
    ok: bool
