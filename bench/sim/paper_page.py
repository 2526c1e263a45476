"""python -m bench sim paper FIGURES --page docs/results/paper.md: writes the page's tables of the paper's figures from
the points that are recorded beside the figures. It runs nothing; `python -m bench sim figure` does.

FIGURES is the folder that has figure-9.json, figure-10-quick.json and so on. Figures 9, 13 and 14 fill one table, the
quick ones of 10 to 12 another, both at the load at which `nocont` meets 90 % of the deadlines, paired by seed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.sim import study
from bench.sim.cluster import ConfigError
from bench.sim.compare import Comparison, compare
from bench.sim.profile import MODELS

OTHERS = ("fs", "sjf", "edf", "karuna", "static", "paper", "nocont")
QUICK = ("static", "fs", "sjf", "edf", "karuna", "paper", "nocont")
FULL_MARKS = ("<!-- begin of generated table of figures 9, 13 and 14 -->", "<!-- end of it -->")
QUICK_MARKS = ("<!-- begin of generated table of quick runs -->", "<!-- end of the quick runs -->")
TITLES = {"mixtral-8x22b": "Mixtral-8x22B", "dbrx": "DBRX", "qwen3-coder": "Qwen3-Coder", "grok-2": "Grok-2"}
WORKLOADS = {"10": "QwenA", "11": "QwenB"}
Results = dict[str, list[dict[str, Any]]]


def panels(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / f"figure-{name}.json"
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not the file of a figure; make it with python -m bench sim figure") from error
    return found


def at_knee(panel: dict[str, Any]) -> Results:
    """Returns the panel's results at load 1, by policy, in the order of their seeds."""
    rate = min(panel["rates"], key=lambda rate: abs(float(rate) - float(panel["knee"])))
    results: Results = {}
    for one in sorted(panel["results"], key=lambda one: int(one["seed"])):
        if one["rate"] == rate:
            results.setdefault(one["policy"], []).append(one)
    return results


def cell(found: Comparison, more: str = "") -> str:
    return f"{found.gain:+.1f}±{found.gain_half:.1f}{more} x{found.ttft_ratio:.2f} x{found.p99_ratio:.2f}"


def full_cell(results: Results, other: str) -> str:
    found = compare(results["mfs"], results[other])
    met = found.attainment / (found.attainment - found.gain)
    return f"{cell(found, f' ({met:.2f}x)')} x{found.cct_ratio:.2f}"


def contention_cell(results: Results) -> str:
    found = compare(results["fs"], results["nocont"])
    return f"x{found.ttft_ratio:.1f} x{found.p99_ratio:.1f} x{found.cct_ratio:.2f}"


def line(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | {' | '.join(cells)} |"


def full_table(folder: Path) -> str:
    """Figures 9, 13 and 14: `mfs` against each of the others."""
    columns: dict[str, Results] = {}
    for number in ("9", "13", "14"):
        for panel in panels(folder, number):
            of = f"{panel['title']} " if number == "9" else f"{TITLES.get(panel['title'], panel['title'])} "
            columns[f"figure {number}, {of}({panel['rates'][0]:.2f} req/s/GPU)"] = at_knee(panel)
    own = [compare(of["mfs"], of["mfs"]) for of in columns.values()]
    early = [compare(of["mfs"], of["fs"]).earliness_ratio for of in columns.values()]
    lines = [
        line("`mfs` against", list(columns)),
        "|---" * (len(columns) + 1) + "|",
        line("`mfs`: % met, mean and p99 TTFT", [study.plain(one) for one in own]),
        *(line(f"`{other}`", [full_cell(of, other) for of in columns.values()]) for other in OTHERS),
        line("`fs` against `nocont`: mean and p99 TTFT, CCT", [contention_cell(of) for of in columns.values()]),
        line("`mfs` against `fs`: earliness", [f"x{ratio:.2f}" for ratio in early]),
    ]
    return "\n".join(lines)


def quick_table(folder: Path) -> str:
    """The quick runs of figures 10 to 12: a row for each panel."""
    lines = [
        line("figure", ["`mfs`: % met, mean and p99 TTFT", *(f"`{other}`" for other in QUICK)]),
        "|---" * (len(QUICK) + 2) + "|",
    ]
    for number in ("10", "11", "12"):
        for panel in panels(folder, f"{number}-quick"):
            title = panel["title"]
            named = f"{TITLES.get(title, title)}, {WORKLOADS[number]}" if title in MODELS else f"Llama3-8B, {title}"
            results = at_knee(panel)
            own = study.plain(compare(results["mfs"], results["mfs"]))
            cells = [cell(compare(results["mfs"], results[other])) for other in QUICK]
            lines.append(line(f"{number}: {named}", [own, *cells]))
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("figures", type=Path, metavar="FIGURES")
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose tables to write again")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    for text, marks in ((full_table(options.figures), FULL_MARKS), (quick_table(options.figures), QUICK_MARKS)):
        if options.page:
            study.write(options.page, text, *marks)
        else:
            print(text, end="\n\n")
    return 0
