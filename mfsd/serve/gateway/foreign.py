"""Engines that another program has started at an address of which the gateway knows a command."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from mfsd.serve.gateway.replicas import LiveReplica

CONNECT_S: Final = 2.0


class Foreign:
    def __init__(self, ended: Callable[[LiveReplica], None]) -> None:
        """ended: called when nothing listens any more where such an engine was."""
        self._ended = ended
        self._checks: dict[str, asyncio.Task[None]] = {}

    @staticmethod
    async def there(replica: LiveReplica) -> bool:
        """Whether there is one: it answers, or something listens at its address."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return replica.healthy or await _listens(replica)
        return False

    def check(self, replica: LiveReplica) -> None:
        """Handles one that does not answer any more. If nothing listens, it has ended and the gateway may start it. An
        engine that is only silent still has its memory."""
        if replica.name not in self._checks:
            task = self._checks[replica.name] = asyncio.create_task(self._check(replica))
            task.add_done_callback(lambda _: self._checks.pop(replica.name, None))

    async def _check(self, replica: LiveReplica) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            if not await _listens(replica):
                self._ended(replica)

    def close(self) -> None:
        for check in self._checks.values():
            check.cancel()


async def _listens(replica: LiveReplica) -> bool:
    """Whether something listens at the replica's address. OSError or TimeoutError if that cannot be found out."""
    host, _, port = replica.endpoint.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), CONNECT_S)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
