"""``mfsd``: starts the node daemon in the foreground, as service managers want it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mfsd.node.config import Config
    from mfsd.node.daemon import Daemon, Options
    from mfsd.node.log import Log

DEFAULT_CONFIG = Path("/etc/mfs/mfsd.toml")
EXIT_CANNOT_START = 1
EXIT_BAD_CONFIG = 2


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="""\b
Signals:
  SIGHUP            read the configuration again; a bad file changes nothing
  SIGTERM, SIGINT   stop; attached programs go on unscheduled

\b
Examples:
  mfsd                                   serve /run/mfs/mfsd.sock (as root)
  mfsd --socket /tmp/mfsd.sock           serve as an ordinary user
  mfsd --mode observe                    count and time, hold nothing
  mfsd --print-default-config > mfsd.toml
  mfsd --check-config --config mfsd.toml
""",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Configuration (TOML). Default: {DEFAULT_CONFIG} if it exists, else built-in defaults.",
)
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Unix socket to serve, before what the file says. Programs find it by MFS_SOCKET.",
)
@click.option(
    "--mode",
    type=click.Choice(["off", "observe", "enforce"]),
    help="Before what the file says. enforce: hold and permit; observe: only count and time; off: nothing.",
)
@click.option("--check-config", is_flag=True, help="Read the configuration, say what is wrong with it, and exit.")
@click.option("--print-default-config", is_flag=True, help="Write the default configuration, explained, and exit.")
@click.version_option(package_name="mfsd")
def main(
    config_file: Path | None,
    socket_path: Path | None,
    mode: str | None,
    check_config: bool,
    print_default_config: bool,
) -> None:
    """Schedule the network of this node's LLM serving processes.

    mfsd takes permit requests of the programs that run under `mfs-run`, keeps one queue for every NIC, and
    lets the most urgent flow go first. Without it programs run as if MFS were not there. See what it does
    with `mfsctl status`.
    """
    from mfsd.node.config_file import ConfigError
    from mfsd.node.daemon import Options

    if print_default_config:
        from mfsd.node.reference import default_toml

        click.echo(default_toml(), nl=False)
        return
    if config_file is None and DEFAULT_CONFIG.exists():
        config_file = DEFAULT_CONFIG
    options = Options(
        config_file=config_file.absolute() if config_file else None,
        socket=socket_path.absolute() if socket_path else None,
        mode=mode,  # type: ignore[arg-type]  # click has checked it
    )
    try:
        config = options.configuration()
    except ConfigError as error:
        click.echo(f"mfsd: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    if check_config:
        click.echo(f"{options.config_file or 'built-in defaults'}: good")
        return
    sys.exit(_serve(options, config))


def _serve(options: Options, config: Config) -> int:
    from mfsd.node.address import Address, AddressError
    from mfsd.node.daemon import Daemon
    from mfsd.node.log import Log
    from mfsd.node.notify import Notifier

    log = Log(config.log_level, journal="JOURNAL_STREAM" in os.environ)
    try:
        address = Address(Path(config.socket.path))
    except AddressError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_CANNOT_START

    async def serve() -> None:
        await Daemon(options, config, address, log, Notifier(os.environ), _observers(config, log)).run()

    try:
        asyncio.run(serve())
    except AddressError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_CANNOT_START
    except OSError as error:
        click.echo(f"mfsd: cannot start: {error}", err=True)
        return EXIT_CANNOT_START
    finally:
        address.release()
    return 0


def _observers(config: Config, log: Log) -> list[Callable[[Daemon], AbstractContextManager[object]]]:
    """What the configuration asks to be served beside the sockets."""
    listen = config.metrics.listen
    if listen is None:
        return []

    @contextmanager
    def metrics(daemon: Daemon) -> Iterator[None]:
        from mfsd.observe.metrics import serve

        with ExitStack() as stack:
            try:
                port = stack.enter_context(serve(*listen.host_and_port(), daemon.status))
            except OSError as error:
                raise OSError(error.errno, f"metrics.listen = {listen}: {error.strerror or error}") from error
            log.info("metrics", listen=listen, port=port)
            yield

    return [metrics]


if __name__ == "__main__":
    main()
