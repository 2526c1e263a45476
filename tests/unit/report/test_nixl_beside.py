"""`bench micro nixl_beside`: what its pairs come to."""

from __future__ import annotations

from bench.micro.nixl_beside import Timed, compared


def test_each_pair_is_compared_with_the_first_leg_of_its_own() -> None:
    found = {
        "without": [Timed([0.1, 0.2, 9.0], 80.0), Timed([0.4], 90.0), Timed([0.1], 100.0)],
        "enforce": [Timed([0.1], 70.0), Timed([0.1], 71.0), Timed([0.2], 75.0)],
    }
    figures = compared(found)
    assert figures["pairs"] == 3
    assert figures["without"] == {"ms": 200.0, "ms_spread": [100.0, 400.0], "bulk_mb_s": 90.0}
    assert (figures["enforce_of_without"], figures["enforce_of_without_spread"]) == (0.5, [0.25, 2.0])


def test_enforce_is_compared_with_marks_alone_too() -> None:
    found = {
        "without": [Timed([0.4], 80.0), Timed([0.4], 80.0)],
        "mark": [Timed([0.2], 80.0), Timed([0.1], 80.0)],
        "enforce": [Timed([0.1], 80.0), Timed([0.1], 80.0)],
    }
    figures = compared(found)
    assert (figures["mark_of_without"], figures["mark_of_without_spread"]) == (0.38, [0.25, 0.5])
    assert (figures["enforce_of_mark"], figures["enforce_of_mark_spread"]) == (0.75, [0.5, 1.0])
    assert "enforce_of_mark_spread" in compared({"mark": found["mark"], "enforce": found["enforce"]})
    assert "enforce_of_mark" not in compared({"without": found["without"], "enforce": found["enforce"]})


def test_without_a_pair_there_is_no_figure() -> None:
    assert compared({"without": [], "enforce": []}) == {"pairs": 0}
