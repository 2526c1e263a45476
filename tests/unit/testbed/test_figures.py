"""From legs to figures, seed by seed, and the demo's verdict."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.testbed.demo import additions, sentence, verdict
from bench.testbed.hosts import PortSample
from bench.testbed.leg import LegResult, Load, Served
from bench.testbed.measure import (
    Spread,
    chance_of_fewer,
    change,
    difference,
    forecast_error,
    only_one_met,
    over_seeds,
    result_of,
)
from bench.testbed.modes import WITH_REQUESTS, parse_modes
from bench.testbed.oracle import Oracle
from bench.testbed.overhead import Found, at_real_rates, costs, per_message_and_at_rest, sentences
from bench.testbed.plan import Bar, bars_of
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario
from bench.testbed.show import shares

MS = 1_000_000


def leg(mode: str, seed: int, ttft_ms: list[int], cct_ms: int = 10) -> LegResult:
    served = [
        Served(
            i, 100 * MS, 400 * MS, 100 * MS, prefill_end_ns=90 * MS + ttft * MS, kv_ns=100 * MS + ttft * MS, kv_bytes=8
        )
        for i, ttft in enumerate(ttft_ms)
    ]
    return LegResult(mode, seed, 0, 10**9, served, [(0, cct_ms * MS)], {}, {}, 1.0, 0.02)


def result(mode: str, seed: int, ttft_ms: list[int], cct_ms: int = 10) -> dict[str, Any]:
    return result_of(leg(mode, seed, ttft_ms, cct_ms), Scenario(seed=seed), 0.5)


def test_first_token_needs_both_the_end_of_prefill_and_all_kv() -> None:
    served = Served(0, 100, 1000, 50, prefill_end_ns=300, kv_ns=0)
    assert not served.done
    served.kv_ns = 200
    assert served.done and served.first_token_ns == 300
    served.kv_ns = 700
    assert served.first_token_ns == 700


def test_figures_are_those_of_the_simulator() -> None:
    figures = result("mfs", 1, [200, 300, 400])
    assert figures["mode"] == "mfs" and figures["requests"] == 3
    assert figures["slo_attainment"] == pytest.approx(2 / 3), "the budget is 300 ms"
    assert figures["ttft_s"]["mean"] == pytest.approx(0.3) and figures["cct_s"]["mean"] == pytest.approx(0.01)
    assert figures["earliness_s"]["mean"] == pytest.approx(0.0) and figures["kv_bytes"] == 24


def test_changes_are_taken_seed_by_seed() -> None:
    results = [result("fifo", 1, [200]), result("fifo", 2, [1000]), result("mfs", 2, [500]), result("mfs", 1, [100])]
    halved = change(results, "mfs", "fifo", "ttft_s.mean")
    assert halved.mean == pytest.approx(-0.5) and halved.deviation == pytest.approx(0.0)
    assert difference(results, "mfs", "fifo", "slo_attainment").mean == pytest.approx(0.0)
    assert over_seeds(results, "fifo", "ttft_s.mean").mean == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("mfs_ms", "cct_ms", "wins"),
    [([150, 250], 8, True), ([350, 350], 8, False), ([150, 250], 12, False), ([250, 500], 8, False)],
)
def test_mfs_wins_only_when_it_does(mfs_ms: list[int], cct_ms: int, wins: bool) -> None:
    results = [result("fifo", 1, [250, 350]), result("dscp", 1, [200, 290]), result("mfs", 1, mfs_ms, cct_ms)]
    assert verdict(results).wins is wins


def test_fewer_deadlines_than_fixed_priorities_are_distinguished_from_chance() -> None:
    met, late = 200, 400
    rounds = range(1, 4)

    def of(only_mfs: int, only_dscp: int) -> list[dict[str, Any]]:
        """Per round; two more requests are late in both, one is in time in both."""
        mfs = [met] * only_mfs + [late] * only_dscp + [late, late, met]
        dscp = [late] * only_mfs + [met] * only_dscp + [late, late, met]
        all_late = [late] * len(mfs)
        modes = (("fifo", all_late, 12), ("dscp", dscp, 9), ("mfs", mfs, 8))
        return [result(mode, seed, times, cct) for seed in rounds for mode, times, cct in modes]

    assert only_one_met(of(1, 2), "mfs", "dscp") == (3, 6)
    assert verdict(of(1, 2)).wins, "three more of nine may be chance"
    assert verdict(of(1, 4)).wins, "twelve of fifteen may be one late batch"
    assert not verdict(of(1, 7)).wins, "twenty-one of twenty-four are not"
    assert verdict(of(4, 1)).wins
    assert chance_of_fewer(0, 0) == 1 and chance_of_fewer(1, 1) == pytest.approx(0.75)


def test_requests_must_not_cost_deadlines_and_each_mode_says_what_it_adds() -> None:
    modes = parse_modes(f"fifo,dscp,mfs,{WITH_REQUESTS}")

    def of(only_network: int) -> list[dict[str, Any]]:
        times = {"fifo": ([400] * 8, 12), "dscp": ([200] + [400] * 7, 9), "mfs": ([200] * 6 + [400] * 2, 8)}
        times[WITH_REQUESTS] = ([400] * only_network + [200] * (8 - only_network), 8)
        return [result(mode, seed, *times[mode]) for seed in range(1, 5) for mode in times]

    good, bad = of(0), of(8)
    assert verdict(good).wins and verdict(good).only_requests == 8 and verdict(good).only_network == 0
    assert "100% where it orders requests, too (8 in time so only, 0 without only)" in sentence(verdict(good), good)
    assert not verdict(bad).wins, "twenty-four of twenty-four are not chance"
    assert list(additions(good, modes).values()) == [
        "no scheduler: 0% in time",
        "fixed priorities: 12% in time, +12 points",
        "MFS orders the network: 75% in time, +62 points",
        "and requests: 100% in time, +25 points",
    ]


def test_forecasts_are_compared_with_what_loads_took() -> None:
    """Errors 1, 1, 2 and 0 s; one load had no forecast."""
    error = forecast_error([[1.0, 2.0], [5.0, 4.0], [2.0, 4.0], [3.0, 3.0], [None, 1.0]])
    assert error is not None and (error.loads, error.unknown) == (4, 1)
    assert (error.median_s, error.p90_s, error.took_median_s) == (1.0, 2.0, 4.0)
    assert (error.share_median, error.share_p90, error.bias_s) == (0.5, 0.5, -0.5)
    assert forecast_error([[None, 1.0]]) is None


def test_what_a_router_is_told_is_kept_beside_the_page() -> None:
    asked = leg("mfs", 1, [100])
    asked.loads = [
        Load(1, 8, 100 * MS, 0, 200 * MS, asked_ns=150 * MS),
        Load(2, 8, 100 * MS, 0, 100 * MS),
        Load(3, 8, 100 * MS, 0),
    ]
    figures = result_of(asked, Scenario(), 0.5)
    assert figures["loads"] == [[0.1, 0.2], [0.1, 0.1]], "what has not ended says nothing"
    assert figures["loads_asked"] == [[0.15, 0.2], [None, 0.1]]
    asked.loads[0].asked_ns = None
    assert "loads_asked" not in result_of(asked, Scenario(), 0.5)


@pytest.fixture
def asked_by_http(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What is asked; the first port is unknown there."""
    seen: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(404 if len(seen) == 1 else 200)
            self.end_headers()
            self.wfile.write(b'{"time_ns": 5}')

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr("bench.testbed.oracle.WEB", f"127.0.0.1:{server.server_port}")
        yield seen
        server.shutdown()
        thread.join()


def test_the_coordinator_is_asked_as_a_router_asks_it(asked_by_http: list[dict[str, Any]]) -> None:
    oracle = Oracle()
    needed_ns = time.monotonic_ns() + 3600 * 10**9
    answers = [oracle.ask("a", "b", 7, needed_ns).result(60), oracle.ask("a", "b", 7, 1).result(60)]
    oracle.close()
    assert answers == [None, 5]
    assert asked_by_http[1] == {"from": "a", "to": "b", "bytes": 7, "deadline_ms": 1e-3}, "what is late is asked, too"
    assert 0 < asked_by_http[0]["deadline_ms"] <= 3_600_000


def test_overhead_is_reported_with_its_bounds() -> None:
    found: Found = {"ttft": [result("dscp", 1, [100]), result("mfs", 1, [105])], "cpu": [result("mfs", 1, [500])]}
    ttft, share, core = costs(found)
    assert ttft.mean == pytest.approx(0.05) and share == pytest.approx(0.02) and core.mean == pytest.approx(0.02)
    text = "".join(sentences(found))
    assert "+5.00 % (at most +1%: **missed**)" in text
    assert "2.0% of what the workers used (2.0% to 2.0% by leg; in all at most 5%: holds)" in text
    assert "5000 Mbit/s stand for 50 Gbit/s: times x10, bytes x1" in text


def test_shares_of_a_link_are_rates_between_samples() -> None:
    scale = Scale(link_bits_per_s=8e6)  # a byte per microsecond
    samples = [
        PortSample(0, [0] * 8),
        PortSample(10**9, [500_000] + [0] * 7),
        PortSample(3 * 10**9, [500_000, 10**6] + [0] * 6),
    ]
    assert [(at, rates[:2]) for at, rates in shares(samples, scale)] == [(1.0, [0.5, 0.0]), (3.0, [0.0, 0.5])]


def test_an_interval_is_of_the_mean() -> None:
    spread = Spread.of([1.0, 2.0, 3.0])
    assert spread.half == pytest.approx(4.30 / 3**0.5) and spread.show(1) == "2.0±2.5"
    assert Spread.of([2.0]).half == 0.0 and Spread.of([2.0]).show(1) == "2.0"
    assert Spread(0.0, 1.0, 500).half == pytest.approx(2.10 / 500**0.5)


def test_what_is_claimed_is_what_the_simulator_is_sure_of_and_an_open_interval_is_reported() -> None:
    base = [(1, 100, 3), (2, 100, 2), (3, 100, 3)]
    results = [result("fifo", seed, [late] * 4) for seed, late, _ in [(1, 350, 0), (2, 360, 0), (3, 340, 0)]]
    results += [result("mfs", seed, [first] * n + [400] * (4 - n)) for seed, first, n in base]
    results += [
        result(mode, seed, [100, 100, 100, 400]) for mode in ("dscp", "dscp-size", "static") for seed, *_ in base
    ]
    bars = {(bar.figure, bar.base): bar for bar in bars_of(results)}
    assert bars["slo_attainment", "dscp"].wanted is None, "-8 points of 75: unknown"
    over_fifo = bars["slo_attainment", "fifo"]
    assert over_fifo.wanted == pytest.approx(over_fifo.expected / 2) and over_fifo.expected > 0.5
    assert bars["ttft_s.mean", "fifo"].wanted is not None and bars["ttft_s.mean", "fifo"].expected < 0
    assert over_fifo.verdict(Spread(0.6, 0.1, 10)) == "holds"
    assert over_fifo.verdict(Spread(0.6, 2.0, 10)) == "open"
    assert over_fifo.verdict(Spread(0.2, 0.01, 10)) == "**missed**"
    assert bars["slo_attainment", "dscp"].verdict(Spread(0.2, 0.01, 10)) == "nothing claimed"
    faster = Bar("ttft_s.mean", "fifo", -0.3, 0.02, -0.15)
    assert faster.verdict(Spread(-0.2, 0.01, 10)) == "holds" and faster.verdict(Spread(-0.1, 0.01, 10)) == "**missed**"


def test_cost_at_real_rates_is_that_of_messages() -> None:
    def of(messages: int, cpu_s: float) -> dict[str, Any]:
        return {"mode": "mfs", "wall_s": 10.0, "mfs_cpu_s": cpu_s, "permits": {"submitted": messages}}

    low, high = [of(100, 0.11)], [of(1100, 0.21), {"mode": "dscp"}]
    assert per_message_and_at_rest(low, high) == (pytest.approx(1e-4), pytest.approx(0.01))
    output = at_real_rates(low, high)
    assert "100 us of a core of this machine" in output and "10.0 ms a second at rest" in output
    assert "6 % at 50 Gbit/s" in output
