import math
from typing import Any

import msgspec
import pytest

from mfsd import _native
from mfsd.policy import EarlyOrder, Flow, PolicyConfig, Variant
from mfsd.policy.native import native_policy


def test_defaults_are_those_of_the_design() -> None:
    config = PolicyConfig()
    assert config.variant is Variant.MFS
    assert (config.classes, config.levels) == (8, 8)
    assert (config.threshold_base, config.threshold_top) == (4.0, 0.5)
    assert (config.rho_max, config.critical_laxity_share) == (0.95, 0.05)
    assert (config.promotion_interval_ns, config.drop_budget) == (1_000_000, 0.05)


def test_the_native_core_states_the_defaults() -> None:
    """One place: mfs_policy_default. Its thresholds are those that the config's two numbers give."""
    config = PolicyConfig()
    assert native_policy(config)._replace(threshold=()) == _native.Policy()
    flow: dict[str, Any] = {
        "stage": 3,
        "sequence": 0,
        "remaining_bytes": 10**9,
        "rate_bytes_per_s": 10**9,
        "budget_ns": 10**10,
    }
    for policy in (_native.Policy(variant=1), native_policy(PolicyConfig(variant=Variant.PAPER))):
        rules = _native.OrderRules(policy)
        moments = [
            rules.evaluate(Flow(**flow, deadline_ns=at_ns), rules.first(), 0) for at_ns in range(10**9, 10**13, 10**9)
        ]
        levels = [decision.level for decision, _ in moments]
        crossings = [next(i + 1 for i, level in enumerate(levels) if level > k) for k in range(1, 8)]
        assert crossings == [3, 9, 33, 129, 513, 2049, 8193]  # 1 s of bytes: Q_i is reached at 1 / Q_i = 2 * 4^(i-1) s


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classes", 1),
        ("classes", 9),
        ("levels", 0),
        ("levels", 9),
        ("threshold_base", 1.0),
        ("threshold_base", math.inf),
        ("threshold_base", math.nan),
        ("threshold_top", 0.0),
        ("threshold_top", 1.5),
        ("threshold_top", math.nan),
        ("rho_max", 1.0),
        ("rho_max", -0.1),
        ("rho_max", math.nan),
        ("load_time_constant_ns", 0),
        ("promotion_interval_ns", 0),
        ("critical_laxity_share", -0.1),
        ("critical_laxity_share", math.nan),
        ("drop_budget", 1.1),
        ("readmission_margin", -1.0),
    ],
)
def test_a_bad_value_is_refused_by_name_value_and_remedy(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{field} is {value}: use "):
        msgspec.structs.replace(PolicyConfig(), **{field: value})


def test_variant_paper_needs_a_level_below_class_0() -> None:
    with pytest.raises(ValueError, match=r"^levels is 1: use 2 to 8"):
        PolicyConfig(variant=Variant.PAPER, levels=1)
    assert PolicyConfig(levels=1).levels == 1


def test_decoding_names_the_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"classes is 12: use 2 to 8"):
        msgspec.convert({"classes": 12}, PolicyConfig)
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `clases`"):
        msgspec.convert({"clases": 8}, PolicyConfig)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.variant"):
        msgspec.convert({"variant": "papper"}, PolicyConfig)
    decoded = msgspec.convert({"variant": "paper", "early_order": "shortest"}, PolicyConfig)
    assert (decoded.variant, decoded.early_order) == (Variant.PAPER, EarlyOrder.SHORTEST)
