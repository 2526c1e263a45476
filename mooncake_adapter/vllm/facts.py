"""Which tokens vLLM's waiting requests still have to compute: their prompts without what is cached or will be loaded.
No vLLM in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from mfsd.serve.requests import Fact
from mooncake_adapter.vllm.promise import loads_prompt

CACHED_AGAIN_S: Final = 1.0
"""Interval after which the prefix cache is asked again about a waiting request."""
CACHED_ASKED_MAX: Final = 32
"""Limit of such lookups in a step."""


class WaitingFacts:
    def __init__(
        self,
        prefix_cache: Callable[[Any], int],
        known_tokens: Callable[[str], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """prefix_cache: returns the tokens of a request's prompt that are cached here. known_tokens: returns those plus
        what a connector will load, by the request's name; None if that is not decided yet."""
        self._prefix_cache, self._known, self._clock = prefix_cache, known_tokens, clock
        self._cached: dict[str, tuple[int, float]] = {}
        """Cached tokens, and when the prefix cache was asked."""

    def of(self, requests: Iterable[Any]) -> list[Fact]:
        facts = []
        now_s, asked = self._clock(), 0
        for r in requests:
            name, computed, may_load = r.request_id, r.num_computed_tokens, False
            if computed == 0 and loads_prompt(r) and r.num_preemptions == 0:
                computed = max(0, r.num_prompt_tokens - 1)
            elif computed == 0:
                computed, at_s = self._cached.get(name, (0, -CACHED_AGAIN_S))
                if now_s - at_s >= CACHED_AGAIN_S and asked < CACHED_ASKED_MAX:
                    asked += 1
                    computed = self._prefix_cache(r)
                    self._cached[name] = (computed, now_s)
                if r.num_preemptions == 0:  # what was found before a preemption is out of date
                    known = self._known(name)
                    may_load = known is None
                    computed = max(computed, min(known or 0, r.num_prompt_tokens - 1))
            again = r.num_tokens if r.num_preemptions or r.resumable else 0
            facts.append(Fact(name, computed, computed, r.num_output_tokens, again, may_load))
        return facts

    def ended(self, name: str) -> None:
        self._cached.pop(name, None)

    def __len__(self) -> int:
        return len(self._cached)
