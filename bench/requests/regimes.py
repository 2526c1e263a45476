"""python -m bench.requests.regimes --seed 301: measures the regimes of mfsd/policy/serve/meta/table.py.

Serves each drifting workload under every order of the pool, with H-MAS' fence and regulation. A phase of a workload is
a regime: its features are the mean of what the controller saw in it under the pool's first order, and its orders are
sorted by the share of calls that arrived in the phase and were in time. Prints the rows of the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import fmean

import msgspec

from bench.requests import drift, meta, point, policies, workloads
from bench.requests.point import Point
from bench.sim import serving
from bench.sim.serving import Outcome, Record, Snapshot
from bench.sim.serving.measure import first_late, tpot_ok
from mfsd.policy.serve import Policy, ServeConfig
from mfsd.policy.serve.meta import MetaConfig, table

PHASES = 3
SEED_FIRST = 300
"""Seeds from here on are the table's own: neither claims nor ablations use them."""


class Probe(meta.Controller):
    """Keeps one order, and records the features of every tick."""

    def __init__(self, policy: Policy, base: ServeConfig) -> None:
        super().__init__(MetaConfig(pool=(policy,), bypass_share=1.0), base)
        self.seen: list[tuple[float, tuple[float, ...]]] = []

    def __call__(self, now_s: float, replicas: Sequence[Snapshot]) -> dict[int, ServeConfig]:
        """Records one replica."""
        changed = self.tick(now_s, replicas[0])
        self.seen.append((now_s, table.features(self.views)))
        return {} if changed is None else {0: changed}


def regimes(workload: str, qps: float, seed: int, seconds: float) -> list[tuple[tuple[float, ...], list[str]]]:
    """Returns for each phase its features, and the orders from best to worst."""
    pool = MetaConfig().pool
    shares: dict[Policy, list[float]] = {}
    features: list[tuple[float, ...]] = []
    for policy in pool:
        outcome, probe = _served(workload, qps, seed, seconds, policy)
        phases = [_phase(record, seconds) for record in outcome.records]
        shares[policy] = [
            fmean([_good(r) for r, of in zip(outcome.records, phases, strict=True) if of == n] or [0.0])
            for n in range(PHASES)
        ]
        if policy is pool[0]:
            for n in range(PHASES):
                of = [row for at, row in probe.seen if n <= PHASES * at / seconds < n + 1]
                features.append(tuple(round(fmean(column), 3) for column in zip(*of, strict=True)))
        print(f"{workload} {policy.value} {' '.join(f'{x:.3f}' for x in shares[policy])}", file=sys.stderr, flush=True)
    return [(features[n], [p.value for p in sorted(pool, key=lambda p: -shares[p][n])]) for n in range(PHASES)]


def _served(workload: str, qps: float, seed: int, seconds: float, policy: Policy) -> tuple[Outcome, Probe]:
    given = Point(what="drift", workload=workload, qps=qps, seed=seed, seconds=seconds, policy="meta-rules")
    config, _ = point.engines(given, policies.DRIFT["meta-rules"])
    assert not isinstance(config, list)
    config = msgspec.structs.replace(config, serve=msgspec.structs.replace(config.serve, policy=policy))
    made = workloads.generate("drift", workload, given.settings, qps, seed, seconds, None)
    probe = Probe(policy, config.serve)
    until_s = seconds + point.DRAIN_S
    return serving.simulate(config, made.work, seed, control=probe, control_every_s=meta.TICK_S, until_s=until_s), probe


def _phase(record: Record, seconds: float) -> int:
    return min(PHASES - 1, int(PHASES * record.arrival_s / seconds))


def _good(record: Record) -> bool:
    return record.first_token_s is not None and not first_late(record) and tpot_ok(record)


def main(arguments: list[str]) -> int:
    p = argparse.ArgumentParser(prog="python -m bench.requests.regimes", description=__doc__)
    p.add_argument("--seed", type=int, default=SEED_FIRST + 1)
    p.add_argument("--qps", type=float, default=4.0)
    p.add_argument("--seconds", type=float, default=600.0)
    p.add_argument("--workload", default=",".join(drift.NAMES))
    options = p.parse_args(arguments)
    if options.seed <= SEED_FIRST:
        p.error(f"--seed {options.seed}: use a seed above {SEED_FIRST}; the others measure claims")
    for workload in options.workload.split(","):
        for features, best in regimes(workload, options.qps, options.seed, options.seconds):
            names = ", ".join(f"Policy.{Policy(name).name}" for name in best[:3])
            print(f"    Regime({features}, ({names})),  # {workload}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
