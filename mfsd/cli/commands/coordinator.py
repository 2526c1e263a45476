"""``mfsctl coordinator``: what the cluster's coordinators know and have decided."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from mfsd.cli.asking import EXIT_UNREACHABLE
from mfsd.cli.daemon import DEFAULT_CONFIG, EXIT_BAD_CONFIG
from mfsd.cli.plain import plain
from mfsd.observe.format import bit_rate, duration

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb

EXIT_NO_LEADER = 1
BATCHES_SHOWN = 20


@click.group(epilog="\b\nExamples:\n  mfsctl coordinator status\n")
def coordinator() -> None:
    """Look at the coordinators, which order the batches of all nodes."""


@coordinator.command(
    epilog="""\b
Exit codes:
  0  the leader has answered
  1  coordinators answer, and none of them leads
  3  no coordinator answers

\b
Examples:
  mfsctl coordinator status
  mfsctl coordinator status --address coord-1:7400 --batches 100
  mfsctl coordinator status --json | jq '.pruned'
"""
)
@click.option(
    "--address",
    metavar="HOST:PORT,...",
    help="Coordinators to ask. Default: [cluster] coordinators of the configuration.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"The daemon's configuration: addresses and certificates. Default: {DEFAULT_CONFIG} if it exists.",
)
@click.option("--batches", default=BATCHES_SHOWN, show_default=True, type=click.IntRange(0), help="At most; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all batches, for programs.")
def status(address: str | None, config_file: Path | None, batches: int, as_json: bool) -> None:
    """Show the leader, the order of batches, what is pruned and why, and the daemons.

    Any coordinator may be asked: one that does not lead names the leader, which is asked then.

    \b
    RED    until the batch's robust effective deadline, which decides its place
    LAG    there and back of the last heartbeat
    BEHIND decisions that the daemon has not confirmed yet
    """
    from mfsd.cli.cluster import ask_leader, cluster_access
    from mfsd.node.config_file import ConfigError

    try:
        addresses, tls = cluster_access(address, config_file or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None))
    except ConfigError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    reply, problems = ask_leader(addresses, tls, 0 if as_json else batches)
    if reply is None:
        for problem in problems:
            click.echo(f"mfsctl: {problem}", err=True)
        click.echo(
            "mfsctl: no coordinator answers: is one running (mfsd --coordinator), and is this its address?", err=True
        )
        sys.exit(EXIT_UNREACHABLE)
    if as_json:
        click.echo(msgspec.json.encode(plain(reply)))
    else:
        Console().print(_view(reply))
    if not reply.leads:
        leader = f"the leader is said to be {reply.leader}, which does not answer" if reply.leader else "none leads"
        click.echo(
            f"mfsctl: {reply.address} stands by and {leader}: look at etcd and at the other coordinators", err=True
        )
        sys.exit(EXIT_NO_LEADER)


def _view(reply: pb.StatusReply) -> RenderableType:
    role = "[green]leads[/]" if reply.leads else "[yellow]stands by[/]"
    lines = [
        f"coordinator {escape(reply.address)}  {role}  term {reply.term}  epoch {reply.epoch}  "
        f"up {duration(reply.uptime_ns / 1e9)}",
    ]
    if not reply.leads:
        return "\n".join(lines)
    lines += [
        f"{reply.batches_active} batches with {reply.requests_active} requests; "
        f"{len(reply.nodes)} nodes, {reply.ports} ports",
        f"{len(reply.pruned)} requests pruned of at most {reply.drop_budget}, {len(reply.infeasible)} infeasible; "
        f"{reply.events} events so far",
    ]
    lines += _attainment(reply.attainment)
    lines += [f"{escape(reason)}: {n}" for reason, n in sorted(reply.oddities.items())]
    parts: list[RenderableType] = ["\n".join(lines)]
    if reply.batches:
        parts += ["", _batches(reply)]
    if reply.pruned:
        parts += ["", _pruned(reply)]
    parts += ["", _nodes(reply) if reply.nodes else "No daemon is connected; name this address to them in \\[cluster]."]
    return Group(*parts)


def _attainment(seen: pb.Attainment) -> list[str]:
    """Nothing, before a request with a deadline has ended."""
    if not seen.met + seen.missed:
        return []
    line = f"{seen.met / (seen.met + seen.missed):.1%} of {seen.met + seen.missed} requests met their deadline"
    recent = seen.recent_met + seen.recent_missed
    if recent:
        line += f"; {seen.recent_met / recent:.1%} of {recent} in the last {duration(seen.window_ns / 1e9)}"
    return [line]


def _table(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _batches(reply: pb.StatusReply) -> Table:
    table = _table(("ORDER", "BATCH", "UNIT", "NODES"), ("REQUESTS", "RED"))
    for at, row in enumerate(reply.batches):
        left_s = row.red_left_ns / 1e9
        red = duration(left_s) if left_s >= 0 else f"[red]late by {duration(-left_s)}[/]"
        nodes = ", ".join(row.nodes[:3]) + (f" and {len(row.nodes) - 3} more" if len(row.nodes) > 3 else "")
        table.add_row(str(at), str(row.batch_id), escape(row.unit), escape(nodes), str(row.requests), red)
    if len(reply.batches) < reply.batches_active:
        table.add_row("...", f"{reply.batches_active - len(reply.batches)} more", "", "", "", "")
    return table


def _pruned(reply: pb.StatusReply) -> Table:
    table = _table(("PRUNED", "OF BATCH", "BECAUSE"), ())
    for row in reply.pruned[:BATCHES_SHOWN]:
        why = f"batch {row.for_batch} would be late by {escape(row.port)}, where this request has most"
        table.add_row(str(row.request_id), str(row.batch_id), why)
    if len(reply.pruned) > BATCHES_SHOWN:
        table.add_row("...", f"{len(reply.pruned) - BATCHES_SHOWN} more", "")
    return table


def _nodes(reply: pb.StatusReply) -> Table:
    table = _table(("NODE", "STATE", "PORTS"), ("BATCHES", "LAG", "SILENT", "BEHIND"))
    for row in reply.nodes:
        state = "connected" if row.connected else "[red]lost[/]"
        table.add_row(
            escape(row.node),
            state,
            "\n".join(f"{escape(p.name)} {bit_rate(p.rate_bytes_per_s)} {p.rho:.0%}" for p in row.ports) or "-",
            str(row.batches),
            duration(row.lag_ns / 1e9),
            duration(row.silent_ns / 1e9),
            str(row.epochs_behind),
        )
    return table
