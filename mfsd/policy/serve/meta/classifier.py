"""Takes the order of the nearest regime in the stored table, at every decision (H-MAS C.2, "supervised classifier")."""

from __future__ import annotations

from mfsd.policy.serve.config import Policy
from mfsd.policy.serve.meta import rules, table
from mfsd.policy.serve.meta.config import MetaConfig
from mfsd.policy.serve.meta.view import Views


def choose(config: MetaConfig, views: Views, now: Policy) -> tuple[Policy, str]:
    pool = rules.allowed(config, views)
    if views.long.evaluated < config.requests_min:
        return rules.first_of((now,), pool, now), "too few requests to say"
    return rules.first_of(table.nearest(views), pool, now), "nearest regime"
