"""QoServe's workload: tiers of interactive requests (first token, time between tokens) and batch ones (whole answer).

Each request gets a tier by the mix, independently of its lengths, as the paper divides its traces; a share of every
tier is of low importance. Arrivals are Poisson, at a constant rate or at two alternating rates.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from bench.requests.arrivals import poisson, thinned
from bench.requests.lengths import Lengths
from bench.requests.settings import Settings
from bench.requests.workload import Workload
from bench.sim.serving import Call

NAMES = ("azure-code", "sharegpt")
INTERACTIVE, BATCH, BACKGROUND = "interactive", "batch", "background"
NO_SLO = "no-slo"
TIERS = (INTERACTIVE, BATCH, BACKGROUND)


def generate(name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None) -> Workload:
    """Returns requests that arrive within `seconds`. Arrivals, lengths and tiers are drawn separately, so that a change
    of one setting leaves the others' draws unchanged."""
    lengths = Lengths(name, traces)
    drawn, divided = random.Random(f"{name} lengths {seed}"), random.Random(f"tiers {seed}")
    careless = random.Random(f"no SLO {seed}")
    mix = (settings.mix_interactive, settings.mix_batch, settings.mix_background)
    calls = []
    for start_s in takewhile(lambda at: at < seconds, arrivals(settings, qps, seed)):
        tokens = lengths.draw(drawn)
        (tier,) = divided.choices(TIERS, mix)
        important = divided.random() >= settings.low_share
        if careless.random() < settings.no_slo_share:
            tier = NO_SLO
        call = Call(
            arrival_s=start_s,
            prompt_tokens=max(1, round(tokens.prompt * settings.prompt_scale)),
            output_tokens=max(1, round(tokens.output * settings.output_scale)),
            ttft_s=settings.ttft_s if tier == INTERACTIVE else None,
            tbt_s=settings.tbt_s if tier == INTERACTIVE else None,
            ttlt_s={BATCH: settings.batch_ttlt_s, BACKGROUND: settings.background_ttlt_s}.get(tier),
            importance=int(important),
            tier=tier,
            tenant=tier,
        )
        calls.append(call)
    return Workload(calls, lengths.source)


def arrivals(settings: Settings, qps: float, seed: int) -> Iterator[float]:
    chance = random.Random(f"arrivals {seed}")
    if settings.swing <= 1:
        return poisson(chance, qps)
    low = 2 * qps / (1 + settings.swing)
    high = low * settings.swing
    return thinned(chance, lambda now: high if int(now / settings.swing_s) % 2 else low, high)
