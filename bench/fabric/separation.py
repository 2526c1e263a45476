"""Measures how strictly a Linux switch keeps the classes of a policy apart: python -m bench.fabric.separation.

One flow of every class (TCP, or RDMA writes over the soft RoCE device) leads to the port of one host, all paused. For
every pair of classes, the two flows meet there. Printed per pair: the higher class's share while both send, and how
soon after its last byte the lower one has the link again.

Promised are 0.95 of the link (less what a floor or a weight gives the lower class), the lower back within 100 ms, and
floors honoured. A pair that is not as promised is measured again, as a busy machine can only disturb; --check ends
with 1 if it stays so.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack

import click

from bench.fabric import rdma
from bench.fabric.lab import (
    FRAME_BYTES,
    RESUME_BOUND_S,
    Flow,
    Lab,
    Pair,
    Pausable,
    PortCounters,
    measure_pair,
    missing,
    slow_profile,
)
from mfsd.fabric.policy import FabricClass, Profile

STRICT_SHARE = 0.95
FLOOR_MARGIN = 0.7
"""A floor is a mean over longer times than one measurement: this part of it must be there at any time."""
WARM_UP_BYTES = 300_000
MEASURE_BYTES = 2_000_000


def expected(profile: Profile, upper: int, lower: int) -> tuple[float, float]:
    """The least and the most that the higher of two classes may get: strict above floors, or by weight."""
    high, low = profile.classes[upper], profile.classes[lower]
    if high.scheduling == "dwrr":
        fair = high.weight_percent / (high.weight_percent + low.weight_percent)
        return fair - 0.1, fair + 0.1
    return STRICT_SHARE - _owed(low), 1 - FLOOR_MARGIN * low.floor_percent / 100


def _owed(low: FabricClass) -> float:
    """What a floor takes from the higher class, beyond the twentieth that the bound leaves anyway."""
    return max(0.0, low.floor_percent / 100 * 1.1 - (1 - STRICT_SHARE))


def problem(profile: Profile, upper: int, lower: int, pair: Pair) -> str:
    """What of the design's promise the pair breaks, or the empty string."""
    least, most = expected(profile, upper, lower)
    names = f"{profile.classes[upper].name} over {profile.classes[lower].name}"
    if not least <= pair.share_of_higher <= most:
        return f"{names}: the higher got {pair.share_of_higher:.3f} of the link, promised {least:.3f} to {most:.3f}"
    if pair.resume_s > RESUME_BOUND_S:
        return f"{names}: the lower came back after {pair.resume_s * 1e3:.0f} ms, promised {RESUME_BOUND_S * 1e3:.0f}"
    return ""


def measure(
    transport: str,
    name: str,
    profile: Profile,
    pairs: list[tuple[int, int]],
    rounds: int = 1,
    measure_bytes: int = MEASURE_BYTES,
    tell: Callable[[int, int, Pair], None] = lambda upper, lower, pair: None,
) -> dict[tuple[int, int], Pair]:
    """The pairs of classes, each measured until it keeps the promises, `rounds` times at most.

    A scheduler that does not keep them fails every time; a machine that was busy for a moment fails once.
    """
    found = {}
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(["low", "high", "sink"], profile, name, FRAME_BYTES))
        port = stack.enter_context(PortCounters(lab, "sink"))
        flows: dict[int, Pausable] = {}
        for c in sorted({c for pair in pairs for c in pair}):
            ends = (lab, "high" if c % 2 == 0 else "low", "sink", profile.classes[c].dscp)
            started: Pausable
            if transport == "tcp":
                started = stack.enter_context(Flow(*ends))
            else:
                started = stack.enter_context(rdma.RdmaFlow(*ends))
            port.wait_for(started.dscp, WARM_UP_BYTES)
            started.pause()
            flows[c] = started
        for upper, lower in pairs:
            for _ in range(rounds):
                pair = measure_pair(port, flows[upper], flows[lower], measure_bytes, WARM_UP_BYTES)
                if not problem(profile, upper, lower, pair):
                    break
            found[upper, lower] = pair
            tell(upper, lower, pair)
    return found


@click.command()
@click.option("--policy", default="paper-k8", show_default=True)
@click.option("--speed-gbps", default=0.2, show_default=True, help="Rate of the switch ports.")
@click.option("--measure-mb", default=6, show_default=True, help="Bytes of the higher class per pair.")
@click.option(
    "--rounds", default=3, show_default=True, help="Measure a pair so often at most, until it is as promised."
)
@click.option("--transport", type=click.Choice(["tcp", "rdma"]), default="tcp", show_default=True)
@click.option("--check", is_flag=True, help="End with 1 if a pair is not as the design promises.")
@click.option("--json", "as_json", is_flag=True)
def main(
    policy: str, speed_gbps: float, measure_mb: int, rounds: int, transport: str, check: bool, as_json: bool
) -> None:
    """Every pair of classes of a policy on a Linux switch in network namespaces."""
    if lack := missing() or (rdma.missing() if transport == "rdma" else ""):
        sys.exit(f"separation: {lack}")
    profile = slow_profile(policy, speed_gbps)
    rows: list[dict[str, str | float]] = []
    problems = []

    def tell(upper: int, lower: int, pair: Pair) -> None:
        problems.append(problem(profile, upper, lower, pair))
        rows.append(
            {
                "higher": profile.classes[upper].name,
                "lower": profile.classes[lower].name,
                "floor_percent": profile.classes[lower].floor_percent,
                "share_of_higher": round(pair.share_of_higher, 4),
                "lower_back_ms": round(pair.resume_s * 1e3, 1),
            }
        )
        if not as_json:
            click.echo("  ".join(f"{k} {v}" for k, v in rows[-1].items()))

    pairs = list(itertools.combinations(range(len(profile.classes)), 2))
    measure(transport, policy, profile, pairs, rounds, measure_mb * 1_000_000, tell)
    bad = [text for text in problems if text]
    if as_json:
        report = {"policy": policy, "transport": transport, "speed_gbps": speed_gbps, "pairs": rows, "problems": bad}
        click.echo(json.dumps(report, indent=2))
    else:
        smallest = min(float(r["share_of_higher"]) for r in rows)
        longest = max(float(r["lower_back_ms"]) for r in rows)
        click.echo(f"{len(rows)} pairs; smallest share {smallest}, longest way back {longest} ms")
        for text in bad:
            click.echo(f"not as promised: {text}")
    sys.exit(1 if check and bad else 0)


if __name__ == "__main__":
    main()
