"""``mfsctl trace record`` and ``merge``: a picture over time of what daemons do."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from mfsd.cli import complete
from mfsd.cli.daemon_call import EXIT_REFUSED, exit_without_daemon
from mfsd.cli.numbers import ID, Seconds
from mfsd.node.address import control_beside
from mfsd.node.control_client import default_control
from mfsd.observe.format import count, duration

if TYPE_CHECKING:
    from mfsd.observe.perfetto import Document
    from mfsd.observe.recording import Recorded

DEFAULT_FILE = Path("mfs-trace.json")
EVENTS_MAX = 2_000_000


@click.command(
    epilog="""\b
Examples:
  mfsctl trace record --seconds 5
  mfsctl trace record --request 4711 --seconds 10 -o slow.json
  mfsctl trace record --socket /run/mfs/a.sock --socket /run/mfs/b.sock
  mfsctl trace merge node-a.json node-b.json -o both.json
"""
)
@click.option(
    "--socket",
    "sockets",
    type=click.Path(path_type=Path),
    metavar="PATH",
    multiple=True,
    help="Ask this daemon instead of the one that mfsctl asks; may be repeated.",
)
@click.option(
    "--request",
    "request_id",
    type=ID,
    metavar="ID",
    help="Record only this request.",
    shell_complete=complete.requests,
)
@click.option("--batch", "batch_id", type=ID, metavar="ID", help="Record only this batch and its requests.")
@click.option("--seconds", type=Seconds(0.1, 3600), help="How long to record. Default: until Ctrl-C.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=DEFAULT_FILE,
    show_default=True,
    metavar="FILE",
    help="Where to write.",
)
@click.option(
    "--max-events",
    type=click.IntRange(1),
    default=EVENTS_MAX,
    show_default=True,
    help="Most events to record of one daemon.",
)
@click.pass_context
def record(
    context: click.Context,
    sockets: tuple[Path, ...],
    request_id: int | None,
    batch_id: int | None,
    seconds: float | None,
    output: Path,
    max_events: int,
) -> None:
    """Record flows, permits, layers and deadlines as a picture over time.

    The file opens in https://ui.perfetto.dev and in chrome://tracing. Nothing
    leaves this host: the page reads the file in your browser. Ctrl-C ends the
    recording and writes what was recorded.

    Events that find the ring full are lost; the command says how many.
    """
    from mfsd.observe.perfetto import document
    from mfsd.observe.recording import Recordings

    if request_id is not None and batch_id is not None:
        raise click.UsageError("--request and --batch: give only one of them")
    _try_to_write(output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with exit_without_daemon():
        control = context.obj or default_control()
        recordings = Recordings([control_beside(path) for path in sockets] or [control], max_events)
    until = f"for {seconds:g} s" if seconds else "until Ctrl-C"
    with contextlib.suppress(KeyboardInterrupt):
        click.echo(f"recording {len(sockets) or 1} mfsd {until}", err=True)
        recordings.wait(seconds)
    found = recordings.stop()
    _write(document(found, request_id or 0, batch_id or 0), output)
    events = sum(len(r.events) for r in found)
    click.echo(f"{output}: {count(events) if events else 'no'} events; open it in https://ui.perfetto.dev", err=True)
    for recorded in found:
        _warn(recorded)


@click.command(epilog="\b\nExamples:\n  mfsctl trace merge node-a.json node-b.json -o both.json\n")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to write.")
def merge(files: tuple[Path, ...], output: Path) -> None:
    """Put recordings of several nodes into one file, on one time line.

    Times are those of each host's real-time clock, so they agree as well as
    the clocks do: to about a microsecond with PTP, a millisecond with NTP.
    """
    from mfsd.observe.perfetto import NotATrace, merge, read

    documents = []
    for file in files:
        try:
            documents.append(read(file.read_bytes()))
        except OSError as error:
            click.echo(f"mfsctl: {file}: {error.strerror}", err=True)
            sys.exit(EXIT_REFUSED)
        except NotATrace as error:
            click.echo(f"mfsctl: {file}: {error}", err=True)
            sys.exit(EXIT_REFUSED)
    _try_to_write(output)
    merged = merge(documents)
    _write(merged, output)
    names = ", ".join(sorted({node.node for node in merged.mfs.nodes}))
    click.echo(f"{output}: {count(len(merged.traceEvents))} events of {names}", err=True)


def _warn(recorded: Recorded) -> None:
    node = recorded.started.node
    if recorded.lost:
        click.echo(
            f"mfsctl: {node}: {recorded.lost} events were lost: they came faster than they could be read", err=True
        )
    if recorded.problem:
        click.echo(f"mfsctl: {node}: {recorded.problem}", err=True)
    if abs(recorded.realtime_drift_ns) > 1_000_000:
        moved = duration(abs(recorded.realtime_drift_ns) / 1e9)
        click.echo(
            f"mfsctl: {node}: its clock was set by {moved} during the recording; times go by the clock at its start",
            err=True,
        )


def _try_to_write(output: Path) -> None:
    """Checks that the file can be written before anything is recorded."""
    try:
        output.open("ab").close()
    except OSError as error:
        click.echo(f"mfsctl: --output {output}: {error.strerror}; name another file", err=True)
        sys.exit(EXIT_REFUSED)


def _write(document: Document, output: Path) -> None:
    try:
        output.write_bytes(msgspec.json.encode(document))
    except OSError as error:
        click.echo(f"mfsctl: --output {output}: {error.strerror}", err=True)
        sys.exit(EXIT_REFUSED)
