"""``mfsd --gateway``: one gateway in the foreground, as service managers want it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from mfsd.serve.gateway.settings import read_file
from mfsd.serve.settings import SettingsError

DEFAULT_CONFIG: Final = Path("/etc/mfs/gateway.toml")
EXIT_CANNOT_START: Final = 1
EXIT_BAD_CONFIG: Final = 2
DESCRIPTORS: Final = 65_536
"""Each open request takes two: the client's connection and the engine's."""


def run(config_file: Path | None, check_config: bool, print_default_config: bool) -> int:
    """Runs the gateway; returns the process's exit code."""
    if print_default_config:
        from mfsd.cli.gateway_reference import default_toml

        click.echo(default_toml(), nl=False)
        return 0
    file = config_file or DEFAULT_CONFIG
    try:
        settings = read_file(file)
    except SettingsError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_BAD_CONFIG
    if check_config:
        click.echo(f"{file}: good")
        return 0
    try:
        from mfsd.serve.gateway.app import CannotServe, serve
    except ImportError as error:
        click.echo(f"mfsd: --gateway needs more packages ({error}): pip install 'mfsd[gateway]'", err=True)
        return EXIT_CANNOT_START
    from mfsd.cli.daemon_call import plain_error
    from mfsd.node.descriptors import raise_limit
    from mfsd.node.log import Log

    raise_limit(DESCRIPTORS)
    log = Log(journal="JOURNAL_STREAM" in os.environ)
    try:
        listened = serve(settings, log)
    except CannotServe as error:
        click.echo(f"mfsd: cannot start: {error}", err=True)
        return EXIT_CANNOT_START
    except OSError as error:
        click.echo(f"mfsd: cannot start: listen = {settings.listen}: {plain_error(error)}", err=True)
        return EXIT_CANNOT_START
    return 0 if listened else EXIT_CANNOT_START
