"""Bytes that the port of a replica still has to receive: the last reading, and calls that were sent there since."""

from __future__ import annotations

from collections import deque
from typing import Final

ANNOUNCED_S: Final = 0.1
"""Time from a call until readings contain its bytes: an engine announces every 50 ms, and its daemon and the
coordinator take 40 ms more. A reading does not contain calls sent within this time before it."""


class Owed:
    __slots__ = ("_sent", "_sent_bytes", "rate_bytes_per_s", "read_bytes")

    def __init__(self) -> None:
        self.rate_bytes_per_s = 0
        self.read_bytes: int | None = None
        """None: unknown."""
        self._sent: deque[tuple[float, int]] = deque()
        self._sent_bytes = 0
        """Bytes of all calls in `_sent`."""

    def read(self, size_bytes: int, rate_bytes_per_s: int, now_s: float) -> None:
        self.read_bytes, self.rate_bytes_per_s = size_bytes, rate_bytes_per_s
        while self._sent and self._sent[0][0] < now_s - ANNOUNCED_S:
            self._sent_bytes -= self._sent.popleft()[1]

    def forget(self) -> None:
        self.read_bytes = None
        self._sent.clear()
        self._sent_bytes = 0

    def send(self, size_bytes: int, now_s: float) -> None:
        """Adds a call with so many bytes of KV. Nothing is added as long as there is no reading."""
        if self.read_bytes is not None and size_bytes > 0:
            self._sent.append((now_s, size_bytes))
            self._sent_bytes += size_bytes

    @property
    def expected_bytes(self) -> int | None:
        """Bytes of the last reading and of calls sent since; None: unknown."""
        return None if self.read_bytes is None else self.read_bytes + self._sent_bytes
