"""Parses link rates as users write them."""

from __future__ import annotations

import re

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:bit(?:/s|ps)?|bps)", re.IGNORECASE)


def parse_rate(text: str) -> int:
    """Returns a rate such as ``10gbit``, ``2.5Gbit/s`` or ``500mbit`` in bytes per second; 0 (no limit) for ``none``.

    ValueError says what is allowed.
    """
    if text.lower() == "none":
        return 0
    match = _PATTERN.fullmatch(text.strip())
    rate = int(float(match[1]) * _FACTORS[match[2].lower()] / 8) if match else 0
    if rate < 1000:
        raise ValueError(
            f"rate {text!r}: give at least 8kbit, in kbit, mbit or gbit, for example 10gbit, or give 'none'"
        )
    return rate
