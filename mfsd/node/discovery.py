"""The rates of this host's RDMA devices: from libibverbs if pyverbs is installed, else from sysfs.

A separate program (:mod:`mfsd.verbs`) asks libibverbs while the daemon serves. Until it answers, and for devices that
it does not name, sysfs counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from mfsd.node.nics import read_host_rates
from mfsd.verbs.ask import Devices, VerbsFailed, VerbsMissing, ask_devices_later

INTERVAL_S = 10.0
"""Least time between two questions to libibverbs."""


class Logger(Protocol):
    def info(self, event: str, **values: object) -> None: ...


class Discovery:
    def __init__(
        self,
        log: Logger,
        ask: Callable[[], Awaitable[Devices]] = ask_devices_later,
        sysfs: Callable[[], dict[str, int]] = read_host_rates,
    ) -> None:
        self._log = log
        self._ask = ask
        self._sysfs = sysfs
        self._by_verbs: dict[str, int] = {}
        self._logged = ""
        self._wanted = asyncio.Event()

    def rates(self) -> dict[str, int]:
        """Rates of the devices that the host has now, in bytes/s, 0 if unknown. libibverbs is asked again
        afterwards."""
        self._wanted.set()
        found = self._sysfs()
        return {name: self._by_verbs.get(name) or rate for name, rate in found.items()}

    async def keep(self, changed: Callable[[], None]) -> None:
        """Asks libibverbs at the start and after `rates`, and calls `changed` when a rate has changed.

        Ends if pyverbs is missing. Does not ask on a host without devices.
        """
        while True:
            if self._sysfs():
                try:
                    answer = await self._ask()
                except VerbsMissing as error:
                    self._log_once("sysfs", why=error)
                    return
                except VerbsFailed as error:
                    self._log_once("sysfs", why=error)
                else:
                    self._log_once("libibverbs", python=answer.python)
                    rates = {name: device.rate_bytes_per_s for name, device in answer.devices.items()}
                    if rates != self._by_verbs:
                        self._by_verbs = rates
                        changed()
            self._wanted.clear()
            await asyncio.sleep(INTERVAL_S)
            await self._wanted.wait()

    def _log_once(self, source: str, **values: object) -> None:
        if source != self._logged:
            self._logged = source
            self._log.info("devices", source=source, **values)
