"""python -m bench sim bypass FILE [--page docs/results/bypass.md]: measures what reading the counters of ports is
worth, and how often they have to be read.

A share of every sending NIC is taken by load that no daemon orders, in bursts. `mfs` runs with eight classes and the
production queue, without readings of the counters, with them at once and every 10 and 100 ms; `static` and `dscp-size`
(marks, no daemon) meet the same load. Seeds are paired. FILE keeps every point; --page writes the table between the
page's marks and the figures as JSON beside it."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from bench.sim import settings, study
from bench.sim.compare import Comparison, Results, compare

READS: tuple[tuple[str, float | None], ...] = (
    ("`mfs`, read at once", 0.0),
    ("`mfs`, read every 10 ms", 0.01),
    ("`mfs`, read every 100 ms", 0.1),
)
MARKS = ("static", "dscp-size")
NONE = "`mfs`, not read"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "panels": [{"title", "rows": {label: figures against the first row}}]}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    panels = []
    for setting in settings.named(options.setting):
        base = settings.base_of(setting, "dbrx", "qwen-a", options.requests, 8)
        top = results.knee(base, study.knee_name(setting, base), settings.SETTINGS[setting].knee_seeds)
        for burst_ms in options.burst_ms.split(","):
            load = {"bypass_share": options.share, "bypass_burst_s": float(burst_ms) / 1e3}
            config = msgspec.structs.replace(base.config, **load)
            point = msgspec.structs.replace(base, config=config, rate=round(options.load * top, 4))
            unread = results.of_seeds(point, "mfs", seeds)
            rows = {NONE: compare(unread, unread)}
            for label, read_s in READS:
                read = msgspec.structs.replace(point, config=msgspec.structs.replace(config, bypass_read_s=read_s))
                rows[label] = compare(results.of_seeds(read, "mfs", seeds), unread)
            for name in MARKS:
                rows[f"`{name}`"] = compare(results.of_seeds(point, name, seeds), unread)
            title = f"{setting}, bursts of {burst_ms} ms"
            panels.append({"title": title, "rows": msgspec.to_builtins(rows)})
            print(title, *(f"  {label}: {study.cell(one)}" for label, one in rows.items()), sep="\n", flush=True)
    what = {
        "simulated": True, "share": options.share, "load": options.load, "requests": options.requests,
        "warmup": options.requests // 3, "gpus": settings.GPUS, "seeds": list(seeds),
        "revisions": sorted({r["revision"] for r in results.rows.values()}),
    }  # fmt: skip
    return {"what": what, "panels": panels}


def table(data: dict[str, Any]) -> str:
    what, panels = data["what"], data["panels"]
    lines = [
        f"Simulated, not measured. DBRX, QwenA, {what['gpus']} GPUs, {what['warmup']} + {what['requests']} requests, "
        f"seeds {what['seeds'][0]}-{what['seeds'][-1]} (paired), load {what['load']:g} of the knee without bypass; it "
        f"takes {100 * what['share']:g} % of every sending NIC; eight classes; rules of commit "
        f"{', '.join(what['revisions'])}. Cells: points of requests in time against {NONE} with half of the 95 % "
        "interval, mean TTFT and p99 TTFT relative to it.",
        "",
        "| | " + " | ".join(panel["title"] for panel in panels) + " |",
        "|---" * (len(panels) + 1) + "|",
    ]
    for label in panels[0]["rows"]:
        figures = [msgspec.convert(panel["rows"][label], Comparison) for panel in panels]
        cells = [plain(f) if label == NONE else study.cell(f) for f in figures]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plain(figure: Comparison) -> str:
    return f"{figure.attainment:.1f} % met, {1e3 * figure.ttft_s:.0f} ms, {1e3 * figure.p99_s:.0f} ms"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim bypass", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    study.seeded_options(p, "fan-in,egress,bursts", first_seed=761)
    p.add_argument("--share", type=float, default=0.3, help="share of every sending NIC that bypasses (default 0.3)")
    p.add_argument(
        "--burst-ms", default="50,1000", help="mean lengths of its bursts, separated by commas (default 50,1000)"
    )
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    study.check_seeded(options)
    data = run(options)
    if options.page:
        study.publish(options.page, table(data), data)
    return 0
