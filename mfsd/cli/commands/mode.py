"""``mfsctl mode``: shows the mode, or switches between observing and enforcing while the daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from mfsd.cli.daemon_call import ask_or_exit
from mfsd.cli.program import daemon_command
from mfsd.node.control import ModeReply, ModeRequest, StatusReply, StatusRequest


@click.command(
    epilog="\b\nExamples:\n  mfsctl mode           show the mode\n  mfsctl mode observe\n  mfsctl mode enforce\n"
)
@click.argument("mode", required=False, type=click.Choice(["observe", "enforce"]))
@daemon_command
def mode(path: Path, mode: Literal["observe", "enforce"] | None) -> None:
    """Show or set the mode: hold and permit (enforce), or only count and time (observe).

    The mode takes effect at once for every attached program and lasts until the daemon stops or the mode in its
    configuration file changes. Transfers that are held when enforcing ends are posted. Without MODE, the command
    shows the mode.
    """
    if mode is None:
        click.echo(f"mode: {ask_or_exit(path, StatusRequest(), StatusReply).daemon.mode}")
        return
    reply = ask_or_exit(path, ModeRequest(mode=mode), ModeReply)
    click.echo(f"mode: {reply.mode}" if reply.mode == reply.before else f"mode: {reply.before} -> {reply.mode}")
