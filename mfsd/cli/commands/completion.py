"""``mfsctl completion``: the script that teaches a shell to complete mfsctl."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the completion script of a shell.

    \b
    bash:  mfsctl completion bash > /etc/bash_completion.d/mfsctl
    zsh:   mfsctl completion zsh > "${fpath[1]}/_mfsctl"
    fish:  mfsctl completion fish > ~/.config/fish/completions/mfsctl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "mfsctl", "_MFSCTL_COMPLETE").source())
