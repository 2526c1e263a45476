"""csrc/fluid/fluid.c against SimGrid, an independent and widely used network simulator (it has no strict
priority: one order)."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mfsd._native import Fluid

SYSTEM_PYTHON = "/usr/bin/python3"
ORACLE = Path(__file__).with_name("simgrid_oracle.py")


def simgrid(problem: dict[str, object]) -> list[float]:
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip("SimGrid is not installed (apt-get install python3-simgrid)")
    run = subprocess.run([SYSTEM_PYTHON, str(ORACLE)], input=json.dumps(problem), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return list(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("fabric", ["nic-only", "two tiers"])
def test_completions_agree_with_simgrid(fabric: str) -> None:
    rng = random.Random(7)
    hosts, spines = 12, 3
    capacity = [10e9] * (2 * hosts)
    if fabric == "two tiers":  # 3 racks of 4, oversubscribed 4:3 over the spines
        capacity += [10e9] * (2 * 3 * spines)
    flows, start = [], 0.0
    for _ in range(120):
        start += rng.expovariate(700.0)
        source, target = rng.sample(range(hosts), 2)
        links = [source, hosts + target]
        if fabric == "two tiers" and source // 4 != target // 4:
            spine = rng.randrange(spines)
            links += [2 * hosts + source // 4 * spines + spine, 2 * hosts + 9 + target // 4 * spines + spine]
        flows.append((start, round(rng.expovariate(1 / 60e6)) + 1e5, links))
    expected = simgrid({"capacity": capacity, "flows": flows})
    finish = np.zeros(len(flows))
    Fluid(capacity).replay(
        np.array([f[0] for f in flows]),
        np.array([f[1] for f in flows]),
        np.zeros(len(flows), dtype=np.uint64),
        np.cumsum([0] + [len(f[2]) for f in flows]).astype(np.uint32),
        np.array([link for f in flows for link in f[2]], dtype=np.uint32),
        finish,
    )
    overlap = sum(f[1] for f in flows) / 10e9 / (max(expected) - flows[0][0])
    assert overlap > 1.5, "the trace must load the network, or agreement proves nothing"
    assert finish == pytest.approx(expected, rel=1e-6)
