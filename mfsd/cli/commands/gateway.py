"""``mfsctl gateway``: what a gateway knows of its replicas. Asks the address in its `[metrics]`; needs no daemon."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from http.client import HTTPException

import click
import msgspec

from mfsd.cli.daemon_call import EXIT_UNREACHABLE
from mfsd.cli.output import Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import ProgramGroup
from mfsd.observe.format import count, share
from mfsd.serve.gateway.replicas import Stage
from mfsd.serve.gateway.status import GatewayStatus, ReplicaStatus

URL_DEFAULT = "http://127.0.0.1:8081"
TIMEOUT_S = 5.0


@click.group(
    cls=ProgramGroup,
    epilog="""\b
Examples:
  mfsctl gateway status                            replicas, their load and the queue
  mfsctl gateway status --url http://gw-1:8081     a gateway on another host
  mfsctl gateway status --json                     the same for programs
""",
)
def gateway() -> None:
    """Show what a gateway (mfsd --gateway) does. Needs no daemon. See docs/gateway.md."""


def _asked(url: str) -> GatewayStatus:
    """Ends the program if no gateway answers."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/status.json", timeout=TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=GatewayStatus)
    except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        remedy = "give the address of metrics.listen in its file with --url"
        click.echo(f"mfsctl: no gateway answers at {url} ({reason}); {remedy}", err=True)
        sys.exit(EXIT_UNREACHABLE)


COLUMNS = (
    Column("REPLICA"),
    Column("ROLE"),
    Column("STATE"),
    Column("WAITING", right=True),
    Column("RUNNING", right=True),
    Column("MOST", right=True),
    Column("KV", right=True),
    Column("SENT", right=True),
    Column("FAILED", right=True),
    Column("MODELS"),
)


def _row(replica: ReplicaStatus) -> Row:
    return (
        replica.name,
        replica.role.value,
        _state(replica),
        count(replica.waiting),
        count(replica.running),
        count(replica.requests_max),
        share(replica.kv_used_share),
        count(replica.sent),
        count(replica.failed),
        ", ".join(replica.models) or "any",
    )


def _state(replica: ReplicaStatus) -> str:
    if replica.healthy:
        return "up"
    return f"down: {replica.problem}" if replica.stage is Stage.RUNS else replica.stage.value


@gateway.command(
    epilog="""\b
Examples:
  mfsctl gateway status
  mfsctl gateway status --url http://gw-1:8081 --json
"""
)
@click.option(
    "--url",
    default=URL_DEFAULT,
    metavar="URL",
    show_default=True,
    help="Address at which the gateway shows its status ([metrics] listen in its file).",
)
@output_options
def status(url: str, form: Form) -> None:
    """Show the replicas, their load, and what waits in the gateway.

    \b
    WAITING  requests there without a first byte, also of other clients
    MOST     most requests given to it at a time; others wait in the gateway
    FAILED   calls that ended with an error of the connection
    """
    found = _asked(url)
    if printed(found, form):
        return
    print_table(COLUMNS, [_row(replica) for replica in found.replicas], form)
    how = " as they change" if found.watched else ""
    ports = f"ports from {found.coordinator}{how}" if found.coordinator else "ports unknown"
    click.echo(f"router {found.router}, queue {found.queue} of {found.queue_max}, {found.programs} programs, {ports}")
