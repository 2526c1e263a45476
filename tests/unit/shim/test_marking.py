"""The shim in mode "mark", over a device that records what it is given."""

from __future__ import annotations

import pytest

from mfsd.policy.mark_text import mark_text
from mfsd.policy.marks import MarkRule, Marks, divided
from tests.unit.shim.conftest import Native

LANES = "dscp=46,34,-,8;stages=control:0,collective:0,reuse:1,p2d:2,background:3;sizes=;rule=dscp:11"
RULES = Marks(
    (46, 34, 18, 8),
    divided(4).by_stage(),
    {},
    (
        MarkRule(role="nccl-cts", dscp=46),
        MarkRule(library="libnccl", dscp=40),
        MarkRule(library="store.so", process="shim_mark", dscp=20),
        MarkRule(role="kv", peer="10.1.0.0/16", dscp=10),
        MarkRule(role="kv", peer="fe80::/10", dscp=12),
        MarkRule(library="libother", process="another program", dscp=9),
        MarkRule(library="libother", dscp=8),
        MarkRule(),
    ),
)


def lines(native: Native, test: str, *arguments: str, **environment: str) -> list[str]:
    return native.run("shim_mark", test, *arguments, MFS_MODE="mark", **environment).stderr.splitlines()


def test_rules_that_were_written_for_it_are_read_and_the_first_that_matches_wins(native: Native) -> None:
    assert lines(native, "rules", str(native.folder), MFS_MARK=mark_text(RULES)) == []


@pytest.mark.parametrize("test", ["lanes", "untouched", "devices", "forked"])
def test_marking(native: Native, test: str) -> None:
    assert lines(native, test, MFS_MARK=LANES) == []


LEVELS = {"MFS_MARK": LANES, "MFS_SERVICE_LEVELS": "46:5,34:4!"}


def test_service_levels_on_infiniband(native: Native) -> None:
    assert lines(native, "levels", FAKE_INFINIBAND="1", **LEVELS) == []


def test_no_service_levels_on_ethernet_or_where_none_are_configured(native: Native) -> None:
    assert lines(native, "no_levels", **LEVELS) == []
    assert lines(native, "no_levels", FAKE_INFINIBAND="1", MFS_MARK=LANES) == []


@pytest.mark.parametrize(
    "wrong", ["46", "46:", "46:16", "64:1", ":1", "46:5;34:4", "46:5!!", "46:-1", "46:5, 34:4", "x"]
)
def test_service_levels_that_cannot_be_read_change_nothing(native: Native, wrong: str) -> None:
    output = lines(native, "no_levels", FAKE_INFINIBAND="1", MFS_MARK=LANES, MFS_SERVICE_LEVELS=wrong)
    assert len(output) == 1 and output[0].startswith("mfs: MFS_SERVICE_LEVELS="), output


def test_marking_sanitized(with_asan: Native) -> None:
    for test in ("lanes", "untouched", "forked"):
        with_asan.run("shim_mark", test, MFS_MODE="mark", MFS_MARK=LANES)
    with_asan.run("shim_mark", "levels", MFS_MODE="mark", FAKE_INFINIBAND="1", **LEVELS)
    for wrong in WRONG:
        with_asan.run("shim_mark", "nothing", MFS_MODE="mark", MFS_MARK=wrong)


WRONG = [
    "dscp=64",
    "dscp=",
    "dscp=-1",
    "dscp=1,,2",
    "dscp=1,2,3,4,5,6,7,8,9",
    "dscp=4294967297",
    "color=red",
    "rule=color:red",
    "rule=dscp:64",
    "rule=dscp:",
    "rule=library:",
    "rule=library:" + "x" * 32,
    "rule=library:%",
    "rule=library:%4",
    "rule=library:%zz",
    "rule=library:a%00b",
    "rule=role:boss",
    "rule=peer:10.1.0.0",
    "rule=peer:10.1.0.0/33",
    "rule=peer:10.1/16",
    "rule=peer:fe80::/129",
    "rule=peer:/0",
    ";".join(["rule=dscp:1"] * 65),
    "\n",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_variable_that_cannot_be_read_is_named_and_nothing_is_marked(native: Native, wrong: str) -> None:
    output = lines(native, "nothing", MFS_MARK=wrong)
    assert len(output) == 1 and output[0].startswith('mfs: MFS_MODE=mark: cannot read "'), output
    assert "nothing is marked; start the program with mfs-run --mode mark" in output[0]


@pytest.mark.parametrize(("text", "word"), [("", "not set"), ("x" * 20_000, "too long")])
def test_a_variable_that_is_missing_or_endless(native: Native, text: str, word: str) -> None:
    assert lines(native, "nothing", MFS_MARK=text) == [
        f"mfs: MFS_MODE=mark: MFS_MARK is {word}: nothing is marked; start the program with mfs-run --mode mark"
    ]
