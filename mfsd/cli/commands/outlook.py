"""``mfsctl outlook``: the page that programs of this node read."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from msgspec import Struct

from mfsd._native import NICS_MAX, Client, Mode, OutlookPage
from mfsd.cli.daemon_call import ATTACH_SOCKET, EXIT_REFUSED, EXIT_UNREACHABLE
from mfsd.cli.output import Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import daemon_command
from mfsd.node.addresses import address_of_gid
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
)
FARS = (Column("FAR PORT"), Column("RATE", right=True), Column("OWED", right=True), Column("ACHIEVED", right=True))
DIRECTIONS = ("out", "in")


class Port(Struct, frozen=True):
    nic: str
    direction: str
    rate_bytes_per_s: int
    waiting_bytes: dict[str, int]
    in_flight_bytes: int
    achieved_bytes_per_s: int
    unscheduled_bytes_per_s: int


class Far(Struct, frozen=True):
    port: str
    rate_bytes_per_s: int | None
    owed_ns: int | None
    """None: no coordinator says it."""
    achieved_bytes_per_s: int | None


class Shown(Struct, frozen=True):
    epoch: int
    age_ns: int
    valid_for_ns: int
    coordinator_for_ns: int | None
    """For how long what it said of far ports still holds; None: nothing is known of them."""
    ports: list[Port]
    far_ports: list[Far]
    pruned: list[int]


@click.command(epilog="\b\nExamples:\n  mfsctl outlook\n  mfsctl outlook --json\n")
@output_options
@daemon_command
def outlook(_path: Path, form: Form) -> None:
    """Show what the network knows, as programs of this node read it.

    What waits at each port, what is owed at the ports at the other ends of current flows, and which requests
    are pruned. Attaches to the daemon as any program does.
    """
    socket = click.get_current_context().meta[ATTACH_SOCKET]
    try:
        client = Client.attach(str(socket), process="mfsctl", mode=Mode.OBSERVE)
    except OSError as error:
        click.echo(f"mfsctl: {socket}: {error.strerror}", err=True)
        sys.exit(EXIT_UNREACHABLE)
    with client:
        page, names = client.outlook(), [client.nic_name(nic) for nic in range(NICS_MAX)]
    if page is None:
        click.echo(
            "mfsctl: this daemon has no outlook page: it is older than ABI 1.5, or this kernel older than 5.1", err=True
        )
        sys.exit(EXIT_REFUSED)
    found = shown(page, names, time.monotonic_ns())
    if not printed(found, form):
        _print(found, form)


def shown(page: OutlookPage, names: list[str], now_ns: int) -> Shown:
    """names: of NICs by index."""
    return Shown(
        page.epoch,
        max(0, now_ns - page.written_ns),
        max(0, page.valid_until_ns - now_ns),
        page.far_valid_until_ns - now_ns if page.far_valid_until_ns > now_ns else None,
        [
            Port(
                names[at // 2],
                DIRECTIONS[at % 2],
                port.rate_bytes_per_s,
                dict(zip(("critical", "early", "last", "scavenger"), port.waiting_bytes, strict=True)),
                port.in_flight_bytes,
                port.achieved_bytes_per_s,
                port.unscheduled_bytes_per_s,
            )
            for at, port in enumerate(page.ports)
        ],
        [
            Far(
                f"{address_of_gid(far.peer)}/{DIRECTIONS[1 - far.direction]}",
                far.rate_bytes_per_s or None,
                far.owed_ns,
                far.achieved_bytes_per_s or None,
            )
            for far in page.fars
        ],
        list(page.pruned),
    )


def _print(found: Shown, form: Form) -> None:
    coordinator = "what is owed elsewhere is as the coordinator says"
    if found.coordinator_for_ns is None:
        coordinator = "no coordinator says what is owed elsewhere"
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
    ]


def _far(far: Far) -> Row:
    return [
        far.port,
        "unknown" if far.rate_bytes_per_s is None else bit_rate(far.rate_bytes_per_s),
        "unknown" if far.owed_ns is None else duration(far.owed_ns / 1e9),
        "-" if far.achieved_bytes_per_s is None else bit_rate(far.achieved_bytes_per_s),
    ]
