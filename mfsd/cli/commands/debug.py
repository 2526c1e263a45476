"""``mfsctl debug``: shows internals, for finding faults of MFS itself."""

from __future__ import annotations

import sys

import click

from mfsd.cli.output import Form, output_options, printed


@click.group(
    epilog="""\b
Examples:
  mfsctl debug segment 4711         the memory that process 4711 shares with its daemon
"""
)
def debug() -> None:
    """Show internal state, for finding a fault of MFS itself."""


@debug.command(
    epilog="""\b
Examples:
  mfsctl debug segment 4711
  mfsctl debug segment 4711 --rings -o json
"""
)
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--rings", is_flag=True, help="Also print the slots of both rings: thousands of lines, mostly of the past."
)
@output_options
def segment(pid: int, rings: bool, form: Form) -> None:
    """Print the memory that process PID shares with its daemon: header, gates, counters, batches, requests.

    The memory is read as the headers of this installation declare it (csrc/include/mfs/abi.h says what each field
    means), while process and daemon go on writing, so counters may be of different moments. Table entries that are
    all zero are left out. Run it as root or as the user of the process.
    """
    from mfsd.observe.segment import SegmentError, decode_segment, read_segments, segment_lines

    try:
        trees = [decode_segment(data, rings) for data in read_segments(pid)]
    except SegmentError as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(1)
    if printed(trees, form):
        return
    for number, tree in enumerate(trees, 1):
        if len(trees) > 1:
            click.echo(f"session {number} of {len(trees)}:")
        for place, value in segment_lines(tree):
            click.echo(f"{place}: {value}")
