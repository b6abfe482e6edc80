"""The PostgreSQL that job stores are kept in."""

from __future__ import annotations

from tests.store.conftest import postgres as postgres  # the server's fixture, for this folder too
