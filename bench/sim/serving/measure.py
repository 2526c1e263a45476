"""Computes rows of measures from an outcome: plain dictionaries, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

from bench.sim.serving.outcome import Outcome, Record


def first_late(r: Record) -> bool:
    return r.ttft_slo_s is not None and (r.first_token_s is None or r.first_token_s - r.arrival_s > r.ttft_slo_s)


def last_late(r: Record) -> bool:
    return r.ttlt_slo_s is not None and (r.end_s is None or r.end_s - r.arrival_s > r.ttlt_slo_s)


def is_late(r: Record) -> bool:
    """Whether any SLO of the call was missed: first token, a later token, last token. An unfinished call is late if it
    has an SLO."""
    unfinished = r.end_s is None and (r.ttft_slo_s is not None or r.tbt_slo_s is not None)
    return unfinished or first_late(r) or last_late(r) or r.late_tokens > 0


def tbt_s(r: Record) -> float | None:
    """Returns the mean time between its tokens."""
    if r.end_s is None or r.first_token_s is None or r.output_tokens < 2:
        return None
    return (r.end_s - r.first_token_s) / (r.output_tokens - 1)


def spread(values: Iterable[float], percents: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """Returns mean, p50, p90, p99; empty if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    last = len(ordered) - 1
    parts = {f"p{q}": ordered[min(last, math.ceil(len(ordered) * q / 100) - 1)] for q in percents}
    return {"mean": fmean(ordered), **parts}


def share(records: Sequence[Record]) -> float:
    """Returns the share of late records."""
    return sum(map(is_late, records)) / len(records) if records else 0.0


def violations(records: Sequence[Record]) -> dict[str, Any]:
    """Returns shares that were late: of all, of the important, by tier, of the tenth with the longest prompts and of
    the others; and by cause: the first token, a later one, the last one."""
    lengths = sorted(r.prompt_tokens for r in records)
    long = lengths[math.ceil(0.9 * len(lengths)) - 1] if lengths else 0
    tiers = sorted({r.tier for r in records})
    some = max(1, len(records))
    return {
        "all": share(records),
        "important": share([r for r in records if r.importance >= 1]),
        "tiers": {tier: share([r for r in records if r.tier == tier]) for tier in tiers},
        "short": share([r for r in records if r.prompt_tokens < long]),
        "long": share([r for r in records if r.prompt_tokens >= long]),
        "first": sum(map(first_late, records)) / some,
        "token": sum(r.late_tokens > 0 for r in records) / some,
        "last": sum(map(last_late, records)) / some,
        "late_tokens": sum(r.late_tokens for r in records) / max(1, sum(r.produced for r in records)),
    }


def latencies(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    return {
        "ttft_s": spread(r.first_token_s - r.arrival_s for r in records if r.first_token_s is not None),
        "tbt_s": spread(t for r in records if (t := tbt_s(r)) is not None),
        "ttlt_s": spread(r.end_s - r.arrival_s for r in records if r.end_s is not None),
    }


def row(outcome: Outcome, warmup_s: float = 0.0, until_s: float | None = None) -> dict[str, Any]:
    """Measures calls that arrived from warmup_s to until_s: requests, violations, ttft_s, tbt_s, ttlt_s (each for all,
    and by tier under `tiers`), goodput_qps, relegated, paused, evicted (shares of calls); and all steps: chunk_tokens,
    step_error, plan_us, kv, cpu_s. With separate prefill and decode also moves; with several models on a node also
    models."""
    records = arrived(outcome, warmup_s, until_s)
    some = max(1, len(records))
    came_s = [r.arrival_s for r in records]
    span_s = max(came_s) - min(came_s) if len(came_s) > 1 else 0.0
    good = sum(not is_late(r) for r in records)
    return {
        "seed": outcome.seed,
        "requests": len(records),
        "unfinished": sum(r.end_s is None for r in records),
        "violations": violations(records),
        **latencies(records),
        "tiers": {
            tier: latencies([r for r in records if r.tier == tier]) for tier in sorted({r.tier for r in records})
        },
        "qps": len(records) / span_s if span_s else 0.0,
        "goodput_qps": good / span_s if span_s else 0.0,
        "relegated": sum(r.relegated for r in records) / some,
        "paused": sum(r.paused > 0 for r in records) / some,
        "evicted": sum(r.evicted > 0 for r in records) / some,
        **moves(records),
        **models(outcome, records),
        **engines(outcome),
        "cpu_s": outcome.cpu_s,
    }


def moves(records: Sequence[Record]) -> dict[str, Any]:
    """Measures calls whose KV moved: how many, how long each waited for room, and how long the KV then took to
    arrive."""
    began = [r for r in records if r.prefilled_s is not None and r.moving_s is not None]
    if not began:
        return {}
    room = spread((r.moving_s or 0.0) - (r.prefilled_s or 0.0) for r in began)
    ports = spread(r.first_token_s - (r.moving_s or 0.0) for r in began if r.first_token_s is not None)
    return {"moves": {"calls": len(began), "room_s": room, "ports_s": ports}}


def models(outcome: Outcome, records: Sequence[Record]) -> dict[str, Any]:
    """Measures engines that are started and woken for their models: how often, how long that took in all, how long
    calls waited."""
    loads, wakes = (sum(getattr(t, name) for t in outcome.replicas) for name in ("loads", "wakes"))
    if not loads:
        return {}
    waited = spread(r.waited_s for r in records)
    loading_s = sum(t.loading_s for t in outcome.replicas)
    return {"models": {"loads": loads, "wakes": wakes, "loading_s": loading_s, "waited_s": waited}}


def engines(outcome: Outcome) -> dict[str, Any]:
    """Measures the steps of all replicas."""
    sizes: dict[int, int] = {}
    for totals in outcome.replicas:
        for size, steps in totals.chunk_sizes.items():
            sizes[size] = sizes.get(size, 0) + steps
    errors = sum(t.errors for t in outcome.replicas)
    planned = sorted(us for t in outcome.replicas for us in t.plan_us)
    plan = spread(planned)
    return {
        "steps": sum(t.steps for t in outcome.replicas),
        "busy": sum(t.busy_s for t in outcome.replicas) / (outcome.end_s * len(outcome.replicas) or 1.0),
        "chunk_tokens": _weighted(sizes),
        "step_error": {
            "mape": sum(t.error_sum for t in outcome.replicas) / errors if errors else None,
            "over": sum(t.over for t in outcome.replicas) / errors if errors else None,
        },
        "plan_us": {"p50": plan["p50"], "p99": plan["p99"]} if plan else {},
        "store": {
            "fetched_tokens": sum(t.fetched_tokens for t in outcome.replicas),
            "ahead_tokens": sum(t.ahead_tokens for t in outcome.replicas),
        },
        "kv": {"peak": max((t.kv_peak_tokens for t in outcome.replicas), default=0)},
    }


def _weighted(sizes: dict[int, int]) -> dict[str, float]:
    steps = sum(sizes.values())
    if not steps:
        return {}
    found: dict[str, float] = {"mean": sum(size * count for size, count in sizes.items()) / steps}
    wanted, seen = [(q, math.ceil(steps * q / 100)) for q in (50, 90, 99)], 0
    for size, count in sorted(sizes.items()):
        seen += count
        while wanted and seen >= wanted[0][1]:
            found[f"p{wanted.pop(0)[0]}"] = size
    return found


def arrived(outcome: Outcome, warmup_s: float, until_s: float | None) -> list[Record]:
    """Returns the calls that arrived in the window. Calls of a program whose turn never came did not arrive."""
    most = math.inf if until_s is None else until_s
    return [r for r in outcome.records if r.prompt_tokens and warmup_s <= r.arrival_s <= most]


def program_row(outcome: Outcome, warmup_s: float = 0.0, short_tokens: int = 2048) -> dict[str, Any]:
    """Measures programs that began from warmup_s on. latency_s: from the first call's arrival to the last end, without
    the time between calls (tools, thinking); per_token_s: that divided by its output; hit_rate: prompt tokens found in
    the cache, for prompts shorter than short_tokens and for the others. Unfinished programs are counted separately."""
    by_program: dict[int, list[Record]] = {}
    for r in outcome.records:
        if r.program >= 0:
            by_program.setdefault(r.program, []).append(r)
    latency, per_token, whole, unfinished = [], [], [], 0
    used: list[Record] = []
    for calls in by_program.values():
        came = [r for r in calls if r.prompt_tokens]
        if not came or min(r.arrival_s for r in came) < warmup_s:
            continue
        used += came
        if any(r.end_s is None for r in calls):
            unfinished += 1
            continue
        took = covered((r.arrival_s, r.end_s) for r in came if r.end_s is not None)
        latency.append(took)
        whole.append(max(r.end_s or 0.0 for r in came) - min(r.arrival_s for r in came))
        per_token.append(took / sum(r.output_tokens for r in came))
    return {
        "seed": outcome.seed,
        "programs": len(latency) + unfinished,
        "unfinished": unfinished,
        "calls": len(used),
        "latency_s": spread(latency, (50, 90, 95, 99)),
        "with_gaps_s": spread(whole),
        "per_token_s": spread(per_token),
        "hit_rate": {
            "short": _hits([r for r in used if r.prompt_tokens < short_tokens]),
            "long": _hits([r for r in used if r.prompt_tokens >= short_tokens]),
        },
        "evicted": sum(r.evicted for r in used) / max(1, len(used)),
        **engines(outcome),
        "cpu_s": outcome.cpu_s,
    }


def turn_ttft_s(outcome: Outcome, warmup_s: float = 0.0) -> dict[str, float]:
    """Measures calls of programs after the first: how long an agent waits for a token when its tool has answered."""
    turns = [r for r in arrived(outcome, warmup_s, None) if r.position and r.first_token_s is not None]
    return spread(r.first_token_s - r.arrival_s for r in turns if r.first_token_s is not None)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the spans' union: concurrent calls count once."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _hits(records: Sequence[Record]) -> float | None:
    tokens = sum(r.prompt_tokens for r in records if r.begin_s is not None)
    return sum(r.cached_tokens for r in records) / tokens if tokens else None


def drift_row(
    outcome: Outcome,
    warmup_s: float = 0.0,
    window_s: float = 10.0,
    phases_s: Sequence[float] = (),
    weights: tuple[float, float] = (1.0, 2.0),
) -> dict[str, Any]:
    """Returns H-MAS's measures (section 4, appendix D.3). goodput_rate: in time by TTFT and mean TBT; esg per second,
    by its Eq 6 with alpha 1; mismatch, its Eq 7 over windows, and the share of these in which nothing was served; cv of
    TTFT and of ESG; recovery: goodput rate of the last phase over that of the one before, if phases_s gives their
    borders; switches: changes of policy."""
    records = arrived(outcome, warmup_s, None)
    some = max(1, len(records))
    ttft_ok = [r.first_token_s is not None and not first_late(r) for r in records]
    tokens_ok = [tpot_ok(r) for r in records]
    good = [a and b for a, b in zip(ttft_ok, tokens_ok, strict=True)]
    gains = [_gain(r, weights) for r in records]
    ttfts = [r.first_token_s - r.arrival_s for r in records if r.first_token_s is not None]
    rates = _rates([(r.end_s, g) for r, g in zip(records, gains, strict=True) if r.end_s is not None], window_s)
    span_s = outcome.end_s - warmup_s
    return {
        "seed": outcome.seed,
        "requests": len(records),
        "goodput_rate": sum(good) / some,
        "goodput_qps": sum(good) / span_s if span_s > 0 else 0.0,
        "ttft_ok": sum(ttft_ok) / some,
        "tpot_ok": sum(tokens_ok) / some,
        "esg": sum(gains) / span_s if span_s > 0 else 0.0,
        "mismatch": spread_of_gap(records, window_s),
        "cv": {"ttft": _cv(ttfts), "esg": _cv(rates)},
        "esg_peak": max(rates, default=0.0) / fmean(rates) if any(rates) else None,
        "recovery": _recovery(records, good, phases_s),
        "switches": sum(len(t.policies) - 1 for t in outcome.replicas),
        "cpu_s": outcome.cpu_s,
    }


def tpot_ok(r: Record) -> bool:
    """Whether it ended with a mean time between tokens within its limit."""
    if r.end_s is None:
        return False
    mean = tbt_s(r)
    return r.tbt_slo_s is None or mean is None or mean <= r.tbt_slo_s


def _gain(r: Record, weights: tuple[float, float]) -> float:
    """Eq 6: the tokens' worth, reduced in proportion to the delay of the last one."""
    if r.end_s is None:
        return 0.0
    worth = weights[0] * r.prompt_tokens + weights[1] * r.output_tokens
    slo = r.ttlt_slo_s
    if slo is None and r.ttft_slo_s is not None:
        slo = r.ttft_slo_s + (r.tbt_slo_s or 0.0) * r.output_tokens
    return worth if slo is None else worth * min(1.0, slo / max(1e-9, r.end_s - r.arrival_s))


def _rates(gains: Sequence[tuple[float, float]], window_s: float) -> list[float]:
    sums: dict[int, float] = {}
    for at, gain in gains:
        sums[int(at // window_s)] = sums.get(int(at // window_s), 0.0) + gain
    if not sums:
        return []
    return [sums.get(n, 0.0) / window_s for n in range(min(sums), max(sums) + 1)]


def spread_of_gap(records: Sequence[Record], window_s: float) -> dict[str, float]:
    """Returns max(0, tokens that arrived / tokens served - 1) over windows; a call's tokens are served when it ends.
    stalled: the share of windows with arrivals in which none were served, for which the ratio is undefined."""
    came = _rates([(r.arrival_s, float(r.prompt_tokens + r.output_tokens)) for r in records], window_s)
    first = int(min((r.arrival_s for r in records), default=0.0) // window_s)
    served: dict[int, float] = {}
    for r in records:
        if r.end_s is not None:
            n = int(r.end_s // window_s) - first
            served[n] = served.get(n, 0.0) + (r.prompt_tokens + r.output_tokens) / window_s
    gaps = sorted(max(0.0, rate / served[n] - 1) for n, rate in enumerate(came) if served.get(n))
    if not gaps:
        return {}
    stalled = sum(rate > 0 and not served.get(n) for n, rate in enumerate(came)) / sum(rate > 0 for rate in came)
    return {"mean": fmean(gaps), "p95": gaps[min(len(gaps) - 1, math.ceil(0.95 * len(gaps)) - 1)], "stalled": stalled}


def _cv(values: Sequence[float]) -> float | None:
    return pstdev(values) / fmean(values) if len(values) > 1 and fmean(values) > 0 else None


def _recovery(records: Sequence[Record], good: Sequence[bool], phases_s: Sequence[float]) -> float | None:
    if len(phases_s) < 2:
        return None
    before = [g for r, g in zip(records, good, strict=True) if phases_s[-2] <= r.arrival_s < phases_s[-1]]
    after = [g for r, g in zip(records, good, strict=True) if r.arrival_s >= phases_s[-1]]
    if not any(before) or not after:
        return None
    return (sum(after) / len(after)) / (sum(before) / len(before))
