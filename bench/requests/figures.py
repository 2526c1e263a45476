"""Plots of runs and capacities: PNG and SVG beside the file of results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.requests.point import Result

# Okabe and Ito's colours, distinct for colour-blind readers; markers distinguish the lines in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000", "#999999")
MARKERS = ("o", "s", "^", "v", "D", "P", "*", "x")


def capacities(results: Sequence[Result], file: Path) -> list[Path]:
    """Plots late requests at every rate that was tried, and where each policy reaches 1 %."""
    figure, (axis,) = _figure(1)
    for number, policy in enumerate(_policies(results)):
        of = [row for row in results if row["policy"] == policy]
        tried = sorted((t["qps"], 100 * t["late"]) for row in of for t in row["tried"])
        carried = statistics.fmean(row["capacity_qps"] for row in of)
        colour, marker = _style(number)
        axis.plot(
            *zip(*tried, strict=True), marker=marker, color=colour, label=f"{policy} ({carried:.2f})", linewidth=1
        )
        axis.axvline(carried, color=colour, linestyle=":", linewidth=0.8)
    axis.axhline(1.0, color="#bbbbbb", linewidth=0.8)
    axis.set_yscale("symlog", linthresh=1.0)
    axis.set_ylim(-0.1, 110)
    axis.set_xlabel("requests/s")
    axis.set_ylabel("late (%)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, title="requests/s at 1 % late", title_fontsize=8)
    return _save(figure, f"Simulated: {results[0]['workload']}, {_seeds(results)}", file)


def runs(what: str, results: Sequence[Result], file: Path) -> list[Path]:
    """For tiers: late requests by tier, and over time if there is one rate. For others: their measure by rate."""
    rates = sorted({row["qps"] for row in results})
    if what == "tiers":
        panels = 2 if len(rates) == 1 else 1
        figure, axes = _figure(panels)
        _by_tier(axes[0], [row for row in results if row["qps"] == rates[-1]])
        if panels == 2:
            _over_time(axes[1], results)
        title = f"{rates[-1]:g} requests/s, {_seeds(results)}"
    else:
        figure, axes = _figure(1)
        measure = (
            ("per_token_s", "mean", 1e3, "ms a token")
            if what in ("programs", "agents")
            else ("slo" if what == "workflows" else "goodput_rate", "", 100.0, "in time (%)")
        )
        _by_rate(axes[0], results, rates, measure)
        title = _seeds(results)
    return _save(figure, f"Simulated: {title}", file)


def _by_tier(axis: Any, results: Sequence[Result]) -> None:
    names = _policies(results)
    tiers = sorted({tier for row in results for tier in row["violations"]["tiers"]})
    groups = ["all", "important", *tiers]
    width = 0.8 / len(names)
    for number, policy in enumerate(names):
        of = [row["violations"] for row in results if row["policy"] == policy]
        heights = [100 * statistics.fmean(v["tiers"].get(g, 0.0) if g in tiers else v[g] for v in of) for g in groups]
        at = [place + (number - (len(names) - 1) / 2) * width for place in range(len(groups))]
        axis.bar(at, heights, width, color=_style(number)[0], edgecolor="black", linewidth=0.5, label=policy)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    axis.set_ylim(0, 105)
    axis.set_ylabel("late (%)")
    axis.figure.legend(loc="outside lower center", ncols=5, fontsize=8)


def _over_time(axis: Any, results: Sequence[Result]) -> None:
    """Plots the first seed."""
    seed = min(row["seed"] for row in results)
    load = axis.twinx()
    for number, policy in enumerate(_policies(results)):
        (row,) = (r for r in results if r["policy"] == policy and r["seed"] == seed)
        minutes = [w["at_s"] / 60 for w in row["over_time"]]
        axis.plot(
            minutes, [100 * w["late"] for w in row["over_time"]], color=_style(number)[0], label=policy, linewidth=1
        )
        if number == 0:
            load.plot(minutes, [w["qps"] for w in row["over_time"]], color="#bbbbbb", linewidth=0.8, linestyle="--")
    load.set_ylabel("requests/s (dashed)", fontsize=8)
    axis.set_zorder(load.get_zorder() + 1)
    axis.patch.set_visible(False)
    axis.set_xlabel("arrival (min)")
    axis.set_ylabel("late (%)")


def _by_rate(
    axis: Any, results: Sequence[Result], rates: Sequence[float], measure: tuple[str, str, float, str]
) -> None:
    name, part, scale, label = measure
    for number, policy in enumerate(_policies(results)):
        heights = [
            scale
            * statistics.fmean(
                row[name][part] if part else row[name]
                for row in results
                if row["policy"] == policy and row["qps"] == rate
            )
            for rate in rates
        ]
        colour, marker = _style(number)
        axis.plot(rates, heights, marker=marker, color=colour, label=policy, linewidth=1)
    axis.set_xlabel("a second")
    axis.set_ylabel(label)
    axis.legend(fontsize=8)


def _policies(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(row["policy"] for row in results))


def _style(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def _seeds(results: Sequence[Result]) -> str:
    return f"seeds {', '.join(map(str, sorted({row['seed'] for row in results})))}"


def _figure(panels: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(5.2 * panels, 3.4), squeeze=False, layout="constrained")
    return figure, axes[0]


def _save(figure: Any, title: str, file: Path) -> list[Path]:
    from matplotlib import pyplot

    figure.suptitle(title, fontsize=9)
    paths = [file.with_suffix(ending) for ending in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return paths
