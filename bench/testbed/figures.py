"""The table of a scenario's modes: means over the seeds, changes seed by seed, and the simulator's figures."""

from __future__ import annotations

from collections.abc import Sequence

from bench.testbed.measure import Result, change, difference, over_seeds
from bench.testbed.modes import MODES

FIRST = "fifo"
"""The mode that changes are relative to."""


def table(results: Sequence[Result], expected: Sequence[Result]) -> list[str]:
    """`expected`: the simulator's results of the same modes and seeds, or none."""
    lines = [
        "| mode | TTFT, ms | change, % | p99, ms | change, % | in time, % | points | CCT, ms | change, % | early, ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mode in [name for name in MODES if any(r["mode"] == name for r in results)]:

        def beside(figure: str, factor: float, digits: int, mode: str = mode) -> str:
            here = over_seeds(results, mode, figure).show(digits, factor)
            if not expected:
                return here
            return f"{here} ({over_seeds(expected, mode, figure).mean * factor:.{digits}f})"

        def changed(figure: str, mode: str = mode) -> str:
            return "" if mode == FIRST else change(results, mode, FIRST, figure).show(0, 100, sign=True)

        points = difference(results, mode, FIRST, "slo_attainment").show(0, 100, sign=True)
        cells = [
            f"`{mode}`",
            beside("ttft_s.mean", 1e3, 0),
            changed("ttft_s.mean"),
            over_seeds(results, mode, "ttft_s.p99").show(0, 1e3),
            changed("ttft_s.p99"),
            beside("slo_attainment", 100, 0),
            "" if mode == FIRST else points,
            beside("cct_s.mean", 1e3, 1),
            changed("cct_s.mean"),
            over_seeds(results, mode, "earliness_s.non_negative_mean").show(0, 1e3),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
