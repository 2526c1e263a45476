"""What an engine expects of a call's output, from ended calls of the same application."""

from __future__ import annotations

import math

from bench.sim.serving.config import Expect, ReplicaConfig
from bench.sim.serving.work import Call
from mfsd.policy.serve import LengthBounds


class History:
    """Mean and variance by application (Welford), and bounds by prompt length."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._expect, self._first = config.expect, config.expected_tokens
        self._limit = float(config.output_limit_tokens)
        self._bounds = LengthBounds() if config.bound_outputs else None
        self._seen: dict[str, tuple[int, float, float]] = {}

    def expected(self, call: Call) -> float:
        if call.expected_tokens is not None:
            return call.expected_tokens
        if self._expect is Expect.ORACLE:
            return float(call.output_tokens)
        if self._expect is Expect.NONE:
            return 0.0
        count, mean, squares = self._seen.get(call.app or call.tier, (0, 0.0, 0.0))
        if count < 2:
            return self._first
        return min(self._limit, mean + 2 * math.sqrt(squares / (count - 1)))

    def bound(self, call: Call, expected: float) -> float:
        """Returns a bound in whole tokens; 0 if no memory is reserved for outputs."""
        if self._bounds is None:
            return 0.0
        return float(math.ceil(self._bounds.bound(call.prompt_tokens, expected, self._limit)))

    def ended(self, call: Call, expected: float) -> None:
        if self._bounds is not None:
            self._bounds.ended(call.prompt_tokens, expected, call.output_tokens)
        if self._expect is Expect.HISTORY:
            name = call.app or call.tier
            count, mean, squares = self._seen.get(name, (0, 0.0, 0.0))
            off = call.output_tokens - mean
            mean += off / (count + 1)
            self._seen[name] = (count + 1, mean, squares + off * (call.output_tokens - mean))
