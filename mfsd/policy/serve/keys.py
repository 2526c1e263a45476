"""Sort keys of prompts: smaller goes first (QoServe 3.4, Eq 4-5; H-MAS 3.5, Eq 5)."""

from __future__ import annotations

from collections.abc import Sequence

from mfsd.policy.serve.config import ServeConfig
from mfsd.policy.serve.view import Request


def alpha_s(config: ServeConfig, queued_s: float, tightest_s: float) -> float:
    """Seconds that a token still to compute counts.

    EDF at low load; nearer to shortest prompt first as the queue outgrows the tightest budget (QoServe 3.6: 1 ms at
    low, 8 ms at high load).
    """
    load = queued_s / tightest_s if tightest_s > 0 else config.load_high
    if config.load_high <= config.load_low:
        share = 1.0 if load >= config.load_high else 0.0
    else:
        share = min(1.0, max(0.0, (load - config.load_low) / (config.load_high - config.load_low)))
    return config.alpha_low_s + share * (config.alpha_high_s - config.alpha_low_s)


def hybrid(requests: Sequence[Request], alpha: float) -> list[float]:
    """Eq 4: D + alpha rem. Eq 5 adds decoding, but due_s of a request with a deadline for the whole allows for that."""
    return [r.due_s + alpha * (r.num_prompt_tokens - r.num_computed_tokens) for r in requests]


def tightest_budget_s(requests: Sequence[Request]) -> float:
    """The least time from arrival to the first deadline. Runs over all requests in each step."""
    first_due_s = [r.due_s if r.first_due_s is None else r.first_due_s for r in requests]
    return min([due_s - r.arrival_s for due_s, r in zip(first_due_s, requests, strict=True)], default=0.0)


def service_s(request: Request, prefill_s_per_token: float, decode_step_s: float) -> float:
    """T_tot (H-MAS 3.2): the time of the whole request."""
    return request.num_prompt_tokens * prefill_s_per_token + request.output_tokens * decode_step_s


def left_s(request: Request, prefill_s_per_token: float, decode_step_s: float) -> float:
    """The part of `service_s` that is left."""
    decodes = max(0.0, request.output_tokens - request.num_output_tokens)
    return request.prefill_left * prefill_s_per_token + decodes * decode_step_s


def slack_s(request: Request, prefill_s_per_token: float) -> float:
    """S_r (Eq 5) without V_sys, which is the same for all."""
    return request.due_s - request.prefill_left * prefill_s_per_token
