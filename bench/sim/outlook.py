"""python -m bench sim outlook FILE [--page docs/results/outlook.md]: measures what it is worth to know what the network
owes.

It runs reuse that is fetched or computed again, decode workers that are chosen by what their ports owe, and both with a
view of backlogs that is old, partial, wrong or missing. FILE keeps every point (JSON lines); a stopped study goes on
from there. --page writes the tables between the page's marks, and the same figures as JSON beside it; sections that
--what leaves out keep their last figures there, and with --new so do rows that the page has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from bench.sim import settings, study
from bench.sim.capacity import carried_against
from bench.sim.cluster import ConfigError
from bench.sim.compare import Comparison, Results, compare
from bench.sim.point import Point, under
from bench.sim.reuse import ReuseConfig

FIRST_SEED, SEEDS = 411, 20
BEGIN, END = "<!-- begin of generated tables -->", "<!-- end of generated tables -->"


class Case(NamedTuple):
    """A column: a setting with a model and a workload."""

    name: str
    setting: str
    model: str = "dbrx"
    workload: str = "qwen-a"
    rate: float | None = None  # requests/s per prefill GPU; None: the load of its study
    knobs: Mapping[str, Any] = MappingProxyType({})  # of its cluster, instead of the setting's


class Row(NamedTuple):
    """A variant to compare; `policy` may be POLICY+SCHEDULER."""

    name: str
    policy: str = "mfs"
    reuse: ReuseConfig = ReuseConfig()


class Section(NamedTuple):
    title: str
    cases: tuple[Case, ...]
    rows: tuple[Row, ...]  # the others are compared with the first
    seeds: int = SEEDS  # how many, where not given
    requests: int = 300  # measured, where not given
    carriers: tuple[Row, ...] = ()  # rows whose carried load is found, compared with the first


class Report(NamedTuple):
    """A command that runs sections and writes their tables."""

    prog: str
    what: str | None  # for --help
    sections: Mapping[str, Section]
    head: str  # what the tables are of
    first_seed: int
    why_seed: str
    without_marks: str  # printed below a table without marks by size, if all of its rows have one order
    with_stages: str = ""  # printed below a table that also has the order by stage


def _reuse(rule: str, **changes: Any) -> ReuseConfig:
    return ReuseConfig(rule=rule, **changes)


def aged(rule: str, age_s: float, **changes: Any) -> ReuseConfig:
    return ReuseConfig(rule=rule, outlook="coordinator", age_s=age_s, **changes)


MEASURED_AGE_S = 0.05
"""Age of a coordinator's view of other nodes: the mean that `python -m bench micro outlook_age` measured, 20 to 24 ms,
and half of the 50 ms that MfsConnector may take to announce waiting requests."""
MEASURED_SPREADS = {"conversations": 0.5, "agents": 1.0}
"""Log-normal factor with the median error of the testbed's forecasts: 31 to 37 % and 52 to 60 % of what a load took."""


def _known(rule: str, ages: Sequence[float], errors: Sequence[float]) -> tuple[Row, ...]:
    """Returns the rule with outlooks of every kind, including one as inaccurate as the testbed's forecasts."""
    return (
        Row(f"`{rule}`, exact", "mfs", _reuse(rule)),
        *(Row(f"`{rule}`, coordinator, {age_s * 1e3:g} ms old", "mfs", aged(rule, age_s)) for age_s in ages),
        *(Row(f"`{rule}`, {kind}", "mfs", _reuse(rule, outlook=kind)) for kind in ("local", "none")),
        *(Row(f"`{rule}`, expected times x{error:g}", "mfs", _reuse(rule, error=error)) for error in errors),
        *(
            Row(
                f"`{rule}`, coordinator, 10 ms old, as far off as on the testbed ({name})",
                "mfs",
                aged(rule, 0.01, error_spread=spread),
            )
            for name, spread in MEASURED_SPREADS.items()
        ),
    )


AGENTS, MORE = (
    Case(f"agents, hot, {rate:g}/s a GPU", "hot", "llama3-8b", "mooncake-agent", rate) for rate in (1.0, 1.4)
)
"""Their prompts differ so much that the knee of one seed says little, so rates are given."""
AT_2048: dict[str, Any] = {"gpus": 2048, "hot_fraction": 0.09375}
"""As hot in a full-size cluster: the same bytes for the hot port from each of its units."""
FULL = (
    Case("agents, hot", "hot", "llama3-8b", "mooncake-agent", 1.0, AT_2048),
    Case("QwenA, hot", "hot", "dbrx", "qwen-a", 0.144, AT_2048),
)
QWEN = {name: Case(f"QwenA, {name}", name) for name in ("hot", "fan-in", "egress", "bursts")}
TIMEOUTS = (
    *(Row(f"`mfs`, `timeout:{after_s}`", "mfs", _reuse(f"timeout:{after_s}")) for after_s in ("0.1", "0.5", "2")),
    Row("`mfs`, `timeout:10`, LMCache's default", "mfs", _reuse("timeout:10")),
    Row(
        "`mfs`, `timeout:1+0.25`, SGLang's default, what had come is kept",
        "mfs",
        _reuse("timeout:1+0.25", parts=True),
    ),
)
"""What users configure instead of a rule: short timeouts, and the defaults of two libraries (LMCache's
blocking_timeout_secs; SGLang's prefetch_timeout_base and _per_ki_token). None was chosen by a result."""
PARTS = tuple(Row(f"`mfs`, `{rule}`, in parts", "mfs", _reuse(rule, parts=True)) for rule in ("slo", "cost"))
RULES = (
    Row("`mfs`, always fetched"),
    Row("`static`, always fetched", "static"),
    *TIMEOUTS,
    Row("`mfs`, `slo`", "mfs", _reuse("slo")),
    Row("`mfs`, `slo`, however long it computes", "mfs", _reuse("slo", extra_share=1000.0)),
    Row("`mfs`, `cost`", "mfs", _reuse("cost")),
    *PARTS,
    Row("`nocont`", "nocont"),
)
PROMPTS = (QWEN["hot"], QWEN["egress"], QWEN["bursts"], Case("QwenB, base", "base", "dbrx", "qwen-b"))
SERVED = tuple(
    Case(name, name) for name in ("llama3-8b-gpu.mooncake-agent.shared-100g", "llama3-8b-gpu.qwen-a.shared-100g")
)
CONVERSATIONS = Case("conversations, hot", "hot", "llama3-8b", "mooncake-conversation")
IN_CLASSES = tuple(
    case._replace(rate=rate, knobs={"fabric_classes": 8})
    for case, rate in (
        (AGENTS, 1.0), (QWEN["hot"], 0.1996), (QWEN["fan-in"], 0.1711), (CONVERSATIONS, 0.4414),
        *zip(SERVED, (2.3998, 10.6837), strict=True),
    )
)  # fmt: skip
"""At the loads of the other tables, so that they can be compared."""
FEWER_RULES = tuple(row for row in RULES if row.name in {"`mfs`, always fetched", "`mfs`, `slo`", "`mfs`, `cost`"})
SECTIONS = {
    "agents": Section("Fetch or compute again: agents", (AGENTS, MORE), RULES),
    "outlook": Section(
        "What has to be known",
        (AGENTS,),
        (
            Row("`mfs`, always fetched"),
            *_known("slo", ages=(0.01, MEASURED_AGE_S, 0.1, 1.0), errors=(0.25, 0.5, 2.0, 4.0)),
            Row("`slo`, decided 20 ms later while the unit is busy", "mfs", _reuse("slo", recheck_s=0.02)),
            *_known("cost", ages=(0.1,), errors=(0.25, 4.0)),
        ),
    ),
    "together": Section(
        "All of it together",
        (QWEN["hot"], QWEN["fan-in"]),
        (
            Row("`static`", "static"),
            Row("`mfs`"),
            Row("`mfs+fit`", "mfs+fit"),
            Row("`mfs+fit`, `slo`", "mfs+fit", _reuse("slo")),
            Row("`mfs+fit`, `slo`, workers by backlog", "mfs+fit", _reuse("slo", placement="backlog")),
            Row("the same, 100 ms old", "mfs+fit", aged("slo", 0.1, placement="backlog")),
            Row("`nocont`", "nocont"),
        ),
    ),
    "routed": Section(
        "All of it, and prefill units chosen as requests arrive",
        (QWEN["hot"]._replace(rate=0.1996), QWEN["fan-in"]._replace(rate=0.1711)),
        (
            Row("`static`", "static"),
            Row("`mfs+fit`, `slo`, workers by backlog", "mfs+fit", _reuse("slo", placement="backlog")),
            Row("the same, units by `transfer`", "mfs+fit", _reuse("slo", placement="backlog", router="transfer")),
            Row("both, 100 ms old", "mfs+fit", aged("slo", 0.1, placement="backlog", router="transfer")),
            Row("`nocont`", "nocont"),
        ),
        seeds=10,
    ),
    "placement": Section(
        "Decode workers by what their ports owe",
        (QWEN["fan-in"],),
        (
            Row("`mfs`, workers at random"),
            Row("`mfs`, by backlog, exact", "mfs", _reuse("always", placement="backlog")),
            *(
                Row(f"`mfs`, by backlog, {age_s * 1e3:g} ms old", "mfs", aged("always", age_s, placement="backlog"))
                for age_s in (MEASURED_AGE_S, 0.1, 1.0)
            ),
            Row("`static`, workers at random", "static"),
            Row("`static`, by backlog, exact", "static", _reuse("always", placement="backlog")),
        ),
    ),
    "prompts": Section(
        "Fetch or compute again: shorter prompts",
        PROMPTS,
        FEWER_RULES,
    ),
    "served": Section(
        "Fetch or compute again: models and caches as they are served",
        SERVED,
        FEWER_RULES,
    ),
    "conversations": Section(
        "Fetch or compute again: conversations",
        (CONVERSATIONS,),
        (*FEWER_RULES, Row("`mfs`, `slo`, 50 ms old", "mfs", aged("slo", MEASURED_AGE_S))),
    ),
    "timeouts": Section(
        "Time-outs beside it: conversations and shorter prompts",
        (
            CONVERSATIONS._replace(rate=0.4414),
            QWEN["hot"]._replace(rate=0.1996),
            QWEN["egress"]._replace(rate=0.1648),
            QWEN["bursts"]._replace(rate=0.0953),
            PROMPTS[-1]._replace(rate=0.6528),
        ),  # at the loads of the sections above
        (Row("`mfs`, always fetched"), *TIMEOUTS, Row("`mfs`, `slo`", "mfs", _reuse("slo"))),
        seeds=10,
    ),
    "static": Section(
        "Fixed priorities beside it, everything fetched",
        (*PROMPTS, *SERVED, CONVERSATIONS),
        (Row("`mfs`"), Row("`static`", "static")),
        seeds=6,
    ),
    "classes": Section(
        "With the eight classes that ship",
        IN_CLASSES,
        (
            Row("`mfs`, always fetched"),
            Row("`dscp-size`, always fetched", "dscp-size"),
            Row("`mfs`, `slo`", "mfs", _reuse("slo")),
            Row("`mfs`, `slo`, 100 ms old", "mfs", aged("slo", 0.1)),
            Row("`mfs`, `slo`, workers by backlog, 100 ms old", "mfs", aged("slo", 0.1, placement="backlog")),
            Row("`nocont`", "nocont"),
        ),
        seeds=6,
    ),
    "full": Section(
        "At 2,048 GPUs",
        FULL,
        (
            Row("`mfs`, always fetched"),
            Row("`static`, always fetched", "static"),
            Row("`mfs`, `slo`", "mfs", _reuse("slo")),
            Row("`mfs`, `slo`, coordinator, 100 ms old", "mfs", aged("slo", 0.1)),
            Row("`mfs`, `cost`", "mfs", _reuse("cost")),
            Row("`nocont`", "nocont"),
        ),
        seeds=5,
        requests=1024,
    ),
}


def point_of(results: Results, case: Case, requests: int) -> Point:
    """Returns the point at the case's rate, or at the load of its study: the knee, or the load at which `choose`
    examined the setting."""
    base = settings.base_of(case.setting, case.model, case.workload, requests)
    base = msgspec.structs.replace(base, config=msgspec.structs.replace(base.config, **case.knobs))
    if case.rate is not None:
        return msgspec.structs.replace(base, rate=case.rate)
    top = results.knee(base, study.knee_name(case.setting, base), settings.SETTINGS[case.setting].knee_seeds)
    return msgspec.structs.replace(base, rate=round(settings.load_of(case.setting) * top, 4))


def asked(point: Point, row: Row) -> Point:
    return msgspec.structs.replace(under(point, row.policy), reuse=row.reuse)


def section_of(
    results: Results, section: Section, requests: int, seeds: range, kept: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Runs what is missing of a section. `kept`: the section as it was; its rows but the first are kept. Nothing of it
    is used if it has other seeds or requests, or if its first row differs from the new result."""
    columns = []
    kept = kept if kept and (kept["seeds"], kept["requests"]) == (list(seeds), requests) else None
    revisions: set[str] = set()
    for case in section.cases:
        point = point_of(results, case, requests)
        first: list[dict[str, Any]] = []
        before: dict[str, Any] = {}
        written = []
        for row in section.rows:
            if kept and first and row.name in before:
                written.append(before[row.name])
                revisions |= set(kept["revisions"])
                continue
            rows = [results.of(msgspec.structs.replace(asked(point, row), seed=seed)) for seed in seeds]
            revisions |= {row["revision"] for row in rows}
            figures = compare(rows, first or rows)
            print(f"{case.name}: {row.name}: {_text(figures, rows)}", file=sys.stderr, flush=True)
            written.append({"row": row.name, "figures": msgspec.to_builtins(figures), "again": _again(rows)})
            if not first:
                first, before = rows, _rows_of(kept, case, point)
                if before.get(row.name) != written[0]:
                    before = {}
        columns.append(
            {
                "case": case.name, "rate": point.rate, "model": point.config.model, "workload": point.workload,
                "gpus": point.config.gpus, "rows": written,
            }
        )  # fmt: skip
    return {
        "title": section.title, "seeds": list(seeds), "requests": requests, "warmup": requests // 3,
        "revisions": sorted(revisions), "columns": columns,
    }  # fmt: skip


def capacity_of(results: Results, section: Section, requests: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns the loads that the section's carriers carry, relative to the rate of its table."""
    found: dict[str, Any] = {}
    for case in section.cases:
        point = point_of(results, case, requests)
        points = {row.name: asked(point, row) for row in section.carriers}
        carried = carried_against(results, points, seeds, point.rate, section.carriers[0].name)
        found[case.name] = msgspec.to_builtins(carried)
        print(f"{case.name}: {found[case.name]}", file=sys.stderr, flush=True)
    return {"capacity_seeds": list(seeds), "capacity": found}


def _rows_of(kept: dict[str, Any] | None, case: Case, point: Point) -> dict[str, Any]:
    """Returns the rows by name, of the case at this rate."""
    columns = kept["columns"] if kept else []
    same = [column for column in columns if (column["case"], column["rate"]) == (case.name, point.rate)]
    return {row["row"]: row for row in same[0]["rows"]} if same else {}


AGAIN = ("recomputed", "parts", "expired")


def _again(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the share of requests that computed again what they could have fetched."""
    counts = [row.get("reuse", {}) for row in rows]
    total = sum(row["point"]["requests"] + row["point"]["warmup"] for row in rows)
    return float(sum(count.get(kind, 0) for count in counts for kind in AGAIN) / total)


def _text(figures: Comparison, rows: Sequence[dict[str, Any]]) -> str:
    return f"{figures.attainment:.1f} % met, {study.cell(figures)}, {_again(rows):.0%} computed again"


WITHOUT_MARKS = (
    "Without static marking: the rows differ in what is computed again, all under `mfs`. The same settings under a "
    "fixed order: first table and [fixed priorities](#fixed-priorities-beside-it-everything-fetched); with classes on "
    "the wire: [eight classes](classes.md)."
)
WITH_STAGES = (
    "Without static marking: `static` is the order by stage on links that know it exactly; marks without a daemon were "
    "not run on these. On eight classes they are beside `mfs` [below](#with-the-eight-classes-that-ship) (agents at "
    "1/s, hot, fan-in, conversations, as served), in [eight classes](classes.md) (egress, bursts) and "
    "[beside routers](routers.md#marks-by-size-beside-it-2048-gpus) (hot at 2,048 GPUs); agents at 1.4/s and at 2,048 "
    "GPUs, and QwenB, nowhere."
)


def tables(data: dict[str, Any], report: Report) -> str:
    lines = [
        f"Simulated, not measured; {report.head}, paired seeds. Cells: "
        "points of requests in time above the first row with half of the 95 % interval, mean and p99 TTFT relative to "
        "it, and the share of all requests that computed again what they could have fetched.",
    ]
    for section in data["sections"].values():
        columns = section["columns"]
        lines += ["", f"### {section['title']}", ""]
        seeds, count = section["seeds"], f"{section['warmup']} + {section['requests']}"
        rules = f"rules of commit {', '.join(section['revisions'])}"
        lines += [f"Seeds {seeds[0]}-{seeds[-1]}, {count} requests; {rules}.", ""]
        lines += ["| | " + " | ".join(column["case"] for column in columns) + " |", "|---" * (len(columns) + 1) + "|"]
        served = [f"{c['model']}, {c['gpus']} GPUs, {c['rate']:g}/s a GPU" for c in columns]
        lines.append("| | " + " | ".join(served) + " |")
        for at, first in enumerate(columns[0]["rows"]):
            cells = [_cell(column["rows"][at], first=not at) for column in columns]
            lines.append(f"| {first['row']} | " + " | ".join(cells) + " |")
        rows = [row["row"] for row in columns[0]["rows"]]
        if not any(row.startswith("`dscp") for row in rows):
            by_stage = any(row.startswith("`static") for row in rows)
            lines += ["", report.with_stages if by_stage else report.without_marks]
        if section.get("capacity"):
            lines += ["", *_capacity_lines(section)]
    return "\n".join(lines)


def _capacity_lines(section: dict[str, Any]) -> Iterator[str]:
    first = next(iter(next(iter(section["capacity"].values()))))
    yield (
        f"The load up to which 90 % are met, {study.seed_words(section['capacity_seeds'])}: relative to that of the "
        f"table above, and in brackets to {first}."
    )
    yield ""
    yield from study.capacity_lines(section["capacity"], [first])


def _cell(row: dict[str, Any], first: bool) -> str:
    figures = msgspec.convert(row["figures"], Comparison)
    if first:
        return f"{figures.attainment:.1f} % met, {1e3 * figures.ttft_s:.0f} ms, p99 {1e3 * figures.p99_s:.0f} ms"
    return study.cell(figures) + (f", {row['again']:.0%}" if row["again"] else "")


def parser(report: Report) -> argparse.ArgumentParser:
    sections = report.sections
    p = argparse.ArgumentParser(
        prog=report.prog, description=report.what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument("--what", default=",".join(sections), metavar="A,B", help=f"of {', '.join(sections)}")
    first = report.first_seed
    p.add_argument("--first-seed", type=int, default=first, help=f"first seed (default {first}: {report.why_seed})")
    p.add_argument("--seeds", type=int, help=f"number of seeds (default {_defaults(sections, 'seeds')})")
    p.add_argument(
        "--requests",
        type=int,
        help=f"measured requests, after a third as many (default {_defaults(sections, 'requests')})",
    )
    if any(section.carriers for section in sections.values()):
        p.add_argument(
            "--capacity-seeds", type=int, default=2, metavar="N", help="number of seeds for capacities (default 2)"
        )
    p.add_argument("--page", type=Path, metavar="FILE", help="page whose tables to write again, with a .json beside")
    p.add_argument(
        "--new",
        action="store_true",
        help="run only rows that the page of --page lacks, and the first row of each table",
    )
    return p


def _defaults(sections: Mapping[str, Section], field: str) -> str:
    return " or ".join(str(number) for number in sorted({getattr(section, field) for section in sections.values()}))


def main(arguments: list[str]) -> int:
    head = "exact order on every link unless a section says classes"
    why = "311 and up chose between rules"
    prog = "python -m bench sim outlook"
    return write(Report(prog, __doc__, SECTIONS, head, FIRST_SEED, why, WITHOUT_MARKS, WITH_STAGES), arguments)


def _with_kept(page: Path, sections: dict[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """Adds the sections of the page that this run does not have, as they were."""
    merged = {**study.published(page).get("sections", {}), **sections}
    return {name: merged[name] for name in order if name in merged}


def write(report: Report, arguments: list[str]) -> int:
    """Runs the requested sections; prints their tables and writes the page."""
    options = parser(report).parse_args(arguments)
    known = report.sections
    study.check_names(options.what, list(known), "--what")
    if options.seeds is not None and options.seeds < 1:
        raise ConfigError(f"--seeds {options.seeds}: use at least 1")
    if getattr(options, "capacity_seeds", 0) < 0:
        raise ConfigError(f"--capacity-seeds {options.capacity_seeds}: use 0 or more")
    results = Results(options.file)
    published = study.published(options.page).get("sections", {}) if options.page and options.new else {}
    sections = {}
    for name in options.what.split(","):
        last = options.first_seed + (options.seeds or known[name].seeds)
        requests = options.requests or known[name].requests
        seeds = range(options.first_seed, last)
        sections[name] = section_of(results, known[name], requests, seeds, published.get(name))
        if known[name].carriers and options.capacity_seeds:
            sections[name] |= capacity_of(results, known[name], requests, seeds[: options.capacity_seeds])
    if options.page:
        sections = _with_kept(options.page, sections, list(known))
    data = {"what": {"simulated": True}, "sections": sections}
    text = tables(data, report)
    print(text)
    if options.page:
        study.publish(options.page, text, data, BEGIN, END)
    return 0
