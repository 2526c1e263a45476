"""``mfsd --coordinator``: one coordinator in the foreground, as service managers want it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from mfsd.cli.cluster import coordinator_settings

if TYPE_CHECKING:
    from mfsd.coordinator.service import Service
    from mfsd.coordinator.settings import Settings
    from mfsd.node.config import Config
    from mfsd.node.log import Log
    from mfsd.node.options import Options

EXIT_CANNOT_START = 1


class CannotShow(Exception):
    """Listening on the web page's address is not possible."""


def _observers(config: Config, log: Log) -> list[Callable[[Service], AbstractContextManager[object]]]:
    """Returns what the configuration asks to serve beside the coordinator's own port."""
    listen = config.coordinator.web
    if listen is None:
        return []
    host, _, port = listen.rpartition(":")

    @contextmanager
    def web(service: Service) -> Iterator[None]:
        from mfsd.cli.coordinator_web import web as served_web

        with ExitStack() as stack:
            try:
                served = stack.enter_context(served_web(host.strip("[]"), int(port), service))
            except OSError as error:
                raise CannotShow(f"coordinator.web = {listen}: {error.strerror or error}") from error
            log.info("web", listen=listen, port=served)
            yield

    return [web]


def serve(options: Options, config: Config) -> int:
    """Runs until a signal; returns the process's exit code."""
    try:
        from mfsd.coordinator.process import run
        from mfsd.coordinator.server import CannotListen
    except ImportError as error:
        click.echo(f"mfsd: --coordinator needs grpcio and protobuf ({error}): pip install grpcio protobuf", err=True)
        return EXIT_CANNOT_START
    from mfsd.node.config_file import ConfigError
    from mfsd.node.log import Log
    from mfsd.node.notify import Notifier
    from mfsd.node.reload import reloaded
    from mfsd.proto.wire import TlsError

    log = Log(config.log_level, journal="JOURNAL_STREAM" in os.environ)

    in_force = config

    def reload() -> Settings | None:
        nonlocal in_force
        try:
            in_force, applied, waiting = reloaded(in_force, options.configuration(), "coordinator")
        except ConfigError as error:
            log.error("reload-failed", problem=error, remedy="the old configuration stays in force")
            return None
        log.level = in_force.log_level
        log.info("reloaded", applied=",".join(applied) or "nothing", needs_restart=",".join(waiting) or "nothing")
        return coordinator_settings(in_force)

    try:
        asyncio.run(run(coordinator_settings(config), log, Notifier(os.environ), reload, _observers(config, log)))
    except (CannotListen, CannotShow, TlsError) as error:
        click.echo(f"mfsd: {error}", err=True)
        return EXIT_CANNOT_START
    return 0
