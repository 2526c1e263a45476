"""Real bytes through a Linux switch that was configured from the shipped policy file."""

from __future__ import annotations

import pytest

from bench.fabric.lab import Flow, Lab, missing, share_of_higher, slow_profile
from mfsd.fabric.policy import Profile, mark_dscps

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MEASURE_BYTES = 2_000_000


def share(lab: Lab, higher_dscp: int, lower_dscp: int) -> float:
    """Part of the link the first flow takes from the second, which must come back when the first ends."""
    with Flow(lab, "low", "sink", lower_dscp) as low:
        low.wait_for(500_000)
        with Flow(lab, "high", "sink", higher_dscp) as high:
            found = share_of_higher(high, low, MEASURE_BYTES)
        low.wait_for(300_000)
    return found


@pytest.fixture(scope="module")
def paper() -> Profile:
    return slow_profile("paper-k8", 0.04)


def test_the_papers_classes_are_strict(paper: Profile) -> None:
    dscps = mark_dscps(paper)
    with Lab(["low", "high", "sink"], paper) as lab:
        pairs = [*((c, c + 1) for c in range(7)), (0, 7), (1, 6)]
        shares = {pair: share(lab, dscps[pair[0]], dscps[pair[1]]) for pair in pairs}
        assert min(shares.values()) >= 0.95, shares
        same = share(lab, dscps[3], dscps[3])
        assert 0.15 < same < 0.85, "two flows of one class share it: the measurement can tell"


def test_floors_keep_a_lower_class_alive() -> None:
    profile = slow_profile("rocev2-2-lossless", 0.04)
    urgent, bulk, _ = (c.dscp for c in profile.classes)
    with Lab(["low", "high", "sink"], profile) as lab:
        found = share(lab, urgent, bulk)
    assert 0.80 <= found <= 0.95, "bulk has a floor of 10 %"


def test_weights_share_what_is_left() -> None:
    profile = slow_profile("rocev2-lossy-ecn", 0.04)
    _, _, low, scavenger = (c.dscp for c in profile.classes)
    with Lab(["low", "high", "sink"], profile) as lab:
        found = share(lab, low, scavenger)
    assert 0.75 <= found <= 0.95, "70 to 10"
