"""``mfsctl status``: daemon, NICs and clients at a glance, in 80 columns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from mfsd.cli.asking import ask_or_exit
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
from mfsd.observe.format import bit_rate, byte_count, count, duration

_SHORT_ROLES = {"nccl-data": "data", "nccl-cts": "cts", "nccl-flush": "flush", "unknown": "other"}


@click.command(
    epilog="""\b
Examples:
  mfsctl status
  mfsctl status --requests              what each request has moved
  mfsctl status --request 4711 --json   of one, by stage and layer
"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--watch", is_flag=True, help="Again and again until interrupted; with --json one object a line.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--requests", is_flag=True, help="Show requests instead, those used last first.")
@click.option("--request", "request_id", type=click.IntRange(1), metavar="ID", help="Show one request, by layer.")
@click.option("--limit", type=click.IntRange(1, 4096), default=100, show_default=True, help="Most requests shown.")
@click.pass_obj
def status(
    path: Path, as_json: bool, watch: bool, interval: float, requests: bool, request_id: int | None, limit: int
) -> None:
    """Show the daemon, the NICs and the attached programs.

    \b
    HELD       bytes that wait for a permit
    IN FLIGHT  bytes permitted and not completed
    UNSCHED    bytes in flight that never wait (collectives, control)
    LOAD       share of the rate taken by what goes first
    BYPASS     requests posted without a permit (overflow/hold limit/daemon gone)

    With --requests: bytes of each request that an adapter names, as tasks
    that asked for permits. The daemon remembers the last 4,096. LEFT is until
    the deadline; of one that has ended, whether it met it.
    """
    if requests or request_id is not None:
        if watch:
            raise click.UsageError("--watch shows the node; for requests, live, use mfsctl top")
        wanted = RequestsRequest(request_id or 0, layers=as_json or request_id is not None, limit=limit)
        _show_requests(ask_or_exit(path, wanted, RequestsReply), as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _print_json(path, interval if watch else None)
        elif watch:
            _watch(path, interval)
        else:
            Console().print(_view(_ask(path)))


def _print_json(path: Path, interval_s: float | None) -> None:
    while True:
        click.echo(msgspec.json.encode(_ask(path)))
        if interval_s is None:
            return
        time.sleep(interval_s)


def _watch(path: Path, interval_s: float) -> None:
    """A daemon that stops meanwhile is waited for."""
    with Live(_view(_ask(path)), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            try:
                reply = ask(path, StatusRequest())
            except (Unreachable, Refused) as error:
                live.update(escape(str(error)), refresh=True)
            else:
                assert isinstance(reply, StatusReply)
                live.update(_view(reply), refresh=True)


def _ask(path: Path) -> StatusReply:
    return ask_or_exit(path, StatusRequest(), StatusReply)


def _view(reply: StatusReply) -> RenderableType:
    parts: list[RenderableType] = [_daemon_line(reply.daemon)]
    for abi, programs in skewed((client.abi for client in reply.clients), reply.daemon.abi).items():
        parts.append(
            f"[yellow]{programs} of another version:[/] ABI {abi}, this daemon {reply.daemon.abi}; see mfsctl doctor"
        )
    if reply.nics:
        parts += ["", _nic_table(reply.nics)]
    if any(c.held_bytes or c.in_flight_bytes or c.grants for nic in reply.nics for c in nic.classes):
        parts += ["", _class_table(reply.nics)]
    parts += [
        "",
        _client_table(reply.clients) if reply.clients else "No program is attached; start one with mfs-run.",
    ]
    return Group(*parts)


def _daemon_line(daemon: DaemonStatus) -> str:
    color = {"enforce": "green", "observe": "yellow"}.get(daemon.mode, "red")
    lines = [
        f"mfsd {daemon.version}  pid {daemon.pid}  [{color}]{daemon.mode}[/]  "
        f"up {duration(daemon.uptime_s)}  epoch {daemon.epoch}",
        f"{escape(daemon.socket)}  {escape(daemon.config_file or 'built-in configuration')}",
    ]
    if daemon.refused:
        lines.append("refused: " + ", ".join(f"{name} {n}" for name, n in sorted(daemon.refused.items())))
    return "\n".join(lines)


def _table(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _nic_table(nics: list[NicStatus]) -> Table:
    table = _table(("NIC",), ("RATE", "WINDOW", "OUT", "IN", "UNSCHED", "LOAD", "LOAD IN", "MEAN WAIT"))
    for nic in nics:
        grants = sum(c.grants for c in nic.classes)
        table.add_row(
            escape(nic.name),
            bit_rate(nic.rate_bytes_per_s),
            byte_count(nic.window_bytes),
            byte_count(nic.in_flight_bytes),
            byte_count(nic.incoming_in_flight_bytes),
            byte_count(nic.unscheduled_in_flight_bytes),
            f"{nic.load:.0%}",
            f"{nic.incoming_load:.0%}",
            duration(nic.wait_s / grants) if grants else "-",
        )
    return table


def _class_table(nics: list[NicStatus]) -> Table:
    table = _table(("NIC",), ("CLASS", "HELD", "TASKS", "IN FLIGHT", "GRANTED", "PERMITS"))
    for nic in nics:
        for at, c in enumerate(nic.classes):
            if c.held_bytes or c.in_flight_bytes or c.grants:
                table.add_row(
                    escape(nic.name),
                    str(at),
                    byte_count(c.held_bytes),
                    count(c.held_tasks),
                    byte_count(c.in_flight_bytes),
                    byte_count(c.granted_bytes),
                    count(c.grants),
                )
    return table


def _client_table(clients: list[ClientStatus]) -> Table:
    table = _table(("PID", "PROCESS", "STATE", "QUEUE PAIRS"), ("HELD", "IN FLIGHT", "PERMITS", "BYPASS"))
    for client in clients:
        state = client.state if client.detach_reason is None else f"[red]{client.state} {client.detach_reason}[/]"
        table.add_row(
            str(client.pid),
            escape(client.process),
            state,
            _queue_pairs(client.queue_pairs),
            byte_count(client.held_bytes),
            byte_count(client.in_flight_bytes),
            count(client.permits),
            _bypasses(client),
        )
    return table


def _queue_pairs(by_role: Mapping[str, int]) -> str:
    return " ".join(f"{_SHORT_ROLES.get(role, role)}:{n}" for role, n in by_role.items()) or "-"


def _bypasses(client: ClientStatus) -> str:
    counts = (client.bypassed_overflow, client.bypassed_hold, client.bypassed_stale)
    return "/".join(map(count, counts)) if any(counts) else "-"


def _show_requests(reply: RequestsReply, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(reply))
        return
    if not reply.requests:
        click.echo("No such request is known: no adapter has named one, or it has made room for others.")
        return
    table = _table(("REQUEST", "PROCESS", "STATE"), ("STAGE", "LAYER", "TASKS", "ASKED", "DONE", "BYPASS", "LEFT"))
    for request in reply.requests:
        rows: list[StageBytes | None] = [*request.stages] or [None]
        head = [str(request.request_id), escape(", ".join(request.processes)), _state(request)]
        for row in rows:
            numbers = ["-"] * 6
            if row is not None:
                layer = "-" if row.layer is None else str(row.layer)
                sizes = (row.submitted_bytes, row.completed_bytes, row.bypassed_bytes)
                numbers = [row.stage, layer, count(row.tasks), *map(byte_count, sizes)]
            table.add_row(*head, *numbers, _left(request) if head[0] else "")
            head = ["", "", ""]
    Console().print(table)
    if reply.total > len(reply.requests):
        click.echo(f"... and {reply.total - len(reply.requests)} more; see --limit")


def _state(request: RequestStatus) -> str:
    return f"{request.state} [yellow]pruned[/]" if request.pruned else request.state


def _left(request: RequestStatus) -> str:
    if request.outcome is not None:
        return request.outcome if request.outcome == "met" else "[red]missed[/]"
    if request.deadline_left_s is None:
        return "-"
    left_s = request.deadline_left_s
    return duration(left_s) if left_s >= 0 else f"[red]late {duration(-left_s)}[/]"
