"""One run of a coordinator, from start to a signal."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from mfsd.coordinator.election import Alone, Election, Electorate, Logger
from mfsd.coordinator.etcd import Etcd
from mfsd.coordinator.following import follow
from mfsd.coordinator.server import new_server
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.proto.certificates import Certificates

STOP_S = 0.5
GC_THRESHOLDS = (50_000, 20, 100)
"""Tens of thousands of batches are hundreds of thousands of objects, none of them in cycles. Searching all of them
every few thousand allocations, as by default, would cause the longest pause of all."""


class Notifier(Protocol):
    """The part of :class:`mfsd.node.notify.Notifier` that is needed here."""

    watchdog_interval_s: float | None

    def ready(self, status: str) -> None: ...
    def reloading(self) -> None: ...
    def stopping(self) -> None: ...
    def alive(self) -> None: ...


async def run(
    settings: Settings,
    log: Logger,
    notifier: Notifier,
    reload: Callable[[], Settings | None],
    observers: Sequence[Callable[[Service], AbstractContextManager[object]]] = (),
) -> None:
    """Serves until SIGTERM or SIGINT. Raises CannotListen or TlsError if it cannot start.

    reload: called on SIGHUP; returns the settings to go on with, or None if the new ones are bad. observers: entered
    once the service exists, left at the end.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    electorate: Electorate = Alone(settings.advertise)
    if settings.etcd:
        etcd = Etcd(settings.etcd, Certificates(settings.etcd_tls, log) if settings.etcd_tls else None)
        electorate = Election(etcd, settings.advertise, settings.lease_ttl_s, log)
    service = Service(settings, electorate, log)
    server, port = new_server(service, settings.listen, settings.tls, log)
    await server.start()
    observing = ExitStack()

    def hangup() -> None:
        notifier.reloading()
        new = reload()
        if new is not None:
            service.reconfigure(new)
        notifier.ready(f"serving {settings.listen}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangup)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one may be pending since the configuration was read
    tasks = [
        asyncio.create_task(service.beat(), name="beat"),
        asyncio.create_task(service.tick(), name="tick"),
        asyncio.create_task(service.remember(), name="remember"),
        asyncio.create_task(service.promise(), name="promise"),
        asyncio.create_task(electorate.run(service.role_changed), name="election"),
    ]
    if settings.etcd:
        tasks.append(asyncio.create_task(follow(service), name="follow"))
    if notifier.watchdog_interval_s is not None:
        tasks.append(asyncio.create_task(_watchdog(notifier, notifier.watchdog_interval_s)))
    stopping = asyncio.create_task(stop.wait())
    for observer in observers:
        observing.enter_context(observer(service))
    log.info("ready", listen=settings.listen, port=port, address=settings.advertise, etcd=",".join(settings.etcd))
    notifier.ready(f"serving {settings.listen}")
    try:
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # a background task ends only by a defect
    finally:
        notifier.stopping()
        await loop.run_in_executor(None, observing.close)  # a request under way still needs this loop
        service.stop()
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)
        await server.stop(STOP_S)
        log.info("stopped")


async def _watchdog(notifier: Notifier, interval_s: float) -> None:
    while True:
        notifier.alive()
        await asyncio.sleep(interval_s)
