"""python -m bench sim figure 9..14 [--quick]: runs what a figure of the paper shows and plots it (PNG, SVG,
JSON).

Points are written as they finish and reused by the next call. Rates are given relative to the rate at which
NOCONT meets 90 % of
the deadlines, and on the axis in requests/s per GPU. Contention knobs are those of `python -m bench sim`
and, unless given, the
settings named in each figure's title."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import sweep
from bench.sim.cluster import Config, ConfigError
from bench.sim.point import Point, knee

POLICIES = ("fs", "sjf", "edf", "karuna", "static", "paper", "mfs", "nocont")
# Okabe and Ito's colours, told apart by colour-blind readers; markers repeat the distinction in print.
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
# Half of the prefixes on few NICs: what the paper's victim units are. At full size the same NIC would serve
# eight times the load.
CONTENDED: dict[str, Any] = {"hot_fraction": 0.5, "kv_scale": 4.0}
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
        help="384 GPUs, 200 requests, three loads, two seeds: minutes, not evidence",
    )
    p.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where the files go (default out/)")
    p.add_argument("--policy", default=",".join(POLICIES), metavar="A,B")
    p.add_argument("--seeds", type=int, metavar="N", help="default 5 (quick: 2)")
    p.add_argument("--gpus", type=int, metavar="N", help="default 2048 (figure 9: 32; quick: 384)")
    p.add_argument("--requests", type=int, metavar="N", help="default 1024 (quick: 200)")
    for name in ("hot-fraction", "kv-scale", "burst", "expert-skew", "link-gbps"):
        p.add_argument(f"--{name}", type=float)
    p.add_argument("--decode-nics", type=int)
    return p


def panel_config(figure: Figure, model: str, options: argparse.Namespace) -> Config:
    gpus = options.gpus or (figure.gpus if figure.gpus < 384 or not options.quick else 384)
    given = {
        name: getattr(options, name)
        for name in ("hot_fraction", "kv_scale", "burst", "expert_skew", "link_gbps", "decode_nics")
        if getattr(options, name) is not None
    }
    knobs = given or dict(CONTENDED)
    if not given and gpus > 384:
        knobs["hot_fraction"] = CONTENDED["hot_fraction"] * 384 / gpus  # one NIC cannot serve half of a larger cluster
    return Config(model=model, gpus=gpus, **knobs)


def collect(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing of the figure. {"figure", "title", "panels": [{"title", "config", "knee",
    "results"}]}."""
    figure = FIGURES[number]
    seeds = options.seeds or (2 if options.quick else 5)
    requests = options.requests or (200 if options.quick else 1024)
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
            top = knee(msgspec.structs.replace(base, seed=1000))
            memory.write_text(f"{wanted}\n{top}\n")
        rates = [round(load * top, 4) for load in loads]
        points = [
            msgspec.structs.replace(base, rate=rate, seed=seed, policy=policy)
            for rate in rates
            for seed in range(1, seeds + 1)
            for policy in options.policy.split(",")
        ]

        def report(done: int, total: int, result: sweep.Result, title: str = title) -> None:
            what = f"{title}: {result['policy']} rate {result['rate']:g} seed {result['seed']}"
            print(f"[{done}/{total}] {what}: {result['slo_attainment']:.1%}", file=sys.stderr, flush=True)

        results = sweep.run(points, path, report)
        panels.append({"title": title, "config": sweep.common(points), "knee": top, "rates": rates, "results": results})
    return {"figure": number, "title": figure.title, "quick": options.quick, "panels": panels}


def spread(results: Iterable[sweep.Result], value: Any) -> tuple[float, float]:
    """Mean and half the 95 % confidence interval over seeds."""
    values = [value(r) for r in results]
    error = 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def select(panel: dict[str, Any], policy: str, rate: float) -> list[sweep.Result]:
    return [r for r in panel["results"] if r["policy"] == policy and r["rate"] == rate]


def plot(data: dict[str, Any], policies: Sequence[str], stem: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kind = FIGURES[data["figure"]].kind
    panels = data["panels"]
    columns = len(panels) * (1 if kind == "curves" else 2)
    figure, axes = pyplot.subplots(1, columns, figsize=(3.6 * columns, 3.2), squeeze=False, layout="constrained")
    for index, panel in enumerate(panels):
        if kind == "curves":
            _curves(axes[0][index], panel, policies)
        else:
            _bars(
                axes[0][2 * index],
                panel,
                policies,
                lambda r: r["ttft_s"]["mean"] * 1e3 if kind == "bars" else r["cct_s"]["mean"] * 1e3,
            )
            axes[0][2 * index].set_ylabel("mean TTFT (ms)" if kind == "bars" else "mean CCT (ms)")
            second = (
                (lambda r: r["cct_s"]["mean"] * 1e3)
                if kind == "bars"
                else (lambda r: r["earliness_s"]["non_negative_mean"] * 1e3)
            )
            _bars(axes[0][2 * index + 1], panel, policies, second)
            axes[0][2 * index + 1].set_ylabel("mean CCT (ms)" if kind == "bars" else "mean non-negative earliness (ms)")
    figure.suptitle(f"{data['title']}{' (quick run)' if data['quick'] else ''}", fontsize=10)
    for ending in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{ending}"), dpi=150)
    pyplot.close(figure)


def _curves(axis: Any, panel: dict[str, Any], policies: Sequence[str]) -> None:
    for policy in policies:
        points = [spread(select(panel, policy, rate), lambda r: 100 * r["slo_attainment"]) for rate in panel["rates"]]
        colour, marker = STYLE.get(policy, ("#555555", "."))
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
            capsize=2,
        )
    axis.axvline(panel["knee"], color="#bbbbbb", linewidth=0.8)
    axis.set_title(panel["title"], fontsize=9)
    axis.set_xlabel("requests/s per GPU")
    axis.set_ylabel("SLO met (%)")
    axis.set_ylim(0, 102)
    axis.legend(fontsize=6)


def _bars(axis: Any, panel: dict[str, Any], policies: Sequence[str], value: Any) -> None:
    for position, policy in enumerate(policies):
        mean, error = spread(select(panel, policy, panel["rates"][0]), value)
        colour, _ = STYLE.get(policy, ("#555555", "."))
        axis.bar(position, mean, yerr=error, color=colour, edgecolor="black", linewidth=0.5, capsize=2)
    axis.set_xticks(range(len(policies)), policies, rotation=60, fontsize=7)
    axis.set_title(panel["title"], fontsize=9)


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
