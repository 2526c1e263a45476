"""``mfsctl cluster``: one verdict over coordinators and nodes."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click
from msgspec import Struct

from mfsd.cli.coordinator_options import coordinator_options
from mfsd.cli.daemon import EXIT_BAD_CONFIG
from mfsd.cli.daemon_call import EXIT_UNREACHABLE
from mfsd.cli.output import Cell, Column, Form, Row, output_options, print_table, printed
from mfsd.cli.tiers import TierLine, policies_text, tier_line, unreadable
from mfsd.node.control import HealthFinding, HealthReply, HealthRequest, encode
from mfsd.observe.format import count, duration, share

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb
    from mfsd.proto.wire import TlsFiles

EXIT_NOT_WELL = 1
ATTAINMENT_LEAST = 0.9
"""The limit of the alert MfsDeadlinesMissed."""
REQUESTS_LEAST = 20
"""A share of fewer requests means little."""
SILENT_S = 5.0
LOAD_FULL = 0.95
HEALTH_S = 10.0
CLOCK_OFF_S = 0.5
"""More than an answer takes."""
NODES_NAMED = 3
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
    """Used share of the rate of its busiest port."""
    bypass: float = 0.0
    """Share of the rate that bypasses MFS, at the port with the most of it. Not part of `load`."""
    mode: str = ""
    doctor: str = ""
    """The doctor's verdict: scheduled, not scheduled or cannot tell. Empty: there was no answer."""
    clock_s: float | None = None
    """Its wall clock minus that of this machine."""
    tiers: list[TierLine] = []
    """Its engines' requests."""


class Health(NamedTuple):
    reply: HealthReply | None
    problem: str = ""
    clock_s: float = 0.0


class ClusterReply(Struct, frozen=True):
    verdict: Literal["well", "not well", "no leader", "no answer"]
    points: list[Point]
    nodes: list[NodeLine]
    tiers: list[TierLine] = []
    """Sums over all nodes."""


@click.command(
    epilog="""\b
Exit codes:
  0  well (still read the warnings)
  1  not well: a node is lost, or no coordinator leads
  3  no coordinator answers

\b
Examples:
  mfsctl cluster
  mfsctl cluster --address coord-1:7400,coord-2:7400 -o wide
  mfsctl cluster --json | jq -r .verdict
"""
)
@coordinator_options()
@output_options
def cluster(address: str | None, config_file: Path | None, form: Form) -> None:
    """Check whether the cluster is well: one verdict over every coordinator and every node.

    The command asks every coordinator that is named, and all nodes through the leader. It checks which nodes are
    connected and silent, what the doctor finds on each, whether modes, versions and clocks agree, how full ports
    are of traffic that goes first, whether requests are in time, and what was odd in reports. For one node, see
    mfsctl doctor.

    Where engines publish what they serve (docs/serve.md), it shows the requests of each tier: those that have ended
    since their engines started, and those that are there now; with -o wide, also by node.
    """
    from mfsd.cli.cluster import advice, ask_one, cluster_access, reach_leader
    from mfsd.node.config_file import ConfigError

    try:
        addresses, tls = cluster_access(address, config_file)
    except ConfigError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    answers = {one: ask_one(one, tls, 1) for one in addresses}
    leader, reached, _ = reach_leader(addresses, tls, 1)
    silent = {one: problem for one, (reply, problem) in answers.items() if reply is None}
    health = _health(reached, tls) if leader is not None and leader.leads and leader.nodes else {}
    reply = verdict_of(leader, len(addresses), silent, advice(list(silent.values())), health)
    if not printed(reply, form):
        show(reply, form)
    sys.exit({"well": 0, "no answer": EXIT_UNREACHABLE}.get(reply.verdict, EXIT_NOT_WELL))


def _health(leader: str, tls: TlsFiles | None) -> dict[str, Health]:
    """Returns the answer of each node that answers. A daemon that is too old for this says so."""
    from mfsd.cli.ask_nodes import CannotAsk, asking, read

    found = dict[str, Health]()
    try:
        with asking(leader, tls, encode(HealthRequest()), "", HEALTH_S) as replies:
            for answer in map(read, (reply for reply in replies if reply.node)):
                reply = answer.reply if isinstance(answer.reply, HealthReply) else None
                clock_s = (reply.realtime_ns - time.time_ns()) / 1e9 if reply is not None else 0.0
                found[answer.node] = Health(reply, answer.problem, clock_s)
    except CannotAsk as error:
        found[leader] = Health(None, str(error))
    return found


def verdict_of(
    leader: pb.StatusReply | None, asked: int, silent: dict[str, str], remedy: str, health: dict[str, Health]
) -> ClusterReply:
    """Returns the verdict. `silent`: coordinators that did not answer, with the reason; `health`: of the nodes that
    were asked."""
    points = [
        Point("warn" if len(silent) < asked else "fail", one, f"does not answer: {problem}", remedy)
        for one, problem in silent.items()
    ]
    if leader is None:
        return ClusterReply("no answer", points, [])
    if not leader.leads:
        named = (
            f"{leader.leader} is named as the leader but does not answer" if leader.leader else "no coordinator leads"
        )
        remedy = "check etcd and the other coordinators; until one leads, each node orders its own batches"
        return ClusterReply("no leader", [*points, Point("fail", leader.address, named, remedy)], [])
    for node in leader.nodes:
        points += _of_node(node)
    points += _of_doctors(health)
    points += _of_differences(leader, health)
    points += _of_requests(leader)
    points += [Point("warn", "reports", f"{why}: {n} times") for why, n in sorted(leader.oddities.items())]
    points += [Point("warn", node, text, "see the log of its mfsd") for node, text in unreadable(leader.nodes)]
    if not leader.nodes:
        points.append(
            Point(
                "warn",
                leader.address,
                "no daemon is connected",
                "add this address to [cluster] coordinators of each daemon",
            )
        )
    if not points:
        points = [Point("ok", leader.address, f"leads {len(leader.nodes)} nodes")]
    bad = any(point.severity == "fail" for point in points)
    order = ("fail", "warn", "ok")
    return ClusterReply(
        "not well" if bad else "well",
        sorted(points, key=lambda point: order.index(point.severity)),
        [_line(node, health.get(node.node, Health(None))) for node in leader.nodes],
        [tier_line(row.tier) for row in leader.tiers],
    )


def _of_node(node: pb.Node) -> list[Point]:
    found = []
    silent_s = node.silent_ns / 1e9
    if not node.connected:
        remedy = "run mfsctl doctor there; until it reconnects it orders its own batches"
        return [Point("fail", node.node, f"has been lost for {duration(silent_s)}", remedy)]
    if silent_s > SILENT_S:
        found.append(
            Point("warn", node.node, f"is connected but has been silent for {duration(silent_s)}", "check its mfsd")
        )
    found += [
        Point(
            "warn",
            port.name,
            f"{port.rho:.0%} of it is used by traffic that goes first: little is left for KV",
            "spread the requests",
        )
        for port in node.ports
        if port.rho > LOAD_FULL
    ]
    return found


def _of_doctors(health: dict[str, Health]) -> list[Point]:
    """Findings of the doctors, each once for all nodes that have it. Programs on those nodes run as if MFS were not
    there."""
    where = defaultdict[str, list[str]](list)
    first = dict[str, HealthFinding]()
    for node, one in health.items():
        for finding in one.reply.findings if one.reply is not None else ():
            if finding.severity == "fail" and node not in where[finding.id]:
                where[finding.id].append(node)
                first.setdefault(finding.id, finding)
    found = [
        Point(
            "warn",
            _named(where[key]),
            f"mfsctl doctor fails: {key}: {finding.subject}{': ' if finding.subject else ''}{finding.reason}",
            finding.remedy,
        )
        for key, finding in first.items()
    ]
    unasked = {node: one.problem for node, one in health.items() if one.reply is None}
    found += [Point("warn", node, f"its doctor did not answer: {problem}") for node, problem in unasked.items()]
    return found


def _of_differences(leader: pb.StatusReply, health: dict[str, Health]) -> list[Point]:
    """Nodes that run another version or mode than others, or whose clocks are off."""
    found = []
    connected = [node for node in leader.nodes if node.connected]
    for what, of, remedy in (
        ("version", {node.node: node.version for node in connected}, "upgrade the older ones"),
        ("mode", {n: h.reply.mode for n, h in health.items() if h.reply}, "run mfsctl mode enforce on the others"),
    ):
        nodes = defaultdict[str, list[str]](list)
        for node, value in of.items():
            nodes[value].append(node)
        if len(nodes) > 1:
            text = "; ".join(f"{value or 'none'} on {_named(names)}" for value, names in sorted(nodes.items()))
            found.append(Point("warn", f"{what}s", text, remedy))
    for node, one in health.items():
        if one.reply is not None and abs(one.clock_s) > CLOCK_OFF_S:
            side = "ahead of" if one.clock_s > 0 else "behind"
            text = f"its wall clock is {duration(abs(one.clock_s))} {side} this machine's"
            found.append(
                Point("warn", node, text, "run chrony or systemd-timesyncd: logs and traces are compared by wall clock")
            )
    return found


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - NODES_NAMED
    return ", ".join(nodes[:NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_requests(leader: pb.StatusReply) -> list[Point]:
    seen = leader.attainment
    recent = seen.recent_met + seen.recent_missed
    if recent < REQUESTS_LEAST:
        return []
    met = seen.recent_met / recent
    text = f"{met:.1%} of {recent} were in time in the last {duration(seen.window_ns / 1e9)}"
    if met >= ATTAINMENT_LEAST:
        return [Point("ok", "requests", text)]
    return [Point("warn", "requests", text, "run mfsctl coordinator status, and mfsctl explain --slowest on a node")]


def _used(used: pb.Used) -> float:
    return (sum(used.permille) + used.unscheduled_permille + used.passed_permille) / 1000


def _line(node: pb.Node, health: Health) -> NodeLine:
    return NodeLine(
        node.node,
        "connected" if node.connected else "lost",
        node.version,
        node.batches,
        node.silent_ns / 1e9,
        max((_used(port.used) for port in node.ports), default=0.0),
        max((port.used.bypass_permille for port in node.ports), default=0) / 1000,
        health.reply.mode if health.reply is not None else "",
        health.reply.verdict if health.reply is not None else "",
        health.clock_s if health.reply is not None else None,
        [tier_line(row) for row in node.tiers.tiers],
    )


NODES = (
    Column("NODE", cut=True),
    Column("STATE"),
    Column("MODE"),
    Column("DOCTOR"),
    Column("BATCHES", right=True),
    Column("SILENT", right=True),
    Column("BUSIEST PORT", right=True),
    Column("BYPASS", right=True),
    Column("VERSION", wide=True),
    Column("CLOCK", right=True, wide=True),
)


TIER_COLUMNS = (
    Column("TIER", cut=True),
    Column("IN TIME", right=True),
    Column("MET", right=True),
    Column("LATE", right=True),
    Column("NO DEADLINE", right=True, wide=True),
    Column("ABORTED", right=True, wide=True),
    Column("WAITING", right=True),
    Column("RUNNING", right=True),
    Column("PAUSED", right=True),
    Column("RELEGATED", right=True),
    Column("LOST", right=True),
    Column("ENGINES", right=True),
    Column("POLICY", cut=True),
)


def _tier_row(line: TierLine) -> Row:
    ended = (line.met, line.late, line.no_deadline, line.aborted)
    here = (line.waiting, line.running, line.paused, line.relegated, line.lost)
    return [
        line.tier,
        "-" if line.in_time is None else share(line.in_time),
        *map(count, (*ended, *here, line.engines)),
        policies_text(line.policies),
    ]


def _show_tiers(reply: ClusterReply, form: Form) -> None:
    """By node only in the wide form: a large cluster has many."""
    if reply.tiers:
        click.echo()
        print_table(TIER_COLUMNS, [_tier_row(line) for line in reply.tiers], form)
    by_node: list[Row] = [[node.node, *_tier_row(line)] for node in reply.nodes for line in node.tiers]
    if by_node and form == "wide":
        click.echo()
        print_table((Column("NODE", cut=True), *TIER_COLUMNS), by_node, form)


def show(reply: ClusterReply, form: Form) -> None:
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
                node.mode or "-",
                Cell(node.doctor, "yellow") if node.doctor == "not scheduled" else node.doctor or "-",
                str(node.batches),
                duration(node.silent_s),
                share(node.load),
                share(node.bypass),
                node.version,
                "-" if node.clock_s is None else f"{node.clock_s:+.3f} s",
            ]
            for node in reply.nodes
        ]
        print_table(NODES, rows, form)
    _show_tiers(reply, form)
