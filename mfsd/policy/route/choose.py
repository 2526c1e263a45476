"""Chooses a replica for a call: first finds who may have it, then applies the router's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mfsd.policy.route.config import RouteConfig, Router
from mfsd.policy.route.cost import Cost, load_cost, owed_cost, ports_ns, prefix_cost, transfer_cost
from mfsd.policy.route.view import Call, Choice, Homes, Refusal, Replica, Role

_DEFAULT: Final = RouteConfig()

Rule = Callable[[RouteConfig, Call, Sequence[Replica], frozenset[str]], Choice]


def choose(
    router: Router,
    call: Call,
    replicas: Sequence[Replica],
    homes: Homes | None = None,
    config: RouteConfig = _DEFAULT,
    role: Role = Role.BOTH,
) -> Choice:
    """Chooses a replica. The result depends on the arguments alone, and not on the order of `replicas`.

    `role`: what is to be done. Replicas for both may do either; where both are to be done, only they can.
    """
    usable = eligible(call, replicas, role)
    if isinstance(usable, Choice):
        return usable
    known = _homes(router, config, call, homes) if homes is not None and call.program else frozenset()
    return _RULES[router](config, call, usable, known)


def _homes(router: Router, config: RouteConfig, call: Call, homes: Homes) -> frozenset[str]:
    """Where the program stays.

    Under locality short prompts go anywhere. They make no home beside that of long ones, or every replica would soon be
    one.
    """
    if router is Router.LOCALITY and (long := homes.engines(call.program, config.locality_tokens)):
        return long
    return homes.engines(call.program)


def eligible(call: Call, replicas: Sequence[Replica], role: Role = Role.BOTH) -> list[Replica] | Choice:
    """The replicas that may have the call, at least one; else a choice that says why there is none."""
    left = [
        replica
        for replica in replicas
        if replica.role in (role, Role.BOTH) and (not call.model or not replica.models or call.model in replica.models)
    ]
    if not left:
        return _none(Refusal.MODEL, "no replica serves the model")
    left = [replica for replica in left if not replica.tiers or call.tier in replica.tiers]
    if not left:
        return _none(Refusal.TIER, "all replicas are reserved for other tiers")
    roomy = [replica for replica in left if replica.kv_tokens is None or call.prompt_tokens <= replica.kv_tokens]
    if not roomy:
        limit = max(replica.kv_tokens or 0 for replica in left)
        text = "the prompt exceeds the KV memory of every replica"
        return Choice(replica=None, reason=text, refused=Refusal.TOO_LONG, limit=limit)
    left = [replica for replica in roomy if replica.healthy]
    if not left:
        return _none(Refusal.UNHEALTHY, "no replica is healthy")
    left = [replica for replica in left if replica.requests_max is None or replica.requests < replica.requests_max]
    if not left:
        return _none(Refusal.SATURATED, "every replica has as many requests as it may have")
    return left


def _none(refused: Refusal, reason: str) -> Choice:
    return Choice(replica=None, reason=reason, refused=refused)


def _least(replicas: Sequence[Replica], cost: Callable[[Replica], Cost], reason: str) -> Choice:
    return Choice(replica=min(replicas, key=lambda replica: (cost(replica), replica.name)).name, reason=reason)


def _least_loaded(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    return _least(replicas, lambda replica: load_cost(config.load, replica), f"least {config.load.value}")


def _sticky(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    own = [replica for replica in replicas if replica.name in homes]
    if not own:
        reason = "its program's replicas may not have it: least " if homes else "its program has none: least "
        return _least(replicas, lambda replica: load_cost(config.load, replica), reason + config.load.value)
    return _least(own, lambda replica: load_cost(config.load, replica), "its program has run here")


def _locality(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    if call.prompt_tokens < config.locality_tokens:
        reason = f"a short prompt: least {config.load.value}"
        return _least(replicas, lambda replica: load_cost(config.load, replica), reason)
    return _sticky(config, call, replicas, homes)


def _prefix(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    return _least(replicas, lambda replica: prefix_cost(call, replica), "fewest tokens until its prompt is computed")


def _transfer(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    ports = ports_ns(replicas, {replica.name: replica.fetch_bytes for replica in replicas})
    return _least(
        replicas,
        lambda replica: transfer_cost(call, replica, ports[replica.name]),
        "least wait, owed bytes and fetch together",
    )


def _owed(config: RouteConfig, call: Call, replicas: Sequence[Replica], homes: frozenset[str]) -> Choice:
    ports = ports_ns(replicas, {replica.name: call.kv_bytes for replica in replicas})
    return _least(replicas, lambda replica: owed_cost(replica, ports[replica.name]), "its port owes least")


_RULES: Final[dict[Router, Rule]] = {
    Router.LEAST_LOADED: _least_loaded,
    Router.STICKY: _sticky,
    Router.PREFIX: _prefix,
    Router.LOCALITY: _locality,
    Router.TRANSFER: _transfer,
    Router.OWED: _owed,
}
