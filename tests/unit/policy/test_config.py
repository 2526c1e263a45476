import math

import msgspec
import pytest

from mfsd.policy import EarlyOrder, PolicyConfig, Variant


def test_defaults_are_those_of_the_design() -> None:
    config = PolicyConfig()
    assert config.variant is Variant.MFS
    assert (config.classes, config.levels) == (8, 8)
    assert (config.threshold_base, config.threshold_top) == (4.0, 0.5)
    assert (config.rho_max, config.critical_laxity_share) == (0.95, 0.05)
    assert (config.promotion_interval_ns, config.drop_budget) == (1_000_000, 0.05)


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
        PolicyConfig(**{field: value})


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
