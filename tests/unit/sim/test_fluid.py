"""Rates of csrc/fluid/fluid.c against an independent solver, closed forms and the rules they must obey."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mfsd._native import Fluid, FluidPath


@dataclass
class Flow:
    order: int
    weight: float
    share: dict[int, float]


def progressive_filling(capacity: list[float], flows: list[Flow]) -> list[float]:
    """Textbook water-filling, one order after the other: the slow and obvious way."""
    left = list(capacity)
    rates = [0.0] * len(flows)
    for order in sorted({f.order for f in flows}):
        todo = [i for i, f in enumerate(flows) if f.order == order]
        while todo:
            load = [0.0] * len(capacity)
            for i in todo:
                for link, share in flows[i].share.items():
                    load[link] += share * flows[i].weight
            level, tight = min((left[k] / load[k], k) for k in range(len(capacity)) if load[k] > 0)
            frozen = [i for i in todo if tight in flows[i].share]
            for i in frozen:
                rates[i] = level * flows[i].weight
                for link, share in flows[i].share.items():
                    left[link] = max(0.0, left[link] - share * rates[i])
            todo = [i for i in todo if i not in frozen]
    return rates


def assert_rules(capacity: list[float], flows: list[Flow], rates: list[float]) -> None:
    """No link over capacity; every flow has a full link where no flow of its order has a higher level."""
    for link, limit in enumerate(capacity):
        assert sum(f.share.get(link, 0) * r for f, r in zip(flows, rates, strict=True)) <= limit * (1 + 1e-7) + 1e-9
    for flow, rate in zip(flows, rates, strict=True):
        bottleneck = False
        for link in flow.share:
            before = sum(f.share.get(link, 0) * r for f, r in zip(flows, rates, strict=True) if f.order <= flow.order)
            peers = [
                r / f.weight for f, r in zip(flows, rates, strict=True) if f.order == flow.order and link in f.share
            ]
            full = before >= capacity[link] * (1 - 1e-6)
            bottleneck |= full and rate / flow.weight >= max(peers) * (1 - 1e-6) - 1e-9
        assert bottleneck, (flow, rate)


def test_a_share_that_rounding_swallows_beside_others_gets_its_rate() -> None:
    """A collective of which next to nothing crosses a link that many loads fill: 5e-18 of 40 weights is no number."""
    rng = random.Random(5)
    for _ in range(200):
        loads = [Flow(0, 2.0, {0: rng.uniform(0.01, 0.4), 2 + i: 1.0}) for i in range(rng.randrange(20, 45))]
        small = Flow(0, 34.0, {0: rng.uniform(1e-18, 1e-17), 1: 0.04})
        capacity = [20.0, 4.0, *(rng.choice([0.5, 1.0]) for _ in loads)]
        flows = [*loads, small]
        net = Fluid(capacity)
        numbers = [net.add(FluidPath(list(f.share), list(f.share.values())), 0, 1e12, f.weight) for f in flows]
        assert_rules(capacity, flows, [net.rate(number) for number in numbers])


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 8, 1000]), st.booleans())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_change_leaves_exact_rates(seed: int, orders: int, weighted: bool) -> None:
    rng = random.Random(seed)
    capacity = [rng.choice([0.0, 10.0, 25.0, 25.0]) for _ in range(rng.randrange(2, 10))]
    net = Fluid(capacity)
    alive: dict[int, Flow] = {}
    for _ in range(60):
        act = rng.random()
        if act < 0.55 or not alive:
            links = rng.sample(range(len(capacity)), rng.randrange(1, min(5, len(capacity) + 1)))
            shares = [rng.uniform(0.05, 1.0) if weighted else 1.0 for _ in links]
            weight = rng.choice([1.0, 2.0, 7.5]) if weighted else 1.0
            order = rng.randrange(orders)
            number = net.add(FluidPath(links, shares), order, 1e12, weight)
            assert number not in alive
            alive[number] = Flow(order, weight, dict(zip(links, shares, strict=True)))
        elif act < 0.8:
            number = rng.choice(list(alive))
            net.remove(number)
            del alive[number]
        elif act < 0.95:
            number = rng.choice(list(alive))
            alive[number].order = rng.randrange(orders)
            net.set_order(number, alive[number].order)
        else:
            link = rng.randrange(len(capacity))
            capacity[link] = rng.choice([0.0, 5.0, 25.0])
            net.set_capacity(link, capacity[link])
        if rng.random() < 0.6:  # several changes of one instant are solved together
            flows = list(alive.values())
            rates = [net.rate(number) for number in alive]
            assert rates == pytest.approx(progressive_filling(capacity, flows), rel=1e-6, abs=1e-6)
            assert_rules(capacity, flows, rates)


@given(st.integers(0, 2**32), st.sampled_from([1, 4, 50]))
@settings(max_examples=40, deadline=None)
def test_completions_agree_with_stepping(seed: int, orders: int) -> None:
    """The same open-loop trace, by events and by recomputing everything at every change."""
    rng = random.Random(seed)
    capacity = [10.0] * 6
    start, trace = 0.0, []
    for _ in range(25):
        start += rng.expovariate(1.0)
        trace.append(
            (
                start,
                rng.uniform(1, 60),
                Flow(rng.randrange(orders), 1.0, dict.fromkeys(rng.sample(range(6), 2), 1.0)),
            )
        )
    net = Fluid(capacity)
    finish: dict[int, float] = {}
    number_of: dict[int, int] = {}
    pending = list(enumerate(trace))
    while pending or number_of:
        now = min(net.next(), pending[0][1][0] if pending else math.inf)
        net.advance(now)
        for number in net.take_completed():
            finish[number_of.pop(number)] = now
            net.remove(number)
        while pending and pending[0][1][0] <= now:
            index, (_, size, flow) = pending.pop(0)
            number_of[net.add(FluidPath(list(flow.share)), flow.order, size)] = index
    left = {i: size for i, (_, size, _) in enumerate(trace)}
    now = 0.0
    expected: dict[int, float] = {}
    active: set[int] = set()
    while left:
        rates = dict(
            zip(
                sorted(active),
                progressive_filling(capacity, [trace[i][2] for i in sorted(active)]),
                strict=True,
            )
        )
        arrivals = [trace[i][0] for i in left if i not in active]
        ends = {i: now + left[i] / r for i, r in rates.items() if r > 0}
        at = min([*arrivals, *ends.values()])
        for i, r in rates.items():
            left[i] -= r * (at - now)
        for i in [i for i, end in ends.items() if end <= at + 1e-9]:
            expected[i] = at
            active.discard(i)
            del left[i]
        now = at
        active |= {i for i in left if trace[i][0] <= now}
    assert finish == pytest.approx(expected, rel=1e-6)


def test_replay_matches_closed_forms() -> None:
    np = pytest.importorskip("numpy")
    # Two flows share a 10 B/s link: the short one ends at 2, the long one at 3; a stricter one stops both
    # from 1 to 2.
    finish = np.zeros(3)
    Fluid([10.0]).replay(
        np.array([0.0, 0.0, 1.0]), np.array([10.0, 20.0, 10.0]), np.array([1, 1, 0], dtype=np.uint64),
        np.array([0, 1, 2, 3], dtype=np.uint32), np.array([0, 0, 0], dtype=np.uint32), finish,
    )  # fmt: skip
    assert finish == pytest.approx([3.0, 4.0, 2.0])


def test_a_stream_goes_on_when_refilled_at_its_completion() -> None:
    net = Fluid([10.0])
    stream = net.add(FluidPath([0]), 5, 10.0)
    other = net.add(FluidPath([0]), 5, 100.0)
    for _ in range(3):
        net.advance(net.next())
        assert net.take_completed() == [stream]
        net.refill(stream, 10.0)
    assert net.now == pytest.approx(6.0)
    assert net.remaining(other) == pytest.approx(70.0)
    net.advance(net.next())
    assert net.take_completed() == [stream]
    assert net.rate(other) == 10.0  # an idle stream takes nothing
    net.set_order(stream, 1)
    net.refill(stream, 10.0)
    assert net.rate(stream) == 10.0 and net.rate(other) == 0.0


@pytest.mark.parametrize("reorder", [False, True])
def test_what_has_ended_is_complete_whatever_begins_at_that_moment(reorder: bool) -> None:
    net = Fluid([10.0])
    ended = net.add(FluidPath([0]), 5, 10.0)
    net.advance(net.next())
    strict = net.add(FluidPath([0]), 0, 10.0)
    if reorder:
        net.set_order(ended, 7)
    assert net.rate(strict) == 10.0
    assert net.next() == net.now
    assert net.take_completed() == [ended]
    assert net.remaining(ended) == 0.0
    net.refill(ended, 10.0)  # behind the stricter one
    assert (net.rate(strict), net.rate(ended)) == (10.0, 0.0)
    net.advance(net.next())
    assert net.take_completed() == [strict] and net.now == pytest.approx(2.0)
    net.advance(net.next())
    assert net.take_completed() == [ended] and net.now == pytest.approx(3.0)


def test_a_coupled_collective_is_held_by_its_slowest_port() -> None:
    net = Fluid([10.0] * 4)
    # Half of the bytes of one flow leave through port 0; a stricter flow takes 7.5 of its 10 bytes per
    # second.
    collective = net.add(FluidPath([0, 1, 2, 3], [0.5, 0.25, 0.25, 0.25]), 2, 100.0)
    assert net.rate(collective) == pytest.approx(20.0)
    strict = net.add(FluidPath([0, 1], [0.75, 1.0]), 1, 100.0)
    assert net.rate(strict) == pytest.approx(10.0)
    assert net.rate(collective) == pytest.approx(0.0)
    net.remove(strict)
    assert net.rate(collective) == pytest.approx(20.0)


@pytest.mark.parametrize("order", [0, 2**64 - 1])
def test_extreme_orders_are_kept(order: int) -> None:
    net = Fluid([1.0])
    assert net.rate(net.add(FluidPath([0]), order, 5.0)) == 1.0


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="capacit"):
        Fluid([1.0, -1.0])
    net = Fluid([1.0])
    with pytest.raises(ValueError, match="twice"):
        FluidPath([0, 0])
    with pytest.raises(ValueError, match="link does not exist"):
        net.add(FluidPath([7]), 0, 1.0)
    for when in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="advance"):
            net.advance(when)
    for weight, share in ((1.0, math.inf), (1.0, math.nan), (1e-200, 1e-200), (1e200, 1e200)):
        with pytest.raises(ValueError, match="not finite and positive"):
            net.add(FluidPath([0], [share]), 0, 1.0, weight)
    with pytest.raises(KeyError):
        net.remove(3)
