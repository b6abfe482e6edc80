"""The three-way reconcile as a table: what is known, what is listed, what a pass would do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.reconcile import API, Existing, Known, Reconciled, reconcile
from horarium.core.revision import Status
from horarium.core.spec import DeploymentSpec, Listing, Step, TargetSpec, TriggerEntry, TriggerSpec

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


def key(name: str) -> TriggerKey:
    return TriggerKey("default", "default", name, "default")


def entry(name: str, cron: str = "0 * * * *", renamed_from: str | None = None) -> TriggerEntry:
    return TriggerEntry(key(name), TriggerSpec(schedule={"cron": cron}, target="work"), renamed_from)


def existing(
    name: str, cron: str = "0 * * * *", source: str = "s", status: Status = Status.ACTIVE
) -> Existing:
    return Existing(hash(name) % 1_000, key(name), entry(name, cron).spec.digest(), status, source, NOW)


def known(*items: Existing) -> Known:
    """With a target that others define, for all to run on."""
    return Known({item.key: item for item in items}, {"work": ("other", "x")}, {})


def run(there: Known, *entries: TriggerEntry, source: str = "s", **rest: bool) -> Reconciled:
    return reconcile(Listing(source, triggers=entries), there, NOW, **rest)


def names(found: Reconciled) -> tuple[list[str], list[str], list[str], int]:
    """Added, edited, withdrawn, unchanged."""
    return (
        [item.key.deployment for item in found.added],
        [item.entry.key.deployment for item in found.edited],
        [item.key.deployment for item in found.withdrawn],
        found.unchanged,
    )


@pytest.mark.parametrize(
    ("there", "listed", "expected"),
    [
        ([], [entry("a")], (["a"], [], [], 0)),
        ([existing("a")], [entry("a")], ([], [], [], 1)),
        ([existing("a")], [entry("a", "1 * * * *")], ([], ["a"], [], 0)),
        ([existing("a")], [], ([], [], ["a"], 0)),
        ([existing("a", status=Status.DELETED)], [], ([], [], [], 0)),
        ([existing("a", status=Status.DELETED)], [entry("a")], ([], ["a"], [], 0)),
        ([existing("a", status=Status.DELETED, source="other")], [entry("a")], ([], ["a"], [], 0)),
        ([existing("a", status=Status.FINISHED)], [entry("a")], ([], [], [], 1)),
        ([existing("a", source="other")], [], ([], [], [], 0)),
        ([existing("a")], [entry("b", renamed_from="a/default")], ([], ["b"], [], 0)),
        ([existing("b")], [entry("b", renamed_from="a/default")], ([], [], [], 1)),
        ([], [entry("b", renamed_from="a/default")], (["b"], [], [], 0)),
    ],
)
def test_what_a_pass_would_do(
    there: list[Existing], listed: list[TriggerEntry], expected: tuple[list[str], list[str], list[str], int]
) -> None:
    found = run(known(*there), *listed)
    assert names(found) == expected
    assert found.problems == ()


@pytest.mark.parametrize("owner", ["other", API])
def test_what_another_manages_is_a_problem(owner: str) -> None:
    found = run(known(existing("a", source=owner)), entry("a"))
    assert [problem.code for problem in found.problems] == ["managed"]
    found = run(known(existing("a", source=owner)), entry("b", renamed_from="a/default"))
    assert [problem.code for problem in found.problems] == ["managed"]


def test_a_partial_listing_withdraws_nothing() -> None:
    found = run(
        known(existing("a", source=API), existing("b", source=API)), entry("a"), source=API, partial=True
    )
    assert names(found) == ([], [], [], 1)


@pytest.mark.parametrize(
    ("total", "gone", "refused"), [(5, 5, False), (6, 6, True), (60, 6, False), (60, 7, True)]
)
def test_a_withdrawal_over_a_tenth_and_over_five_stops(total: int, gone: int, refused: bool) -> None:
    there = known(*(existing(f"t{number}") for number in range(total)))
    listed = [entry(f"t{number}") for number in range(gone, total)]
    assert (run(there, *listed).refused is not None) is refused
    assert run(there, *listed, allow_withdraw=True).refused is None


def test_a_key_that_stands_twice_is_a_problem() -> None:
    assert [problem.code for problem in run(known(), entry("a"), entry("a")).problems] == ["duplicate"]


def test_a_rename_needs_an_old_name_that_is_free() -> None:
    there = known(existing("old"))
    still = run(there, entry("old"), entry("new", renamed_from="old/default"))
    assert [problem.code for problem in still.problems] == ["renamed"]
    twice = run(there, entry("a", renamed_from="old/default"), entry("b", renamed_from="old/default"))
    assert [problem.code for problem in twice.problems] == ["renamed"]


def once(name: str, at: str, renamed_from: str | None = None) -> TriggerEntry:
    return TriggerEntry(key(name), TriggerSpec(schedule={"at": at}, target="work"), renamed_from)


def test_a_past_instant_is_refused_where_it_is_new_or_changed_only() -> None:
    past, future = "2026-01-05T09:00:00Z", "2026-01-05T11:00:00Z"
    old = Existing(1, key("a"), once("a", past).spec.digest(), Status.FINISHED, "s", NOW)
    assert [problem.code for problem in run(known(), once("a", past)).problems] == ["past"]
    assert run(known(), once("a", future)).problems == ()
    assert run(known(old), once("a", past)).problems == ()
    assert run(known(old), once("b", past, "a/default")).problems == ()
    assert [problem.code for problem in run(known(replace(old, digest="x")), once("a", past)).problems] == [
        "past"
    ]
    revived = replace(old, status=Status.DELETED)
    assert [problem.code for problem in run(known(revived), once("a", past)).problems] == ["past"]


def test_targets_and_deployments_that_are_alike_are_shared() -> None:
    target = TargetSpec("work", "http")
    deployment = DeploymentSpec(DeploymentKey("default", "default", "a"), "work")
    listing = Listing("s", (target,), (deployment,))
    mine = Known({}, {"work": ("s", "old")}, {})
    assert reconcile(listing, mine, NOW).targets == (target,)
    alike = Known(
        {}, {"work": ("other", target.digest())}, {"default/default/a": ("other", deployment.digest())}
    )
    found = reconcile(listing, alike, NOW)
    assert (found.targets, found.deployments, found.problems) == ((), (), ())
    different = Known({}, {"work": ("other", "x")}, {"default/default/a": ("other", "x")})
    assert [problem.code for problem in reconcile(listing, different, NOW).problems] == ["managed", "managed"]


def test_with_entries_that_could_not_be_read_no_part_is_withdrawn() -> None:
    there = Known({key("a"): existing("a")}, {"work": ("s", "x")}, {"default/default/a": ("s", "x")})
    assert reconcile(Listing("s"), there, NOW).withdrawn_targets == ("work",)
    found = reconcile(Listing("s", kept=frozenset({key("a")})), there, NOW)
    assert (found.withdrawn, found.withdrawn_targets, found.withdrawn_deployments) == ((), (), ())


A, B = entry("a").spec, entry("a", "*/2 * * * *").spec
OFF = replace(A, active=False)


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ([], []),
        ([(1, A)], []),
        ([(1, OFF)], [(1, OFF), (9, A)]),
        ([(1, None)], [(1, None), (9, A)]),
        ([(1, OFF), (2, OFF), (3, A), (4, A)], [(1, OFF), (3, A)]),
        ([(-1, OFF)], []),
        ([(0, OFF)], []),
        ([(-1, OFF), (1, B), (2, OFF)], [(1, B), (2, OFF), (9, A)]),
    ],
)
def test_what_was_otherwise_unseen_is_a_change_though_it_is_as_it_was(
    earlier: list[tuple[int, TriggerSpec | None]], expected: list[tuple[int, TriggerSpec | None]]
) -> None:
    """Minutes from when the rule that is known came into force; the listed one came nine after."""

    def steps(given: list[tuple[int, TriggerSpec | None]]) -> tuple[Step, ...]:
        return tuple(Step(NOW + timedelta(minutes=minute), spec) for minute, spec in given)

    listed = replace(entry("a"), since=NOW + timedelta(minutes=9), earlier=steps(earlier))
    found = run(known(existing("a")), listed)
    assert existing("a").steps_to(listed) == steps(expected)
    assert names(found) == (([], ["a"], [], 0) if expected else ([], [], [], 1))
    assert found.problems == ()
