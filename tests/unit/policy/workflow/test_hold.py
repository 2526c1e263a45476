"""Which engines are held for one that waits for their memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy.workflow import HOLD_S, Runs, held_for

NOW_S = 100.0
LONG_S = NOW_S - HOLD_S


def runs(name: str, requests: int = 1, used_s: float = 90.0, served_s: float = 0.0, memory_bytes: int = 10) -> Runs:
    return Runs(name, requests, used_s, served_s, memory_bytes)


@pytest.mark.parametrize(
    ("wants", "since_s", "running", "held"),
    [
        (10, LONG_S, [runs("a"), runs("b", used_s=80.0)], ["b"]),
        (11, LONG_S, [runs("a"), runs("b", used_s=80.0)], ["b", "a"]),
        (10, LONG_S, [runs("a", used_s=80.0), runs("b", requests=0)], ["b"]),
        (10, LONG_S, [runs("a", 9), runs("b", 2)], ["b"]),
        (10, LONG_S, [runs("a", 9), runs("b", 0, served_s=math.inf)], []),
        (10, LONG_S, [runs("a", 9), runs("b", 2, served_s=LONG_S + 0.1)], []),
        (20, LONG_S, [runs("a", 9), runs("b", 0, served_s=math.inf)], []),
        (10, LONG_S + 0.1, [runs("a")], []),
        (10, LONG_S, [runs("a", served_s=LONG_S + 0.1)], []),
        (10, LONG_S, [runs("a", served_s=LONG_S)], ["a"]),
        (21, LONG_S, [runs("a"), runs("b")], []),
        (0, LONG_S, [runs("a")], []),
    ],
)
def test_no_more_are_held_than_it_takes_and_none_too_soon(
    wants: int, since_s: float, running: list[Runs], held: list[str]
) -> None:
    assert held_for(wants, since_s, running, NOW_S) == held


engines = st.lists(
    st.builds(
        Runs,
        name=st.just("any"),
        requests=st.integers(0, 9),
        used_s=st.floats(0, NOW_S),
        served_s=st.floats(0, NOW_S) | st.just(math.inf),
        memory_bytes=st.just(10),
    ),
    max_size=6,
).map(lambda some: [one._replace(name=str(number)) for number, one in enumerate(some)])


@given(wants=st.integers(0, 70), since_s=st.floats(0, NOW_S), running=engines)
def test_none_is_held_while_one_used_longer_ago_is_not(wants: int, since_s: float, running: list[Runs]) -> None:
    """Though that one starts, or has just started, and cannot be held yet."""
    held = held_for(wants, since_s, running, NOW_S)
    last = max(((one.requests > 0, one.used_s) for one in running if one.name in held), default=(False, 0.0))
    assert all(one.name in held or (one.requests > 0, one.used_s) >= last for one in running)
    if held:
        assert 10 * (len(held) - 1) < wants <= 10 * len(held)
        assert all(one.served_s <= LONG_S for one in running if one.name in held) and since_s <= LONG_S
