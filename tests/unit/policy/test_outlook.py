"""The arithmetic of the outlook: what goes ahead, which port decides, and that C says the same."""

from __future__ import annotations

import random

import pytest

from mfsd._native import fetch_forecast_ns
from mfsd.policy.outlook import (
    FarLoad,
    Forecast,
    PortAhead,
    PortLoad,
    fetch_forecast,
    needed_by,
    tier_of_fetch,
    transfer_forecast,
)
from mfsd.policy.types import Tier

GB = 10**9
OWN = PortLoad(GB, waiting_bytes=(1 * GB, 2 * GB, 4 * GB, 8 * GB), in_flight_bytes=16 * GB)


@pytest.mark.parametrize(("tier", "ahead"), list(zip(Tier, (17 * GB, 19 * GB, 23 * GB, 31 * GB), strict=True)))
def test_what_is_of_no_worse_tier_goes_ahead(tier: Tier, ahead: int) -> None:
    assert fetch_forecast(GB, OWN, None, tier) == Forecast(ahead, ahead + GB)


def test_a_fetch_that_nothing_waits_for_goes_last() -> None:
    assert (tier_of_fetch(1), tier_of_fetch(0)) == (Tier.EARLY, Tier.SCAVENGER)


def test_the_slower_port_decides() -> None:
    own = PortLoad(GB)
    assert fetch_forecast(GB, own, FarLoad(2 * GB, owed_ns=3 * GB)) == Forecast(6 * GB, 3 * GB + GB // 2)
    assert fetch_forecast(GB, own, FarLoad(2 * GB, owed_ns=GB // 4)) == Forecast(0, GB)
    assert fetch_forecast(GB, own, FarLoad(0, owed_ns=3 * GB)) == Forecast(3 * GB, 4 * GB)  # of the own port's rate


def test_a_fetch_does_not_go_before_itself() -> None:
    """What it has announced is owed at the far port already."""
    own = PortLoad(GB)
    for owed_ns in (2 * GB, 3 * GB):
        alone = fetch_forecast(GB, own, FarLoad(GB, owed_ns))
        assert fetch_forecast(GB, own, FarLoad(GB, owed_ns + GB), announced_bytes=GB) == alone
    assert fetch_forecast(GB, own, FarLoad(GB, 0), announced_bytes=GB) == Forecast(0, GB)  # nothing of it is known yet
    assert fetch_forecast(GB, own, None, announced_bytes=GB) == Forecast(0, GB)


def test_other_nics_that_fetch_parts_of_the_same_count_at_the_owner_alone() -> None:
    own, far = PortLoad(GB), FarLoad(GB, owed_ns=GB)
    assert fetch_forecast(GB, own, far, far_bytes=8 * GB) == Forecast(GB, 9 * GB)
    assert fetch_forecast(GB, own, FarLoad(GB, None, GB // 2), far_bytes=8 * GB) == Forecast(0, 16 * GB)
    assert fetch_forecast(GB, own, None, far_bytes=8 * GB) == Forecast(0, GB)


def test_reads_of_late_stand_for_a_port_of_which_no_coordinator_speaks() -> None:
    own = PortLoad(GB)
    assert fetch_forecast(GB, own, FarLoad(GB, None, GB // 4)) == Forecast(0, 4 * GB)
    assert fetch_forecast(GB, own, FarLoad(GB, 0, GB // 4)) == Forecast(0, GB)  # it does speak of it
    assert fetch_forecast(GB, own, FarLoad(GB)) == fetch_forecast(GB, own) == Forecast(0, GB)


def test_collectives_take_their_share_first_and_never_all() -> None:
    assert fetch_forecast(GB, PortLoad(GB, unscheduled_bytes_per_s=GB // 2)) == Forecast(0, 2 * GB)
    assert fetch_forecast(GB, PortLoad(GB, unscheduled_bytes_per_s=9 * GB)) == Forecast(0, 16 * GB)


def test_without_a_rate_nothing_is_known() -> None:
    assert fetch_forecast(GB, PortLoad(0)) is None
    assert transfer_forecast(GB, [PortAhead(0, 0)]) is None
    assert transfer_forecast(GB, []) is None


def test_in_time() -> None:
    assert Forecast(0, 5).in_time(10, 15) and not Forecast(0, 5).in_time(10, 14)


def test_a_load_is_needed_before_those_behind_it_are_due() -> None:
    assert needed_by([(1, 5, 900), (2, 6, 300), (3, 7, None), (4, 1, 100)]) == {1: 300, 2: 300, 3: None, 4: 100}
    assert needed_by([]) == {}


def test_c_says_the_same() -> None:
    draw = random.Random(1)

    def number(bits: int) -> int:
        return draw.getrandbits(draw.randint(0, bits))

    for _ in range(2000):
        own = PortLoad(1 + number(40), (number(45), number(45), number(45), number(45)), number(45), 0, number(40))
        far = draw.choice([None, FarLoad(number(40), draw.choice([None, number(60)]), number(40))])
        size, tier, announced = number(40), draw.choice(list(Tier)), draw.choice([0, number(45)])
        far_bytes = draw.choice([None, number(45)])
        found = fetch_forecast(size, own, far, tier, announced, far_bytes)
        assert found is not None
        native = fetch_forecast_ns(
            size,
            (*own[:3], own[3], own[4]),
            None if far is None else (far[0], far[1], far[2]),
            tier,
            announced,
            far_bytes,
        )
        assert native == min(found.time_ns, 2**63 - 1), (size, own, far, tier)
