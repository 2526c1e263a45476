"""How fast this host's RDMA devices are: by libibverbs where pyverbs is installed, else by sysfs.

libibverbs is asked by a program of its own (:mod:`mfsd.verbs`), while the daemon serves: until it answers, and for what
it does not name, sysfs holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from mfsd.node.nics import read_host_rates
from mfsd.verbs.ask import Devices, VerbsFailed, VerbsMissing, ask_devices_later

INTERVAL_S = 10.0
"""libibverbs is asked this often at most."""


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
        self._said = ""
        self._wanted = asyncio.Event()

    def rates(self) -> dict[str, int]:
        """Of the devices that the host has now, in bytes/s, 0 where unknown. libibverbs is asked again after it."""
        self._wanted.set()
        found = self._sysfs()
        return {name: self._by_verbs.get(name) or rate for name, rate in found.items()}

    async def keep(self, changed: Callable[[], None]) -> None:
        """Asks libibverbs at the start and after `rates`; `changed` is called when a rate is another than before. Ends
        where pyverbs is missing. A host without devices is not asked about."""
        while True:
            if self._sysfs():
                try:
                    answer = await self._ask()
                except VerbsMissing as error:
                    self._say("sysfs", why=error)
                    return
                except VerbsFailed as error:
                    self._say("sysfs", why=error)
                else:
                    self._say("libibverbs", python=answer.python)
                    rates = {name: device.rate_bytes_per_s for name, device in answer.devices.items()}
                    if rates != self._by_verbs:
                        self._by_verbs = rates
                        changed()
            self._wanted.clear()
            await asyncio.sleep(INTERVAL_S)
            await self._wanted.wait()

    def _say(self, source: str, **values: object) -> None:
        if source != self._said:
            self._said = source
            self._log.info("devices", source=source, **values)
