"""Change detection and a table: the order changes only when the requests have (H-MAS C.2, "change-point")."""

from __future__ import annotations

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta import adwin, rules, table
from mfsd.policy.serve.meta.adwin import Window
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import Views


def choose(config: MetaConfig, views: Views, now: Policy, drifted: bool) -> tuple[Policy, str]:
    """Decides. `drifted`: whether `watched` has found a change since the previous decision."""
    pool = rules.allowed(config, views)
    if not drifted and now in pool:
        return now, "no drift"
    if views.long.evaluated < config.requests_min:
        return rules.first_of((now,), pool, now), "too few requests to say"
    return rules.first_of(table.nearest(views), pool, now), "the requests have changed"


def watched(config: MetaConfig, views: Views, windows: tuple[Window, ...]) -> tuple[tuple[Window, ...], bool]:
    """Returns each feature's window after one more view, and whether one was cut."""
    values = table.features(views)
    before = windows or tuple(Window() for _ in values)
    found = [adwin.added(window, value, config.confidence) for window, value in zip(before, values, strict=True)]
    return tuple(window for window, _ in found), any(cut for _, cut in found)
