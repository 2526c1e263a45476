"""The KV fence: admits requests only while the bounds on the KV that they will hold fit the memory (H-MAS Eq 2)."""

from __future__ import annotations

from collections.abc import Iterable

from mfsd.policy.serve.config import Policy, ServeConfig
from mfsd.policy.serve.view import Request

REST_STEPS = 19
"""Steps without a reservation after each step with one: in the long run at most a twentieth of steps reserve memory."""


def held_tokens(request: Request) -> float:
    """The most that a request holds: its prompt and the bound on its output, less any output that its prompt has."""
    outputs = max(request.output_tokens_max, float(request.num_output_tokens))
    return request.num_prompt_tokens + outputs - request.num_folded_tokens


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
        self._in = {r.request_id: held_tokens(r) for r in running}
        self._held = sum(self._in.values()) + promised_tokens
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
        wanted = held_tokens(request)
        if not self._fits(request, wanted) or (self._in_order and self.refused):
            self.refused.append(number)
            return False
        if self._reserved is not None and number == self._reserved.request_id:
            self._reserved = None
        self._in[number] = wanted
        self._held += wanted
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

    def _fits(self, request: Request, wanted: float) -> bool:
        held, slots = self._held, self._slots
        if self._reserved is not None and self._reserved.request_id != request.request_id:
            held, slots = held + held_tokens(self._reserved), slots - 1
        if slots <= 0:
            return False
        if self._room is None or held + wanted <= self._room:
            return True
        return not self._in and not self._promised and request.num_prompt_tokens <= (self._whole or 0)
