"""``mfsctl status``: daemon, NICs and clients at a glance."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mfsd.cli import complete
from mfsd.cli.daemon_call import EXIT_REFUSED, ask_or_exit
from mfsd.cli.numbers import ID, Seconds
from mfsd.cli.output import Cell, Column, Form, output_options, print_table, printed, table_lines, terminal_width
from mfsd.cli.pids import Pids
from mfsd.cli.program import daemon_command
from mfsd.node.abi import skewed
from mfsd.node.control import (
    ClientStatus,
    DaemonStatus,
    NicStatus,
    RequestsReply,
    RequestsRequest,
    RequestStatus,
    StageBytes,
    StatusReply,
    StatusRequest,
)
from mfsd.node.control_client import Refused, Unreachable, ask
from mfsd.observe.format import bit_rate, byte_count, count, duration, share
from mfsd.observe.views import in_time_of

_SHORT_ROLES = {"nccl-data": "data", "nccl-cts": "cts", "nccl-flush": "flush", "unknown": "other"}


@click.command(
    epilog="""\b
Examples:
  mfsctl status
  mfsctl status -o wide                 more columns, nothing cut
  mfsctl status --watch --interval 0.5
  mfsctl status --requests              what each request has moved
  mfsctl status --request 4711 --json   of one, by stage and layer
"""
)
@click.option("--watch", is_flag=True, help="Repeat until interrupted; with --json, print one object a line.")
@click.option(
    "--interval",
    type=Seconds(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between samples.",
)
@click.option("--requests", is_flag=True, help="Show requests instead, most recently used first.")
@click.option(
    "--request",
    "request_id",
    type=ID,
    metavar="ID",
    help="Show one request, by layer.",
    shell_complete=complete.requests,
)
@click.option(
    "--limit", type=click.IntRange(1, 4096), default=100, show_default=True, help="Show at most this many requests."
)
@output_options
@daemon_command
def status(
    path: Path, form: Form, watch: bool, interval: float, requests: bool, request_id: int | None, limit: int
) -> None:
    """Show the daemon, the NICs and the attached programs.

    \b
    OUT, IN    share of the rate that was used recently
    HELD       bytes that wait for a permit
    IN FLIGHT  bytes permitted and not completed
    UNSCHED    bytes in flight that never wait (collectives, control)
    LOAD       share of the rate taken by traffic that goes first (rho);
               variant paper only
    SENT, RECEIVED  bytes completed in a class, by direction
    BYPASS     requests posted without a permit (overflow/hold limit/daemon gone)

    With --requests: bytes of each request that an adapter names, by tasks
    that asked for permits. The daemon remembers the last 4,096 requests. LEFT is
    the time until the deadline or, of an ended request, whether it met it.
    """
    if requests or request_id is not None:
        if watch:
            raise click.UsageError("--watch does not show requests: use mfsctl top to watch them")
        layers = form in ("json", "yaml") or request_id is not None
        reply = ask_or_exit(path, RequestsRequest(request_id or 0, layers=layers, limit=limit), RequestsReply)
        if request_id is not None and not reply.requests:
            click.echo(
                f"mfsctl: request {request_id} is not known: no adapter has named it, or newer requests have "
                "replaced it; see mfsctl status --requests",
                err=True,
            )
            sys.exit(EXIT_REFUSED)
        if not printed(reply, form):
            _show_requests(reply, form)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if form in ("json", "yaml"):
            _print_again(path, form, interval if watch else None)
        elif watch:
            _watch(path, form, interval)
        else:
            for line in _view(_ask(path), form):
                click.echo(line)


def _print_again(path: Path, form: Form, interval_s: float | None) -> None:
    while True:
        printed(_ask(path), form)
        if interval_s is None:
            return
        if form == "yaml":
            click.echo("---")
        sys.stdout.flush()
        time.sleep(interval_s)


def _watch(path: Path, form: Form, interval_s: float) -> None:
    """Shows the status again and again. Waits for a daemon that stops meanwhile."""

    def drawn(reply: StatusReply) -> Text:
        return Text.from_ansi("\n".join(_view(reply, form)), no_wrap=True, overflow="ellipsis")

    with Live(drawn(_ask(path)), console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                reply = ask(path, StatusRequest())
            except (Unreachable, Refused) as error:
                live.update(Text(str(error)), refresh=True)
            else:
                assert isinstance(reply, StatusReply)
                live.update(drawn(Pids(path, reply.daemon.pid).shown(reply)), refresh=True)


def _ask(path: Path) -> StatusReply:
    reply = ask_or_exit(path, StatusRequest(), StatusReply)
    return Pids(path, reply.daemon.pid).shown(reply)


def _view(reply: StatusReply, form: Form) -> list[str]:
    width = terminal_width(form)
    lines = _daemon_lines(reply.daemon)
    if in_time := in_time_of(reply.deadlines):
        lines.append(in_time)
    for abi, programs in skewed((client.abi for client in reply.clients), reply.daemon.abi).items():
        other = click.style(f"{programs} of another version:", fg="yellow")
        lines.append(f"{other} ABI {abi}, this daemon {reply.daemon.abi}; see mfsctl doctor")
    if reply.nics:
        lines += ["", *table_lines(NIC_COLUMNS, [_nic_row(nic) for nic in reply.nics], form, width)]
    used = [row for nic in reply.nics for row in _class_rows(nic)]
    if used:
        lines += ["", *table_lines(CLASS_COLUMNS, used, form, width)]
    if reply.clients:
        rows = [_client_row(client) for client in reply.clients]
        lines += ["", *table_lines(CLIENT_COLUMNS, rows, form, width)]
    else:
        lines += ["", "No program is attached; start one with mfs-run."]
    return lines


def _daemon_lines(daemon: DaemonStatus) -> list[str]:
    color = {"enforce": "green", "observe": "yellow"}.get(daemon.mode, "red")
    lines = [
        f"mfsd {daemon.version}  pid {daemon.pid}  {click.style(daemon.mode, fg=color)}  "
        f"up {duration(daemon.uptime_s)}  epoch {daemon.epoch}",
        f"{daemon.socket}  {daemon.config_file or 'built-in configuration'}",
    ]
    if daemon.refused:
        lines.append("refused: " + ", ".join(f"{name} {n}" for name, n in sorted(daemon.refused.items())))
    return lines


NIC_COLUMNS = (
    Column("NIC", cut=True),
    Column("RATE", right=True),
    Column("OUT", right=True),
    Column("IN", right=True),
    Column("LOAD", right=True),
    Column("IN FLIGHT", right=True),
    Column("WINDOW", right=True),
    Column("UNSCHED", right=True),
    Column("BYPASS", right=True),
    Column("MEAN WAIT", right=True),
    Column("LOAD IN", right=True, wide=True),
    Column("READS", right=True, wide=True),
    Column("PASSED", right=True, wide=True),
    Column("BYPASS IN", right=True, wide=True),
    Column("PAUSED", right=True, wide=True),
    Column("PROMOTED", right=True, wide=True),
    Column("GUID", wide=True),
)


def _nic_row(nic: NicStatus) -> list[str]:
    grants = sum(c.grants for c in nic.classes)
    return [
        nic.name,
        bit_rate(nic.rate_bytes_per_s),
        share(nic.utilization),
        share(nic.incoming_utilization),
        "-" if nic.load is None else share(nic.load),
        byte_count(nic.in_flight_bytes + nic.incoming_in_flight_bytes),
        byte_count(nic.window_bytes),
        byte_count(nic.unscheduled_in_flight_bytes),
        "-" if nic.port is None else bit_rate(nic.port.bypass_bytes_per_s),
        duration(nic.wait_s / grants) if grants else "-",
        "-" if nic.incoming_load is None else share(nic.incoming_load),
        byte_count(nic.incoming_in_flight_bytes),
        byte_count(nic.passed_bytes),
        "-" if nic.port is None else bit_rate(nic.port.incoming_bypass_bytes_per_s),
        "-" if nic.port is None or nic.port.incoming_pauses is None else count(nic.port.incoming_pauses),
        count(nic.promotions),
        nic.guid,
    ]


CLASS_COLUMNS = (
    Column("NIC", cut=True),
    Column("CLASS", right=True),
    Column("HELD", right=True),
    Column("TASKS", right=True),
    Column("IN FLIGHT", right=True),
    Column("SENT", right=True),
    Column("RECEIVED", right=True),
    Column("PERMITS", right=True),
    Column("PERMITTED", right=True, wide=True),
)


def _class_rows(nic: NicStatus) -> list[list[str]]:
    """Rows of the classes that were used; `-` is what never waits or went without a permit."""
    rows = [
        [
            nic.name,
            str(at),
            byte_count(c.held_bytes),
            count(c.held_tasks),
            byte_count(c.in_flight_bytes),
            byte_count(c.sent_bytes),
            byte_count(c.received_bytes),
            count(c.grants),
            byte_count(c.granted_bytes),
        ]
        for at, c in enumerate(nic.classes)
        if c.held_bytes or c.in_flight_bytes or c.grants
    ]
    if free := nic.unscheduled_bytes + nic.passed_bytes:
        unscheduled = byte_count(nic.unscheduled_in_flight_bytes)
        rows.append([nic.name, "none", "-", "-", unscheduled, byte_count(free), "-", "-", "-"])
    return rows


CLIENT_COLUMNS = (
    Column("PID"),
    Column("PROCESS", cut=True),
    Column("STATE"),
    Column("QUEUE PAIRS", cut=True),
    Column("HELD", right=True),
    Column("IN FLIGHT", right=True),
    Column("PERMITS", right=True),
    Column("BYPASS", right=True),
    Column("CLIENT", right=True, wide=True),
    Column("UID", right=True, wide=True),
    Column("POSTED", right=True, wide=True),
    Column("COMPLETED", right=True, wide=True),
    Column("ATTACHED", right=True, wide=True),
    Column("UNIT", wide=True),
    Column("NICS", wide=True),
)


def _client_row(client: ClientStatus) -> list[str | Cell]:
    gone = client.detach_reason is not None
    return [
        str(client.pid),
        client.process,
        Cell(f"{client.state} {client.detach_reason}", "red") if gone else client.state,
        _queue_pairs(client.queue_pairs),
        byte_count(client.held_bytes),
        byte_count(client.in_flight_bytes),
        count(client.permits),
        _bypasses(client),
        str(client.client_id),
        str(client.uid),
        byte_count(sum(client.posted_bytes.values())),
        byte_count(sum(client.completed_bytes.values())),
        duration(client.attached_s),
        client.unit,
        ",".join(client.nics),
    ]


def _queue_pairs(by_role: Mapping[str, int]) -> str:
    return " ".join(f"{_SHORT_ROLES.get(role, role)}:{n}" for role, n in by_role.items()) or "-"


def _bypasses(client: ClientStatus) -> str:
    counts = (client.bypassed_overflow, client.bypassed_hold, client.bypassed_stale)
    return "/".join(map(count, counts)) if any(counts) else "-"


REQUEST_COLUMNS = (
    Column("REQUEST"),
    Column("PROCESS", cut=True),
    Column("STATE"),
    Column("STAGE"),
    Column("LAYER", right=True),
    Column("TASKS", right=True),
    Column("ASKED", right=True),
    Column("DONE", right=True),
    Column("BYPASS", right=True),
    Column("LEFT", right=True),
    Column("BATCH", right=True, wide=True),
    Column("UNIT", wide=True),
    Column("AGE", right=True, wide=True),
    Column("DROPPED", right=True, wide=True),
)


def _show_requests(reply: RequestsReply, form: Form) -> None:
    if not reply.requests:
        click.echo("No request is known: no adapter has named one.")
        return
    print_table(REQUEST_COLUMNS, [row for request in reply.requests for row in _request_rows(request)], form)
    if reply.total > len(reply.requests):
        click.echo(f"... and {reply.total - len(reply.requests)} more; see --limit", err=True)


def _request_rows(request: RequestStatus) -> list[list[str | Cell]]:
    """One row for each stage and layer, each with all that is known of the request."""
    rows: list[list[str | Cell]] = []
    stages: list[StageBytes | None] = [*request.stages] or [None]
    for stage in stages:
        numbers = ["-"] * 6
        dropped = "-"
        if stage is not None:
            sizes = (stage.submitted_bytes, stage.completed_bytes, stage.bypassed_bytes)
            layer = "-" if stage.layer is None else str(stage.layer)
            numbers = [stage.stage, layer, count(stage.tasks), *map(byte_count, sizes)]
            dropped = byte_count(stage.dropped_bytes)
        rows.append(
            [
                str(request.request_id),
                ", ".join(request.processes),
                Cell(f"{request.state} pruned", "yellow") if request.pruned else request.state,
                *numbers,
                _left(request),
                "-" if request.batch_id is None else str(request.batch_id),
                request.unit,
                duration(request.age_s),
                dropped,
            ]
        )
    return rows


def _left(request: RequestStatus) -> str | Cell:
    if request.outcome is not None:
        return request.outcome if request.outcome == "met" else Cell("missed", "red")
    if request.deadline_left_s is None:
        return "-"
    left_s = request.deadline_left_s
    return duration(left_s) if left_s >= 0 else Cell(f"late {duration(-left_s)}", "red")
