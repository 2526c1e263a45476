"""The rules for queue pairs without a configured rule, and all rules in the form that clients receive."""

from __future__ import annotations

from collections.abc import Sequence

from mfsd._native import DSCP_KEEP, Role, Rule, RuleAction, Stage
from mfsd.node.config import RuleConfig

BUILT_IN = (
    # Mooncake links its engine into two extension modules: prefill-to-decode transfers use one, the KV store
    # the other.
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


def native(rules: Sequence[RuleConfig], dscp: Sequence[int]) -> list[Rule]:
    """The configured rules, then the built-in ones, in the order in which they are tried, as the arbiter gives them to
    clients. `dscp`: the DSCP of each class."""
    return [_native_rule(rule, dscp) for rule in (*rules, *BUILT_IN)]


def dscp_of(rule: RuleConfig, dscp: Sequence[int | None]) -> int | None:
    """The DSCP that the rule gives its queue pairs, by that of each class. None keeps what the program has set."""
    return rule.dscp if rule.wire_class is None else dscp[rule.wire_class]


def _native_rule(rule: RuleConfig, dscps: Sequence[int]) -> Rule:
    peer, bits = rule.peer.gid_prefix() if rule.peer is not None else (b"", 0)
    dscp = dscp_of(rule, dscps)
    return Rule(
        library=rule.library,
        process=rule.process,
        peer=peer,
        peer_prefix_bits=bits,
        role=_role(rule.role),
        action=RuleAction[rule.action.upper()],
        stage=Stage[rule.stage.upper()],
        dscp=DSCP_KEEP if dscp is None else dscp,
        set_role=_role(rule.set_role),
        communicator=rule.communicator,
    )


def _role(name: str) -> int:
    """A role's number. In a rule the number of the unknown role means any role."""
    return Role.UNKNOWN if name == "any" else Role[name.upper().replace("-", "_")]
