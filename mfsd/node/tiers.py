"""Reports to the coordinator the tiers of requests of this node's engines.

Runs in a slow loop of its own and reads in a thread, so that no permit waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mfsd.policy.request_tiers import NodeTiers

INTERVAL_S = 2.0
STUCK_S = 10.0
"""If the file system has not answered by then, old numbers are no longer shown as valid."""


class TierReports:
    def __init__(
        self,
        read: Callable[[], NodeTiers],
        report: Callable[[NodeTiers], None],
        interval_s: float = INTERVAL_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        """`read` runs in a thread. `report` is called in the loop, only with what differs from the last time."""
        self._read, self._report = read, report
        self._interval_s, self._stuck_s = interval_s, stuck_s
        self._reported = NodeTiers()

    async def run(self) -> None:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            done, _ = await asyncio.wait({reading}, timeout=self._stuck_s)
            if not done:
                self._report_if_new(NodeTiers())
            self._report_if_new(await reading)
            await asyncio.sleep(self._interval_s)

    def _report_if_new(self, found: NodeTiers) -> None:
        if found != self._reported:
            self._reported = found
            self._report(found)
