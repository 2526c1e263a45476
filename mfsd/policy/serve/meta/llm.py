"""The question for a language model, and the check of its answer: one JSON object of exactly this form, or nothing.

The caller makes the call (mfsd.serve.controller), which takes seconds. The answer is part of the recorded view.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta import rules
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import Views

ANSWER_MAX_BYTES: Final = 4096


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: Policy


def question(config: MetaConfig, views: Views, now: Policy) -> str:
    state = msgspec.json.encode(views).decode()
    names = ", ".join(policy.value for policy in rules.allowed(config, views))
    return (
        "You choose the scheduling policy of an LLM serving engine. Its requests have deadlines for the first token. "
        f"Policies: {names}. Active now: {now.value}. State of the last {config.long_s:g} s: {state}. "
        'Answer with one JSON object and nothing else: {"policy": "NAME"}'
    )


def read_answer(config: MetaConfig, raw: bytes) -> Policy | None:
    """Returns None if the answer is not JSON, has another form, or is not of the pool."""
    if len(raw) > ANSWER_MAX_BYTES:
        return None
    try:
        policy = msgspec.json.decode(raw, type=Answer).policy
    except (msgspec.MsgspecError, ValueError):
        return None
    return policy if policy in config.pool else None


def choose(config: MetaConfig, views: Views, now: Policy, answer: Policy | None) -> tuple[Policy, str]:
    """Follows the model's answer if there is one that is allowed, else the rules."""
    if answer is None or answer not in rules.allowed(config, views):
        policy, reason = rules.choose(config, views, now)
        return policy, f"no usable answer; {reason}"
    return answer, "the model's answer"
