"""What calls inherit under the baselines, and that orders by programs differ from orders by calls."""

from __future__ import annotations

from bench.requests import inherit
from bench.requests import point as points
from bench.requests.inherit import OUTPUT_S, PROMPT_S
from bench.requests.point import Point
from bench.requests.policies import Inherit
from bench.requests.settings import Settings
from bench.sim.serving import Call, Program
from mfsd.policy.serve import Inherited

CALL = Call(prompt_tokens=100, output_tokens=10, prefix_tokens=60)
WORK: list[Call | Program] = [Call(prompt_tokens=5, output_tokens=5), Program(arrival_s=0.0, calls=(CALL, CALL))]


def test_a_call_on_its_own_inherits_nothing() -> None:
    table = inherit.table(Inherit.NONE, WORK)
    first = table.call_arrived("program 0", "0", 0.0)
    table.call_ended("program 0", first, 5.0, 1.0, 6.0)
    assert table.call_arrived("program 0", "0", 7.0) == Inherited()


def test_programs_inherit_what_they_had() -> None:
    table = inherit.table(Inherit.PLAS, WORK)
    table.call_ended("program 0", table.call_arrived("program 0", "0", 0.0), 5.0, 1.0, 6.0)
    assert table.call_arrived("program 0", "0", 7.0) == Inherited(5.0, 1.0)


def test_hindsight_counts_what_is_left() -> None:
    table, each = inherit.table(Inherit.HINDSIGHT, WORK), 40 * PROMPT_S + 10 * OUTPUT_S
    first = table.call_arrived("program 0", "0", 0.0)
    assert first.service_s == 2 * each
    table.call_ended("program 0", first, 5.0, 1.0, 6.0)
    assert table.call_arrived("program 0", "0", 7.0).service_s == each


def test_orders_by_program_differ_from_those_by_call() -> None:
    def mean_s(policy: str) -> float:
        at = Point(what="programs", workload="chat", policy=policy, qps=1.0, seconds=12.0, settings=Settings(slots=2))
        return float(points.run(at)["latency_s"]["mean"])

    fcfs, mlfq, plas, bound = map(mean_s, ("fcfs", "mlfq", "plas", "srpt"))
    assert bound < fcfs and plas != fcfs
    assert mlfq == fcfs, "a call that waits has had nothing, and none that runs gives way"
