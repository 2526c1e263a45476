"""One screen: the modes' figures, and what crossed the contended links over time, by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.testbed.hosts import PortSample
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, change, difference, over_seeds
from bench.testbed.modes import CLASSES, Mode
from bench.testbed.scale import Scale

WATCHED = ("decode0", "unit0r0")
"""Where KV of both units meets, and where reused KV meets collectives."""
TITLES = {"decode0": "into a decode worker (stage 3)", "unit0r0": "into a prefill rank (stages 1 and 2)"}
# Okabe-Ito: distinct for colour-blind readers, too. Class 0 first.
COLOURS = ["#d55e00", "#0072b2", "#56b4e9", "#009e73", "#f0e442", "#e69f00", "#cc79a7", "#999999"]
HEIGHTS = " ▁▂▃▄▅▆▇█"


def line(result: Result) -> str:
    """Formats a leg that has just ended."""
    bypassed, unknown = result["permits"].get("bypassed", 0), result.get("placed", {}).get("unknown", 0)
    return (
        f"  {result['mode']:11} seed {result['seed']}: {result['requests']} requests, "
        f"TTFT {result['ttft_s']['mean'] * 1e3:.0f} ms, "
        f"{result['slo_attainment']:.0%} in time, CCT {result['cct_s']['mean'] * 1e3:.1f} ms"
        + (f"; {bypassed} messages went without a permit" if bypassed else "")
        + (f"; {unknown} requests were placed without knowing what ports owe" if unknown else "")
    )


def _table(title: str, columns: Sequence[str]) -> Table:
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        shown.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
    return shown


WIDE = 96
"""Columns of a terminal from which all figures fit beside the longest name of a mode."""
COLUMNS = (
    "mode",
    "TTFT\nms",
    "p99\nms",
    "change\n%",
    "in time\n%",
    "change\npoints",
    "CCT\nms",
    "change\n%",
    "MFS CPU\n% of 1 core",
)
"""The last is processor time of all daemons and the coordinator. It is not related to the workers' time: with a
hundredth of a cluster's bytes they use almost none, while MFS works for each message."""


def changes_against(modes: Sequence[Mode]) -> str:
    return f"± 95 % interval; changes against {modes[0].name}, seed by seed"


def cells(results: Sequence[Result], mode: Mode, base: str) -> list[str]:
    """Returns a mode's figures, as COLUMNS names them. Mean over the seeds ± half of its 95 % interval; changes against
    mode `base`, seed by seed."""
    name, first = mode.name, mode.name == base
    cores = over_seeds(results, name, "mfs_cpu_s").mean / (over_seeds(results, name, "wall_s").mean or 1)
    return [
        name,
        over_seeds(results, name, "ttft_s.mean").show(0, 1e3),
        over_seeds(results, name, "ttft_s.p99").show(0, 1e3),
        "" if first else change(results, name, base, "ttft_s.mean").show(0, 100, sign=True),
        over_seeds(results, name, "slo_attainment").show(0, 100),
        "" if first else difference(results, name, base, "slo_attainment").show(0, 100, sign=True),
        over_seeds(results, name, "cct_s.mean").show(1, 1e3),
        "" if first else change(results, name, base, "cct_s.mean").show(0, 100, sign=True),
        f"{cores * 100:.0f}" if mode.scheduled else "",
    ]


def table(console: Console, results: Sequence[Result], modes: Sequence[Mode]) -> None:
    kept = [at for at, column in enumerate(COLUMNS) if console.width >= WIDE or not column.startswith("p99")]
    shown = _table(changes_against(modes), [COLUMNS[at] for at in kept])
    for mode in modes:
        row = cells(results, mode, modes[0].name)
        shown.add_row(*(row[at] for at in kept), style="bold" if mode.name.startswith("mfs") else None)
    console.print(shown)


def cross_check(console: Console, results: Sequence[Result], expected: Sequence[Result], modes: Sequence[Mode]) -> None:
    """Prints measured beside simulated figures, means over the seeds, and the difference."""
    columns = ["mode"]
    for name in ("TTFT\nms", "in time\n%", "CCT\nms"):
        columns += [name, "simu-\nlated", "apart"]
    shown = _table("Testbed beside simulator, means over the seeds", columns)
    for mode in modes:
        cells = [mode.name]
        for figure, factor, digits in (("ttft_s.mean", 1e3, 0), ("slo_attainment", 100, 0), ("cct_s.mean", 1e3, 1)):
            here, there = over_seeds(results, mode.name, figure).mean, over_seeds(expected, mode.name, figure).mean
            apart = f"{(here - there) * 100:+.0f}" if factor == 100 else f"{here / there - 1:+.0%}"
            cells += [f"{here * factor:.{digits}f}", f"{there * factor:.{digits}f}", apart]
        shown.add_row(*cells)
    console.print(shown)


def shares(samples: Sequence[PortSample], scale: Scale) -> list[tuple[float, list[float]]]:
    """Returns, between two samples each, the seconds since the first and the share of the link that each class had."""
    found = []
    for before, after in pairwise(samples):
        capacity = scale.link_bits_per_s / 8 * (after.at_ns - before.at_ns) / 1e9
        rates = [(b - a) / capacity for a, b in zip(before.bytes_by_class, after.bytes_by_class, strict=True)]
        found.append(((after.at_ns - samples[0].at_ns) / 1e9, rates))
    return found


def bars(console: Console, legs: Sequence[LegResult], scale: Scale) -> None:
    """Prints a row for each class that was used; the height is the share of the link."""
    width = max(20, min(100, console.width - 22))
    for leg in legs:
        for host, samples in leg.samples.items():
            points = shares(samples, scale)
            if not points:
                continue
            console.print(f"[bold]{leg.mode}[/bold], {TITLES[host]}, {points[-1][0]:.0f} s", highlight=False)
            for k in range(CLASSES):
                series = _resample([rates[k] for _, rates in points], width)
                if max(series) < 0.01:
                    continue
                drawn = "".join(HEIGHTS[min(8, max(0, round(v * 8)))] for v in series)
                console.print(f"  class {k} [{COLOURS[k]}]{drawn}[/{COLOURS[k]}]", highlight=False)


def _resample(values: Sequence[float], count: int) -> list[float]:
    """Returns means over `count` equal stretches, or all values if there are fewer."""
    count = min(count, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def picture(path: Path, legs: Sequence[LegResult], scale: Scale, captions: Mapping[str, str] | None = None) -> None:
    """Draws every mode's contended links over time, classes stacked, as a PNG. `captions`: text beside each mode."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    rows, columns = len(legs), len(WATCHED)
    figure, axes = plt.subplots(
        rows, columns, figsize=(11, 2.05 * rows + 0.8), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    used: set[int] = set()
    for row, leg in zip(axes, legs, strict=True):
        for axis, host in zip(row, WATCHED, strict=True):
            points = shares(leg.samples.get(host, []), scale)
            times = [at for at, _ in points]
            classes = [k for k in range(CLASSES) if any(rates[k] > 0.01 for _, rates in points)]
            used.update(classes)
            stacked = [[rates[k] * scale.link_bits_per_s / 1e6 for _, rates in points] for k in classes]
            if stacked:
                axis.stackplot(times, stacked, colors=[COLOURS[k] for k in classes], step="pre")
            axis.axhline(scale.link_bits_per_s / 1e6, color="black", linewidth=0.8, linestyle="--")
            axis.set_title(f"{leg.mode}: {TITLES[host]}", loc="left", fontsize=9)
        row[0].set_ylabel("Mbit/s")
        if captions and leg.mode in captions:
            above = f"{captions[leg.mode]}\n{leg.mode}: {TITLES[WATCHED[0]]}"
            row[0].set_title(above, loc="left", fontsize=9, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    handles = [Patch(color=COLOURS[k]) for k in sorted(used)]
    figure.legend(handles, [f"class {k}" for k in sorted(used)], loc="outside lower center", ncols=8, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
