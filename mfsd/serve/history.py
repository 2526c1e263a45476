"""Predicts from earlier requests the program of a new one and the length of its output."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from mfsd.policy.serve import Inherited, LengthBounds, ProgramTable
from mfsd.serve.promise import Wanted

SESSIONS_MAX: Final = 65_536
KEYS_MAX: Final = 4096
PRIOR_TOKENS: Final = 256.0
"""Expected output before any request has ended."""
PRIOR_MAX_TOKENS: Final = 1024.0
"""Bound on an output if too few requests have ended to know one."""
_NEW: Final = 0.05
"""Weight of the latest output in the mean."""


class Programs:
    """The table of programs, and the program that each session belongs to: that of its parent, or its own."""

    def __init__(self, table: ProgramTable) -> None:
        self._table = table
        self._root: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def program_of(self, wanted: Wanted) -> tuple[str, bool]:
        """Returns the program ("" without a session) and whether a named parent is known.

        The first parent that a session names counts, and only if that has come before. So there are no cycles, and an
        unknown parent is none."""
        session, parent = wanted.session, wanted.parent
        if not session:
            return "", not parent
        known = not parent or parent in self._root
        root = self._root.pop(session, None)
        if root is None:
            root = self._root.get(parent, session)
            if len(self._root) >= SESSIONS_MAX:
                self._root.popitem(last=False)
        self._root[session] = root  # moves it to the end: the session used last is forgotten last
        return root, known

    def arrived(self, program: str, engine: str, now_s: float, prompt_tokens: int = 0) -> Inherited:
        return self._table.call_arrived(program, engine, now_s, prompt_tokens) if program else Inherited()

    def so_far_s(self, calls: Iterable[tuple[Inherited, float]]) -> float:
        """Returns the service of a program including its calls that have not ended, each with its own service."""
        return self._table.so_far_s(calls)

    def ended(self, program: str, inherited: Inherited, service_s: float, wait_s: float, now_s: float) -> None:
        if program:
            self._table.call_ended(program, inherited, service_s, wait_s, now_s)


class Lengths:
    """Predicts outputs: what the request expects, else the mean of its tenant's application, of its role, or of all.
    Also gives a bound by prompt length."""

    def __init__(self) -> None:
        self._mean: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._bounds = LengthBounds()

    def expected(self, wanted: Wanted, num_prompt_tokens: int, limit: float) -> tuple[float, float]:
        """Returns the expected tokens of the output and a bound on them, both at most the request's own limit."""
        mean = wanted.expected_output_tokens or self._usual(wanted)
        bound = self._bounds.bound(num_prompt_tokens, mean, math.inf)
        if bound == math.inf:  # too few requests have ended
            bound = max(mean, PRIOR_MAX_TOKENS)
        return min(mean, limit), min(max(bound, 1.0), limit)

    def _usual(self, wanted: Wanted) -> float:
        return next((self._mean[key] for key in _keys(wanted) if key in self._mean), PRIOR_TOKENS)

    def ended(
        self, wanted: Wanted, num_prompt_tokens: int, produced: int, expected: float, at_limit: bool = False
    ) -> None:
        """Learns from a request that has ended. One that its own limit has cut does not count for the bound."""
        if not at_limit:
            self._bounds.ended(num_prompt_tokens, expected, produced)
        for key in _keys(wanted):
            mean = self._mean.pop(key, float(produced))
            if len(self._mean) >= KEYS_MAX:
                self._mean.popitem(last=False)
            self._mean[key] = mean + _NEW * (produced - mean)


def _keys(wanted: Wanted) -> list[tuple[str, ...]]:
    """Returns the keys of the means, finest first."""
    keys: list[tuple[str, ...]] = [(wanted.tenant, wanted.application, wanted.role), ("", "", wanted.role), ()]
    return keys if wanted.tenant or wanted.application or wanted.role else keys[2:]
