"""What an order can reach: the bound never promises a miss that could be avoided, and finds those that are plain."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from bench.sim import command, optimality_gap
from bench.sim.optimality_gap import must_miss

Job = tuple[float, float, float]


def feasible(jobs: tuple[Job, ...]) -> bool:
    """Whether a preemptive port of rate 1 finishes all: each window holds what must begin and end in it."""
    windows = [(a, b) for a, _, _ in jobs for _, b, _ in jobs if b > a]
    return all(sum(size for r, d, size in jobs if r >= a and d <= b) <= b - a + 1e-9 for a, b in windows)


def fewest_missed(jobs: list[Job]) -> int:
    return next(n for n in range(len(jobs) + 1) if any(map(feasible, combinations(jobs, len(jobs) - n))))


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_is_never_above_the_optimum(seed: int) -> None:
    chance = random.Random(seed)
    jobs = []
    for _ in range(8):
        release = float(chance.randrange(10))
        jobs.append((release, release + chance.randrange(1, 8), chance.choice((0.5, 1.0, 2.0, 4.0))))
    assert must_miss(jobs, 1.0) <= fewest_missed(jobs)


def test_the_bound_finds_what_is_plain() -> None:
    burst = [(0.0, 2.0, 1.0)] * 5  # two of five fit
    assert must_miss(burst, 1.0) == fewest_missed(burst) == 3
    later = [(release + 10, deadline + 10, size) for release, deadline, size in burst]
    assert must_miss(burst + later, 1.0) == 6, "losses of windows apart add up"
    assert must_miss(burst, 2.5) == 0


def test_the_command_shows_the_way_from_static_to_no_contention(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "optimality-gap",
        "--setting",
        "egress",
        "--rate",
        "0.2",
        "--requests",
        "24",
        "--seeds",
        "1",
        "--tries",
        "2",
    ]
    assert command.main(arguments) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    missed = {line[0]: int(line[1]) for line in lines}
    assert missed["bound: no order misses fewer"] <= min(missed.values())
    best = min(missed[name] for name in optimality_gap.ORDERS)
    assert missed["hindsight: the best order of each seed"] == best
    assert missed["hindsight: and a search from there"] <= best <= missed["layers (static)"]
    assert command.main(["optimality-gap", "--setting", "home"]) == 2
