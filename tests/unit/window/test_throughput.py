"""No destination takes throughput from another: the queue and the windows of production in front of a link whose flows
share it fairly, beside the same flows with no scheduler."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd._native import ROOM, ROOM_DESTINATION_FULL, Fluid, FluidPath, Rmlq, Stage, Window

RATE = 1_000_000_000
NS = 1_000_000_000
UNDER_WAY = 8
"""Messages of each destination that are posted at once without a scheduler."""
WINDOW_S = 200e-6
CROWDED = 0.95
"""Where the slow destinations together take so much of the link, free ones get what the order gives them."""


class Link:
    """A NIC and a path to each destination; a message has the same share of the NIC as each other one."""

    def __init__(self, shares: list[float], sizes: list[int], start_s: float) -> None:
        self.sizes = sizes
        self.start_s = start_s
        self.fluid = Fluid([RATE, *(max(share * RATE, 1e-3) for share in shares)])
        self.paths = [FluidPath([0, 1 + i], [1.0, 1.0]) for i in range(len(shares))]
        self.moved = [0.0] * len(shares)
        self.posted: dict[int, int] = {}

    def post(self, destination: int) -> int:
        number: int = self.fluid.add(self.paths[destination], 0, self.sizes[destination], 1.0)
        self.posted[number] = destination
        return number

    def take(self) -> list[int]:
        done = list(self.fluid.take_completed())
        for number in done:
            destination = self.posted.pop(number)
            self.moved[destination] += self.sizes[destination] * (self.fluid.now >= self.start_s)
            self.fluid.remove(number)
        return done


def without(shares: list[float], sizes: list[int], start_s: float, end_s: float) -> list[float]:
    link = Link(shares, sizes, start_s)
    for destination in range(len(shares)):
        for _ in range(UNDER_WAY):
            link.post(destination)
    while link.fluid.next() <= end_s:
        link.fluid.advance(link.fluid.next())
        before = dict(link.posted)
        for number in link.take():
            link.post(before[number])
    return link.moved


def scheduled(shares: list[float], sizes: list[int], start_s: float, end_s: float, order: list[int]) -> list[float]:
    """`order`: which destination's messages are the most urgent."""
    link, queue, window = Link(shares, sizes, start_s), Rmlq(RATE, flows_max=1 << 16), Window(RATE)
    serial = itertools.count(1)
    flights: dict[int, tuple[int, Any, int]] = {}

    def submit(destination: int, now_ns: int) -> None:
        queue.submit(
            now_ns, sizes[destination], stage=Stage.P2D, request=next(serial),
            deadline_ns=10**15 + order.index(destination) * NS, cookie=destination,
            destination=window.destination(destination + 1, now_ns),
        )  # fmt: skip

    for destination in range(len(shares)):
        for _ in range(UNDER_WAY):
            submit(destination, 0)
    now_s, poll_s = 0.0, 0.0
    while now_s <= end_s:
        now_ns = int(now_s * NS) + 1
        poll_s = float("inf")
        while pick := queue.peek(now_ns):
            room, at_ns = window.room(pick.destination, pick.bytes, now_ns, pick.tier)
            if room == ROOM_DESTINATION_FULL:
                queue.close_destination(pick.destination)
            elif room == ROOM:
                queue.pick(now_ns)
                passage = window.enter(pick.destination, pick.bytes, now_ns)
                flights[link.post(pick.cookie)] = (pick.handle, passage, pick.cookie)
                submit(pick.cookie, now_ns)
            else:
                poll_s = at_ns / NS
                break
        now_s = min(link.fluid.next(), max(poll_s, now_s + 1e-9))
        link.fluid.advance(now_s)
        for number in link.take():
            handle, passage, _ = flights.pop(number)
            queue.complete(handle)
            window.complete(passage, int(now_s * NS) + 1)
            window.give(passage.destination)
            queue.open_destination(passage.destination)
    return link.moved


def measured(size: int, slow: int, messages: int) -> tuple[float, float]:
    """From when to when: nothing is known of the destinations at first."""
    start_s = 20 * slow * (WINDOW_S + size / RATE)
    return start_s, start_s + messages * size / RATE


def assert_free_ones_keep_theirs(slow: list[float], free: int, sizes: list[int], order: list[int]) -> None:
    """Nine tenths of what they have without, or of what more urgent ones leave if these take what their paths carry."""
    shares = [*slow, *([1.0] * free)]
    start_s, end_s = measured(max(sizes), len(slow), 400)
    alone, beside = without(shares, sizes, start_s, end_s), scheduled(shares, sizes, start_s, end_s, order)
    slack = 2 * sum(sizes[len(slow) :])  # the messages that are under way at the end
    left = (1 - sum(slow)) * RATE * (end_s - start_s)
    assert sum(beside[len(slow) :]) + slack >= 0.9 * min(sum(alone[len(slow) :]), left)


SIZES = st.sampled_from([16_384, 65_536, 262_144, 1_048_576])


@settings(max_examples=200, deadline=None)
@given(
    slow=st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.5]), min_size=1, max_size=6).filter(
        lambda slow: sum(slow) < CROWDED
    ),
    free=st.integers(1, 4),
    size=SIZES,
    data=st.data(),
)
def test_slow_destinations_take_nothing_from_free_ones(
    slow: list[float], free: int, size: int, data: st.DataObject
) -> None:
    destinations = len(slow) + free
    order = data.draw(st.permutations(range(destinations)))
    assert_free_ones_keep_theirs(slow, free, [size] * destinations, order)


@settings(max_examples=60, deadline=None)
@given(
    slow=st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.5]), min_size=1, max_size=6).filter(
        lambda slow: sum(slow) < CROWDED
    ),
    free=st.integers(1, 4),
    data=st.data(),
)
def test_nor_do_they_where_each_has_messages_of_another_size(slow: list[float], free: int, data: st.DataObject) -> None:
    destinations = len(slow) + free
    sizes = data.draw(st.lists(SIZES, min_size=destinations, max_size=destinations))
    assert_free_ones_keep_theirs(slow, free, sizes, data.draw(st.permutations(range(destinations))))


@settings(max_examples=10, deadline=None)
@given(
    slow=st.lists(st.sampled_from([0.0, 0.001, 0.01]), min_size=64, max_size=64),
    size=st.sampled_from([65_536, 262_144]),
    data=st.data(),
)
def test_nor_do_many_of_them(slow: list[float], size: int, data: st.DataObject) -> None:
    assert_free_ones_keep_theirs(slow, 1, [size] * 65, data.draw(st.permutations(range(65))))


@settings(max_examples=40, deadline=None)
@given(
    slow=st.lists(st.sampled_from([0.01, 0.1, 0.3, 0.5]), min_size=2, max_size=6).filter(
        lambda slow: sum(slow) >= CROWDED
    ),
    free=st.integers(1, 4),
    size=SIZES,
    data=st.data(),
)
def test_destinations_that_fill_the_link_leave_none_of_it_idle(
    slow: list[float], free: int, size: int, data: st.DataObject
) -> None:
    """Those that are urgent may leave nothing to free ones, so in any order it is the link that is as busy as without;
    and free ones that are first get what they had."""
    shares, sizes = [*slow, *([1.0] * free)], [size] * (len(slow) + free)
    order = data.draw(st.permutations(range(len(shares))))
    free_first = sorted(order, key=lambda destination: destination < len(slow))
    start_s, end_s = measured(size, len(slow), 1600)  # they learn of one another more slowly
    alone = without(shares, sizes, start_s, end_s)
    slack = 2 * size * free
    beside = scheduled(shares, sizes, start_s, end_s, order)
    assert sum(beside) + slack >= 0.9 * sum(alone)
    beside = scheduled(shares, sizes, start_s, end_s, free_first)
    assert sum(beside) + slack >= 0.9 * sum(alone)
    assert sum(beside[len(slow) :]) + slack >= 0.9 * sum(alone[len(slow) :])
