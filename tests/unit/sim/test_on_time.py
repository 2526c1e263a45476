"""Moore and Hodgson's rule: nothing keeps more deadlines at one port."""

from collections.abc import Iterable
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bench.sim.on_time import Transfer, given_up

MS = 1_000_000
transfers = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=7).map(
    lambda drawn: [Transfer(due, i, takes) for i, (due, takes) in enumerate(drawn)]
)


def in_time(transfers: Iterable[Transfer], now_ns: int) -> bool:
    """Served by deadline, which meets all of them if any order does."""
    for transfer in sorted(transfers):
        now_ns += transfer.port_ns
        if now_ns > transfer.due_ns:
            return False
    return True


@given(transfers, st.integers(0, 30))
def test_no_other_choice_keeps_more(waiting: list[Transfer], now_ns: int) -> None:
    out = given_up(waiting, now_ns)
    kept = [transfer for transfer in waiting if transfer.sequence not in out]
    assert in_time(kept, now_ns)
    more = combinations(waiting, len(kept) + 1)
    assert not any(in_time(chosen, now_ns) for chosen in more)


@given(transfers, st.integers(0, 30), st.randoms())
def test_who_reported_first_does_not_matter(waiting: list[Transfer], now_ns: int, rng: object) -> None:
    shuffled = list(waiting)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert given_up(shuffled, now_ns) == given_up(waiting, now_ns)


def test_the_longest_makes_room_for_two() -> None:
    long, short, other = (Transfer(12 * MS, 0, 10 * MS), Transfer(12 * MS, 1, 3 * MS), Transfer(13 * MS, 2, 3 * MS))
    assert given_up([long, short, other], 0) == {0}
    assert given_up([short, other], 0) == set()


def test_a_deadline_that_is_worth_more_is_kept() -> None:
    long = Transfer(12 * MS, 0, 10 * MS, weight=4)
    short = Transfer(12 * MS, 1, 3 * MS)
    assert given_up([long, short], 0) == {1}
    assert given_up([long._replace(weight=1), short], 0) == {0}


def test_no_transfer_makes_room_for_what_cannot_be_in_time_even_alone() -> None:
    fine, lost = Transfer(4 * MS, 0, 3 * MS), Transfer(5 * MS, 1, 6 * MS, weight=9)
    assert given_up([fine, lost], 0) == {1}
