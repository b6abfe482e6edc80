"""Results that receivers report: with the run's own token, once, and nothing else."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from horarium.core.callback import mint
from horarium.core.run import RunState
from horarium.targets.http import signing_key
from tests.surfaces.api_world import Reply, World

SECRET = "a secret of the callbacks"
OLD = "the secret before"


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBACK_SECRET", SECRET)
    monkeypatch.setenv("OLD_SECRET", OLD)
    monkeypatch.setenv("OTHER_SECRET", "the secret of another target")


async def fired(world: World, state: RunState = RunState.FIRED) -> list[str]:
    """Names of runs that their receivers have: of `mine`, and of `other` on another target."""
    http = {"url": "http://127.0.0.1:9/hook", "callback_secret": ["env:CALLBACK_SECRET", "env:OLD_SECRET"]}
    text = json.dumps(
        {
            "source": "git/etl",
            "targets": {
                "hook": {"http": http},
                "else": {"http": {**http, "callback_secret": "env:OTHER_SECRET"}},
            },
            "deployments": {
                "mine": {"target": "hook", "callback": True, "cron": "* * * * *", "overlap": "queue"},
                "other": {"target": "else", "callback": True, "cron": "* * * * *"},
            },
        }
    )
    applied = await world.post("/apply", {"files": [{"path": "triggers.json", "text": text}]})
    assert applied.status == 200, applied.body
    await world.plan()
    world.clock.advance(61)
    await world.fire(state, None if state is RunState.FIRED else "refused")
    found = await world.all("/runs", 100, state=state.value)
    by_deployment = {run["trigger"].split("/")[2]: run["name"] for run in found}
    return [by_deployment["mine"], by_deployment["other"]]


def token(world: World, name: str, secret: str = SECRET, seconds: float = 3_600) -> str:
    return mint(signing_key(secret), f"default/default/{name}", world.now() + timedelta(seconds=seconds))


async def report(world: World, name: str, bearer: str | None, body: Any) -> Reply:
    headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
    return await world.call("POST", f"/runs/default/default/{name}/result", body, headers=headers)


async def result(world: World, name: str) -> tuple[str | None, str | None, str | None]:
    run = await world.get(f"/runs/default/default/{name}")
    return run["result"], run["result_at"], run["result_detail"]


async def test_a_receiver_reports_the_end_of_a_run_and_the_loops_are_woken(world: World) -> None:
    name, other = await fired(world)
    world.woken.clear()
    body = {"result": "errored", "detail": "no such table\nline 2", "at": world.time(-5)}
    told = await report(world, name, token(world, name), body)
    assert (told.status, told.json) == (
        200,
        {"run": f"default/default/{name}", "result": "errored", "written": True},
    )
    assert await result(world, name) == ("errored", world.time(-5), "no such table\nline 2")
    assert world.woken == [None]
    assert await result(world, other) == (None, None, None)


async def test_failed_is_another_word_for_errored(world: World) -> None:
    name, _ = await fired(world)
    told = await report(world, name, token(world, name), {"result": "failed", "detail": "exit code 3"})
    assert (told.status, told.json["result"]) == (200, "errored")
    assert (await result(world, name))[::2] == ("errored", "exit code 3")


async def test_the_same_report_again_changes_nothing_and_the_first_end_stays(world: World) -> None:
    name, _ = await fired(world)
    bearer = token(world, name)
    assert (await report(world, name, bearer, {"result": "running", "detail": "half"})).json["written"]
    assert await result(world, name) == ("running", None, "half")
    assert (await report(world, name, bearer, {"result": "succeeded"})).json["written"]
    before, ended = world.dump(), await result(world, name)
    world.clock.advance(1)
    for late in ("succeeded", "running"):
        again = await report(world, name, bearer, {"result": late, "detail": "late"})
        assert (again.status, again.json["result"], again.json["written"]) == (200, "succeeded", False)
    against = await report(world, name, bearer, {"result": "errored"})
    assert (against.status, await result(world, name)) == (409, ended)
    assert "has ended already: succeeded" in against.json["detail"]
    assert world.dump() == before


async def test_without_a_token_of_this_run_that_holds_nothing_is_told_and_nothing_changes(
    world: World,
) -> None:
    name, other = await fired(world)
    before = world.dump()
    wrong = [
        (name, None),
        (name, "v1"),
        (name, token(world, name, "a guess")),
        (name, token(world, other)),
        (other, token(world, other)),  # signed by the secret of another target
        ("r0000000000000000", token(world, "r0000000000000000")),
        (name, token(world, name, seconds=0)),
    ]
    answers = [await report(world, run, bearer, {"result": "succeeded"}) for run, bearer in wrong]
    assert {answer.status for answer in answers} == {401}
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}
    details = [answer.json["detail"] for answer in answers]
    assert details[1:6] == ["the token is not one of this run"] * 5, "whether a run is there is not told"
    assert "held until" in details[6]
    for bearer in (bearer for _, bearer in wrong if bearer is not None and len(bearer) > 10):
        assert all(bearer not in answer.body.decode() for answer in answers)
    unread = await world.call(
        "POST",
        f"/runs/default/default/{name}/result",
        raw=b"{" * 1_000,
        headers={"authorization": "Bearer x"},
    )
    assert unread.status == 401, "a stranger's body is not read"
    assert world.dump() == before


async def test_an_older_secret_of_a_list_is_taken_and_a_secret_that_is_gone_asks_to_come_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = await fired(world)
    monkeypatch.delenv("CALLBACK_SECRET")
    gone = await report(world, name, token(world, name, OLD), {"result": "succeeded"})
    assert gone.status == 503
    monkeypatch.setenv("CALLBACK_SECRET", SECRET)
    assert (await report(world, name, token(world, name, OLD), {"result": "succeeded"})).status == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/result"),
        ({"result": "unknown"}, "/result"),
        ({"result": "interrupted"}, "/result"),
        ({"result": "succeeded", "detail": "x" * 2_001}, "/detail"),
        ({"result": "succeeded", "detail": "bell \x07"}, "/detail"),
        ({"result": "succeeded", "at": "yesterday"}, "/at"),
        ({"result": "succeeded", "at": "2026-01-05T12:00:00Z"}, "/at"),
        ({"result": "succeeded", "at": "2026-01-05T09:00:00Z"}, "/at"),
        ({"result": "succeeded", "who": "me"}, "/who"),
    ],
)
async def test_a_wrong_report_is_answered_by_its_field(
    world: World, body: dict[str, Any], pointer: str
) -> None:
    name, _ = await fired(world)
    before = world.dump()
    wrong = await report(world, name, token(world, name), body)
    assert (wrong.status, wrong.pointers) == (422, [pointer])
    assert world.dump() == before


async def test_a_clock_that_is_a_little_ahead_reports_now(world: World) -> None:
    name, _ = await fired(world)
    body = {"result": "succeeded", "at": world.time(55)}
    assert (await report(world, name, token(world, name), body)).status == 200
    assert (await result(world, name))[1] == world.time()


async def test_an_end_before_the_run_was_fired_is_refused(world: World) -> None:
    """By more than clocks differ: it would be shown as a run that ended before it began."""
    name, _ = await fired(world)
    bearer = token(world, name)
    wrong = await report(world, name, bearer, {"result": "succeeded", "at": world.time(-7_200)})
    (problem,) = wrong.json["problems"]
    assert (wrong.status, problem["pointer"], problem["got"]) == (422, "/at", world.time(-7_200))
    assert world.time() in problem["rule"]
    assert await result(world, name) == (None, None, None)


async def test_a_receiver_comes_under_the_public_name_where_all_else_stays_shut(world: World) -> None:
    name, _ = await fired(world)
    path = f"/runs/default/default/{name}"
    headers = {"host": "horarium.example.com", "authorization": f"Bearer {token(world, name)}"}
    assert (
        await world.call("POST", f"{path}/result", {"result": "succeeded"}, headers=headers)
    ).status == 200
    assert (await world.call("POST", f"{path}/retry", headers=headers)).status == 421
    assert (await world.call("GET", path, headers=headers)).status == 421
    assert (await world.call("GET", f"{path}/result", headers=headers)).status == 405


async def test_a_callback_on_a_target_of_another_source_is_checked_too(world: World) -> None:
    def file(name: str, **words: Any) -> dict[str, str]:
        return {"path": f"{name}.json", "text": json.dumps({"source": name, **words})}

    bare = {"hook": {"http": {"url": "http://127.0.0.1:9/hook"}}}
    signed = {"hook": {"http": {**bare["hook"]["http"], "callback_secret": "env:CALLBACK_SECRET"}}}
    job = {"target": "hook", "callback": True, "cron": "* * * * *"}
    assert (await world.post("/apply", {"files": [file("targets", targets=bare)]})).status == 200
    uses = file("uses", deployments={"job": job})
    refused = await world.post("/apply", {"files": [uses]})
    assert refused.status == 422
    assert [problem["pointer"] for problem in refused.json["problems"]] == ["/deployments/job/callback"]
    by_hand = await world.call("PUT", "/triggers/default/default/job/t", job)
    assert (by_hand.status, "callback" in str(by_hand.json)) == (422, True)
    # The secret may come with the same apply.
    both = await world.post("/apply", {"files": [uses, file("targets", targets=signed)]})
    assert both.status == 200, both.body
