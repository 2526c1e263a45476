"""The load of a port is as old as the reading of its counters."""

from __future__ import annotations

from bench.sim.load import Load
from bench.sim.policies.mfs import Mfs

MS = 1_000_000


def test_the_load_is_that_of_the_latest_reading_which_is_old_enough() -> None:
    policy = Mfs.__new__(Mfs)
    policy.readings, policy.counter_delay_ns = {}, 10 * MS
    seen = [policy.as_read(3, Load(at / 100), at * MS).rho for at in (0, 4, 9, 10, 13, 14, 25, 25)]
    assert seen == [0.0, 0.0, 0.0, 0.0, 0.0, 0.04, 0.14, 0.14]
    assert policy.as_read(4, Load(1.0), 30 * MS).rho == 0.0, "another link has readings of its own"
