"""`bench micro permits`, briefly: every case runs, is named as the bars name it, and what is held stays held."""

from __future__ import annotations

import argparse
from typing import Any

from bench.micro import permits
from bench.report.bars import BARS, find


def test_a_short_run_has_every_figure() -> None:
    parser = argparse.ArgumentParser()
    permits.add_options(parser)
    kept: list[dict[str, Any]] = []
    options = parser.parse_args(["--rounds", "2", "--repeats", "1", "--clients-max", "100"])
    results = permits.run(options, kept.append)
    assert kept[-1] == results
    for bar in BARS:
        if bar.bench == "permits":
            assert (find(results, bar.key) or 0) > 0, bar.key
    assert set(results["heartbeat_cpu_ns"]) == {f"nics_{n}_programs_{p}" for n in (1, 64) for p in (1, 8)}
    assert min(results["heartbeat_cpu_ns"].values()) > 0
    assert set(results["clients_active"]) == {"10", "100", "cost_ratio"}


def test_those_that_say_nothing_are_not_looked_at_and_the_held_wait() -> None:
    program, _ = permits.build()
    figures = permits.measured(program, permits.Case(active=20, attached=60, held=500), rounds=30)
    assert (figures["waiting"], figures["permits"]) == (500, 30_000)
    assert figures["active"] < 60


def test_ratios_are_of_the_fastest_rounds() -> None:
    figures = permits.summary({"held/1000": [200.0, 100.0], "held/10000": [1.0], "held/100000": [120.0, 150.0]})
    assert figures["held"]["cost_ratio"] == 1.2
    assert figures["held"]["1000"]["permits_per_s"] == 10_000_000
