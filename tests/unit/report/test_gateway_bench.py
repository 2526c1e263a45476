"""`bench micro gateway`, briefly: both kinds of answers arrive whole, and the bars have figures."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import pytest

from bench.micro import gateway, picker
from bench.ports import free_port
from bench.report.bars import BARS, find, find_interval


def test_a_short_run_has_every_figure() -> None:
    parser = argparse.ArgumentParser()
    gateway.add_options(parser)
    kept: list[dict[str, Any]] = []
    results = gateway.run(parser.parse_args(["--rate", "40", "--pairs", "2", "--seconds", "0.3"]), kept.append)
    assert kept[-1] == results
    for bar in BARS:
        if bar.bench == "gateway":
            assert find(results, bar.key) is not None and find_interval(results, bar.key), bar.key
    assert {results[kind]["pairs"] for kind in gateway.KINDS} == {2}
    assert results["stream"]["direct_ms_p50"] >= gateway.EVENTS * gateway.GAP_MS > results["whole"]["direct_ms_p50"]
    assert results["whole"]["gateway_cpu_us"] > 0


def test_a_short_run_beside_a_proxy_alone_has_every_figure() -> None:
    parser = argparse.ArgumentParser()
    picker.add_options(parser)
    kept: list[dict[str, Any]] = []
    results = picker.run(parser.parse_args(["--rate", "40", "--pairs", "2", "--seconds", "0.3"]), kept.append)
    assert kept[-1] == results
    for kind in gateway.KINDS:
        assert results[kind]["pairs"] == 2 and results[kind]["gateway_cpu_us"] > 0
        for name in ("ratio_p50", "first_ratio_p99", "added_ms_p50"):
            assert find(results, f"{kind}/{name}") is not None and find_interval(results, f"{kind}/{name}")


def test_added_is_the_median_of_the_pairs_differences() -> None:
    def leg(*ends_ms: float) -> list[gateway.Timed]:
        return [gateway.Timed(end / 2e3, end / 1e3) for end in ends_ms]

    found = {
        "direct": [leg(1, 1, 2), leg(1, 1, 9), leg(1, 1, 3)],
        "gateway": [leg(2, 2, 4), leg(2, 2, 19), leg(2, 2, 6)],
    }
    row = gateway.summary(found)
    assert (row["added_ms_p50"], row["added_ms_p99"], row["first_added_ms_p99"]) == (1, 3, 1.5)
    assert row["added_ms_p99_interval"] == [2, 10]


def test_the_same_times_for_the_same_seed_at_the_rate() -> None:
    times = gateway.due_times(500, 10, 3)
    assert times == gateway.due_times(500, 10, 3) == sorted(times) != gateway.due_times(500, 10, 4)
    assert 4700 < len(times) < 5300 and times[-1] < 10


def test_another_answer_than_the_engines_ends_the_run() -> None:
    async def main() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}")

        port = free_port()
        async with await asyncio.start_server(refuse, "127.0.0.1", port):
            with pytest.raises(gateway.Incomplete, match="503"):
                await gateway.leg(port, "whole", [0.0])

    asyncio.run(main())
