"""Two lanes, so that short requests do not wait behind long ones (H-MAS 3.5).

The cut is the median service time of the latest requests. The fast lane gets four tokens for each of the slow one. A
lane with nothing to do lends its share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from mfsd.policy.serve.view import Request

WINDOW: Final = 1024


class LaneCut:
    """The median of the latest service times. The engine keeps it and writes `cut_s` into each view."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def arrived(self, service_s: float) -> None:
        if len(self._latest) >= self._window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(service_s)
        insort(self._sorted, service_s)

    @property
    def cut_s(self) -> float | None:
        return self._sorted[len(self._sorted) // 2] if self._sorted else None


def merge(
    fast: Sequence[Request], slow: Sequence[Request], weight: float, fast_tokens: float, slow_tokens: float
) -> Iterator[Request]:
    """Merges both lanes by what each was served. A token of the fast lane counts as 1 / weight."""
    i = j = 0
    while i < len(fast) and j < len(slow):
        if fast_tokens / weight <= slow_tokens:
            fast_tokens += fast[i].prefill_left
            yield fast[i]
            i += 1
        else:
            slow_tokens += slow[j].prefill_left
            yield slow[j]
            j += 1
    yield from fast[i:]
    yield from slow[j:]


def charged(
    weight: float, served: tuple[float, float], step: tuple[float, float], waits: tuple[bool, bool]
) -> tuple[float, float]:
    """What the fast and the slow lane were served after a step of so many tokens.

    A lane where nothing waited has lent its share: it does not get it back all at once.
    """
    fast_tokens, slow_tokens = served[0] + step[0], served[1] + step[1]
    if not waits[0]:
        fast_tokens = max(fast_tokens, slow_tokens * weight)
    if not waits[1]:
        slow_tokens = max(slow_tokens, fast_tokens / weight)
    least = min(fast_tokens / weight, slow_tokens)
    return fast_tokens - least * weight, slow_tokens - least
