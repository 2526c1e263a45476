"""Handles replicas to which no connection could be made.

If nothing listens, the process is gone and the replica is down. Any other problem may pass, such as a full backlog in a
burst. The replica then goes behind the others, and connections are tried at once and then less and less often, until
one succeeds or the replica is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from mfsd.serve.gateway.poll import Log
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.upstream import NoSocket, NotSent, connect

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
"""Longest pause between two trials. Each trial may take as long as a call's connection."""


class Reconnect:
    def __init__(self, log: Log, down: Callable[[LiveReplica, str], None], wake: Callable[[], None]) -> None:
        """wake: called when waiting calls may get a place."""
        self._log, self._down, self._wake = log, down, wake
        self._trials: dict[LiveReplica, asyncio.Task[None]] = {}

    def failed(self, replica: LiveReplica, error: NotSent) -> None:
        """Handles a failed connection to a replica, of a call or of a trial here."""
        if error.refused or (replica.healthy and replica.not_connected(error.began_s)):
            self._down(replica, str(error))
        elif replica.unconnected and replica not in self._trials:
            self._log.warning("replica-not-connected", replica=replica.name, url=replica.url, problem=str(error))
            task = self._trials[replica] = asyncio.create_task(self._try(replica))
            task.add_done_callback(lambda _: self._trials.pop(replica, None))

    async def _try(self, replica: LiveReplica) -> None:
        pause_s = PAUSE_MIN_S
        while replica.healthy:
            try:
                await connect(replica)
            except NotSent as error:
                self.failed(replica, error)
            except NoSocket:  # says nothing about the replica
                pass
            else:
                replica.connected()
                self._log.info("replica-connected", replica=replica.name, url=replica.url)
                self._wake()
                return
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)
