"""Asks the daemon for a subcommand, and turns failures into one line and an exit code."""

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
"""Key in the context's `meta` of the socket that programs attach to. The context's `obj` is the socket that is
asked."""
DEFAULT_CONFIG = Path("/etc/mfs/mfsd.toml")
"""The daemon's configuration file if no other is named."""
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3

R = TypeVar("R", bound=Reply)


def plain_error(error: OSError) -> str:
    """Returns the system's message, without numbers."""
    reason = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


@contextlib.contextmanager
def exit_without_daemon() -> Iterator[None]:
    """Ends the program with a message if a daemon asked inside does not answer, or answers with an error."""
    try:
        yield
    except (Unreachable, Refused) as error:
        click.echo(f"mfsctl: {error}", err=True)
        sys.exit(EXIT_UNREACHABLE if isinstance(error, Unreachable) else EXIT_REFUSED)


def ask_or_exit(path: Path, request: Request, expected: type[R]) -> R:
    """Returns the daemon's reply; ends the program with a message if there is none or it is an error."""
    with exit_without_daemon():
        reply = ask(path, request)
    if not isinstance(reply, expected):
        click.echo(f"mfsctl: unexpected reply {type(reply).__name__}; is this another version of mfsd?", err=True)
        sys.exit(EXIT_REFUSED)
    return reply
