"""The PostgreSQL of the store suite, for the histories that are told on both databases."""

from tests.store.conftest import postgres

__all__ = ["postgres"]
