"""Speed of the rate allocator: flow events (begin or end) per CPU-second on open-loop traces over 200
Gbit/s links."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import numpy as np

from mfsd._native import Fluid

LINK = 25e9


@dataclass
class Trace:
    links: int
    flows: list[tuple[float, float, int, tuple[int, ...]]] = field(default_factory=list)

    def run(self) -> dict[str, float]:
        self.flows.sort(key=lambda flow: flow[0])
        first = np.cumsum([0] + [len(f[3]) for f in self.flows]).astype(np.uint32)
        columns = (
            np.array([f[0] for f in self.flows]),
            np.array([f[1] for f in self.flows]),
            np.array([f[2] for f in self.flows], dtype=np.uint64),
            first,
            np.array([link for f in self.flows for link in f[3]], dtype=np.uint32),
            np.zeros(len(self.flows)),
        )
        net = Fluid([LINK] * self.links)
        began = time.process_time()
        net.replay(*columns)
        cpu_s = time.process_time() - began
        stats = net.stats()
        return {
            "flows": len(self.flows),
            "cpu_s": round(cpu_s, 4),
            "events_per_cpu_s": round(stats["events"] / cpu_s),
            "flows_visited_per_event": round(stats["visits"] / stats["events"], 2),
        }


def poisson(flows: int, load: float, orders: int, radix: int = 0, seed: int = 1) -> Trace:
    """Random pairs with exponential sizes (mean 16 MB). radix 0: NICs only (2,000 of them); else an ECMP
    fat-tree."""
    rng = random.Random(seed)
    half = radix // 2
    hosts = radix * half * half if radix else 2000
    tier = hosts  # links of one direction between two tiers of a non-blocking fat-tree
    trace = Trace(2 * hosts + (4 * tier if radix else 0))
    now, mean = 0.0, 16e6
    for number in range(flows):
        now += rng.expovariate(load * hosts * LINK / mean)
        source, target = rng.sample(range(hosts), 2)
        path = [source, hosts + target]
        if radix and source // half != target // half:
            rack_up, rack_down = 2 * hosts, 2 * hosts + tier
            spine = rng.randrange(half)
            path += [rack_up + source // half * half + spine, rack_down + target // half * half + spine]
            if source // half // half != target // half // half:
                core = rng.randrange(half)
                up, down = 2 * hosts + 2 * tier, 2 * hosts + 3 * tier
                path.append(up + (source // half // half * half + spine) * half + core)
                path.append(down + (target // half // half * half + spine) * half + core)
        order = (number * 2654435761 >> 8) % orders
        trace.flows.append((now, max(1e4, rng.expovariate(1 / mean)), order, tuple(path)))
    return trace


def full_mesh(instances: int, collectives: int, per_flow_class: bool, seed: int = 1) -> Trace:
    """Every instance (4 servers of 8 GPUs) runs all-to-alls between servers, each in one of 8 classes; one
    64 MB KV flow
    between random instances per collective."""
    rng = random.Random(seed)
    gpus = 32 * instances
    trace = Trace(2 * gpus)
    for instance in range(instances):
        now = rng.random() * 3e-3
        for _ in range(collectives):
            order = rng.randrange(8)
            for a in range(32):
                for b in range(32):
                    if a // 8 != b // 8:
                        links = (instance * 32 + a, gpus + instance * 32 + b)
                        trace.flows.append((now, 16e6 / 24, rng.randrange(8) if per_flow_class else order, links))
            other = rng.randrange(instances)
            links = (instance * 32 + rng.randrange(32), gpus + other * 32 + rng.randrange(32))
            trace.flows.append((now + rng.random() * 3e-3, 64e6, rng.randrange(8), links))
            now += 3e-3 * (0.8 + 0.4 * rng.random())
    return trace


def run() -> dict[str, object]:
    return {
        "nic_only_10k_load_0.5": poisson(10_000, 0.5, 1).run(),
        "nic_only_10k_load_0.5_8_classes": poisson(10_000, 0.5, 8).run(),
        "nic_only_10k_load_0.5_own_order_each": poisson(10_000, 0.5, 1 << 20).run(),
        "nic_only_40k_load_0.5": poisson(40_000, 0.5, 1).run(),
        "fat_tree_k20_10k_load_0.5": poisson(10_000, 0.5, 1, radix=20).run(),
        "fat_tree_k20_10k_load_0.5_8_classes": poisson(10_000, 0.5, 8, radix=20).run(),
        "full_mesh_32_instances_8_classes": full_mesh(32, 8, per_flow_class=False).run(),
        "full_mesh_32_instances_random_class_per_flow": full_mesh(32, 2, per_flow_class=True).run(),
    }
