"""RDMA writes of two classes through a Linux switch that was configured from the shipped policy file."""

from __future__ import annotations

import pytest

from bench.fabric import lab, rdma

pytestmark = pytest.mark.skipif(bool(lab.missing() or rdma.missing()), reason=lab.missing() or rdma.missing())


def test_a_higher_class_takes_the_link_and_gives_it_back() -> None:
    profile = lab.slow_profile("paper-k8", 0.04)
    dscps = [c.dscp for c in profile.classes]
    with lab.Lab(["low", "high", "sink"], profile) as switch:
        for higher, lower in ((0, 1), (3, 6)):
            with rdma.RdmaFlow(switch, "low", "sink", dscps[lower]) as low:
                low.wait_for(500_000)
                with rdma.RdmaFlow(switch, "high", "sink", dscps[higher]) as high:
                    share = lab.share_of_higher(high, low, 2_000_000, counts=rdma.switch_counts)
                low.wait_for(300_000)
            assert share >= 0.95, (higher, lower)
