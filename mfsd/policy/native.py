"""Translates the policy's parameters for the native core."""

from __future__ import annotations

import functools
from enum import Enum

from mfsd import _native
from mfsd.policy.config import PolicyConfig
from mfsd.policy.urgency import thresholds


@functools.lru_cache(maxsize=16)
def order_rules(config: PolicyConfig) -> _native.OrderRules:
    """The rules of one NIC under that configuration, as the queue calls them. They have no state: one serves all."""
    return _native.OrderRules(native_policy(config))


def native_policy(config: PolicyConfig) -> _native.Policy:
    """The parameters that the native core and the configuration have under the same name."""
    parameters = {name: _plain(getattr(config, name)) for name in _native.POLICY_PARAMETERS}
    return _native.Policy(**parameters, threshold=thresholds(config))


def _plain(value: Enum | float) -> float:
    """The value as a number. An enumeration becomes its position, since the native one has the same order."""
    return list(type(value)).index(value) if isinstance(value, Enum) else value
