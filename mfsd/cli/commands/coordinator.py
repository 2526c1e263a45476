"""``mfsctl coordinator``: what the cluster's coordinators know and have decided."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mfsd.cli.coordinator_options import coordinator_options
from mfsd.cli.daemon import EXIT_BAD_CONFIG
from mfsd.cli.daemon_call import EXIT_UNREACHABLE
from mfsd.cli.message_json import plain
from mfsd.cli.output import Cell, Column, Form, Row, output_options, print_table, printed
from mfsd.observe.format import bit_rate, duration, share

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb

EXIT_NO_LEADER = 1
BATCHES_SHOWN = 20
PRUNED_SHOWN = 20


@click.group(epilog="\b\nExamples:\n  mfsctl coordinator status\n")
def coordinator() -> None:
    """Show the coordinators, which order the batches of all nodes."""


@coordinator.command(
    epilog="""\b
Exit codes:
  0  the leader answered
  1  coordinators answer, but none of them leads
  3  no coordinator answers

\b
Examples:
  mfsctl coordinator status
  mfsctl coordinator status --address coord-1:7400 --batches 100
  mfsctl coordinator status -o wide
  mfsctl coordinator status --json | jq '.pruned'
"""
)
@coordinator_options()
@click.option(
    "--batches",
    default=BATCHES_SHOWN,
    show_default=True,
    type=click.IntRange(0, 2**32 - 1),
    help="Show at most this many batches; 0: all.",
)
@output_options
def status(address: str | None, config_file: Path | None, batches: int, form: Form) -> None:
    """Show the leader, the order of batches, what is pruned and why, and the daemons.

    Any coordinator can be asked: one that does not lead names the leader, which is then asked.

    \b
    RED    time until the batch's robust effective deadline, which decides its place
    LAG    round trip of the last heartbeat
    USED   share of the port's rate that was used recently, as its daemon counts
    LOAD   share of the port's rate taken by traffic that goes first (rho),
           variant paper only
    BEHIND decisions that the daemon has not confirmed yet
    """
    from mfsd.cli.cluster import advice, ask_leader, cluster_access
    from mfsd.node.config_file import ConfigError

    try:
        addresses, tls = cluster_access(address, config_file)
    except ConfigError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    reply, problems = ask_leader(addresses, tls, 0 if form in ("json", "yaml") else batches)
    if reply is None:
        for problem in problems:
            click.echo(f"mfsctl: {problem}", err=True)
        click.echo(f"mfsctl: {advice(problems)}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    if not printed(plain(reply), form):
        _show(reply, form)
    if not reply.leads:
        leader = f"{reply.leader}, named as the leader, does not answer" if reply.leader else "no coordinator leads"
        click.echo(f"mfsctl: {reply.address} stands by and {leader}: check etcd and the other coordinators", err=True)
        sys.exit(EXIT_NO_LEADER)


def _show(reply: pb.StatusReply, form: Form) -> None:
    role = click.style("leads", fg="green") if reply.leads else click.style("stands by", fg="yellow")
    click.echo(
        f"coordinator {reply.address}  {role}  term {reply.term}  epoch {reply.epoch}  "
        f"up {duration(reply.uptime_ns / 1e9)}"
    )
    if not reply.leads:
        return
    click.echo(
        f"{reply.batches_active} batches with {reply.requests_active} requests; {len(reply.nodes)} nodes, "
        f"{reply.ports} ports; {reply.events} events so far"
    )
    click.echo(
        f"{len(reply.pruned)} requests are pruned (at most {reply.drop_budget} may be now); {len(reply.infeasible)} "
        "cannot be in time whatever is pruned"
    )
    for line in _attainment(reply.attainment):
        click.echo(line)
    for reason, n in sorted(reply.oddities.items()):
        click.echo(f"{reason}: {n}")
    if reply.batches:
        click.echo()
        print_table(BATCHES, [_batch(at, row) for at, row in enumerate(reply.batches)], form)
        if len(reply.batches) < reply.batches_active:
            click.echo(f"... and {reply.batches_active - len(reply.batches)} more; see --batches", err=True)
    if reply.pruned:
        click.echo()
        print_table(PRUNED, [_pruned(row) for row in reply.pruned[:PRUNED_SHOWN]], form)
        if len(reply.pruned) > PRUNED_SHOWN:
            click.echo(f"... and {len(reply.pruned) - PRUNED_SHOWN} more; see --json", err=True)
    click.echo()
    if not reply.nodes:
        click.echo("No daemon is connected: add this address to [cluster] coordinators of each daemon.")
        return
    print_table(NODES, [_node(row) for row in reply.nodes], form)
    ports = [_port(row.node, port) for row in reply.nodes for port in row.ports]
    if ports:
        click.echo()
        print_table(PORTS, ports, form)


def _attainment(seen: pb.Attainment) -> list[str]:
    """Returns nothing before a request with a deadline has ended."""
    if not seen.met + seen.missed + seen.recent_met + seen.recent_missed:
        return []
    ended = seen.met + seen.missed
    since = f"{seen.met / ended:.1%} of {ended}" if ended else "none"
    recent = seen.recent_met + seen.recent_missed
    if not recent:
        return [f"{since} requests met their deadline since this leader began"]
    window = duration(seen.window_ns / 1e9)
    lately = f"{seen.recent_met / recent:.1%} of {recent} requests met their deadline in the last {window}"
    return [f"{lately}; {since} since this leader began"]


BATCHES = (
    Column("ORDER", right=True),
    Column("BATCH"),
    Column("UNIT", cut=True),
    Column("NODES", cut=True),
    Column("REQUESTS", right=True),
    Column("RED", right=True),
)
PRUNED = (
    Column("PRUNED"),
    Column("OF BATCH"),
    Column("FOR BATCH"),
    Column("PORT", cut=True),
    Column("BECAUSE", wide=True),
)
NODES = (
    Column("NODE", cut=True),
    Column("STATE"),
    Column("BATCHES", right=True),
    Column("LAG", right=True),
    Column("SILENT", right=True),
    Column("BEHIND", right=True),
    Column("VERSION", wide=True),
    Column("ADDRESS", wide=True),
)
PORTS = (
    Column("PORT", cut=True),
    Column("NODE", cut=True),
    Column("RATE", right=True),
    Column("USED", right=True),
    Column("LOAD", right=True),
)


def _batch(at: int, row: pb.BatchPlace) -> Row:
    left_s = row.red_left_ns / 1e9
    red = Cell(duration(left_s)) if left_s >= 0 else Cell(f"late by {duration(-left_s)}", "red")
    return [str(at), str(row.batch_id), row.unit, ",".join(row.nodes), str(row.requests), red]


def _pruned(row: pb.Pruned) -> Row:
    why = f"batch {row.for_batch} would be late at {row.port}, where this request has most to move"
    return [str(row.request_id), str(row.batch_id), str(row.for_batch), row.port, why]


def _node(row: pb.Node) -> Row:
    return [
        row.node,
        "connected" if row.connected else Cell("lost", "red"),
        str(row.batches),
        duration(row.lag_ns / 1e9),
        duration(row.silent_ns / 1e9),
        str(row.epochs_behind),
        row.version,
        row.address,
    ]


def _port(node: str, port: pb.PortStatus) -> Row:
    used = sum(port.used.permille) + port.used.unscheduled_permille + port.used.passed_permille
    return [port.name, node, bit_rate(port.rate_bytes_per_s), share(used / 1000), share(port.rho)]
