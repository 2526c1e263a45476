"""Every number that the request tier depends on, with its range and default.

Times in this package are seconds as floats on the engine's own clock, as engines stamp them. (mfsd.policy's network
side counts nanoseconds.) No field is ever infinite or NaN, so everything can be written as JSON and read back exactly.
"""

from __future__ import annotations

from enum import Enum

import msgspec

DAY_S = 86_400.0


class Policy(str, Enum):
    """The pool: orders in which waiting prompts are considered (H-MAS appendix C.2; hybrid: QoServe's, fit: ours)."""

    FCFS = "fcfs"
    EDF = "edf"
    LLF = "llf"
    SJF = "sjf"
    SRTF = "srtf"
    SRPF = "srpf"
    HYBRID = "hybrid"
    FIT = "fit"
    TWO_LANE = "two-lane"
    WFQ = "wfq"
    STRIDE = "stride"
    LOTTERY = "lottery"
    CFS = "cfs"
    RR = "rr"
    MLFQ = "mlfq"
    LAS = "las"
    PRIORITY = "priority"


class Relegation(str, Enum):
    """Which requests are set aside because some will be late in any case."""

    NONE = "none"
    LOST = "lost"
    """Requests that would be late even alone (QoServe algorithm 1, WILL_VIOLATE)."""
    PROJECTION = "projection"
    """Lost ones, and as few others as let the rest of the queue be in time (Moore and Hodgson)."""


class Preemption(str, Enum):
    """Whether a step may pass over a prompt that has begun. Decodes are never passed over for a prompt."""

    OFF = "off"
    SELECTIVE = "selective"
    """Only if the prompt's slack outlasts the step (QoServe 3.4)."""
    ALWAYS = "always"


class TokenDeadline(str, Enum):
    """What the deadlines of a request's tokens are counted from."""

    PAPER = "paper"
    """When the first one was due (QoServe Eq 2 as written): after a late first one all are late."""
    RENEWED = "renewed"
    """The same, or the end of the prefill if that is later, as in QoServe's artifact."""
    FIRST_TOKEN = "first-token"
    """When the first one came, as time per output token is measured. An early first token is no credit for pauses."""


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of the request tier.

    Raises ValueError on construction (msgspec.ValidationError with the field's path when decoded) naming the field, its
    value and what is allowed.
    """

    policy: Policy = Policy.FIT
    cut_prompts: bool = True
    """Whether a prompt may be cut where the budget ends. If not, only a prompt that alone exceeds the budget is cut."""
    step_tokens: int = 8192
    """Most tokens of one step, decodes included (vLLM: max_num_batched_tokens)."""
    requests_max: int = 1024
    """Most requests that hold KV at once (vLLM: max_num_seqs)."""
    ranks: int = 1
    """Data-parallel attention ranks that step together. A request lives on one of them."""

    ttft_unknown_s: float = 600.0
    """Time from arrival to the first token's deadline for a request without any SLO."""
    decode_step_s: float = 0.03
    """Time of one decode step until one is measured."""
    token_deadline: TokenDeadline = TokenDeadline.RENEWED

    pace_margin: float = 1.1
    """Factor on estimates of step times. Too long costs little, too short costs deadlines."""
    pace_forget: float = 0.98
    """Weight of the past in the step-time fit, per step: an engine is slower while its machine has other work. On an
    engine that is always as fast, forgetting loses nothing, even with noisy times."""

    chunk_min: int = 128
    chunk_max: int = 8192
    chunk_block: int = 64
    """Chunks are multiples of this, unless they end the prompt."""
    chunk_tight: int = 512
    """Largest chunk while little KV is free."""
    kv_tight_tokens: int = 32_000
    """Free KV below which `chunk_tight` holds (QoServe's artifact: free tokens / 32 below 1,000)."""

    alpha_low_s: float = 0.001
    """Seconds that each token still to compute adds to the hybrid key at low load (QoServe 3.6)."""
    alpha_high_s: float = 0.008
    load_low: float = 0.5
    """Load is queued seconds over the tightest budget. Up to load_low alpha is low, from load_high on it is high."""
    load_high: float = 1.5

    relegation: Relegation = Relegation.LOST
    drop_budget: float = 0.05
    """Share of active requests that may be set aside at once, by the request tier and the network together."""
    readmission_margin: float = 0.05
    """Share of its remaining time that a relegated request must have to spare before it comes back."""
    overdue_budgets: float = 4.0
    """A request is overdue this many budgets after its deadline."""
    overdue_every: int = 100
    """Every so many steps the overdue requests go first, so that none starves."""
    preemption: Preemption = Preemption.SELECTIVE
    skips_max: int = 64
    """Requests that a step passes over for want of time or memory before it stops searching."""

    queue_first_s: float = 2.0
    """Attained service up to which a program is in the first queue. Each further queue doubles it."""
    queues: int = 8
    starvation_ratio: float = 8.0
    """Ratio of waiting to service from which a call goes to the first queue (Agentix: beta)."""
    lane_weight: float = 4.0
    """Tokens of the fast lane for each token of the slow one."""
    lottery_seed: int = 1

    kv_margin: float = 0.1
    """Share of KV memory that admissions leave free (H-MAS: delta)."""
    regulate: bool = False
    """Whether concurrency and, with a gain, decodes of a step follow utilisation. If not, they stay at their maxima."""
    band_low: float = 0.75
    band_high: float = 0.92
    step_target_s: float = 0.15
    decode_tokens_min: int = 8
    decode_tokens_gain: float = 0.0
    """By how much the decodes of a step fall per error (H-MAS: eta_B). 0: they do not. A gain of 512 pauses decodes in
    steps that are long because all have time, and cost 2.5 points of requests in time."""
    requests_min: int = 4
    requests_gain: float = 8.0
    regulate_window: int = 32

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # written so that NaN fails
                raise ValueError(f"{name} is {value}: use {low:g} to {high:g}")
        for lower, upper in _RISING:
            if getattr(self, lower) > getattr(self, upper):
                raise ValueError(f"{lower} is {getattr(self, lower)}: use at most {upper}, {getattr(self, upper)}")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("step_tokens", 1, 1 << 24), ("requests_max", 1, 1 << 20), ("ranks", 1, 4096),
    ("ttft_unknown_s", 0.001, DAY_S), ("decode_step_s", 1e-6, 60), ("pace_margin", 0.1, 10), ("pace_forget", 0.9, 1),
    ("chunk_min", 1, 1 << 24), ("chunk_max", 1, 1 << 24), ("chunk_block", 1, 1 << 16), ("chunk_tight", 1, 1 << 24),
    ("kv_tight_tokens", 0, 1 << 40), ("alpha_low_s", 0, 10), ("alpha_high_s", 0, 10), ("load_low", 0, 1e6),
    ("load_high", 0, 1e6), ("drop_budget", 0, 1), ("readmission_margin", 0, 1), ("overdue_budgets", 0, 1e6),
    ("overdue_every", 1, 1 << 20), ("skips_max", 0, 1 << 20), ("queue_first_s", 1e-6, DAY_S), ("queues", 1, 64),
    ("starvation_ratio", 0.001, 1e9), ("lane_weight", 0.01, 1000), ("lottery_seed", 0, 1 << 62), ("kv_margin", 0, 0.9),
    ("band_low", 0, 10), ("band_high", 0, 10), ("step_target_s", 1e-6, DAY_S), ("decode_tokens_min", 1, 1 << 24),
    ("decode_tokens_gain", 0, 1e9), ("requests_min", 1, 1 << 20), ("requests_gain", 0, 1e9),
    ("regulate_window", 1, 1 << 16),
)  # fmt: skip
_RISING = (("alpha_low_s", "alpha_high_s"), ("load_low", "load_high"), ("chunk_min", "chunk_max"),
           ("band_low", "band_high"))  # fmt: skip
