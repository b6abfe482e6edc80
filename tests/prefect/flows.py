"""The flows that the tests deploy; they run in Prefect's own environment, and nobody runs them."""

from __future__ import annotations

from prefect import flow


@flow
def etl(table: str = "customers", limit: int = 10) -> None:
    """Named `etl`."""


@flow(name="Nightly report (EU)")
def report(region: str = "eu") -> None:
    """A flow whose name has letters that no key of ours has."""
