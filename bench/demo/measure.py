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
    """Time from the last rank's start to the last rank's end, for every round but those for warming up."""
    rounds: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        if call.round >= 0:
            rounds[call.round].append(call)
    return [
        (max(c.end_ns for c in ranks) - max(c.start_ns for c in ranks)) / 1e9 for _, ranks in sorted(rounds.items())
    ]


def bytes_within(calls: list[Call], start_ns: int, end_ns: int) -> float:
    """Bytes that the calls moved in the interval, each call's bytes spread evenly over its duration."""
    total = 0.0
    for call in calls:
        inside_ns = min(call.end_ns, end_ns) - max(call.start_ns, start_ns)
        if inside_ns > 0:
            total += call.bytes * inside_ns / (call.end_ns - call.start_ns)
    return total


def rate_while_idle(run: Run) -> float:
    """The bulk write's bytes per second before the first collective round and after the last.

    Calls run beside each other. One that reaches into the collective's time was slowed by it and would spoil the
    figure, so the intervals end where the first such call begins and begin where the last such call ends.
    """
    if not run.bulk:
        return 0.0
    first_ns = min((c.start_ns for c in run.collective), default=2**63)
    last_ns = max((c.end_ns for c in run.collective), default=2**63)
    before_ns = min((c.start_ns for c in run.bulk if c.end_ns > first_ns), default=max(c.start_ns for c in run.bulk))
    after_ns = max((c.end_ns for c in run.bulk if c.start_ns < last_ns), default=min(c.start_ns for c in run.bulk))
    intervals = [
        (min(c.start_ns for c in run.bulk), before_ns),
        (after_ns, max(c.start_ns for c in run.bulk)),  # afterwards some threads have ended
    ]
    idle_ns = sum(max(0, end - start) for start, end in intervals)
    moved = sum(bytes_within(run.bulk, start, end) for start, end in intervals)
    return moved / idle_ns * 1e9 if idle_ns else 0.0


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
