"""``mfsctl trace``: waiting and in-flight tasks, the reason for one task's place, and recordings."""

from __future__ import annotations

from pathlib import Path

import click

from mfsd.cli import complete
from mfsd.cli.commands.trace_record import merge, record
from mfsd.cli.daemon_call import ask_or_exit
from mfsd.cli.output import Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import daemon_command
from mfsd.node.control import ExplainReply, ExplainRequest, TaskStatus, TraceReply, TraceRequest
from mfsd.observe.format import byte_count, duration


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mfsctl trace                     what waits now, in the order in which it goes
  mfsctl trace --explain 3:17:5    why that task is where it is
  mfsctl trace --explain 3:17 --json
  mfsctl trace record --seconds 5  a picture of everything for 5 seconds
""",
)
@click.option(
    "--explain",
    "task",
    metavar="TASK",
    help="Explain why a task, CLIENT:SLOT as listed, has its place. See also mfsctl explain.",
    shell_complete=complete.tasks,
)
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="List at most this many tasks."
)
@output_options
@daemon_command
def trace(path: Path, form: Form, task: str | None, limit: int) -> None:
    """List held and in-flight tasks, explain one of them, or record all.

    \b
    TASK    client, slot and generation: names a task until it ends
    CLASS   priority on the wire, 0 highest
    TIER    critical, early, last, scavenger: the order on this host
    LEVEL   of last stages in variant paper, 1 most urgent
    RLI     of early stages: layers until it is needed
    RANK    of its batch, 0 first
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    if task is not None:
        reply = ask_or_exit(path, ExplainRequest(task), ExplainReply)
        if not printed(reply, form):
            print_explanation(reply)
        return
    listed = ask_or_exit(path, TraceRequest(limit), TraceReply)
    if printed(listed, form):
        return
    if not listed.tasks:
        click.echo("No task waits or is in flight.")
        return
    print_table(COLUMNS, [_row(t) for t in listed.tasks], form)
    if any(t.pruned for t in listed.tasks):
        click.echo("* its request is pruned", err=True)
    if listed.total > len(listed.tasks):
        click.echo(f"... and {listed.total - len(listed.tasks)} more; see --limit", err=True)


trace.add_command(record)
trace.add_command(merge)


COLUMNS = (
    Column("TASK"),
    Column("NIC", cut=True),
    Column("STAGE"),
    Column("STATE"),
    Column("SIZE", right=True),
    Column("CLASS", right=True),
    Column("TIER", right=True),
    Column("LEVEL", right=True),
    Column("RLI", right=True),
    Column("RANK", right=True),
    Column("REQUEST", right=True, cut=True),
    Column("WAITED", right=True),
    Column("PROCESS", wide=True),
    Column("BATCH", right=True, wide=True),
    Column("LAYER", right=True, wide=True),
)


def _row(t: TaskStatus) -> Row:
    return [
        t.id,
        t.nic,
        t.stage,
        t.state,
        byte_count(t.size_bytes),
        str(t.wire_class),
        f"{t.tier}*" if t.pruned else t.tier,
        *("-" if n is None else str(n) for n in (t.level, t.rli, t.rank, t.request_id)),
        duration(t.waited_s),
        t.process,
        "-" if t.batch_id is None else str(t.batch_id),
        str(t.layer),
    ]


def print_explanation(reply: ExplainReply) -> None:
    for reason in reply.reasons:
        click.echo(reason)
    for ahead in reply.ahead:
        click.echo(f"  {ahead.id}  {ahead.stage}, {byte_count(ahead.size_bytes)}: {ahead.why}")
    if reply.ahead_tasks > len(reply.ahead):
        click.echo(f"  ... and {reply.ahead_tasks - len(reply.ahead)} more")
