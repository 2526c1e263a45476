"""The windows of one direction of a NIC, under a clock of their own."""

from __future__ import annotations

from collections import deque

import pytest

from mfsd._native import ROOM, ROOM_DESTINATION_FULL, ROOM_NIC_FULL, Passage, Tier, Window

RATE = 1_000_000_000
WINDOW = 200_000
MS = 1_000_000


def send(window: Window, key: int, size: int, now_ns: int) -> Passage:
    return window.enter(window.destination(key, now_ns), size, now_ns)


def test_the_window_is_time_at_the_rate_and_not_below_its_least() -> None:
    assert Window(RATE).bytes == WINDOW
    assert Window(1000).bytes == 131_072


@pytest.mark.parametrize(("rate", "least"), [(0, 1), (RATE, 0), (2**50, 1)])
def test_nonsense_is_refused(rate: int, least: int) -> None:
    with pytest.raises(OSError):
        Window(rate, window_bytes_min=least)


def test_a_tier_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tier: 4 is none"):
        Window(RATE).room(0, 1, 0, 4)


def test_what_waits_beyond_the_nic_holds_up_its_destination_alone() -> None:
    window = Window(RATE)
    send(window, 1, WINDOW, 0)
    slow, free = window.destination(1, 0), window.destination(2, 0)
    assert window.room(slow, 1000, 0)[0] == ROOM_DESTINATION_FULL
    room, at_ns = window.room(free, 1000, 0)
    assert room == ROOM_NIC_FULL
    assert window.room(free, 1000, at_ns - 10)[0] == ROOM_NIC_FULL
    assert window.room(free, 1000, at_ns)[0] == ROOM
    assert window.room(slow, 1000, MS)[0] == ROOM_DESTINATION_FULL, "nothing of it has arrived"
    assert window.backlog(MS) == 0
    assert window.in_flight_bytes == WINDOW


def test_what_is_complete_has_left_the_nic() -> None:
    window = Window(RATE)
    passage = send(window, 1, WINDOW, 0)
    assert window.backlog(0) == WINDOW
    window.complete(passage, 10)
    assert window.backlog(10) == 0
    assert window.room(window.destination(1, 10), WINDOW, 10)[0] == ROOM


def test_something_may_always_enter_an_empty_window() -> None:
    window = Window(RATE)
    assert window.room(window.destination(1, 0), 10**12, 0)[0] == ROOM


def test_a_task_has_the_nic_for_two_milliseconds_at_most() -> None:
    window = Window(RATE)
    send(window, 1, 10**12, 0)
    assert window.backlog(0) == RATE * 2 // 1000
    assert window.room(window.destination(2, 0), 1000, 3 * MS)[0] == ROOM


def test_the_nic_is_given_no_more_than_the_link_has_left() -> None:
    window = Window(RATE)
    window.set_drain(RATE / 10, 0)
    send(window, 1, WINDOW, 0)
    assert window.backlog(MS) == pytest.approx(WINDOW - 0.95 * RATE / 10 / 1000, rel=1e-3)


def rounds(window: Window, key: int, rate: float, size: int, count: int, start_ns: int, delay_ns: int = 0) -> int:
    """As many messages as have room are under way to a destination that takes them one after the other at `rate`, and
    tells of each `delay_ns` later. Answers when the last was complete."""
    moving: list[tuple[int, Passage]] = []
    now_ns = free_ns = start_ns
    sent = 0
    while sent < count or moving:
        destination = window.destination(key, now_ns)
        room, at_ns = window.room(destination, size, now_ns)
        if sent < count and room == ROOM:
            free_ns = max(free_ns, now_ns) + int(size / rate * 1e9)
            moving.append((free_ns + delay_ns, window.enter(destination, size, now_ns)))
            sent += 1
            continue
        window.give(destination)
        if moving and not (room == ROOM_NIC_FULL and sent < count and at_ns < moving[0][0]):
            now_ns, passage = moving.pop(0)
            window.complete(passage, now_ns)
        else:
            now_ns = at_ns
    return now_ns


def test_the_window_of_a_slow_destination_shrinks_and_it_loses_nothing() -> None:
    window = Window(RATE)
    rate, size, count = RATE / 20, 10_000, 2000
    took_ns = rounds(window, 1, rate, size, count, 0)
    found = window.snapshot(window.destination(1, took_ns))
    assert found.window_bytes < WINDOW / 2
    assert found.rate_bytes_per_s == pytest.approx(rate, rel=0.02)
    assert took_ns <= 1.01 * count * size / rate * 1e9


def test_it_grows_again_when_the_destination_recovers() -> None:
    window = Window(RATE)
    end_ns = rounds(window, 1, RATE / 20, 10_000, 2000, 0)
    end_ns = rounds(window, 1, RATE, 10_000, 2000, end_ns)
    assert window.snapshot(window.destination(1, end_ns)).window_bytes == WINDOW


def test_a_rate_is_forgotten_after_a_second_without_a_task() -> None:
    """Who decides by it may send nothing because of it: then no task would ever take it away."""
    window = Window(RATE)
    end_ns = rounds(window, 1, RATE / 20, 10_000, 2000, 0)
    assert window.rate_to(1, end_ns + 1000 * MS) == pytest.approx(RATE / 20, rel=0.02)
    assert window.rate_to(1, end_ns + 1000 * MS + 1) == 0
    passage = send(window, 1, 10_000, end_ns + 500 * MS)
    assert window.rate_to(1, end_ns + 5000 * MS) > 0, "a task is under way"
    window.leave(passage, end_ns + 5000 * MS)
    assert window.rate_to(1, end_ns + 6001 * MS) == 0
    assert window.rate_to(2, end_ns) == 0, "nothing was ever sent there"


def test_time_that_is_no_queue_does_not_shrink_it() -> None:
    """A program that polls for completions every now and then: less under way would be less done."""
    window = Window(RATE)
    delay_ns, count, size = 5 * MS, 3000, 10_000
    took_ns = rounds(window, 1, RATE, size, count, 0, delay_ns)
    one_window_a_delay = count * size / WINDOW * delay_ns
    assert took_ns < one_window_a_delay, "no worse than a window that never moves"


def polled(size: int, depth: int, poll_ns: int, end_ns: int) -> float:
    """Bytes a second, of the last half, of a program that has so many messages asked for at once to one destination
    and takes completions every `poll_ns`. The link sends one message after the other."""
    window, moving = Window(RATE), deque[tuple[int, Passage]]()
    free_ns, moved = 0, 0
    for poll in range(1, end_ns // poll_ns):
        before_ns, poll_at_ns = (poll - 1) * poll_ns, poll * poll_ns
        now_ns = before_ns
        while len(moving) < depth and now_ns < poll_at_ns:
            destination = window.destination(1, now_ns)
            room, at_ns = window.room(destination, size, now_ns)
            if room == ROOM:
                free_ns = max(free_ns, now_ns) + size * 10**9 // RATE
                moving.append((free_ns, window.enter(destination, size, now_ns)))
                continue
            window.give(destination)
            now_ns = at_ns if room == ROOM_NIC_FULL else poll_at_ns
        while moving and moving[0][0] <= poll_at_ns:
            passage = moving.popleft()[1]
            window.complete(passage, poll_at_ns)
            window.give(passage.destination)
            moved += size * (poll_at_ns > end_ns // 2)
    return moved / (end_ns / 2e9)


@pytest.mark.parametrize("size", [16_384, 65_536, 262_144, 1_048_576])
@pytest.mark.parametrize("poll_ns", [MS // 100, MS // 10, MS // 2, MS, 5 * MS, 20 * MS])
def test_a_program_that_seldom_polls_has_its_rate(size: int, poll_ns: int) -> None:
    """What it would have with no window: all that it asks for is under way from poll to poll.

    Half a millisecond is not yet long enough for bytes to seem to wait beyond the NIC: what it takes up between two
    polls is a window or a message then.
    """
    depth, least = 32, 0.5 if poll_ns == MS // 2 else 0.8
    without = min(RATE, depth * size / (poll_ns / 1e9))
    assert polled(size, depth, poll_ns, max(400 * poll_ns, 2000 * MS)) >= least * without


def test_an_idle_destination_starts_fair() -> None:
    window = Window(RATE)
    end_ns = rounds(window, 1, RATE / 20, 10_000, 2000, 0)
    destination = window.destination(1, end_ns)
    assert window.snapshot(destination).window_bytes < WINDOW
    window.enter(destination, 1000, end_ns + 2_000 * MS)
    assert window.snapshot(destination).window_bytes == WINDOW


def test_what_is_overdue_leaves_and_gives_the_destination_more_time() -> None:
    window = Window(RATE)
    passage = send(window, 1, WINDOW, 0)
    window.leave(passage, passage.due_ns, overdue=True)
    assert window.in_flight_bytes == 0
    again = send(window, 1, WINDOW, passage.due_ns)
    assert again.due_ns - again.entered_ns > passage.due_ns - passage.entered_ns


def test_destinations_are_found_again_and_the_least_used_make_room() -> None:
    window = Window(RATE)
    first = window.destination(10**9, 0)
    assert window.destination(10**9, 0) == first
    for key in range(1, 9000):  # more than there is room for, each given back
        window.give(window.destination(key, 0))
    assert window.snapshot(first).key == 10**9, "it is in use"
    window.give(first)
    window.give(first)
    for key in range(1, 9000):
        window.give(window.destination(key, 0))
    assert window.snapshot(window.destination(10**9, 0)).window_bytes == WINDOW


def test_a_table_that_is_full_of_destinations_in_use_shares_one() -> None:
    window = Window(RATE)
    found = [window.destination(key, 0) for key in range(1, 8200)]
    assert found[-1] == 0
    assert len(set(found)) == 8192
    assert send(window, 9000, WINDOW, 0).destination == 0


def fill(window: Window, destination: int) -> None:
    now_ns = 0
    while (found := window.room(destination, WINDOW // 2, now_ns))[0] != ROOM_DESTINATION_FULL:
        now_ns = max(now_ns, found[1])
        window.enter(destination, WINDOW // 2, now_ns)


def test_who_found_a_window_full_is_taken_once() -> None:
    window = Window(RATE)
    first, second = (window.destination(1, 0, program=program) for program in (1, 2))
    other = window.destination(2, 0)
    for destination in (first, second, other):
        fill(window, destination)
    assert window.room(first, WINDOW, 0)[0] == ROOM_DESTINATION_FULL, "and is not there twice"
    assert {window.take_waiting(first), window.take_waiting(second)} == {first, second}
    assert window.take_waiting(first) is None
    assert window.take_waiting(other) == other
    assert window.take_waiting(other) is None


@pytest.mark.parametrize("large", list(Tier))
@pytest.mark.parametrize("waits", list(Tier))
def test_a_large_task_goes_in_front_of_what_waits_unless_that_is_of_a_better_tier(large: Tier, waits: Tier) -> None:
    window = Window(RATE)
    send(window, 1, WINDOW, 0)
    full, free = window.destination(1, 0), window.destination(2, 0)
    assert window.room(full, 1000, 0, waits)[0] == ROOM_DESTINATION_FULL
    room, at_ns = window.room(free, 2 * WINDOW, 0, large)
    assert room == (ROOM_NIC_FULL if waits < large else ROOM)
    if room == ROOM_NIC_FULL:
        assert window.room(free, 2 * WINDOW, at_ns - 10, large)[0] == ROOM_NIC_FULL
        assert window.room(free, 2 * WINDOW, at_ns, large)[0] == ROOM
        window.take_waiting(full)
        assert window.room(free, 2 * WINDOW, 0, large)[0] == ROOM, "nothing waits any more"


def test_what_waits_and_is_forgotten_is_not_taken() -> None:
    window = Window(RATE)
    waiting, staying = (window.destination(1, 0, program=program) for program in (1, 2))
    for destination in (waiting, staying):
        fill(window, destination)
    window.give(waiting)
    for key in range(2, 9000):
        window.give(window.destination(key, 0))
    assert window.take_waiting(staying) == staying
    assert window.take_waiting(staying) is None
