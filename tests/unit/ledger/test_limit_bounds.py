"""A limit that limits nothing, or lets nothing start for hours, is refused."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import FASTEST_RATE, MOST_LIVE, MOST_TOKENS, SLOWEST_RATE, Limit


@pytest.mark.parametrize("live", [-1, MOST_LIVE + 1, 99_999_999_999_999_999_999])
def test_number_of_trials_that_no_fleet_can_run_is_refused(live: int) -> None:
    with pytest.raises(UsageError, match=f"{live} trials cannot be in flight"):
        Limit(live=live)


@pytest.mark.parametrize("name", ["starts_per_s", "requests_per_min"])
@pytest.mark.parametrize(
    "rate", [0.0, -1.0, 1e-30, SLOWEST_RATE / 2, FASTEST_RATE * 2, float("inf"), float("nan")]
)
def test_rate_that_cannot_be_meant_is_refused(name: str, rate: float) -> None:
    limit: dict[str, Any] = {name: rate}
    with pytest.raises(UsageError, match="is no rate") as refused:
        Limit(**limit)

    assert refused.value.hint == "Give a number from 0.0001 to 1,000,000; live = 0 starts nothing."


@pytest.mark.parametrize("rate", [0.0, 0.5, MOST_TOKENS * 2, float("nan")])
def test_number_of_tokens_that_cannot_be_meant_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=f"tokens_per_min = {rate} is no rate") as refused:
        Limit(tokens_per_min=rate)

    assert refused.value.hint.startswith("Give a number from 1 to 1,000,000,000,000")


@pytest.mark.parametrize("rate", [SLOWEST_RATE, 0.5, FASTEST_RATE])
def test_bounds_themselves_are_limits(rate: float) -> None:
    assert Limit(live=MOST_LIVE, starts_per_s=rate, requests_per_min=rate).starts_per_s == rate
    assert Limit(live=0).live == 0
