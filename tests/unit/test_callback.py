"""The tokens with which a run's result is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.core.callback import fault_of, mint

NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)
UNTIL = NOW + timedelta(days=1)
KEY, OTHER = b"a secret of the target", b"another secret"
RUN = "etl/production/r1"


def test_a_token_is_good_for_its_run_until_its_time() -> None:
    token = mint(KEY, RUN, UNTIL)
    assert fault_of([KEY], RUN, token, NOW) is None
    assert fault_of([KEY], RUN, token, UNTIL - timedelta(microseconds=1)) is None
    assert fault_of([KEY], RUN, token, UNTIL) == "the token of this run held until 2026-01-06T10:00:00Z"


def test_a_token_signed_by_any_key_is_good_so_that_keys_can_change() -> None:
    old, new = mint(KEY, RUN, UNTIL), mint(OTHER, RUN, UNTIL)
    assert [fault_of([OTHER, KEY], RUN, token, NOW) for token in (old, new)] == [None, None]


@pytest.mark.parametrize(
    ("keys", "run", "change"),
    [
        ([OTHER], RUN, lambda token: token),
        ([], RUN, lambda token: token),
        ([KEY], "etl/production/r2", lambda token: token),
        ([KEY], "etl/staging/r1", lambda token: token),
        ([KEY], RUN, lambda token: token.replace(".17", ".27")),
        ([KEY], RUN, lambda token: token.replace("v1.", "v1.0")),
        ([KEY], RUN, lambda token: token + "="),
        ([KEY], RUN, lambda token: token.rpartition(".")[0] + "." + "A" * 43),
        ([KEY], RUN, lambda token: ""),
        ([KEY], RUN, lambda token: "v1.0." + token.rpartition(".")[2]),
    ],
)
def test_any_other_token_is_refused_and_told_nothing_more(
    keys: list[bytes], run: str, change: object
) -> None:
    assert callable(change)
    token = change(mint(KEY, RUN, UNTIL))
    for now in (NOW, UNTIL + timedelta(days=1)):
        assert fault_of(keys, run, token, now) == "the token is not one of this run"


@given(st.text())
def test_no_text_is_a_token_by_chance_nor_an_error(text: str) -> None:
    assert fault_of([KEY], RUN, text, NOW) == "the token is not one of this run"
