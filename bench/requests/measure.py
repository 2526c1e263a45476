"""What a run's row says: shares of late requests, latencies, what the policy did.

A request is late when its first token comes after arrival + TTFT, a token after arrival + TTFT + (n - 1) TBT (QoServe
Eq 1 and 2), or its last one after arrival + TTLT. One that has not ended when the run ends is late.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bench.requests.workload import Call, Program

LONG_SHARE = 0.9
"""Prompts above this quantile are long (QoServe 2.3)."""
SHORT_PROMPT = 2048
"""Calls of programs below it are short (Agentix 4.3)."""
WINDOW_S = 60.0
DRIFT_WINDOW_S = 10.0
INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Of tokens in the service gain (H-MAS Eq 6)."""


class Outcome(NamedTuple):
    """What became of a call."""

    program: int
    call: Call
    arrival_s: float
    first_token_s: float | None
    end_s: float | None
    token_late_s: float
    """How late its latest token was against Eq 2; below 0: none was."""
    relegated: bool = False
    paused: int = 0
    evicted: int = 0
    hit_tokens: int = 0

    @property
    def late(self) -> bool:
        call = self.call
        if self.end_s is None or self.first_token_s is None:
            return True
        if call.ttft_s is not None and self.first_token_s > self.arrival_s + call.ttft_s:
            return True
        if call.tbt_s is not None and self.token_late_s > 0:
            return True
        return call.ttlt_s is not None and self.end_s > self.arrival_s + call.ttlt_s

    @property
    def tpot_s(self) -> float | None:
        if self.end_s is None or self.first_token_s is None or self.call.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.call.output_tokens - 1)


class Engines(NamedTuple):
    """What the engines did, over all replicas."""

    chunk_tokens: float
    """Mean prompt tokens of the steps that computed any."""
    step_error: dict[str, float]
    """mape: mean of |estimate - took| / took; over: share of steps that took longer than estimated, margin included."""
    plan_us: dict[str, float]
    kv_peak: float
    """Share of the KV memory."""
    steps: int
    busy: float
    """Share of the time in which a replica computed."""


def tiers(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    by_tier: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        by_tier[o.call.tier].append(o)
    lengths = sorted(o.call.prompt_tokens for o in outcomes)
    cut = lengths[int(LONG_SHARE * len(lengths))] if lengths else 0
    ended = [o for o in outcomes if o.first_token_s is not None and o.end_s is not None]
    return {
        "violations": {
            "all": late_share(outcomes),
            "important": late_share(o for o in outcomes if o.call.importance > 0),
            "tiers": {tier: late_share(of) for tier, of in sorted(by_tier.items())},
            "short": late_share(o for o in outcomes if o.call.prompt_tokens < cut),
            "long": late_share(o for o in outcomes if o.call.prompt_tokens >= cut),
        },
        "ttft_s": spread(o.first_token_s - o.arrival_s for o in ended if o.first_token_s is not None),
        "tbt_s": spread(o.tpot_s for o in ended if o.tpot_s is not None),
        "ttlt_s": spread(o.end_s - o.arrival_s for o in ended if o.end_s is not None),
        "goodput_qps": sum(not o.late for o in outcomes) / seconds,
        "over_time": over_time(outcomes),
    }


def over_time(outcomes: Sequence[Outcome]) -> list[dict[str, float]]:
    """By minute of arrival: requests/s, share late, 99th percentile of the interactive tier's first token."""
    windows: dict[int, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        windows[int(o.arrival_s / WINDOW_S)].append(o)
    return [
        {
            "at_s": number * WINDOW_S,
            "qps": len(of) / WINDOW_S,
            "late": late_share(of),
            "late_important": late_share(o for o in of if o.call.importance > 0),
            "ttft_p99_s": spread(
                o.first_token_s - o.arrival_s for o in of if o.call.ttft_s is not None and o.first_token_s is not None
            )["p99"],
        }
        for number, of in sorted(windows.items())
    ]


def programs(outcomes: Sequence[Outcome], all_programs: Sequence[Program], ends_s: float) -> dict[str, Any]:
    """Of whole programs, pauses left out. One that has not ended counts as if it ended with the run."""
    of: dict[int, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        of[o.program].append(o)
    latencies, per_token, unfinished = [], [], 0
    for number, program in enumerate(all_programs):
        calls = of.get(number, [])
        whole = len(calls) == len(program.calls) and all(o.end_s is not None for o in calls)
        unfinished += not whole
        end = max(o.end_s or ends_s for o in calls) if whole else ends_s
        pauses = sum(c.gap_s for c in program.calls[: len(calls)])
        latencies.append(max(0.0, end - program.start_s - pauses))
        per_token.append(latencies[-1] / sum(c.output_tokens for c in program.calls))
    short = [o for o in outcomes if o.call.prompt_tokens < SHORT_PROMPT]
    long = [o for o in outcomes if o.call.prompt_tokens >= SHORT_PROMPT]
    return {
        "programs": len(all_programs),
        "unfinished": unfinished,
        "latency_s": spread(latencies, "p95"),
        "per_token_s": spread(per_token, "p95"),
        "hit_rate": {"short": _hit_rate(short), "long": _hit_rate(long)},
    }


def drift(outcomes: Sequence[Outcome], phase_s: float) -> dict[str, Any]:
    """Rates of requests in time by H-MAS' definitions: both the first token and the mean time per token."""
    good = [_ttft_ok(o) and _tpot_ok(o) for o in outcomes]
    phases: dict[int, list[bool]] = defaultdict(list)
    windows: dict[int, list[Outcome]] = defaultdict(list)
    for o, is_good in zip(outcomes, good, strict=True):
        phases[min(2, int(o.arrival_s / phase_s))].append(is_good)
        windows[int(o.arrival_s / DRIFT_WINDOW_S)].append(o)
    rates = [_share(phases.get(i, [])) for i in range(3)]
    return {
        "goodput_rate": _share(good),
        "esg": gain(outcomes),
        "ttft_ok": _share(map(_ttft_ok, outcomes)),
        "tpot_ok": _share(map(_tpot_ok, outcomes)),
        "mismatch": mismatch(outcomes),
        "cv": {
            "ttft": variation([spread(_ttfts(of))["mean"] for of in windows.values()]),
            "esg": variation([gain(of) for of in windows.values()]),
        },
        "recovery": rates[2] / rates[1] if rates[1] else 0.0,
    }


def gain(outcomes: Sequence[Outcome]) -> float:
    """Expected service gain (H-MAS Eq 6), as a share of what it would be were every request in time."""
    had = whole = 0.0
    for o in outcomes:
        call = o.call
        value = INPUT_WEIGHT * call.prompt_tokens + OUTPUT_WEIGHT * call.output_tokens
        whole += value
        if o.end_s is not None:
            slo_s = (call.ttft_s or 0.0) + (call.tbt_s or 0.0) * call.output_tokens
            had += value * min(1.0, slo_s / max(1e-9, o.end_s - o.arrival_s))
    return had / whole if whole else 0.0


def mismatch(outcomes: Sequence[Outcome]) -> float:
    """Mean of max(0, tokens that arrive over tokens that are served - 1) over windows (H-MAS Eq 7); a request's tokens
    count as served when it ends."""
    came: dict[int, int] = defaultdict(int)
    went: dict[int, int] = defaultdict(int)
    for o in outcomes:
        tokens = o.call.prompt_tokens + o.call.output_tokens
        came[int(o.arrival_s / DRIFT_WINDOW_S)] += tokens
        if o.end_s is not None:
            went[int(o.end_s / DRIFT_WINDOW_S)] += tokens
    gaps = [max(0.0, tokens / went[window] - 1) for window, tokens in came.items() if went.get(window)]
    return statistics.fmean(gaps) if gaps else 0.0


def variation(values: Sequence[float]) -> float:
    mean = statistics.fmean(values) if values else 0.0
    return statistics.pstdev(values) / mean if mean else 0.0


def spread(values: Iterable[float], *more: str) -> dict[str, float]:
    """mean, p50, p90, p99, and those of `more`; 0 where there are none."""
    ordered = sorted(values)
    names = ("p50", "p90", *more, "p99")
    if not ordered:
        return {"mean": 0.0, **dict.fromkeys(names, 0.0)}
    last = len(ordered) - 1
    quantiles = {name: ordered[min(last, int(float(name[1:]) / 100 * len(ordered)))] for name in names}
    return {"mean": statistics.fmean(ordered), **quantiles}


def late_share(outcomes: Iterable[Outcome]) -> float:
    return _share(o.late for o in outcomes)


def _share(values: Iterable[bool]) -> float:
    given = list(values)
    return sum(given) / len(given) if given else 0.0


def _ttfts(outcomes: Iterable[Outcome]) -> list[float]:
    return [o.first_token_s - o.arrival_s for o in outcomes if o.first_token_s is not None]


def _ttft_ok(o: Outcome) -> bool:
    return o.first_token_s is not None and o.first_token_s - o.arrival_s <= (o.call.ttft_s or float("inf"))


def _tpot_ok(o: Outcome) -> bool:
    return o.end_s is not None and (o.tpot_s is None or o.tpot_s <= (o.call.tbt_s or float("inf")))


def _hit_rate(outcomes: Sequence[Outcome]) -> float:
    whole = sum(o.call.prompt_tokens for o in outcomes)
    return sum(o.hit_tokens for o in outcomes) / whole if whole else 0.0
