"""From the programs' calls to the demo's figures."""

from __future__ import annotations

import statistics
from collections import defaultdict

import msgspec

from bench.demo.programs import Call


class Run(msgspec.Struct):
    """One run of the scenario: the all-to-all's completion time per round and the bulk write's calls beside it."""

    rounds_s: list[float]
    collective: list[Call]
    bulk: list[Call]


class Verdict(msgspec.Struct):
    """What the demo shows. Ratios are medians over the repetitions, each paired with its own run alone."""

    slowdown_without: float
    slowdown_with: float
    bulk_share_of_link: float
    holds: bool


SLOWDOWN_WITH_MAX = 1.15
SLOWDOWN_WITHOUT_MIN = 1.6
BULK_SHARE_MIN = 0.95


def completion_times_s(calls: list[Call]) -> list[float]:
    """Time from the last rank's start to the last rank's end, for every round."""
    rounds: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        rounds[call.round].append(call)
    return [
        (max(c.end_ns for c in ranks) - max(c.start_ns for c in ranks)) / 1e9 for _, ranks in sorted(rounds.items())
    ]


def rate_while_idle(run: Run) -> float:
    """The bulk write's bytes per second over its calls that began and ended while no collective was under way."""
    first = min((c.start_ns for c in run.collective), default=2**63)
    last = max((c.end_ns for c in run.collective), default=0)
    idle = [c for c in run.bulk if c.end_ns <= first or c.start_ns >= last]
    busy_ns = sum(c.end_ns - c.start_ns for c in idle)
    return sum(c.bytes for c in idle) / busy_ns * 1e9 if busy_ns else 0.0


def verdict(alone: list[Run], without: list[Run], with_mfs: list[Run], link_bytes_per_s: float) -> Verdict:
    def slowdown(contended: list[Run]) -> float:
        pairs = zip(contended, alone, strict=True)
        return statistics.median(
            statistics.fmean(run.rounds_s) / statistics.fmean(base.rounds_s) for run, base in pairs
        )

    result = Verdict(
        slowdown_without=slowdown(without),
        slowdown_with=slowdown(with_mfs),
        bulk_share_of_link=statistics.median(rate_while_idle(run) for run in with_mfs) / link_bytes_per_s,
        holds=False,
    )
    result.holds = (
        result.slowdown_with <= SLOWDOWN_WITH_MAX
        and result.slowdown_without >= SLOWDOWN_WITHOUT_MIN
        and result.bulk_share_of_link >= BULK_SHARE_MIN
    )
    return result
