"""What programs and a daemon of different minor versions do without."""

from __future__ import annotations

from mfsd._native import ABI_MINOR
from mfsd.node.abi import ADDED, DAEMON, skewed, without


def test_every_minor_version_says_what_it_brought() -> None:
    assert sorted(ADDED) == list(range(1, ABI_MINOR + 1)), "name in mfsd.node.abi what the new minor version brings"


def test_versions_that_are_not_the_daemons_are_counted() -> None:
    assert skewed(["1.3", "1.10", "1.2", "1.2", ""], "1.3") == {"1.2": 2, "1.10": 1}
    assert skewed([DAEMON]) == {}


def test_both_do_without_what_the_older_one_lacks() -> None:
    assert without("1.1", "1.3") == without("1.3", "1.1") == f"{ADDED[2]}; {ADDED[3]}"
    assert without(f"1.{ABI_MINOR + 1}", f"1.{ABI_MINOR}") == f"what ABI 1.{ABI_MINOR + 1} and later added"
