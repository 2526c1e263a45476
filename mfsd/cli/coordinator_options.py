"""Options that select the coordinators to ask: by address, or by the daemon's configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mfsd.cli.daemon_call import DEFAULT_CONFIG

C = TypeVar("C", bound=Callable[..., Any])


def coordinator_options(condition: str = "") -> Callable[[C], C]:
    """Adds `--address` and `--config` to a command, which receives them as `address` and `config_file`, the arguments
    of `cluster_access`. `condition` ends the help text of the addresses, for example ", with --cluster"."""

    def give(command: C) -> C:
        address = click.option(
            "--address",
            metavar="HOST:PORT,...",
            help=f"Addresses of the coordinators to ask{condition}. Default: [cluster] coordinators of the "
            "configuration.",
        )
        config = click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=f"The daemon's configuration file, for addresses and certificates. Default: {DEFAULT_CONFIG} if it "
            "exists.",
        )
        return address(config(command))

    return give
