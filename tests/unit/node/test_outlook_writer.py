"""When the daemon writes its part of the outlook page, and for how long it holds. On a loop of its own clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from mfsd.node.outlook import PRUNED_AGAIN_S, PRUNED_TTL_NS, OutlookWriter

NS_PER_S = 10**9


class Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, call))
        return self.timers[-1]

    def run_until(self, end_s: float) -> None:
        while due := [t for t in self.timers if not t.cancelled and t.at_s <= end_s]:
            first = min(due, key=lambda t: t.at_s)
            self.timers.remove(first)
            self.now_s = first.at_s
            first.call()
        self.now_s = end_s


class Page:
    def __init__(self) -> None:
        self.pruned: list[int] = []
        self.until_ns = self.writings = 0

    def outlook(
        self,
        fars: Sequence[tuple[bytes, int, int, int | None]],
        pruned: Collection[int],
        far_valid_until_ns: int,
        pruned_valid_until_ns: int,
    ) -> None:
        self.pruned, self.until_ns = list(pruned), pruned_valid_until_ns
        self.writings += 1


def made() -> tuple[Loop, Page, OutlookWriter]:
    loop, page = Loop(), Page()
    writer = OutlookWriter(page, lambda: int(loop.now_s * NS_PER_S))
    writer.start(cast(Any, loop))
    return loop, page, writer


def test_what_is_pruned_holds_as_long_as_the_loop_runs() -> None:
    loop, page, writer = made()
    writer.pruned({7})
    for second in range(1, 60):
        loop.run_until(second)
        assert page.pruned == [7] and page.until_ns > second * NS_PER_S
    assert page.until_ns <= loop.now_s * NS_PER_S + PRUNED_TTL_NS, "and no longer than a while after it hangs"
    assert PRUNED_AGAIN_S * NS_PER_S * 2 < PRUNED_TTL_NS
    writer.pruned(set())
    loop.run_until(61)
    assert page.pruned == []


def test_where_nothing_is_pruned_nothing_is_written_again() -> None:
    loop, page, writer = made()
    writer.pruned({7})
    loop.run_until(5)
    writer.pruned(set())
    loop.run_until(6)
    before = page.writings
    loop.run_until(600)
    assert page.writings == before and all(timer.cancelled for timer in loop.timers)
    writer.pruned({8})
    loop.run_until(601)
    writer.stop()
    before = page.writings
    loop.run_until(700)
    assert page.writings == before
