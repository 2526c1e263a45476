"""``mfsctl``: shows and controls the node daemon. Each subcommand is a file of :mod:`mfsd.cli.commands`."""

from __future__ import annotations

from pathlib import Path

import click

from mfsd.cli.daemon_call import ATTACH_SOCKET
from mfsd.cli.program import ProgramGroup, Subcommands
from mfsd.node.address import control_beside
from mfsd.node.control_client import default_control, default_socket

COMMANDS = (
    "bugreport",
    "cluster",
    "completion",
    "config",
    "coordinator",
    "debug",
    "doctor",
    "explain",
    "fabric",
    "flows",
    "gateway",
    "host",
    "install",
    "learn",
    "mode",
    "outlook",
    "playground",
    "reload",
    "rules",
    "serve",
    "status",
    "switch",
    "top",
    "trace",
)


@click.group(
    cls=ProgramGroup,
    commands=Subcommands("mfsd.cli.commands", COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="""\b
Examples:
  mfsctl doctor                     will programs on this node be scheduled?
  mfsctl status                     what is attached, held and in flight
  mfsctl explain --slowest          what waits longest, and why
  mfsctl --socket /run/b/mfsd.sock top   another daemon of this host, live
  mfsctl COMMAND --help             examples of each command

\b
Exit codes:
  0  done
  1  the daemon refused, or the request failed
  2  wrong usage
  3  no daemon answers
  4  the doctor cannot tell
  141  the reader closed the pipe early (such as | head)
""",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket that programs attach to. Default: $MFS_SOCKET, else /run/mfs/mfsd.sock.",
)
@click.option(
    "--control",
    "control",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The daemon's control socket, if mfsd.toml sets socket.control. Default: $MFS_CONTROL, else the path of "
    "--socket with -control added to its folder (/run/mfs-control/mfsd.sock).",
)
@click.version_option(package_name="mfsd")
@click.pass_context
def main(context: click.Context, socket_path: Path | None, control: Path | None) -> None:
    """Show and control mfsd on this node; configure hosts and switches."""
    context.obj = control or (control_beside(socket_path) if socket_path else default_control())
    context.meta[ATTACH_SOCKET] = socket_path or default_socket()


if __name__ == "__main__":
    main()
