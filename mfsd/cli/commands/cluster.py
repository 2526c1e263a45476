"""``mfsctl cluster``: one verdict over coordinators and nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from msgspec import Struct

from mfsd.cli.asking import EXIT_UNREACHABLE
from mfsd.cli.daemon import DEFAULT_CONFIG, EXIT_BAD_CONFIG
from mfsd.cli.output import Cell, Column, Form, output_options, print_table, printed
from mfsd.observe.format import duration, share

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb

EXIT_NOT_WELL = 1
ATTAINMENT_LEAST = 0.9
"""As the alert MfsDeadlinesMissed has it."""
REQUESTS_LEAST = 20
"""A share of fewer says little."""
SILENT_S = 5.0
LOAD_FULL = 0.95
COLORS = {"fail": "red", "warn": "yellow", "ok": "green"}


class Point(Struct, frozen=True):
    severity: Literal["fail", "warn", "ok"]
    subject: str
    reason: str
    remedy: str = ""


class NodeLine(Struct, frozen=True):
    node: str
    state: Literal["connected", "lost"]
    version: str
    batches: int
    silent_s: float
    load: float
    """Of its busiest port (rho)."""


class ClusterReply(Struct, frozen=True):
    verdict: Literal["well", "not well", "no leader", "no answer"]
    points: list[Point]
    nodes: list[NodeLine]


@click.command(
    epilog="""\b
Exit codes:
  0  well (read the warnings all the same)
  1  not well: a node is lost, or no coordinator leads
  3  no coordinator answers

\b
Examples:
  mfsctl cluster
  mfsctl cluster --address coord-1:7400,coord-2:7400 -o wide
  mfsctl cluster --json | jq -r .verdict
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
@output_options
def cluster(address: str | None, config_file: Path | None, form: Form) -> None:
    """Say whether the cluster is well: one verdict over every coordinator and every node.

    It asks each coordinator that is named, and the one that leads for all nodes: who is connected, who is silent,
    how full ports are of what goes first, whether requests are in time, and what was odd. For one node, see
    mfsctl doctor.
    """
    from mfsd.cli.cluster import advice, ask_leader, ask_one, cluster_access
    from mfsd.node.config_file import ConfigError

    try:
        addresses, tls = cluster_access(address, config_file or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None))
    except ConfigError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    answers = {one: ask_one(one, tls, 1) for one in addresses}
    leader, _ = ask_leader(addresses, tls, 1)
    silent = {one: problem for one, (reply, problem) in answers.items() if reply is None}
    reply = judged(leader, len(addresses), silent, advice(list(silent.values())))
    if not printed(reply, form):
        _show(reply, form)
    sys.exit({"well": 0, "no answer": EXIT_UNREACHABLE}.get(reply.verdict, EXIT_NOT_WELL))


def judged(leader: pb.StatusReply | None, asked: int, silent: dict[str, str], remedy: str) -> ClusterReply:
    """The verdict. `silent`: coordinators that did not answer, and why."""
    points = [
        Point("warn" if len(silent) < asked else "fail", one, f"does not answer: {problem}", remedy)
        for one, problem in silent.items()
    ]
    if leader is None:
        return ClusterReply("no answer", points, [])
    if not leader.leads:
        named = f"{leader.leader} is said to lead, and does not answer" if leader.leader else "nobody leads"
        remedy = "look at etcd and at the other coordinators; nodes order for themselves meanwhile"
        return ClusterReply("no leader", [*points, Point("fail", leader.address, named, remedy)], [])
    for node in leader.nodes:
        points += _of_node(node)
    points += _of_requests(leader)
    points += [Point("warn", "reports", f"{why}: {n} times") for why, n in sorted(leader.oddities.items())]
    if not leader.nodes:
        points.append(
            Point(
                "warn", leader.address, "no daemon is connected", "name this address to them in [cluster] coordinators"
            )
        )
    if not points:
        points = [Point("ok", leader.address, f"leads {len(leader.nodes)} nodes")]
    bad = any(point.severity == "fail" for point in points)
    order = ("fail", "warn", "ok")
    return ClusterReply(
        "not well" if bad else "well",
        sorted(points, key=lambda point: order.index(point.severity)),
        [_line(node) for node in leader.nodes],
    )


def _of_node(node: pb.Node) -> list[Point]:
    found = []
    silent_s = node.silent_ns / 1e9
    if not node.connected:
        remedy = "mfsctl doctor there; until it is back it orders for itself"
        return [Point("fail", node.node, f"is lost, for {duration(silent_s)}", remedy)]
    if silent_s > SILENT_S:
        found.append(Point("warn", node.node, f"is connected and silent for {duration(silent_s)}", "look at its mfsd"))
    found += [
        Point("warn", port.name, f"{port.rho:.0%} of it go first: little is left for KV", "spread the requests")
        for port in node.ports
        if port.rho > LOAD_FULL
    ]
    return found


def _of_requests(leader: pb.StatusReply) -> list[Point]:
    seen = leader.attainment
    recent = seen.recent_met + seen.recent_missed
    if recent < REQUESTS_LEAST:
        return []
    met = seen.recent_met / recent
    text = f"{met:.1%} of {recent} were in time in the last {duration(seen.window_ns / 1e9)}"
    if met >= ATTAINMENT_LEAST:
        return [Point("ok", "requests", text)]
    return [Point("warn", "requests", text, "mfsctl coordinator status; on a node mfsctl explain --slowest")]


def _line(node: pb.Node) -> NodeLine:
    return NodeLine(
        node.node,
        "connected" if node.connected else "lost",
        node.version,
        node.batches,
        node.silent_ns / 1e9,
        max((port.rho for port in node.ports), default=0.0),
    )


NODES = (
    Column("NODE", cut=True),
    Column("STATE"),
    Column("BATCHES", right=True),
    Column("SILENT", right=True),
    Column("BUSIEST PORT", right=True),
    Column("VERSION", wide=True),
)


def _show(reply: ClusterReply, form: Form) -> None:
    color = "green" if reply.verdict == "well" else "red"
    click.echo(
        f"The cluster is {click.style(reply.verdict, fg=color)}."
        if "well" in reply.verdict
        else click.style(f"{reply.verdict[0].upper()}{reply.verdict[1:]}.", fg=color)
    )
    for point in reply.points:
        click.echo(click.style(f"{point.severity:6}", fg=COLORS[point.severity]) + f"{point.subject}: {point.reason}")
        if point.remedy:
            click.echo(f"{'':6}-> {point.remedy}")
    if reply.nodes:
        click.echo()
        rows = [
            [
                node.node,
                node.state if node.state == "connected" else Cell(node.state, "red"),
                str(node.batches),
                duration(node.silent_s),
                share(node.load),
                node.version,
            ]
            for node in reply.nodes
        ]
        print_table(NODES, rows, form)
