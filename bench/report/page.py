"""docs/benchmarks.md as text, from the benchmarks' JSON reports."""

from __future__ import annotations

from typing import Any

from bench.report.bars import BARS, find, find_interval

HEAD = """# Benchmarks

Written by `make bench`; do not edit. Every figure was **measured** on the machine named below, in one run; competitors
ran beside, interleaved. Absolute figures belong to that machine: compare ratios. In brackets: where a median of pairs
lies (95 %). A bar inside of that is judged by the median, and the machine was too restless to be sure.

Elsewhere: **measured** on real bytes over links that are slowed down, [the testbed](testbed.md); **simulated**,
[the simulator](simulation.md). **Only planned**, for want of the hardware: RNICs and switches of a real fabric, more
than one machine, NCCL with GPUs (`tests/gpu` and `python -m bench micro nccl_gpu` are there for them). What is in no
table has not been measured.
"""


def number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def bars_table(reports: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| what | bar | measured | |", "|---|---|---|---|"]
    for bar in BARS:
        value = find(reports[bar.bench]["results"], bar.key) if bar.bench in reports else None
        if value is None:
            lines.append(f"| {bar.what} | {bar.text()} | not measured | |")
        else:
            interval = find_interval(reports[bar.bench]["results"], bar.key)
            ends = "" if interval is None else f" ({number(interval[0])} to {number(interval[1])})"
            measured = f"{number(value)} {bar.unit}{ends}"
            lines.append(f"| {bar.what} | {bar.text()} | {measured} | {bar.verdict(value, interval)} |")
    return lines


def peers_table(results: dict[str, Any]) -> list[str]:
    """The MPSC ring beside its peers, fastest first."""
    peers = results.get("peers", {})
    rows = sorted([("**MFS**", results.get("ops_per_s", 0.0)), *peers.items()], key=lambda row: -row[1])
    return ["| queue | operations/s |", "|---|---|", *(f"| {name} | {value:,.0f} |" for name, value in rows)]


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Leaves of nested results as (dotted key, text)."""
    if isinstance(value, dict):
        return [
            leaf for key, part in value.items() for leaf in flatten(part, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, list):
        return [(prefix, ", ".join(number(v) if isinstance(v, (int, float)) else str(v) for v in value))]
    return [(prefix, number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value))]


def page(reports: dict[str, dict[str, Any]]) -> str:
    """The whole page. `reports` maps a benchmark's name to its {"bench", "machine", "results"}."""
    lines = [HEAD, "## The bars", "", *bars_table(reports), ""]
    if "ring" in reports:
        lines += ["## The submit ring beside its peers", "", *peers_table(reports["ring"]["results"]), ""]
    lines += ["## Everything that was printed", ""]
    for name, report in reports.items():
        machine = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
        lines += [f"### {name}", "", f"Machine: {machine}.", "", "| figure | value |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in flatten(report["results"])]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
