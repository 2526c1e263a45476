"""Which engines are held for one that waits for their memory."""

from __future__ import annotations

import pytest

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
