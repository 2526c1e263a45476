"""One request as the engine's side of the request tier remembers it, and how it appears in a view."""

from __future__ import annotations

from typing import NamedTuple

from mfsd.policy.serve import Inherited, Request, ServeConfig, TokenDeadline, again_due_s
from mfsd.serve.promise import Wanted


class Fact(NamedTuple):
    """What the engine says of one request at a step, in its own counts."""

    name: str
    num_computed_tokens: int
    num_cached_tokens: int = 0
    """Of those: found in a cache or loaded."""
    num_output_tokens: int = 0
    again_tokens: int = 0
    """Of a request whose KV was dropped: prompt and output that are to be computed again."""
    may_load: bool = False
    """A connector may have KV of its prompt, and was not asked yet."""


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
        """As in the view: the first may be renewed."""
        self.expected = self.expected_max = 0.0
        self.program = ""
        self.inherited = Inherited()
        self.first_token_s: float | None = None
        self.outputs = self.folded = self.late_tokens = 0
        self.service_s = 0.0
        self.shown: Request | None = None
        """As the latest view had it."""

    def again(self, tokens: int, output_tokens: int, now_s: float) -> None:
        """Its KV was dropped: so many tokens are to be computed again, those of its answer among them."""
        if tokens > self.to_compute:
            self.due_s = again_due_s(self.first_due_s, self.arrival_s, now_s)
        self.to_compute, self.folded = tokens, output_tokens

    def produced(self, config: ServeConfig, tokens: int, now_s: float) -> None:
        """Counts the tokens, and those of them that came late: the first one after its own deadline, the others by
        QoServe's Eq 2."""
        wanted = self.wanted
        if self.first_token_s is None:
            self.first_token_s = now_s
            if wanted.ttft_s is not None and now_s > self.arrival_s + wanted.ttft_s:
                self.late_tokens += 1
        elif wanted.tbt_s is not None:
            first_s = self.first_due_s
            if config.token_deadline is TokenDeadline.RENEWED:
                first_s = max(first_s, self.first_token_s)
            if now_s > first_s + self.outputs * wanted.tbt_s:
                self.late_tokens += tokens
        self.outputs += tokens

    def in_time(self, now_s: float) -> bool | None:
        """Of a request that ends now; None: it had no deadline."""
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
