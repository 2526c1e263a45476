"""The process of an engine, with all that it starts in its session."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence


class Backend:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._ends = False

    async def run(self) -> str:
        """Until it has ended and nothing of its session is left; says how. OSError where it cannot be started."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        if self._ends:  # that was said while it was made
            self.terminate()
        status = await self._process.wait()
        self._signal(signal.SIGKILL)  # workers that outlive it would keep its memory
        return f"killed by signal {-status}" if status < 0 else f"ended with status {status}"

    def terminate(self) -> None:
        self._ends = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
