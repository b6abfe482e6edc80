"""The syncer: keeps the triggers that sources own as their sources say.

Every source is listed whole and reconciled three ways in one transaction, conditional on the version that
was read before listing. A source that can't be read, or that names something wrong, removes nothing: it
gets an error that people see, and is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from horarium.clock import Clock
from horarium.core.reconcile import reconcile
from horarium.core.spec import Listing
from horarium.engine.wake import Wake
from horarium.errors import HorariumError, StoreUnavailable
from horarium.store.base import Store, SyncResult
from horarium.telemetry import Metrics, get_logger

LOG = get_logger(__name__)


class Source(Protocol):
    """What the syncer needs of a source; `sources/base.py` has the whole contract."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> object: ...
    async def version(self) -> str: ...
    async def read(self) -> Listing: ...


class Syncer:
    """`discover` names the sources anew at each pass (a folder's files come and go). `resync` is the pause
    between passes. `shadow`: new triggers start in shadow where their source does not say."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        discover: Callable[[], Awaitable[Sequence[Source]]],
        wake: Wake,
        resync: timedelta = timedelta(seconds=30),
        metrics: Metrics | None = None,
        *,
        shadow: bool = False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._discover = discover
        self._wake = wake
        self._resync = resync
        self._metrics = metrics or Metrics()
        self._shadow = shadow
        self._seen: dict[str, tuple[str, int]] = {}
        """Source name → the version of its text that is in the store, and the store's version of it."""

    @property
    def rest(self) -> timedelta:
        """The sleep between passes."""
        return self._resync

    async def run_once(self) -> list[SyncResult]:
        """One pass over all sources; a faulty one costs itself alone."""
        results: list[SyncResult] = []
        wrong = await self._pass(await self._discover(), results)
        if wrong and any(item.written for item in results):
            # A file may need a target that another one has just brought.
            again = [source for source in await self._discover() if source.name in wrong]
            wrong = await self._pass(again, results)
        for name, why in wrong.items():
            self._seen.pop(name, None)  # what is read well again must be written, as that clears the error
            await self._failed(name, why)
        if any(item.written for item in results):
            self._wake.changed()
        return results

    async def _pass(self, sources: Sequence[Source], results: list[SyncResult]) -> dict[str, str]:
        """Sync each; the names of those that could not be, and why."""
        wrong: dict[str, str] = {}
        for source in sources:
            try:
                found = await self._sync(source)
            except StoreUnavailable:
                raise
            except HorariumError as error:
                wrong[source.name] = str(error)
                continue
            if found is None:
                continue
            results.append(found)
            if found.decided.problems or found.decided.refused:
                problems = "\n".join(str(item) for item in found.decided.problems)
                wrong[source.name] = found.decided.refused or problems
        return wrong

    async def wait(self) -> None:
        """Sleep until the next pass is due or a hint comes."""
        await self._clock.wait(self._wake.syncer, self._resync / timedelta(seconds=1))
        self._wake.syncer.clear()

    async def _sync(self, source: Source) -> SyncResult | None:
        name = source.name
        # Asked for before the source is: what another replica writes from now on may be newer than ours.
        version = await self._store.source_version(name)
        seen = await source.version()
        kept = self._seen.get(name)
        if kept is not None and kept == (seen, version):
            return None
        listing = await source.read()
        if listing.source != name:
            # It has just told its name.
            version = await self._store.source_version(listing.source)
        if self._shadow and listing.shadow is None:
            listing = replace(listing, shadow=True)
        if await source.version() != seen:
            # It changed after it was read, and may have changed back since: `seen` is not what was read.
            return None
        now = await self._store.clock()

        async def sync(*, dry_run: bool) -> SyncResult:
            return await self._store.sync_source(
                listing,
                version,
                lambda known: reconcile(listing, known, now),
                now,
                "sync",
                dry_run=dry_run,
                path=str(source.path),
            )

        if kept is not None and kept[0] == seen:
            # Our own text is as it was, another process has written. If there is nothing to do, nothing is
            # written: a new version would send the other to read again, then us, and so for ever.
            result = await sync(dry_run=True)
            if not result.stale and result.decided.empty and not result.decided.problems:
                self._seen[source.name] = (seen, version)
                return None
        result = await sync(dry_run=False)
        decided = result.decided
        if result.stale:
            self._metrics.syncs.labels("stale").inc()
            return result
        if decided.problems or decided.refused:
            return result
        self._seen[source.name] = (seen, result.version)
        self._metrics.syncs.labels("written" if result.written else "same").inc()
        if result.written:
            LOG.info(
                "synced",
                source=listing.source,
                added=len(decided.added),
                edited=len(decided.edited),
                withdrawn=len(decided.withdrawn),
                unchanged=decided.unchanged,
            )
        if listing.left_out:
            await self._failed(listing.source, listing.complaint)
        return result

    async def _failed(self, name: str, why: str) -> None:
        self._metrics.syncs.labels("failed").inc()
        LOG.error("not synced", source=name, outcome=why)
        await self._store.source_failed(name, why, await self._store.clock())
