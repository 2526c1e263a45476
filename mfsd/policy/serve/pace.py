"""How long a step takes: two linear pieces, fitted by recursive least squares as steps end.

QoServe 3.6.1 predicts with a random forest trained on a profile. Its artifact has two linear pieces, split at 512
tokens, in (tokens, prefill tokens, decodes, decode context, prefill context). Here prefill context is the number of
token pairs that attention computes, since its time is proportional to that, and prefill tokens are those of the busiest
rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from mfsd.policy.serve.view import Observed, StepLoad

SPLIT_TOKENS: Final = 512
TERMS: Final = 6
SCALE: Final = (1.0, 1e-3, 1e-3, 1e-2, 1e-5, 1e-6)
"""Scales all terms to about 1, so that the fit is well conditioned."""
_SPREAD: Final = 1e4
"""Initial variance of a coefficient: so large that everything is learned from the first steps."""
_LEAST: Final = 1e-12
_LENGTHS: Final = (600, 2000)
SHORTEST_S: Final = 1e-6


class Piece(msgspec.Struct, frozen=True):
    """One linear piece: coefficients, and the inverse of what was seen (TERMS x TERMS, by row)."""

    terms: tuple[float, ...] = (0.0,) * TERMS
    inverse: tuple[float, ...] = tuple(_SPREAD if i % (TERMS + 1) == 0 else 0.0 for i in range(TERMS * TERMS))
    steps: int = 0


class Pace(msgspec.Struct, frozen=True):
    """The fit. Before the first step every estimate is next to 0: without evidence no request counts as late."""

    small: Piece = Piece()
    large: Piece = Piece()

    def step_s(self, load: StepLoad) -> float:
        """Estimated time of a step, without a margin."""
        return self._estimate(load.tokens, features(load))

    def _estimate(self, tokens: int, x: tuple[float, ...]) -> float:
        piece = self.small if tokens <= SPLIT_TOKENS else self.large
        if piece.steps == 0:  # a guess from the other piece is better than none
            piece = self.large if tokens <= SPLIT_TOKENS else self.small
        return max(SHORTEST_S, _dot(piece.terms, x))

    def prompts_s(self, tokens: int, busiest: int, pairs: float) -> float:
        """Estimated time of a step of prompts alone. `step_s` for loads that are asked about again and again."""
        return self._estimate(tokens, _prompts(tokens, busiest, pairs))


def features(load: StepLoad) -> tuple[float, ...]:
    return (
        1.0,
        load.tokens * SCALE[1],
        load.busiest_tokens * SCALE[2],
        load.decodes * SCALE[3],
        load.decode_context * SCALE[4],
        load.prefill_pairs * SCALE[5],
    )


@lru_cache(maxsize=256)
def _prompts(tokens: int, busiest: int, pairs: float) -> tuple[float, ...]:
    return features(StepLoad(tokens, busiest, 0, 0, pairs))


def learn(pace: Pace, observed: Iterable[Observed], forget: float = 1.0) -> Pace:
    """Returns the fit after these steps. Ignores impossible times (not above 0, not finite, over an hour)."""
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
    """One step of recursive least squares, weighted by 1 / seconds: relative errors count, as margins are shares.

    The past is forgotten only in the direction that this step says something about (directional forgetting). Engines
    see the same kind of step for hours, and what they knew about others must not fade.
    """
    x0, x1, x2, x3, x4, x5 = x
    x = x0, x1, x2, x3, x4, x5 = x0 / seconds, x1 / seconds, x2 / seconds, x3 / seconds, x4 / seconds, x5 / seconds
    inverse = piece.inverse
    rows = inverse[0:6], inverse[6:12], inverse[12:18], inverse[18:24], inverse[24:30], inverse[30:36]
    px = tuple([a * x0 + b * x1 + c * x2 + d * x3 + e * x4 + f * x5 for a, b, c, d, e, f in rows])
    seen = _dot(x, px)
    if seen <= _LEAST:
        return piece
    error, whole = 1.0 - _dot(piece.terms, x), 1.0 + seen
    share = (forget - (1.0 - forget) / seen) / (forget * whole)
    after: list[float] = []
    p0, p1, p2, p3, p4, p5 = px
    for (a0, a1, a2, a3, a4, a5), p in zip(rows, px, strict=True):
        s = share * p
        after += (a0 - s * p0, a1 - s * p1, a2 - s * p2, a3 - s * p3, a4 - s * p4, a5 - s * p5)
    t0, t1, t2, t3, t4, t5 = piece.terms
    terms = (
        t0 + p0 * error / whole,
        t1 + p1 * error / whole,
        t2 + p2 * error / whole,
        t3 + p3 * error / whole,
        t4 + p4 * error / whole,
        t5 + p5 * error / whole,
    )
    return Piece(terms, tuple(after), piece.steps + 1)


def _dot(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Written out, because it runs a dozen times a step and sum() of floats differs between versions of Python."""
    a0, a1, a2, a3, a4, a5 = a
    b0, b1, b2, b3, b4, b5 = b
    return a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3 + a4 * b4 + a5 * b5


class Alone(NamedTuple):
    """Time of a prompt that has the engine to itself: a step's fixed part, and the time of each token on a rank."""

    fixed_s: float
    per_token_s: float


def alone(pace: Pace) -> Alone:
    """The line through prompts of two lengths."""
    short, long = [pace.prompts_s(n, n, n * n / 2) for n in _LENGTHS]
    each = max(0.0, (long - short) / (_LENGTHS[1] - _LENGTHS[0]))
    return Alone(max(0.0, short - each * _LENGTHS[0]), each)


def prefill_s_per_token(pace: Pace, tokens: int, ranks: int) -> float:
    """Time per token of a step full of prompts of a thousand tokens, spread evenly over ranks."""
    each = -(-tokens // ranks)
    return pace.prompts_s(tokens, each, 500.0 * each) / tokens
