"""Measures how strictly a Linux switch keeps the classes of a policy apart: python -m
bench.fabric.separation.

For every pair of classes, two flows (TCP, or RDMA writes over the soft RoCE device) from two hosts meet at
the port of a third. Printed per pair: the higher class's share while both send, and how soon the lower
one's first bytes and its full rate come back after the higher one ended.
"""

from __future__ import annotations

import itertools
import json
import sys
import time

import click

from bench.fabric import rdma
from bench.fabric.lab import Flow, Lab, missing, python_counts, share_of_higher, slow_profile


@click.command()
@click.option("--policy", default="paper-k8", show_default=True)
@click.option("--speed-gbps", default=0.2, show_default=True, help="Rate of the switch ports.")
@click.option("--measure-mb", default=6, show_default=True, help="Bytes of the higher class per pair.")
@click.option("--transport", type=click.Choice(["tcp", "rdma"]), default="tcp", show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(policy: str, speed_gbps: float, measure_mb: int, transport: str, as_json: bool) -> None:
    """Every pair of classes of a policy on a Linux switch in network namespaces."""
    if lack := missing() or (rdma.missing() if transport == "rdma" else ""):
        sys.exit(f"separation: {lack}")
    profile = slow_profile(policy, speed_gbps)
    flow, counts = (Flow, python_counts) if transport == "tcp" else (rdma.RdmaFlow, rdma.switch_counts)
    rows: list[dict[str, str | float]] = []
    with Lab(["low", "high", "sink"], profile, policy) as lab:
        for upper, lower in itertools.combinations(range(len(profile.classes)), 2):
            with flow(lab, "low", "sink", profile.classes[lower].dscp) as low:
                low.wait_for(300_000)
                with flow(lab, "high", "sink", profile.classes[upper].dscp) as high:
                    share = share_of_higher(high, low, measure_mb * 1_000_000, counts=counts)
                ended = time.monotonic()
                low.wait_for(1)
                first_ms = (time.monotonic() - ended) * 1e3
                began = time.monotonic()
                size = low.wait_for(1_000_000) and 1_000_000
                rate = size * 8 / (time.monotonic() - began) / (speed_gbps * 1e9)
            rows.append(
                {
                    "higher": profile.classes[upper].name,
                    "lower": profile.classes[lower].name,
                    "floor_percent": profile.classes[lower].floor_percent,
                    "share_of_higher": round(share, 4),
                    "lower_first_byte_ms": round(first_ms, 1),
                    "lower_rate_after_of_link": round(rate, 3),
                }
            )
            if not as_json:
                click.echo("  ".join(f"{k} {v}" for k, v in rows[-1].items()))
    if as_json:
        click.echo(
            json.dumps({"policy": policy, "transport": transport, "speed_gbps": speed_gbps, "pairs": rows}, indent=2)
        )
    else:
        worst = min(rows, key=lambda r: float(r["share_of_higher"]))
        click.echo(f"{len(rows)} pairs; the smallest share of a higher class is {worst['share_of_higher']}")


if __name__ == "__main__":
    main()
