"""python -m bench sim optimality-gap [--setting hot] [--tries N]: measures how much of the gap from `static` to
`nocont` an order closes, where units ask for reuse when its batch begins (--fetch batch).

From below, for each seed: every order of reuse in ORDERS, last stages by deadline as in `static`; the best of these
orders with hindsight; then a search that knows which deadlines the best order missed, and sets reuse of single requests
back from the start. From above: `alone` and `nocont`, which no order between units has ever beaten here, and a bound
that no order can beat, since it only counts bytes (`must_miss`). The range between the two is undecided."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import msgspec

from bench.sim import policies, settings
from bench.sim.cluster import Cluster, ConfigError, Request
from bench.sim.engine import Simulation
from bench.sim.point import MET_SLACK, Point, knee, prepare
from bench.sim.policies import Policy, pack
from bench.sim.policies.static_stage import StaticStageAware
from bench.sim.states import Flow, State

Rule = Callable[[Simulation, Flow, State], tuple[int, float]]  # smaller first: (0..2047, seconds or the like)


def ahead(flow: Flow) -> int:
    return max(0, flow.layer - flow.batch.layer)


def stall_bytes(simulation: Simulation, flow: Flow) -> float:
    """Returns the bytes that the flow's batch waits for on the flow's busiest port, of all its layers."""
    port = max(flow.path.shares, key=flow.path.shares.__getitem__)
    states = (chunk.state for chunk in flow.batch.chunks)
    return sum(simulation.reuse_left(s) * s.reuse.path.shares.get(port, 0.0) for s in states if s.reuse is not None)


def needed_s(simulation: Simulation, flow: Flow, weight: float) -> float:
    """Returns the time until the layer begins, plus `weight` times what its transfer takes alone."""
    return simulation.until_layer_s(flow.batch, flow.layer) + weight * flow.message_bytes / flow.path.isolated_rate


def laxity_s(simulation: Simulation, state: State) -> float:
    """Sorts negative laxities last: what cannot be in time delays nothing."""
    laxity = state.request.deadline_s - simulation.earliest_finish_s(state)
    return laxity if laxity >= 0 else 1e4


def per_waiting(simulation: Simulation, flow: Flow) -> float:
    return stall_bytes(simulation, flow) / (1 + len(simulation.queues[flow.batch.unit]))


ORDERS: dict[str, Rule] = {
    "layers (static)": lambda simulation, flow, state: (ahead(flow), 0.0),
    "layers, bytes of the layer": lambda simulation, flow, state: (ahead(flow), flow.port_bytes * 1e-6),
    "layers, bytes of all layers": lambda simulation, flow, state: (ahead(flow), stall_bytes(simulation, flow) * 1e-6),
    "layers, bytes per queued request": lambda simulation, flow, state: (
        ahead(flow),
        per_waiting(simulation, flow) * 1e-6,
    ),
    "layers, deadline": lambda simulation, flow, state: (ahead(flow), state.request.deadline_s),
    "layers, laxity": lambda simulation, flow, state: (ahead(flow), laxity_s(simulation, state)),
    "layers, first batch": lambda simulation, flow, state: (ahead(flow), flow.batch.serial * 1e-6),
    "bytes of all layers": lambda simulation, flow, state: (0, stall_bytes(simulation, flow) * 1e-6),
    "first batch": lambda simulation, flow, state: (0, flow.batch.serial * 1e-6),
    "time until needed": lambda simulation, flow, state: (0, needed_s(simulation, flow, 0.0)),
    "time until needed + what it takes": lambda simulation, flow, state: (0, needed_s(simulation, flow, 1.0)),
    "time until needed + 6 x what it takes": lambda simulation, flow, state: (0, needed_s(simulation, flow, 6.0)),
}


class ReuseBy(StaticStageAware):
    """`static`, but reuse goes by a rule, and that of the requests in `back` after all other reuse."""

    def __init__(self, simulation: Simulation, rule: Rule, back: frozenset[int]) -> None:
        super().__init__(simulation)
        self.rule, self.back = rule, back

    def order(self, flow: Flow) -> int:
        place = super().order(flow)
        if flow.stage != 1 or flow.state is None:
            return place
        # Last stages keep band 2 of `static`: what is set back goes behind reuse, not behind them.
        first, second = self.rule(self.simulation, flow, flow.state)
        return pack(1, first + (1024 if flow.state.request.number in self.back else 0), second)


class Outcome(msgspec.Struct, frozen=True):
    missed: frozenset[int]  # numbers of measured requests that missed their deadline
    ttft_s: float  # mean

    @property
    def worth(self) -> tuple[int, float]:
        """Smaller is better."""
        return len(self.missed), self.ttft_s


def outcome(point: Point, policy: Callable[[Simulation], Policy]) -> Outcome:
    simulation = Simulation(*prepare(point), policy)
    simulation.run()
    measured = simulation.states[point.warmup :]
    ttft = [s.finish_s - s.request.arrival_s for s in measured]
    late = (s.request.number for s, t in zip(measured, ttft, strict=True) if t > s.request.budget_s * MET_SLACK)
    return Outcome(frozenset(late), statistics.fmean(ttft))


def search(point: Point, rule: Rule, best: Outcome, tries: int) -> Outcome:
    """Sets reuse of requests back from the start: first of all that missed, then of a few at random, as long as that
    helps."""
    chance = random.Random(f"reach {point.seed}")
    back, changed = frozenset[int](), best.missed
    for _ in range(tries):
        tried = outcome(point, partial(ReuseBy, rule=rule, back=back ^ changed))
        if tried.worth < best.worth:
            best, back = tried, back ^ changed
        candidates = sorted(best.missed | back)
        if not candidates:
            break
        changed = frozenset(chance.sample(candidates, min(len(candidates), chance.randint(1, 4))))
    return best


def port_bytes(cluster: Cluster, request: Request) -> dict[int, float]:
    """Returns the bytes that a request moves through ports which depend on no decision: its owners' and its decode
    NICs'."""
    topology, layers = cluster.topology, cluster.model.layers
    placed = msgspec.structs.replace(request, group=0)
    moved = {nic: share * request.remote_tokens * cluster.kv_bytes * layers for nic, share in request.owners}
    total = (request.new_tokens + request.context_tokens) * cluster.kv_bytes * layers
    for link, share in cluster.p2d_path(placed).shares.items():
        if topology.nics + topology.prefill_nics <= link < 2 * topology.nics:
            moved[link] = total * share
    return moved


def must_miss(jobs: Sequence[tuple[float, float, float]], rate: float) -> int:
    """Returns how many of (release s, deadline s, bytes) miss their deadline on a port of that rate in any order.

    Of the jobs that must both begin and end in a window, at most the smallest ones up to its bytes fit. Windows that do
    not overlap concern different jobs, so their losses add up; the best chain of windows is found by deadline. This is
    a bound, not the optimum.
    """
    deadlines = sorted({deadline for _, deadline, _ in jobs})
    by_deadline = sorted(jobs, key=lambda job: job[1])
    lost_in: dict[float, list[tuple[float, int]]] = {}  # by a window's end: its begin, and the jobs lost in it
    for begin in sorted({release for release, _, _ in jobs}):
        sizes: list[float] = []
        for release, end, size in by_deadline:
            if release >= begin:
                insort(sizes, size)
                fitting = sum(total <= rate * (end - begin) * (1 + 1e-9) for total in accumulate(sizes))
                if len(sizes) > fitting:
                    lost_in.setdefault(end, []).append((begin, len(sizes) - fitting))
    best: list[tuple[float, int]] = [(float("-inf"), 0)]  # end of the chain, jobs lost
    for end in deadlines:
        lost = best[-1][1]
        for begin, count in lost_in.get(end, ()):
            lost = max(lost, count + next(n for until, n in reversed(best) if until <= begin))
        best.append((end, lost))
    return best[-1][1]


def bound(point: Point) -> int:
    """Returns how many measured requests miss in any order, by the worst port alone."""
    cluster, requests = prepare(point)
    jobs: dict[int, list[tuple[float, float, float]]] = {}
    for request in requests[point.warmup :]:
        for port, size in port_bytes(cluster.of(request.unit), request).items():
            jobs.setdefault(port, []).append((request.arrival_s, request.deadline_s, size))
    return max((must_miss(of_port, cluster.link) for of_port in jobs.values()), default=0)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim optimality-gap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--setting", default="hot", help=f"setting, of {settings.NAMES} (default hot)")
    p.add_argument("--rate", type=float, help="requests/s per prefill GPU (default: where nocont meets 90 %%)")
    p.add_argument("--model", default="dbrx")
    p.add_argument("--workload", default="qwen-a")
    p.add_argument("--first-seed", type=int, default=11)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--requests", type=int, default=300, help="measured requests, after a third as many (default 300)")
    p.add_argument("--tries", type=int, default=20, help="runs of the search for each seed (default 20)")
    return p


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if len(settings.named(options.setting)) != 1:
        raise ConfigError(f"--setting {options.setting}: name one setting")
    base = settings.base_of(options.setting, options.model, options.workload, options.requests, fetch="batch")
    rate = options.rate or round(knee(msgspec.structs.replace(base, seed=1000)), 4)
    rows: dict[str, list[int]] = {}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        point = msgspec.structs.replace(base, rate=rate, seed=seed)
        found = {name: outcome(point, partial(ReuseBy, rule=rule, back=frozenset())) for name, rule in ORDERS.items()}
        best = min(found, key=lambda name: found[name].worth)
        found["hindsight: the best order of each seed"] = found[best]
        found["hindsight: and a search from there"] = search(point, ORDERS[best], found[best], options.tries)
        for name in ("mfs", "alone", "nocont"):
            found[name] = outcome(point, policies.find(name))
        for name, result in found.items():
            rows.setdefault(name, []).append(len(result.missed))
        rows.setdefault("bound: no order misses fewer", []).append(bound(point))
        print(f"seed {seed}: best order: {best}", file=sys.stderr, flush=True)
    print(f"Simulated. {options.model}, {options.workload}, {options.setting}, {rate:g} requests/s per prefill GPU")
    show(rows, options.requests)
    return 0


def show(rows: dict[str, list[int]], requests: int) -> None:
    """Prints the deadlines missed by seed, and how much of the way from `static` to `alone` and `nocont` that is."""
    total = {name: sum(missed) for name, missed in rows.items()}
    start = total["layers (static)"]
    print(f"deadlines missed of {requests} by seed | points over static | of the gap to alone | to nocont")
    for name, missed in rows.items():
        gained = start - total[name]
        shares = [f"{gained / (start - total[to]):.0%}" if start > total[to] else "-" for to in ("alone", "nocont")]
        points = 100 * gained / (requests * len(missed))
        print(f"{name} | {' '.join(map(str, missed))} | {points:+.1f} | {' | '.join(shares)}", flush=True)
