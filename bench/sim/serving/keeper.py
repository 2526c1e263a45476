"""Keeps a replica's KV of programs in a store: it is read when a turn arrives, or before. What stays in memory is
chosen by each program's expected next turn, or by use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bench.sim.serving.config import StoreConfig
from bench.sim.serving.gaps import Gap, Gaps
from bench.sim.serving.live import Live
from bench.sim.serving.memory import Memory
from bench.sim.serving.outcome import StepTotals
from bench.sim.serving.port import Port
from mfsd.policy.serve.keep import Piece, Waiting, next_piece

CHECK_S = 0.25
"""Interval of checks for KV to read ahead, while nothing else happens."""


class Stored:
    """State shared by all replicas: how much KV of each program the store has, and who waits for a tool."""

    def __init__(self, config: StoreConfig) -> None:
        self.tokens: dict[str, int] = {}
        self.gaps = Gaps(config.hindsight)


class Keeper:
    """Call `arrived` and `ended` when a call does, and `due` at every requested wake-up."""

    def __init__(
        self,
        number: int,
        config: StoreConfig,
        stored: Stored,
        memory: Memory,
        totals: StepTotals,
        token_s: float,
        queue: Callable[[Live], None],
        wake: Callable[[float], None],
    ) -> None:
        self._number, self._config, self._stored, self._memory = number, config, stored, memory
        self._totals, self._token_s, self._queue, self._wake = totals, token_s, queue, wake
        self._port: Port[Live, Piece] = Port(config.tokens_per_s)
        self._blocked: deque[Live] = deque()
        """Calls whose KV has no room yet."""
        self._now_s = 0.0
        self._next_check_s = -1.0
        if config.retain:
            memory.order = self._order

    def arrived(self, live: Live, now_s: float) -> bool:
        """Returns whether the call waits for KV first."""
        self._now_s = now_s
        program = live.program
        if not program:
            return False
        self._stored.gaps.closed(program, now_s)
        if self._port.ahead is not None and self._port.ahead.program == program:
            self._port.drop_ahead()
        waits = self._place(live, now_s)
        self._next(now_s)
        return waits

    def _wanted(self, live: Live) -> int:
        return min(live.call.prefix_tokens, self._stored.tokens.get(live.program, 0), live.num_prompt_tokens - 1)

    def _place(self, live: Live, now_s: float) -> bool:
        wanted, found = self._wanted(live), live.num_computed_tokens
        missing = wanted - found
        if missing > 0 and self._port.owed_s + missing / self._config.tokens_per_s > missing * self._token_s:
            wanted, missing = found, 0  # computing it again is faster
        if wanted <= 0:
            return False
        if not self._memory.pin(live, wanted):
            if missing > 0:
                self._blocked.append(live)
            return missing > 0
        if missing > 0:
            self._totals.fetched_tokens += missing
            self._port.read(live, missing, now_s)
        return missing > 0

    def ended(self, live: Live, returns_s: float, now_s: float) -> None:
        """The call has ended, so its KV is in the store; writing it is not simulated."""
        self._now_s = now_s
        if live.program:
            program, held = live.program, self._memory.prefixes.find(live.program)
            self._stored.tokens[program] = max(held, self._stored.tokens.get(program, 0))
            self._stored.gaps.opened(program, Gap(now_s, live.call.then, self._number, returns_s))
        self.due(now_s)

    def due(self, now_s: float) -> None:
        self._now_s = now_s
        done = self._port.ended(now_s)
        for live in done.calls:
            self._memory.fetched(live)
            self._queue(live)
        if done.ahead is not None and self._stored.gaps.at(done.ahead.program, self._number):
            here = self._memory.prefixes.find(done.ahead.program)
            self._totals.ahead_tokens += done.ahead.tokens
            self._memory.read_ahead(done.ahead.program, here + done.ahead.tokens, self._order)
        for _ in range(len(self._blocked)):
            live = self._blocked.popleft()
            self._memory.choose_again(live)
            if not self._place(live, now_s):
                self._queue(live)
            elif self._blocked and self._blocked[-1] is live:
                self._blocked.rotate(1)
                break
        self._next(now_s)

    def _next(self, now_s: float) -> None:
        if self._config.prefetch and self._port.ahead is None and not self._blocked and not self._port.owed_s:
            self._look_ahead(now_s)
        at_s = self._port.next_s()
        if at_s is not None:
            self._wake(at_s)

    def _look_ahead(self, now_s: float) -> None:
        waiting = [
            Waiting(p, here, self._stored.tokens[p] - here, self._stored.gaps.remaining_s(p, now_s))
            for p in self._stored.gaps.of(self._number)
            for here in (self._memory.prefixes.find(p),)
        ]
        piece = next_piece(waiting, self._memory.free_tokens)
        if piece is not None:
            self._port.read_ahead(piece, piece.tokens, now_s)
        elif self._next_check_s <= now_s and any(w.missing_tokens > 0 for w in waiting):
            self._next_check_s = now_s + CHECK_S
            self._wake(self._next_check_s)

    def _order(self, key: str) -> float:
        """Returns a key by which KV is dropped, the least first: programs with a distant next turn, then those served
        elsewhere."""
        gaps = self._stored.gaps
        if not key.startswith("program "):
            return 1.0
        if gaps.at(key, self._number):
            return -gaps.remaining_s(key, self._now_s)
        return 0.0
