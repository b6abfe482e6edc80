"""What becomes of a call to Prefect that goes wrong, against a server on sockets that fails on demand."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web

from horarium.clock import SystemClock
from horarium.targets.base import Answer, Created, Refused, Unavailable
from tests.prefect.test_target import request, started
from tests.serving import Handler, serving

CERTIFICATE = Path(__file__).parents[1] / "targets" / "localhost.pem"
DEPLOYMENT = str(uuid4())


def answering(status: int, body: object = None, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status, headers={**headers})

    return answer


async def fire(
    handler: Handler, *, tls: ssl.SSLContext | None = None, seconds: float = 30, **config: Any
) -> Answer:
    """The answer of a target whose server answers so."""
    async with serving(handler, tls) as url, started(f"{url}/api", **config) as target:
        deadline = SystemClock().now() + timedelta(seconds=seconds)
        return await target.create_run(request(DEPLOYMENT, deadline=deadline))


@pytest.mark.parametrize("status", [408, 425, 429, 503])
async def test_not_now_is_tried_again_when_the_server_says(status: int) -> None:
    before = SystemClock().now()
    answer = await fire(answering(status, {"detail": "later"}, **{"Retry-After": "120"}))
    assert isinstance(answer, Unavailable)
    assert answer.reason == f"answered {status}: later"
    assert answer.retry_at is not None
    assert timedelta(seconds=119) < answer.retry_at - before < timedelta(seconds=150)
    assert not answer.unknown


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_an_error_after_which_it_may_have_happened_is_unknown(status: int) -> None:
    answer = await fire(answering(status, {"exception_message": "Internal Server Error"}))
    assert isinstance(answer, Unavailable)
    assert answer.unknown


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_not_taken_can_be_mended_while_the_run_waits(status: int) -> None:
    answer = await fire(answering(status, {"detail": "Unauthorized"}))
    assert answer == Unavailable(f"answered {status}: Unauthorized")


@pytest.mark.parametrize("status", [400, 404, 409, 422])
async def test_what_will_never_work_is_refused(status: int) -> None:
    detail = [{"loc": ["body", "state", "type"], "msg": "Field required"}]
    answer = await fire(answering(status, {"exception_detail": detail}))
    assert answer == Refused(f"answered {status}: state.type: Field required")


async def test_a_connection_that_breaks_is_unknown() -> None:
    async def broken(asked: web.Request) -> web.Response:
        await asked.read()
        assert asked.transport is not None
        asked.transport.abort()
        return web.Response()

    answer = await fire(broken)
    assert isinstance(answer, Unavailable)
    assert answer.unknown


async def test_a_server_that_hangs_is_given_up_at_the_deadline() -> None:
    async def hanging(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    answer = await fire(hanging, seconds=0.3)
    assert answer == Unavailable("no answer in time", unknown=True)


async def test_a_page_that_is_not_prefects_api_created_nothing() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>Prefect UI</html>", content_type="text/html")

    answer = await fire(page)
    assert isinstance(answer, Unavailable)
    assert "ends in /api" in answer.reason


async def test_a_redirect_is_not_followed() -> None:
    answer = await fire(answering(307, None, Location="http://elsewhere/"))
    assert isinstance(answer, Unavailable)
    assert "redirect" in answer.reason


async def test_secrets_are_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "pnu_0123456789")
    monkeypatch.setenv("PAIR", "admin:open sesame")
    asked: list[str] = []

    async def echo(call: web.Request) -> web.Response:
        asked.append(call.headers["Authorization"])
        return web.json_response({"detail": f"no: {asked[-1]} and open sesame"}, status=409)

    bearer = await fire(echo, api_key="env:KEY")
    basic = await fire(echo, auth_string="env:PAIR")
    encoded = base64.b64encode(b"admin:open sesame").decode()
    assert asked == ["Bearer pnu_0123456789", f"Basic {encoded}"]
    for answer, secrets in ((bearer, ["pnu_0123456789"]), (basic, [encoded, "open sesame"])):
        assert isinstance(answer, Refused)
        assert not any(secret in answer.reason for secret in secrets), answer.reason


async def test_a_key_in_a_file_is_read_again_once_it_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old-key\n")

    async def only_new(call: web.Request) -> web.Response:
        good = call.headers["Authorization"] == "Bearer new-key"
        return web.json_response({"id": str(uuid4())}, status=201 if good else 401)

    async with serving(only_new) as url, started(f"{url}/api", api_key=f"file:{file}") as target:
        assert isinstance(await target.create_run(request(DEPLOYMENT)), Unavailable)
        file.write_text("new-key\n")
        assert isinstance(await target.create_run(request(DEPLOYMENT)), Created)


async def test_a_server_proves_who_it_is() -> None:
    made = answering(201, {"id": str(uuid4())})
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CERTIFICATE)
    assert isinstance(await fire(made, tls=tls), Unavailable), "nobody trusts this certificate"
    assert isinstance(await fire(made, tls=tls, verify=str(CERTIFICATE)), Created)
    assert isinstance(await fire(made, tls=tls, verify=False), Created)
