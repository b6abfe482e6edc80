"""Hints that there is work. A hint may be lost and may be given for nothing: polling is the truth."""

from __future__ import annotations

import asyncio


class Wake:
    """One event for each loop. Waiting loops clear their own before they look, never after."""

    def __init__(self) -> None:
        self.planner = asyncio.Event()
        self.executor = asyncio.Event()
        self.syncer = asyncio.Event()
        self.janitor = asyncio.Event()
        self.mirror = asyncio.Event()
        self.reporter = asyncio.Event()

    def planned(self) -> None:
        """There may be new runs."""
        self.executor.set()
        self.mirror.set()

    def changed(self) -> None:
        """A trigger, a target or a run was changed by somebody."""
        self.planner.set()
        self.executor.set()
        self.mirror.set()

    def all(self) -> None:
        """Everybody looks, for instance to see that the service stops."""
        loops = (self.planner, self.executor, self.syncer, self.janitor, self.mirror, self.reporter)
        for event in loops:
            event.set()
