"""The interval of a median holds the median as often as it says, whatever the noise looks like."""

from __future__ import annotations

import random
import statistics

import pytest

from bench.micro.mooncake import compared
from bench.micro.paired import median_interval


@pytest.mark.parametrize("size", [20, 101, 1000])
def test_the_interval_holds_the_median_of_skewed_values_nineteen_times_of_twenty(size: int) -> None:
    chance = random.Random(7)
    median, trials, held = 2**0.5, 2000, 0  # of a Pareto distribution of shape 2: its variance is infinite
    for _ in range(trials):
        low, high = median_interval([chance.paretovariate(2) for _ in range(size)])
        held += low <= median <= high
    assert 0.935 <= held / trials <= 0.99


def test_the_ends_are_values_on_both_sides_of_the_median() -> None:
    values = [float(i * i) for i in range(500)]
    low, high = median_interval(values)
    assert {low, high} <= set(values)
    assert low < statistics.median(values) < high
    assert median_interval(values[:3]) == (0.0, 4.0)


def test_pairs_are_compared_whatever_the_machine_does_between_them() -> None:
    """Rounds differ a hundredfold, and in each the adapted write takes 2 % longer."""
    chance = random.Random(3)
    stock = [chance.uniform(100.0, 10_000.0) for _ in range(400)]
    wall = {"as_stock": stock, "adapted": [1.02 * one for one in stock], "unscheduled": stock}
    idle = [chance.uniform(1.0, 9.0) for _ in range(100)]
    cpu = {name: [one + more for one in idle] for name, more in (("nothing", 0.0), ("around_nothing", 4.0))}
    cpu |= {"session_permit": idle, "native_permit": idle}
    found = compared(wall, cpu)
    assert (found["pairs"], found["overhead_percent"], found["overhead_percent_interval"]) == (400, 2.0, [2.0, 2.0])
    assert found["overhead_unscheduled_percent"] == 0.0
    assert (found["adapter_cpu_us"], found["adapter_cpu_us_interval"]) == (4.0, [4.0, 4.0])
