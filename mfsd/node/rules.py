"""How queue pairs are told apart when the configuration says nothing, and the rules as clients receive them."""

from __future__ import annotations

from mfsd.node.config import Config, RuleConfig, WireConfig

BUILT_IN = (
    # Mooncake links its engine into two extension modules: prefill-to-decode transfers use one, the KV store the other.
    RuleConfig(library="engine.so", action="hold", stage="p2d", set_role="kv"),
    RuleConfig(library="store.so", action="hold", stage="reuse", set_role="kv"),
    # A delayed clear-to-send or flush stalls a whole collective.
    RuleConfig(role="nccl-cts", action="pass", stage="control"),
    RuleConfig(role="nccl-flush", action="pass", stage="control"),
    RuleConfig(role="nccl-data", action="pass", stage="collective"),
    RuleConfig(library="libnccl", action="pass", stage="collective"),
    RuleConfig(action="pass", stage="background"),
)
"""Tried after the configured rules. The last one matches everything."""


def effective(config: Config) -> list[RuleConfig]:
    """All rules in the order in which they are tried."""
    return [*config.rule, *BUILT_IN]


def dscp_of(rule: RuleConfig, wire: WireConfig) -> int | None:
    """The DSCP that the rule gives its queue pairs; None leaves what the program set."""
    return rule.dscp if rule.wire_class is None else wire.dscp[rule.wire_class]
