"""SLO attainment: the share of requests that met their deadline."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

WINDOW_NS = 300_000_000_000
"""The length of the window that "recent" means: five minutes."""
REQUESTS_MAX = 65_536
"""How many verdicts are remembered. If the window has more requests, recent counts cover only the latest of them."""


class Counts(NamedTuple):
    met: int
    missed: int
    """`met` and `missed` count since the start."""
    recent_met: int
    recent_missed: int
    """`recent_met` and `recent_missed` count within the window."""


class Attainment:
    """Counts each request once, even if several processes, nodes and batches report its end.

    A request is late if any of them says so.
    """

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self.window_ns = window_ns
        self._verdicts: OrderedDict[int, tuple[int, bool]] = OrderedDict()
        """Request -> (when it first ended, whether it met its deadline), ordered by time."""
        self._met = self._missed = self._recent_met = 0

    def judge(self, request_id: int, met: bool, now_ns: int) -> tuple[int, bool] | None:
        """Records the end of a request, or of a part of it.

        `now_ns` must never decrease. Returns None if nothing has changed, else the time at which the request counts and
        whether it was counted as met until now.
        """
        self._forget(now_ns)
        known = self._verdicts.get(request_id)
        if known is None:
            if len(self._verdicts) >= REQUESTS_MAX:
                self._drop_oldest()
            self._verdicts[request_id] = (now_ns, met)
            self._met += met
            self._missed += not met
            self._recent_met += met
            return now_ns, False
        if not known[1] or met:
            return None
        self._verdicts[request_id] = (known[0], False)
        self._met -= 1
        self._recent_met -= 1
        self._missed += 1
        return known[0], True

    def counts(self, now_ns: int) -> Counts:
        self._forget(now_ns)
        return Counts(self._met, self._missed, self._recent_met, len(self._verdicts) - self._recent_met)

    def _forget(self, now_ns: int) -> None:
        while self._verdicts and now_ns - next(iter(self._verdicts.values()))[0] > self.window_ns:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, met) = self._verdicts.popitem(last=False)
        self._recent_met -= met
