"""What holds for the queue whatever the policy says, and what it answers to bad calls."""

from __future__ import annotations

import subprocess

import pytest

EINVAL, ENOENT, ENOSPC, EAGAIN = -22, -2, -28, -11
REUSE, COLLECTIVE, P2D, BACKGROUND = 1, 2, 3, 4
S = 1_000_000_000


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_random_calls_break_no_invariant(stress, seed):
    result = subprocess.run([stress, str(seed), "300000"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[:4000]


@pytest.mark.parametrize(
    "change",
    [
        {"variant": 2},
        {"early_order": 7},
        {"classes": 1},
        {"classes": 9},
        {"levels": 0},
        {"levels": 9},
        {"variant": 1, "levels": 1},
        {"rho_max": 1.0},
        {"rho_max": -0.1},
        {"rho_max": float("nan")},
        {"critical_laxity_share": 1.5},
        {"readmission_margin": float("nan")},
        {"promotion_interval_ns": 0},
    ],
)
def test_a_policy_out_of_range_is_refused(native, change):
    assert native.create(native.policy(**change), S, 16)[0] == EINVAL


def test_thresholds_must_fall_from_at_most_one_to_above_zero(native):
    for index, value in [(0, 1.5), (3, 0.5), (6, 0.0), (2, float("nan"))]:
        policy = native.policy()
        policy.threshold[index] = value
        assert native.create(policy, S, 16)[0] == EINVAL


def test_sizes_out_of_range_are_refused(native):
    for rate, flows_max in [(0, 16), (2**61, 16), (S, 0), (S, 2**22 + 1)]:
        assert native.create(native.policy(), rate, flows_max)[0] == EINVAL
    queue = native.queue()
    assert queue.submit(bytes=2**40 + 1, stage=P2D)[0] == EINVAL
    assert queue.set_rate(0) == EINVAL
    assert queue.set_load(float("nan")) == EINVAL
    assert queue.batch(0) == EINVAL
    assert queue.request(0) == EINVAL
    assert queue.request(1, bytes_ahead=2**40 + 1) == EINVAL
    assert queue.prune(0) == EINVAL


def test_a_full_queue_refuses_until_a_flow_is_gone(native):
    queue = native.queue(flows_max=3)
    handles = [queue.submit(bytes=1, stage=stage)[1] for stage in (REUSE, P2D, BACKGROUND)]
    assert queue.submit(bytes=1, stage=P2D)[0] == ENOSPC
    assert queue.pick()[1].handle == handles[0]
    assert queue.submit(bytes=1, stage=P2D)[0] == ENOSPC  # in flight is still known
    assert queue.complete(handles[0], 1) == 1
    assert queue.submit(bytes=1, stage=P2D)[0] == 0


def test_reported_requests_and_batches_have_room_of_their_own(native):
    queue = native.queue(flows_max=2)
    for table in (queue.request, queue.batch):
        assert [table(key) for key in (1, 2, 3)] == [0, 0, ENOSPC]
        assert table(1) == 0  # known ones may change
    assert queue.prune(3) == ENOSPC
    for number in (10, 11):  # flows bring requests and batches beyond those reported
        assert queue.submit(bytes=1, stage=P2D, request=number, batch=number)[0] == 0
    assert queue.request_end(1) == 0
    assert queue.prune(3) == 0


def test_a_handle_is_never_given_twice(native):
    queue, seen = native.queue(flows_max=1), set()
    for _ in range(1000):
        handle = queue.submit(bytes=1, stage=P2D)[1]
        assert handle not in seen
        seen.add(handle)
        assert queue.cancel(handle) == 0
    assert {queue.cancel(handle) for handle in seen} == {ENOENT}
    assert queue.cancel(0) == ENOENT
    assert queue.cancel(2**64 - 1) == ENOENT


def test_an_empty_queue_says_so_and_needs_no_timer(native):
    queue = native.queue()
    assert queue.pick()[0] == EAGAIN
    assert queue.advance(5) == native.NEVER


def test_the_four_tiers_in_order(native):
    queue = native.queue()
    order = [
        queue.submit(bytes=1, stage=BACKGROUND)[1],
        queue.submit(bytes=1, stage=P2D, deadline_ns=S)[1],
        queue.submit(bytes=1, stage=REUSE, layer=3)[1],
        queue.submit(bytes=1, stage=COLLECTIVE)[1],
        queue.submit(bytes=100, stage=P2D, request=9, deadline_ns=102)[1],  # 2 ns to spare
    ]
    picked = [queue.pick()[1] for _ in order]
    assert [p.handle for p in picked] == order[::-1]
    assert [p.wire_class for p in picked] == [1, 0, 3, 6, 7]


def test_a_layer_boundary_moves_the_whole_batch(native):
    queue = native.queue()
    for batch, layer in [(1, 4), (2, 9)]:
        queue.batch(batch, layer_current=0, layers=10, rank=batch)
        for _ in range(3):
            queue.submit(bytes=1, stage=REUSE, batch=batch, layer=layer, cookie=batch)
    assert queue.peek()[1].cookie == 1
    queue.batch(2, layer_current=8, layers=10, rank=2)
    assert [queue.pick()[1].cookie for _ in range(6)] == [2, 2, 2, 1, 1, 1]


def test_promotion_comes_by_itself_as_the_deadline_nears(native):
    queue = native.queue(rate=S, policy=native.policy(8, variant=1))
    handle = queue.submit(0, bytes=S // 1000, stage=P2D, deadline_ns=S)[1]  # 1 ms of the link, due in 1 s
    levels, moment = [], queue.advance(0)
    while moment < S:
        levels.append(queue.place(handle)[1].level)
        moment = queue.advance(moment)
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > 1
    assert levels[-1] == 1
    assert queue.stats().evaluations < 200  # each evaluation halves the distance, or waits an interval


def test_in_flight_flows_keep_their_class(native):
    queue = native.queue(rate=S)
    handle = queue.submit(0, bytes=1, stage=P2D, deadline_ns=S)[1]
    granted = queue.pick(0)[1].wire_class
    queue.advance(S - 10)
    assert (queue.place(handle)[1].wire_class, queue.place(handle)[1].in_flight) == (granted, 1)


def test_pruned_reuse_of_a_running_batch_is_not_demoted(native):
    for variant, tier in [(0, 1), (1, 3)]:  # mfs, paper
        queue = native.queue(native.policy(variant=variant))
        queue.batch(7, layer_current=0, layers=8)
        handle = queue.submit(bytes=1, stage=REUSE, request=5, batch=7, layer=1)[1]
        queue.prune(5)
        assert queue.peek()[1].tier == tier
        queue.unprune(5)
        assert queue.peek()[1].tier == 1
        assert queue.peek()[1].handle == handle


def drained(queue):
    """Cookies of what waits, in order."""
    cookies = []
    while queue.peek()[0] == 0:
        cookies.append(queue.pick()[1].cookie)
    return cookies


def test_flows_that_were_set_aside_return_to_their_places_in_any_order(native):
    for first, second in [(5, 6), (6, 5)]:
        queue = native.queue(native.policy(variant=1))
        queue.batch(7, layer_current=0, layers=8)
        for cookie, request in enumerate([5, 6, 5, 4, 6]):
            queue.submit(bytes=1, stage=REUSE, request=request, batch=7, layer=1, cookie=cookie)
        queue.prune(5)
        queue.prune(6)
        assert queue.peek()[1].cookie == 3  # those before it were set aside on the way
        queue.unprune(first)
        queue.unprune(second)
        assert drained(queue) == [0, 1, 2, 3, 4]


def test_a_batch_that_begins_to_run_gets_back_what_was_set_aside(native):
    queue = native.queue()
    for cookie in range(3):
        queue.submit(bytes=1, stage=REUSE, request=5, batch=7, layer=1, cookie=cookie)
    queue.prune(5)
    assert queue.peek()[1].tier == 3
    queue.batch(7, layer_current=0, layers=8)
    assert queue.peek()[1].tier == 1
    assert drained(queue) == [0, 1, 2]


def test_a_turn_stands_for_arrival_where_nothing_else_orders(native):
    """Two programs' flows, as the arbiter shares a NIC among them; a deadline goes before any turn."""
    queue = native.queue()
    for cookie, turn in enumerate([1, 5, 9, 2, 3, 4]):
        queue.submit(bytes=1, stage=P2D, cookie=cookie, turn=turn)
    queue.submit(bytes=1, stage=P2D, cookie=6, turn=99, deadline_ns=10**15)
    assert drained(queue) == [6, 0, 3, 4, 5, 1, 2]


def test_layers_that_are_due_are_served_by_arrival(native):
    queue = native.queue()
    for cookie, layer in enumerate([3, 1, 2, 3, 2, 1, 9]):
        queue.submit(bytes=1, stage=REUSE, batch=7, layer=layer, cookie=cookie)
    queue.batch(7, layer_current=3, layers=10)
    assert drained(queue) == [0, 1, 2, 3, 4, 5, 6]


def test_a_batch_that_ended_starts_anew(native):
    queue = native.queue()
    queue.batch(7, layer_current=9, layers=10)
    for cookie, layer in enumerate([4, 2, 3]):
        queue.submit(bytes=1, stage=REUSE, batch=7, layer=layer, cookie=cookie)
    queue.batch_end(7)
    queue.batch(7, layer_current=2, layers=10)
    assert [queue.pick()[1].rli for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_flow_cancelled_anywhere_leaves_the_others_in_order(native, gone):
    queue = native.queue()
    queue.batch(7, layer_current=5, layers=10)
    handles: list[int] = []
    for _ in range(4):  # two requests and two layers, interleaved
        for stage, layer, request in [(P2D, 0, 1), (P2D, 0, 2), (REUSE, 1, 0), (REUSE, 2, 0)]:
            handles.append(
                queue.submit(
                    bytes=1, stage=stage, batch=7, layer=layer, request=request, deadline_ns=S, cookie=len(handles)
                )[1]
            )
    for handle in handles[4 * gone : 4 * gone + 4]:
        assert queue.cancel(handle) == 0
    left = [c for c in range(16) if c // 4 != gone]
    assert drained(queue) == [c for c in left if c % 4 >= 2] + [c for c in left if c % 4 < 2]


def test_what_returns_competes_with_other_batches_by_its_arrival(native):
    queue = native.queue(native.policy(variant=1))
    for batch in (7, 8):
        queue.batch(batch, layer_current=0, layers=8)
    for cookie, (request, batch) in enumerate([(4, 7), (5, 7), (0, 8), (6, 7), (0, 8), (6, 7), (0, 8)]):
        queue.submit(bytes=1, stage=REUSE, request=request, batch=batch, layer=1, cookie=cookie)
    for request in (4, 5, 6):
        queue.prune(request)
    assert queue.peek()[1].cookie == 2
    for request in (4, 6, 5):
        queue.unprune(request)
    assert drained(queue) == [0, 1, 2, 3, 4, 5, 6]


def test_a_flow_that_returned_hands_on_to_its_new_follower(native):
    queue = native.queue(native.policy(variant=1))
    for batch in (7, 8):
        queue.batch(batch, layer_current=0, layers=8)
    for cookie, (request, batch) in enumerate([(4, 7), (5, 7), (0, 8), (0, 7)]):
        queue.submit(bytes=1, stage=REUSE, request=request, batch=batch, layer=1, cookie=cookie)
    queue.prune(4)
    queue.prune(5)
    assert queue.peek()[1].cookie == 2
    queue.unprune(4)
    assert drained(queue) == [0, 2, 3, 1]  # 1 is still pruned


def test_a_flow_cancelled_between_two_hands_on_to_its_follower(native):
    queue = native.queue()
    handles = [
        queue.submit(bytes=1, stage=P2D, request=request, deadline_ns=S, cookie=cookie)[1]
        for cookie, request in enumerate([1, 2, 1, 2, 2, 1])
    ]
    queue.cancel(handles[2])
    assert drained(queue) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    "batches, critical",
    [
        ([], True),
        ([(110_000, 0)], True),
        ([(109_999, 0)], False),
        ([(500_000, 390_000)], True),
        ([(500_000, 390_001)], False),
        ([(500_000, 390_001), (200_000, 0)], False),
        ([(500_000, 0), (109_999, 1)], False),
        ([(0, 10**9)], True),  # without a deadline it has all the time
    ],
)
def test_class_0_only_at_the_cost_of_a_unit_that_can_afford_it(native, batches, critical):
    """100 us of bytes with 10 us to spare: the unit must have 110 us. `batches`: deadline and compute left."""
    now = 890_000
    queue = native.queue(rate=S)
    for key, (deadline, left) in enumerate(batches, start=1):
        queue.batch(key, now, layers=8, deadline_ns=deadline and now + deadline, compute_left_ns=left)
    queue.request(9, now, deadline_ns=1_000_000, budget_ns=1_000_000)
    queue.submit(now, bytes=100_000, stage=P2D, request=9)
    assert (queue.peek(now)[1].tier == 0) is critical


def test_more_bytes_may_make_a_waiting_request_critical(native):
    queue = native.queue(rate=S)
    queue.request(9, deadline_ns=500_000, budget_ns=1_000_000)
    queue.submit(bytes=300_000, stage=P2D, request=9)
    assert (queue.peek()[1].tier, queue.peek()[1].level) == (2, 0)
    queue.submit(bytes=180_000, stage=P2D, request=9)
    assert queue.peek()[1].tier == 0


def test_a_request_is_lost_by_one_nanosecond(native):
    for variant, deadline, tier in [(0, 333_333_334, 0), (0, 333_333_333, 2), (1, 333_333_333, 3)]:
        queue = native.queue(native.policy(8, variant=variant), rate=3)  # one byte takes 333,333,333.3 ns
        queue.submit(bytes=1, stage=P2D, deadline_ns=deadline)
        assert queue.peek()[1].tier == tier


def test_a_lost_request_is_due_again_four_budgets_later(native):
    queue = native.queue(rate=S)
    lost = queue.submit(bytes=1000, stage=P2D, request=1, deadline_ns=100)[1]  # budget 100, due again at 500
    before = queue.submit(bytes=1, stage=P2D, request=2, deadline_ns=499)[1]
    after = queue.submit(bytes=1, stage=P2D, request=3, deadline_ns=501)[1]
    assert [queue.pick()[1].handle for _ in range(3)] == [before, lost, after]


def test_the_batch_that_stalls_for_the_shortest_time_goes_first(native):
    queue = native.queue()
    for batch, rank in [(1, 0), (2, 1)]:
        queue.batch(batch, layer_current=0, layers=10, rank=rank)
    big = [queue.submit(bytes=6000, stage=REUSE, batch=1)[1] for _ in range(2)]
    small = queue.submit(bytes=8000, stage=REUSE, batch=2)[1]
    assert queue.pick()[1].handle == small  # 8,000 bytes against 12,000 in two messages
    queue.submit(bytes=8000, stage=REUSE, batch=2)
    assert queue.complete(big[1], 5000) == 0
    assert [queue.pick()[1].handle for _ in range(2)] == big  # 7,000 against 8,000


def test_reuse_without_a_batch_goes_by_what_its_request_waits_for(native):
    queue = native.queue()
    queue.batch(7, layer_current=0, layers=10, rank=0)
    unknown = queue.submit(bytes=16 << 10, stage=REUSE)[1]
    large = [queue.submit(bytes=6 << 10, stage=REUSE, request=1)[1] for _ in range(2)]
    small = queue.submit(bytes=7 << 10, stage=REUSE, request=2)[1]
    running = queue.submit(bytes=1 << 20, stage=REUSE, batch=7, layer=9)[1]
    later = queue.submit(bytes=1, stage=REUSE, request=3, layer=1)[1]
    alone = queue.submit(bytes=1, stage=REUSE)[1]
    assert [queue.pick()[1].handle for _ in range(4)] == [running, alone, small, large[0]]  # 7 KiB, 12 in two messages
    same = queue.submit(bytes=5 << 10, stage=REUSE, request=4)[1]
    assert [queue.pick()[1].handle for _ in range(4)] == [large[1], same, unknown, later]
    assert queue.stats().batches == 1, "only the batch that was reported is known when nothing waits"


def test_reuse_without_a_batch_returns_to_its_request_when_that_is_unpruned(native):
    queue = native.queue()
    pruned = [queue.submit(bytes=1 << 10, stage=REUSE, request=1, layer=layer)[1] for layer in (0, 1)]
    other = queue.submit(bytes=9 << 10, stage=REUSE, request=2)[1]
    assert queue.prune(1) == 0
    assert queue.peek()[1].handle == other
    assert queue.unprune(1) == 0
    assert [queue.pick()[1].handle for _ in range(3)] == [pruned[0], other, pruned[1]]


def test_a_load_that_comes_too_late_counts_as_four_times_as_large(native):
    """1 KiB takes 1,024 ns here. Of these loads only time makes the first one late, and no timer says so."""
    queue = native.queue(rate=S)
    late = [queue.submit(bytes=512, stage=REUSE, request=1, deadline_ns=2_000)[1] for _ in range(2)]
    small = queue.submit(bytes=3 << 10, stage=REUSE, request=2, deadline_ns=100_000)[1]
    large = queue.submit(bytes=5 << 10, stage=REUSE, request=3)[1]
    assert queue.peek(2_000 - 1_024)[1].handle == late[0], "in time to the nanosecond"
    assert queue.pick(2_000 - 1_023)[1].handle == small
    assert queue.advance(2_000) == native.NEVER
    assert queue.cancel(late[1]) == 0  # 512 bytes: below one KiB, two classes more are below 4
    assert [queue.pick(2_000)[1].handle for _ in range(2)] == [late[0], large]


def test_a_load_is_late_no_more_when_its_port_is_faster_or_less_of_it_waits(native):
    queue = native.queue(rate=S)
    load = [queue.submit(bytes=4 << 10, stage=REUSE, request=1, deadline_ns=5_000)[1] for _ in range(2)]
    other = queue.submit(bytes=20 << 10, stage=REUSE, request=2)[1]
    assert queue.peek()[1].handle == other, "8 KiB count as 32"
    assert queue.set_rate(2 * S) == 0
    assert queue.peek()[1].handle == load[0]
    assert queue.set_rate(S) == 0
    assert queue.peek()[1].handle == other
    assert queue.cancel(load[1]) == 0
    assert queue.peek(5_000 - 4_096)[1].handle == load[0]
    assert queue.peek(5_000 - 4_095)[1].handle == load[0], "too late, and still the smaller one"


def test_layers_to_come_count_among_equals(native):
    queue = native.queue()
    for batch, rank in [(1, 0), (2, 1)]:
        queue.batch(batch, layer_current=0, layers=10, rank=rank)
    long = [queue.submit(bytes=4 << 10, stage=REUSE, batch=1, layer=layer)[1] for layer in range(4)]
    short = [queue.submit(bytes=6 << 10, stage=REUSE, batch=2, layer=layer)[1] for layer in range(2)]
    picked = [queue.pick()[1].handle for _ in range(6)]
    # 16 KiB against 12: the short batch at either distance; then the other's, by layer
    assert picked == [short[0], long[0], short[1], *long[1:]]


def test_of_batches_that_stall_about_as_long_the_smaller_rank_goes_first(native):
    queue = native.queue()
    submit = {
        rank: lambda size, rank=rank: queue.submit(bytes=size, stage=REUSE, batch=rank + 1)[1] for rank in (0, 1, 2)
    }
    for rank in submit:
        queue.batch(rank + 1, layer_current=0, layers=10, rank=rank)
    last = submit[2](5 << 10)
    middle, first = submit[1](6 << 10), submit[0]((8 << 10) - 1)
    beyond = submit[0](1)
    assert queue.pick()[1].handle == middle  # batch 1 waits for 8 KiB now: another power of two
    assert queue.cancel(beyond) == 0
    assert queue.pick()[1].handle == first
    unplaced = queue.submit(bytes=4 << 10, stage=REUSE, batch=9)[1]
    queue.batch(9, layer_current=0, layers=10, rank=2**32 - 1)
    assert [queue.pick()[1].handle for _ in range(2)] == [last, unplaced]  # no rank: behind those that have one
