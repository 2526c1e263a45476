"""``mfsctl mode``: switches between observing and enforcing while the daemon runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from mfsd.cli.asking import ask_or_exit
from mfsd.node.control import ModeReply, ModeRequest


@click.command(epilog="\b\nExamples:\n  mfsctl mode observe\n  mfsctl mode enforce\n")
@click.argument("mode", type=click.Choice(["observe", "enforce"]))
@click.pass_obj
def mode(path: Path, mode: Literal["observe", "enforce"]) -> None:
    """Hold and permit (enforce), or only count and time (observe).

    Takes effect at once for every attached program and lasts until the daemon stops or the mode in its
    configuration file changes. What is held when enforcing ends is posted.
    """
    reply = ask_or_exit(path, ModeRequest(mode=mode), ModeReply)
    click.echo(f"mode: {reply.mode}" if reply.mode == reply.before else f"mode: {reply.before} -> {reply.mode}")
