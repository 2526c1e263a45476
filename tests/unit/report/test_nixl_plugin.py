"""`bench micro nixl_plugin`: what its legs come to."""

from __future__ import annotations

from bench.micro.nixl_plugin import difference


def test_two_engines_differ_by_themselves_and_that_is_taken_off() -> None:
    asking = {"overhead_percent": -0.75, "overhead_percent_interval": [-1.01, -0.49]}
    off = {"overhead_percent": -1.86, "overhead_percent_interval": [-2.45, -1.35]}
    assert difference(asking, off) == {"overhead_percent": 1.11, "overhead_percent_interval": [0.34, 1.96]}
