"""What one step sees and what it answers: the words of the package. All of it can be recorded as JSON and replayed.

What history says of a request (its program's service, a bound on its output) is written on the request when it arrives,
by `programs` and `conformal`; what changes from step to step is in the State.
"""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of one engine. Token counts are vLLM's: computed ones include those that were cached."""

    request_id: int
    """Given by the engine in the order of arrival; unique."""
    arrival_s: float
    num_prompt_tokens: int
    due_s: float
    """When its prefill must have ended: `deadlines.prefill_due_s`, computed once; since its KV was dropped,
    `deadlines.again_due_s`."""
    first_due_s: float | None = None
    """What due_s was before that: Eq 2 and budgets go by it. None: due_s."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Of those computed: found in a cache or loaded, so that nothing was spent on them here."""
    may_load: bool = False
    """KV of the rest may be somewhere where it was not looked for yet."""
    num_output_tokens: int = 0
    num_folded_tokens: int = 0
    """Of those: part of num_prompt_tokens since its KV was dropped, and computed again."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    first_token_s: float | None = None
    """When its prefill ended."""
    output_tokens: float = 0.0
    """Expected; 0 on an instance that only prefills."""
    output_tokens_max: float = 0.0
    """Bound on them (`conformal`)."""
    importance: int = 0
    """Greater is more important."""
    tenant: str = ""
    weight: float = 1.0
    """Of the tenant."""
    program_service_s: float = 0.0
    """Priority that the call inherits: PLAS or ATLAS (`programs`)."""
    program_wait_s: float = 0.0
    service_s: float = 0.0
    """Of this call, so far."""
    wait_s: float = 0.0
    rank: int = 0
    """Its attention rank; -1 where it is chosen when its first chunk is computed."""

    @property
    def prefill_left(self) -> int:
        return self.num_prompt_tokens - self.num_computed_tokens

    @property
    def begun(self) -> bool:
        """Whether anything was spent on its prompt here."""
        return self.num_computed_tokens > self.num_cached_tokens


class StepLoad(msgspec.Struct, frozen=True):
    """What the time of a step depends on (QoServe 3.6.1: the batch's statistics)."""

    prefill_tokens: int = 0
    """On all ranks."""
    busiest_tokens: int = 0
    """Prefill tokens of the rank with the most: they step together."""
    decodes: int = 0
    decode_context: int = 0
    prefill_pairs: float = 0.0
    """Pairs of a computed token and one that it attends to, on the rank with the most."""

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes


class Observed(msgspec.Struct, frozen=True):
    """A step that has ended."""

    load: StepLoad
    seconds: float


class StepView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a plan may depend on besides state, configuration and time. The order of requests says nothing."""

    waiting: tuple[Request, ...] = ()
    """Hold no KV of this engine's own making yet."""
    running: tuple[Request, ...] = ()
    """Hold KV: prompts that are partly computed, and decodes."""
    observed: tuple[Observed, ...] = ()
    """Steps that ended since the last view."""
    kv_tokens: int | None = None
    """Tokens that KV memory holds; None: it is not what limits."""
    kv_used_tokens: int = 0
    kv_promised_tokens: float = 0.0
    """What requests hold at most (`fence.held_tokens`) that are in neither list: their KV is on its way, or a part of
    their input."""
    pruned: tuple[int, ...] = ()
    """Requests that the network has pruned already: with relegation by projection they are set aside, and count
    against the one drop budget."""
    lane_cut_s: float | None = None
    """Service time that parts fast from slow requests (`lanes.LaneCut`); None: all are fast."""


class Scheduled(msgspec.Struct, frozen=True):
    """Tokens of one request in this step. A rank is named when the request had none."""

    request_id: int
    num_tokens: int
    rank: int = 0


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the step computes, first in order first: decodes, then prompts."""

    scheduled: tuple[Scheduled, ...] = ()
    paused: tuple[int, ...] = ()
    """Running requests that sit this step out with their KV kept, by number."""
    held: tuple[int, ...] = ()
    """Waiting requests that were passed over for want of KV memory or slots, as far as the step looked."""
    lost: tuple[int, ...] = ()
    """Cannot be in time even alone; by number."""
    relegated: tuple[int, ...] = ()
    """Set aside so that others are in time, within the drop budget; by number."""
    drop_budget: int = 0
    chunk_tokens: int = 0
    """Prompt tokens that the decodes' deadlines left room for."""
    load: StepLoad = StepLoad()
    step_s: float = 0.0
    """Its estimate, margin included."""
    decode_tokens: int = 0
    """The regulated cap on decodes."""
    requests_max: int = 0
    """The regulated cap on requests that hold KV."""
