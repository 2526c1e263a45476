"""One request, independent of the front that it came by: its words, its body for the engine, and how it is refused."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import msgspec

from mfsd.policy.route import Call, Refusal
from mfsd.serve.gateway import pd
from mfsd.serve.gateway.admission import NoPlace
from mfsd.serve.gateway.answer import Refused
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.predict import Asked, Predictions
from mfsd.serve.gateway.prompt import Prompt, prompt_of
from mfsd.serve.gateway.usage import AnswerReader
from mfsd.serve.gateway.xargs import Headers, words_of, written
from mfsd.serve.promise import Wanted, Words
from mfsd.serve.settings import NO_TIER

PATHS: Final = (*pd.PATHS, "/v1/responses", "/v1/embeddings")
STATUS: Final = {
    Refusal.MODEL: (404, "invalid_request_error", "model_not_found"),
    Refusal.TIER: (503, "server_error", "no_replica_for_tier"),
    Refusal.TOO_LONG: (413, "invalid_request_error", "context_length_exceeded"),
    Refusal.UNHEALTHY: (503, "server_error", "no_replica"),
    Refusal.SATURATED: (429, "rate_limit_error", "saturated"),
}
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for invalid JSON, for invalid UTF-8 in a name, and for brackets nested deeper than Python's calls.
"""
UNHEALTHY_RETRY_S: Final = 1


class NotUsable(Exception):
    """The body cannot be passed on."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


def too_large(most_bytes: int) -> Refused:
    text = f"the body has more than {most_bytes} bytes, which is the limit"
    return Refused(413, text, "invalid_request_error", "body_too_large", more={"limit": most_bytes})


def too_slow(seconds: float) -> Refused:
    text = f"the body did not arrive within {seconds:g} s, which is the limit"
    return Refused(408, text, "invalid_request_error", "body_too_slow", more={"limit": seconds})


def no_socket(problem: str) -> Refused:
    text = f"the gateway cannot open a connection to an engine now: {problem}"
    return Refused(503, text, "server_error", "no_socket", UNHEALTHY_RETRY_S)


def not_in_two(path: str) -> Refused:
    text = f"{path} cannot be split into prefill and decode: add a replica of role both to the gateway"
    return Refused(400, text, "invalid_request_error", "path_not_served")


def engine_lost(reason: str) -> Refused:
    text = f"the engine did not finish the request ({reason}); it is not sent again, because it may have run"
    return Refused(502, text, "server_error", "engine_lost")


def _no_json(error: Exception) -> NotUsable:
    return NotUsable(Refused(400, f"the body is not JSON: {error}", "invalid_request_error", "invalid_json"))


def object_of(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. NotUsable."""
    try:
        body = msgspec.json.decode(raw)
    except NOT_JSON as error:
        raise _no_json(error) from None
    if not isinstance(body, dict):
        raise NotUsable(Refused(400, "the body is not a JSON object", "invalid_request_error", "invalid_json"))
    return body


def encoded(body: dict[str, Any]) -> bytes:
    """Returns a body as JSON. NotUsable."""
    try:
        return msgspec.json.encode(body)
    except RecursionError as error:  # the stack is deeper here than when it was decoded
        raise _no_json(error) from None


class Exchange:
    __slots__ = ("asked", "began_s", "body", "call", "headers", "path", "prompt", "request_id", "wanted", "words")

    def __init__(self, path: str, headers: Headers, body: dict[str, Any]) -> None:
        self.path, self.headers, self.body = path, headers, body
        self.began_s = asyncio.get_running_loop().time()
        self.request_id = uuid.uuid4().hex
        self.call = Call()
        self.prompt = Prompt(0, 0)
        self.wanted, self.words = Wanted(), Words()
        self.asked: Asked | None = None
        """What predictions know of it; None: it is none of theirs."""

    def read(self, gateway: Gateway) -> None:
        """Reads the words of the request."""
        body = self.body
        words = self.words = words_of(body, self.headers, gateway.settings.tiers)
        if words.tier and not gateway.settings.tiers:
            wanted = gateway.reader.wanted(words._replace(tier=""))  # only its engine knows the tier
        else:
            wanted = gateway.reader.wanted(words)
        self.wanted = wanted
        self.prompt = prompt_of(body, gateway.chunked)
        program, known = gateway.programs.program_of(wanted)
        if not known:
            text = f"parent {wanted.parent!r} is not known here; its sessions count for themselves"
            gateway.cannot_use("serve-parent", text)
        now_ns = int(self.began_s * 1e9)
        model = body.get("model")
        self.call = Call(
            prompt_tokens=self.prompt.tokens,
            model=model if isinstance(model, str) else "",
            program=program,
            tier=wanted.tier if wanted.tier != NO_TIER else "",
            importance=wanted.importance,
            arrival_ns=now_ns,
            deadline_ns=None if wanted.ttft_s is None else now_ns + int(wanted.ttft_s * 1e9),
            kv_bytes=self.prompt.tokens * gateway.settings.kv.bytes_per_token,
        )
        if gateway.predictions is not None:
            self._predict(gateway.predictions)

    def _predict(self, predictions: Predictions) -> None:
        wanted, call = self.wanted, self.call
        self.asked = predictions.asked(self.path, self.body, wanted, call.program, call.prompt_tokens, self.request_id)
        if self.asked is not None and self.asked.predicted_tokens is not None:
            self.wanted = wanted._replace(expected_output_tokens=self.asked.predicted_tokens)

    def answer_reader(self, stream: bool) -> AnswerReader | None:
        """Returns what reads the answer; None if it needs no reader."""
        return AnswerReader(self.path, stream) if self.asked is not None else None

    def answered(self, gateway: Gateway, reader: AnswerReader | None) -> None:
        """Handles the end of a complete answer."""
        if reader is None or self.asked is None or gateway.predictions is None:
            return
        if (produced := reader.end()) is not None:
            gateway.predictions.ended(self.asked, produced)

    def for_engine(self, body: dict[str, Any], waited_s: float) -> bytes:
        """Returns the body for the engine, with the words. NotUsable."""
        return encoded(written(body, self.wanted, self.words, waited_s))

    def refused(self, gateway: Gateway, error: NoPlace) -> Refused:
        """Returns the refusal for a call without a place, and counts it."""
        choice = error.choice
        assert choice.refused is not None
        status, kind, code = STATUS[choice.refused]
        gateway.metrics.refused.labels(choice.refused.value).inc()
        text, more = choice.reason, {}
        if choice.refused is Refusal.TOO_LONG:
            text = f"{text}: it has at least {self.prompt.tokens_least} tokens, and the limit is {choice.limit}"
            more = {"limit": choice.limit}
        elif choice.refused is Refusal.MODEL:
            text = f"{text} {self.call.model!r:.80}; /v1/models lists the models that are served"
        retry_s = error.retry_after_s or (UNHEALTHY_RETRY_S if choice.refused is Refusal.UNHEALTHY else 0)
        return Refused(status, text, kind, code, retry_s, more)
