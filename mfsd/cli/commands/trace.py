"""``mfsctl trace``: the tasks that wait or are in flight, why one of them has its place, and recordings."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mfsd.cli.asking import ask_or_exit
from mfsd.cli.commands.trace_record import merge, record
from mfsd.node.control import ExplainReply, ExplainRequest, TaskStatus, TraceReply, TraceRequest
from mfsd.observe.format import byte_count, duration


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  mfsctl trace                     what waits now, first to go first
  mfsctl trace --explain 3:17:5    why that task is where it is
  mfsctl trace --explain 3:17 --json
  mfsctl trace record --seconds 5  a picture of everything for 5 seconds
""",
)
@click.option("--explain", "task", metavar="TASK", help="Say why a task has its place; CLIENT:SLOT as listed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Most tasks listed.")
@click.pass_context
def trace(context: click.Context, task: str | None, as_json: bool, limit: int) -> None:
    """List held and in-flight tasks, explain one of them, or record all.

    \b
    TASK    client, slot and generation: names a task until it ends
    CLASS   priority on the wire, 0 highest
    TIER    critical, early, last, scavenger: the order on this host
    LEVEL   of last stages, 1 most urgent
    RLI     of early stages: layers until it is needed
    RANK    of its batch, 0 first
    """
    if context.invoked_subcommand is not None:
        return
    path: Path = context.obj
    if task is not None:
        reply = ask_or_exit(path, ExplainRequest(task), ExplainReply)
        if as_json:
            click.echo(msgspec.json.encode(reply))
        else:
            _print_explanation(reply)
        return
    listed = ask_or_exit(path, TraceRequest(limit), TraceReply)
    if as_json:
        click.echo(msgspec.json.encode(listed))
        return
    if not listed.tasks:
        click.echo("No task waits or is in flight.")
        return
    Console().print(_table(listed.tasks))
    if listed.total > len(listed.tasks):
        click.echo(f"... and {listed.total - len(listed.tasks)} more; see --limit")


trace.add_command(record)
trace.add_command(merge)


def _table(tasks: list[TaskStatus]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("TASK", "NIC", "STAGE", "STATE"):
        table.add_column(title, overflow="fold")
    for title in ("SIZE", "CLASS", "TIER", "LEVEL", "RLI", "RANK", "REQUEST", "WAITED"):
        table.add_column(title, justify="right", no_wrap=title != "REQUEST")
    for t in tasks:
        table.add_row(
            t.id,
            escape(t.nic),
            t.stage,
            t.state,
            byte_count(t.size_bytes),
            str(t.wire_class),
            f"{t.tier}*" if t.pruned else t.tier,
            *("-" if n is None else str(n) for n in (t.level, t.rli, t.rank, t.request_id)),
            duration(t.waited_s),
        )
    if any(t.pruned for t in tasks):
        table.caption = "* its request is pruned"
    return table


def _print_explanation(reply: ExplainReply) -> None:
    for reason in reply.reasons:
        click.echo(reason)
    for ahead in reply.ahead:
        click.echo(f"  {ahead.id}  {ahead.stage}, {byte_count(ahead.size_bytes)}: {ahead.why}")
    if reply.ahead_tasks > len(reply.ahead):
        click.echo(f"  ... and {reply.ahead_tasks - len(reply.ahead)} more")
