"""A learned model: its file, and prediction from it.

The file starts with a header, one line of JSON. Then comes the model as JSON: trees as LightGBM writes them, the
calibration as points, and the latest errors of the lengths, for bounds. A file that is no model, incomplete, or learned
with other features is refused with one line.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from mfsd.policy.serve import LengthBounds
from mfsd.policy.serve.conformal import SHORTEST_TOKENS
from mfsd.serve.learn.features import FEATURES, CallInfo, features_hash, vector
from mfsd.serve.learn.prior import UNKNOWN_TOOL
from mfsd.serve.learn.trees import Trees, TreesError

FORMAT: Final = "mfs-output-lengths"
VERSION: Final = 1
OUTPUT_MAX: Final = 1e6
"""Highest prediction, in tokens."""


class ModelError(Exception):
    """A model cannot be used. The message is one line with the problem and the remedy."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int
    features_hash: str
    body_bytes: int
    body_sha256: str


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The learned model. Trees are in LightGBM's own text format."""

    roles: tuple[str, ...]
    """The categories of the feature `role`, in order."""
    intent: str
    """Trees that predict whether the call uses a tool; empty: the rows did not say."""
    calibration: tuple[tuple[float, float], ...]
    """Isotonic map: score -> share of the calls with that score that used a tool."""
    lengths: dict[str, str]
    """Regressor of log(1 + tokens) by role, for roles with enough rows; "" is the regressor of all."""
    errors: tuple[tuple[float, ...], ...]
    """Latest values of tokens less prediction, for each bucket of prompt lengths, oldest first."""
    requests: int
    """Number of requests that it was learned from."""


class Prediction(NamedTuple):
    tool_probability: float
    output_tokens: float


def calibrated(points: Sequence[tuple[float, float]], score: float) -> float:
    """Returns the calibrated score: linear between the points, constant outside of them."""
    if not points:
        return score
    place = bisect_right([x for x, _ in points], score)
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    return y1 if x1 <= x0 else y0 + (y1 - y0) * (score - x0) / (x1 - x0)


class Predictor:
    """Predicts with a model. ModelError if LightGBM is missing or cannot read the trees."""

    def __init__(self, model: Model) -> None:
        self._model = model
        try:
            lightgbm = importlib.import_module("lightgbm")
            self._numpy = importlib.import_module("numpy")
        except ImportError as error:
            raise ModelError(f"a learned model needs {error.name}: pip install 'mfsd[learn]'") from error
        try:
            self._intent = Trees(lightgbm, model.intent, len(FEATURES)) if model.intent else None
            self._lengths = {role: Trees(lightgbm, text, len(FEATURES) + 1) for role, text in model.lengths.items()}
        except TreesError as error:
            raise ModelError(f"LightGBM cannot read the trees: {error}; learn the model again") from error

    def predict(self, call: CallInfo) -> Prediction:
        row = vector(call, self._model.roles)
        score = self._intent.one(row) if self._intent is not None and call.tools else UNKNOWN_TOOL
        tools = calibrated(self._model.calibration, score) if call.tools else 0.0
        return Prediction(tools, _tokens(self._lengths[self._regressor(call)].one((*row, tools))))

    def predict_all(self, calls: Sequence[CallInfo]) -> list[Prediction]:
        np = self._numpy
        tools = self.tool_probabilities(calls)
        table = np.column_stack([self._table(calls), tools])
        tokens = [0.0] * len(calls)
        for role, rows in self._by_regressor(calls).items():
            for row, logarithm in zip(rows, self._lengths[role].all(table[rows]), strict=True):
                tokens[row] = _tokens(float(logarithm))
        return [Prediction(p, t) for p, t in zip(tools, tokens, strict=True)]

    def tool_probabilities(self, calls: Sequence[CallInfo]) -> list[float]:
        """Returns the probability of tool use (Eq 1); 0 without tools."""
        scores = self._intent.all(self._table(calls)) if self._intent is not None else [UNKNOWN_TOOL] * len(calls)
        return [
            calibrated(self._model.calibration, float(score)) if call.tools else 0.0
            for call, score in zip(calls, scores, strict=True)
        ]

    def bounds(self, epsilon: float) -> LengthBounds:
        """Returns bounds that start from the errors of training. The caller adds those of requests as they end."""
        bounds = LengthBounds(epsilon)
        for bucket, errors in enumerate(self._model.errors):
            for error in errors:
                bounds.ended(SHORTEST_TOKENS << bucket, -error, 0)
        return bounds

    def _table(self, calls: Sequence[CallInfo]) -> Any:
        return self._numpy.array([vector(call, self._model.roles) for call in calls], dtype=float)

    def _by_regressor(self, calls: Sequence[CallInfo]) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for number, call in enumerate(calls):
            rows.setdefault(self._regressor(call), []).append(number)
        return rows

    def _regressor(self, call: CallInfo) -> str:
        return call.role if call.role in self._lengths else ""


def _tokens(logarithm: float) -> float:
    return min(OUTPUT_MAX, max(1.0, math.expm1(min(logarithm, 20.0))))


def write(path: Path, model: Model) -> None:
    """Writes the file atomically."""
    body = msgspec.json.encode(model)
    header = Header(
        format=FORMAT,
        version=VERSION,
        features_hash=features_hash(),
        body_bytes=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
    )
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(msgspec.json.encode(header) + b"\n" + body)
    beside.replace(path)


def read(path: Path) -> Model:
    try:
        first, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}; learn one with mfsctl learn") from error
    again = "learn the model again with this version's mfsctl learn"
    try:
        header = msgspec.json.decode(first, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: no model of output lengths; name a file that mfsctl learn wrote") from error
    if header.format != FORMAT:
        raise ModelError(f"{path}: format is {header.format!r:.40}, not {FORMAT}; name a file that mfsctl learn wrote")
    if header.version != VERSION:
        raise ModelError(f"{path}: version {header.version} of the format, not {VERSION}; {again}")
    if header.features_hash != features_hash():
        raise ModelError(f"{path}: learned with other features; {again}")
    if len(body) != header.body_bytes:
        raise ModelError(f"{path}: holds {len(body)} of {header.body_bytes} bytes; copy it again")
    if hashlib.sha256(body).hexdigest() != header.body_sha256:
        raise ModelError(f"{path}: was changed after it was written; copy it again")
    try:
        return msgspec.json.decode(body, type=Model)
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: {error}; {again}") from error
