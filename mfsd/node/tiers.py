"""Reports to the coordinator what this node's engines have of each tier of requests.

In a slow loop of its own, with the reading in a thread: no permit waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mfsd.policy.request_tiers import NodeTiers

INTERVAL_S = 2.0
STUCK_S = 10.0
"""A file system that answers no sooner: what it had is not shown as if it held."""


class TierReports:
    def __init__(
        self,
        read: Callable[[], NodeTiers],
        report: Callable[[NodeTiers], None],
        interval_s: float = INTERVAL_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        """read: runs in a thread. report: gets what is different from the last time, in the loop."""
        self._read, self._report = read, report
        self._interval_s, self._stuck_s = interval_s, stuck_s
        self._reported = NodeTiers()

    async def run(self) -> None:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(self._read))
            done, _ = await asyncio.wait({reading}, timeout=self._stuck_s)
            if not done:
                self._tell(NodeTiers())
            self._tell(await reading)
            await asyncio.sleep(self._interval_s)

    def _tell(self, found: NodeTiers) -> None:
        if found != self._reported:
            self._reported = found
            self._report(found)
