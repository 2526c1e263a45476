"""docs/benchmarks.md as text, from the benchmarks' JSON reports."""

from __future__ import annotations

from typing import Any

from bench.report.bars import BARS, find, find_interval

HEAD = """# Benchmarks

Written by `make bench`; do not edit. Every figure was **measured** on the machine named below, in one run; competitors
ran beside, interleaved. Absolute figures belong to that machine: compare ratios. In brackets: where a median of pairs
lies (95 %). A bar inside of that is decided by the median, and the machine was too restless to be sure.
A bar that is missed says so in the first table, with a link to why.

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


CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "gate": (
        ("KV alone, MB/s", "kv_mb_s_alone"),
        ("observe", "kv_mb_s_observe"),
        ("enforce", "kv_mb_s_enforce"),
        ("left, MB/s", "left_mb_s"),
        ("", "kv_verdict"),
        ("message alone, ms p50", "collective_ms_alone/p50"),
        ("p99", "collective_ms_alone/p99"),
        ("observe, p50", "collective_ms_observe/p50"),
        ("p99", "collective_ms_observe/p99"),
        ("enforce, p50", "collective_ms_enforce/p50"),
        ("p99", "collective_ms_enforce/p99"),
        ("marked, no MFS, p50", "collective_ms_marked/p50"),
        ("", "collectives_verdict"),
    ),
    "window": (
        ("free in observe, MB/s", "free_mb_s_observe"),
        ("enforce", "free_mb_s_enforce"),
        ("", "free_verdict"),
        ("slow in observe, MB/s", "slow_mb_s_observe"),
        ("enforce", "slow_mb_s_enforce"),
        ("", "slow_verdict"),
        ("NCCL in observe, ms", "collective_ms_observe"),
        ("enforce", "collective_ms_enforce"),
    ),
}
"""Columns of the benchmarks that measure cases: heading, and the path of the figure in a case's row."""


def cases_table(cases: dict[str, Any], columns: tuple[tuple[str, str], ...]) -> list[str]:
    lines = ["| case | " + " | ".join(heading for heading, _ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in cases.items():
        if "failed" in row:
            cells = ["not measured", *[""] * (len(columns) - 1)]
        else:
            cells = [_cell(row, key) for _, key in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(row: dict[str, Any], key: str) -> str:
    value: Any = row
    for part in key.split("/"):
        value = value.get(part) if value else None
    return "" if value is None else "**missed**" if value == "missed" else _text(value)


def _text(value: Any) -> str:
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Leaves of nested results as (dotted key, text)."""
    if isinstance(value, dict):
        return [
            leaf for key, part in value.items() for leaf in flatten(part, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(value, list):
        return [(prefix, ", ".join(number(v) if isinstance(v, (int, float)) else str(v) for v in value))]
    return [(prefix, _text(value))]


def page(reports: dict[str, dict[str, Any]]) -> str:
    """The whole page. `reports` maps a benchmark's name to its {"bench", "machine", "results"}."""
    lines = [HEAD, "## The bars", "", *bars_table(reports), ""]
    if "ring" in reports:
        lines += ["## The submit ring beside its peers", "", *peers_table(reports["ring"]["results"]), ""]
    lines += ["## Everything that was printed", ""]
    for name, report in reports.items():
        machine = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
        lines += [f"### {name}", "", f"Machine: {machine}.", "", "| figure | value |", "|---|---|"]
        cases = report["results"].get("cases", {}) if name in CASES else {}
        rest = {key: value for key, value in report["results"].items() if not cases or key != "cases"}
        lines += [f"| {key} | {value} |" for key, value in flatten(rest)]
        lines += ["", *cases_table(cases, CASES[name])] if cases else []
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
