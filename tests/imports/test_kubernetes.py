"""CronJobs of Kubernetes become triggers that name the instants of its controller, which asks robfig/cron.

What the Go library itself answered is in `tests/cases/robfig_next.json`.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horarium.core.spec import CatchUp, TriggerSpec
from horarium.errors import InvalidInput
from horarium.sources.files import parse_triggers
from horarium.sources.imported import Imported
from horarium.sources.kubernetes import import_kubernetes
from horarium.targets import registry
from tests.imports.written import instants, only, specs
from tests.unit.zones_of import CASES, ZONES_2025B

EXAMPLE = Path(__file__).parents[2] / "examples" / "cronjobs.manifest"


def cronjob(schedule: object = "30 2 * * *", name: str = "nightly", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {"schedule": schedule, **spec},
    }


def imported(*items: dict[str, Any], **options: Any) -> Imported:
    return import_kubernetes("\n---\n".join(json.dumps(item) for item in items), "cronjobs.yaml", **options)


def one(schedule: str, **spec: Any) -> TriggerSpec:
    return only(imported(cronjob(schedule, **spec)))


def test_a_cronjob_makes_its_job_under_the_runs_name() -> None:
    spec = one("30 2 * * *", timeZone="Europe/Berlin", startingDeadlineSeconds=600)

    assert spec.schedule == {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "dialect": "robfig"}
    assert spec.catch_up is CatchUp.LATEST
    assert spec.max_age == timedelta(minutes=10)
    assert spec.active
    assert spec.action == {
        "run": 'kubectl create job "$HORARIUM_RUN_NAME" --from=cronjob/nightly',
        "shell": True,
    }


def test_the_command_is_one_that_kubectl_gets_as_meant(tmp_path: Path) -> None:
    """A stand-in for kubectl shows the arguments that a shell makes of the line."""
    fake = tmp_path / "kubectl"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    job = cronjob()
    job["metadata"]["namespace"] = "it's $HOME"
    line = only(imported(job)).action["run"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": path, "HORARIUM_RUN_NAME": "r1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "create",
        "job",
        "r1",
        "--from=cronjob/nightly",
        "--namespace=it's $HOME",
    ]


def test_several_documents_and_lists() -> None:
    text = "\n".join(
        (
            "# first",
            "---",
            json.dumps(cronjob(name="a")),
            "---",
            "# nothing",
            "---",
            "apiVersion: v1",
            "kind: List",
            "items:",
            f"- {json.dumps(cronjob(name='b'))}",
            '- {"apiVersion": "v1", "kind": "Service"}',
            "---",
            json.dumps({"apiVersion": "batch/v1", "kind": "CronJobList", "items": [{**cronjob(name="c")}]}),
        )
    )
    result = import_kubernetes(text, "x", timezone="UTC")
    assert list(result.names.values()) == ["a", "b", "c"]
    assert list(result.names) == [3, 10, 13]
    assert [note.text for note in result.notes if note.line == 11] == [
        "the kind 'Service' is passed over: it is no CronJob"
    ]


def test_namespaces_tell_cronjobs_of_one_name_apart() -> None:
    jobs = [cronjob(), cronjob(), cronjob()]
    jobs[1]["metadata"]["namespace"] = "prod"
    jobs[2]["metadata"]["namespace"] = "default"
    found = specs(imported(*jobs))
    assert list(found)[:2] == ["nightly", "prod.nightly"]
    assert found["prod.nightly"].action["run"].endswith("--namespace=prod")
    assert len(found) == 3


def test_anchors_merge_keys_and_the_booleans_of_yaml_1_1() -> None:
    text = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
spec: &spec
  schedule: "0 1 * * *"
  timeZone: UTC
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: b}
spec: {schedule: "0 1 * * *", timeZone: UTC, suspend: yes}
"""
    found = specs(import_kubernetes(text, "x"))
    assert [spec.active for spec in found.values()] == [True, False]


def test_without_a_time_zone_the_controllers_counts() -> None:
    result = imported(cronjob("0 9 * * *"), timezone="Asia/Tokyo")
    assert only(result).schedule["timezone"] == "Asia/Tokyo"
    assert "taken to be Asia/Tokyo" in result.notes[0].text
    with pytest.raises(InvalidInput):
        imported(cronjob(), timezone="Nowhere/Land")


@pytest.mark.parametrize("prefix", ["CRON_TZ", "TZ"])
def test_a_zone_in_the_schedule_wins(prefix: str) -> None:
    spec = one(f"{prefix}=Asia/Tokyo 0 9 * * *")
    assert instants(spec, datetime(2026, 1, 1, tzinfo=UTC), 1) == [datetime(2026, 1, 2, tzinfo=UTC)]


def test_every_counts_from_the_last_slot_or_the_creation() -> None:
    job = cronjob("@every 90m")
    job["metadata"]["creationTimestamp"] = "2026-01-01T00:00:07Z"
    after = datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert instants(only(imported(job)), after, 1) == [datetime(2026, 1, 1, 1, 30, 7, tzinfo=UTC)]
    job["status"] = {"lastScheduleTime": "2026-02-01T00:00:01Z"}
    after = datetime(2026, 2, 1, 0, 0, 1, tzinfo=UTC)
    assert instants(only(imported(job)), after, 1) == [datetime(2026, 2, 1, 1, 30, 1, tzinfo=UTC)]
    bare = imported(cronjob("@every 90m"))
    assert any("counts from 1970" in note.text for note in bare.notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": None}, "no spec.schedule"),
        ({"schedule": 5}, "no text"),
        ({"schedule": "0 9 * * 7"}, "ends at 6"),
        ({"schedule": "0 9 L * *"}, ""),
        ({"schedule": "@reboot"}, ""),
        ({"timeZone": "Nowhere/Land"}, "tz database"),
        ({"timeZone": "Local"}, "tz database"),
        ({"timeZone": ""}, "no name of a zone"),
        ({"schedule": "TZ=UTC 0 9 * * *", "timeZone": "UTC"}, "Kubernetes refuses"),
        ({"startingDeadlineSeconds": -1}, "no number of seconds"),
        ({"suspend": "no"}, "neither true nor false"),
        ({"concurrencyPolicy": "Sometimes"}, "none of Allow"),
    ],
)
def test_what_cannot_be_carried_over_is_named(change: dict[str, Any], reason: str) -> None:
    result = imported(cronjob(name="kept"), cronjob(name="lost", **change))
    (dropped,) = result.dropped
    assert (dropped.line, dropped.text, dropped.whole) == (3, "lost", True)
    assert reason in dropped.reason
    assert list(specs(result)) == ["kept"]
    assert "Not carried over, line 3: lost" in result.text
    assert all(note.line == 1 for note in result.notes)


def test_a_policy_that_horarium_lacks_is_named_at_its_place() -> None:
    result = imported(cronjob(concurrencyPolicy="Forbid", timeZone="UTC"))
    (dropped,) = result.dropped
    assert not dropped.whole
    assert list(specs(result)) == ["nightly"]
    assert "  # Not carried over, line 1: concurrencyPolicy: Forbid: " in result.text
    assert imported(cronjob(concurrencyPolicy="Allow")).dropped == ()


@pytest.mark.parametrize(
    ("policy", "overlap"), [("Forbid", "queue"), ("Replace", "replace"), ("Allow", "allow")]
)
def test_by_the_api_a_policy_is_carried_over(policy: str, overlap: str) -> None:
    item = cronjob(concurrencyPolicy=policy, timeZone="UTC")
    item["metadata"]["namespace"] = "shop"
    result = imported(item, server="https://k8s.example:6443/")
    spec = only(result)
    assert spec.action == {"cronjob": "nightly", "namespace": "shop"}
    assert (spec.overlap.value, result.dropped) == (overlap, ())
    (target,) = parse_triggers(result.text, "imported.yaml", registry).listing.targets
    assert (target.name, target.kind) == ("kubernetes", "kubernetes")
    assert target.config == {"server": "https://k8s.example:6443", "token": "env:KUBERNETES_TOKEN"}


def test_inside_the_cluster_nobody_needs_an_address() -> None:
    assert only(imported(cronjob(), server="cluster")).action == {"cronjob": "nightly"}
    with pytest.raises(InvalidInput, match="or cluster where Horarium runs in it"):
        imported(cronjob(), server="k8s.example")


def test_another_version_of_the_api_is_not_guessed_at() -> None:
    result = imported({**cronjob(), "apiVersion": "batch/v2alpha1"})
    assert "not batch/v1" in result.dropped[0].reason


@pytest.mark.parametrize("text", ["a: [", "a: *nowhere", "%YAML 9", "\t- a", 'a: "\\UFFFFFFFF"'])
def test_what_is_no_yaml_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        import_kubernetes(text, "x")
    assert caught.value.problems[0].line == 1


def test_hostile_yaml_makes_nothing() -> None:
    """Tags of Python make no objects, and aliases that stand for terabytes cost nothing."""
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30))
    text = f"kind: !!python/object/apply:os.system [exit 1]\nl0: &l0 [a]\n{levels}\n"
    for nothing in (text, f"l0: &l0 [a]\n{levels}\nkind: *l29"):
        with pytest.raises(InvalidInput, match="no CronJob in it"):
            import_kubernetes(nothing, "x")
    job = "kind: CronJob\napiVersion: batch/v1\nmetadata: {name: a}\n"
    for spec in ("schedule: *l29", "schedule: '@daily', timeZone: *l29", "schedule: '@daily', suspend: *l29"):
        (dropped,) = import_kubernetes(f"l0: &l0 [a]\n{levels}\n{job}spec: {{{spec}}}\n", "x").dropped
        assert "a list" in dropped.reason


@pytest.mark.parametrize("case", json.loads((CASES / "robfig_next.json").read_text())[::7], ids=str)
def test_the_instants_are_those_of_the_go_library(case: dict[str, Any]) -> None:
    spec = only(imported(cronjob(case["expr"], timeZone=case.get("tz", "UTC"))))
    expected = [datetime.fromisoformat(text) for text in case["next"]]
    start = datetime.fromisoformat(case["from"])
    rising = all(a < b for a, b in zip([start, *expected], expected, strict=False))
    # Where the library answers with the instant that it was asked about, for ever, we go on.
    count = len(expected) if rising else 0
    assert instants(spec, start, count, ZONES_2025B) == expected[:count]


def test_the_example_is_imported() -> None:
    result = import_kubernetes(EXAMPLE.read_text(), "examples/cronjobs.manifest")
    assert list(specs(result)) == ["shop.backup", "shop.report"]
    assert [(item.text, item.whole) for item in result.dropped] == [
        ("concurrencyPolicy: Forbid", False),
        ("shop/sunday", True),
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            cronjob,
            st.text(max_size=12) | st.sampled_from(["0 9 * * 1", "@daily", "@every 1h", "TZ=UTC * * * * *"]),
            st.text(max_size=12) | st.sampled_from(["a", "b"]),
            timeZone=st.none() | st.sampled_from(["UTC", "Europe/Berlin", "x"]),
            suspend=st.none() | st.booleans(),
            concurrencyPolicy=st.none() | st.sampled_from(["Allow", "Forbid", "Replace"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_cronjob_is_carried_over_or_named(jobs: list[dict[str, Any]]) -> None:
    result = imported(*jobs)
    assert len(specs(result)) == len(result.names)
    replaced = sum("the last one counts" in note.text for note in result.notes)
    assert len(result.names) + sum(item.whole for item in result.dropped) + replaced == len(jobs)


def test_of_manifests_of_one_name_the_cluster_has_the_last() -> None:
    first, other, last = cronjob("@daily"), cronjob("@weekly"), cronjob("@hourly")
    other["metadata"]["namespace"] = "shop"
    found = specs(imported(first, other, last))
    assert {name: spec.schedule["cron"] for name, spec in found.items()} == {
        "nightly": "@hourly",
        "shop.nightly": "@weekly",
    }


def test_a_field_that_kubernetes_does_not_know_is_named() -> None:
    result = imported(cronjob(timezone="Europe/Berlin", suspended=True))
    assert [(item.text, item.whole) for item in result.dropped] == [("timezone", False), ("suspended", False)]
    assert "(try: timeZone)" in result.dropped[0].reason
    assert list(specs(result)) == ["nightly"]


@pytest.mark.parametrize(
    "schedule", ["{{ .Values.cron }}", '"{{ .Values.cron }}"', '"0 {{ .Values.hour }} * * *"']
)
def test_a_template_is_named_as_one(schedule: str) -> None:
    text = f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: a}}\nspec:\n  schedule: {schedule}\n"
    (dropped,) = import_kubernetes(text, "x").dropped
    assert (dropped.line, "helm template" in dropped.reason) == (5, True)


def test_a_template_that_is_no_yaml_is_told_how_to_become_some() -> None:
    """As charts have them: lines that are Helm's alone."""
    with pytest.raises(InvalidInput, match=r"this is not YAML.*helm template"):
        import_kubernetes("{{- if .Values.on }}\napiVersion: batch/v1\nkind: CronJob\n{{- end }}\n", "x")
