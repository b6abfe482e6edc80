"""Lists of Flyte's API: filters, sorts and pages, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from connectrpc.code import Code
from flyteidl2.common.identifier_pb2 import ProjectIdentifier
from flyteidl2.common.list_pb2 import Filter, ListRequest, Sort
from flyteidl2.task.common_pb2 import TYPE_NONE, TriggerAutomationSpec
from flyteidl2.task.task_definition_pb2 import TaskName
from flyteidl2.task.task_service_pb2 import ListTasksRequest, ListVersionsRequest
from flyteidl2.trigger import trigger_service_pb2 as calls

from tests.flyte.api import DOMAIN, PROJECT, TASK, Api, cron, place, task_id, task_trigger, trigger_name
from tests.flyte.test_api_triggers import refused


def where(field: str, function: Any, *values: str) -> ListRequest:
    return ListRequest(filters=[Filter(field=field, function=function, values=values)])


def by(key: str, direction: Any = Sort.ASCENDING, **more: Any) -> ListRequest:
    return ListRequest(sort_by=Sort(key=key, direction=direction), **more)


async def listed(api: Api, request: ListRequest | None = None, **scope: Any) -> list[str]:
    """The names of triggers, over all pages."""
    scope = scope or {"project_id": place()}
    found: list[str] = []
    request = request or ListRequest()
    while True:
        page = await api.triggers.list_triggers(calls.ListTriggersRequest(request=request, **scope))
        found += [item.id.name.name for item in page.triggers]
        if not page.token:
            return found
        request.token = page.token


@pytest.fixture
async def some(api: Api) -> Api:
    """Five triggers of two tasks, deployed a minute apart; `beta` is off."""
    clock = api.world.clock
    await api.deploy(task_trigger("alpha"))
    clock.advance(timedelta(minutes=1))
    await api.deploy(task_trigger("beta"), task_trigger("Gamma"), version="v2")
    clock.advance(timedelta(minutes=1))
    off = calls.UpdateTriggersRequest(names=[trigger_name("beta")], active=False)
    await api.triggers.update_triggers(off)
    await api.deploy(
        task_trigger("delta"),
        task_trigger("by-hand", TriggerAutomationSpec(type=TYPE_NONE)),
        name="env.other",
    )
    return api


async def test_what_is_active_and_was_switched_last_comes_first(some: Api) -> None:
    assert await listed(some) == ["delta", "Gamma", "alpha", "beta", "by-hand"]


async def test_a_list_is_of_a_project_a_task_or_a_version(some: Api) -> None:
    elsewhere = ProjectIdentifier(name=PROJECT, domain="production")
    assert await listed(some, project_id=elsewhere) == []
    name = TaskName(project=PROJECT, domain=DOMAIN, name="env.other")
    assert await listed(some, task_name=name) == ["delta", "by-hand"]
    assert await listed(some, task_id=task_id("v2")) == ["Gamma", "beta"]
    assert await listed(some, org="whoever") == ["delta", "Gamma", "alpha", "beta", "by-hand"]


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (where("name", Filter.EQUAL, "alpha"), ["alpha"]),
        (where("name", Filter.NOT_EQUAL, "alpha"), ["Gamma", "beta", "by-hand", "delta"]),
        (where("name", Filter.VALUE_IN, "alpha", "beta"), ["alpha", "beta"]),
        (where("name", Filter.VALUE_NOT_IN, "alpha", "beta"), ["Gamma", "by-hand", "delta"]),
        (where("name", Filter.CONTAINS, "Gam"), ["Gamma"]),
        (where("name", Filter.CONTAINS, "gam"), []),
        (where("name", Filter.CONTAINS, "a%"), []),
        (where("name", Filter.CONTAINS_CASE_INSENSITIVE, "gAM"), ["Gamma"]),
        (where("name", Filter.ENDS_WITH, "ta"), ["beta", "delta"]),
        (where("name", Filter.ENDS_WITH, "a-long-text-that-is-no-name"), []),
        (where("name", Filter.NOT_ENDS_WITH, "ta"), ["Gamma", "alpha", "by-hand"]),
        (where("name", Filter.GREATER_THAN, "beta"), ["by-hand", "delta"]),
        (where("name", Filter.LESS_THAN_OR_EQUAL, "alpha"), ["Gamma", "alpha"]),
        (where("active", Filter.EQUAL, "false"), ["beta", "by-hand"]),
        (where("task_version", Filter.EQUAL, "v2"), ["Gamma", "beta"]),
        (where("task_name", Filter.EQUAL, "env.other"), ["by-hand", "delta"]),
        (where("automation_type", Filter.EQUAL, "TYPE_NONE"), ["by-hand"]),
        (where("automation_type", Filter.VALUE_IN, "TYPE_NONE", "TYPE_SCHEDULE"), None),
        (where("deployed_at", Filter.LESS_THAN, "2026-01-05T10:00:30Z"), ["alpha"]),
        (where("updated_at", Filter.GREATER_THAN, "2026-01-05T10:01:59Z"), ["beta", "by-hand", "delta"]),
    ],
    ids=lambda item: str(item.filters[0]) if isinstance(item, ListRequest) else "",
)
async def test_a_filter_keeps_what_it_says(some: Api, request_: ListRequest, found: list[str] | None) -> None:
    everything = ["Gamma", "alpha", "beta", "by-hand", "delta"]
    assert sorted(await listed(some, request_)) == (everything if found is None else found)


@pytest.mark.parametrize(
    ("key", "rising"),
    [
        ("name", None),
        ("deployed_at", ["alpha", "beta", "Gamma", "delta", "by-hand"]),
        ("active", ["beta", "by-hand", "alpha", "Gamma", "delta"]),
        ("task_version", ["alpha", "delta", "by-hand", "beta", "Gamma"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_every_order_has_pages_that_name_each_once(
    some: Api, key: str, rising: list[str] | None, limit: int
) -> None:
    up = await listed(some, by(key, limit=limit))
    down = await listed(some, by(key, Sort.DESCENDING, limit=limit))
    assert sorted(up) == sorted(down) == ["Gamma", "alpha", "beta", "by-hand", "delta"]
    if rising is None:  # the database's own order of text, which no page may change
        assert up == await listed(some, by(key)) == list(reversed(down))
    else:
        assert up == rising


async def test_a_trigger_that_comes_between_two_pages_hides_none(some: Api) -> None:
    asked = calls.ListTriggersRequest(project_id=place(), request=by("name", limit=2))
    first = await some.triggers.list_triggers(asked)
    await some.deploy(task_trigger("aaa"), version="v3")
    names = [trigger_name("alpha")]
    await some.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names))
    rest = await listed(some, by("name", limit=2, token=first.token))
    assert not {item.id.name.name for item in first.triggers} & set(rest)
    assert {"beta", "by-hand", "delta"} <= {item.id.name.name for item in first.triggers} | set(rest)


async def test_a_token_leads_nowhere_under_another_order(some: Api) -> None:
    asked = calls.ListTriggersRequest(project_id=place(), request=by("name", limit=2))
    token = (await some.triggers.list_triggers(asked)).token
    others = by("deployed_at", token=token), by("name", Sort.DESCENDING, token=token), ListRequest(token="7")
    for request in others:
        await refused(listed(some, request), Code.INVALID_ARGUMENT, "/request/token")


@pytest.mark.parametrize(
    ("request_", "pointer"),
    [
        (where("nme", Filter.EQUAL, "a"), "/request/filters/0/field"),
        (where("name", Filter.EXISTS), "/request/filters/0/function"),
        (where("name", Filter.EQUAL), "/request/filters/0/values"),
        (where("name", Filter.EQUAL, "a", "b"), "/request/filters/0/values"),
        (where("name", Filter.CONTAINS, ""), "/request/filters/0/values/0"),
        (where("active", Filter.EQUAL, "yes"), "/request/filters/0/values/0"),
        (where("active", Filter.CONTAINS, "true"), "/request/filters/0/function"),
        (where("deployed_at", Filter.EQUAL, "yesterday"), "/request/filters/0/values/0"),
        (where("automation_type", Filter.EQUAL, "TYPE_CRON"), "/request/filters/0/values/0"),
        (where("name", Filter.EQUAL, "a\0"), "/request/filters/0/values/0"),
        (by("spec"), "/request/sort_by_fields/0/key"),
        (ListRequest(limit=100_000), "/request/limit"),
        (ListRequest(raw_filters=["name=a"]), "/request/raw_filters"),
        (ListRequest(token="no token"), "/request/token"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
async def test_a_list_that_can_not_be_had_is_refused_by_its_field(
    api: Api, request_: ListRequest, pointer: str
) -> None:
    await refused(listed(api, request_), Code.INVALID_ARGUMENT, pointer)


async def test_a_history_is_sorted_filtered_and_paged(api: Api) -> None:
    await api.deploy(task_trigger("alpha"))
    for hour in range(1, 5):
        api.world.clock.advance(timedelta(minutes=1))
        await api.put("alpha", cron(f"0 {hour} * * *"))
    off = calls.UpdateTriggersRequest(names=[trigger_name("alpha")], active=False)
    await api.triggers.update_triggers(off)

    async def numbers(request: ListRequest) -> list[int]:
        found: list[int] = []
        while True:
            asked = calls.GetTriggerRevisionHistoryRequest(name=trigger_name("alpha"), request=request)
            page = await api.triggers.get_trigger_revision_history(asked)
            found += [item.id.revision for item in page.triggers]
            if not page.token:
                return found
            request.token = page.token

    assert await numbers(ListRequest(limit=4)) == [6, 5, 4, 3, 2, 1]
    assert await numbers(by("revision", limit=1)) == [1, 2, 3, 4, 5, 6]
    assert await numbers(where("action", Filter.EQUAL, "TRIGGER_REVISION_ACTION_DEACTIVATE")) == [6]
    assert await numbers(where("revision", Filter.VALUE_IN, "2", "3")) == [3, 2]
    assert await numbers(where("deployed_at", Filter.LESS_THAN, "2026-01-05T10:01:30Z")) == [2, 1]


async def test_tasks_and_their_versions(some: Api) -> None:
    async def names(request: ListRequest) -> list[tuple[str, str]]:
        found = await some.tasks.list_tasks(ListTasksRequest(project_id=place(), request=request))
        return [(item.task_id.name, item.task_id.version) for item in found.tasks]

    assert await names(ListRequest()) == [(TASK, "v2"), ("env.other", "v1")]
    assert await names(where("name", Filter.EQUAL, TASK)) == [(TASK, "v2")]
    assert await names(where("name", Filter.CONTAINS, "other")) == [("env.other", "v1")]
    assert await names(by("created_at", Sort.DESCENDING, limit=1)) == [("env.other", "v1")]
    asked = ListVersionsRequest(task_name=TaskName(project=PROJECT, domain=DOMAIN, name=TASK))
    assert [item.version for item in (await some.tasks.list_versions(asked)).versions] == ["v2"]
