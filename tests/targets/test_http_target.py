"""The http target against real servers on 127.0.0.1: what is sent, and what each answer means."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import AlreadyExists, Answer, Created, FireRequest, Refused, Unavailable
from horarium.targets.http import HttpTarget, check_action, check_config
from horarium.targets.outgoing import retry_after
from horarium.targets.secrets import SecretMissing
from tests.serving import Handler, serving

MakeRequest = Callable[..., FireRequest]


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A real HTTP server that records what it gets and answers as it is told."""

    answer: Callable[[], web.StreamResponse] = lambda: web.Response(status=201)
    handler: Handler | None = None
    got: list[Received] = field(default_factory=list)
    url: str = ""
    connections: set[Any] = field(default_factory=set)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(Received(request.method, request.path_qs, headers, await request.read()))
        return await self.handler(request) if self.handler else self.answer()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with serving(receiver._handle) as receiver.url:
        yield receiver


@asynccontextmanager
async def started(config: dict[str, Any], **spec: Any) -> AsyncIterator[HttpTarget]:
    target = HttpTarget(TargetSpec("crm", "http", check_config(config, ""), **spec), SystemClock())
    await target.start()
    try:
        yield target
    finally:
        await target.close()


async def call(config: dict[str, Any], request: FireRequest) -> Answer:
    async with started(config) as target:
        return await target.create_run(request)


async def test_a_run_is_a_post_of_its_parameters_with_its_name_as_key(
    receiver: Receiver, request_for: MakeRequest
) -> None:
    answer = await call({"url": receiver.url + "/hooks"}, request_for(parameters={"mode": "full", "n": 3}))

    assert answer == Created(None)
    (got,) = receiver.got
    assert (got.method, got.path) == ("POST", "/hooks")
    assert json.loads(got.body) == {"mode": "full", "n": 3}
    assert got.headers["content-type"] == "application/json"
    assert got.headers["idempotency-key"] == "r1"
    assert got.headers["user-agent"].startswith("Horarium/")


async def test_the_request_is_a_cloud_event_in_binary_mode(
    receiver: Receiver, request_for: MakeRequest
) -> None:
    await call({"url": receiver.url}, request_for(attempt=2))

    headers = receiver.got[0].headers
    assert {name: value for name, value in headers.items() if name.startswith("ce-")} == {
        "ce-specversion": "1.0",
        "ce-id": "r1",
        "ce-source": "/horarium",
        "ce-type": "horarium.run.due",
        "ce-time": "2026-01-05T10:00:00Z",
        "ce-subject": "etl/production/crm-sync/day",
        "ce-origin": "schedule",
        "ce-attempt": "2",
    }


async def test_a_secret_signs_as_standard_webhooks_say(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = b"0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("NEW_KEY", "whsec_" + base64.b64encode(key).decode())
    monkeypatch.setenv("OLD_KEY", "a plain old secret")
    config = {"url": receiver.url, "secret": ["env:NEW_KEY", "env:OLD_KEY"]}
    await call(config, request_for(parameters={"a": 1}))

    (got,) = receiver.got
    stamp = got.headers["webhook-timestamp"]
    assert abs(int(stamp) - datetime.now(UTC).timestamp()) < 60
    assert got.headers["webhook-id"] == "r1"
    signed = f"r1.{stamp}.".encode() + got.body
    expected = [
        "v1," + base64.b64encode(hmac.new(each, signed, hashlib.sha256).digest()).decode()
        for each in (key, b"a plain old secret")
    ]
    assert got.headers["webhook-signature"].split(" ") == expected


async def test_the_signature_is_the_one_of_the_published_example() -> None:
    # The test vector of the Standard Webhooks reference libraries.
    from horarium.targets.http import signature_headers, signing_key

    headers = signature_headers(
        (signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        datetime.fromtimestamp(1614265330, UTC),
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_the_deployment_overrides_path_method_headers_and_body(
    receiver: Receiver, request_for: MakeRequest
) -> None:
    config = {"url": receiver.url + "/api/?team=etl", "headers": {"X-Team": "etl", "x-tier": "1"}}
    action = check_action(
        {"path": "/jobs", "method": "put", "headers": {"x-team": "crm"}, "body": {"fixed": True}}, {}, ""
    )
    await call(config, request_for(action, parameters={"ignored": 1}))

    (got,) = receiver.got
    assert (got.method, got.path) == ("PUT", "/api/jobs?team=etl")
    assert got.headers["x-team"] == "crm"
    assert got.headers["x-tier"] == "1"
    assert json.loads(got.body) == {"fixed": True}


async def test_a_get_has_no_body(receiver: Receiver, request_for: MakeRequest) -> None:
    await call({"url": receiver.url, "method": "GET"}, request_for(parameters={"a": 1}))

    (got,) = receiver.got
    assert (got.method, got.body) == ("GET", b"")
    assert "content-type" not in got.headers


async def test_text_is_sent_as_text_and_null_as_json(receiver: Receiver, request_for: MakeRequest) -> None:
    async with started({"url": receiver.url}) as target:
        await target.create_run(request_for({"body": "grüß"}))
        await target.create_run(request_for({"body": None}))

    text, null = receiver.got
    assert text.body == "grüß".encode()
    assert text.headers["content-type"].startswith("text/plain")
    assert null.body == b"null"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_is_created(receiver: Receiver, request_for: MakeRequest, status: int) -> None:
    receiver.answer = lambda: web.Response(status=status)
    assert await call({"url": receiver.url}, request_for()) == Created(None)


async def test_409_means_that_the_run_is_there(receiver: Receiver, request_for: MakeRequest) -> None:
    receiver.answer = lambda: web.json_response({"id": "job-7"}, status=409)
    assert await call({"url": receiver.url}, request_for()) == AlreadyExists("job-7")


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b'{"id": "job-7", "x": 1}', {}, "job-7"),
        (b'{"id": 7}', {"Location": "/jobs/8"}, "7"),
        (b'{"id": true}', {"Location": "/jobs/8"}, "/jobs/8"),
        (b'{"id": ["x"]}', {}, None),
        (b"{broken", {"Location": "/jobs/8"}, "/jobs/8"),
        (b"[" * 60_000, {}, None),
        (b'{"a":' * 12_000, {}, None),
        (b"ok", {}, None),
        (b'{"id": "' + b"x" * 500 + b'"}', {}, "x" * 199 + "…"),
    ],
)
async def test_the_id_over_there_is_taken_from_the_answer(
    receiver: Receiver,
    request_for: MakeRequest,
    body: bytes,
    headers: dict[str, str],
    expected: str | None,
) -> None:
    receiver.answer = lambda: web.Response(body=body, headers=headers)
    assert await call({"url": receiver.url}, request_for()) == Created(expected)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 503, 599])
async def test_a_receiver_that_cannot_now_is_tried_again(
    receiver: Receiver, request_for: MakeRequest, status: int
) -> None:
    receiver.answer = lambda: web.Response(status=status, text="come back later")
    answer = await call({"url": receiver.url}, request_for())
    assert answer == Unavailable(f"answered {status}: come back later")


@pytest.mark.parametrize("status", [502, 504])
async def test_behind_a_gateway_the_answer_may_be_lost(
    receiver: Receiver, request_for: MakeRequest, status: int
) -> None:
    receiver.answer = lambda: web.Response(status=status)
    answer = await call({"url": receiver.url}, request_for())
    assert answer == Unavailable(f"answered {status}", unknown=True)


async def test_retry_after_is_honoured(receiver: Receiver, request_for: MakeRequest) -> None:
    receiver.answer = lambda: web.Response(status=503, headers={"Retry-After": "120"})
    before = datetime.now(UTC)
    answer = await call({"url": receiver.url}, request_for())
    after = datetime.now(UTC)

    assert isinstance(answer, Unavailable)
    assert answer.retry_at is not None
    assert before + timedelta(seconds=120) <= answer.retry_at <= after + timedelta(seconds=120)


NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("30", NOW + timedelta(seconds=30)),
        (" 30 ", NOW + timedelta(seconds=30)),
        ("0", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("9" * 400, NOW + timedelta(days=1)),
        ("86401", NOW + timedelta(days=1)),
        (format_datetime(NOW + timedelta(minutes=5), usegmt=True), NOW + timedelta(minutes=5)),
        ("Mon, 05 Jan 2026 10:05:00 GMT", NOW + timedelta(minutes=5)),
        ("Monday, 05-Jan-26 10:05:00 GMT", NOW + timedelta(minutes=5)),
        ("Mon, 05 Jan 2026 10:05:00", NOW + timedelta(minutes=5)),
        (format_datetime(NOW - timedelta(minutes=5), usegmt=True), None),
        (format_datetime(NOW + timedelta(days=400), usegmt=True), NOW + timedelta(days=1)),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None),
        ("Mon, 99 Jan 2026 10:05:00 GMT", None),
    ],
)
def test_retry_after_in_all_its_forms(value: str | None, expected: datetime | None) -> None:
    assert retry_after(value, NOW) == expected


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 418, 422])
async def test_another_4xx_is_final_and_says_why(
    receiver: Receiver, request_for: MakeRequest, status: int
) -> None:
    receiver.answer = lambda: web.Response(status=status, text="no such\njob\x00")
    answer = await call({"url": receiver.url}, request_for())
    assert answer == Refused(f"answered {status}: no such job")


async def test_the_excerpt_of_a_refusal_is_bounded(receiver: Receiver, request_for: MakeRequest) -> None:
    receiver.answer = lambda: web.Response(status=400, text="x" * 5_000_000)
    answer = await call({"url": receiver.url}, request_for())
    assert isinstance(answer, Refused)
    assert answer.reason == "answered 400: " + "x" * 299 + "…"


async def test_a_redirect_is_refused_and_not_followed(receiver: Receiver, request_for: MakeRequest) -> None:
    receiver.answer = lambda: web.Response(status=307, headers={"Location": "https://elsewhere.example/x"})
    answer = await call({"url": receiver.url}, request_for())

    assert isinstance(answer, Refused)
    assert "307" in answer.reason
    assert "https://elsewhere.example/x" in answer.reason
    assert "not followed" in answer.reason
    assert len(receiver.got) == 1


async def test_nobody_listens_so_nothing_was_sent(request_for: MakeRequest) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = await call({"url": f"http://127.0.0.1:{taken.getsockname()[1]}"}, request_for())
    assert isinstance(answer, Unavailable)
    assert not answer.unknown
    assert "no connection" in answer.reason


async def test_no_such_host_so_nothing_was_sent(request_for: MakeRequest) -> None:
    answer = await call({"url": "http://nowhere.invalid/"}, request_for())
    assert isinstance(answer, Unavailable)
    assert not answer.unknown
    assert "nowhere.invalid" in answer.reason


async def test_a_server_without_tls_gets_nothing_over_https(
    receiver: Receiver, request_for: MakeRequest
) -> None:
    answer = await call({"url": receiver.url.replace("http:", "https:")}, request_for())
    assert isinstance(answer, Unavailable)
    assert not answer.unknown
    assert receiver.got == []


@asynccontextmanager
async def raw_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(session, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_reset_after_the_request_leaves_the_outcome_unknown(request_for: MakeRequest) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )

    async with raw_server(reset) as url:
        answer = await call({"url": url}, request_for())
    assert isinstance(answer, Unavailable)
    assert answer.unknown


async def test_a_close_without_an_answer_leaves_the_outcome_unknown(request_for: MakeRequest) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw_server(close) as url:
        answer = await call({"url": url}, request_for())
    assert isinstance(answer, Unavailable)
    assert answer.unknown


async def test_an_answer_that_is_no_http_leaves_the_outcome_unknown(request_for: MakeRequest) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await writer.drain()

    async with raw_server(babble) as url:
        answer = await call({"url": url}, request_for())
    assert isinstance(answer, Unavailable)
    assert answer.unknown


async def test_no_answer_in_time_leaves_the_outcome_unknown(
    receiver: Receiver, request_for: MakeRequest
) -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.handler = never
    answer = await call({"url": receiver.url, "timeout": 0.3}, request_for())
    assert answer == Unavailable("no answer in time", unknown=True)


async def test_a_created_run_whose_body_breaks_off_is_created(request_for: MakeRequest) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{"id": ')
        await writer.drain()

    async with raw_server(cut) as url:
        assert await call({"url": url}, request_for()) == Created(None)


async def test_a_body_without_end_is_read_up_to_a_bound(receiver: Receiver, request_for: MakeRequest) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=200)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    receiver.handler = endless
    assert await call({"url": receiver.url}, request_for()) == Created(None)


async def test_a_compressed_body_is_not_unpacked(receiver: Receiver, request_for: MakeRequest) -> None:
    bomb = gzip.compress(b"z" * 10_000_000)
    receiver.answer = lambda: web.Response(body=bomb, status=400, headers={"Content-Encoding": "gzip"})
    answer = await call({"url": receiver.url}, request_for())
    assert isinstance(answer, Refused)
    assert len(answer.reason) < 400
    assert "zzzz" not in answer.reason
    assert receiver.got[0].headers["accept-encoding"] == "identity"


async def test_a_call_ends_before_its_deadline(
    receiver: Receiver, request_for: MakeRequest, clock: SystemClock
) -> None:
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.handler = never
    begun = clock.monotonic()
    async with started({"url": receiver.url, "timeout": "50s"}) as target:
        soon = await target.create_run(request_for(deadline=clock.now() + timedelta(seconds=0.3)))
        past = await target.create_run(request_for(deadline=clock.now()))
    assert soon == Unavailable("no answer in time", unknown=True)
    assert past == Unavailable("no time was left for the call")
    assert clock.monotonic() - begun < 30


async def test_connections_are_kept_and_bounded(receiver: Receiver, request_for: MakeRequest) -> None:
    async with started({"url": receiver.url}, max_in_flight=4) as target:
        answers = await asyncio.gather(
            *(target.create_run(request_for(run_name=f"r{number}")) for number in range(200))
        )
    assert all(answer == Created() for answer in answers)
    assert {got.headers["idempotency-key"] for got in receiver.got} == {f"r{n}" for n in range(200)}
    assert len(receiver.got) == 200
    assert len(receiver.connections) <= 4


async def test_places_are_taken_while_a_call_waits(receiver: Receiver, request_for: MakeRequest) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        arrived.set()
        await go.wait()
        return web.Response()

    receiver.handler = wait
    async with started({"url": receiver.url}, max_in_flight=2) as target:
        assert target.free() == 2
        running = asyncio.create_task(target.create_run(request_for()))
        await arrived.wait()
        assert target.free() == 1
        draining = asyncio.create_task(target.drain(timedelta(seconds=30)))
        await asyncio.sleep(0)
        assert target.free() == 0
        assert isinstance(await target.create_run(request_for(run_name="r2")), Unavailable)
        assert not draining.done()
        go.set()
        assert await running == Created()
        await draining


async def test_a_target_does_not_start_without_its_secrets(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CRM_KEY", raising=False)
    target = HttpTarget(
        TargetSpec("crm", "http", {"url": receiver.url, "secret": "env:CRM_KEY"}), SystemClock()
    )
    with pytest.raises(SecretMissing, match="env:CRM_KEY: the variable is not set"):
        await target.start()
    monkeypatch.setenv("CRM_KEY", "whsec_not base64!")
    with pytest.raises(SecretMissing, match="base64") as caught:
        await target.start()
    assert "not base64!" not in str(caught.value)
    assert isinstance(await target.create_run(request_for()), Unavailable)
    await target.close()


async def test_a_deployments_own_secret_is_looked_for_at_each_call(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOB_KEY", raising=False)
    action = check_action({"headers": {"X-Api-Key": "env:JOB_KEY"}}, {}, "")
    async with started({"url": receiver.url}) as target:
        answer = await target.create_run(request_for(action))
        assert isinstance(answer, Unavailable)
        assert not answer.unknown
        assert "env:JOB_KEY" in answer.reason
        monkeypatch.setenv("JOB_KEY", "now it is there")
        assert await target.create_run(request_for(action)) == Created()
    assert receiver.got[0].headers["x-api-key"] == "now it is there"


SECRET = "s3cr3t/Value+of-the=crm"


@pytest.mark.parametrize(
    "echoed",
    [
        SECRET,
        base64.b64encode(SECRET.encode()).decode(),
        "s3cr3t%2FValue%2Bof-the%3Dcrm",
        "x" * 8_180 + SECRET,
        f"Bearer {SECRET} is wrong, {SECRET}",
    ],
)
async def test_a_secret_that_a_receiver_echoes_is_not_shown(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch, echoed: str
) -> None:
    monkeypatch.setenv("CRM_KEY", SECRET)
    config = {"url": receiver.url, "headers": {"Authorization": "Bearer env:CRM_KEY"}}
    for status in (400, 503, 302, 201, 409):
        receiver.answer = (
            lambda status=status: web.Response(  # type: ignore[misc]  # mypy can't infer a lambda's defaults
                status=status, text=echoed, headers={"Location": f"/{echoed[-40:]}"}
            )
        )
        answer = await call(config, request_for())
        assert receiver.got[-1].headers["authorization"] == f"Bearer {SECRET}"
        for form in (SECRET, base64.b64encode(SECRET.encode()).decode()[:12], "s3cr3t"):
            assert form not in str(answer)


async def test_half_a_secret_at_the_end_of_what_is_read_is_not_shown(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "".join(f"part{number:04}." for number in range(200))
    monkeypatch.setenv("TOKEN", token)
    receiver.answer = lambda: web.Response(status=400, text=token * 20)
    config = {"url": receiver.url, "headers": {"Authorization": "Bearer env:TOKEN"}}
    answer = await call(config, request_for())
    assert isinstance(answer, Refused)
    assert "(hidden)" in answer.reason
    assert "part" not in answer.reason


async def test_a_deployments_own_secret_is_not_shown_either(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_KEY", SECRET)
    receiver.answer = lambda: web.Response(status=403, text=f"{SECRET} is not allowed")
    action = check_action({"headers": {"X-Api-Key": "env:JOB_KEY"}}, {}, "")
    answer = await call({"url": receiver.url}, request_for(action))
    assert answer == Refused("answered 403: (hidden) is not allowed")


async def test_an_address_that_is_a_secret_is_used_and_not_shown(
    receiver: Receiver, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", receiver.url + "/services/T000/B000/XXXX")
    receiver.answer = lambda: web.Response(status=404, text="no /services/T000/B000/XXXX here")
    answer = await call({"url": "env:HOOK"}, request_for())
    assert receiver.got[0].path == "/services/T000/B000/XXXX"
    assert isinstance(answer, Refused)
    assert "XXXX" not in answer.reason

    monkeypatch.setenv("HOOK", "http://user:pass@host/")
    with pytest.raises(SecretMissing, match="env:HOOK: a url holds no user") as caught:
        await call({"url": "env:HOOK"}, request_for())
    assert "pass@" not in str(caught.value)


async def test_certificates_are_verified_unless_told(request_for: MakeRequest) -> None:
    certificate = str(Path(__file__).with_name("localhost.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=201)

    async with serving(handle, context) as url:
        refused = await call({"url": url}, request_for())
        trusted = await call({"url": url, "verify": certificate}, request_for())
        unverified = await call({"url": url, "verify": False}, request_for())
        with pytest.raises(SecretMissing, match=r"verify: .*\.gone: No such file"):
            await call({"url": url, "verify": certificate + ".gone"}, request_for())

    assert isinstance(refused, Unavailable)
    assert not refused.unknown
    assert "certificate" in refused.reason.lower()
    assert trusted == Created()
    assert unverified == Created()


def test_a_config_is_normalised() -> None:
    checked = check_config(
        {"url": "https://crm.internal/hooks", "method": "put", "timeout": "45000ms", "secret": "file:/run/k"},
        "",
    )
    assert checked == {
        "url": "https://crm.internal/hooks",
        "method": "PUT",
        "timeout": 45.0,
        "secret": "file:/run/k",
    }


@pytest.mark.parametrize(
    ("config", "pointer", "words"),
    [
        ({}, "/t/url", "has a url"),
        ({"url": "crm/hooks"}, "/t/url", "absolute address"),
        ({"url": "ftp://crm/"}, "/t/url", "http or https"),
        ({"url": "http://crm:99999/"}, "/t/url", ""),
        ({"url": "http://crm/a b"}, "/t/url", "no spaces"),
        ({"url": "http://crm/#top"}, "/t/url", "no fragment"),
        ({"url": 7}, "/t/url", "is text"),
        ({"url": "http://crm/", "method": "FETCH"}, "/t/method", "one of POST"),
        ({"url": "http://crm/", "timeout": "1y"}, "/t/timeout", ""),
        ({"url": "http://crm/", "timeout": "0s"}, "/t/timeout", "longer than zero"),
        ({"url": "http://crm/", "timeout": "51s"}, "/t/timeout", "at most"),
        ({"url": "http://crm/", "verify": 3}, "/t/verify", "true, false"),
        ({"url": "http://crm/", "headers": ["a"]}, "/t/headers", "mapping"),
        ({"url": "http://crm/", "headers": {"X Y": "1"}}, "/t/headers/X Y", "header's name"),
        ({"url": "http://crm/", "headers": {"X/Y": "1"}}, "/t/headers/X~1Y", "header's name"),
        ({"url": "http://crm/", "headers": {"X-Y": "1\r\n2"}}, "/t/headers/X-Y", "one line"),
        ({"url": "http://crm/", "headers": {"X-Y": 1}}, "/t/headers/X-Y", "text"),
        ({"url": "http://crm/", "headers": {"Ce-Id": "1"}}, "/t/headers/Ce-Id", "written by Horarium"),
        ({"url": "http://crm/", "headers": {"A": "1", "a": "2"}}, "/t/headers/a", "named once"),
        ({"url": "http://crm/", "source": "ü"}, "/t/source", "ASCII"),
        ({"url": "http://crm/", "uri": "x"}, "/t/uri", "no such field"),
        ("http://crm/", "/t", "mapping"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_its_field(config: Any, pointer: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_config(config, "/t")
    found = {problem.pointer: problem for problem in caught.value.problems}
    assert pointer in found
    assert words in found[pointer].rule


def test_literal_secrets_are_refused_by_name_without_being_shown() -> None:
    with pytest.raises(InvalidInput) as caught:
        check_config(
            {
                "url": "https://me:hunter2@crm.internal/",
                "secret": "hunter2",
                "headers": {"Authorization": "Bearer hunter2", "X-Api-Key": "hunter2", "Cookie": "hunter2"},
                "sekret": "hunter2",
            },
            "/targets/crm",
        )
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in json.dumps([dict(problem.to_json()) for problem in caught.value.problems])
    hints = {problem.pointer: problem.hint for problem in caught.value.problems}
    assert set(hints) == {
        "/targets/crm/url",
        "/targets/crm/secret",
        "/targets/crm/sekret",
        "/targets/crm/headers/Authorization",
        "/targets/crm/headers/X-Api-Key",
        "/targets/crm/headers/Cookie",
    }
    assert "env:X_API_KEY" in hints["/targets/crm/headers/X-Api-Key"]
    assert "secret" in hints["/targets/crm/sekret"]


@pytest.mark.parametrize(
    ("action", "pointer"),
    [
        ({"path": "jobs"}, "/d/path"),
        ({"path": "//evil.example/x"}, "/d/path"),
        ({"path": "http://evil.example/"}, "/d/path"),
        ({"path": "/a/../b"}, "/d/path"),
        ({"path": "/a b"}, "/d/path"),
        ({"path": "/a#b"}, "/d/path"),
        ({"method": "BREW"}, "/d/method"),
        ({"headers": {"Authorization": "x"}}, "/d/headers/Authorization"),
        ({"body": {1: 2}}, "/d/body"),
        ({"body": float("nan")}, "/d/body"),
        ({"body": {"a": [datetime(2026, 1, 1)]}}, "/d/body"),
        ({"run": "date"}, "/d/run"),
    ],
)
def test_an_action_that_cannot_be_is_refused_with_its_field(action: Any, pointer: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_action(action, {}, "/d")
    assert [problem.pointer for problem in caught.value.problems] == [pointer]
