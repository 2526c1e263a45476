"""``mfsctl reload``: makes the daemon read its configuration again, and prints the result."""

from __future__ import annotations

from pathlib import Path

import click

from mfsd.cli.daemon_call import DEFAULT_CONFIG, ask_or_exit
from mfsd.cli.output import Form, output_options, printed
from mfsd.cli.program import daemon_command
from mfsd.node.control import ReloadReply, ReloadRequest


@click.command(
    epilog="\b\nExamples:\n  mfsctl reload         what took effect, and what needs a restart\n  mfsctl reload --json\n"
)
@output_options
@daemon_command
def reload(path: Path, form: Form) -> None:
    """Read the configuration file again.

    This does the same as SIGHUP, and prints which keys changed and which of them wait for a restart. A file with an
    error changes nothing.
    """
    reply = ask_or_exit(path, ReloadRequest(), ReloadReply)
    if printed(reply, form):
        return
    if reply.config_file is None:
        click.echo(
            "mfsd runs without a configuration file: there is nothing to read; to have one, restart it with --config "
            f"FILE, or create {DEFAULT_CONFIG} and restart it"
        )
        return
    click.echo(f"{reply.config_file}: {', '.join(reply.applied) or 'nothing'} changed")
    if reply.needs_restart:
        click.echo(f"restart mfsd for: {', '.join(reply.needs_restart)}")
