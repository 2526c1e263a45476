"""python -m bench requests claims: measures every claim about the request tier and compares it with its bar.

Prints a row for each claim; --json FILE holds [{id system where claim measured bar verdict note}]. Verdicts: shown,
refuted (below its bar), not run. The command exits with 1 when a claim is refuted. --runs FILE keeps runs as they
finish, so a stopped measurement goes on from there. --quick has short runs with deadlines shortened alike, and one
seed: it shows whether the commands work, not whether the claims hold.

--page docs/results/claims.md writes the page from the rows. --ablations FILE adds the tables of halved and doubled
defaults to the page (and measures the missing ones)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.requests import (
    ablations,
    claims_agents,
    claims_drift,
    claims_joint,
    claims_programs,
    claims_routed,
    claims_tiers,
    claims_workflows,
    page,
)
from bench.requests.claim import NOT_RUN, REFUTED, Claim, Row, judge
from bench.requests.errors import UsageError
from bench.requests.lab import FULL, FULL_S, QUICK, Lab, Scale
from bench.requests.options import numbers
from bench.sim import sweep

CLAIMS: tuple[Claim, ...] = (
    *claims_tiers.CLAIMS,
    *claims_programs.CLAIMS,
    *claims_routed.CLAIMS,
    *claims_drift.CLAIMS,
    *claims_joint.CLAIMS,
    *claims_agents.CLAIMS,
    *claims_workflows.CLAIMS,
)
SYSTEMS = tuple(dict.fromkeys(claim.system for claim in CLAIMS))


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench requests claims",
        description=__doc__,
        epilog="""examples:
  python -m bench requests claims --quick
  python -m bench requests claims --system qoserve --json out/claims.json
  python -m bench requests claims --claim q4,q5 --json out/claims.json
  python -m bench requests claims --json docs/results/claims-results.json --page docs/results/claims.md

--json FILE keeps the rows of claims that this call does not measure.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--system", choices=SYSTEMS, help="measure only the claims of one system (default: all)")
    p.add_argument("--claim", metavar="A,B", help=f"measure only these claims, of {', '.join(c.id for c in CLAIMS)}")
    p.add_argument("--quick", action="store_true", help="short runs, one seed: minutes instead of hours")
    p.add_argument("--seed", metavar="S[,S...]", help="seeds instead of the scale's")
    p.add_argument(
        "--seconds",
        type=float,
        metavar="T",
        help="of arrivals of the tiers (14400; --quick 1800); deadlines of batch tiers and turns of a swing are scaled "
        "alike",
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="file for the rows; written after every claim")
    p.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        default=Path("out/claims-runs.jsonl"),
        help="file that keeps runs (default %(default)s)",
    )
    p.add_argument("--traces", type=Path, metavar="DIR", help="recorded lengths, as in `requests run`")
    p.add_argument(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help="ray: spread the runs of a claim's seeds over a Ray cluster; claims j1 to j7 of the network run here",
    )
    p.add_argument("--page", type=Path, metavar="FILE", help="also write the page (Markdown) from --json's rows")
    p.add_argument(
        "--ablations",
        type=Path,
        metavar="FILE",
        help="measure the ablations into FILE instead of claims; --page has both",
    )
    return p


def chosen(options: argparse.Namespace) -> list[Claim]:
    named = options.claim.split(",") if options.claim else None
    for name in named or ():
        if name not in [claim.id for claim in CLAIMS]:
            raise UsageError(f"--claim {name}: use {', '.join(claim.id for claim in CLAIMS)}")
    found = [
        claim for claim in CLAIMS if (named is None or claim.id in named) and options.system in (None, claim.system)
    ]
    if not found:
        raise UsageError(f"--claim {options.claim} --system {options.system}: no claim matches both; drop one of them")
    return found


def scale_of(options: argparse.Namespace) -> Scale:
    scale = QUICK if options.quick else FULL
    if options.seed:
        scale = msgspec.structs.replace(scale, seeds=tuple(numbers(options.seed, "--seed", int, -1)))
    if options.seconds is not None:
        if not 60 <= options.seconds <= FULL_S:
            raise UsageError(f"--seconds {options.seconds:g}: use 60 to {FULL_S:g}")
        scale = msgspec.structs.replace(scale, tiers_s=options.seconds, deadlines=options.seconds / FULL_S)
    return scale


def load(path: Path | None) -> list[Row]:
    """Returns the rows of an earlier call."""
    if path is None or not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Row])
    except msgspec.DecodeError as error:
        raise UsageError(f"--json {path}: exists and holds no rows of claims ({error}); name another file") from error


def save(path: Path | None, rows: list[Row]) -> None:
    if path is None:
        return
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(msgspec.to_builtins(rows), indent=1) + "\n")
    beside.replace(path)


def measure(wanted: list[Claim], lab: Lab, path: Path | None) -> list[Row]:
    """Returns the rows of all claims that the file or this call has measured, in the order of CLAIMS."""
    rows = {row.id: row for row in load(path)}
    for claim in wanted:
        rows[claim.id] = judge(claim, lab)
        print(f"{claim.id}: {rows[claim.id].verdict}: {rows[claim.id].measured}", file=sys.stderr, flush=True)
        save(path, in_order(rows))
    return in_order(rows)


def in_order(rows: dict[str, Row]) -> list[Row]:
    return [rows[claim.id] for claim in CLAIMS if claim.id in rows]


def show(rows: list[Row]) -> None:
    table = Table("claim", "where", "measured", "bar", "verdict")
    for row in rows:
        table.add_row(row.id, row.where, row.measured, row.bar, row.verdict)
    Console().print(table)


def complete(rows: list[Row]) -> list[Row]:
    """Returns the rows, with one that says so for each claim that was not measured."""
    have = {row.id: row for row in rows}
    return [
        have.get(c.id) or Row(c.id, c.system, c.where, c.claim, "", c.bar, NOT_RUN, "no measurement in the file")
        for c in CLAIMS
    ]


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.page and not options.json:
        raise UsageError(f"--page {options.page}: needs --json FILE, from whose rows it is written")
    lab = Lab(options.runs, scale_of(options), options.traces, options.engine)
    with sweep.cluster(options.engine):
        if options.ablations:
            tables = ablations.measure(lab, options.ablations)
            rows = load(options.json)
        else:
            rows = measure(chosen(options), lab, options.json)
            tables = ablations.load(options.json.with_name("claims-ablations.json")) if options.json else []
            show(rows)
    if options.page:
        page.write(options.page, complete(rows), tables)
    return int(any(row.verdict == REFUTED for row in rows))
