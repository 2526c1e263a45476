"""The process of an engine, with all that it starts in its session."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GONE_MAX_S: Final = 30.0
"""For which it is waited for processes that were killed: they give their memory back before they are gone."""
PAUSE_S: Final = 0.02
PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None).prctl  # looked up here: a child that was forked from threads must take no lock


class Backend:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._ends = False

    async def run(self) -> str:
        """Until it has ended; says how. OSError where it cannot be started."""
        parent = os.getpid()

        def begin() -> None:
            """In the child: it is told to end, too, where the gateway is killed."""
            _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)

        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True, preexec_fn=begin
        )
        if self._ends:  # that was said while it was made
            self.terminate()
        status = await self._process.wait()
        self._signal(signal.SIGKILL)  # workers that outlive it would keep its memory
        return f"killed by signal {-status}" if status < 0 else f"ended with status {status}"

    async def gone(self) -> None:
        """Until nothing of its group is left, once it has ended."""
        assert self._process is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_gone(self._process.pid), GONE_MAX_S)

    def terminate(self) -> None:
        self._ends = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


async def _gone(group: int) -> None:
    while await asyncio.to_thread(_lives, group):
        await asyncio.sleep(PAUSE_S)


def _lives(group: int) -> bool:
    """One of its processes does. What has ended and is not reaped, as in containers, has no memory."""
    with contextlib.suppress(PermissionError):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                return True
    return False
