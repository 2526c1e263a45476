"""python -m bench sim study FILE [--page docs/results/stress.md]: runs every policy over the settings that make or
break contention.

Load is given relative to the rate at which `nocont` meets 90 % of the deadlines in the same setting; seeds are paired.
FILE keeps every point (JSON lines); a stopped study goes on from there. --page writes the table between the page's
marks, and the same figures as JSON beside it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import policies
from bench.sim.capacity import Capacity, carried_against
from bench.sim.cluster import FETCH, Config, ConfigError
from bench.sim.compare import Comparison, Results, compare
from bench.sim.point import Point, under
from bench.sim.settings import GROUPS, NAMES, SETTINGS, base_of, load_of, named

POLICIES = (
    "static,alone,nocont,fs,sjf,edf,karuna,sincronia,varys,dcoflow,llf,paper-defaults,paper,dscp-size,mfs,"
    "mfs-rli,mfs-red,mfs-prune,mfs-class0,mfs-rank,mfs-collective-first"
)
REFERENCES = ("static", "alone", "nocont")
FOUR = ("fs", "sjf", "edf", "karuna")  # what the paper compares with
WITHOUT_STATIC = (
    "Without static marking: the paper compares with none; `mfs` beside a fixed order is in the table above."
)
WITHOUT_MARKS = (
    "Without static marking: nothing here does without an exact order of links or a queue at the host; `--policy "
    "dscp-size` has marks by size, as [eight classes](classes.md) has them."
)
BEGIN, END = "<!-- begin of generated table -->", "<!-- end of generated table -->"


def knee_name(setting: str, base: Point) -> str:
    recorded = "" if base.arrivals == "poisson" else " recorded times"
    return f"{base.config.model} {base.workload} {setting} {base.requests} {base.config.fetch}{recorded}"


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing. Returns {"what", "seeds", "settings": {name: {"rate", "policies": {name: figures}}}}."""
    results = Results(options.file)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    wanted = list(dict.fromkeys([options.against, *REFERENCES, *options.policy.split(",")]))
    carriers, tried = carried_of(options, wanted, seeds)
    settings: dict[str, Any] = {}
    revisions: dict[str, None] = {}
    for setting in named(options.setting):
        base = base_of(
            setting, options.model, options.workload, options.requests, options.fabric_classes, options.fetch
        )
        if options.trace:
            base = msgspec.structs.replace(base, workload=str(options.trace), arrivals=options.arrivals)
        top = results.knee(base, knee_name(setting, base), SETTINGS[setting].knee_seeds)
        if not top:
            print(f"{setting}: left out, no rate meets 90 % of its deadlines even without contention", file=sys.stderr)
            continue
        load = options.load or load_of(setting)
        point = msgspec.structs.replace(base, rate=round(load * top, 4))
        rows: dict[str, list[dict[str, Any]]] = {}
        for name in wanted:
            rows[name] = results.of_seeds(point, name, seeds)
            revisions |= dict.fromkeys(row["revision"] for row in rows[name])
            figure = compare(rows[name], rows[options.against])
            print(
                f"{setting} {name}: {figure.attainment:.1f} % met ({figure.gain:+.1f}), mean TTFT "
                f"{1e3 * figure.ttft_s:.0f} ms (x{figure.ttft_ratio:.2f}), p99 {1e3 * figure.p99_s:.0f} ms "
                f"(x{figure.p99_ratio:.2f})",
                file=sys.stderr,
                flush=True,
            )
        figures = {name: compare(rows[name], rows[options.against]) for name in wanted}
        settings[setting] = {
            "load": load, "rate": point.rate, "model": base.config.model, "workload": Path(base.workload).name,
            "gpus": base.config.gpus, "policies": msgspec.to_builtins(figures),
        }  # fmt: skip
        if carriers:
            points = {name: under(base, name) for name in carriers}
            found = carried_against(results, points, tried, top, options.against)
            settings[setting]["capacity"] = msgspec.to_builtins(found)
    if not settings:
        raise ConfigError(
            f"--setting {options.setting}: no rate meets 90 % of the deadlines in any of them; use another setting"
        )
    return {
        "what": {
            "simulated": True, "requests": options.requests, "warmup": options.requests // 3,
            "fabric_classes": options.fabric_classes, "fetch": options.fetch, "seeds": list(seeds),
            "against": options.against, "revisions": list(revisions), "capacity_seeds": list(tried),
        },
        "settings": settings,
    }  # fmt: skip


def carried_of(
    options: argparse.Namespace, wanted: Sequence[str], seeds: Sequence[int]
) -> tuple[list[str], Sequence[int]]:
    """Returns whose capacity is found, and on which seeds; none without --capacity."""
    if not options.capacity:
        return [], ()
    named_ = options.capacity_policy.split(",") if options.capacity_policy else wanted
    return list(dict.fromkeys([options.against, *named_])), seeds[: options.capacity_seeds or len(seeds)]


def table(data: dict[str, Any]) -> str:
    """Formats the study as a page's text: a row for each policy, a column for each setting."""
    what, settings = data["what"], data["settings"]
    figures = {
        setting: {name: msgspec.convert(f, Comparison) for name, f in content["policies"].items()}
        for setting, content in settings.items()
    }
    carried = {
        setting: {name: msgspec.convert(c, Capacity) for name, c in content["capacity"].items()}
        for setting, content in settings.items()
        if "capacity" in content
    }
    against = what["against"]
    first = next(iter(figures.values()))
    order = f"{what['fabric_classes']} classes" if what["fabric_classes"] else "exact order on every link"
    loads = ", ".join(dict.fromkeys(f"{s['load']:g}" for s in settings.values()))
    served = dict.fromkeys(f"{s['model']}, {s['workload']}, {s['gpus']} GPUs" for s in settings.values())
    lines = [
        f"Simulated, not measured. {'; '.join(served)}; {order}, reuse asked for {FETCH[what['fetch']]}, "
        f"{what['warmup']} + {what['requests']} requests, seeds {what['seeds'][0]}-{what['seeds'][-1]} (paired), load "
        f"{loads} of the knee; rules of commit {', '.join(what['revisions'])}. Cells: points of attainment "
        f"against `{against}` with half of the 95 % interval over seeds, mean TTFT and p99 TTFT relative to it"
        + (f"; {cap_words(what, against)}." if carried else "."),
        "",
        "| | " + " | ".join(settings) + " |",
        "|---" * (len(settings) + 1) + "|",
        "| load of the knee | " + " | ".join(f"{s['load']:g}" for s in settings.values()) + " |",
        f"| `{against}`: % met, mean and p99 TTFT{', cap (of the knee)' if carried else ''} | "
        + " | ".join(plain(f[against], carried[s][against] if carried else None) for s, f in figures.items())
        + " |",
    ]
    for name in first:
        if name != against:
            cells = [cell(figures[s][name], carried[s].get(name) if carried else None) for s in settings]
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    if "mfs" in first and against == "static":
        for bound in ("nocont", "alone"):
            shares = [figures[s]["mfs"].share_of(figures[s][bound]) for s in settings]
            cells = ["-" if share is None else f"{share:.0%}" for share in shares]
            lines.append(f"| `mfs`: share of the gap to `{bound}` | " + " | ".join(cells) + " |")
    if "mfs" in first and not any(name.startswith("dscp") for name in first):
        lines += ["", WITHOUT_MARKS]
    if "mfs" in first and against == "static" and {*FOUR, "paper"} <= {*first}:
        lines += ["", *_claims(figures)]
    return "\n".join(lines)


def cap_words(what: dict[str, Any], against: str) -> str:
    """Explains `cap` in a cell, and on which seeds it was found."""
    tried = what.get("capacity_seeds") or what["seeds"]
    return (
        f"cap: the load up to which 90 % are met, relative to `{against}`, for which it is relative to the knee, "
        f"{seed_words(tried)}"
    )


def seed_words(tried: Sequence[int]) -> str:
    return f"seeds {tried[0]}-{tried[-1]}" if len(tried) > 1 else f"seed {tried[0]} alone"


def capacity_lines(carried: dict[str, dict[str, Any]], against: Collection[str]) -> Iterator[str]:
    """Yields the carried loads: a row for each name, a column for each setting; without a ratio for the row that others
    are compared with."""
    yield "| | " + " | ".join(carried) + " |"
    yield "|---" * (len(carried) + 1) + "|"
    for name in next(iter(carried.values())):
        cells = [capacity_cell(msgspec.convert(of[name], Capacity), name in against) for of in carried.values()]
        yield f"| {name} | " + " | ".join(cells) + " |"


def capacity_cell(found: Capacity, itself: bool) -> str:
    text = f"{found.load:.2f}"
    if itself or not found.ratio:  # there is no ratio if the other one meets 90 % at no load
        return text
    return f"{text} (x{found.ratio:.2f}" + ("" if found.ratio_half is None else f"±{found.ratio_half:.2f}") + ")"


def _claims(figures: dict[str, dict[str, Comparison]]) -> list[str]:
    """Formats the quantities of the paper's claims, as ratios of means over the same seeds."""

    def ratios(of: str, to: str, field: str) -> list[str]:
        return [f"{getattr(f[of], field) / getattr(f[to], field):.2f}" for f in figures.values()]

    best = [f["mfs"].attainment / max(f[name].attainment for name in FOUR) for f in figures.values()]
    rows = {
        "mean TTFT, `fs` / `nocont`": ratios("fs", "nocont", "ttft_ratio"),
        "mean CCT, `fs` / `nocont`": ratios("fs", "nocont", "cct_ratio"),
        "attainment, `mfs` / `fs`": ratios("mfs", "fs", "attainment"),
        "attainment, `mfs` / best of FS, SJF, EDF, Karuna": [f"{ratio:.2f}" for ratio in best],
        "attainment, `mfs` / `karuna`": ratios("mfs", "karuna", "attainment"),
        "attainment, `paper` / `karuna`": ratios("paper", "karuna", "attainment"),
        **{f"mean CCT, `mfs` / `{name}`": ratios("mfs", name, "cct_ratio") for name in FOUR},
        "mean non-negative earliness, `mfs` / `fs`": ratios("mfs", "fs", "earliness_ratio"),
    }
    head = "| ratio | " + " | ".join(figures) + " |"
    body = [f"| {label} | " + " | ".join(cells) + " |" for label, cells in rows.items()]
    return [head, "|---" * (len(figures) + 1) + "|", *body, "", WITHOUT_STATIC]


def plain(figure: Comparison, carried: Capacity | None = None) -> str:
    """Formats a cell of the policy that others are compared with."""
    text = f"{figure.attainment:.1f}, {1e3 * figure.ttft_s:.0f} ms, {1e3 * figure.p99_s:.0f} ms"
    return text + (f", cap {carried.load:.2f}" if carried else "")


def cell(figure: Comparison, carried: Capacity | None = None) -> str:
    def spread(half: float | None, digits: int) -> str:
        return "" if half is None else f"±{half:.{digits}f}"

    text = f"{figure.gain:+.1f}{spread(figure.gain_half, 1)} x{figure.ttft_ratio:.2f} x{figure.p99_ratio:.2f}"
    if carried is None:
        return text
    if not carried.ratio:  # the other one meets 90 % at no load
        return f"{text} cap {carried.load:.2f} of the knee"
    return f"{text} cap x{carried.ratio:.2f}{spread(carried.ratio_half, 2)}"


def write(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Writes the text between the page's two marks."""
    before, first, rest = page.read_text().partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ConfigError(f"--page {page}: lacks the lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def publish(
    page: Path, text: str, data: dict[str, Any], begin: str = BEGIN, end: str = END, name: str | None = None
) -> None:
    """Writes the text between the page's two marks, and the figures as JSON beside it. name: of the figures of one of
    several tables; None: the page's."""
    write(page, text, begin, end)
    page.with_name(f"{name or page.stem}-results.json").write_text(json.dumps(data, indent=1) + "\n")


def published(page: Path) -> dict[str, Any]:
    """Returns the figures that the page was last written with; empty if it has none."""
    figures = page.with_name(f"{page.stem}-results.json")
    found: dict[str, Any] = json.loads(figures.read_text()) if figures.exists() else {}
    return found


def seeded_options(
    p: argparse.ArgumentParser, setting: str, first_seed: int, load: float = 0.8, seeds: int = 6
) -> None:
    """Adds the options of studies at one load, on seeds that chose nothing."""
    p.add_argument("file", type=Path)
    p.add_argument("--setting", default=setting, help=f"of {NAMES}")
    p.add_argument(
        "--load",
        type=float,
        default=load,
        help=f"load relative to the rate at which nocont meets 90 %% (default {load:g})",
    )
    p.add_argument(
        "--first-seed", type=int, default=first_seed, help=f"first seed (default {first_seed}: earlier seeds chose)"
    )
    p.add_argument("--seeds", type=int, default=seeds, help=f"number of seeds (default {seeds})")
    p.add_argument("--requests", type=int, default=300, help="measured requests, after a third as many (default 300)")
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose table to write again, with a .json beside")


def check_seeded(options: argparse.Namespace) -> None:
    """Raises ConfigError for an invalid setting or number of seeds."""
    named(options.setting)
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: use at least 1")


def capacity_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--capacity-policy", metavar="A,B", help="also find the load up to which these policies meet 90 %%")
    p.add_argument(
        "--capacity-seeds",
        type=int,
        metavar="N",
        help="number of seeds for capacities, from the first on (default all)",
    )


def check_capacity_seeds(options: argparse.Namespace) -> None:
    """Raises ConfigError for capacities on seeds that are not run."""
    if options.capacity_seeds is not None and not 1 <= options.capacity_seeds <= options.seeds:
        raise ConfigError(f"--capacity-seeds {options.capacity_seeds}: use 1 to {options.seeds}, the seeds that run")


def check_capacity(options: argparse.Namespace) -> None:
    """Raises ConfigError for capacities of what is not run."""
    check_capacity_seeds(options)
    if options.capacity_policy:
        check_names(
            options.capacity_policy, [options.against, *REFERENCES, *options.policy.split(",")], "--capacity-policy"
        )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument("--first-seed", type=int, default=11, help="first seed (default 11: seeds below chose the defaults)")
    p.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    p.add_argument(
        "--policy",
        default=POLICIES,
        metavar="A,B",
        help="mfs+fit: policy mfs, and units that form batches by --scheduler fit of python -m bench sim",
    )
    p.add_argument(
        "--against", default="static", metavar="A", help="policy with which the others are compared (default static)"
    )
    p.add_argument("--model", default="dbrx", help="of settings that name none of their own (default dbrx)")
    p.add_argument("--workload", default="qwen-a", help="of settings that name none of their own (default qwen-a)")
    p.add_argument(
        "--setting",
        default="stress",
        metavar="A,B",
        help=f"names, or groups of them ({', '.join(GROUPS)}; default stress), of {NAMES}",
    )
    p.add_argument("--trace", type=Path, metavar="FILE", help="recorded requests instead of the settings' workloads")
    p.add_argument(
        "--arrivals",
        default="poisson",
        choices=("poisson", "trace"),
        help="arrivals; trace: recorded times, stretched to the rate",
    )
    p.add_argument(
        "--load",
        type=float,
        help="load relative to the knee (default 1, or the load at which `choose` examined the setting)",
    )
    p.add_argument("--requests", type=int, default=400, help="measured requests, after a third as many (default 400)")
    p.add_argument(
        "--capacity",
        action="store_true",
        help="also find the load up to which each policy meets 90 %% (six more runs of each)",
    )
    p.add_argument("--capacity-policy", metavar="A,B", help="with --capacity: policies (default all that run)")
    p.add_argument(
        "--capacity-seeds",
        type=int,
        metavar="N",
        help="with --capacity: number of seeds, from the first on (default all)",
    )
    p.add_argument("--fabric-classes", type=int, default=0, metavar="K")
    p.add_argument("--fetch", default="loaded", choices=FETCH, help="when units ask for reused KV (default loaded)")
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose table to write again, with a .json beside")
    return p


def check_names(given: str, known: Sequence[str], option: str) -> None:
    unknown = sorted({*given.split(",")} - {*known})
    if unknown:
        raise ConfigError(f"{option} {','.join(unknown)}: use {', '.join(known)}")


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    named(options.setting)
    for name in [options.against, *options.policy.split(",")]:
        policies.find(under(Point(config=Config()), name).policy)
    if options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: use at least 1")
    check_capacity(options)
    data = study(options)
    text = table(data)
    print(text)
    if options.page:
        publish(options.page, text, data)
    return 0
