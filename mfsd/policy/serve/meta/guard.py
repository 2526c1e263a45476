"""Bypass and rollback (H-MAS C.2, Eq 12). They limit what a wrong decision costs, under every strategy."""

from __future__ import annotations

import msgspec

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import ShortView


class Bypass(msgspec.Struct, frozen=True):
    over_since_s: float | None = None
    """Since when nearly all requests are late."""
    under_since_s: float | None = None
    """In a bypass: since when they are not."""
    began_s: float | None = None
    """None: no bypass."""
    ended_s: float | None = None


class Watch(msgspec.Struct, frozen=True):
    """A switch that may still be reverted."""

    before: Policy
    until_s: float
    late_share: float
    ttft_p99_s: float


def bypassed(config: MetaConfig, state: Bypass, short: ShortView, now_s: float) -> Bypass:
    """Begins and ends the bypass.

    It begins when more than bypass_share were late for bypass_after_s. It ends when that has not been so for as long,
    and after bypass_max_s in any case. Then it cannot begin for every_s, so that the strategy has its turn.
    """
    over = short.evaluated >= config.requests_min and short.late_share > config.bypass_share
    if state.began_s is not None:
        under_s = None if over else now_s if state.under_since_s is None else state.under_since_s
        calm = under_s is not None and now_s - under_s >= config.bypass_after_s
        if calm or now_s - state.began_s >= config.bypass_max_s:
            return Bypass(ended_s=now_s)
        return Bypass(state.over_since_s, under_s, state.began_s)
    if not over or (state.ended_s is not None and now_s - state.ended_s < config.every_s):
        return Bypass(ended_s=state.ended_s)
    over_s = now_s if state.over_since_s is None else state.over_since_s
    began_s = now_s if now_s - over_s >= config.bypass_after_s else None
    return Bypass(over_s, None, began_s, state.ended_s)


def worse(config: MetaConfig, watch: Watch, short: ShortView) -> bool:
    """Eq 12. A window with few requests is no evidence."""
    if short.evaluated < config.requests_min:
        return False
    late = short.late_share > config.rollback_ratio * max(watch.late_share, config.rollback_floor)
    return late or (watch.ttft_p99_s > 0 and short.ttft_p99_s > config.rollback_ratio * watch.ttft_p99_s)
