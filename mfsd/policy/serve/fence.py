"""The KV fence: admits a request only while the most KV that will be held at once fits the memory.

H-MAS (Eq 2) adds up bounds on what each request holds in the end. But requests end one after another: a short one has
given its memory back before a long one holds all of its own. So what must fit is their peak (`peak`), by expected
outputs. The sum of the bounds leaves memory idle and cost 4 to 14 points of first tokens in time
(docs/internals/serve.md).
"""

from __future__ import annotations

from collections.abc import Iterable

from mfsd.policy.serve.config import Policy, ServeConfig
from mfsd.policy.serve.peak import Peak
from mfsd.policy.serve.view import Request

REST_STEPS = 19
"""Steps without a reservation after each step with one: in the long run at most a twentieth of steps reserve memory."""


def now_tokens(request: Request) -> float:
    """What a request holds once its prompt is computed: the prompt and its output so far, each token once."""
    return float(request.num_prompt_tokens + request.num_output_tokens - request.num_folded_tokens)


def left_tokens(request: Request) -> float:
    """The output that is still expected of a request, for which memory is kept.

    One that has produced what was expected goes on to its bound. 0 without a bound: nothing is kept.
    """
    if request.output_tokens_max <= 0:
        return 0.0
    produced = request.num_output_tokens
    expected = min(request.output_tokens, request.output_tokens_max)
    return max(0.0, (expected if produced < expected else request.output_tokens_max) - produced)


def held_tokens(request: Request) -> float:
    """What a request holds in the end, as far as is expected."""
    return now_tokens(request) + left_tokens(request)


class Fence:
    """Admissions of one step, in order.

    Running requests are in already, and memory that is promised to others is taken. Slots are counted beside memory. No
    request takes what `reserved` needs, a request that has waited too long: smaller ones would pass it for ever. With
    first come first served, none passes a request that does not fit.
    """

    def __init__(
        self,
        config: ServeConfig,
        running: Iterable[Request],
        kv_tokens: int | None,
        requests_max: int,
        reserved: Request | None = None,
        promised_tokens: float = 0.0,
    ) -> None:
        self._room = None if kv_tokens is None else kv_tokens * (1.0 - config.kv_margin)
        self._whole = kv_tokens
        running = list(running)
        self._in = {r.request_id for r in running}
        self._peak = Peak([(left_tokens(r), now_tokens(r)) for r in running], promised_tokens)
        if reserved is not None and reserved.request_id not in self._in:
            self._peak.add(left_tokens(reserved), now_tokens(reserved))
        self._promised = promised_tokens
        self._slots = requests_max - len(self._in)
        self._in_order = config.policy is Policy.FCFS
        self._reserved = reserved
        self.refused: list[int] = []

    def admit(self, request: Request) -> bool:
        """Whether the request may compute. If so, it holds its place from then on. An empty engine takes any request
        whose prompt alone fits the memory: bounds that are too wide must not stop everything."""
        number = request.request_id
        if number in self._in:
            return True
        if not self._fits(request) or (self._in_order and self.refused):
            self.refused.append(number)
            return False
        if self._reserved is not None and number == self._reserved.request_id:
            self._reserved = None
        else:
            self._peak.add(left_tokens(request), now_tokens(request))
        self._in.add(number)
        self._slots -= 1
        return True

    def kept_for(self, overdue: Iterable[Request], rest_steps: int) -> int | None:
        """The request for which the next step keeps memory and a slot. It is the present one, if that is still not in.
        Else, with no rest steps left, it is the first of `overdue` that was refused and could ever fit."""
        if self._reserved is not None:
            return self._reserved.request_id
        if rest_steps:
            return None
        refused = set(self.refused)
        able = (r for r in overdue if self._whole is None or r.num_prompt_tokens <= self._whole)
        return next((r.request_id for r in able if r.request_id in refused), None)

    def _fits(self, request: Request) -> bool:
        mine = self._reserved is not None and self._reserved.request_id == request.request_id
        if self._slots - (self._reserved is not None and not mine) <= 0:
            return False
        if self._room is None:
            return True
        if mine:
            fits = self._peak.tokens() <= self._room
        else:
            fits = self._peak.fits_with(left_tokens(request), now_tokens(request), self._room)
        if fits:
            return True
        return not self._in and not self._promised and request.num_prompt_tokens <= (self._whole or 0)
