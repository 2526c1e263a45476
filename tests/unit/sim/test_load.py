"""The load that variant paper measures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.sim.load import Load, bottleneck_rho
from mfsd.policy import PolicyConfig


def test_load_settles_at_the_share_of_the_rate() -> None:
    config = PolicyConfig(load_time_constant_ns=10**7)
    load = Load()
    for _ in range(200):
        load = load.observe(served_bytes=400, elapsed_ns=10**6, rate_bytes_per_s=10**6, config=config)
    assert load.rho == pytest.approx(0.4, rel=1e-6)


@given(st.floats(0, 1), st.integers(1, 10**6), st.integers(1, 50), st.integers(1, 10**12))
def test_load_does_not_depend_on_how_often_it_is_measured(start: float, chunk: int, pieces: int, rate: int) -> None:
    config = PolicyConfig()
    at_once = Load(start).observe(chunk * pieces, 10**6 * pieces, rate, config)
    piecewise = Load(start)
    for _ in range(pieces):
        piecewise = piecewise.observe(chunk, 10**6, rate, config)
    assert piecewise.rho == pytest.approx(at_once.rho, rel=1e-9, abs=1e-12)


def test_a_moment_of_no_length_changes_no_load() -> None:
    assert Load(0.3).observe(10**9, 0, 1, PolicyConfig()) == Load(0.3)


def test_the_busiest_port_counts() -> None:
    assert bottleneck_rho([Load(0.2), Load(0.7), Load(0.1)]) == 0.7
    assert bottleneck_rho([]) == 0.0
