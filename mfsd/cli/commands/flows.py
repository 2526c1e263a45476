"""``mfsctl flows``: flows as they end, filtered."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from pathlib import Path

import click
import msgspec

from mfsd.cli import complete
from mfsd.cli.coordinator_options import coordinator_options
from mfsd.cli.daemon import EXIT_BAD_CONFIG
from mfsd.cli.daemon_call import EXIT_UNREACHABLE, exit_without_daemon
from mfsd.cli.numbers import ID, Seconds
from mfsd.cli.output import FORMS, Column, Form, table_lines, terminal_width
from mfsd.node.address import control_beside
from mfsd.node.control import Flow, FlowsReply, FlowsRequest
from mfsd.node.control_client import default_control
from mfsd.node.flows import Filter, Pairing
from mfsd.node.values import DurationNs
from mfsd.observe.format import byte_count, duration
from mfsd.observe.recording import Recordings

LOOK_S = 0.2
STAGES = ("control", "reuse", "collective", "p2d", "background")
COLUMNS = (
    Column("ENDED"),
    Column("NODE", cut=True),
    Column("PROCESS", cut=True),
    Column("STAGE"),
    Column("REQUEST", right=True, cut=True),
    Column("PORT", cut=True),
    Column("SIZE", right=True),
    Column("CLASS", right=True),
    Column("WAITED", right=True),
    Column("TOOK", right=True),
    Column("END"),
    Column("DEADLINE", wide=True),
    Column("BATCH", right=True, wide=True),
    Column("LAYER", right=True, wide=True),
)
WIDTHS = (12, 10, 12, 10, 12, 10, 8, 5, 8, 8, 9, 12, 12, 5)
"""Fixed, because rows come one after the other and a later one must not move the columns of an earlier one."""


@click.command(
    epilog="""\b
Examples:
  mfsctl flows                                flows that end within a second
  mfsctl flows -f                             until Ctrl-C
  mfsctl flows -f --stage p2d --slow 50ms     slow transfers of KV
  mfsctl flows -f --request 4711 -o wide
  mfsctl flows -f --port mlx5_0/in -o json    one object a line
  mfsctl flows --cluster -f --slow 50ms       of all nodes, through the coordinator
  mfsctl flows --cluster --node gpu-7 --json
"""
)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option(
    "--seconds", type=Seconds(0.1, 3600), default=1.0, show_default=True, help="How long to watch, without -f."
)
@click.option(
    "--stage", "stages", multiple=True, type=click.Choice(STAGES), help="Only flows of this stage; may be repeated."
)
@click.option(
    "--request",
    "request_id",
    type=ID,
    metavar="ID",
    shell_complete=complete.requests,
    help="Only flows of this request.",
)
@click.option(
    "--port", default="", metavar="NIC[/out|/in]", shell_complete=complete.nics, help="Only flows through this port."
)
@click.option("--node", default="", help="Only flows of nodes with this in their names.")
@click.option("--process", default="", help="Only flows of programs with this in their names.")
@click.option(
    "--slow",
    default="",
    metavar="TIME",
    help="Only flows that took at least this long, waiting included, for example 50ms.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help="Output format: wide adds columns; json prints one object a line, yaml one document for each flow.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option(
    "--socket",
    "sockets",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Ask this daemon instead of the one that mfsctl asks; may be repeated.",
)
@click.option("--cluster", is_flag=True, help="Show the flows of all nodes, through the leading coordinator.")
@coordinator_options(", with --cluster")
@click.pass_context
def flows(
    context: click.Context,
    follow: bool,
    seconds: float,
    stages: tuple[str, ...],
    request_id: int | None,
    port: str,
    node: str,
    process: str,
    slow: str,
    form: Form,
    as_json: bool,
    sockets: tuple[Path, ...],
    cluster: bool,
    address: str | None,
    config_file: Path | None,
) -> None:
    """Show flows as they end: who asked for a permit, how long the flow waited, and how it ended.

    \b
    WAITED  from asking to the permit
    TOOK    from the permit to the last byte
    CLASS   of the permit; - had none
    END     done, bypassed (no permit), cancelled, dropped (its program ended)
    """
    form = "json" if as_json else form
    try:
        slow_s = DurationNs.parse(slow) / 1e9 if slow else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--slow") from None
    if "/" in port and port.rpartition("/")[2] not in ("in", "out"):
        raise click.BadParameter("write NIC, NIC/out or NIC/in, for example mlx5_0/in", param_hint="--port")
    wanted = Filter(frozenset(stages), request_id or 0, port, node, process, slow_s)
    if cluster and sockets:
        raise click.UsageError("--cluster asks the coordinator and --socket a daemon: give only one of them")
    if (address or config_file) and not cluster:
        raise click.UsageError("--address and --config name the coordinators to ask: add --cluster")
    if cluster:
        shown, lost = _of_cluster(wanted, form, None if follow else seconds, address, config_file)
        _conclude(shown, lost, form, follow)
        return
    with exit_without_daemon():
        recordings = Recordings([control_beside(path) for path in sockets] or [context.obj or default_control()])
    shown, end_s = 0, None if follow else time.monotonic() + seconds
    try:
        with contextlib.suppress(KeyboardInterrupt):
            shown = _stream(recordings, wanted, form, end_s)
    finally:
        lost = sum(recorded.lost for recorded in recordings.stop())
    _conclude(shown, lost, form, follow)


def _conclude(shown: int, lost: int, form: Form, follow: bool) -> None:
    if not shown and form in ("table", "wide") and not follow:
        click.echo("No such flow ended meanwhile; use -f to wait, or mfsctl trace for flows under way.", err=True)
    if lost:
        click.echo(f"mfsctl: {lost} events were lost: they came faster than they could be read", err=True)


def _of_cluster(
    wanted: Filter, form: Form, seconds: float | None, address: str | None, config_file: Path | None
) -> tuple[int, int]:
    """Prints the flows of all nodes until the time is over or Ctrl-C. Returns how many flows there were, and how many
    events were lost."""
    from mfsd.cli.ask_nodes import CannotAsk, NodeAnswers
    from mfsd.node.config_file import ConfigError

    request = FlowsRequest(sorted(wanted.stages), wanted.request_id, wanted.port, wanted.process, wanted.slow_s)
    shown, lost = 0, dict[str, int]()
    try:
        with (
            contextlib.suppress(KeyboardInterrupt),
            NodeAnswers(
                address,
                config_file,
                request,
                wanted.node,
                seconds,
            ) as answers,
        ):
            for answer in answers:
                if isinstance(answer.reply, FlowsReply):
                    lost[answer.node] = answer.reply.lost
                    for flow in answer.reply.flows:
                        _print(flow, answer.reply.realtime_offset_ns, form, first=not shown)
                        shown += 1
                    sys.stdout.flush()
                lost[""] = answer.lost
                if answer.problem:
                    click.echo(f"mfsctl: {answer.node}: {answer.problem}", err=True)
    except ConfigError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    except CannotAsk as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    return shown, sum(lost.values())


def _stream(recordings: Recordings, wanted: Filter, form: Form, end_s: float | None) -> int:
    """Prints flows until the time is over; returns how many."""
    pairings = [Pairing(recorded.started.node) for recorded in recordings.found]
    shown = 0
    while True:
        over = end_s is not None and time.monotonic() >= end_s
        for pairing, recorded in zip(pairings, recordings.found, strict=True):
            count = len(recorded.events)  # the reading thread appends meanwhile
            events = recorded.events[:count]
            del recorded.events[:count]
            real_ns = recorded.started.realtime_ns - recorded.started.monotonic_ns
            for flow in pairing.take(events, recorded.processes, recorded.nics):
                if wanted.wants(flow):
                    _print(flow, real_ns, form, first=not shown)
                    shown += 1
        sys.stdout.flush()
        if over or all(recorded.problem for recorded in recordings.found):
            return shown
        recordings.wait(LOOK_S if end_s is None else max(0.0, min(LOOK_S, end_s - time.monotonic())))


def _print(flow: Flow, real_ns: int, form: Form, first: bool) -> None:
    if form == "json":
        click.echo(msgspec.json.encode(flow))
        return
    if form == "yaml":
        click.echo("---\n" + msgspec.yaml.encode(msgspec.to_builtins(flow)).decode(), nl=False)
        return
    ended = datetime.datetime.fromtimestamp((flow.ended_ns + real_ns) / 1e9).astimezone()
    late = "-" if flow.late_s is None else f"{duration(abs(flow.late_s))} {'late' if flow.late_s > 0 else 'left'}"
    cells = [
        ended.strftime("%H:%M:%S.%f")[:-3],
        flow.node,
        flow.process,
        flow.stage,
        str(flow.request_id or "-"),
        f"{flow.nic}/{'in' if flow.incoming else 'out'}",
        byte_count(flow.size_bytes),
        "-" if flow.wire_class is None else str(flow.wire_class),
        "-" if flow.waited_s is None else duration(flow.waited_s),
        "-" if flow.took_s is None else duration(flow.took_s),
        flow.end,
        late,
        str(flow.batch_id or "-"),
        str(flow.layer),
    ]
    padded = [cell.rjust(w) if c.right else cell.ljust(w) for cell, c, w in zip(cells, COLUMNS, WIDTHS, strict=True)]
    titles = [
        c._replace(title=c.title.rjust(w) if c.right else c.title.ljust(w))
        for c, w in zip(COLUMNS, WIDTHS, strict=True)
    ]
    head, row = table_lines(titles, [padded], form, terminal_width(form), keep=True)
    if first:
        click.echo(head)
    click.echo(row)
