"""H-MAS's workloads: requests of tasks with their own SLOs, while their rate or their mix drifts.

rate: a calm, a surge and an on-off phase (Eq 13). mix: phases of interactive tasks, of long outputs, and of all of
them. both: the two at once. burst, gradual, shift: the slices of its table 1, in which the change is fast (bursts
around the same mean), medium (longer and longer tasks at one rate) or slow (rate and mix of each phase). replay: bursty
arrivals of code and chat. All of it is generated: the paper publishes SLOs by task (table 6) and the rates, but not the
lengths. Those here are lognormal with medians and spreads chosen by task and named in TASKS. The lengths of replay
follow the published quantiles of the two traces (bench.requests.lengths).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.requests.arrivals import thinned
from bench.requests.errors import UsageError
from bench.requests.lengths import Lengths
from bench.requests.settings import Settings
from bench.requests.workload import Workload
from bench.sim.serving import Call

NAMES = ("rate", "mix", "both", "burst", "gradual", "shift", "replay")
SOURCE = "generated: SLOs by task as published, lengths lognormal by task"
STRICTER = 0.2
"""SLOs are scaled from 1 + this for the least important request to 1 - this for the most important (Eq 14)."""
SPREAD = 0.8
"""Of the logarithms of prompts and outputs."""
LONGEST_PROMPT, LONGEST_OUTPUT = 8000, 2000
HIGHEST = 1.8
BURST_EVERY_S, BURST_S, BURST = 20.0, 4.0, 3.0
"""A burst of BURST times the base rate for BURST_S; between bursts the rate is lower, so that the mean stays the
same."""
SHIFTS = (0.7, 1.3, 1.0)
"""Rates of the slow slice's phases."""
GROWTH = (0.6, 1.4)
"""Factors of lengths in the medium slice, from its begin to its end."""
REPLAY_SHAPE = 0.25
"""Of the gamma distribution of gaps: a coefficient of variation of 2."""


class Task(NamedTuple):
    ttft_s: float
    tbt_s: float
    prompt: float
    """Median tokens."""
    output: float


TASKS = {
    "qa": Task(4.0, 0.07, 250, 80),
    "dialogue": Task(4.0, 0.07, 500, 150),
    "translation": Task(4.5, 0.08, 300, 300),
    "extraction": Task(6.0, 0.08, 1500, 60),
    "paraphrasing": Task(6.0, 0.09, 400, 350),
    "code": Task(6.0, 0.09, 1500, 250),
    "instruction": Task(6.0, 0.10, 400, 250),
    "summary": Task(7.0, 0.11, 3000, 200),
    "letter": Task(8.0, 0.12, 200, 450),
    "maths": Task(10.0, 0.13, 200, 600),
    "essay": Task(10.0, 0.13, 150, 800),
    "long-form": Task(12.0, 0.15, 300, 1200),
    "research": Task(13.0, 0.15, 4000, 900),
}
INTERACTIVE = ("qa", "dialogue", "translation", "extraction")
LONG = ("maths", "essay", "long-form", "letter", "research")
PHASES = (INTERACTIVE, LONG, tuple(TASKS))


def rate_of(now_s: float, base: float, phase_s: float) -> float:
    """Eq 13, its three phases of 200 s stretched to `phase_s`."""
    phase = int(now_s / phase_s)
    if phase < 2:
        return base * (0.6, 1.4)[phase]
    within = now_s * 200.0 / phase_s
    return base * (1.8 if within % 20 < 10 else 0.2)


def burst_of(now_s: float, base: float) -> float:
    if now_s % BURST_EVERY_S < BURST_S:
        return base * BURST
    return base * (BURST_EVERY_S - BURST * BURST_S) / (BURST_EVERY_S - BURST_S)


def generate(name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None) -> Workload:
    """Returns requests within `seconds`, at most three phases; `qps` is the base of the rates (nearly their mean)."""
    if name not in NAMES:
        raise UsageError(f"--workload {name}: use {', '.join(NAMES)}")
    ends = min(seconds, 3 * settings.phase_s)
    if name == "replay":
        return _replay(settings, qps, seed, ends, traces)
    if traces is not None:
        raise UsageError(
            f"--traces {traces}: of --what drift only --workload replay has lengths of traces; leave it out"
        )
    drawn = random.Random(f"drift {seed}")
    rate, highest = _rate(name, settings, qps)
    calls = []
    for at in takewhile(lambda at: at < ends, thinned(random.Random(f"arrivals {seed}"), rate, highest)):
        phase = min(2, int(at / settings.phase_s))
        if name == "gradual":
            done = at / ends
            tasks: tuple[str, ...] = LONG if drawn.random() < done else INTERACTIVE
            calls.append(_call(at, drawn, drawn.choice(tasks), settings, GROWTH[0] + done * (GROWTH[1] - GROWTH[0])))
        else:
            tasks = PHASES[phase] if name in ("mix", "both", "shift") else PHASES[2]
            calls.append(_call(at, drawn, drawn.choice(tasks), settings))
    return Workload(calls, SOURCE)


def _rate(name: str, settings: Settings, qps: float) -> tuple[Callable[[float], float], float]:
    """Returns the rate at a time, and the highest rate."""
    phase_s = settings.phase_s
    if name in ("rate", "both"):
        return lambda now: rate_of(now, qps, phase_s), qps * HIGHEST
    if name == "burst":
        return lambda now: burst_of(now, qps), qps * BURST
    if name == "shift":
        return lambda now: qps * SHIFTS[min(2, int(now / phase_s))], qps * max(SHIFTS)
    return lambda now: qps, qps


def _replay(settings: Settings, qps: float, seed: int, ends: float, traces: Path | None) -> Workload:
    """Mixes code and chat at random, each with the SLOs of the task that it resembles."""
    of = {"code": Lengths("azure-code", traces), "dialogue": Lengths("sharegpt", traces)}
    drawn, gaps = random.Random(f"drift {seed}"), random.Random(f"arrivals {seed}")
    calls, at = [], 0.0
    while (at := at + gaps.gammavariate(REPLAY_SHAPE, 1 / (REPLAY_SHAPE * qps))) < ends:
        name = drawn.choice(sorted(of))
        prompt, output = of[name].draw(drawn)
        call = _call(at, drawn, name, settings)
        calls.append(
            msgspec.structs.replace(
                call,
                prompt_tokens=max(1, min(LONGEST_PROMPT, round(prompt * settings.prompt_scale))),
                output_tokens=max(1, min(LONGEST_OUTPUT, round(output * settings.output_scale))),
            )
        )
    sources = "; ".join(dict.fromkeys(one.source for one in of.values()))
    return Workload(calls, f"arrivals generated (gamma, coefficient of variation 2); lengths: {sources}")


def _call(at: float, drawn: random.Random, name: str, settings: Settings, scale: float = 1.0) -> Call:
    task = TASKS[name]
    importance = drawn.uniform(0.5, 1.0)
    factor = settings.slo_scale * (1 + STRICTER * (1 - 4 * (importance - 0.5)))
    prompt = task.prompt * math.exp(SPREAD * drawn.gauss(0, 1)) * settings.prompt_scale * scale
    output = task.output * math.exp(SPREAD * drawn.gauss(0, 1)) * settings.output_scale * scale
    return Call(
        arrival_s=at,
        prompt_tokens=max(8, min(LONGEST_PROMPT, round(prompt))),
        output_tokens=max(1, min(LONGEST_OUTPUT, round(output))),
        ttft_s=task.ttft_s * factor,
        tbt_s=task.tbt_s * factor,
        importance=round(10 * importance),
        tier=name,
        tenant=name,
    )
