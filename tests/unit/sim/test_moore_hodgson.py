"""Moore-Hodgson in place of special cases, tiers of deadlines, and admission at the receiver."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.sim import policies
from bench.sim.admission import MESSAGE_S, AdmittedNetwork
from bench.sim.cluster import Config, ConfigError, SloTier
from bench.sim.engine import Simulation
from bench.sim.point import MET_SLACK, Point, measure, prepare
from bench.sim.policies.moore_hodgson import MooreHodgson
from bench.sim.states import Flow
from bench.sim.topology import Topology

SMALL = Config(model="dbrx", gpus=128, hot_fraction=0.5, kv_scale=16.0, cache="first-owner")
POINT = Point(config=SMALL, rate=0.2, requests=60, warmup=10)
TIERS = [SloTier(0.25, 2.0, 4), SloTier(0.75, 4.0, 1)]


def simulation(policy: str, **knobs: Any) -> Simulation:
    config = msgspec.structs.replace(SMALL, **knobs)
    return Simulation(*prepare(msgspec.structs.replace(POINT, config=config)), policies.find(policy))


def test_what_is_given_up_goes_after_what_can_be_in_time() -> None:
    one = simulation("mh")
    policy = one.policy
    assert isinstance(policy, MooreHodgson)
    seen = {1: 0, 3: 0}
    plan = policy.plan

    def planned() -> None:
        before = policy.planned_s
        plan()
        if policy.planned_s == before:
            return
        for stage, flows in ((1, [f for u in range(len(one.queues)) for f in one.queued_reuse(u)]), (3, one.shipping)):
            asked = [f for f in flows if f.state and not f.state.pruned and (stage == 3 or policy.needed_ns(f))]
            late = [policy.order(f) for f in asked if f in policy.late]
            kept = [policy.order(f) for f in asked if f not in policy.late]
            if late and kept:
                seen[stage] += 1
                assert max(kept) < min(late)

    policy.plan = planned  # type: ignore[method-assign]
    one.run()
    assert seen[1] and seen[3]


def test_tiers_have_deadlines_and_weights_of_their_own() -> None:
    one = simulation("mfs", slo_tiers=TIERS)
    requests = [state.request for state in one.states]
    factors = {(round(r.budget_s / r.isolated_s, 6), r.weight) for r in requests}
    assert factors == {(2.0, 4), (4.0, 1)}
    assert sum(r.weight == 4 for r in requests) < len(requests) / 2
    one.run()
    counted = one.states[POINT.warmup :]
    met = [s for s in counted if s.finish_s - s.request.arrival_s <= s.request.budget_s * MET_SLACK]
    share = sum(s.request.weight for s in met) / sum(s.request.weight for s in counted)
    assert measure(one, POINT.warmup)["weighted_attainment"] == pytest.approx(share, abs=1e-6)
    with pytest.raises(ConfigError, match="shares must sum to 1"):
        Config(slo_tiers=TIERS[:1])


LINK = 1e9
MESSAGE = LINK * MESSAGE_S


def flows_to_one(network: AdmittedNetwork, topology: Topology, orders: list[int]) -> list[Flow]:
    flows = []
    for number, order in enumerate(orders):
        path = topology.path([(number, len(orders), 1.0)])
        flow = Flow(3, path, None, object(), 0.0, number)  # type: ignore[arg-type]
        flow.order, flow.wire_class = order, 6
        network.send(flow, 12 * MESSAGE)
        flows.append(flow)
    return flows


def finish(network: AdmittedNetwork, within: float) -> list[Flow]:
    """In the order in which they are done."""
    done: list[Flow] = []
    while (now := network.next()) < within:
        done += network.advance(now)
        for there, bytes_admitted in network.admitted.items():
            assert bytes_admitted < network.window_there + MESSAGE, there
    return done


@pytest.mark.parametrize("round_trip_s", [0.0, 100e-6])
def test_a_receiver_admits_what_is_first_in_order_from_any_sender(round_trip_s: float) -> None:
    topology = Topology(3, 1, LINK)
    network = AdmittedNetwork(topology, round_trip_s)
    flows = flows_to_one(network, topology, [3, 1, 2])
    assert network.next() == round_trip_s / 2, "nothing is posted before it was asked for"
    done = finish(network, 1.0)
    assert [flow.order for flow in done] == [1, 2, 3]
    assert not network.asked and not network.backlog and all(network.remaining(f) == 0 for f in flows)
    assert network.fluid.now == pytest.approx(36 * MESSAGE_S + round_trip_s, rel=0.02)


def test_without_admission_senders_share_the_receiver() -> None:
    topology = Topology(3, 1, LINK)
    network = AdmittedNetwork(topology, None)
    flows_to_one(network, topology, [3, 1, 2])
    assert not finish(network, 30 * MESSAGE_S)
    assert len(finish(network, 1.0)) == 3
    assert not network.admitted
