"""``mfsctl outlook``: the page that programs of this node read."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mfsd.cli.daemon_call import ATTACH_SOCKET, EXIT_REFUSED, EXIT_UNREACHABLE
from mfsd.cli.output import Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import daemon_command
from mfsd.node.outlook_page import Far, Port, Shown, read_page
from mfsd.observe.format import bit_rate, byte_count, duration

PORTS = (
    Column("PORT"),
    Column("RATE", right=True),
    Column("CRITICAL", right=True, wide=True),
    Column("EARLY", right=True),
    Column("LAST", right=True),
    Column("SCAVENGER", right=True),
    Column("IN FLIGHT", right=True),
    Column("ACHIEVED", right=True),
    Column("COLLECTIVES", right=True),
    Column("FETCH 1 GIB", right=True),
)
FARS = (Column("FAR PORT"), Column("RATE", right=True), Column("OWED", right=True), Column("ACHIEVED", right=True))


@click.command(epilog="\b\nExamples:\n  mfsctl outlook\n  mfsctl outlook --json\n")
@output_options
@daemon_command
def outlook(_path: Path, form: Form) -> None:
    """Show the outlook of the network, as programs of this node read it.

    The outlook has what waits at each port, what the ports at the other ends of current flows still have to move,
    and which requests are pruned. The command attaches to the daemon as any program does.
    """
    socket = click.get_current_context().meta[ATTACH_SOCKET]
    try:
        found = read_page(socket)
    except OSError as error:
        click.echo(f"mfsctl: {socket}: {error.strerror}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    if found is None:
        click.echo(
            "mfsctl: this daemon has no outlook page: it is older than ABI 1.5, or this kernel older than 5.1", err=True
        )
        sys.exit(EXIT_REFUSED)
    if not printed(found, form):
        _print(found, form)


def _print(found: Shown, form: Form) -> None:
    coordinator = "far ports are as the coordinator reports them"
    if found.coordinator_for_ns is None:
        coordinator = "no coordinator reports far ports"
    click.echo(
        f"written {duration(found.age_ns / 1e9)} ago, holds for {duration(found.valid_for_ns / 1e9)}; {coordinator}"
    )
    click.echo()
    print_table(PORTS, [_port(port) for port in found.ports], form)
    if found.far_ports:
        click.echo()
        print_table(FARS, [_far(far) for far in found.far_ports], form)
    click.echo()
    click.echo(f"pruned: {', '.join(map(str, found.pruned)) or 'none'}")


def _port(port: Port) -> Row:
    return [
        f"{port.nic}/{port.direction}",
        bit_rate(port.rate_bytes_per_s),
        *(byte_count(waiting) for waiting in port.waiting_bytes.values()),
        byte_count(port.in_flight_bytes),
        bit_rate(port.achieved_bytes_per_s),
        bit_rate(port.unscheduled_bytes_per_s),
        "-" if port.fetch_gib_ns is None else duration(port.fetch_gib_ns / 1e9),
    ]


def _far(far: Far) -> Row:
    return [
        far.port,
        "unknown" if far.rate_bytes_per_s is None else bit_rate(far.rate_bytes_per_s),
        "unknown" if far.owed_ns is None else duration(far.owed_ns / 1e9),
        "-" if far.achieved_bytes_per_s is None else bit_rate(far.achieved_bytes_per_s),
    ]
