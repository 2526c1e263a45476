"""The KV fence: requests are admitted only while the bounds on what they will hold fit the memory (H-MAS Eq 2)."""

from __future__ import annotations

from collections.abc import Iterable

from mfsd.policy.serve.config import ServeConfig
from mfsd.policy.serve.view import Request


def held_tokens(request: Request) -> float:
    """What it holds at most: its prompt and the bound on its output."""
    return request.num_prompt_tokens + max(request.output_tokens_max, float(request.num_output_tokens))


class Fence:
    """Admissions of one step, in order. Requests that run already are in; slots are counted beside memory."""

    def __init__(
        self, config: ServeConfig, running: Iterable[Request], kv_tokens: int | None, requests_max: int
    ) -> None:
        self._room = None if kv_tokens is None else kv_tokens * (1.0 - config.kv_margin)
        self._whole = kv_tokens
        self._in = {r.request_id: held_tokens(r) for r in running}
        self._held = sum(self._in.values())
        self._slots = requests_max - len(self._in)
        self.refused: list[int] = []

    def admit(self, request: Request) -> bool:
        """Whether the request may compute; the answer holds its place. An empty engine takes any request whose prompt
        fits the memory as it is: bounds that are too wide must not stop everything."""
        number = request.request_id
        if number in self._in:
            return True
        wanted = held_tokens(request)
        fits = self._room is None or self._held + wanted <= self._room
        if not fits and not self._in:
            fits = request.num_prompt_tokens <= (self._whole or 0)
        if not fits or self._slots <= 0:
            self.refused.append(number)
            return False
        self._in[number] = wanted
        self._held += wanted
        self._slots -= 1
        return True
