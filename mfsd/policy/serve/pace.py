"""How long a step takes: two linear pieces, fitted by recursive least squares as steps end.

QoServe 3.6.1 predicts with a random forest trained on a profile; its artifact with two linear pieces, split at 512
tokens, in (tokens, prefill tokens, decodes, decode context, prefill context). Here prefill context is the number of
token pairs that attention computes, which its time is proportional to, and prefill tokens are those of the busiest
rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from mfsd.policy.serve.view import Observed, StepLoad

SPLIT_TOKENS: Final = 512
TERMS: Final = 6
SCALE: Final = (1.0, 1e-3, 1e-3, 1e-2, 1e-5, 1e-6)
"""Brings all terms near 1, so that the fit is well conditioned."""
_SPREAD: Final = 1e4
"""Variance of a coefficient before anything was seen: all is learned from the first steps."""
_LEAST: Final = 1e-12
_LENGTHS: Final = (600, 2000)
SHORTEST_S: Final = 1e-6


class Piece(msgspec.Struct, frozen=True):
    """One linear piece: coefficients, and the inverse of what was seen (TERMS x TERMS, by row)."""

    terms: tuple[float, ...] = (0.0,) * TERMS
    inverse: tuple[float, ...] = tuple(_SPREAD if i % (TERMS + 1) == 0 else 0.0 for i in range(TERMS * TERMS))
    steps: int = 0


class Pace(msgspec.Struct, frozen=True):
    """The fit. Before the first step every estimate is next to 0: no request is taken for late without evidence."""

    small: Piece = Piece()
    large: Piece = Piece()

    def step_s(self, load: StepLoad) -> float:
        """Estimate, without any margin."""
        piece = self.small if load.tokens <= SPLIT_TOKENS else self.large
        if piece.steps == 0:  # a guess from the other piece is better than none
            piece = self.large if load.tokens <= SPLIT_TOKENS else self.small
        return max(SHORTEST_S, sum(a * b for a, b in zip(piece.terms, features(load), strict=True)))


def features(load: StepLoad) -> tuple[float, ...]:
    return (
        1.0,
        load.tokens * SCALE[1],
        load.busiest_tokens * SCALE[2],
        load.decodes * SCALE[3],
        load.decode_context * SCALE[4],
        load.prefill_pairs * SCALE[5],
    )


def learn(pace: Pace, observed: Iterable[Observed], forget: float = 1.0) -> Pace:
    """The fit after these steps. Times that cannot be (not above 0, not finite, over an hour) teach nothing."""
    small, large = pace.small, pace.large
    for step in observed:
        if not 0 < step.seconds < 3600:
            continue
        if step.load.tokens <= SPLIT_TOKENS:
            small = _learn(small, features(step.load), step.seconds, forget)
        else:
            large = _learn(large, features(step.load), step.seconds, forget)
    return Pace(small, large)


def _learn(piece: Piece, x: tuple[float, ...], seconds: float, forget: float) -> Piece:
    """One step of recursive least squares, weighted by 1 / seconds: relative errors count, as margins are shares. The
    past is forgotten only in the direction that this step says something about (directional forgetting): engines see
    the same kind of step for hours, and what they knew of others must not fade."""
    n, inverse = TERMS, piece.inverse
    x = tuple(value / seconds for value in x)
    px = [sum(inverse[i * n + j] * x[j] for j in range(n)) for i in range(n)]
    seen = sum(a * b for a, b in zip(x, px, strict=True))
    if seen <= _LEAST:
        return piece
    error = 1.0 - sum(a * b for a, b in zip(piece.terms, x, strict=True))
    terms = tuple(term + p * error / (1.0 + seen) for term, p in zip(piece.terms, px, strict=True))
    share = (forget - (1.0 - forget) / seen) / (forget * (1.0 + seen))
    after = tuple(inverse[i * n + j] - share * px[i] * px[j] for i in range(n) for j in range(n))
    return Piece(terms, after, piece.steps + 1)


class Alone(NamedTuple):
    """Time of a prompt that has the engine to itself: a step's fixed part, and what each token takes on one rank."""

    fixed_s: float
    per_token_s: float


def alone(pace: Pace) -> Alone:
    """The line through two prompts of some length."""
    short, long = (pace.step_s(StepLoad(n, n, 0, 0, n * n / 2)) for n in _LENGTHS)
    each = max(0.0, (long - short) / (_LENGTHS[1] - _LENGTHS[0]))
    return Alone(max(0.0, short - each * _LENGTHS[0]), each)


def prefill_s_per_token(pace: Pace, tokens: int, ranks: int) -> float:
    """Of a step full of prompts of a thousand tokens, evenly spread."""
    each = -(-tokens // ranks)
    return pace.step_s(StepLoad(tokens, each, 0, 0, 500.0 * each)) / tokens
