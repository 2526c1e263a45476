"""Real bytes through a Linux switch that was configured from the shipped policy file.

A pair of classes is measured up to TRIES times: a busy machine delays senders and readings now and then, a switch that
breaks its promise breaks it every time. What is promised is in bench/fabric/separation.py; it does not depend on the
machine's speed.
"""

from __future__ import annotations

import itertools

import pytest

from bench.fabric import rdma
from bench.fabric.lab import Flow, Lab, Pair, missing, share_of_higher, slow_profile
from bench.fabric.separation import measure, problem
from mfsd.fabric.policy import Profile, class_dscps

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MEASURE_BYTES = 2_000_000
LINK_GBPS = 0.08
"""A pair takes as long as its bytes do; two busy cores still fill it, with RDMA, too."""
TRIES = 5


def share(lab: Lab, higher_dscp: int, lower_dscp: int) -> float:
    """Part of the link the first flow takes from the second."""
    with Flow(lab, "low", "sink", lower_dscp) as low:
        low.wait_for(500_000)
        with Flow(lab, "high", "sink", higher_dscp) as high:
            return share_of_higher(high, low, MEASURE_BYTES)


@pytest.fixture(scope="module")
def paper() -> Profile:
    return slow_profile("paper-k8", LINK_GBPS)


def broken(transport: str, name: str, profile: Profile, pairs: list[tuple[int, int]]) -> list[str]:
    """What is not as promised: share, way back, floor."""
    found = measure(transport, name, profile, pairs, TRIES, MEASURE_BYTES)
    return [text for (upper, lower), pair in found.items() if (text := problem(profile, upper, lower, pair))]


def test_neighbours_and_ends_of_the_papers_classes(paper: Profile) -> None:
    assert not broken("tcp", "paper-k8", paper, [*((c, c + 1) for c in range(7)), (0, 7), (1, 6)])


@pytest.mark.slow
@pytest.mark.skipif(bool(rdma.missing()), reason=rdma.missing())
def test_rdma_of_every_pair_of_the_papers_classes(paper: Profile) -> None:
    assert not broken("rdma", "paper-k8", paper, list(itertools.combinations(range(8), 2)))


@pytest.mark.parametrize("name", ["rocev2-2-lossless", "rocev2-lossy-ecn"])
def test_floors_and_weights_of_the_other_profiles(name: str) -> None:
    profile = slow_profile(name, LINK_GBPS)
    pairs = list(itertools.combinations(range(len(profile.classes)), 2))
    assert not broken("tcp", name, profile, pairs)


def test_two_flows_of_one_class_share_it(paper: Profile) -> None:
    """So the measurement can tell one class from two."""
    dscps = class_dscps(paper)
    with Lab(["low", "high", "sink"], paper) as lab:
        same = share(lab, dscps[3], dscps[3])
    assert 0.15 < same < 0.85


def test_what_breaks_a_promise(paper: Profile) -> None:
    assert not problem(paper, 0, 1, Pair(0.99, 0.02))
    assert "got 0.940" in problem(paper, 0, 1, Pair(0.94, 0.02))
    assert "got 1.000" in problem(paper, 0, 1, Pair(1.0, 0.02)), "its floor is 1 %"
    assert "came back after 101 ms" in problem(paper, 0, 1, Pair(0.99, 0.101))
    two = slow_profile("rocev2-2-lossless", LINK_GBPS)
    assert not problem(two, 0, 1, Pair(0.9, 0.02)), "bulk has a floor of 10 %"
    assert "got 0.950" in problem(two, 0, 1, Pair(0.95, 0.02))
