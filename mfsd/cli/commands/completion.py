"""``mfsctl completion``: prints the script by which a shell completes one of our programs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAMS = ("mfsctl", "mfsd", "mfs-run", "mfs-soft-roce")


@click.command(
    epilog="""\b
Examples:
  mfsctl completion bash > ~/.local/share/bash-completion/completions/mfsctl
  mfsctl completion zsh --program mfs-run > _mfs-run
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option(
    "--program", type=click.Choice(PROGRAMS), default="mfsctl", show_default=True, help="Program to complete."
)
@click.pass_context
def completion(context: click.Context, shell: str, program: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  mfsctl completion bash > /etc/bash_completion.d/mfsctl
    zsh:   mfsctl completion zsh > "${fpath[1]}/_mfsctl"
    fish:  mfsctl completion fish > ~/.config/fish/completions/mfsctl.fish
    bash:  mfsctl completion bash --program mfs-run > /etc/bash_completion.d/mfs-run
    """
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    click.echo(kind(context.find_root().command, {}, program, variable).source())
