"""The `flyte` target keeps the contract: the public suite, against a run service on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, timedelta
from typing import Any, Self

import pytest
from flyteidl2.core.literals_pb2 import Literal

from horarium.core.instant import rfc3339
from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.flyte import FlyteTarget
from horarium.testing.target_suite import TRIGGER, Harness, TargetSuite
from tests.flyte.backend import Backend, Hang, Refuse, serving

TASK = {"name": "shop.sync", "version": "v1"}


class FlyteHarness(Harness):
    kind = registry.kind("flyte")
    secrets = ("correct-horse-battery",)
    retry_after = timedelta(minutes=7)
    url = "http://127.0.0.1:1"

    def __init__(self, duplicates: str) -> None:
        self.backend = Backend()
        self.backend.duplicates = duplicates
        self.open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.backend.called = asyncio.Event()
        self.url = await self.open.enter_async_context(serving(self.backend))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.open.aclose()

    def config(self) -> Mapping[str, Any]:
        return {"endpoint": self.url, "token": "env:CONFORMANCE_TOKEN"}

    def action(self) -> Mapping[str, Any]:
        return {"task": TASK}

    def refused_action(self) -> Mapping[str, Any]:
        return {"trigger": {"task_name": "nobody.deployed", "name": "it"}}

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        made = self.backend.runs[TRIGGER.project, TRIGGER.domain, run_name]
        return [{item.name: _value(item.value) for item in made.inputs.literals}]

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.backend.down = Refuse(503, "unavailable", f"not now, {self.secrets[0]}", {"retry-after": "420"})
        yield
        self.backend.down = None

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        until = asyncio.Event()
        self.backend.faults.extend([Hang(until)] * 8)
        yield
        self.backend.faults.clear()
        until.set()


def _value(literal: Literal) -> Json:
    """What a literal is of, as the parameter was."""
    match literal.WhichOneof("value"):
        case "collection":
            return [_value(item) for item in literal.collection.literals]
        case "map":
            return {name: _value(item) for name, item in literal.map.literals.items()}
    if literal.scalar.HasField("none_type"):
        return None
    primitive = literal.scalar.primitive
    which = primitive.WhichOneof("value")
    value = getattr(primitive, which)
    return rfc3339(value.ToDatetime(UTC)) if which == "datetime" else value


NOT_ITS = "Flyte is not asked how a run goes"


class TestFlyte(TargetSuite, target=FlyteTarget, cannot={"hold": NOT_ITS, "fail": NOT_ITS}):
    @pytest.fixture(params=["ok", "already_exists"])
    def harness(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FlyteHarness:
        monkeypatch.setenv("CONFORMANCE_TOKEN", FlyteHarness.secrets[0])
        return FlyteHarness(request.param)
