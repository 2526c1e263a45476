"""The most KV that requests hold at once, if each produces a token a step until it ends.

As one request ends, those that go on hold what they hold now and as much again as it had left. So of requests sorted
by what is left, the longest first, the peak is the greatest of the sums of what the first k hold now and k times what
is left of the k-th: nothing but the ends of requests can be a peak. With one more request each is known in O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

Row = tuple[float, float]
"""Minus the tokens that are left, and those that are held now."""


class Peak:
    """Requests that hold memory, and `always_tokens` that stay held."""

    def __init__(self, requests: Iterable[tuple[float, float]], always_tokens: float = 0.0) -> None:
        """requests: of each the tokens that are left, and those that it holds now."""
        self._added: list[Row] = [(-left, now) for left, now in requests]
        """Those that are not counted yet."""
        self._always = always_tokens
        self._now = always_tokens + sum([now for _, now in self._added])
        self._left = -sum([minus for minus, _ in self._added])
        self._rows: list[Row] = []
        """Those that are, sorted."""
        self._sums: list[float] = []
        """Held now by the first k, from k = 0 on. Empty until something was counted."""
        self._before: list[float] = []
        """The peak of the ends of the first k, from k = 0 on."""
        self._after: list[float] = []
        """The peak of the ends from the k-th on, if one more request went on until then, without what it holds now."""
        self._at_most = 0.0
        """No peak of all is above this: that of those counted, and all that the others will hold."""

    def add(self, left_tokens: float, now_tokens: float) -> None:
        self._added.append((-left_tokens, now_tokens))
        self._now += now_tokens
        self._left += left_tokens
        self._at_most += now_tokens + left_tokens

    def tokens(self) -> float:
        self._count()
        return self._before[-1]

    def tokens_with(self, left_tokens: float, now_tokens: float) -> float:
        """The peak with one more request, which is not added."""
        self._count()
        return self._counted_with(left_tokens, now_tokens)

    def fits_with(self, left_tokens: float, now_tokens: float, room_tokens: float) -> bool:
        """Whether the peak with one more request is within the room. Mostly sums say so, without counting again."""
        now_all = self._now + now_tokens
        if now_all > room_tokens:
            return False
        if now_all + self._left + left_tokens <= room_tokens:
            return True
        if self._sums and self._added:
            if self._at_most + now_tokens + left_tokens <= room_tokens:
                return True
            if self._counted_with(left_tokens, now_tokens) > room_tokens:
                return False
        return self.tokens_with(left_tokens, now_tokens) <= room_tokens

    def _counted_with(self, left_tokens: float, now_tokens: float) -> float:
        """The same of those that are counted: at most the peak of all."""
        k = bisect_right(self._rows, (-left_tokens, now_tokens))
        own = self._sums[k] + now_tokens + (k + 1) * left_tokens
        return max(self._before[k], own, self._after[k] + now_tokens)

    def _count(self) -> None:
        if self._sums and not self._added:
            return
        self._rows += self._added
        self._rows.sort()
        self._added = []
        self._sums = list(accumulate([now for _, now in self._rows], initial=self._always))
        ends = [self._sums[k] - k * minus for k, (minus, _) in enumerate(self._rows, 1)]
        self._before = list(accumulate(ends, max, initial=self._always))
        later = [end - minus for end, (minus, _) in zip(ends, self._rows, strict=True)]
        self._after = list(accumulate(reversed(later), max, initial=0.0))[::-1]
        self._at_most = self._before[-1]
