"""python -m bench sim overview FILE --out STEM: draws the picture on top of docs/simulation.md.

FILE is what `study --page` writes beside its page (docs/results/stress-results.json). A group of bars for each setting,
a bar for each policy: the share of requests whose first token is in time. Nothing is simulated again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.sim.cluster import ConfigError
from bench.sim.figures import OTHER_STYLE, STYLE

SHOWN = {
    "fs": "no scheduler (fair sharing)",
    "static": "fixed order by stage",
    "mfs": "MFS",
    "nocont": "no contention (bound)",
}


def plot(data: dict[str, Any], stem: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings, what = data["settings"], data["what"]
    figure, axis = pyplot.subplots(figsize=(9, 3.4), layout="constrained")
    width = 0.8 / len(SHOWN)
    for place, (policy, label) in enumerate(SHOWN.items()):
        of_policy = [setting["policies"][policy] for setting in settings.values()]
        at = [group + (place - (len(SHOWN) - 1) / 2) * width for group in range(len(settings))]
        colour, _ = STYLE.get(policy, OTHER_STYLE)
        style: dict[str, Any] = {"color": "white", "hatch": "///"} if policy == "nocont" else {"color": colour}
        axis.bar(
            at,
            [row["attainment"] for row in of_policy],
            width,
            yerr=[row["gain_half"] or 0.0 for row in of_policy],
            label=label,
            edgecolor="black",
            linewidth=0.5,
            capsize=2,
            error_kw={"elinewidth": 0.7},
            **style,
        )
    axis.set_xticks(range(len(settings)), settings)
    axis.set_ylim(0, 105)
    axis.set_ylabel("requests in time (%)")
    seeds = what["seeds"]
    axis.set_title(
        f"Simulated, {what['requests']} requests, seeds {seeds[0]}-{seeds[-1]}; whiskers: 95 % of the difference from "
        f"the order by stage",
        fontsize=9,
    )
    figure.legend(loc="outside lower center", ncols=len(SHOWN), fontsize=8)
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    pyplot.close(figure)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim overview", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument(
        "--out",
        type=Path,
        default=Path("out/overview"),
        metavar="STEM",
        help="path of the files, without a suffix (default out/overview)",
    )
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        data = json.loads(options.file.read_text())
        plot(data, options.out)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{options.file}: not a file that `study --page` writes: {error!r}") from error
    return 0
