"""Scales a cluster with 50 Gbit/s NICs down to network namespaces on two cores, with all ratios kept.

Times are stretched by one factor and bytes shrunk by another, so that a transfer takes the same share of a layer's
compute on the slow link as on the fast one: `bytes = time * link / 50 Gbit/s`. Slowdowns, attainment and the order of
modes then carry over; absolute times are multiples of the cluster's.
"""

from __future__ import annotations

import re

import msgspec

from bench.sim.cluster import ConfigError
from bench.sim.profile import MODELS
from bench.testbed.scenario import MODEL

LEAST_BYTES = 64
MESSAGE_CLUSTER_BYTES = 10_922_667
"""The cluster's bytes in one message: 128 KiB on links of 300 Mbit/s with times stretched by two."""
PAGE_BYTES = 4096
MESSAGE_PAGES_MOST = 4096
"""16 MiB: a host has about a hundred of them in memory."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s)?", re.IGNORECASE)
_UNIT = {"k": 1e3, "m": 1e6, "g": 1e9}


class Scale(msgspec.Struct, frozen=True):
    link_bits_per_s: float = 300e6
    """Of every port, in both directions."""
    time: float = 2.0
    """Seconds of the testbed for one of the cluster."""

    def __post_init__(self) -> None:
        if not 1e6 <= self.link_bits_per_s <= 100e9:
            raise ConfigError(
                f"--link {self.link_bits_per_s / 1e6:g}mbit: use 1mbit to 100gbit; two cores carry 300mbit"
            )
        if not 0.1 <= self.time <= 1000:
            raise ConfigError(f"--time-scale {self.time:g}: use 0.1 to 1000")

    @property
    def bytes(self) -> float:
        """Bytes of the testbed for one of the cluster."""
        return self.time * self.link_bits_per_s / (MODELS[MODEL].link_gbps * 1e9)

    @property
    def message_bytes(self) -> int:
        """The longest message, in whole pages: a request has the same messages at every scale."""
        pages = round(MESSAGE_CLUSTER_BYTES * self.bytes / PAGE_BYTES)
        return min(max(1, pages), MESSAGE_PAGES_MOST) * PAGE_BYTES

    def ns(self, cluster_s: float) -> int:
        return round(cluster_s * self.time * 1e9)

    def size(self, cluster_bytes: float) -> int:
        """Returns whole words, because messages are stamped by words; never 0 for more than 0 bytes."""
        return max(LEAST_BYTES, round(cluster_bytes * self.bytes / 8) * 8) if cluster_bytes > 0 else 0

    def describe(self) -> str:
        return (
            f"links of {self.link_bits_per_s / 1e6:g} Mbit/s stand for {MODELS[MODEL].link_gbps:g} Gbit/s: "
            f"times x{self.time:g}, bytes x{self.bytes:.4g}; "
            f"each of {MODELS[MODEL].layers} layers stands for four of Mixtral-8x7B's"
        )


def parse_rate(text: str) -> float:
    """Returns the bits per second of a text such as 300mbit. Raises ConfigError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--link {text}: write a number and kbit, mbit or gbit, for example 300mbit")
    return float(match[1]) * _UNIT[match[2].lower()]
