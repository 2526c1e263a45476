"""The port through which a replica reads from the store. Reads that calls wait for go first; reading ahead uses the
rest."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

Call = TypeVar("Call")
Ahead = TypeVar("Ahead")
LEAST = 1e-6
"""In tokens: a read that has ended has less than this left, by rounding."""


class Ended(NamedTuple, Generic[Call, Ahead]):
    calls: list[Call]
    ahead: Ahead | None


class Port(Generic[Call, Ahead]):
    """Reads for calls one after another, in the order of their start, and one read ahead, which pauses while there are
    any."""

    def __init__(self, tokens_per_s: float) -> None:
        self._tokens_per_s, self._at_s = tokens_per_s, 0.0
        self._calls: deque[tuple[Call, float]] = deque()
        self._ahead: tuple[Ahead, float] | None = None

    @property
    def ahead(self) -> Ahead | None:
        return None if self._ahead is None else self._ahead[0]

    @property
    def owed_s(self) -> float:
        """Time that the calls' reads still take."""
        return sum(left for _, left in self._calls) / self._tokens_per_s

    def read(self, call: Call, tokens: int, now_s: float) -> None:
        """Adds a read. `ended` must have been called for this time."""
        self._pass(now_s)
        self._calls.append((call, float(tokens)))

    def read_ahead(self, ahead: Ahead, tokens: int, now_s: float) -> None:
        self._pass(now_s)
        self._ahead = (ahead, float(tokens))

    def drop_ahead(self) -> None:
        self._ahead = None

    def next_s(self) -> float | None:
        """Returns when the current read will have ended."""
        left = self._calls[0][1] if self._calls else None if self._ahead is None else self._ahead[1]
        return None if left is None else self._at_s + left / self._tokens_per_s

    def ended(self, now_s: float) -> Ended[Call, Ahead]:
        calls: list[Call] = []
        self._pass(now_s)
        while self._calls and self._calls[0][1] <= LEAST:
            calls.append(self._calls.popleft()[0])
        ahead = None
        if self._ahead is not None and self._ahead[1] <= LEAST:
            ahead, self._ahead = self._ahead[0], None
        return Ended(calls, ahead)

    def _pass(self, now_s: float) -> None:
        tokens = (now_s - self._at_s) * self._tokens_per_s
        self._at_s = now_s
        for number, (call, left) in enumerate(self._calls):
            took = min(tokens, left)
            self._calls[number] = (call, left - took)
            tokens -= took
            if tokens <= LEAST:
                return
        if self._ahead is not None:
            self._ahead = (self._ahead[0], self._ahead[1] - tokens)
