"""``mfsctl top``: queues, NICs and programs, live."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mfsd.cli.daemon_call import EXIT_REFUSED, ask_or_exit
from mfsd.cli.numbers import Seconds
from mfsd.cli.pids import Pids
from mfsd.cli.program import daemon_command
from mfsd.node.control import RequestsReply, RequestsRequest, RequestStatus, StatusReply, StatusRequest
from mfsd.node.control_client import ask

REQUESTS_SHOWN = 500


@click.command(epilog="\b\nExamples:\n  mfsctl top\n  mfsctl top --interval 0.2\n")
@click.option("--interval", type=Seconds(0.1, 60), default=1.0, show_default=True, help="Seconds between samples.")
@daemon_command
def top(path: Path, interval: float) -> None:
    """Watch classes, NICs, programs, stages, units and requests live.

    \b
    1-6    choose the table          space  pause
    s, r   sort by the next column,  + -    sample less or more often
           reverse the order         q      leave
    /      show only rows with a text  ?  what all keys and words mean

    For programs use `mfsctl status --watch --json`.
    """
    first = ask_or_exit(path, StatusRequest(), StatusReply)  # a wrong socket is an error, not an empty screen
    if not sys.stdout.isatty():
        click.echo("mfsctl: top needs a terminal; for programs use mfsctl status --watch --json", err=True)
        sys.exit(EXIT_REFUSED)
    from mfsd.observe.top import Top
    from mfsd.observe.views import Sample

    pids = Pids(path, first.daemon.pid)

    def sample() -> Sample:
        nonlocal pids
        status = ask(path, StatusRequest())
        assert isinstance(status, StatusReply)
        requests: list[RequestStatus] = []
        if app.shows_requests:
            reply = ask(path, RequestsRequest(layers=False, limit=REQUESTS_SHOWN))
            assert isinstance(reply, RequestsReply)
            requests = reply.requests
        if pids.here and any(client.pid not in pids.here for client in status.clients):
            pids = Pids(path, status.daemon.pid)
        return Sample(pids.shown(status), requests)

    app = Top(sample, interval)
    app.run()
