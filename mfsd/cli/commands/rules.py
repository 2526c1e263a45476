"""``mfsctl rules``: the classification rules in force."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from mfsd.cli.asking import ask_or_exit
from mfsd.node.control import RulesReply, RulesRequest


@click.command(epilog="\b\nExamples:\n  mfsctl rules\n  mfsctl rules --json\n")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.pass_obj
def rules(path: Path, as_json: bool) -> None:
    """Show how queue pairs are told apart.

    Rules are tried in this order and the first match wins. Configured rules ([[rule]] in the file) come
    before the built-in ones.
    """
    reply = ask_or_exit(path, RulesRequest(), RulesReply)
    if as_json:
        click.echo(msgspec.json.encode(reply.rules))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("", "LIBRARY", "PROCESS", "PEER", "ROLE", "ACTION", "STAGE", "DSCP"):
        table.add_column(title, no_wrap=title in ("ACTION", "STAGE", "DSCP"), overflow="fold")
    for rule in reply.rules:
        table.add_row(
            "config" if rule.source == "configuration" else "built-in",
            rule.library or "*",
            " ".join(filter(None, (rule.process, rule.communicator and f"comm:{rule.communicator}"))) or "*",
            rule.peer or "*",
            "*" if rule.role == "any" else rule.role,
            f"[bold]{rule.action}[/]" if rule.action == "hold" else rule.action,
            rule.stage,
            "keep" if rule.dscp is None else str(rule.dscp),
        )
    Console().print(table)
