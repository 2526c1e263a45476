"""``mfsctl rules``: the classification rules in force."""

from __future__ import annotations

from pathlib import Path

import click

from mfsd.cli.daemon_call import ask_or_exit
from mfsd.cli.output import Cell, Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import daemon_command
from mfsd.node.control import RulesReply, RulesRequest, RuleStatus

COLUMNS = (
    Column("FROM"),
    Column("LIBRARY", cut=True),
    Column("PROCESS", cut=True),
    Column("PEER", cut=True),
    Column("ROLE"),
    Column("ACTION"),
    Column("STAGE"),
    Column("DSCP", right=True),
    Column("SET ROLE", wide=True),
)


@click.command(epilog="\b\nExamples:\n  mfsctl rules\n  mfsctl rules -o wide\n  mfsctl rules --json\n")
@output_options
@daemon_command
def rules(path: Path, form: Form) -> None:
    """Show the rules by which queue pairs are distinguished.

    Rules are tried in this order and the first match wins. Configured rules ([[rule]] in the file) come
    before the built-in ones.
    """
    reply = ask_or_exit(path, RulesRequest(), RulesReply)
    if not printed(reply.rules, form):
        print_table(COLUMNS, [_row(rule) for rule in reply.rules], form)


def _row(rule: RuleStatus) -> Row:
    process = " ".join(filter(None, (rule.process, rule.communicator and f"comm:{rule.communicator}")))
    return [
        "config" if rule.source == "configuration" else "built-in",
        rule.library or "*",
        process or "*",
        rule.peer or "*",
        "*" if rule.role == "any" else rule.role,
        Cell(rule.action, "yellow") if rule.action == "hold" else rule.action,
        rule.stage,
        "keep" if rule.dscp is None else str(rule.dscp),
        "as found" if rule.set_role == "any" else rule.set_role,
    ]
