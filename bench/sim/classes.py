"""python -m bench sim classes [FILE] [--page docs/results/classes.md]: measures what the daemon adds to marks by size
with the classes that ship.

Each section's settings run with the production queue and classes on the wire, and under some policies in exact order on
every link, which no fabric has, at the same rates and on the same seeds; capacities are found where a section asks for
them. FILE keeps every point (JSON lines); a stopped run goes on from there. --kept runs nothing and uses the points in
FILE. --reads runs only loads that wait in the queue of the NIC that they reach, at the rates of the page's rows, and
leaves those rows as they are. --page writes the page, and beside it the rows that it is made from as JSON; without FILE
it writes the page again from that JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim import classes_page, settings, study
from bench.sim.capacity import capacity
from bench.sim.classes_rows import (
    AGAINST,
    FIRST_SEED,
    SECTIONS,
    Carried,
    Data,
    Row,
    Section,
    Variant,
    What,
    load,
    save,
)
from bench.sim.cluster import ConfigError
from bench.sim.compare import Results
from bench.sim.point import Point, under


class NotKept(LookupError):
    """A point that FILE does not have, under --kept."""


class Kept(Results):
    """Points from an earlier run; runs none. Raises NotKept for others."""

    def of(self, point: Point) -> dict[str, Any]:
        found = self.found(point)
        if found is None:
            raise NotKept
        return found

    def knee(self, base: Point, name: str, seeds: int = 1) -> float:
        known = self.knees()
        if name not in known:
            raise NotKept
        return known[name]


def row_of(
    results: Results, name: str, setting: str, point: Point, policy: str, variant: Variant = ""
) -> Iterator[Row]:
    """Yields the row; nothing under --kept if FILE lacks some of its points."""
    section = SECTIONS[name]
    try:
        found = results.of_seeds(point, policy, range(FIRST_SEED, FIRST_SEED + section.seeds))
    except NotKept:
        return
    yield Row(
        section=name,
        setting=setting,
        policy=policy,
        exact=not point.config.fabric_classes,
        variant=variant,
        rate=point.rate,
        met=[round(one["slo_attainment"], 6) for one in found],
        mean_s=[round(one["ttft_s"]["mean"], 6) for one in found],
        p99_s=[round(one["ttft_s"]["p99"], 6) for one in found],
        revisions=list(dict.fromkeys(one["revision"] for one in found)),
    )


def read_rows(results: Results, name: str, setting: str, rate: float) -> Iterator[Row]:
    """Yields rows with loads that wait where they arrive and, by the same rules, where they leave: other rows may be of
    older rules."""
    section = SECTIONS[name]
    base = settings.base_of(setting, "dbrx", "qwen-a", section.requests, section.classes)
    point = msgspec.structs.replace(base, rate=rate)
    read = msgspec.structs.replace(point, config=msgspec.structs.replace(point.config, reads=True))
    for policy in section.reads:
        yield from row_of(results, name, setting, read, policy, "reads")
        yield from row_of(results, name, setting, point, policy, "again")


def points(results: Results, name: str, section: Section) -> Iterator[Row | Carried]:
    """Yields the rows of a section as they become ready; under --kept without those that FILE lacks."""
    for setting in settings.named(section.settings):
        base = settings.base_of(setting, "dbrx", "qwen-a", section.requests, section.classes)
        exact = settings.base_of(setting, "dbrx", "qwen-a", section.requests)
        try:
            top = results.knee(base, study.knee_name(setting, base), settings.SETTINGS[setting].knee_seeds)
        except NotKept:
            continue
        rate = round((section.load or settings.load_of(setting)) * top, 4)
        wanted = [(base, policy) for policy in section.policies] + [(exact, policy) for policy in section.exact]
        for of, policy in wanted:
            yield from row_of(results, name, setting, msgspec.structs.replace(of, rate=rate), policy)
        yield from read_rows(results, name, setting, rate)
        for policy in section.carried:
            tried = range(FIRST_SEED, FIRST_SEED + section.carried_seeds)
            try:
                loads = [capacity(results, under(base, policy), seed, top) for seed in tried]
            except NotKept:
                continue
            yield Carried(section=name, setting=setting, policy=policy, loads=loads)


def collect(results: Results, names: Sequence[str], before: Data | None) -> Data:
    """Returns the rows of these sections; of other sections those of `before`."""
    rows: list[Row] = []
    carried: list[Carried] = []
    for name, section in SECTIONS.items():
        if name not in names:
            rows += [row for row in before.rows if row.section == name] if before else []
            carried += [one for one in before.carried if one.section == name] if before else []
            continue
        for one in points(results, name, section):
            if isinstance(one, Row):
                rows.append(one)
            else:
                carried.append(one)
            _tell(one)
    what = What(
        simulated=True,
        against=AGAINST,
        first_seed=FIRST_SEED,
        revisions=list(dict.fromkeys(revision for row in rows if not row.variant for revision in row.revisions)),
    )
    return Data(what=what, rows=rows, carried=carried, before=before.before if before else [])


def with_reads(results: Results, names: Sequence[str], before: Data) -> Data:
    """Returns the existing rows, with new ones for loads that wait at the NIC that they reach."""
    found: list[Row] = []
    for name in names:
        for setting in before.settings(name):
            if other := before.row(name, setting, AGAINST):
                for row in read_rows(results, name, setting, other.rate):
                    found.append(row)
                    _tell(row)
    new = {row.key() for row in found}
    return msgspec.structs.replace(before, rows=[row for row in before.rows if row.key() not in new] + found)


def _tell(one: Row | Carried) -> None:
    variant = f" {one.variant}" if isinstance(one, Row) and one.variant else ""
    print(f"{one.section} {one.setting} {one.policy}{variant}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim classes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path, nargs="?", help="file of points; without it, write the page from its JSON")
    p.add_argument(
        "--section", default=",".join(SECTIONS), metavar="A,B", help=f"sections, of {', '.join(SECTIONS)} (default all)"
    )
    p.add_argument("--kept", action="store_true", help="run nothing")
    p.add_argument(
        "--reads", action="store_true", help="with --page: run only loads that wait at the NIC that they reach"
    )
    p.add_argument("--page", type=Path, metavar="FILE", help="page to write, with its rows as JSON beside it")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    study.check_names(options.section, list(SECTIONS), "--section")
    if not options.file and not options.page:
        raise ConfigError("give a FILE for the points, or --page FILE to write a page from its JSON, or both")
    before = load(options.page) if options.page else None
    if options.reads and not (options.file and before):
        raise ConfigError("--reads: give a FILE for the points, and --page with a page whose rows have the rates")
    if options.file:
        results = (Kept if options.kept else Results)(options.file)
        names = options.section.split(",")
        data = with_reads(results, names, before) if options.reads and before else collect(results, names, before)
    elif before:
        data = before
    else:
        raise ConfigError(f"--page {options.page}: has no JSON beside it yet; give a FILE for the points")
    text = classes_page.text(data)
    if options.page:
        save(options.page, data)
        options.page.write_text(text)
    else:
        print(text)
    return 0
