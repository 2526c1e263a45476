"""The result of a simulation: a record of each call, totals of the steps."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, kw_only=True):
    """One call's life. Times are seconds since the start of the simulation; None: has not happened."""

    call: int
    """Index into the calls in the order given, programs' calls one after the other."""
    program: int = -1
    """Index of its program among those given; -1: a call of an open loop."""
    position: int = 0
    """Index of the call in its program."""
    replica: int = 0
    """Where its prompt was computed."""
    decoder: int = -1
    """Where it decoded, if that is another replica."""
    arrival_s: float = 0.0
    tier: str = ""
    importance: int = 1
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft_slo_s: float | None = None
    tbt_slo_s: float | None = None
    ttlt_slo_s: float | None = None
    waited_s: float = 0.0
    """Time that it waited for its model's engine to run."""
    begin_s: float | None = None
    """When the first step with tokens of it began."""
    prefilled_s: float | None = None
    """When its prompt was done, if its KV moves to another replica."""
    moving_s: float | None = None
    """When its KV found room there and began to move."""
    first_token_s: float | None = None
    """When its prompt was done or, if its KV moved, when the KV had arrived."""
    end_s: float | None = None
    produced: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it began."""
    computed_tokens: int = 0
    """Prompt tokens computed, including those computed again."""
    token_late_s: float = 0.0
    """Largest delay of a token after the first against its due time: one TBT per token after the first token's due
    time, or after its arrival if that was later. 0: no token was late."""
    late_tokens: int = 0
    service_s: float = 0.0
    """Time of the steps that it was in."""
    relegated: bool = False
    """Whether it was set aside (lost or relegated) in the step in which it first computed, or at the end if it never
    did."""
    paused: int = 0
    """Steps for which it paused with its KV kept."""
    evicted: int = 0
    """Times that its KV was taken."""
    chunks: int = 0
    """Steps that computed prompt tokens of it."""


class StepTotals(msgspec.Struct, kw_only=True):
    """Totals of one replica."""

    steps: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    evictions: int = 0
    kv_peak_tokens: int = 0
    cached_tokens: int = 0
    fetched_tokens: int = 0
    """Tokens read from the store for calls that waited for them."""
    ahead_tokens: int = 0
    """Tokens read before their turn arrived."""
    loads: int = 0
    """How often its engine was started."""
    wakes: int = 0
    """How often it was woken."""
    loading_s: float = 0.0
    """How long both took in all."""
    policies: tuple[str, ...] = ()
    """In the order in which they were used."""
    chunk_sizes: dict[int, int] = {}
    """Prompt tokens of a step -> number of steps, of those that had any."""
    error_sum: float = 0.0
    """Sum of |estimate - truth| / truth, margin excluded."""
    errors: int = 0
    over: int = 0
    """Estimates, margin included, that were below the truth."""
    plan_us: list[float] = []
    """Sampled; not determined by the seed."""


class Outcome(msgspec.Struct, kw_only=True):
    """Equal for equal input and seed, except `cpu_s` and `StepTotals.plan_us`."""

    seed: int
    records: list[Record]
    replicas: list[StepTotals]
    end_s: float
    """When the last call ended, or the horizon."""
    cpu_s: float = 0.0

    @property
    def unfinished(self) -> int:
        return sum(r.end_s is None for r in self.records)
