"""The port through which a replica reads from the store: who waits for a read goes first, what is read ahead gets what
is left."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

Call = TypeVar("Call")
Ahead = TypeVar("Ahead")
LEAST = 1e-6
"""Tokens: less is left of a read that has ended, by rounding."""


class Ended(NamedTuple, Generic[Call, Ahead]):
    calls: list[Call]
    ahead: Ahead | None


class Port(Generic[Call, Ahead]):
    """Reads of calls one after another, in the order of their beginning; one read ahead, which rests while there are
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
        """Of the calls' reads."""
        return sum(left for _, left in self._calls) / self._tokens_per_s

    def read(self, call: Call, tokens: int, now_s: float) -> None:
        """Nothing has ended unnoticed until now: `ended` was asked."""
        self._pass(now_s)
        self._calls.append((call, float(tokens)))

    def read_ahead(self, ahead: Ahead, tokens: int, now_s: float) -> None:
        self._pass(now_s)
        self._ahead = (ahead, float(tokens))

    def drop_ahead(self) -> None:
        self._ahead = None

    def next_s(self) -> float | None:
        """When what is being read will be here."""
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
