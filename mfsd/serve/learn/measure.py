"""Measures a model on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sklearn import metrics

from mfsd.serve.learn.model import Model, Predictor
from mfsd.serve.learn.train import Part

EPSILONS = (0.1, 0.05, 0.01)
UNBOUNDED = float("inf")


class Coverage(msgspec.Struct, frozen=True):
    """Shares of answers within their bound, among those that had one."""

    epsilon: float
    covered: float
    bounded: int
    mean_bound_tokens: float


class Measures(msgspec.Struct, frozen=True):
    """auc and f1 are of tool use, null if that was not learned; mae and r2 are of output tokens."""

    requests: int
    auc: float | None
    f1: float | None
    log_loss: float | None
    mae: float
    r2: float
    coverage: tuple[Coverage, ...]


def measure(model: Model, test: Part) -> Measures:
    predictor = Predictor(model)
    predictions = predictor.predict_all([call for call, _ in test])
    labelled = [
        (p.tool_probability, bool(row.tool_call))
        for p, (call, row) in zip(predictions, test, strict=True)
        if row.tool_call is not None and call.tools
    ]
    both = bool(model.intent) and len({used for _, used in labelled}) == 2
    scores, used = [p for p, _ in labelled], [u for _, u in labelled]
    tokens, predicted = [row.output_length for _, row in test], [p.output_tokens for p in predictions]
    return Measures(
        requests=len(test),
        auc=float(metrics.roc_auc_score(used, scores)) if both else None,
        f1=float(metrics.f1_score(used, [p >= 0.5 for p in scores], average="macro")) if both else None,
        log_loss=float(metrics.log_loss(used, scores)) if both else None,
        mae=float(metrics.mean_absolute_error(tokens, predicted)),
        r2=float(metrics.r2_score(tokens, predicted)),
        coverage=tuple(_coverage(predictor, test, predicted, epsilon) for epsilon in EPSILONS),
    )


def _coverage(predictor: Predictor, test: Part, predicted: Sequence[float], epsilon: float) -> Coverage:
    """Measures bounds as they are used: each answer gets its bound before it is known, then counts for later ones."""
    bounds = predictor.bounds(epsilon)
    covered = bounded = 0
    total = 0.0
    for (call, row), tokens in zip(test, predicted, strict=True):
        bound = bounds.bound(call.prompt_tokens, tokens, UNBOUNDED)
        bounds.ended(call.prompt_tokens, tokens, row.output_length)
        if bound < UNBOUNDED:
            bounded += 1
            covered += row.output_length <= bound
            total += bound
    return Coverage(epsilon, covered / max(1, bounded), bounded, total / max(1, bounded))


def as_json(measures: Measures) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(measures)
    return found
