"""How queued requests become batches: in which order, and on which attention group of the unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bench.sim.states import State


def least_loaded(tokens: Sequence[int], turn: int) -> int:
    """Returns the attention group with the fewest tokens. Idle groups take turns: if the first always won, most KV of a
    unit would leave by the same few NICs."""
    return min(range(len(tokens)), key=lambda group: (tokens[group], (group - turn) % len(tokens)))


class RequestScheduler(Protocol):
    """Chooses what a free unit computes next: pairs of a queued request and how many of its tokens. Requests that are
    not chosen wait."""

    def plan(self, queue: Sequence[State], budget_tokens: int, now: float) -> list[tuple[State, int]]: ...

    def computed(self, unit: int, now: float) -> None:
        """The unit has computed its last batch."""


class FirstComeFirstServed:
    """Takes requests in arrival order up to the token budget. Only a prompt that alone exceeds the budget is cut into
    chunks."""

    def plan(self, queue: Sequence[State], budget_tokens: int, now: float) -> list[tuple[State, int]]:
        chosen: list[tuple[State, int]] = []
        left = budget_tokens
        for state in queue:
            tokens = state.request.new_tokens - state.done_tokens
            if tokens > left and (chosen or tokens <= budget_tokens):
                break
            take = min(tokens, left)
            chosen.append((state, take))
            left -= take
        return chosen

    def computed(self, unit: int, now: float) -> None:
        """Does nothing: the order does not depend on what batches took."""


def batches_before(waiting_tokens: Sequence[int], budget_tokens: int) -> list[int]:
    """Returns, for each queued prompt, how many batches run before the one in which it begins, if batches are formed
    first come first served: given the tokens left of each, in order of arrival."""
    before: list[int] = []
    batch, left = 0, budget_tokens
    for tokens in waiting_tokens:
        if left < tokens and left < budget_tokens:
            batch, left = batch + 1, budget_tokens
        before.append(batch)
        chunks = -(-tokens // budget_tokens) - 1
        batch += chunks
        left -= tokens - chunks * budget_tokens
    return before
