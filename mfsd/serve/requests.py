"""A request as the engine's side of the request tier stores it, and its view for the policy."""

from __future__ import annotations

from typing import NamedTuple

from mfsd.policy.serve import Inherited, Request, ServeConfig, again_due_s
from mfsd.policy.serve.deadlines import tokens_since_s
from mfsd.serve.promise import Wanted


class Fact(NamedTuple):
    """The engine's own counts for one request at a step."""

    name: str
    num_computed_tokens: int
    num_cached_tokens: int = 0
    """The part of these that was found in a cache or loaded."""
    num_output_tokens: int = 0
    again_tokens: int = 0
    """Prompt and output tokens that must be computed again because the KV was dropped."""
    may_load: bool = False
    """Whether a connector may have KV of its prompt and has not been asked yet."""


class Entry:
    """A request from its arrival to its end."""

    __slots__ = (
        "arrival_s",
        "due_s",
        "expected",
        "expected_max",
        "first_due_s",
        "first_token_s",
        "folded",
        "inherited",
        "late_tokens",
        "name",
        "number",
        "outputs",
        "program",
        "prompt_tokens",
        "service_s",
        "shown",
        "to_compute",
        "wanted",
    )

    def __init__(
        self, name: str, number: int, arrival_s: float, prompt_tokens: int, wanted: Wanted, due_s: float
    ) -> None:
        self.name, self.number, self.arrival_s, self.wanted = name, number, arrival_s, wanted
        self.prompt_tokens = self.to_compute = prompt_tokens
        self.due_s = self.first_due_s = due_s
        """As in the view. `due_s` may be renewed."""
        self.expected = self.expected_max = 0.0
        self.program = ""
        self.inherited = Inherited()
        self.first_token_s: float | None = None
        self.outputs = self.folded = self.late_tokens = 0
        self.service_s = 0.0
        self.shown: Request | None = None
        """The request in the latest view."""

    def again(self, tokens: int, output_tokens: int, now_s: float) -> None:
        """Sets, after its KV was dropped, how many tokens must be computed again, those of its output included."""
        if tokens > self.to_compute:
            self.due_s = again_due_s(self.first_due_s, self.arrival_s, now_s)
        self.to_compute, self.folded = tokens, output_tokens

    def produced(self, config: ServeConfig, tokens: int, now_s: float) -> None:
        """Counts the tokens and the late ones among them. The first token has its own deadline, the others that of
        QoServe's Eq 2."""
        wanted = self.wanted
        if self.first_token_s is None:
            self.first_token_s = now_s
            if wanted.ttft_s is not None and now_s > self.arrival_s + wanted.ttft_s:
                self.late_tokens += 1
        elif wanted.tbt_s is not None:
            since_s = tokens_since_s(config, self.first_due_s, self.first_token_s)
            if now_s > since_s + self.outputs * wanted.tbt_s:
                self.late_tokens += tokens
        self.outputs += tokens

    def in_time(self, now_s: float) -> bool | None:
        """Whether the request, if it ends now, was in time; None if it had no deadline."""
        if not self.has_deadline:
            return None
        first_s, whole_s = self.wanted.ttft_s, self.wanted.ttlt_s
        if self.first_token_s is None and first_s is not None and now_s > self.arrival_s + first_s:
            return False  # it ends without a token
        return self.late_tokens == 0 and (whole_s is None or now_s <= self.arrival_s + whole_s)

    @property
    def has_deadline(self) -> bool:
        wanted = self.wanted
        return wanted.ttft_s is not None or wanted.tbt_s is not None or wanted.ttlt_s is not None

    def view(self, fact: Fact, now_s: float) -> Request:
        wanted = self.wanted
        return Request(
            request_id=self.number,
            arrival_s=self.arrival_s,
            num_prompt_tokens=self.to_compute,
            due_s=self.due_s,
            first_due_s=None if self.first_due_s == self.due_s else self.first_due_s,
            num_computed_tokens=fact.num_computed_tokens,
            num_cached_tokens=fact.num_cached_tokens,
            may_load=fact.may_load,
            num_output_tokens=fact.num_output_tokens,
            num_folded_tokens=min(self.folded, fact.num_output_tokens),
            ttft_s=wanted.ttft_s,
            tbt_s=wanted.tbt_s,
            ttlt_s=wanted.ttlt_s,
            first_token_s=self.first_token_s,
            output_tokens=self.expected,
            output_tokens_max=self.expected_max,
            importance=wanted.importance,
            tenant=wanted.tenant,
            weight=wanted.weight,
            program_service_s=self.inherited.service_s,
            program_wait_s=self.inherited.wait_s,
            service_s=self.service_s,
            wait_s=max(0.0, now_s - self.arrival_s - self.service_s),
        )
