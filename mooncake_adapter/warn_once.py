"""One clear warning for each kind of trouble: a transfer path that repeated one ten thousand times would hide it."""

from __future__ import annotations

import logging
import threading

LOG = logging.getLogger("mfs.adapter")


class WarnOnce:
    """Remembers which kinds of warning were given. Thread-safe."""

    def __init__(self, log: logging.Logger = LOG) -> None:
        self._log = log
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def warn(self, kind: str, text: str, *values: object) -> None:
        """Logs ``text % values`` unless a warning of this ``kind`` was logged before."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        self._log.warning(text, *values)
