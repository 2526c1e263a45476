"""The policy's parameters as the native core takes them."""

from __future__ import annotations

import functools

from mfsd import _native
from mfsd.policy.config import EarlyOrder, PolicyConfig, Variant
from mfsd.policy.urgency import thresholds

_EARLY_ORDERS = tuple(EarlyOrder)
_VARIANTS = tuple(Variant)
"""In the order of the native enumerations."""


@functools.lru_cache(maxsize=16)
def order_rules(config: PolicyConfig) -> _native.OrderRules:
    """The rules of one NIC under that configuration: the functions that the queue calls. They keep nothing, so one
    object serves all."""
    return _native.OrderRules(native_policy(config))


def native_policy(config: PolicyConfig) -> _native.Policy:
    return _native.Policy(
        variant=_VARIANTS.index(config.variant),
        early_order=_EARLY_ORDERS.index(config.early_order),
        classes=config.classes,
        levels=config.levels,
        threshold=thresholds(config),
        rho_max=config.rho_max,
        critical_laxity_share=config.critical_laxity_share,
        readmission_margin=config.readmission_margin,
        promotion_interval_ns=config.promotion_interval_ns,
        soon_ns=config.soon_ns,
        short_load_ns=config.short_load_ns,
    )
