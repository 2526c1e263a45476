"""The policy file: what it means, and that every mistake is named by its path."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.fabric.policy import (
    PolicyError,
    class_dscps,
    fold_classes,
    load_profile,
    load_profiles,
    shipped_policy,
)

GOOD = """
[profiles.p]
summary = "s"
control = { dscp = [48], priority = 6 }
best_effort = { priority = 0, floor_percent = 5 }
classes = [
  { name = "a", dscp = 34, priority = 4, lossless = true },
  { name = "b", dscp = 26, priority = 3, floor_percent = 10 },
]
ecn = [ { speed_gbps = 100, min_bytes = 2048, max_bytes = 4096, mark_percent = 10 } ]
[profiles.p.port_groups]
hosts = { speed_gbps = 100 }
"""
MISTAKES = [
    ("dscp = 34", "dscp = 64", r"profiles\.p\.classes\[0\]\.dscp: Expected `int` <= 63"),
    ("dscp = 34", 'dscp = "34"', r"profiles\.p\.classes\[0\]\.dscp: Expected `int`, got `str`"),
    ("dscp = 26", "dscp = 34", r"classes\[1\]\.dscp: 34 is already a's"),
    ("dscp = 26", "dscp = 48", r"classes\[1\]\.dscp: 48 is already control's"),
    ("dscp = 34", "dcsp = 34", r"profiles\.p\.classes\[0\]: Object contains unknown field `dcsp`"),
    ("priority = 3", "priority = 4", r"classes\[1\]\.priority: 4 is already a's"),
    ("priority = 3", "priority = 5", r"classes\[1\]\.priority: 5 is above a's 4"),
    ("priority = 6", "priority = 2", r"control\.priority: 2 is below a's 4"),
    ("priority = 6", "priority = 4", r"classes\[0\]\.lossless: a shares priority 4 with control"),
    ("priority = 0", "priority = 5", r"best_effort\.priority: 5 would go before"),
    (
        "priority = 0, floor_percent = 5",
        "priority = 4",
        r"classes\[0\]\.lossless: a shares priority 4 with best_effort",
    ),
    (
        "floor_percent = 10",
        "floor_percent = 0",
        r"classes\[1\]\.floor_percent: 0 lets the classes above starve b",
    ),
    ("floor_percent = 10", "floor_percent = 60", r"classes: floors add up to 65 %"),
    (
        "floor_percent = 10",
        "floor_percent = 10, ceiling_percent = 5",
        r"classes\[1\]\.floor_percent: 10 exceeds",
    ),
    (
        "floor_percent = 10",
        "floor_percent = 10, weight_percent = 5",
        r"classes\[1\]\.weight_percent: only dwrr",
    ),
    ('name = "b"', 'name = "a"', r"classes\[1\]\.name: 'a' is used twice"),
    ('name = "b"', 'name = "B!"', r"classes\[1\]\.name: Expected `str` matching"),
    (
        "lossless = true",
        'scheduling = "dwrr", weight_percent = 100',
        r"classes\[1\]\.scheduling: strict below dwrr",
    ),
    ("floor_percent = 5", "floor_percent = 0", r"best_effort\.floor_percent: 0 lets MFS starve"),
    (
        "floor_percent = 5",
        "floor_percent = 5, weight_percent = 9",
        r"best_effort\.weight_percent: there is no dwrr",
    ),
    ("dscp = [48]", "dscp = []", r"control\.dscp: empty"),
    ("min_bytes = 2048", "min_bytes = 8192", r"ecn\[0\]\.min_bytes: 8192 is not below"),
    (
        "{ speed_gbps = 100 }",
        "{ speed_gbps = 25 }",
        r"port_groups\.hosts\.speed_gbps: no ecn thresholds for 25",
    ),
    ('summary = "s"', 'summary = "s"\nfold = [1, 0]', r"fold: \[1, 0\] changes the order"),
    ('summary = "s"', 'summary = "s"\nfold = [0, 2]', r"fold\[1\]: 2 is no class"),
    (
        'summary = "s"',
        'summary = "s"\npfc_watchdog = { poll_ms = 300 }',
        r"pfc_watchdog\.detection_ms: 200 is below",
    ),
    ('name = "b"', 'name = "control"', r"classes\[1\]\.name: 'control' is what priority 6 is called"),
    ('name = "b"', 'name = "best-effort"', r"classes\[1\]\.name: 'best-effort' is what priority 0 is called"),
    ("hosts =", '"spine ports" =', r"profiles\.p\.port_groups: 'spine ports' is no name for switches; use up to 24"),
    ("hosts =", '"a\\nshutdown" =', r"port_groups: 'a\\nshutdown' is no name for switches"),
    ("hosts =", "h" * 25 + " =", r"port_groups: 'h{25}' is no name"),
    ("{ speed_gbps = 100 }", "{ speed_gbps = inf }", r"port_groups\[\.\.\.\]\.speed_gbps: Expected `float` <= 10000"),
    ("{ speed_gbps = 100 }", "{ speed_gbps = 1e-9 }", r"speed_gbps: Expected `float` >= 0\.001"),
    (
        "[profiles.p]",
        '[profiles."p\\nreload"]',
        r"profiles: 'p\\nreload' is no name; use characters that can be printed",
    ),
    ("[profiles.p]", "[profile.p]", r"profile: unknown field"),
    ("[profiles.p]", "[profiles.p", r"not TOML"),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_the_good_file_is_good(tmp_path: Path) -> None:
    assert load_profile("p", write(tmp_path, GOOD)).lossless_priorities == (4,)


@pytest.mark.parametrize(("good", "bad", "message"), MISTAKES)
def test_every_mistake_is_named(tmp_path: Path, good: str, bad: str, message: str) -> None:
    assert good in GOOD
    with pytest.raises(PolicyError, match=message):
        load_profiles(write(tmp_path, GOOD.replace(good, bad, 1)))


def test_unmarked_traffic_does_not_go_before_weighted_classes(tmp_path: Path) -> None:
    """In a strict class's queue it would; some switches cannot have that queue strict, either."""
    dwrr = 'priority = 3, scheduling = "dwrr", weight_percent = 100'
    text = GOOD.replace("priority = 3, floor_percent = 10", dwrr).replace(", lossless = true", "")
    shared = text.replace("priority = 0, floor_percent = 5", "priority = 4")
    with pytest.raises(PolicyError, match=r"best_effort\.priority: 4 is strict a's, above dwrr b; .*use 3 or less"):
        load_profiles(write(tmp_path, shared))
    assert load_profiles(write(tmp_path, text.replace("priority = 0, floor_percent = 5", "priority = 3")))


def test_a_class_may_have_the_name_of_the_queue_that_it_shares(tmp_path: Path) -> None:
    text = GOOD.replace('name = "b", dscp = 26, priority = 3', 'name = "best-effort", dscp = 26, priority = 0')
    assert load_profiles(write(tmp_path, text))


def test_missing_things_list_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="there are rocev2-2-lossless, rocev2-lossy-ecn, paper-k8"):
        load_profile("nope")
    with pytest.raises(PolicyError, match=r"absent\.toml: cannot be read: No such file"):
        load_profiles(tmp_path / "absent.toml")


def test_shipped_profiles() -> None:
    profiles = load_profiles()
    assert list(profiles) == ["rocev2-2-lossless", "rocev2-lossy-ecn", "paper-k8"]
    assert profiles["rocev2-2-lossless"].lossless_priorities == (3, 4)
    assert profiles["rocev2-lossy-ecn"].lossless_priorities == ()
    assert fold_classes(profiles["paper-k8"]) == tuple(range(8))
    assert class_dscps(profiles["rocev2-2-lossless"]) == (34, 26, 26, 26, 26, 26, 26, 8)


def test_the_repository_names_the_shipped_file() -> None:
    """`switch_configs` at the root is the folder that wheels carry."""
    root = Path(__file__).parents[3] / "switch_configs" / "policy.toml"
    assert root.read_text() == shipped_policy()


def test_digest_changes_with_meaning_only(tmp_path: Path) -> None:
    one = load_profile("p", write(tmp_path, GOOD)).digest
    assert load_profile("p", write(tmp_path, "# a comment\n" + GOOD)).digest == one
    assert load_profile("p", write(tmp_path, GOOD.replace("floor_percent = 10", "floor_percent = 11"))).digest != one


@given(mfs=st.integers(1, 64), fabric=st.integers(1, 8))
def test_folding_keeps_order_and_both_ends(mfs: int, fabric: int) -> None:
    base = load_profile("paper-k8")
    fold = fold_classes(msgspec.structs.replace(base, classes=base.classes[:fabric], fold=()), mfs)
    assert len(fold) == mfs
    assert list(fold) == sorted(fold)
    assert fold[0] == 0
    assert fold[-1] <= fabric - 1
    if mfs > 1 and fabric > 1:
        assert fold[-1] == fabric - 1
        assert fold.count(fabric - 1) == 1, "the scavenger class is the scavenger's alone"
    if mfs == fabric:
        assert fold == tuple(range(fabric))
