"""A serving cluster whose schedulers die in mid-run loses no request and no byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.fabric.lab import missing
from bench.testbed.batches import shipped_bytes
from bench.testbed.build import build_worker
from bench.testbed.hosts import Hosts
from bench.testbed.leg import Leg
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario, cluster_of, requests_of
from mfsd.playground.sandbox import run_sandboxed

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.slow]

SCALE = Scale()
SCENARIO = Scenario(rate=2.0, duration_s=5.0 / SCALE.time)


def serve(result: Path, events: Callable[[Leg], list[tuple[float, Callable[[], None]]]]) -> int:
    cluster = cluster_of(SCENARIO)
    with (
        Hosts(SCENARIO.hosts, SCALE.link_bits_per_s) as hosts,
        Leg(hosts, build_worker(), MODES["mfs"], SCENARIO, cluster, SCALE) as leg,
    ):
        served = leg.run(requests_of(SCENARIO, cluster), events=events(leg))
    result.write_text(json.dumps([{s.number: s.kv_bytes for s in served.served}, served.statistics]))
    return 0


def daemon_dies(leg: Leg) -> list[tuple[float, Callable[[], None]]]:
    """Every daemon once; all but one come back."""
    hosts = list(leg.daemons.nodes)
    events: list[tuple[float, Callable[[], None]]] = []
    for at, host in enumerate(hosts):
        events.append((1.0 + at / 2, leg.daemons.nodes[host].kill))
        if at:
            events.append((1.8 + at / 2, lambda host=host: leg.daemons.start_node(host)))
    return events


def coordinator_dies(leg: Leg) -> list[tuple[float, Callable[[], None]]]:
    assert leg.daemons.coordinator is not None
    return [(1.0, leg.daemons.coordinator.kill), (3.0, leg.daemons.start_coordinator)]


def served_with(folder: Path, events: Callable[[Leg], list[tuple[float, Callable[[], None]]]]) -> dict[str, int]:
    """What the workers counted, once every request and byte is accounted for."""
    result = folder / "served.json"
    assert run_sandboxed(lambda: serve(result, events)) == 0
    served, statistics = json.loads(result.read_text())
    cluster = cluster_of(SCENARIO)
    expected = {str(r.number): shipped_bytes(cluster, SCALE, r) for r in requests_of(SCENARIO, cluster)}
    assert served == expected
    assert statistics["permitted"] > 0
    return dict(statistics)


def test_no_request_is_lost_when_daemons_die(tmp_path: Path) -> None:
    assert served_with(tmp_path, daemon_dies)["bypassed"] > 0, "no message was without a scheduler: nothing was seen"


def test_no_request_is_lost_when_the_coordinator_dies(tmp_path: Path) -> None:
    """And daemons grant permits without it. A machine that stands still lets messages pass: then once more."""
    assert any(served_with(tmp_path, coordinator_dies)["bypassed"] == 0 for _ in range(4))
