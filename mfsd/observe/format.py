"""Formats numbers for tables that people read."""

from __future__ import annotations

_PREFIXES = ("", "K", "M", "G", "T", "P", "E")


def byte_count(value: int) -> str:
    """``1.5 MiB``; ``-`` for none, so that other values stand out."""
    return _scaled(value, 1024, "iB", "B") if value else "-"


def bit_rate(bytes_per_s: int) -> str:
    """``100 Gbit/s``."""
    return _scaled(bytes_per_s * 8, 1000, "bit/s", "bit/s") if bytes_per_s else "-"


def count(value: int) -> str:
    return _scaled(value, 1000, "", "").replace(" ", "") if value else "-"


def share(value: float) -> str:
    """``37%``; ``-`` for none."""
    return "-" if value < 0.0005 else "<1%" if value < 0.005 else f"{value:.0%}"


def duration(seconds: float) -> str:
    """``3d 4h``, ``5m 12s``, ``1.20 s``, ``35 us``."""
    for size, word, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if seconds >= size:
            return f"{int(seconds // size)}{word} {int(seconds % size // smaller_size)}{smaller}"
    for scale, word in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {word}"
    return "-" if seconds == 0 else f"{seconds * 1e9:.3g} ns"


def in_time(*windows: tuple[int, int, float]) -> str:
    """``in time: 95% of 40 (20 s), 88% of 410 (5m 0s)`` from (met, missed, seconds). Leaves out windows without any."""
    shares = [
        f"{met / (met + missed):.0%} of {met + missed} ({duration(seconds)})"
        for met, missed, seconds in windows
        if met + missed
    ]
    return "in time: " + ", ".join(shares) if shares else ""


def _scaled(value: float, base: int, unit: str, unit_below: str) -> str:
    exponent = 0
    while value >= base and exponent < len(_PREFIXES) - 1:
        value /= base
        exponent += 1
    number = f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
    return f"{number} {_PREFIXES[exponent]}{unit if exponent else unit_below}".rstrip()
