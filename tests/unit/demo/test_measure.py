"""The demo's arithmetic, on calls whose answers are known by hand."""

from __future__ import annotations

import pytest

from bench.demo.measure import Run, completion_times_s, rate_while_idle, verdict
from bench.demo.programs import Call
from bench.demo.show import series

S = 1_000_000_000


def round_calls(number: int, *spans_s: tuple[float, float]) -> list[Call]:
    return [Call(int(a * S), int(b * S), 8, rank, number) for rank, (a, b) in enumerate(spans_s)]


def test_completion_time_runs_from_the_last_start_to_the_last_end() -> None:
    warm_up = round_calls(-1, (0.0, 9.0), (0.0, 9.0))
    calls = warm_up + round_calls(0, (0.0, 2.0), (0.5, 1.5)) + round_calls(1, (3.0, 3.5), (3.0, 4.0))
    assert completion_times_s(calls) == [1.5, 1.0]


def test_only_the_time_outside_the_collective_counts_as_idle() -> None:
    run = Run(
        rounds_s=[1.0],
        collective=[Call(10 * S, 20 * S, 1)],
        bulk=[
            Call(0, 4 * S, 40),
            Call(4 * S, 8 * S, 60),
            Call(8 * S, 12 * S, 7),  # slowed by the collective: neither its bytes nor its time count
            Call(12 * S, 22 * S, 9),
            Call(22 * S, 26 * S, 80),
            Call(26 * S, 30 * S, 99),  # the last call may run without its neighbours
        ],
    )
    assert rate_while_idle(run) == pytest.approx((40 + 60 + 80) / (8 + 4))


def test_calls_that_run_beside_each_other_add_up() -> None:
    bulk = [Call(0, 2 * S, 10), Call(S, 3 * S, 10), Call(2 * S, 4 * S, 10), Call(3 * S, 5 * S, 10)]
    assert rate_while_idle(Run(rounds_s=[], collective=[], bulk=bulk)) == pytest.approx(25 / 3)


def test_bulk_that_never_had_the_link_alone_has_no_idle_rate() -> None:
    assert rate_while_idle(Run(rounds_s=[1.0], collective=[Call(0, S, 1)], bulk=[Call(0, S, 5)])) == 0.0


def runs(seconds: float, bulk_bytes: int) -> list[Run]:
    return [Run([seconds], [Call(0, S, 1)], [Call(S, 2 * S, bulk_bytes), Call(2 * S, 3 * S, bulk_bytes)])] * 3


@pytest.mark.parametrize(
    ("without", "with_mfs", "bulk_bytes", "holds"),
    [(2.0, 1.1, 96, True), (1.5, 1.1, 96, False), (2.0, 1.2, 96, False), (2.0, 1.1, 94, False)],
)
def test_the_verdict_needs_all_three(without: float, with_mfs: float, bulk_bytes: int, holds: bool) -> None:
    result = verdict(runs(1.0, 0), runs(without, 0), runs(with_mfs, bulk_bytes), 100.0)
    assert result.holds is holds
    assert result.slowdown_without == pytest.approx(without)
    assert result.bulk_share_of_link == pytest.approx(bulk_bytes / 100)


def test_series_spreads_bytes_over_the_call_and_loses_none() -> None:
    rates = series([Call(0, 2 * S, 20), Call(3 * S, 4 * S, 10)], 0, 4 * S, 4)
    assert rates == pytest.approx([10, 10, 0, 10])
