"""`Idempotency-Key`: a request that is sent again gets the answer that it got.

The key is taken before the work and the answer is kept after it. Success is kept; a refusal gives the key
up, so that the same request may be tried again once what stood in its way is gone. A key whose first request
never ended (its process died) is free again after `FORGOTTEN`: every command behind it is harmless twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import Response

from horarium.api.problems import BadRequest, problem_response, read_raw
from horarium.errors import Problem, shown
from horarium.store import tables as t
from horarium.store.base import Store

HEADER = "idempotency-key"
LONGEST = 255
FORGOTTEN = timedelta(minutes=5)


async def once(request: Request, store: Store, work: Callable[[str | None], Awaitable[Response]]) -> Response:
    """The answer of `work`, or the one that this request's key stands for. `work` is given the key."""
    key = request.headers.get(HEADER)
    if key is None:
        return await work(None)
    if not (0 < len(key) <= LONGEST and key.isascii() and key.isprintable()):
        raise BadRequest(
            400,
            [
                Problem(
                    "/Idempotency-Key",
                    shown(key),
                    f"a key is 1 to {LONGEST} printable ASCII characters",
                    "a UUID",
                    code="idempotency-key",
                )
            ],
        )
    digest = await _digest(request)
    known = await store.remember(key, digest, await store.clock())
    if known is not None and known.status is None and await _forgotten(store, key):
        await store.answer(key, None, None)
        known = await store.remember(key, digest, await store.clock())
    if known is not None:
        if known.request_digest != digest:
            problem = Problem(
                "/Idempotency-Key",
                shown(key),
                "a key stands for one request, and this one differs from the first",
                "a new key",
                code="idempotency-key",
            )
            return problem_response(422, str(problem), [problem])
        if known.status is None:
            return problem_response(
                409,
                f"the first request with the key {shown(key)} is still under way",
                hint="ask again in a second",
                headers={"retry-after": "1"},
            )
        return Response(
            known.response or "",
            status_code=known.status,
            media_type="application/json",
            headers={"idempotency-replayed": "true"},
        )
    try:
        answer = await work(key)
    except BaseException:
        await store.answer(key, None, None)
        raise
    if answer.status_code < 300:
        await store.answer(key, answer.status_code, bytes(answer.body).decode())
    else:
        await store.answer(key, None, None)
    return answer


async def _digest(request: Request) -> str:
    """What makes two requests the same: method, path, query and the bytes of the body."""
    parts = (
        request.method.encode(),
        request.url.path.encode(),
        request.url.query.encode(),
        await read_raw(request),
    )
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


async def _forgotten(store: Store, key: str) -> bool:
    rows = await store.fetch(select(t.idempotency.c.at).where(t.idempotency.c.key == key))
    return bool(rows) and rows[0].at + FORGOTTEN < await store.clock()
