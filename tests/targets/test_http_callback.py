"""Callbacks of the http target: what a receiver is told, and the whole way with a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from horarium import wiring
from horarium.app.commands import FileText
from horarium.clock import SystemClock
from horarium.config import Settings
from horarium.core.callback import fault_of
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput, Problem
from horarium.sources.base import TargetChecks
from horarium.sources.files import parse_triggers
from horarium.targets import registry
from horarium.targets.base import Answer, Created, FireRequest, Refused, Unavailable
from horarium.targets.http import HttpTarget, check_action, check_config, signing_key
from tests.chaos.process import News, Server, rows

MakeRequest = Callable[..., FireRequest]
PUBLIC = "https://horarium.example.com/team"


@dataclass
class Receiver:
    """Takes each run and reports of it when a test says so; every request is kept."""

    news: News
    got: list[dict[str, str]] = field(default_factory=list)
    echo: bool = False
    url: str = ""

    async def __aenter__(self) -> Receiver:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(headers)
        self.news.tell()
        if self.echo:
            return web.Response(status=400, text=f"bad {headers['ce-callbacktoken']}")
        return web.Response(status=201)

    async def report(self, number: int, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
        """Report of the `number`-th run as told by its headers; the answer's status and body."""
        got = self.got[number]
        headers = {"Authorization": f"Bearer {got['ce-callbacktoken']}", **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(got["ce-callbackurl"], json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json(content_type=None)


async def call(
    config: dict[str, Any], request: FireRequest, public_url: str | None = PUBLIC
) -> tuple[Answer, HttpTarget]:
    target = HttpTarget(TargetSpec("crm", "http", check_config(config, "")), SystemClock(), public_url)
    await target.start()
    try:
        return await target.create_run(request), target
    finally:
        await target.close()


async def test_a_call_says_where_to_report_and_has_a_token_for_that(
    request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNING", "the receiver knows this")
    monkeypatch.setenv("CALLBACK", "and not this")
    async with Receiver(News()) as receiver:
        config = {"url": receiver.url, "secret": "env:SIGNING", "callback_secret": "env:CALLBACK"}
        request = request_for({"callback": True}, completion_timeout=timedelta(hours=2))
        answer, target = await call(config, request)
        plain = await call(config, request_for({}))
    assert (answer, plain[0]) == (Created(None), Created(None))
    told, without = receiver.got
    assert told["ce-callbackurl"] == f"{PUBLIC}/api/v1/runs/etl/production/r1/result"
    token, until = told["ce-callbacktoken"], request.deadline + timedelta(hours=2)
    keys = [signing_key("and not this")]
    assert fault_of(keys, "etl/production/r1", token, until - timedelta(seconds=1)) is None
    assert "held until" in str(fault_of(keys, "etl/production/r1", token, until))
    assert fault_of([signing_key("the receiver knows this")], "etl/production/r1", token, until) is not None
    assert not any("callback" in name for name in without)
    assert [target.traits.completes(action) for action in ({"callback": True}, {})] == [True, False]


@pytest.mark.parametrize(
    ("config", "public_url", "reason"),
    [({"secret": "env:SIGNING"}, None, "set public_url"), ({}, PUBLIC, "callback_secret")],
)
async def test_what_is_missing_is_named_and_nothing_is_sent(
    request_for: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    public_url: str | None,
    reason: str,
) -> None:
    monkeypatch.setenv("SIGNING", "the receiver knows this")
    async with Receiver(News()) as receiver:
        answer, _ = await call({"url": receiver.url, **config}, request_for({"callback": True}), public_url)
    assert isinstance(answer, Unavailable)
    assert (reason in answer.reason, answer.unknown) == (True, False)
    assert receiver.got == []


async def test_a_token_that_a_receiver_echoes_is_not_shown(
    request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNING", "the receiver knows this")
    async with Receiver(News(), echo=True) as receiver:
        config = {"url": receiver.url, "secret": "env:SIGNING"}
        answer, _ = await call(config, request_for({"callback": True}))
    assert answer == Refused("answered 400: bad (hidden)")


def test_callback_is_true_or_false() -> None:
    assert check_action({"callback": True}, {}, "") == {"callback": True}
    assert check_action({"callback": False}, {}, "") == {}
    with pytest.raises(InvalidInput, match="callback is true or false"):
        check_action({"callback": "yes"}, {}, "")
    with pytest.raises(InvalidInput, match="the callback_secret is secret"):
        check_config({"url": "http://127.0.0.1", "callback_secret": "hunter2"}, "")


def callbacks(checks: TargetChecks, config: dict[str, Any]) -> list[Problem]:
    """What is wrong with a file whose deployment has callbacks, on a target with this config."""
    file = {
        "targets": {"hook": {"http": {"url": "https://example.com", **config}}},
        "deployments": {"job": {"target": "hook", "callback": True, "every": "1m"}},
    }
    try:
        parse_triggers(json.dumps(file, indent=1), "triggers.json", checks)
    except InvalidInput as error:
        return list(error.problems)
    return []


def test_a_file_whose_callbacks_nothing_signs_is_refused() -> None:
    (problem,) = callbacks(registry, {})
    assert (problem.pointer, problem.line) == ("/deployments/job/callback", 12)
    assert "secret" in problem.rule
    assert "callback_secret" in problem.hint
    assert callbacks(registry, {"secret": "env:SIGNING"}) == []
    assert callbacks(registry, {"callback_secret": ["env:NEW", "env:OLD"]}) == []
    wrong_elsewhere = callbacks(registry, {"secret": "no reference"})
    assert [problem.pointer for problem in wrong_elsewhere] == ["/targets/hook/http/secret"]


def test_a_server_that_nobody_can_call_back_refuses_callbacks() -> None:
    signed = {"secret": "env:SIGNING"}
    (problem,) = callbacks(registry.ServerChecks(None), signed)
    assert problem.pointer == "/deployments/job/callback"
    assert "HORARIUM_PUBLIC_URL" in problem.hint
    assert callbacks(registry.ServerChecks(PUBLIC), signed) == []


@pytest.mark.parametrize("public_url", [None, PUBLIC])
async def test_apply_and_the_status_of_a_server_that_reads_files_say_so(
    public_url: str | None, tmp_path: Path
) -> None:
    triggers = tmp_path / "triggers.json"
    triggers.write_text(
        json.dumps(
            {
                "targets": {"hook": {"http": {"url": "https://example.com", "secret": "env:SIGNING"}}},
                "deployments": {"job": {"target": "hook", "callback": True, "every": "1m"}},
            }
        )
    )
    settings = Settings(db=f"sqlite:///{tmp_path}/horarium.db", public_url=public_url)
    wiring.migrate(settings)
    instance = wiring.build(settings, apply=[str(triggers)])
    await instance.store.open()
    try:
        apply = instance.commands.apply([FileText(str(triggers), triggers.read_text())], dry_run=True)
        applied = (await asyncio.gather(apply, return_exceptions=True))[0]
        syncer = instance.service.parts.syncer
        assert syncer is not None
        await syncer.run_once()
        (source,) = (await instance.queries.status())["sources"]
    finally:
        await instance.store.close()
    assert isinstance(applied, InvalidInput) is (public_url is None)
    assert ("public_url" in str(source["error"])) is (public_url is None)


async def test_one_run_at_a_time_by_the_word_of_its_receiver_also_over_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: calls over sockets, reports over sockets, a server killed in between."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "lease": "2s",
        "execution_qps": "0",
        "public_url": f"http://127.0.0.1:{port}",
        "poll_interval": "30s",  # so that what follows a report follows from the report
    }
    monkeypatch.setenv("TEST_CALLBACK_SECRET", "one that no log may show")
    database, news, triggers = tmp_path / "horarium.db", News(), tmp_path / "triggers.yaml"
    async with Receiver(news) as receiver:
        triggers.write_text(
            json.dumps(
                {
                    "source": "git/etl",
                    "targets": {
                        "hook": {"http": {"url": receiver.url, "callback_secret": "env:TEST_CALLBACK_SECRET"}}
                    },
                    "deployments": {
                        "job": {"target": "hook", "callback": True, "every": "1s", "overlap": "queue"}
                    },
                }
            )
        )
        args = (database, triggers, news)
        server = await Server.start(*args, Path("src").resolve(), ("--port", str(port)), **settings)
        await server.serves()
        assert await news.until(lambda: len(receiver.got) == 1)
        await server.logs('"fired"')
        await server.kill()

        server = await Server.start(*args, Path("src").resolve(), ("--port", str(port)), **settings)
        await server.serves()
        first = {"result": "succeeded", "detail": "1,204 rows"}
        assert len(receiver.got) == 1, "slots have passed, and each would be a run but for this one"
        assert (await receiver.report(0, first))[0] == 200
        assert (await receiver.report(0, first))[1]["written"] is False
        assert await news.until(lambda: len(receiver.got) == 2), "the one that waits follows at once"
        status, problem = await receiver.report(
            1, first, Authorization=f"Bearer {receiver.got[0]['ce-callbacktoken']}"
        )
        assert (status, problem["title"]) == (401, "Not allowed")
        assert (await receiver.report(1, {"result": "errored", "detail": "no"}))[0] == 200
        assert await news.until(lambda: len(receiver.got) == 3)
        server.terminate()
        assert await server.exit() == 0
    tokens = [got["ce-callbacktoken"] for got in receiver.got]
    said = "\n".join([*server.out, *server.log])
    kept = database.read_bytes() + b"".join(path.read_bytes() for path in tmp_path.glob("horarium.db-*"))
    assert not any(token in said or token.encode() in kept for token in tokens)
    assert max(Counter(got["ce-id"] for got in receiver.got).values()) == 1
    results = rows(database, "select name, result, result_detail from run where result is not null")
    assert {tuple(row) for row in results} == {
        (receiver.got[0]["ce-id"], "succeeded", "1,204 rows"),
        (receiver.got[1]["ce-id"], "errored", "no"),
        (receiver.got[2]["ce-id"], "running", None),
    }
