"""The last hour at the coordinator: bounded, right, and kept when another leads."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.history import INTERVAL_NS, INTERVALS, History, Interval, Missed
from mfsd.coordinator.messages import fill_history, follow_history
from mfsd.coordinator.ports import Use
from mfsd.policy.attainment import Attainment
from mfsd.policy.config import PolicyConfig
from mfsd.proto import mfs_pb2 as pb

S = 1_000_000_000


def ended(history: History, seen: Attainment, request_id: int, met: bool, now_ns: int) -> None:
    counts = seen.judge(request_id, met, now_ns)
    if counts is not None:
        history.ended(request_id, met, counts, "a")


def test_a_request_that_is_late_after_all_counts_where_it_ended_first() -> None:
    history, seen = History(), Attainment()
    ended(history, seen, 1, True, 5 * S)
    ended(history, seen, 2, True, 6 * S)
    ended(history, seen, 1, False, 25 * S)
    ended(history, seen, 1, False, 26 * S)
    assert [(i.met, i.missed) for _, i in history.latest(10, 30 * S)] == [(1, 1)]
    assert [m.request_id for m in history.missed] == [1]


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 50), st.booleans()), max_size=200))
def test_history_and_attainment_agree(ends: list[tuple[int, int, bool]]) -> None:
    history, seen = History(), Attainment(window_ns=10**18)
    for at_s, request_id, met in sorted(ends):
        ended(history, seen, request_id, met, at_s * S)
    counts = seen.counts(3_000 * S)
    assert history.recent(10**18, 3_000 * S) == (counts.met, counts.missed)


def test_an_interval_that_a_request_begins_has_what_moves_until_it_is_noted() -> None:
    """The page showed nothing as moving for half of the time: the history is noted every five seconds."""
    history = History()
    before = history.at(9 * S)
    before.bytes_per_s, before.busiest_permille, before.nodes, before.pruned = [7], 940, 4, 2
    history.ended(1, True, (10 * S, False), "a")
    (_, last) = next(history.latest(1, 11 * S))
    assert (last.bytes_per_s, last.busiest_permille, last.nodes, last.met, last.pruned) == ([7], 940, 4, 1, 0)
    assert history.at(30 * S) == Interval(), "nothing is known of the time between"


def test_it_never_grows_beyond_an_hour() -> None:
    history = History()
    for number in range(3 * INTERVALS):
        history.at(number * INTERVAL_NS).met += 1
        history.ended(number, False, (number * INTERVAL_NS, False), "a")
    now_ns = 3 * INTERVALS * INTERVAL_NS
    shown = list(history.latest(10**6, now_ns))
    assert len(shown) < INTERVALS and shown[0][0] < INTERVALS * INTERVAL_NS
    assert len(history.missed) <= 100


def test_a_time_without_intervals_is_a_gap() -> None:
    history = History()
    history.at(0).met = 3
    assert [i.met for _, i in history.latest(INTERVALS, 59 * 60 * S)] == [3]
    assert not list(history.latest(INTERVALS, 61 * 60 * S))


@given(
    phase_ns=st.integers(0, INTERVAL_NS - 1),
    late_ns=st.lists(st.integers(0, S), min_size=1, max_size=20),
)
@example(phase_ns=4_500_000_000, late_ns=[0, 0, 0, 0, 0, S])
def test_who_follows_has_each_interval_once(phase_ns: int, late_ns: list[int]) -> None:
    """However long each answer took, and wherever the leader's intervals begin on this clock."""
    leader, follower = History(), History()
    for poll, late in enumerate(late_ns):
        now_ns = (100 + poll) * INTERVAL_NS + INTERVAL_NS // 2
        leader.at(now_ns).met = poll + 1
        reply = pb.StatusReply(address="leader", term=7)
        fill_history(reply, leader, 3 if poll else INTERVALS, now_ns)
        follow_history(follower, reply, now_ns + phase_ns + late)
    until_ns = 200 * INTERVAL_NS
    assert [i.met for _, i in follower.latest(INTERVALS, until_ns)] == [i + 1 for i in range(len(late_ns))]


def test_a_next_leader_goes_on_where_the_last_one_ended() -> None:
    first = Cluster(PolicyConfig(), 10**9, 0)
    first.connect("a", {"a/out": 10**9}, 1000 * S)
    first.ended("a", 1, True, 1001 * S)
    first.ended("a", 2, False, 1002 * S)
    first.used(0, Use((0, 500), 100, 0))
    first.remember(1003 * S)
    reply = pb.StatusReply(address="leader", term=7)
    fill_history(reply, first.past, INTERVALS, 1004 * S)
    past = History()
    follow_history(past, reply, 50 * S)
    then = Cluster(PolicyConfig(), 10**9, 0, past)
    then.ended("b", 3, True, 61 * S)
    assert past.recent(300 * S, 62 * S) == (2, 1)
    _, interval = next(past.latest(INTERVALS, 62 * S))
    assert list(interval.bytes_per_s)[:2] == [0, 5 * 10**8] and interval.unscheduled_bytes_per_s == 10**8
    assert interval.busiest_permille == 600 and interval.nodes == 1
    assert [(m.request_id, m.node) for m in past.missed] == [(2, "a")]


def test_a_leader_that_knows_less_takes_nothing_away() -> None:
    own = History()
    own.at(5 * S).met = 4
    own.follow(("new", 8), [(2 * S, Interval(met=1))], [Missed(0, 1, "a")], 100 * S)
    assert [i.met for _, i in own.latest(INTERVALS, 100 * S)] == [4, 1]
