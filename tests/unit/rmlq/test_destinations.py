"""Flows to a closed destination are passed over; their facts and order stay as they are."""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_bool, c_uint32, c_uint64, c_void_p

EAGAIN, EINVAL = -11, -22
COLLECTIVE, REUSE, P2D, BACKGROUND = 2, 1, 3, 4
S = 1_000_000_000


def cookies(queue, now=0):
    """Of what waits for open destinations, in order."""
    found = []
    while queue.peek(now)[0] == 0:
        found.append(queue.pick(now)[1].cookie)
    return found


def parked(queue, destination):
    """Closed, and what goes there has given way to others."""
    queue.destination_close(destination)
    assert queue.peek()[0] in (0, EAGAIN)


def test_a_destination_is_below_8192(native):
    queue = native.queue()
    assert queue.submit(bytes=1, stage=P2D, destination=8191)[0] == 0
    assert queue.submit(bytes=1, stage=P2D, destination=8192)[0] == EINVAL
    assert (queue.waiting(), queue.waiting_at(8191), queue.waiting_at(8192)) == (1, 1, 0)
    for call in (queue.destination_close, queue.destination_open):
        call(8192)
        call(65535)
    assert queue.peek()[0] == 0


def test_each_tier_passes_over_a_closed_destination_and_waits_for_it(native):
    kinds = [(P2D, S), (REUSE, 0), (COLLECTIVE, 0), (P2D, 0), (BACKGROUND, 0)]
    for stage, deadline in kinds:
        queue = native.queue()
        for cookie in range(4):
            queue.submit(bytes=1, stage=stage, deadline_ns=deadline, destination=1 + cookie % 2, cookie=cookie)
        for _ in range(2):  # twice is as once
            queue.destination_close(1)
        assert cookies(queue) == [1, 3]
        assert (queue.waiting(), queue.waiting_at(1), queue.waiting_at(2)) == (2, 2, 0)
        for _ in range(2):
            queue.destination_open(1)
        assert cookies(queue) == [0, 2]


def test_flows_of_one_request_to_several_destinations_have_its_place(native):
    queue = native.queue()
    for cookie in range(6):
        queue.submit(bytes=1, stage=P2D, request=1, deadline_ns=S, destination=cookie % 3, cookie=cookie)
        queue.submit(bytes=1, stage=P2D, request=2, deadline_ns=S - 1, destination=cookie % 2, cookie=10 + cookie)
    queue.destination_close(1)
    assert cookies(queue) == [10, 12, 14, 0, 2, 3, 5]
    queue.destination_open(1)
    assert cookies(queue) == [11, 13, 15, 1, 4]
    assert queue.stats().requests == 2, "that have flows in flight"


def test_what_opens_comes_back_in_order_among_what_came_meanwhile(native):
    queue = native.queue()
    for cookie, deadline in enumerate([50, 20, 40, 10, 30]):
        queue.submit(bytes=1, stage=P2D, deadline_ns=S + deadline, destination=7, cookie=cookie)
    parked(queue, 7)
    for cookie, deadline in enumerate([35, 5, 15], start=10):
        queue.submit(bytes=1, stage=P2D, deadline_ns=S + deadline, destination=7, cookie=cookie)
    queue.destination_open(7)
    assert queue.pick()[1].cookie == 11
    queue.destination_close(7)
    assert queue.pick()[0] == EAGAIN
    queue.destination_open(7)
    queue.submit(bytes=1, stage=P2D, deadline_ns=S + 16, destination=7, cookie=20)
    assert cookies(queue) == [3, 12, 20, 1, 4, 10, 2, 0]


def test_a_promotion_while_closed_holds_when_it_opens(native):
    for opened_before in (True, False):
        queue = native.queue()
        for cookie in range(4):
            flow = {"bytes": 100, "request": cookie + 1, "deadline_ns": S + cookie}
            queue.submit(stage=P2D, destination=5, cookie=cookie, **flow)
        parked(queue, 5)
        if opened_before:
            queue.destination_open(5)
        assert queue.request(3, deadline_ns=102) == 0  # 2 ns to spare
        queue.destination_open(5)
        assert cookies(queue) == [2, 0, 1, 3]


def test_another_deadline_counts_for_what_is_parked_and_opens(native):
    queue = native.queue()
    queue.destination_close(5)
    for request in range(1, 5):
        flow = {"bytes": 1, "request": request, "deadline_ns": S + 10 * request, "cookie": request}
        queue.submit(stage=P2D, destination=5, **flow)
    queue.submit(bytes=1, stage=P2D, request=9, deadline_ns=S + 5, destination=6, cookie=9)
    assert queue.peek()[1].cookie == 9
    queue.destination_open(5)
    assert queue.request(3, deadline_ns=S) == 0  # of those that wait to come back the first, now
    assert queue.request(1, deadline_ns=2 * S) == 0
    assert cookies(queue) == [3, 9, 2, 4, 1]


def test_a_flow_that_goes_from_a_closed_destination_hands_on_to_its_follower(native):
    queue = native.queue()
    handles = [
        queue.submit(bytes=1, stage=P2D, request=request, deadline_ns=S, destination=5, cookie=cookie)[1]
        for cookie, request in enumerate([1, 2, 1, 2])
    ]
    parked(queue, 5)
    assert queue.take(handles[0])[1].cookie == 0
    assert queue.cancel(handles[1]) == 0
    queue.destination_open(5)
    assert cookies(queue) == [2, 3]
    queue = native.queue()
    handles = [
        queue.submit(bytes=1, stage=P2D, request=request, deadline_ns=S, destination=5, cookie=cookie)[1]
        for cookie, request in enumerate([1, 2, 1, 2])
    ]
    parked(queue, 5)
    queue.take(handles[0])
    queue.destination_open(5)
    assert cookies(queue) == [1, 2, 3]


def test_of_equals_the_one_that_arrived_first_comes_back_first(native):
    queue = native.queue()
    queue.destination_close(5)
    for cookie in range(6):
        queue.submit(bytes=1, stage=P2D, deadline_ns=S, destination=6 if cookie == 3 else 5, cookie=cookie)
    assert queue.peek()[1].cookie == 3
    queue.destination_open(5)
    assert cookies(queue) == [0, 1, 2, 3, 4, 5]


def test_a_layer_boundary_while_closed_holds_when_it_opens(native):
    queue = native.queue()
    for batch in (1, 2):
        queue.batch(batch, layer_current=0, layers=10, rank=batch)
        for cookie in range(3):  # to two destinations, so that the batch is in two places
            queue.submit(bytes=1, stage=REUSE, batch=batch, layer=4, destination=cookie % 2, cookie=10 * batch + cookie)
    parked(queue, 1)
    queue.batch(2, layer_current=3, layers=10, rank=2)
    queue.destination_open(1)
    assert cookies(queue) == [20, 21, 22, 10, 11, 12]


def test_layers_to_each_destination_come_due_by_arrival_and_end_by_layer(native):
    queue = native.queue()
    for cookie, (layer, destination) in enumerate([(3, 1), (3, 2), (1, 1), (1, 2), (2, 1), (2, 2)]):
        queue.submit(bytes=1, stage=REUSE, batch=7, layer=layer, destination=destination, cookie=cookie)
    queue.batch(7, layer_current=3, layers=10)
    assert [queue.pick()[1].cookie for _ in range(2)] == [0, 1]
    for destination in (1, 2):
        queue.submit(bytes=1, stage=REUSE, batch=7, layer=3, destination=destination, cookie=5 + destination)
        queue.submit(bytes=1, stage=REUSE, batch=7, layer=0, destination=destination, cookie=7 + destination)
    assert queue.batch_end(7) == 0
    assert cookies(queue) == [8, 9, 2, 3, 4, 5, 6, 7]


def test_the_size_of_a_batch_counts_what_it_has_for_closed_destinations(native):
    queue = native.queue()
    for batch in (1, 2):
        queue.batch(batch, layer_current=0, layers=10, rank=0)
    big = [queue.submit(bytes=9 << 10, stage=REUSE, batch=1, destination=d, cookie=d)[1] for d in (1, 2)]
    queue.submit(bytes=12 << 10, stage=REUSE, batch=2, destination=3, cookie=3)
    parked(queue, 2)
    assert queue.peek()[1].cookie == 3, "12 KiB against 18 of which 9 cannot go"
    assert queue.complete(big[1], 8 << 10) == 0
    assert queue.complete(big[0], 8 << 10) == 0
    queue.destination_open(2)
    assert cookies(queue) == [1, 2, 3]


def test_a_load_to_several_destinations_is_late_as_a_whole(native):
    queue = native.queue(rate=S)
    first = queue.submit(bytes=3 << 10, stage=REUSE, request=1, deadline_ns=5_000, destination=1, cookie=1)[1]
    queue.submit(bytes=3 << 10, stage=REUSE, request=1, deadline_ns=5_000, destination=2, cookie=2)
    queue.submit(bytes=9 << 10, stage=REUSE, request=2, destination=3, cookie=3)
    assert queue.peek()[1].cookie == 3, "6 KiB cannot be there in 5,000 ns"
    assert queue.take(first)[0] == 0
    queue.submit(bytes=3 << 10, stage=REUSE, request=1, deadline_ns=5_000, destination=2, cookie=4)
    parked(queue, 2)
    assert queue.set_rate(2 * S) == 0
    queue.destination_open(2)
    assert cookies(queue) == [2, 4, 3]


def test_a_critical_request_for_an_open_destination_passes_early_stages_for_a_closed_one(native):
    queue = native.queue()
    for d in (1, 2):
        queue.submit(bytes=1 << 20, stage=P2D, request=1, deadline_ns=S, destination=d, cookie=d)
    assert queue.request(1, deadline_ns=(2 << 20) + 2) == 0  # 2 ns to spare
    queue.submit(bytes=1, stage=COLLECTIVE, destination=3, cookie=3)
    queue.destination_close(1)
    picked = queue.pick()[1]
    assert (picked.cookie, picked.tier, picked.destination) == (2, 0, 2)
    queue.destination_open(1)
    queue.destination_close(3)
    assert cookies(queue) == [1]
    queue.destination_open(3)
    assert cookies(queue) == [3]


def test_pruned_reuse_for_a_closed_destination_is_where_it_belongs_when_that_opens(native):
    queue = native.queue()
    for cookie in range(4):
        queue.submit(bytes=1, stage=REUSE, request=5, batch=7, layer=1, destination=cookie % 2, cookie=cookie)
    queue.submit(bytes=1, stage=BACKGROUND, deadline_ns=S, destination=1, cookie=9)
    parked(queue, 1)
    assert queue.prune(5) == 0
    assert queue.peek()[1].tier == 3
    queue.destination_open(1)
    assert queue.pick()[1].cookie == 9
    parked(queue, 0)
    assert queue.unprune(5) == 0
    assert cookies(queue) == [1, 3]
    queue.destination_open(0)
    assert cookies(queue) == [0, 2]


def test_control_without_a_batch_goes_to_each_destination(native):
    queue = native.queue(flows_max=64)
    for cookie in range(6):
        assert queue.submit(bytes=1, stage=COLLECTIVE, destination=cookie % 3, cookie=cookie)[0] == 0
    parked(queue, 0)
    assert cookies(queue) == [1, 2, 4, 5]
    queue.destination_open(0)
    assert cookies(queue) == [0, 3]
    assert queue.stats().batches == 0


def test_as_many_destinations_as_flows_may_be_parked_for_each_kind(native):
    """The tables hold them all, whether of one request, of one batch or each on its own."""
    n = 64
    for stage, request, batch in [
        (P2D, 1, 0),
        (P2D, 0, 0),
        (REUSE, 1, 0),
        (REUSE, 0, 1),
        (COLLECTIVE, 0, 0),
        (4, 0, 0),
    ]:
        queue = native.queue(flows_max=n)
        for reported in range(n):
            assert queue.request(100 + reported) == queue.batch(100 + reported) == 0
        for cookie in range(n):
            flow = {"bytes": 1, "stage": stage, "request": request, "batch": batch, "destination": 9 * cookie}
            assert queue.submit(cookie=cookie, **flow)[0] == 0
        for cookie in range(n):
            queue.destination_close(9 * cookie)
        assert queue.peek()[0] == EAGAIN
        for cookie in range(n):
            queue.destination_open(9 * cookie)
        assert cookies(queue) == list(range(n))


def test_an_observer_is_notified_of_the_flow_that_came_first(native):
    queue, reported = native.queue(), []

    @CFUNCTYPE(None, c_void_p, c_uint64, c_uint32, c_bool)
    def promoted(_context, cookie, _level, critical):
        reported.append((cookie, critical))

    queue.watch(promoted, None)
    handles = [
        queue.submit(bytes=100, stage=P2D, request=1, deadline_ns=S, destination=destination, cookie=cookie)[1]
        for cookie, destination in enumerate([1, 2, 1, 3])
    ]
    queue.take(handles[0])
    assert queue.request(1, deadline_ns=402) == 0  # 2 ns to spare
    assert reported == [(1, True)]
