"""python -m bench sim figure 9..14 [--quick]: runs the simulations of a figure of the paper and plots them (PNG, SVG,
JSON).

Points are written as they finish, and the next call reuses them. Rates are chosen relative to the rate at which NOCONT
meets 90 % of the deadlines, and shown in requests/s per GPU. Units ask for reuse as in the paper (--fetch batch).
Contention knobs are those of `python -m bench sim`; without any, half of the prefixes lie on one NIC (with more GPUs
than 384 as many as it can serve) and KV is four times its size."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import sweep
from bench.sim.cluster import Config, ConfigError
from bench.sim.compare import STUDENT
from bench.sim.point import Point, knee

Value = Callable[[sweep.Result], float]
POLICIES = ("fs", "sjf", "edf", "karuna", "static", "paper", "mfs", "nocont")
# Okabe and Ito's colours, distinct for colour-blind readers; markers distinguish the lines in print.
STYLE = {
    "fs": ("#999999", "o"),
    "sjf": ("#E69F00", "s"),
    "edf": ("#56B4E9", "^"),
    "karuna": ("#009E73", "v"),
    "static": ("#CC79A7", "D"),
    "paper": ("#0072B2", "P"),
    "mfs": ("#D55E00", "*"),
    "nocont": ("#000000", "x"),
}
OTHER_STYLE = ("#555555", ".")
FIRST_SEED = 11  # smaller seeds chose the defaults
QUICK_GPUS, QUICK_REQUESTS = 384, 60
KNEE_REQUESTS = 300  # with few requests the knee is unstable: 0.10 or 0.21 requests/s for DBRX with 60 or 300
# Half of the prefixes on one NIC, as for the paper's victim units.
CONTENDED: dict[str, Any] = {"hot_fraction": 0.5, "kv_scale": 4.0}
PAPER: dict[str, Any] = {"cache": "first-owner", "decode_choice": "random"}
MOE = ("mixtral-8x22b", "dbrx", "qwen3-coder", "grok-2")


class Figure(msgspec.Struct, frozen=True):
    """Panels (title, model, workload), and whether rates or details are shown."""

    title: str
    panels: tuple[tuple[str, str, str], ...]
    kind: str  # bars, curves or breakdown
    loads: tuple[float, ...] = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2)
    gpus: int = 2048


FIGURES = {
    9: Figure(
        "Mixtral-8x7B, two instances of 8 GPUs at 50 Gbit/s",
        (("QwenA", "mixtral-8x7b", "qwen-a"), ("QwenB", "mixtral-8x7b", "qwen-b")),
        "bars",
        (1.0,),
        32,
    ),
    10: Figure("Conversation (QwenA)", tuple((m, m, "qwen-a") for m in MOE), "curves"),
    11: Figure("Agent (QwenB)", tuple((m, m, "qwen-b") for m in MOE), "curves"),
    12: Figure(
        "Llama3-8B, sequence parallel",
        (
            ("Mooncake conversation", "llama3-8b", "mooncake-conversation"),
            ("Mooncake agent", "llama3-8b", "mooncake-agent"),
        ),
        "curves",
    ),
    13: Figure("DBRX, QwenA", (("DBRX", "dbrx", "qwen-a"),), "breakdown", (1.0,)),
    14: Figure(
        "Llama3-8B, Mooncake conversation",
        (("Llama3-8B", "llama3-8b", "mooncake-conversation"),),
        "breakdown",
        (1.0,),
    ),
}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim figure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("number", type=int, choices=sorted(FIGURES))
    p.add_argument(
        "--quick",
        action="store_true",
        help="384 GPUs, 60 requests after 30, three loads: minutes of CPU instead of hours",
    )
    p.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="folder for the files (default out/)")
    p.add_argument("--policy", default=",".join(POLICIES), metavar="A,B")
    p.add_argument(
        "--seeds", type=int, metavar="N", default=5, help=f"number of seeds, from {FIRST_SEED} on (default 5)"
    )
    p.add_argument(
        "--gpus", type=int, metavar="N", help=f"number of GPUs (default 2048; figure 9: 32; quick: {QUICK_GPUS})"
    )
    p.add_argument(
        "--requests", type=int, metavar="N", help=f"measured requests (default 1024; quick: {QUICK_REQUESTS})"
    )
    for name in ("hot-fraction", "kv-scale", "burst", "expert-skew", "link-gbps"):
        p.add_argument(f"--{name}", type=float)
    p.add_argument("--decode-nics", type=int)
    return p


def panel_config(figure: Figure, model: str, options: argparse.Namespace) -> Config:
    gpus = options.gpus or (min(figure.gpus, QUICK_GPUS) if options.quick else figure.gpus)
    given = {
        name: getattr(options, name)
        for name in ("hot_fraction", "kv_scale", "burst", "expert_skew", "link_gbps", "decode_nics")
        if getattr(options, name) is not None
    }
    knobs = given or dict(CONTENDED)
    if not given and gpus > QUICK_GPUS:  # one NIC cannot serve half of a larger cluster
        knobs["hot_fraction"] = CONTENDED["hot_fraction"] * QUICK_GPUS / gpus
    return Config(model=model, gpus=gpus, fetch="batch", **PAPER, **knobs)  # layer by layer, as in the paper


def collect(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing of the figure. Returns {"figure", "title", "panels": [{"title", "config", "knee",
    "results"}]}."""
    figure = FIGURES[number]
    requests = options.requests or (QUICK_REQUESTS if options.quick else 1024)
    loads = figure.loads[1::2] if options.quick and len(figure.loads) > 1 else figure.loads
    panels = []
    for title, model, workload in figure.panels:
        base = Point(
            config=panel_config(figure, model, options),
            workload=workload,
            requests=requests,
            warmup=requests // 2,
        )
        path = options.out / f"figure-{number}-{model}-{workload}{'-quick' if options.quick else ''}.json"
        memory = path.with_suffix(".knee")
        wanted = msgspec.json.encode(base).decode()
        stored = memory.read_text().split("\n") if memory.exists() else []
        if stored[:1] == [wanted]:
            top = float(stored[1])
        else:
            longer = max(requests, KNEE_REQUESTS)
            top = knee(msgspec.structs.replace(base, seed=1000, requests=longer, warmup=longer // 3))
            memory.write_text(f"{wanted}\n{top}\n")
        rates = [round(load * top, 4) for load in loads]
        points = [
            msgspec.structs.replace(base, rate=rate, seed=seed, policy=policy)
            for rate in rates
            for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
            for policy in options.policy.split(",")
        ]

        def report(done: int, total: int, result: sweep.Result, title: str = title) -> None:
            what = f"{title}: {result['policy']} rate {result['rate']:g} seed {result['seed']}"
            print(f"[{done}/{total}] {what}: {result['slo_attainment']:.1%}", file=sys.stderr, flush=True)

        results = sweep.run(points, path, report)
        panels.append({"title": title, "config": sweep.common(points), "knee": top, "rates": rates, "results": results})
    return {"figure": number, "title": figure.title, "quick": options.quick, "panels": panels}


def spread(results: Iterable[sweep.Result], value: Value) -> tuple[float, float]:
    """Returns mean and half the 95 % confidence interval over seeds."""
    values = [value(r) for r in results]
    if len(values) < 2:
        return values[0], 0.0
    quantile = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    return statistics.fmean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def select(panel: dict[str, Any], policy: str, rate: float) -> list[sweep.Result]:
    return [r for r in panel["results"] if r["policy"] == policy and r["rate"] == rate]


def attainment(result: sweep.Result) -> float:
    return 100 * float(result["slo_attainment"])


def ttft_ms(result: sweep.Result) -> float:
    return 1e3 * float(result["ttft_s"]["mean"])


def cct_ms(result: sweep.Result) -> float:
    return 1e3 * float(result["cct_s"]["mean"])


def earliness_ms(result: sweep.Result) -> float:
    return 1e3 * float(result["earliness_s"]["non_negative_mean"])


BARS: dict[str, tuple[tuple[str, Value], ...]] = {
    "bars": (("mean TTFT (ms)", ttft_ms), ("mean CCT (ms)", cct_ms)),
    "breakdown": (
        ("deadlines met (%)", attainment),
        ("mean CCT (ms)", cct_ms),
        ("mean of earliness >= 0 (ms)", earliness_ms),
    ),
}


def plot(data: dict[str, Any], policies: Sequence[str], stem: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kind, panels = FIGURES[data["figure"]].kind, data["panels"]
    shown = len(panels) if kind == "curves" else len(panels) * len(BARS[kind])
    columns = 2 if shown % 2 == 0 else shown
    rows = shown // columns
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(0.6 + 3.3 * columns, 0.7 + 2.7 * rows), squeeze=False, layout="constrained"
    )
    axes = iter(grid.flat)
    for panel in panels:
        if kind == "curves":
            _curves(next(axes), panel, policies)
        else:
            for label, value in BARS[kind]:
                _bars(next(axes), panel, policies, label, value)
    if kind == "curves":
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    seeds = len({r["seed"] for r in panels[0]["results"]})
    point = panels[0]["config"]
    figure.suptitle(
        f"{data['title']}: simulated{' (quick run)' if data['quick'] else ''}; {_knobs(point['config'])}\n"
        f"{point['config']['gpus']} GPUs, {point['requests']} requests, mean and 95 % interval over {seeds} seeds",
        fontsize=9,
    )
    for ending in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{ending}"), dpi=120)
    pyplot.close(figure)


def _knobs(config: dict[str, Any]) -> str:
    """Describes what differs from a cluster without contention."""
    plain = msgspec.to_builtins(Config())
    changed = {k: v for k, v in config.items() if v != plain[k] and k not in ("model", "gpus")}
    parts = [
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in changed.items()
    ]
    return ", ".join(parts) or "no knobs"


def _curves(axis: Any, panel: dict[str, Any], policies: Sequence[str]) -> None:
    for policy in policies:
        points = [spread(select(panel, policy, rate), attainment) for rate in panel["rates"]]
        colour, marker = STYLE.get(policy, OTHER_STYLE)
        axis.errorbar(
            panel["rates"],
            [p[0] for p in points],
            yerr=[p[1] for p in points],
            label=policy,
            color=colour,
            marker=marker,
            linestyle=":" if policy == "nocont" else "-",
            linewidth=1.2,
            markersize=5,
            elinewidth=0.7,
            capsize=2,
        )
    axis.axvline(panel["knee"], color="#bbbbbb", linewidth=0.8, zorder=0, label="nocont meets 90 %")
    axis.set_title(panel["title"], fontsize=9)
    axis.set_xlabel("requests/s per prefill GPU")
    axis.set_ylabel("deadlines met (%)")
    axis.set_ylim(0, 102)


def _bars(axis: Any, panel: dict[str, Any], policies: Sequence[str], label: str, value: Value) -> None:
    for position, policy in enumerate(policies):
        mean, error = spread(select(panel, policy, panel["rates"][0]), value)
        colour, _ = STYLE.get(policy, OTHER_STYLE)
        # Black bars would hide their error bars.
        style = {"color": "white", "hatch": "///"} if policy == "nocont" else {"color": colour}
        axis.bar(position, mean, yerr=error, edgecolor="black", linewidth=0.5, capsize=2, **style)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(len(policies)), policies, rotation=60, fontsize=7)
    axis.set_title(f"{panel['title']}, {panel['rates'][0]:.3g} requests/s per prefill GPU", fontsize=8)
    axis.set_ylabel(label)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {options.out}: {error.strerror}") from error
    data = collect(options.number, options)
    stem = options.out / f"figure-{options.number}{'-quick' if options.quick else ''}"
    stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    plot(data, options.policy.split(","), stem)
    print(f"{stem}.png {stem}.svg {stem}.json")
    return 0
