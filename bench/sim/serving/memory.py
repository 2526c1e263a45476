"""KV memory of a replica: what running calls hold, what is cached beside them, and who gives way when it runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bench.sim.serving.config import Eviction, ReplicaConfig
from bench.sim.serving.live import DECODE, Live, Serving
from bench.sim.serving.planner import Decision, Piece
from bench.sim.serving.prefixes import Prefixes
from bench.sim.serving.work import Call
from mfsd import _native
from mfsd.policy.serve import Policy

HEAD_ROOM = 0.1
"""Share of memory that waiting calls leave for the growth of running calls."""


class Memory(_native.ServedMemory):
    """Counts in tokens."""

    def __init__(self, config: ReplicaConfig, replica: Serving) -> None:
        self._config, self._replica = config, replica
        self.prefixes: Prefixes = Prefixes()
        self._waiting: dict[str, dict[int, Live]] = {}
        """Waiting calls that could use a prefix, by its key."""
        self._pins: dict[int, Live] = {}
        self.order: Callable[[str], float] | None = None
        """Returns a key by which cached KV is dropped, smallest first; None: the least recently used."""
        self._oldest_first = config.serve.policy is Policy.FCFS

    def arrived(self, live: Live) -> None:
        live.keys = self._keys(live.call, live.program)
        self._wait(live)
        live.found(self._found(live.keys))

    def _keys(self, call: Call, program: str) -> tuple[tuple[str, int], ...]:
        """Returns the keys of the prefixes that the call could use, each with how many tokens of it."""
        keys = []
        if self._config.prefix_cache:
            if program:
                keys.append((program, call.prefix_tokens))
            if call.shared_tokens:
                keys.append((f"shared {call.shared}", call.shared_tokens))
        return tuple(keys)

    def cached(self, call: Call, program: str) -> int:
        """Returns the tokens that the cache has for a call which is not here."""
        return self._found(self._keys(call, program))

    def _wait(self, live: Live) -> None:
        for key, _ in live.keys:
            self._waiting.setdefault(key, {})[live.request_id] = live

    def _found(self, keys: Iterable[tuple[str, int]]) -> int:
        return max([min(most, self.prefixes.find(key)) for key, most in keys], default=0)

    def _changed(self, key: str) -> None:
        """The cache now holds more or less under the key than before."""
        for live in list(self._waiting.get(key, {}).values()):
            found = min(self._found(live.keys), live.num_prompt_tokens - 1)
            if found != live.num_computed_tokens and live.request_id in self._replica.waiting:
                self._replica.requeue(live, found)

    def take(self, live: Live) -> None:
        """The call begins to run: what the cache has for it becomes its own."""
        for key, _ in live.keys:
            self.prefixes.hold(key)
            waiting = self._waiting[key]
            del waiting[live.request_id]
            if not waiting:
                del self._waiting[key]
        self._unpin(live)
        if live.parked:
            live.parked = False
            self.parked -= live.num_computed_tokens
        else:
            self.hits += live.num_cached_tokens
        self.held += live.num_computed_tokens

    @property
    def free_tokens(self) -> int:
        limit = self._config.kv_tokens
        taken = self.held + self.parked + self.prefixes.tokens + self.prefixes.pinned
        return (1 << 60) if limit is None else max(0, limit - taken)

    def pin(self, live: Live, tokens: int) -> bool:
        """Reserves room for this many tokens of its program's prefix until the call begins; returns whether there is
        room."""
        limit, key = self._config.kv_tokens, live.program
        if limit is not None:
            taken = self.held + self.parked + self.prefixes.pinned
            if taken and taken + tokens > (1 - HEAD_ROOM) * limit:
                return False
        self.prefixes.pin(key, tokens)
        live.pinned = tokens
        self._pins[live.request_id] = live
        self._shrink(0)
        return True

    def _unpin(self, live: Live) -> None:
        if live.pinned:
            live.pinned = 0
            del self._pins[live.request_id]
            self.prefixes.unpin(live.program)

    def fetched(self, live: Live) -> None:
        """The KV that the call waited for has arrived. If its room was taken in the meantime, the call uses what is
        left."""
        if live.pinned:
            self.prefixes.extend(live.program, live.pinned)
        self.choose_again(live)

    def choose_again(self, live: Live) -> None:
        live.found(self._found(live.keys))

    def read_ahead(self, key: str, tokens: int, order: Callable[[str], float]) -> None:
        """This many tokens of the prefix have arrived before a call needs them."""
        self.prefixes.extend(key, tokens)
        self._shrink(0, order)

    def forget(self) -> None:
        """Drops the cache; no call runs or waits."""
        for _ in self.prefixes.shrink(self.prefixes.tokens):
            pass

    def lend(self, tokens: int) -> None:
        """Keeps KV of a call that no longer runs until it has moved to another replica."""
        self.held -= tokens
        self.parked += tokens

    def lent(self, live: Live, tokens: int) -> None:
        """The KV has moved: the cache keeps what it can."""
        self.parked -= tokens
        self._release(live, tokens)

    def expect(self, tokens: int) -> None:
        """Reserves room for KV that is on its way from another replica."""
        self.parked += tokens
        self._shrink(0)

    def expected(self, tokens: int) -> None:
        """The expected KV has arrived, and its call runs."""
        self.parked -= tokens
        self.held += tokens

    def give(self, live: Live, held: int) -> None:
        """The call has ended."""
        self.held -= held
        self._release(live, held)

    def filled(self, live: Live) -> None:
        """The call's prompt has been computed: others with the same beginning find it from now on."""
        for key, most in live.keys:
            self.prefixes.grow(key, live.num_prompt_tokens if key == live.program else most)
            self._changed(key)

    def _release(self, live: Live, held: int) -> None:
        for key, most in live.keys:
            self.prefixes.release(key, held if key == live.program else min(held, most))
            self._changed(key)

    def _keep(self, key: str, tokens: int) -> None:
        self.prefixes.hold(key)
        self.prefixes.release(key, tokens)
        self._shrink(0)
        self._changed(key)

    def _shrink(self, growth: int, order: Callable[[str], float] | None = None) -> None:
        """Frees cached KV for what running calls need, then what waiting calls have pinned."""
        limit = self._config.kv_tokens
        if limit is None:
            return
        while True:
            over = self.held + self.parked + growth + self.prefixes.tokens + self.prefixes.pinned - limit
            if over > 0 and self.prefixes.tokens:
                for key in list(self.prefixes.shrink(over, order or self.order)):
                    self._changed(key)
            if over <= self.prefixes.tokens or not self._pins:
                return
            self._unpin(self._pins[max(self._pins)])

    def evicted(self, live: Live, held: int, how: Eviction, now_s: float) -> None:
        self.held -= held
        self._release(live, held)
        own = f"call {live.request_id}"
        live.keys = tuple(key for key in live.keys if key[0] != own)
        replica = self._replica
        found = 0
        if how is Eviction.PREFIX:
            live.keys = (*live.keys, (own, live.num_prompt_tokens))
            self._keep(own, held)
        if how in (Eviction.SWAP, Eviction.PAUSE):
            live.keys = ()
            found = held
        self._wait(live)
        live.found(found or self._found(live.keys))
        if how is Eviction.PAUSE:
            live.parked = True
            self.parked += live.num_computed_tokens
        if how is Eviction.SWAP and replica.later is not None:
            replica.later(now_s + 2 * held / self._config.swap_tokens_per_s, live)
        else:
            replica.queue(live)

    def unpark(self) -> bool:
        """Called if nothing can run because parked calls hold the memory: one of them is recomputed."""
        for live in reversed(list(self._replica.waiting.values())):
            if live.parked:
                live.parked = False
                self.parked -= live.num_computed_tokens
                self._replica.requeue(live, 0)
                return True
        return False

    def make_room(self, decision: Decision, now_s: float) -> Decision:
        """Returns the decision as far as memory allows. Cached prefixes are freed first. While what the step adds does
        not fit, the running call that is due last gives way. Calls that were to pause for want of memory are considered
        again with what that call had."""
        limit = self._config.kv_tokens
        if limit is None:
            return decision
        replica, how = self._replica, self._config.eviction
        pieces, paused = list(decision.pieces), list(decision.paused)
        gone: list[Live] = []
        while True:
            growth = len(replica.decodes) - len(paused)
            for piece in pieces:
                live, tokens = piece.live, piece.tokens
                growth += tokens if live.state else tokens + (0 if live.parked else live.num_computed_tokens)
            if self.held + self.parked + growth <= limit:
                break
            victim = self._victim()
            if victim is None:
                raise RuntimeError(f"replica {replica.number}: {limit} tokens of KV hold no call")
            if how is Eviction.PAUSE and self._pause(victim, pieces, paused):
                continue
            replica.evict(victim, Eviction.RECOMPUTE if how is Eviction.PAUSE else how, now_s)
            gone.append(victim)
            pieces = [piece for piece in decision.pieces if piece.live not in gone]
            paused = [live for live in decision.paused if live not in gone]
        self._shrink(growth - sum(p.live.num_computed_tokens for p in pieces if p.live.pinned))
        if len(pieces) == len(decision.pieces) and len(paused) == len(decision.paused):
            return decision
        return Decision(pieces, paused, decision.set_aside, decision.step_s)

    def _victim(self) -> Live | None:
        replica = self._replica
        running = [*replica.decodes.values(), *replica.prompts.values()]
        if self._oldest_first:
            return max(running, key=lambda live: (live.arrival_s, live.request_id), default=None)
        return max(running, key=lambda live: (-live.importance, live.due_s, live.request_id), default=None)

    def _pause(self, victim: Live, pieces: list[Piece], paused: list[Live]) -> bool:
        """Makes a call pause if possible: the last piece of a prompt, else the victim. Does not pause the only call
        that computes if there are no parked calls, as the step would be empty and nothing would free memory. With
        parked calls one of those is then recomputed."""
        decodes = self._replica.decodes
        if pieces and (len(pieces) > 1 or len(paused) < len(decodes) or self.parked):
            pieces.pop()
            return True
        if not pieces and victim.state == DECODE and len(paused) + 1 < len(decodes):
            running = [live for live in decodes.values() if live not in paused]
            paused.append(max(running, key=lambda live: (live.due_s, live.request_id)))
            return True
        return False
