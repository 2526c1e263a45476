"""What one step sees and what it returns. All of it can be recorded as JSON and replayed.

What history says about a request (its program's service, a bound on its output) is written on the request when it
arrives, by `programs` and `conformal`. What changes from step to step is in the State.
"""

from __future__ import annotations

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of one engine. Token counts are vLLM's: computed tokens include cached ones."""

    request_id: int
    """Unique. The engine numbers requests in the order of arrival."""
    arrival_s: float
    num_prompt_tokens: int
    due_s: float
    """When its prefill must have ended, computed once (`deadlines.prefill_due_s`; `again_due_s` once its KV was
    dropped)."""
    first_due_s: float | None = None
    """The first `due_s`, which Eq 2 and budgets go by. None: `due_s` has not changed."""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Computed tokens that were cached or loaded, so that nothing was spent on them here."""
    may_load: bool = False
    """Whether KV of the rest may be in a place that was not searched yet."""
    num_output_tokens: int = 0
    num_folded_tokens: int = 0
    """Output tokens that are in num_prompt_tokens since the KV was dropped, and are computed again."""
    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    first_token_s: float | None = None
    """When its prefill ended."""
    output_tokens: float = 0.0
    """Expected output; 0 on an instance that only prefills."""
    output_tokens_max: float = 0.0
    """Bound on the output (`conformal`)."""
    importance: int = 0
    """Greater is more important."""
    tenant: str = ""
    weight: float = 1.0
    """The tenant's weight."""
    program_service_s: float = 0.0
    """Priority that the call inherits: PLAS or ATLAS (`programs`)."""
    program_wait_s: float = 0.0
    service_s: float = 0.0
    """Service of this call so far."""
    wait_s: float = 0.0
    rank: int = 0
    """Its attention rank. -1: chosen when its first chunk is computed."""

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
    """Over all ranks."""
    busiest_tokens: int = 0
    """Prefill tokens of the rank with the most. Ranks step together."""
    decodes: int = 0
    decode_context: int = 0
    prefill_pairs: float = 0.0
    """Pairs of a computed token and a token that it attends to, on the rank with the most."""

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes


class Observed(msgspec.Struct, frozen=True):
    """A step that has ended."""

    load: StepLoad
    seconds: float


class StepView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a plan may depend on besides state, configuration and time. Requests are in no order."""

    waiting: tuple[Request, ...] = ()
    """Requests that hold no KV made by this engine yet."""
    running: tuple[Request, ...] = ()
    """Requests that hold KV: partly computed prompts, and decodes."""
    observed: tuple[Observed, ...] = ()
    """Steps that ended since the last view."""
    kv_tokens: int | None = None
    """Capacity of KV memory in tokens. None: it is not the limit."""
    kv_used_tokens: int = 0
    kv_promised_tokens: float = 0.0
    """What requests in neither list will hold (`fence.held_tokens`): KV, or a part of the input, is on its way."""
    pruned: tuple[int, ...] = ()
    """Requests that the network has already pruned. With relegation by projection they are set aside and count against
    the drop budget that both share."""
    lane_cut_s: float | None = None
    """Service time that separates fast from slow requests (`lanes.LaneCut`). None: all are fast."""


class Scheduled(msgspec.Struct, frozen=True):
    """Tokens of one request in this step. Names a rank if the request had none."""

    request_id: int
    num_tokens: int
    rank: int = 0


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the step computes, in order: decodes, then prompts."""

    scheduled: tuple[Scheduled, ...] = ()
    paused: tuple[int, ...] = ()
    """Running requests that sit out this step and keep their KV, by number."""
    held: tuple[int, ...] = ()
    """Waiting requests passed over for want of KV memory or slots, as far as the step has searched."""
    lost: tuple[int, ...] = ()
    """Requests that would be late even alone, by number."""
    relegated: tuple[int, ...] = ()
    """Requests set aside so that others are in time, within the drop budget, by number."""
    drop_budget: int = 0
    chunk_tokens: int = 0
    """Prompt tokens that the decodes' deadlines leave room for."""
    load: StepLoad = StepLoad()
    step_s: float = 0.0
    """Estimated time of the step, margin included."""
    decode_tokens: int = 0
    """The regulated cap on decodes."""
    requests_max: int = 0
    """The regulated cap on requests that hold KV."""
