"""python -m bench sim traces FILE --trace TRACE... [--page docs/results/traces.md]: runs recorded requests, with their
own prompts, reuse and times, on models and caches as they are served.

TRACE is a file of recorded requests (Parquet or JSONL, docs/simulation-model.md); the page names it by its stem. Each
seed takes a window of its own; up to 2,000 requests before it fill the caches; times are the recorded ones, stretched
to the rate. The study first finds the cases in which contention costs anything, with `static` and `nocont` alone on
seeds that no comparison uses (as `choose` does for generated requests). In these cases the orders run with the
production queue and --fabric-classes classes on the wire, against marks by size. FILE keeps every point (JSON lines); a
stopped study goes on from there. --page writes the tables between the page's marks, and the figures as JSON beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import point as points
from bench.sim import policies, study
from bench.sim.capacity import Capacity, carried_against
from bench.sim.choose import Found, contention
from bench.sim.classes_findings import times
from bench.sim.cluster import Config, ConfigError
from bench.sim.compare import CHOOSING_SEED, Comparison, Results, compare
from bench.sim.point import TRACE_REQUESTS, Point, under
from bench.sim.settings import CAUSES, SERVED, SETTINGS, WORKLOADS, base_of
from bench.sim.workload import Row, read_trace

AGAINST = "dscp-size"
POLICIES = "static,mfs,nocont"
FIRST_SEED = 741
"""As for eight classes with generated requests: smaller seeds chose settings and rules."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A file of recorded requests: its first TRACE_REQUESTS."""

    requests: int
    span_s: float
    mean_tokens: float  # of a prompt
    reuse: float  # share of all prompt tokens that an earlier request had, in the order of arrivals


class Case(msgspec.Struct, frozen=True):
    """A row of the tables."""

    trace: str
    model: str
    cause: str

    @property
    def setting(self) -> str:
        """The setting whose cluster it has; its workload is replaced."""
        return f"{self.model}.{WORKLOADS[0]}.{self.cause}"

    @property
    def title(self) -> str:
        return f"{self.trace}, {self.model}, {self.cause}"


class Reused(msgspec.Struct, frozen=True):
    """How much of the prompts is cached where it runs, on the seeds that choose."""

    cached: float  # share of prompt tokens
    fetched: float  # share of prompt tokens that lie on another unit, or in the store


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    case: Case
    found: Found
    reused: Reused


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Policies compared with AGAINST where contention costs anything."""

    case: Case
    load: float
    rate: float
    figures: dict[str, Comparison]
    carried: dict[str, Capacity]


class Data(msgspec.Struct, frozen=True, kw_only=True):
    what: dict[str, Any]
    traces: dict[str, Trace]
    examined: list[Examined]
    compared: list[Compared]


def described(rows: Sequence[Row]) -> Trace:
    seen: set[int] = set()
    again = 0
    for row in rows:
        known = next((n for n, block in enumerate(row.blocks) if block not in seen), len(row.blocks))
        again += row.prefix_tokens(known)
        seen.update(row.blocks)
    tokens = sum(row.input_tokens for row in rows)
    return Trace(
        requests=len(rows),
        span_s=round(rows[-1].arrival_s - rows[0].arrival_s, 1),
        mean_tokens=round(tokens / len(rows), 1),
        reuse=round(again / tokens, 4),
    )


def reused(point: Point, seeds: Sequence[int]) -> Reused:
    """Measures the reuse of the measured requests."""
    total = cached = fetched = 0
    for seed in seeds:
        _, requests = points.prepare(msgspec.structs.replace(point, seed=seed))
        for request in requests[point.warmup :]:
            total += request.new_tokens + request.context_tokens
            cached += request.context_tokens
            fetched += request.remote_tokens
    return Reused(round(cached / total, 4), round(fetched / total, 4))


def point_of(case: Case, file: Path, requests: int, classes: int) -> Point:
    base = base_of(case.setting, "", "", requests, classes)
    return msgspec.structs.replace(base, workload=str(file), arrivals="trace")


def examine(results: Results, case: Case, file: Path, options: argparse.Namespace) -> Examined:
    """Examines a case in exact order on every link, as `choose` examines settings of generated requests."""
    base = point_of(case, file, options.requests, 0)
    seeds = SETTINGS[case.setting].knee_seeds
    found = contention(results, base, f"{case.title} {options.requests}", seeds, options.points)
    at = msgspec.structs.replace(base, rate=round((found.load or 1.0) * (found.knee or base.rate), 4))
    return Examined(case=case, found=found, reused=reused(at, range(CHOOSING_SEED, CHOOSING_SEED + seeds)))


def held_against(
    results: Results, case: Case, file: Path, found: Found, options: argparse.Namespace
) -> tuple[Compared, list[str]]:
    """Returns the policies at the examined load, and the revisions of their points."""
    base = point_of(case, file, options.requests, options.fabric_classes)
    top = results.knees()[f"{case.title} {options.requests}"]
    point = msgspec.structs.replace(base, rate=round(found.load * top, 4))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    names = list(dict.fromkeys([AGAINST, *options.policy.split(",")]))
    rows = {name: results.of_seeds(point, name, seeds) for name in names}
    tried = seeds[: options.capacity_seeds]
    carriers = list(dict.fromkeys([AGAINST, *options.capacity_policy.split(",")])) if tried else []
    compared = Compared(
        case=case,
        load=found.load,
        rate=point.rate,
        figures={name: compare(rows[name], rows[AGAINST]) for name in names},
        carried=carried_against(results, {name: under(base, name) for name in carriers}, tried, top, AGAINST),
    )
    return compared, [row["revision"] for of in rows.values() for row in of]


def run(options: argparse.Namespace) -> Data:
    """Runs what is missing."""
    results = Results(options.file)
    files = {file.stem: file for file in options.trace}
    traces = {name: described(read_trace(file, TRACE_REQUESTS)) for name, file in files.items()}
    examined: list[Examined] = []
    compared: list[Compared] = []
    revisions: dict[str, None] = {}
    for case in cases(options, list(files)):
        examined.append(examine(results, case, files[case.trace], options))
        found = examined[-1].found
        print(f"{case.title}: {found}", file=sys.stderr, flush=True)
        if found.contended:
            one, of = held_against(results, case, files[case.trace], found, options)
            compared.append(one)
            revisions |= dict.fromkeys(of)
            for name, figure in one.figures.items():
                print(f"  {name}: {study.cell(figure, one.carried.get(name))}", file=sys.stderr, flush=True)
    what = {
        "simulated": True, "points": options.points, "requests": options.requests, "warmup": options.requests // 3,
        "fabric_classes": options.fabric_classes, "against": AGAINST, "first_seed": options.first_seed,
        "seeds": options.seeds, "capacity_seeds": options.capacity_seeds, "revisions": list(revisions),
    }  # fmt: skip
    return Data(what=what, traces=traces, examined=examined, compared=compared)


def cases(options: argparse.Namespace, traces: Sequence[str]) -> Iterator[Case]:
    for trace in traces:
        for model in options.model.split(","):
            for cause in options.cause.split(","):
                case = Case(trace, model, cause)
                if case.setting in SETTINGS:  # collectives between servers do not use one NIC for eight GPUs
                    yield case


def page(data: Data) -> str:
    what = data.what
    lines = [
        f"Simulated, not measured. {what['warmup']} + {what['requests']} requests; contention is found on seeds "
        f"{CHOOSING_SEED} and up, orders are compared on {what['first_seed']}-{what['first_seed'] + what['seeds'] - 1} "
        f"(paired); rules of commit {', '.join(what['revisions'])}.",
        "",
        *(f"- {line}" for line in findings(data)),
        "",
        "### The traces",
        "",
        *_traces(data),
        "",
        "### Where contention costs anything",
        "",
        *_examined(data),
        "",
        f"### With {what['fabric_classes']} classes on the wire",
        "",
        *_compared(data),
    ]
    return "\n".join(lines)


def findings(data: Data) -> list[str]:
    settled = [one for one in data.examined if one.found.knee]
    costly, never = sum(one.found.contended for one in settled), len(data.examined) - len(settled)
    line = f"Contention costs `static` {data.what['points']:g} points or more in {costly} of {len(settled)} cases"
    lines = [line + (f"; {never} more meet 90 % at no rate." if never else ".")]
    figures = [one.figures["mfs"] for one in data.compared if "mfs" in one.figures]
    if figures:
        gains = [figure.gain for figure in figures]
        lines.append(
            f"There `mfs` is at {min(gains):+.1f} to {max(gains):+.1f} points against `{AGAINST}`, above it with the "
            f"whole interval in {sum(f.above for f in figures)} of {len(figures)}, below it so in "
            f"{sum(f.below for f in figures)}; mean TTFT {times([f.ttft_ratio for f in figures])}, p99 TTFT "
            f"{times([f.p99_ratio for f in figures])}."
        )
    return lines


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def _traces(data: Data) -> list[str]:
    heads = ("trace", "requests", "span", "prompt, mean tokens", "of its tokens in an earlier prompt")
    return _table(
        heads,
        [
            (name, f"{t.requests:,}", f"{t.span_s:,.0f} s", f"{t.mean_tokens:,.0f}", f"{t.reuse:.1%}")
            for name, t in data.traces.items()
        ],
    )


def _examined(data: Data) -> list[str]:
    heads = (
        "trace, model, cause", "cached", "fetched", "knee, requests/s per GPU", "load", "`static`, % met", "`nocont`",
        "mean TTFT, `static` / `nocont`", "",
    )  # fmt: skip
    rows = []
    for case, found, own in ((one.case, one.found, one.reused) for one in data.examined):
        shown = [f"{found.knee:g}", f"{found.load:g}", f"{found.static:g}", f"{found.nocont:g}"]
        ratio = f"x{found.ttft_ratio:.2f}"
        rows.append([
            case.title, f"{own.cached:.0%}", f"{own.fetched:.0%}", *(shown if found.knee else ["-"] * 4),
            ratio if found.knee else "-", "contended" if found.contended else "",
        ])  # fmt: skip
    return [
        "In exact order on every link. *cached*: share of prompt tokens that some cache has; *fetched*: that lie on "
        "another unit's or the store's NICs.",
        "",
        *_table(heads, rows),
    ]


def _compared(data: Data) -> list[str]:
    if not data.compared:
        return ["Nothing to compare: contention costs nothing anywhere."]
    names = [name for name in data.compared[0].figures if name != AGAINST]
    tried = [data.what["first_seed"] + n for n in range(data.what["capacity_seeds"])]
    lead = (
        f"Cells: points of requests in time against `{AGAINST}` with half of the 95 % interval, mean and p99 TTFT "
        "relative to it"
    )
    if tried:
        lead += f"; {study.cap_words({'capacity_seeds': tried}, AGAINST)}"
    rows = []
    for one in data.compared:
        plain, own = one.figures[AGAINST], one.carried.get(AGAINST)
        rows.append([
            f"{one.case.title} ({one.load:g})", study.plain(plain, own),
            *(study.cell(one.figures[name], one.carried.get(name)) for name in names),
        ])  # fmt: skip
    heads = [
        "trace, model, cause (load)",
        f"`{AGAINST}`: % met, mean and p99 TTFT{', cap (of the knee)' if tried else ''}",
        *(f"`{name}`" for name in names),
    ]
    return [f"{lead}.", "", *_table(heads, rows)]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim traces", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument("--trace", type=Path, nargs="+", required=True, metavar="TRACE", help="recorded requests")
    p.add_argument("--model", default="llama3-8b-gpu,llama2-7b", metavar="A,B", help=f"models, of {', '.join(SERVED)}")
    p.add_argument(
        "--cause",
        default="100g,shared-200g,shared-100g,cold,store",
        metavar="A,B",
        help=f"causes, of {', '.join(CAUSES)}",
    )
    p.add_argument("--policy", default=POLICIES, metavar="A,B", help=f"against {AGAINST} (default {POLICIES})")
    p.add_argument("--fabric-classes", type=int, default=8, metavar="K", help="default 8")
    p.add_argument(
        "--points", type=float, default=3.0, help="points of attainment that contention must cost (default 3)"
    )
    p.add_argument("--requests", type=int, default=200, help="measured requests, after a third as many (default 200)")
    p.add_argument(
        "--first-seed", type=int, default=FIRST_SEED, help=f"first seed (default {FIRST_SEED}: earlier seeds chose)"
    )
    p.add_argument("--seeds", type=int, default=5, help="number of windows (default 5)")
    p.add_argument(
        "--capacity-seeds", type=int, default=2, metavar="N", help="number of windows for capacities (default 2)"
    )
    p.add_argument("--capacity-policy", default="mfs", metavar="A,B", help=f"of these and {AGAINST} (default mfs)")
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose tables to write again, with a .json beside")
    return p


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError or LookupError for what cannot be run."""
    study.check_names(options.model, list(SERVED), "--model")
    study.check_names(options.cause, [cause for cause in CAUSES if cause != "tenants"], "--cause")
    for name in options.policy.split(","):
        policies.find(name)
    study.check_names(options.capacity_policy, [AGAINST, *options.policy.split(",")], "--capacity-policy")
    if len({file.stem for file in options.trace}) < len(options.trace):
        raise ConfigError("--trace: two files of one name cannot be told apart on a page; rename one")
    if options.seeds < 1 or not 0 <= options.capacity_seeds <= options.seeds:
        raise ConfigError(f"--seeds {options.seeds} --capacity-seeds {options.capacity_seeds}: use N >= 1 and 0 to N")
    Config(fabric_classes=options.fabric_classes)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    check(options)
    data = run(options)
    print(page(data))
    if options.page:
        study.publish(options.page, page(data), msgspec.to_builtins(data))
    return 0
