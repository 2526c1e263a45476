"""When a load must be there, as an engine can tell it from its own tokens and steps."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any

import pytest

from bench.sim.pace import Pace


def state(tokens: int, *, done: int = 0, loads: bool = False) -> Any:
    request = Thing(unit=0, new_tokens=tokens, deadline_s=9.0)
    return Thing(request=request, done_tokens=done, reuse=Thing() if loads else None)


def batch(serial: int, tokens: int, layer: int = 0) -> Any:
    return Thing(serial=serial, unit=0, tokens=tokens, layer=layer, layers=4)


def test_a_load_must_leave_time_for_the_tokens_that_are_computed_first() -> None:
    mine = state(100, loads=True)
    queue = [state(50, done=20), state(1000, loads=True), mine, state(2000)]
    simulation: Any = Thing(now=1.0, queues=[queue], running=[None])
    pace = Pace(simulation)
    assert pace.needed_s(mine) is None, "nothing was computed yet"
    pace.batch_began(batch(1, 100))
    simulation.now = 2.0  # 10 ms for a token
    pace.batch_computed(batch(1, 100))
    assert pace.needed_s(mine) == pytest.approx(9.0 - (30 + 100) * 0.01)
    simulation.running = [batch(2, 80, layer=3)]
    assert pace.needed_s(mine) == pytest.approx(9.0 - (20 + 30 + 100) * 0.01)


def test_large_batches_count_for_what_they_are_and_old_ones_fade() -> None:
    simulation: Any = Thing(now=0.0, queues=[[]], running=[None])
    pace = Pace(simulation)
    for serial, (tokens, took_s) in enumerate([(10, 1.0), (1000, 2.0)]):
        pace.batch_began(batch(serial, tokens))
        simulation.now += took_s
        pace.batch_computed(batch(serial, tokens))
    assert pace.needed_s(state(100)) == pytest.approx(9.0 - 100 * (0.8 * 1.0 + 2.0) / (0.8 * 10 + 1000))
