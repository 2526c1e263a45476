"""Asks the daemon on behalf of a subcommand, and turns failures into one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import click

from mfsd.node.control import Reply, Request
from mfsd.node.control_client import Refused, Unreachable, ask

ATTACH_SOCKET = "mfsd.socket"
"""In the context's `meta`: the socket that programs attach to. Its `obj` is the one that is asked."""
DEFAULT_CONFIG = Path("/etc/mfs/mfsd.toml")
"""Of the daemon, where no other is named."""
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

R = TypeVar("R", bound=Reply)


def plain_error(error: OSError) -> str:
    """What the system said, without numbers."""
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


@contextlib.contextmanager
def exit_without_daemon() -> Iterator[None]:
    """Ends the program with a message where a daemon inside does not answer, or answers with an error."""
    try:
        yield
    except (Unreachable, Refused) as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_REFUSED)


def ask_or_exit(path: Path, request: Request, expected: type[R]) -> R:
    """The daemon's reply; ends the program with a message when there is none or it is an error."""
    with exit_without_daemon():
        reply = ask(path, request)
    if not isinstance(reply, expected):
        click.echo(f"mfsctl: unexpected reply {type(reply).__name__}; is this another version of mfsd?", err=True)
        sys.exit(EXIT_REFUSED)
    return reply
