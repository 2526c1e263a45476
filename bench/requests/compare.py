"""python -m bench requests compare FILE: compares a live engine's record with the simulator.

FILE is what MfsScheduler wrote while a real vLLM served (`live --record FOLDER` makes one; .xz is unpacked). Every plan
is made again from the recorded view, as `replay` does. Then the step simulator serves the same requests, with their
arrivals, lengths, deadlines and expected outputs, the engine's configuration, and step times fitted to the measured
ones: once as if the machine were always equally fast, once as slow at each point of the work as it was. The command
exits with 1 when a plan differs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bench.requests.errors import UsageError
from bench.sim.serving import Belief, Call, Outcome, ReplicaConfig, simulate
from bench.sim.serving.cost import Fitted, fitted
from mfsd.policy.serve import Observed, Request, ServeConfig
from mfsd.serve.records import Begin, RecordError, Step, files_of, read, replay


class Served(NamedTuple):
    """A request of the record."""

    request: Request
    """As it was first seen."""
    first_step: int
    """Number of the plan with which its prompt was done, which gives the order of first tokens."""
    first_token_s: float
    outputs: int


class Recording(NamedTuple):
    config: ServeConfig
    steps: list[Step]
    """Plans that computed something."""
    served: list[Served]
    """By number; those whose prompt was done by the last plan."""
    observed: list[Observed]


class Token(NamedTuple):
    """When a first token came: time after the arrival of the first request, and place, equal for tokens of one step."""

    at_s: float
    step: float


def recorded(path: Path) -> Recording:
    """Reads a file, or those of a folder. Raises UsageError if nothing was served."""
    steps: list[Step] = []
    config: ServeConfig | None = None
    for file in files_of(path):
        for _, row in read(file):
            if isinstance(row, Begin):
                config = row.config
            else:
                steps.append(row)
    steps = sorted((step for step in steps if step.plan.scheduled), key=lambda step: step.now_s)
    served = requests_of(steps)
    observed = [one for step in steps for one in step.view.observed]
    if config is None or not served or not observed:
        raise UsageError(f"{path}: no request was served to its first token; record a run of some requests")
    return Recording(config, steps, served, observed)


def requests_of(steps: Sequence[Step]) -> list[Served]:
    """Returns the served requests: each plan that computes the last part of a prompt, or a decode, makes a token of
    it."""
    seen: dict[int, Request] = {}
    first_step: dict[int, int] = {}
    first_token_s: dict[int, float] = {}
    outputs: dict[int, int] = {}
    for at, step in enumerate(steps):
        now = {r.request_id: r for r in (*step.view.waiting, *step.view.running)}
        for number, request in now.items():
            seen.setdefault(number, request)
            if request.first_token_s is not None:
                first_token_s.setdefault(number, request.first_token_s)
        for one in step.plan.scheduled:
            request = now[one.request_id]
            if request.num_computed_tokens + one.num_tokens >= request.num_prompt_tokens:
                first_step.setdefault(one.request_id, at)
                outputs[one.request_id] = outputs.get(one.request_id, 0) + 1
    last_s = steps[-1].now_s if steps else 0.0
    return [
        Served(seen[n], first_step[n], first_token_s.get(n, last_s), outputs[n]) for n in sorted(first_step)
    ]  # one that ended with its first token before the next view counts as if seen then


def simulated(recording: Recording, varying: bool) -> tuple[Outcome, Fitted]:
    """varying: the machine is as slow at each point of the work as it was."""
    cost = fitted(recording.observed, varying)
    base_s = min(one.request.arrival_s for one in recording.served)
    calls = [
        Call(
            arrival_s=one.request.arrival_s - base_s,
            prompt_tokens=one.request.num_prompt_tokens,
            output_tokens=one.outputs,
            expected_tokens=one.request.output_tokens,
            ttft_s=one.request.ttft_s,
            tbt_s=one.request.tbt_s,
            ttlt_s=one.request.ttlt_s,
            importance=one.request.importance,
            tenant=one.request.tenant,
            weight=one.request.weight,
        )
        for one in recording.served
    ]
    config = ReplicaConfig(
        serve=recording.config,
        cost=cost,
        belief=Belief(profiled=False),
        kv_tokens=recording.steps[0].view.kv_tokens,
        prefix_cache=False,
    )
    return simulate(config, calls), cost


def order(real: Sequence[Token], made: Sequence[Token]) -> dict[str, float]:
    """Compares two orders of the same requests. tau: Kendall's tau-b, tokens of one step are tied; inverted: share of
    pairs in reverse order; equal_places: share of requests with the same place."""
    alike = inverted = tied_real = tied_made = 0
    for at, a in enumerate(real):
        for b, c in zip(real[:at], made[:at], strict=True):
            x, y = (a.step > b.step) - (a.step < b.step), (made[at].step > c.step) - (made[at].step < c.step)
            alike += x * y > 0
            inverted += x * y < 0
            tied_real += x == 0
            tied_made += y == 0
    pairs = len(real) * (len(real) - 1) // 2
    whole = float((pairs - tied_real) * (pairs - tied_made)) ** 0.5
    places = [sorted(range(len(of)), key=lambda n, of=of: (of[n].step, n)) for of in (real, made)]  # type: ignore[misc]
    moved = {n: at for at, n in enumerate(places[1])}
    return {
        "tau": (alike - inverted) / whole if whole else 1.0,
        "inverted": inverted / pairs if pairs else 0.0,
        "equal_places": fmean(moved[n] == at for at, n in enumerate(places[0])),
        "places_off": fmean(abs(moved[n] - at) for at, n in enumerate(places[0])),
    }


def row(recording: Recording, outcome: Outcome, cost: Fitted) -> dict[str, Any]:
    served = recording.served
    base_s = min(one.request.arrival_s for one in served)
    real = [Token(one.first_token_s - base_s, one.first_step) for one in served]
    made = [Token(r.first_token_s or outcome.end_s, r.first_token_s or outcome.end_s) for r in outcome.records]
    ttfts = [
        [t.at_s - (one.request.arrival_s - base_s) for t, one in zip(of, served, strict=True)] for of in (real, made)
    ]
    due = [(one.request.ttft_s, *of) for one, *of in zip(served, *ttfts, strict=True) if one.request.ttft_s is not None]
    totals = outcome.replicas[0]
    estimates = [abs(cost.scale * cost.pace.step_s(o.load) / o.seconds - 1) for o in recording.observed]
    sizes = [[s.plan.load.prefill_tokens for s in recording.steps if s.plan.load.prefill_tokens]]
    sizes.append([tokens for tokens, count in totals.chunk_sizes.items() for _ in range(count)])

    def both(values: Sequence[float]) -> dict[str, float]:
        return {"vllm": values[0], "simulated": values[1]}

    return {
        "policy": recording.config.policy.value,
        "requests": len(served),
        "steps": both([len(recording.steps), totals.steps]),
        "prompt_steps": both([len(of) for of in sizes]),
        "prompt_tokens_a_step": both([fmean(of) for of in sizes]),
        "busy_s": both([sum(o.seconds for o in recording.observed), totals.busy_s]),
        "ttft_mean_s": both([fmean(of) for of in ttfts]),
        "ttft_median_s": both([median(of) for of in ttfts]),
        "first_late": both([fmean(d[at] > d[0] for d in due) for at in (1, 2)] if due else [0.0, 0.0]),
        "order": order(real, made),
        "ttft_off_median_s": median(abs(a - b) for a, b in zip(*ttfts, strict=True)),
        "step_time_error": {"mean": fmean(estimates), "median": median(estimates), "scale": cost.scale},
    }


def table(result: dict[str, Any]) -> str:
    """Formats vLLM and both simulations."""
    plans, other = result["plans"], result["at_the_machines_speed"]
    lines = [
        f"plans equal to the bit: {plans['equal']} of {plans['made']}",
        f"{'':24} {'vLLM':>10} {'simulated':>10} {'at its speed':>12}",
    ]
    for name, value in result.items():
        if isinstance(value, dict) and "vllm" in value:
            lines.append(f"{name:24} {value['vllm']:10.4g} {value['simulated']:10.4g} {other[name]['simulated']:12.4g}")
    lines += [
        f"order: {name:17} {'':10} {value:10.3f} {other['order'][name]:12.3f}"
        for name, value in result["order"].items()
    ]
    name = "ttft_off_median_s"
    lines.append(f"{name:24} {'':10} {result[name]:10.3f} {other[name]:12.3f}")
    error = result["step_time_error"]
    lines.append(f"fitted step times are off by {error['median']:.0%} in the median, {error['mean']:.0%} in the mean")
    return "\n".join(lines)


def compared(path: Path) -> dict[str, Any]:
    try:
        again = replay(path)
        recording = recorded(path)
    except RecordError as error:
        raise UsageError(str(error)) from error
    plans = {"made": again.steps, "equal": again.steps - again.differing}
    steady, varying = [row(recording, *simulated(recording, varying)) for varying in (False, True)]
    return {"plans": plans, **steady, "at_the_machines_speed": varying}


def main(arguments: list[str]) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench requests compare",
        description=__doc__,
        epilog="example:\n  python -m bench requests compare decisions.jsonl --json out/compare.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", type=Path, metavar="FILE", help="a record, or a folder of one engine's")
    p.add_argument("--json", type=Path, help="file for the row")
    options = p.parse_args(arguments)
    result = compared(options.file)
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["plans"]["equal"] == result["plans"]["made"] else 1
