"""Nobody starves, and replicas don't work in vain: histories made by hand, see `directed.py`."""

from __future__ import annotations

import pytest

from tests.simulation.directed import broken
from tests.simulation.history import STORES


@pytest.mark.parametrize("store", STORES)
def test_neither_what_is_on_time_nor_what_is_late_starves_and_plans_are_not_wasted(store: str) -> None:
    assert list(broken(0, store)) == []
