"""The benchmarks' page says what was measured, what missed its bar, and what was not measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.report.__main__ import NAMES
from bench.report.bars import ANOTHER_MACHINE, BARS
from bench.report.page import page

DOCS = Path(__file__).parents[3] / "docs"
MACHINE = {"cpu": "a processor", "cores": 2}


def test_a_bar_is_held_missed_or_not_measured() -> None:
    text = page(
        {
            "permit": {"machine": MACHINE, "results": {"rtt_us_p50": 1.5, "rtt_us_p99": 30.0}},
            "rmlq": {"machine": MACHINE, "results": {"ops_per_s": 6e6}},
            "mooncake": {"machine": MACHINE, "results": {"rdma": {"overhead_percent": 0.25}}},
            "idle": {"machine": MACHINE, "results": {"rss_mib": 90.0}},
        }
    )
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert lines["permit round trip, arbiter spinning (median)"].endswith("| 1.5 us | holds |")
    assert lines["permit round trip, arbiter spinning (p99)"].endswith(
        f"| 30 us | **missed**, [why]({ANOTHER_MACHINE}) |"
    )
    assert lines["reverse multi-level queue, submit + pick at 100,000 queued"].endswith("| 6,000,000 /s | holds |")
    assert lines["Mooncake adapter, of a 1 MiB write over soft RoCE (median)"].endswith("| 0.25 % | holds |")
    assert lines["Mooncake adapter, of a 1 MiB write over loopback TCP (median)"].endswith("| not measured | |")
    assert lines["idle daemon, share of one core"].endswith("| not measured | |")
    assert lines["idle daemon, resident memory"].endswith("| 90 MiB | **missed** |")


@pytest.mark.parametrize(
    ("median", "interval", "ending"),
    [
        (0.25, [-0.1, 0.6], "| 0.25 % (-0.1 to 0.6) | holds |"),
        (0.25, [-0.8, 1.3], "| 0.25 % (-0.8 to 1.3) | holds, within the interval |"),
        (1.5, [0.7, 2.4], f"| 1.5 % (0.7 to 2.4) | **missed**, within the interval, [why]({ANOTHER_MACHINE}) |"),
        (1.5, [1.2, 1.9], f"| 1.5 % (1.2 to 1.9) | **missed**, [why]({ANOTHER_MACHINE}) |"),
    ],
)
def test_a_median_decides_and_its_interval_says_how_surely(median: float, interval: list[float], ending: str) -> None:
    measured = {"overhead_percent": median, "overhead_percent_interval": interval}
    text = page({"mooncake": {"machine": MACHINE, "results": {"tcp": measured}}})
    (line,) = [one for one in text.splitlines() if one.startswith("| Mooncake adapter") and "TCP" in one]
    assert line.endswith(ending)


def test_a_bar_that_is_missed_says_where_it_is_said_why() -> None:
    def line(ratio: float) -> str:
        text = page({"shim": {"machine": MACHINE, "results": {"message_rate_ratio": ratio}}})
        return next(one for one in text.splitlines() if one.startswith("| ib_write_bw"))

    assert line(0.96).endswith("| **missed**, [why](internals/shim.md#message-rate) |")
    assert line(0.98).endswith("| holds |")


@pytest.mark.parametrize(
    ("bench", "what"), [("nixl", "NIXL adapter"), ("nixl_plugin", "NIXL plugin, asking less switched off")]
)
def test_what_nixl_costs_is_held_to_its_bars(bench: str, what: str) -> None:
    measured = {
        "rdma": {"overhead_percent": 0.4, "overhead_percent_interval": [0.1, 0.7]},
        "tcp": {"overhead_percent": 1.1, "overhead_percent_interval": [0.3, 1.9]},
    }
    lines = page({bench: {"machine": MACHINE, "results": measured}}).splitlines()
    row = f"| {what}, of a 1 MiB write over {{}} (median) | <= 1 % |"
    missed = "**missed**, within the interval, [why](nixl.md#what-it-costs)"
    assert f"{row.format('soft RoCE')} 0.4 % (0.1 to 0.7) | holds |" in lines
    assert f"{row.format('loopback TCP')} 1.1 % (0.3 to 1.9) | {missed} |" in lines


def test_every_bar_is_of_a_benchmark_that_the_page_is_made_from() -> None:
    assert {bar.bench for bar in BARS} <= {*NAMES}


def test_the_page_that_is_in_the_tree_names_every_bar_and_why_it_is_missed() -> None:
    rows = [row.split("|") for row in (DOCS / "benchmarks.md").read_text().splitlines() if row.startswith("| ")]
    verdicts = {row[1].strip(): row[4].strip() for row in rows if len(row) == 6}
    for bar in BARS:
        verdict = verdicts[bar.what]
        assert not verdict.startswith("**missed**") or f"[why]({bar.why})" in verdict, bar.what
    for bar in filter(lambda bar: bar.why, BARS):
        file, _, anchor = bar.why.partition("#")
        titles = re.findall(r"^#+ (.*)$", (DOCS / file).read_text(), re.MULTILINE)
        assert anchor in [title.lower().replace(" ", "-") for title in titles], bar.why


def test_the_ring_stands_among_its_peers_by_speed() -> None:
    results = {"ops_per_s": 50e6, "peers": {"slow": 10e6, "fast": 90e6}}
    text = page({"ring": {"machine": MACHINE, "results": results}})
    assert text.index("| fast |") < text.index("| **MFS** |") < text.index("| slow |")


def test_nested_figures_are_all_printed() -> None:
    text = page({"ring": {"machine": MACHINE, "results": {"producers": {"4": {"ops_per_s": [1.0, 2.0]}}}}})
    assert "| producers.4.ops_per_s | 1, 2 |" in text
