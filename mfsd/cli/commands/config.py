"""``mfsctl config``: the configuration in force."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mfsd.cli.daemon_call import EXIT_REFUSED, ask_or_exit
from mfsd.cli.output import Cell, Column, Form, output_options, print_table, printed
from mfsd.cli.program import daemon_command
from mfsd.node.config import Config
from mfsd.node.control import ConfigReply, ConfigRequest

COLUMNS = (Column("KEY"), Column("VALUE", cut=True), Column("FROM", cut=True))


@click.group(epilog="\b\nExamples:\n  mfsctl config show\n  mfsctl config show --changed\n")
def config() -> None:
    """Show the configuration. mfsd --check-config checks a file, mfsctl reload makes the daemon read it again."""


@config.command(
    epilog="""\b
Examples:
  mfsctl config show              every key
  mfsctl config show --changed    keys that are not at their default
  mfsctl config show arbiter      keys that begin with arbiter
  mfsctl config show -o json
"""
)
@click.argument("prefix", default="")
@click.option("--changed", is_flag=True, help="Show only keys that the file, the command line or mfsctl mode sets.")
@output_options
@daemon_command
def show(path: Path, form: Form, prefix: str, changed: bool) -> None:
    """Show the values in force in the daemon, and where each comes from.

    A key that waits for a restart still has its old value; mfsctl reload names such keys. The configuration has no
    secrets: it names the files of certificates and keys.
    """
    reply = ask_or_exit(path, ConfigRequest(), ConfigReply)
    values = [v for v in reply.values if v.key.startswith(prefix) and not (changed and v.source == "default")]
    if printed(ConfigReply(reply.config_file, values), form):
        return
    if prefix and not any(v.key.startswith(prefix) for v in reply.values):
        if any(table.startswith(prefix) for table in Config.__struct_fields__):
            click.echo(f"mfsctl: nothing is set in {prefix}", err=True)
            return
        click.echo(f"mfsctl: no key begins with {prefix!r}; mfsctl config show has all", err=True)
        sys.exit(EXIT_REFUSED)
    rows = [[v.key, v.value, v.source if v.source == "default" else Cell(v.source, "yellow")] for v in values]
    print_table(COLUMNS, rows, form)
