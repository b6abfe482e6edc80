"""The real server on a real socket: requests made up from its own OpenAPI document, and what it publishes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from horarium.errors import InvalidInput, Problem
from tests.surfaces.api_world import open_world, triggers_file

EXAMPLES = 4
"""Requests for each operation: with some 40 operations, a few seconds."""

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a thread of its own, with a trigger, runs and a skip."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    servers: list[uvicorn.Server] = []
    up = threading.Event()

    async def serve(folder: Path) -> None:
        async with open_world(folder, read_source=no_source) as world:
            await world.put("/triggers/default/default/tick/default", {"run": "date", "every": "20s"})
            text = triggers_file(etl={"run": "date", "cron": "0 3 * * *"})
            await world.post("/apply", {"files": [{"path": "/etc/etl.json", "text": text}]})
            await world.plan()
            world.clock.advance(61)
            await world.fire()
            config = uvicorn.Config(world.app, log_config=None, access_log=False, lifespan="off")
            servers.append(uvicorn.Server(config))
            up.set()
            await servers[0].serve(sockets=[listener])

    folder = tmp_path_factory.mktemp("served")
    thread = threading.Thread(target=lambda: asyncio.run(serve(folder)))
    thread.start()
    assert up.wait(30)
    yield f"http://127.0.0.1:{port}"
    servers[0].should_exit = True
    thread.join(30)
    listener.close()


async def no_source(kind: str, config: Mapping[str, Any] | None) -> NoReturn:
    """The reader of an instance that has no source but files."""
    raise InvalidInput(Problem("/kind", kind, "there is no such source here"))


def test_requests_made_up_from_the_document_are_answered_as_it_says(address: str) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
    operations = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operations.append(found.ok())
    assert len(operations) > 30
    calls = 0
    with requests.Session() as session:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any) -> None:
                nonlocal calls
                calls += 1
                case.call_and_validate(base_url=address, session=session, checks=CHECKS, timeout=10)

            ask()
    assert calls >= len(operations) * EXAMPLES // 2
    assert requests.get(f"{address}/livez", timeout=10).json()["ok"]


def test_the_document_is_openapi_3_1_and_has_every_path(address: str) -> None:
    document = requests.get(f"{address}/api/v1/openapi.json", timeout=10).json()
    assert document["openapi"].startswith("3.1")
    one = "/api/v1/triggers/{project}/{domain}/{deployment}/{name}"
    wanted = {
        *(
            f"/api/v1/{name}"
            for name in ("status", "owed", "deployments", "targets", "triggers", "runs", "skips")
        ),
        *(f"/api/v1/{name}" for name in ("slots", "backfills", "preview", "apply", "validate")),
        *(f"/api/v1/{tail}" for tail in ("freeze", "release", "sync")),
        *(f"{place}/shadow/{verb}" for place in ("/api/v1", one) for verb in ("on", "off")),
        "/api/v1/shadow/report",
        *(f"/api/v1/targets/{{name}}{tail}" for tail in ("", "/freeze", "/release")),
        *(f"{one}{tail}" for tail in ("", "/pause", "/resume", "/run", "/why", "/preview", "/revisions")),
        f"{one}/backfills",
        f"{one}/plan",
        "/api/v1/backfills/{backfill_id}",
        "/api/v1/backfills/{backfill_id}/cancel",
        *(
            f"/api/v1/runs/{{project}}/{{domain}}/{{name}}{tail}"
            for tail in ("", "/logs", "/retry", "/cancel", "/result")
        ),
        *(
            f"/api/v1/deployments/{{project}}/{{domain}}/{{name}}{tail}"
            for tail in ("", "/plan", "/pause", "/resume")
        ),
        "/livez",
        "/readyz",
    }
    assert set(document["paths"]) == wanted
    bodies = [
        operation["requestBody"]
        for operations in document["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
    ]
    names = {item["content"]["application/json"]["schema"]["$ref"].split("/")[-1] for item in bodies}
    assert names <= set(document["components"]["schemas"])
    assert len(bodies) == 21


def test_the_docs_name_every_path(address: str) -> None:
    document = requests.get(f"{address}/api/v1/openapi.json", timeout=10).json()
    page = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    missing = [
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
        if f"`{method.upper()} {path.removeprefix('/api/v1')}`" not in page
    ]
    assert missing == []


def test_over_a_socket_it_is_the_same(address: str) -> None:
    tick = f"{address}/api/v1/triggers/default/default/tick/default"
    found = requests.get(tick, timeout=10)
    assert (found.status_code, found.headers["content-type"]) == (200, "application/json")
    stale = requests.delete(tick, headers={"If-Match": '"0-0"'}, timeout=10)
    assert (stale.status_code, stale.headers["content-type"]) == (412, "application/problem+json")
    foreign = requests.get(tick, headers={"Host": "evil.example"}, timeout=10)
    assert foreign.status_code == 421
    assert requests.get(f"{address}/livez", timeout=10).status_code == 200
