"""Training (Maestro III-B): a calibrated classifier of tool use, whose result is a feature of the length regressors.

Sessions are split 3:1:1 into training, calibration (early stopping, isotonic map, errors for bounds) and test by a hash
of their group, so that the same rows give the same parts on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import lightgbm
import numpy as np
from sklearn.isotonic import IsotonicRegression

from mfsd.policy.serve.conformal import BUCKETS, WINDOW, bucket_of
from mfsd.serve.learn.features import CATEGORICAL, FEATURES, TOOL_PROBABILITY, CallInfo, calls_of, vector
from mfsd.serve.learn.model import Model, Predictor
from mfsd.serve.learn.rows import RequestRow, RowsError

ROUNDS: Final = 400
PATIENCE: Final = 20
"""Training ends after this many rounds without a better score on the calibration part."""
ROLE_ROWS: Final = 1000
"""Training rows that a role needs for its own regressor."""
LEAST_ROWS: Final = 50
"""Least number of rows of each part."""
LEAST_INTENT: Final = 10
"""Rows that each of the two answers needs, in training and in calibration, for a classifier."""
ROLES_MAX: Final = 64
PARAMETERS: Final = {
    "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 40, "verbosity": -1, "seed": 1, "deterministic": True,
    "force_row_wise": True, "num_threads": 2,
}  # fmt: skip

Progress = Callable[[str], object]
Part = list[tuple[CallInfo, RequestRow]]


class Parts(NamedTuple):
    train: Part
    calibrate: Part
    test: Part


class Learned(NamedTuple):
    model: Model
    test: Part
    """Rows that the model has not seen."""


def parted(rows: Sequence[RequestRow]) -> Parts:
    parts = Parts([], [], [])
    for call, row in zip(calls_of(rows), rows, strict=True):
        draw = hashlib.sha256(row.split_group.encode()).digest()[0] / 256
        (parts.train if draw < 0.6 else parts.calibrate if draw < 0.8 else parts.test).append((call, row))
    return parts


def learn(rows: Sequence[RequestRow], progress: Progress) -> Learned:
    """Learns a model. RowsError if there are too few rows."""
    parts = parted(rows)
    for name, part in zip(Parts._fields, parts, strict=True):
        if len(part) < LEAST_ROWS:
            raise RowsError(
                f"{len(rows)} requests leave {len(part)} for {name}: record at least {LEAST_ROWS} for each part, in "
                "more sessions"
            )
    roles = tuple(sorted({call.role for call, _ in parts.train}))[:ROLES_MAX]
    progress(f"{len(rows)} requests: {len(parts.train)} to learn, {len(parts.calibrate)} to calibrate, "
             f"{len(parts.test)} to test; {len(roles)} roles")  # fmt: skip
    intent, calibration = _intent(parts, roles, progress)
    bare = Model(
        roles=roles, intent=intent, calibration=calibration, lengths={}, errors=((),) * BUCKETS, requests=len(rows)
    )
    lengths = _lengths(parts, bare, progress)
    model = Model(roles=roles, intent=intent, calibration=calibration, lengths=lengths, errors=(), requests=len(rows))
    return Learned(_with_errors(model, parts.calibrate), parts.test)


def _intent(parts: Parts, roles: Sequence[str], progress: Progress) -> tuple[str, tuple[tuple[float, float], ...]]:
    """Returns trees and calibration; both are empty if the rows do not tell tool use, or all tell the same."""
    train, calibrate = (
        [(c, bool(r.tool_call)) for c, r in part if r.tool_call is not None and c.tools] for part in parts[:2]
    )
    for part in (train, calibrate):
        used = sum(answer for _, answer in part)
        if min(used, len(part) - used) < LEAST_INTENT:
            progress("tool use: not learned, too few requests with tools say whether they used one")
            return "", ()
    x, y = _table([c for c, _ in train], roles), [float(a) for _, a in train]
    x_valid, y_valid = _table([c for c, _ in calibrate], roles), [float(a) for _, a in calibrate]
    booster = _boosted({"objective": "binary", "metric": "binary_logloss"}, FEATURES, x, y, x_valid, y_valid)
    progress(f"tool use: {booster.best_iteration} trees from {len(y)} requests")
    fitted = IsotonicRegression(out_of_bounds="clip").fit(booster.predict(x_valid), y_valid)
    points = zip(fitted.X_thresholds_, fitted.y_thresholds_, strict=True)
    return _text(booster), tuple((float(a), float(b)) for a, b in points)


def _lengths(parts: Parts, bare: Model, progress: Progress) -> dict[str, str]:
    """Returns the regressors of all roles and of each role with enough rows. `bare`: the model without them."""
    tables = []
    for part in parts[:2]:
        calls = [call for call, _ in part]
        tools = Predictor(bare).tool_probabilities(calls)
        x = np.column_stack([_table(calls, bare.roles), tools])
        tables.append((x, np.array([math.log1p(row.output_length) for _, row in part]), [c.role for c in calls]))
    (x, y, of), (x_valid, y_valid, of_valid) = tables
    names = (*FEATURES, TOOL_PROBABILITY)
    found = {}
    for role in ("", *(r for r in bare.roles if r)):
        here, valid = (np.array([role in ("", r) for r in roles]) for roles in (of, of_valid))
        if role and (here.all() or here.sum() < ROLE_ROWS or valid.sum() < LEAST_ROWS):
            continue
        objective = {"objective": "regression", "metric": "l2"}
        booster = _boosted(objective, names, x[here], y[here], x_valid[valid], y_valid[valid])
        progress(f"lengths{f' of {role}' if role else ''}: {booster.best_iteration} trees from {here.sum()} requests")
        found[role] = _text(booster)
    return found


def _with_errors(model: Model, part: Part) -> Model:
    errors: list[list[float]] = [[] for _ in range(BUCKETS)]
    predictions = Predictor(model).predict_all([call for call, _ in part])
    for (call, row), prediction in zip(part, predictions, strict=True):
        errors[bucket_of(call.prompt_tokens)].append(row.output_length - prediction.output_tokens)
    return Model(
        roles=model.roles, intent=model.intent, calibration=model.calibration, lengths=model.lengths,
        errors=tuple(tuple(of[-WINDOW:]) for of in errors), requests=model.requests,
    )  # fmt: skip


def _table(calls: Sequence[CallInfo], roles: Sequence[str]) -> Any:
    return np.array([vector(call, roles) for call in calls], dtype=float)


def _boosted(given: dict[str, Any], names: Sequence[str], x: Any, y: Any, x_valid: Any, y_valid: Any) -> Any:
    train = lightgbm.Dataset(x, np.asarray(y), feature_name=list(names), categorical_feature=list(CATEGORICAL))
    valid = lightgbm.Dataset(x_valid, np.asarray(y_valid), reference=train)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    return lightgbm.train({**PARAMETERS, **given}, train, ROUNDS, valid_sets=[valid], callbacks=[stop])


def _text(booster: Any) -> str:
    return str(booster.model_to_string(num_iteration=booster.best_iteration))
