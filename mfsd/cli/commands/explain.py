"""``mfsctl explain``: what a request or a program waits or waited for, and by which rule."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click
import msgspec

from mfsd.cli import complete
from mfsd.cli.commands.trace import print_explanation
from mfsd.cli.daemon_call import ask_or_exit
from mfsd.cli.output import Column, Form, Row, output_options, print_table, printed
from mfsd.cli.pids import Pids
from mfsd.cli.program import daemon_command
from mfsd.node.control import (
    ID_MAX,
    ExplainReply,
    ExplainRequest,
    RequestsReply,
    RequestsRequest,
    StatusReply,
    StatusRequest,
    WaitSeen,
    WhyReply,
    WhyRequest,
)
from mfsd.observe.format import byte_count, duration
from mfsd.text import whole_number

COLUMNS = (
    Column("AGO", right=True),
    Column("TASK"),
    Column("STAGE"),
    Column("SIZE", right=True),
    Column("WAITED", right=True),
    Column("BEHIND", right=True),
    Column("BYTES", right=True),
    Column("FIRST OF THEM", cut=True),
    Column("BY WHICH RULE", cut=True),
    Column("REQUEST", wide=True),
)


@click.command(
    epilog="""\b
Examples:
  mfsctl explain --slowest          the longest wait, now or in the last minute
  mfsctl explain 4711               request 4711, else the program of process 4711
  mfsctl explain --kind pid 4711    the program alone
  mfsctl explain 3:17:5             a task, as mfsctl trace lists it
  mfsctl explain --slowest -o json
"""
)
@click.argument("subject", required=False, metavar="[REQUEST|PID|TASK]", shell_complete=complete.requests)
@click.option(
    "--slowest", is_flag=True, help="Explain what waits longest now, else what waited longest in the last minute."
)
@click.option(
    "--kind",
    type=click.Choice(["any", "request", "pid"]),
    default="any",
    show_default=True,
    help="What the number names; any: a request if there is one, else a process.",
)
@output_options
@daemon_command
def explain(path: Path, form: Form, subject: str | None, slowest: bool, kind: Literal["any", "request", "pid"]) -> None:
    """Explain what a request or a program waits for: since when, behind whom and by which rule.

    For a request that has ended in the last minute, it shows when each stage was asked for and complete, whether
    the request was in time, and behind whom it was seen waiting. Daemons sample four times a second, so shorter
    waits may be missing.

    It also shows the place of the request's batch in the cluster's order and, if the coordinator gave the request
    up, why.
    """
    if (subject is None) != slowest:
        raise click.UsageError("name a request, a process id or a task, or give --slowest")
    if subject is not None and ":" in subject:
        reply = ask_or_exit(path, ExplainRequest(subject), ExplainReply)
        if not printed(reply, form):
            print_explanation(reply)
        return
    number = 0
    if subject is not None:
        given = whole_number(subject, ID_MAX)
        if given is None:
            raise click.UsageError(f"{subject!r} is neither a number nor CLIENT:SLOT; see mfsctl status --requests")
        number = given
    here = there = number
    if kind != "request" and not slowest:
        there = Pids(path, ask_or_exit(path, StatusRequest(), StatusReply).daemon.pid).of_daemon(number)
        if kind == "pid":
            number = there
        elif there != number and not ask_or_exit(path, RequestsRequest(number, False, 1), RequestsReply).requests:
            number, kind = there, "pid"
    why = ask_or_exit(path, WhyRequest(number, kind, slowest), WhyReply)
    if number != here:
        why = msgspec.structs.replace(why, about=why.about.replace(f"process {there}", f"process {here}"))
    if not printed(why, form):
        _show(why, form)
    sys.exit(0)


def _show(why: WhyReply, form: Form) -> None:
    state = {"in-flight": "in flight"}.get(why.state, why.state)
    click.echo(click.style(f"{why.about}: {state}", bold=True))
    for reason in why.reasons:
        click.echo(f"  {reason}")
    if why.task is not None and why.task.ahead:
        click.echo("Ahead of it:")
        for ahead in why.task.ahead:
            click.echo(f"  {ahead.id}  {ahead.stage}, {byte_count(ahead.size_bytes)}: {ahead.why}")
        if why.task.ahead_tasks > len(why.task.ahead):
            click.echo(f"  ... and {why.task.ahead_tasks - len(why.task.ahead)} more")
    if why.cluster:
        click.echo("In the cluster:")
        for sentence in why.cluster:
            click.echo(f"  {sentence}")
    if why.seen:
        click.echo("Waits seen in the last minute, the longest first:")
        print_table(COLUMNS, [_row(wait) for wait in why.seen], form)


def _row(wait: WaitSeen) -> Row:
    return [
        duration(wait.ago_s),
        wait.task,
        wait.stage,
        byte_count(wait.size_bytes),
        duration(wait.waited_s),
        str(wait.ahead_tasks),
        byte_count(wait.ahead_bytes),
        wait.first or "-",
        wait.rule or "-",
        "-" if wait.request_id is None else str(wait.request_id),
    ]
