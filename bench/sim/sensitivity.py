"""python -m bench sim sensitivity FILE [--what k,error,...] [--plot STEM]: measures how far the findings depend on
unknown numbers.

Each row changes one thing; `static`, the policy and `nocont` run on the same seeds. A row shows points of SLO
attainment above `static` with half of the 95 % interval over the paired seeds, mean and p99 TTFT relative to `static`,
and the share of the gap to `nocont` that is closed. FILE keeps every point (JSON lines); a stopped sweep goes on from
there. --plot draws the rows; --page writes them between the page's marks, with a .json beside."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import policies, settings, study
from bench.sim.compare import Comparison, Results, compare
from bench.sim.point import Point

WHAT: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "k": [(f"K = {k}", {"fabric_classes": k}) for k in range(2, 9)],
    "e": [(f"E = {e:g}", {"policy": {"threshold_base": e}}) for e in (2.0, 8.0)],
    "u": [(f"U = {u:g}", {"policy": {"threshold_top": u}}) for u in (0.125, 1.0)],
    "drop": [(f"drop budget {b:g}", {"policy": {"drop_budget": b}}) for b in (0.0, 0.02, 0.2)],
    "class0": [
        (f"critical below {s:g} of the budget", {"policy": {"critical_laxity_share": s}}) for s in (0.0, 0.02, 0.1)
    ],
    "error": [(f"compute believed within {e:.0%}", {"belief_error": e}) for e in (0.2, 0.5)],
    "hold": [
        ("K = 8, held for ever", {"fabric_classes": 8}),
        *((f"K = 8, held for {s:g} s at most", {"fabric_classes": 8, "max_hold_s": s}) for s in (0.25, 1.0)),
    ],
    "reads": [("K = 8, reuse is read", {"fabric_classes": 8, "reads": True})],
    "delay": [(f"coordinator {d * 1e3:g} ms late", {"coordinator_delay_s": d}) for d in (0.001, 0.01, 0.05)],
}
BEGIN, END = "<!-- begin of generated sensitivities -->", "<!-- end of generated sensitivities -->"


def row(results: Results, base: Point, policy: str, seeds: range) -> tuple[Comparison, Comparison]:
    """Returns the gains of the policy and of `nocont` over `static` at this point."""
    # `static` and `nocont` have no parameters of the policy: their points are shared between rows.
    plain = msgspec.structs.replace(base.config, policy={}, belief_error=0.0, coordinator_delay_s=0.0)
    static = results.of_seeds(msgspec.structs.replace(base, config=plain), "static", seeds)
    free = msgspec.structs.replace(plain, fabric_classes=0, max_hold_s=None, reads=False)
    bound = results.of_seeds(msgspec.structs.replace(base, config=free), "nocont", seeds)
    return compare(results.of_seeds(base, policy, seeds), static), compare(bound, static)


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "panels": [{"title", "rows": [{"label", "figures", "closed"}]}]}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen: list[tuple[str, dict[str, Any]]] = [("defaults", {})] + [
        change for name in options.what.split(",") if name != "none" for change in WHAT[name]
    ]
    panels = []
    gpus: dict[str, None] = {}
    for setting in settings.named(options.setting):
        base = settings.base_of(setting, options.model, options.workload, options.requests)
        top = results.knee(base, study.knee_name(setting, base), settings.SETTINGS[setting].knee_seeds)
        title = f"{base.config.model}, {base.workload}, {setting}"
        gpus[str(base.config.gpus)] = None
        print(f"{title}: {options.load:g} of {top:.3f} requests/s per GPU, {options.policy} against static")
        rows = []
        for label, change in chosen:
            config = msgspec.structs.replace(base.config, **change)
            point = msgspec.structs.replace(base, config=config, rate=round(options.load * top, 4))
            figures, gap = row(results, point, options.policy, seeds)
            share = figures.share_of(gap)
            rows.append({"label": label, "figures": msgspec.to_builtins(figures), "closed": share})
            print(f"  {label:34} {_text(figures, share)}", flush=True)
        panels.append({"title": title, "rows": rows})
    what = {
        "simulated": True, "policy": options.policy, "load": options.load, "requests": options.requests,
        "warmup": options.requests // 3, "gpus": ", ".join(gpus), "seeds": list(seeds),
        "revisions": sorted({r["revision"] for r in results.rows.values()}),
    }  # fmt: skip
    return {"what": what, "panels": panels}


def _text(figures: Comparison, share: float | None) -> str:
    closed = "-" if share is None else f"{share:.0%}"
    spread = "" if figures.gain_half is None else f" ± {figures.gain_half:3.1f}"
    return f"{figures.gain:+6.1f}{spread}  x{figures.ttft_ratio:4.2f}  x{figures.p99_ratio:4.2f}  {closed:>5}"


def table(data: dict[str, Any]) -> str:
    """Formats the rows as a page's text: a column for each setting."""
    what, panels = data["what"], data["panels"]
    lines = [
        f"Simulated, not measured. `{what['policy']}` against `static`: points of attainment with half of the "
        "95 % interval, mean and p99 TTFT relative to it, share of the gap to `nocont` that is closed. "
        f"{what['gpus']} GPUs, {what['warmup']} + {what['requests']} "
        f"requests, seeds {what['seeds'][0]}-{what['seeds'][-1]}, load {what['load']:g} of the knee; rules of commit "
        f"{', '.join(what['revisions'])}.",
        "",
        "| | " + " | ".join(panel["title"] for panel in panels) + " |",
        "|---" * (len(panels) + 1) + "|",
    ]
    for parts in zip(*(panel["rows"] for panel in panels), strict=True):
        cells = [" ".join(_text(msgspec.convert(p["figures"], Comparison), p["closed"]).split()) for p in parts]
        lines.append(f"| {parts[0]['label']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(data: dict[str, Any], stem: Path) -> None:
    """Plots a panel for each setting: the gain of each row with its 95 % interval, and that of the defaults as a
    line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = data["panels"]
    rows = len(panels[0]["rows"])
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(1.5 + 2.6 * len(panels), 0.8 + 0.19 * rows), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for axis, panel in zip(axes[0], panels, strict=True):
        gains = [r["figures"]["gain"] for r in panel["rows"]]
        errors = [r["figures"]["gain_half"] or 0.0 for r in panel["rows"]]
        places = list(range(rows))[::-1]
        axis.errorbar(gains, places, xerr=errors, fmt="o", color="#0072B2", markersize=4, capsize=2)
        axis.axvline(gains[0], color="#D55E00", linewidth=0.8, linestyle="--")
        axis.axvline(0.0, color="#000000", linewidth=0.8)
        axis.set_yticks(places, [r["label"] for r in panel["rows"]], fontsize=7)
        axis.set_title(panel["title"], fontsize=8)
        axis.set_xlabel("points above static (simulated)", fontsize=7)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{ending}"), dpi=110)
    pyplot.close(figure)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim sensitivity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", type=Path)
    p.add_argument("--what", default=",".join(WHAT), help=f"of {', '.join(WHAT)}; none: the defaults alone")
    p.add_argument("--policy", default="mfs")
    p.add_argument("--model", default="dbrx")
    p.add_argument("--workload", default="qwen-a")
    p.add_argument("--setting", default="hot,fan-in,egress", help=f"of {settings.NAMES}")
    p.add_argument("--load", type=float, default=1.0, help="load relative to the rate at which nocont meets 90 %%")
    p.add_argument("--first-seed", type=int, default=11, help="first seed (default 11: seeds below chose the defaults)")
    p.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    p.add_argument("--requests", type=int, default=400, help="measured requests, after a third as many (default 400)")
    p.add_argument("--plot", type=Path, metavar="STEM", help="draw to STEM.png and STEM.svg")
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose rows to write again, with a .json beside")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    study.check_names(options.what, [*WHAT, "none"], "--what")
    settings.named(options.setting)
    policies.find(options.policy)
    data = sweep(options)
    if options.plot:
        plot(data, options.plot)
    if options.page:
        study.publish(options.page, table(data), data, BEGIN, END)
    return 0
