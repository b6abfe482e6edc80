"""Horarium inside an asyncio program: the same engine, with functions of the program as work.

    from horarium import Horarium

    horarium = Horarium("sqlite:///jobs.db")

    @horarium.trigger(cron="*/5 * * * *", timezone="Europe/Berlin")
    async def refresh(table: str = "customers") -> None: ...

    async def main() -> None:
        async with horarium:
            await serve_the_program()

What the decorators declare is a source of its own: a trigger that the code no longer names is withdrawn at
the next start, one whose rule changed is edited, and one that stayed the same keeps its planned runs. Slots
that passed while the program was down are caught up as `catch_up` says.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from horarium import wiring
from horarium.app.commands import Commands, FileText
from horarium.app.queries import Queries
from horarium.config import Settings
from horarium.core.keys import TriggerKey
from horarium.core.run import Run
from horarium.errors import Conflict, InvalidInput, Problem
from horarium.wiring import current_run as current_run

F = TypeVar("F", bound=Callable[..., Any])

TARGET = "inline"


class Horarium:
    """A whole instance in this process.

    `db` is the database (one process at a time serves a SQLite file). `source` is the name under which the
    decorators' triggers are managed; two programs on one database need two names. Further keywords are
    settings (docs/settings.md), for instance `grace="2m"`. Raises `InvalidInput` for a wrong one.
    """

    def __init__(
        self,
        db: str = "sqlite:///horarium.db",
        *,
        source: str = "embedded",
        project: str = "default",
        domain: str = "default",
        **settings: Any,
    ) -> None:
        self.settings = Settings(db=db, **settings)
        self.source = source
        self.project = project
        self.domain = domain
        self._functions: dict[str, Callable[..., Any]] = {}
        self._declared: dict[str, dict[str, Any]] = {}
        self._stack: AsyncExitStack | None = None
        self._instance: wiring.Instance | None = None

    def trigger(
        self, name: str | None = None, *, parameters: Mapping[str, Any] | None = None, **words: Any
    ) -> Callable[[F], F]:
        """Declare a function (async, or sync in a thread) as a deployment, and when it runs.

        `name` is the deployment's, the function's own unless given. `words` are those of a trigger in a
        triggers file: `cron`, `every`, `rrule` or `at`, and `timezone`, `catch_up`, `max_age`, `jitter` …;
        or `triggers`, a mapping of several. They are checked when Horarium starts.
        """

        def declare(function: F) -> F:
            deployment = name or function.__name__.replace("_", "-")
            if deployment in self._functions:
                raise Conflict(f"a function is declared as {deployment!r} already", "give it another name")
            self._functions[deployment] = function
            entry: dict[str, Any] = {"target": TARGET, "call": deployment, **words}
            if parameters:
                entry["parameters"] = dict(parameters)
            self._declared[deployment] = entry
            return function

        return declare

    async def start(self) -> None:
        """Open the database (made and migrated if need be), reconcile what is declared, start every loop.

        Raises `InvalidInput` for a wrong declaration, `AlreadyServing`, `SchemaMismatch`, `StoreUnavailable`.
        """
        if self._instance is not None:
            raise Conflict("Horarium runs already in this program")
        async with AsyncExitStack() as stack:
            instance = await stack.enter_async_context(
                wiring.running(self.settings, functions=self._functions, before=self._reconcile)
            )
            self._instance = instance
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Claim no more, let what runs end (at most `drain_timeout`), settle, and close the database."""
        stack, self._stack = self._stack, None
        self._instance = None
        if stack is not None:
            await stack.aclose()

    async def __aenter__(self) -> Horarium:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def commands(self) -> Commands:
        """Every write: pause, resume, backfill, retry, cancel, apply …"""
        return self._running().commands

    @property
    def queries(self) -> Queries:
        """Every read: triggers, runs, skips, slots, why …"""
        return self._running().queries

    async def apply(self, path: str) -> Mapping[str, Any]:
        """Apply a triggers file or a folder of them, as `horarium apply` does; its diff."""
        files = [
            FileText(str(file), await asyncio.to_thread(file.read_text, "utf-8"))
            for file in wiring.files_at(path)
        ]
        return (await self.commands.apply(files, who="program")).to_json()

    async def run(self, trigger: str, parameters: Mapping[str, Any] | None = None) -> Run:
        """Run a trigger once, now, whatever its schedule says; `parameters` lie over its own."""
        run, _ = await self.commands.run_now(self.key(trigger), parameters=parameters, who="program")
        return run

    async def upcoming(self, trigger: str, number: int = 10) -> Sequence[datetime]:
        """The next slots of a trigger, aware UTC."""
        found = await self.queries.preview_trigger(self.key(trigger), number)
        return [datetime.fromisoformat(item["utc"]) for item in found["items"]]

    def key(self, trigger: str) -> TriggerKey:
        """A trigger's whole key from `deployment` or `deployment/name` of this program."""
        parts = trigger.split("/")
        if len(parts) <= 2:
            return TriggerKey(self.project, self.domain, parts[0], parts[1] if len(parts) == 2 else "default")
        return TriggerKey.parse(trigger)

    async def _reconcile(self, instance: wiring.Instance) -> None:
        """What the decorators say, as one source."""
        for name, function in self._functions.items():
            _check_callable(name, function)
        document = {
            "source": self.source,
            "project": self.project,
            "domain": self.domain,
            "targets": {TARGET: {TARGET: {}}},
            "deployments": self._declared,
        }
        try:
            text = json.dumps(document)
        except TypeError as error:
            raise InvalidInput(
                Problem(
                    "/deployments", str(error), "what a trigger declares can be written as JSON", code="json"
                )
            ) from error
        # Code is the whole truth of what it declares, so nobody has to allow a large withdrawal.
        await instance.commands.apply(
            [FileText(f"{self.source}.json", text)], allow_withdraw=True, who="program"
        )

    def _running(self) -> wiring.Instance:
        if self._instance is None:
            raise Conflict(
                "Horarium does not run", "'async with horarium:' or 'await horarium.start()' first"
            )
        return self._instance


def _check_callable(name: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            Problem(
                f"/deployments/{name}",
                function.__name__,
                "a trigger's function is a plain or an async function, not a generator",
                "return instead of yield",
                code="function",
            )
        )
