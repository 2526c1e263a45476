"""Numbers as people read them."""

from __future__ import annotations

import pytest

from mfsd.observe.format import bit_rate, byte_count, count, duration, in_time


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "-"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (131072, "128 KiB"),
        (10**9, "954 MiB"),
        (2**40, "1 TiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_bytes(value: int, text: str) -> None:
    assert byte_count(value) == text


def test_rates_and_counts() -> None:
    assert [bit_rate(r) for r in (0, 125_000_000, 12_500_000_000, 31_250)] == [
        "-",
        "1 Gbit/s",
        "100 Gbit/s",
        "250 Kbit/s",
    ]
    assert [count(n) for n in (0, 7, 999, 1000, 1234567)] == ["-", "7", "999", "1K", "1.2M"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "-"),
        (3e-09, "3 ns"),
        (1.67e-06, "1.67 us"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (59.9, "59.9 s"),
        (312, "5m 12s"),
        (3600, "1h 0m"),
        (273600, "3d 4h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_shares_in_time_are_said_where_any_ended() -> None:
    assert in_time((19, 1, 20.0), (300, 100, 300.0)) == "in time: 95% of 20 (20 s), 75% of 400 (5m 0s)"
    assert in_time((0, 0, 20.0), (1, 0, 300.0)) == "in time: 100% of 1 (5m 0s)"
    assert in_time((0, 0, 20.0)) == ""
