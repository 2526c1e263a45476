"""When the tokens of a request are due (QoServe 3.2, Eq 1-3), and how a user's SLOs are read."""

from __future__ import annotations

import math
from typing import NamedTuple

from mfsd.policy.serve.config import DAY_S, ServeConfig, TokenDeadline
from mfsd.policy.serve.view import Request


class Slo(NamedTuple):
    """A valid SLO, or None, and what was wrong with the one given."""

    seconds: float | None
    complaint: str = ""


def read_slo(name: str, value: object, at_least_s: float = 0.0) -> Slo:
    """Reads an SLO from outside. Anything but seconds above 0 and below a day counts as none, with a complaint.

    An SLO below `at_least_s`, such as a decode step for the time between tokens, is raised to that.
    """
    if value is None:
        return Slo(None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Slo(None, f"{name} is {value!r:.40}: use seconds as a number; the request has no such deadline")
    if not math.isfinite(value) or not 0 < value < DAY_S:
        return Slo(
            None, f"{name} is {value}: use seconds above 0 and below {DAY_S:g}; the request has no such deadline"
        )
    if value < at_least_s:
        return Slo(at_least_s, f"{name} is {value}: nothing is faster than {at_least_s:g} s here, which is used")
    return Slo(float(value))


def prefill_due_s(
    config: ServeConfig,
    arrival_s: float,
    ttft_s: float | None,
    ttlt_s: float | None,
    output_tokens: float = 0.0,
    decode_step_s: float | None = None,
) -> float:
    """When the prefill must have ended.

    Eq 1 for interactive requests. For those with a deadline for the whole answer: Eq 3 less the time to decode the
    expected output. The earlier of both if a request has both.
    """
    due = []
    if ttft_s is not None:
        due.append(arrival_s + ttft_s)
    if ttlt_s is not None:
        pace = config.decode_step_s if decode_step_s is None else decode_step_s
        due.append(max(arrival_s, arrival_s + ttlt_s - output_tokens * pace))
    return min(due) if due else arrival_s + config.ttft_unknown_s


def again_due_s(first_due_s: float, arrival_s: float, now_s: float) -> float:
    """When the prefill must end again if the KV was dropped after a part of the answer.

    QoServe has no such thing. The request is in the prefill queue once more, with its whole budget: by its first
    deadline, which has mostly passed, it would count as lost behind all others. Only its place in the queue goes by
    this; its tokens stay due by Eq 2.
    """
    return max(first_due_s, now_s + first_due_s - arrival_s)


def first_due_s(request: Request) -> float:
    """D_first of Eq 2: when its first token was due."""
    return request.due_s if request.first_due_s is None else request.first_due_s


def tokens_since_s(config: ServeConfig, due_s: float, first_token_s: float | None) -> float:
    """What the deadlines of tokens after the first are counted from. due_s: when the first was due."""
    if first_token_s is None or config.token_deadline is TokenDeadline.PAPER:
        return due_s
    return first_token_s if config.token_deadline is TokenDeadline.FIRST_TOKEN else max(due_s, first_token_s)


def next_token_due_s(config: ServeConfig, request: Request, now_s: float = 0.0) -> float | None:
    """When the next token of a decode is due (Eq 2, `TokenDeadline`). None: no deadline.

    With a deadline for the whole, each token has an even share of the time left. Such a deadline does not count once it
    has passed, or if it had when the first token came: hurrying for it would keep chunks small until the request ends.
    """
    produced = request.num_output_tokens
    due: float | None = None
    if request.tbt_s is not None:
        since_s = tokens_since_s(config, first_due_s(request), request.first_token_s)
        due = since_s + produced * request.tbt_s
    if request.ttlt_s is not None:
        since = request.due_s if request.first_token_s is None else request.first_token_s
        whole = request.arrival_s + request.ttlt_s
        if whole > since and whole > now_s:
            expected = max(request.output_tokens, produced + 1.0)
            share = since + (whole - since) * (produced + 1.0) / expected
            due = share if due is None else min(due, share)
    return due


def overdue_s(config: ServeConfig, request: Request) -> float:
    """When a request becomes overdue: some of its budgets after its deadline."""
    return request.due_s + config.overdue_budgets * max(0.0, first_due_s(request) - request.arrival_s)
