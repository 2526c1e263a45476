"""python -m bench sim activations FILE [--page docs/results/moves.md]: measures what the weights of models that take
turns cost, and how long the models' requests wait.

Every unit has memory for some of the models and switches between them (bench/sim/activations.py). Weights come from the
unit's own host memory, or from another unit over the network: in the background class with the deadline of the request
that waits, or as loads. `mfs` (eight classes, the production queue) and `dscp-size` are each compared with themselves
with host memory, paired by seed; requests and their units are the same in all rows. FILE keeps every point; --page
writes the table between marks of its own, and the figures as JSON beside it."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from bench.sim import settings, study
from bench.sim.compare import Results, compare, half_width
from bench.sim.moves import MARKS
from bench.sim.point import Point
from bench.sim.unit_models import UnitModels

POLICIES = ("mfs", "dscp-size")
SETTINGS = "base,fan-in,egress"
MODELS = UnitModels(count=16, running=2)
AGAINST = ", as load against as background"
BEGIN, END = "<!-- begin of generated table: activations -->", "<!-- end of generated table: activations -->"


class Cost(msgspec.Struct, frozen=True):
    """A policy against itself with weights in host memory, paired by seed; halves are of 95 % intervals."""

    attainment: float  # percent of requests in time
    gain: float
    gain_half: float | None
    ttft_s: float  # mean
    ttft_ratio: float
    p99_ratio: float  # of p99 TTFT
    collectives: float  # what they take over what they take alone
    collective_ratio: float  # of that, to the other
    collective_half: float | None
    activations: float  # of a run
    activation_s: float  # mean
    network_s: float  # of these, until the weights have come; 0 from host memory
    in_time: float  # percent of the activations whose weights came in time
    waiting: float  # percent of requests that waited for a model
    wait_s: float  # mean of those


def cost(mine: Sequence[dict[str, Any]], host: Sequence[dict[str, Any]]) -> Cost:
    both = zip(mine, host, strict=True)
    slower = [a["activations"]["collectives"] / b["activations"]["collectives"] for a, b in both]

    def mean(figure: str) -> float:
        return statistics.fmean(row["activations"][figure] for row in mine)

    requests = compare(mine, host)
    return Cost(
        attainment=requests.attainment,
        gain=requests.gain,
        gain_half=requests.gain_half,
        ttft_s=requests.ttft_s,
        ttft_ratio=requests.ttft_ratio,
        p99_ratio=requests.p99_ratio,
        collectives=mean("collectives"),
        collective_ratio=statistics.fmean(slower),
        collective_half=half_width(slower),
        activations=mean("count"),
        activation_s=mean("mean_s"),
        network_s=mean("network_s"),
        in_time=100 * mean("in_time"),
        waiting=100 * mean("waiting"),
        wait_s=mean("wait_s"),
    )


def with_models(point: Point, weights_from: str, mark: str) -> Point:
    models = msgspec.structs.replace(MODELS, weights_from=weights_from)
    config = msgspec.structs.replace(point.config, unit_models=models, moves_as=mark)
    return msgspec.structs.replace(point, config=config)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "rows": {label: {setting: Cost}}}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows: dict[str, dict[str, Any]] = {}
    for setting in settings.named(options.setting):
        base = settings.base_of(setting, "dbrx", "qwen-a", options.requests, 8)
        top = results.knee(base, study.knee_name(setting, base), settings.SETTINGS[setting].knee_seeds)
        point = msgspec.structs.replace(base, rate=round(options.load * top, 4))
        for policy in POLICIES:
            host = results.of_seeds(with_models(point, "host", "background"), policy, seeds)
            found = {f"`{policy}`, weights in host memory": cost(host, host)}
            marked = {mark: results.of_seeds(with_models(point, "units", mark), policy, seeds) for mark in MARKS}
            for mark, mine in marked.items():
                found[f"`{policy}`, over the network as {mark}"] = cost(mine, host)
            found[f"`{policy}`{AGAINST}"] = cost(marked["load"], marked["background"])
            for label, one in found.items():
                rows.setdefault(label, {})[setting] = msgspec.to_builtins(one)
                print(f"{setting}, {label}: {cell(one, label)}", flush=True)
    what = {
        "simulated": True, "load": options.load, "requests": options.requests, "warmup": options.requests // 3,
        "gpus": settings.GPUS, "seeds": list(seeds), "models": msgspec.to_builtins(MODELS),
        "revisions": sorted({r["revision"] for r in results.rows.values()}),
    }  # fmt: skip
    return {"what": what, "rows": rows}


def cell(found: Cost, label: str) -> str:
    def of(value: float, half: float | None, digits: int, sign: str = "") -> str:
        return f"{value:{sign}.{digits}f}" + ("" if half is None else f"±{half:.{digits}f}")

    waited = f"{found.waiting:.0f} % wait {found.wait_s:.2f} s"
    if not found.network_s:
        return (
            f"{found.attainment:.1f} % {1e3 * found.ttft_s:.0f} ms; x{found.collectives:.3f}; "
            f"{found.activations:.0f} of {found.activation_s:.2f} s; {waited}"
        )
    compared = (
        f"{of(found.gain, found.gain_half, 1, '+')} x{found.ttft_ratio:.2f} x{found.p99_ratio:.2f}; "
        f"x{of(found.collective_ratio, found.collective_half, 3)}"
    )
    if label.endswith(AGAINST):
        return compared
    return f"{compared}; {found.activations:.0f} of {found.activation_s:.2f} s, {found.in_time:.0f} %; {waited}"


def table(data: dict[str, Any]) -> str:
    what, rows = data["what"], data["rows"]
    models = what["models"]
    names = list(next(iter(rows.values())))
    lines = [
        f"Simulated, not measured. {models['count']} models of DBRX's shape, popularity 1 / k^{models['skew']:g}, "
        f"{models['running']} of them in the memory of each unit; QwenA, {what['gpus']} GPUs, {what['warmup']} + "
        f"{what['requests']} requests, {study.seed_words(what['seeds'])} (paired), load {what['load']:g} of the knee "
        f"of one model; eight classes; rules of commit {', '.join(what['revisions'])}. With weights in host memory: "
        "requests in time, mean TTFT; what collectives take over what they take alone; activations and their mean "
        "duration; requests that wait for a model, and for how long. The others against the same policy with weights "
        "in host memory: points of requests in time, mean and p99 TTFT; that of collectives; activations, their mean "
        "duration, weights in time; requests that wait. Last, both marks against each other. With half of the 95 % "
        "interval.",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for label, of in rows.items():
        cells = [cell(msgspec.convert(of[name], Cost), label) for name in names]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim activations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    study.seeded_options(p, SETTINGS, first_seed=831, load=0.5, seeds=4)
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    study.check_seeded(options)
    data = run(options)
    if options.page:
        study.publish(options.page, table(data), data, BEGIN, END, "activations")
    return 0
