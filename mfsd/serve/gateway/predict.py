"""Predicts how long answers are by a learned model, and records requests to learn one from."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from mfsd.serve.gateway import responses
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.poll import Log
from mfsd.serve.gateway.settings import Predict
from mfsd.serve.gateway.usage import CHAT, COMPLETIONS, PATHS, Produced
from mfsd.serve.history import Lengths
from mfsd.serve.learn.features import Sessions
from mfsd.serve.learn.model import Predictor, read
from mfsd.serve.learn.rows import RequestRow
from mfsd.serve.learn.writer import RowWriter
from mfsd.serve.promise import Wanted

LIMITS: Final = {
    COMPLETIONS: ("max_tokens",),
    CHAT: ("max_completion_tokens", "max_tokens"),
    responses.PATH: ("max_output_tokens",),
}
"""Fields of a body with the request's own limit on its output, by path; the first that is given counts."""


class Asked(NamedTuple):
    """A request whose answer is not known yet."""

    row: RequestRow
    """Without the answer."""
    has_session: bool
    wanted: Wanted
    """As the client has it."""
    limit_tokens: float
    predicted_tokens: float | None
    """None: there is no model, or the request names its length itself."""


class Predictions:
    """The model, the file of recorded requests, or both. ModelError."""

    def __init__(self, settings: Predict, metrics: Metrics, log: Log) -> None:
        self._metrics = metrics
        self._predictor = Predictor(read(Path(settings.model))) if settings.model else None
        self._sessions = Sessions()
        self._usual = Lengths()
        """What engines expect without a model."""
        self._rows: RowWriter | None = None
        if settings.record:
            self._rows = RowWriter(Path(settings.record), lambda problem: log.warning("not-recorded", problem=problem))

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def asked(
        self, path: str, body: Mapping[str, Any], wanted: Wanted, program: str, prompt_tokens: int, request_id: str
    ) -> Asked | None:
        """Returns what is known of a request; None if it has no body or not one answer, or its path gives no text.
        program: that of its session."""
        if path not in PATHS or not body or not _is_single(body):
            return None
        session = wanted.session or request_id
        row = RequestRow(
            session_id=_digest(session),
            timestamp=0.0,
            input_length=prompt_tokens,
            output_length=0,
            role=wanted.role,
            tools=tools_in(body),
            after_tool=after_tool(path, body),
            group=_digest(program) if program else None,
        )
        limit = limit_of(path, body)
        predicted = None
        if self._predictor is not None and not wanted.expected_output_tokens:
            tokens = self._predictor.predict(self._sessions.call(row)).output_tokens
            predicted = min(float(round(tokens)), limit)
        return Asked(row, bool(wanted.session), wanted, limit, predicted)

    def ended(self, asked: Asked, produced: Produced) -> None:
        """Learns of the complete answer to a request."""
        row = msgspec.structs.replace(
            asked.row, timestamp=time.time(), output_length=produced.tokens, tool_call=produced.tool_call
        )
        if self._predictor is not None:
            if asked.has_session:
                self._sessions.ended(row)
            self._compare(asked, produced.tokens)
        if self._rows is not None:
            self._rows.add(row)

    def _compare(self, asked: Asked, tokens: int) -> None:
        """Measures how far the model was off, and how far what engines expect without it."""
        prompt_tokens, limit = asked.row.input_length, asked.limit_tokens
        usual, _ = self._usual.expected(asked.wanted._replace(expected_output_tokens=None), prompt_tokens, limit)
        self._usual.ended(asked.wanted, prompt_tokens, tokens, usual, at_limit=tokens >= limit)
        if asked.predicted_tokens is not None:
            error = self._metrics.prediction_error
            error.labels("model").observe(abs(tokens - asked.predicted_tokens))
            error.labels("mean").observe(abs(tokens - usual))


def tools_in(body: Mapping[str, Any]) -> int:
    """Returns how many tools the call may use."""
    tools = body.get("tools")
    return len(tools) if isinstance(tools, list) and body.get("tool_choice") != "none" else 0


def after_tool(path: str, body: Mapping[str, Any]) -> bool | None:
    """Whether the prompt ends with a tool's result; None: a text does not say."""
    if path == COMPLETIONS:
        return None
    parts = body.get("messages" if path == CHAT else "input")
    last = parts[-1] if isinstance(parts, list) and parts else None
    if not isinstance(last, dict):
        return False
    return last.get("role") == "tool" or last.get("type") == "function_call_output"


def limit_of(path: str, body: Mapping[str, Any]) -> float:
    """Returns the request's own limit on its output in tokens; infinity if it names none."""
    for field in LIMITS[path]:
        value = body.get(field)
        if isinstance(value, int) and value >= 1:
            return float(value)
    return math.inf


def _is_single(body: Mapping[str, Any]) -> bool:
    """Whether the request asks for one answer. The `usage` of several is their sum."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    return not several and all(body.get(field) in (None, 1) for field in ("n", "best_of"))


def _digest(name: str) -> str:
    """Returns a stand-in for the name of a session, which may say who uses it."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
