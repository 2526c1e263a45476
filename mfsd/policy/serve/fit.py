"""Fills a step with requests in order, as long as none that is in it becomes late.

QoServe's algorithm 1 (lines 10-23) fills up to a chunk that respects the decodes' slack. `fit` also respects, in the
same walk, the deadlines of prompts that end in this step: a request, or a piece of it, joins only while none of them
becomes late, by the step's own estimate. Where a queue fits one budget, order alone changes little, but who shares a
step changes much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from mfsd.policy.serve.chunk import largest
from mfsd.policy.serve.config import ServeConfig
from mfsd.policy.serve.pace import SCALE, SHORTEST_S, SPLIT_TOKENS, Pace
from mfsd.policy.serve.view import Request, StepLoad

_UNKNOWN: Final = 1 << 62


class Chosen(NamedTuple):
    request: Request
    tokens: int
    rank: int


class Step:
    """The step so far: what is in it, and how long it would take with one more chunk."""

    def __init__(self, pace: Pace, ranks: int, margin: float, decodes: int = 0, context: int = 0) -> None:
        self._pace, self._margin = pace, margin
        self._tokens = [0] * ranks
        self._pairs = [0.0] * ranks
        self._decodes = decodes
        self._context = context
        self._prefill = self._busiest = 0
        self._most_pairs = 0.0
        self._pieces = [self._constants(piece) for piece in self._ordered()]
        self.full = False
        """Whether no other prompt can join. `fill` still asks for each whether there is memory."""

    def _ordered(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        small, large = self._pace.small, self._pace.large
        if small.steps == 0:
            small = large
        if large.steps == 0:
            large = small
        return small.terms, large.terms

    def _constants(self, terms: tuple[float, ...]) -> tuple[float, float, float, float]:
        """The estimate as (fixed, per token, per token of the busiest rank, per pair)."""
        fixed = terms[0] + (terms[1] * SCALE[1] + terms[3] * SCALE[3]) * self._decodes
        fixed += terms[4] * SCALE[4] * self._context
        return (fixed, terms[1] * SCALE[1], terms[2] * SCALE[2], terms[5] * SCALE[5])

    def rank_for(self, request: Request) -> int:
        """The request's rank. If it has none, the rank with the fewest tokens."""
        return request.rank if request.rank >= 0 else self._tokens.index(min(self._tokens))

    def seconds_with(self, tokens: int, context: int, rank: int) -> float:
        """Estimated time with a further chunk of `tokens` that follow `context`, margin included.

        Runs several times a step, so it avoids max().
        """
        prefill = self._prefill + tokens
        busiest, pairs = self._tokens[rank] + tokens, self._pairs[rank] + tokens * (context + tokens / 2)
        if busiest < self._busiest:
            busiest = self._busiest
        if pairs < self._most_pairs:
            pairs = self._most_pairs
        fixed, each, busy, pair = self._pieces[prefill + self._decodes > SPLIT_TOKENS]
        seconds = fixed + each * prefill + busy * busiest + pair * pairs
        return self._margin * (seconds if seconds > SHORTEST_S else SHORTEST_S)

    def exceeds(self, tokens: int, limit_s: float, now_s: float) -> bool:
        """Whether every chunk of at least so many tokens, whatever its context, would make the step end after limit_s.

        False where that is not known. The second piece of the estimate may begin below where the first ends.
        """
        if len(self._tokens) > 1 or not self._grows():
            return False
        least_s, until_split = self.seconds_with(tokens, 0, 0), SPLIT_TOKENS - self._prefill - self._decodes
        if until_split >= tokens:
            least_s = min(least_s, self.seconds_with(until_split + 1, 0, 0))
        return now_s + least_s > limit_s and least_s > limit_s - now_s

    def _grows(self) -> bool:
        """Whether no token makes the step shorter, by either piece of the estimate. Needed by few steps."""
        return all(term >= 0 for piece in self._pieces for term in piece[1:])

    def add(self, tokens: int, context: int, rank: int) -> None:
        self._prefill += tokens
        self._tokens[rank] += tokens
        self._pairs[rank] += tokens * (context + tokens / 2)
        self._busiest = max(self._busiest, self._tokens[rank])
        self._most_pairs = max(self._most_pairs, self._pairs[rank])

    def load(self) -> StepLoad:
        return StepLoad(self._prefill, self._busiest, self._decodes, self._context, self._most_pairs)

    def seconds(self) -> float:
        return self.seconds_with(0, 0, 0)


def fill(
    config: ServeConfig,
    order: Iterable[Request],
    step: Step,
    budget_tokens: int,
    now_s: float,
    admit: Callable[[Request], bool],
    limit_s: float | None,
    minds: bool,
    shortest_tokens: int = 1,
) -> list[Chosen]:
    """Chooses prompts, in order.

    `limit_s`: when the step must have ended for its decodes. `minds`: whether deadlines limit who joins. The first
    prompt always gets chunk_min tokens, whatever becomes late by that. No prompt in the order has fewer than
    shortest_tokens left; that only serves to find out sooner that a step is full.
    """
    chosen: list[Chosen] = []
    left, skipped, tried, refused = budget_tokens, 0, False, _UNKNOWN  # refused: so many tokens do not fit
    for request in order:
        if left <= 0 or skipped > config.skips_max:
            break
        need = request.prefill_left
        if not config.cut_prompts and need > left and (chosen or need <= budget_tokens):
            break
        if not admit(request):
            skipped += 1
            continue
        take = need if need < left else left
        if take >= refused:
            skipped += 1
            continue
        rank, context = step.rank_for(request), request.num_computed_tokens
        if minds and limit_s is not None and now_s + step.seconds_with(take, context, rank) > limit_s:
            take = _piece(config, step, request, take, rank, limit_s - now_s, first=not chosen)
            if take == 0:
                skipped += 1
                if not tried:  # else the step has not changed since
                    tried, block = True, min(config.chunk_block, left)
                    if step.exceeds(block, limit_s, now_s):
                        refused = block
                        step.full = shortest_tokens >= block or step.exceeds(shortest_tokens, limit_s, now_s)
                continue
        step.add(take, context, rank)
        tried, refused = False, _UNKNOWN
        chosen.append(Chosen(request, take, rank))
        left -= take
        if minds and take == need and now_s + step.seconds() <= request.due_s:
            limit_s = request.due_s if limit_s is None else min(limit_s, request.due_s)
    return chosen


def _piece(config: ServeConfig, step: Step, request: Request, most: int, rank: int, room_s: float, first: bool) -> int:
    """The largest piece that fits the time, or 0 if not even a block fits."""
    context = request.num_computed_tokens

    def fits(tokens: int) -> bool:
        return step.seconds_with(tokens, context, rank) <= room_s

    if first:
        least = min(config.chunk_min, most)
        return largest(least, most, config.chunk_block, fits) if least < most else most
    if not config.cut_prompts or most <= config.chunk_block or not fits(config.chunk_block):
        return 0
    return largest(config.chunk_block, most, config.chunk_block, fits)
