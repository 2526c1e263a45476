"""What follows where no connection to a replica could be made.

Where nothing listens, its process is gone: it is down. Anything else may pass, such as a backlog that is full in a
burst: it goes behind the others and is tried at once, then ever more seldom, until it can be connected to or is down.
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
"""Between two trials; each may take as long as a call's connection."""


class Reconnect:
    def __init__(self, log: Log, down: Callable[[LiveReplica, str], None], wake: Callable[[], None]) -> None:
        """wake: is called when calls that wait may have a chance."""
        self._log, self._down, self._wake = log, down, wake
        self._trials: dict[LiveReplica, asyncio.Task[None]] = {}

    def failed(self, replica: LiveReplica, error: NotSent) -> None:
        """To connect to it, for a call or here."""
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
            except NoSocket:  # nothing is known of it
                pass
            else:
                replica.connected()
                self._log.info("replica-connected", replica=replica.name, url=replica.url)
                self._wake()
                return
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)
