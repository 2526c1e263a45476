"""Structured log lines on standard error: ``level=info event=attached client=3 pid=1234``.

Writing never blocks and never fails the daemon. A line that does not fit into a full pipe or disk is dropped and
counted. An event that repeats too often is summed up, so that a bad client cannot fill a disk through the log.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable

LEVELS = ("debug", "info", "warning", "error")
LINE_BYTES_MAX = 2048  # below PIPE_BUF, so that a pipe that polls writable takes the line whole
BURST = 20
BURST_INTERVAL_S = 10.0

_BARE = re.compile(r"[A-Za-z0-9_./:@+,-]+")
_SYSLOG_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3}


class Log:
    """Writes lines of at least ``level`` to a descriptor."""

    def __init__(
        self,
        level: str = "info",
        fd: int = 2,
        *,
        journal: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``journal``: begin lines with the priority that the system journal reads."""
        self.level = level
        self.dropped = 0
        self._fd = fd
        self._journal = journal
        self._clock_s = clock_s
        self._bursts: dict[tuple[str, str], tuple[float, int]] = {}

    def debug(self, event: str, **values: object) -> None:
        self.write("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        self.write("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        self.write("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        self.write("error", event, values)

    def write(self, level: str, event: str, values: dict[str, object]) -> None:
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        now_s = self._clock_s()
        since_s, count = self._bursts.get((level, event), (now_s, 0))
        suppressed = 0
        if now_s - since_s >= BURST_INTERVAL_S:
            suppressed, since_s, count = max(0, count - BURST), now_s, 0
        self._bursts[level, event] = (since_s, count + 1)
        if count >= BURST:
            return
        if suppressed:
            values = {**values, "suppressed": suppressed}
        prefix = f"<{_SYSLOG_PRIORITY[level]}>" if self._journal else ""
        pairs = "".join(f" {key}={_logfmt(value)}" for key, value in values.items())
        self._put(f"{prefix}level={level} event={event}{pairs}")

    def _put(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")[: LINE_BYTES_MAX - 1] + b"\n"
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                os.write(self._fd, data)
                return
        except OSError:
            pass
        self.dropped += 1


def _logfmt(value: object) -> str:
    """The value, quoted if it has spaces or control characters."""
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
