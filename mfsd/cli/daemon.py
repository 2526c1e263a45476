"""``mfsd``: starts the node daemon in the foreground, as service managers want it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mfsd.cli.daemon_call import DEFAULT_CONFIG, plain_error
from mfsd.cli.program import Program

if TYPE_CHECKING:
    from mfsd.node.config import Config
    from mfsd.node.daemon import Daemon
    from mfsd.node.health import Examined
    from mfsd.node.log import Log
    from mfsd.node.options import Options

FINDINGS_MAX = 20
"""Limit of the doctor's findings in an answer to a caller that asks all nodes."""
EXIT_CANNOT_START = 1
EXIT_BAD_CONFIG = 2


@click.command(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="""\b
Signals:
  SIGHUP            reload the configuration; a bad file changes nothing.
                    A gateway only logs it: restart it to load a new file
  SIGTERM, SIGINT   stop; attached programs go on unscheduled. A gateway first
                    lets its requests end, for at most drain_s

\b
Examples:
  mfsd                                   serve /run/mfs/mfsd.sock (as root)
  mfsd --socket ~/mfs/mfsd.sock          serve as an ordinary user
  mfsd --mode observe                    count and time, hold nothing
  mfsd --coordinator-address coord-1:7400,coord-2:7400
  mfsd --coordinator                     order the batches of a cluster
  mfsd --coordinator --etcd e1:2379,e2:2379,e3:2379   one of several
  mfsd --gateway --config gateway.toml   one address for several engines
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
    help="Unix socket to serve; overrides the file. Programs find it by MFS_SOCKET.",
)
@click.option(
    "--mode",
    type=click.Choice(["off", "observe", "enforce"]),
    help="Mode; overrides the file. enforce: hold and permit; observe: only count and time; off: do nothing.",
)
@click.option(
    "--coordinator-address",
    "coordinators",
    metavar="HOST:PORT,...",
    help="Coordinators of the cluster; overrides [cluster] coordinators in the file.",
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Address to serve /metrics at; overrides [metrics] listen in the file, for an address that differs by node.",
)
@click.option("--coordinator", is_flag=True, help="Run as a coordinator instead of a node's daemon.")
@click.option(
    "--gateway",
    is_flag=True,
    help="Run as a gateway in front of engines: OpenAI's API in and out. --config names the gateway's own file.",
)
@click.option("--listen", metavar="HOST:PORT", help="With --coordinator: address to serve at. Default: [::]:7400.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="With --coordinator: address that daemons connect to. Default: the host's name.",
)
@click.option(
    "--etcd",
    metavar="HOST:PORT,...",
    help="With --coordinator: etcd endpoints, through which several coordinators elect a leader.",
)
@click.option("--check-config", is_flag=True, help="Read the configuration, print what is wrong with it, and exit.")
@click.option("--print-default-config", is_flag=True, help="Print the default configuration, with comments, and exit.")
@click.version_option(package_name="mfsd")
def main(
    config_file: Path | None,
    socket_path: Path | None,
    mode: str | None,
    coordinators: str | None,
    metrics_listen: str | None,
    coordinator: bool,
    gateway: bool,
    listen: str | None,
    advertise: str | None,
    etcd: str | None,
    check_config: bool,
    print_default_config: bool,
) -> None:
    """Schedule the network of this node's LLM serving processes.

    mfsd receives permit requests from the programs that run under `mfs-run`, keeps one queue for every NIC, and
    lets the most urgent flow go first. Without mfsd, programs run as if MFS were not there. `mfsctl status` shows
    what mfsd does.

    With --coordinator, mfsd orders the batches of all nodes and prunes requests that cannot meet their deadlines;
    see `mfsctl coordinator status`. With --gateway, it passes requests on to several engines; see `mfsctl gateway
    status`.
    """
    signal.signal(signal.SIGTERM, _end)
    of_daemon = {"--coordinator-address": coordinators, "--socket": socket_path, "--mode": mode}
    of_coordinator = {"--listen": listen, "--advertise": advertise, "--etcd": etcd}
    if gateway:
        from mfsd.cli.gateway_process import run

        _check_gateway_usage(coordinator, {**of_daemon, **of_coordinator, "--metrics-listen": metrics_listen})
        sys.exit(run(config_file, check_config, print_default_config))
    from mfsd.node.config_file import ConfigError
    from mfsd.node.options import Options, address, addresses

    if print_default_config:
        from mfsd.node.reference import default_toml

        click.echo(default_toml(), nl=False)
        return
    if config_file is None and DEFAULT_CONFIG.exists():
        config_file = DEFAULT_CONFIG
    _check_usage(coordinator, of_daemon, of_coordinator)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # stays pending for the code that reads the file again
    try:
        options = Options(
            config_file=config_file.absolute() if config_file else None,
            socket=socket_path.absolute() if socket_path else None,
            mode=mode,  # type: ignore[arg-type]  # click has checked it
            coordinators=addresses("--coordinator-address", coordinators),
            metrics_listen=address("--metrics-listen", metrics_listen),
            listen=address("--listen", listen),
            advertise=address("--advertise", advertise),
            etcd=addresses("--etcd", etcd),
        )
        if check_config:
            _check(options)
        config = options.configuration()
    except ConfigError as error:
        click.echo(f"mfsd: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    if check_config:
        click.echo(f"{options.config_file or 'built-in defaults'}: good")
        return
    if coordinator:
        from mfsd.cli.coordinator_process import serve

        sys.exit(serve(options, config))
    sys.exit(_serve(options, config))


def _end(number: int, frame: object) -> None:
    """Ends the program on a signal during the start. Without a handler the first process of a container would ignore
    it."""
    sys.exit(0)


def _check(options: Options) -> None:
    """Prints everything that is wrong with the configuration, and ends the program if there is anything. Raises
    ConfigError."""
    from mfsd.node.config_file import doubts, problems, unusable_files
    from mfsd.node.wire import class_dscps

    file = options.config_file
    found = [str(problem) for problem in problems(file)] if file is not None else []
    if not found:
        config = options.configuration()
        found = list(unusable_files(config, str(file)))
        class_dscps(config, str(file))
        for doubt in doubts(config, str(file)):
            click.echo(f"mfsd: warning: {doubt}", err=True)
    for problem in found:
        click.echo(f"mfsd: {problem}", err=True)
    if found:
        sys.exit(EXIT_BAD_CONFIG)


def _check_gateway_usage(coordinator: bool, others: Mapping[str, object | None]) -> None:
    given = [name for name, value in others.items() if value is not None] + ["--coordinator"] * coordinator
    if given:
        raise click.UsageError(
            f"{given[0]} is not for a gateway: leave it out; a gateway reads only its file (--config)"
        )


def _check_usage(
    coordinator: bool, only_daemon: Mapping[str, object | None], only_coordinator: Mapping[str, str | None]
) -> None:
    for name, given in only_daemon.items():
        if given is not None and coordinator:
            raise click.UsageError(f"{name} is for a node's daemon: leave it out with --coordinator")
    for name, value in only_coordinator.items():
        if value is not None and not coordinator:
            raise click.UsageError(f"{name} is for a coordinator: add --coordinator")


def _serve(options: Options, config: Config) -> int:
    from mfsd.node.address import Address, AddressError
    from mfsd.node.config_file import ConfigError, control_path
    from mfsd.node.daemon import Daemon
    from mfsd.node.log import Log
    from mfsd.node.notify import Notifier

    log = Log(config.log_level, journal="JOURNAL_STREAM" in os.environ)
    try:
        address = Address(Path(config.socket.path), control_path(config.socket))
    except AddressError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_CANNOT_START

    async def serve() -> None:
        await Daemon(options, config, address, log, Notifier(os.environ), _observers(config, log)).run()

    try:
        asyncio.run(serve())
    except ConfigError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_BAD_CONFIG
    except AddressError as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_CANNOT_START
    except OSError as error:
        click.echo(f"mfsd: cannot start: {plain_error(error)}", err=True)
        return EXIT_CANNOT_START
    finally:
        address.release()
    return 0


def _observers(config: Config, log: Log) -> list[Callable[[Daemon], AbstractContextManager[object]]]:
    """Returns what the configuration asks to serve beside the sockets, the doctor, and what engines publish."""
    listen = config.metrics.listen
    found: list[Callable[[Daemon], AbstractContextManager[object]]] = [_doctor(config)]
    if config.cluster.coordinators:
        found.append(_tiers(config, log))
    if listen is not None:
        found.append(_metrics(listen, log))
    from mfsd.observe.spans import wanted

    if wanted(config.telemetry.otlp, os.environ):
        found.append(_spans(config, log))
    return found


def _doctor(config: Config) -> Callable[[Daemon], AbstractContextManager[object]]:
    @contextmanager
    def doctor(daemon: Daemon) -> Iterator[None]:
        daemon.examine = partial(_examined, config)
        yield

    return doctor


def _examined(config: Config) -> Examined:
    from mfsd.node.config_file import control_path
    from mfsd.node.control import HealthFinding
    from mfsd.node.health import Examined
    from mfsd.node.wire import fabric_profile
    from mfsd.observe.doctor.examine import examine
    from mfsd.observe.doctor.host import Host

    socket_path = Path(config.socket.path)
    name, profile = fabric_profile(config.wire)
    report = examine(Host(socket_path, control_path(config.socket), name, profile))
    wrong = [
        HealthFinding(found.severity, found.id, found.subject, found.reason, found.remedy)
        for found in report.findings
        if found.severity == "fail" or found.severity == "warn"
    ]
    return Examined(report.verdict, wrong[:FINDINGS_MAX])


def _tiers(config: Config, log: Log) -> Callable[[Daemon], AbstractContextManager[object]]:
    """Tiers for the coordinator, which alone asks the daemon for them."""

    @contextmanager
    def tiers(daemon: Daemon) -> Iterator[None]:
        from mfsd.serve.status_files import folders
        from mfsd.serve.tier_reader import TierReader

        named = [Path(folder) for folder in config.cluster.serve_status]

        def warn(path: Path, problem: str) -> None:
            log.warning("serve-status-unreadable", path=path, problem=problem)

        daemon.read_tiers = TierReader((lambda: named) if named else folders, warn).read
        yield

    return tiers


def _spans(config: Config, log: Log) -> Callable[[Daemon], AbstractContextManager[object]]:
    @contextmanager
    def spans(daemon: Daemon) -> Iterator[None]:
        from importlib.metadata import version

        from mfsd.node.uplink import node_name
        from mfsd.observe.spans import MissingExtra, exported

        otlp = config.telemetry.otlp
        with ExitStack() as stack:
            try:
                made = stack.enter_context(exported(otlp, node_name(config.cluster), version("mfsd"), log))
            except MissingExtra as error:
                if otlp:
                    raise OSError(f"telemetry.otlp = {otlp}: {error}") from error
                log.warning("no-spans", asked_by="OTEL_EXPORTER_OTLP_ENDPOINT", problem=error)  # set for the whole host
            else:
                daemon.requests.ended = made.ended
                daemon.spans = lambda: made.counts
            yield

    return spans


def _metrics(listen: str, log: Log) -> Callable[[Daemon], AbstractContextManager[object]]:
    host, _, port = listen.rpartition(":")

    @contextmanager
    def metrics(daemon: Daemon) -> Iterator[None]:
        from mfsd.observe.metrics import serve

        with ExitStack() as stack:
            try:
                served = stack.enter_context(serve(host.strip("[]"), int(port), daemon.status))
            except OSError as error:
                raise OSError(error.errno, f"metrics.listen = {listen}: {error.strerror or error}") from error
            log.info("metrics", listen=listen, port=served)
            yield

    return metrics


if __name__ == "__main__":
    main()
