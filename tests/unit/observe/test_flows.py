"""Flows are put together from events, whatever of them was seen, and filtered."""

from __future__ import annotations

import pytest

from mfsd.node.control import Flow
from mfsd.node.events import Event, Kind
from mfsd.node.flows import Filter, Pairing

MS = 1_000_000
NAMES = {1: "vllm"}, {0: "mlx5_0"}


def event(kind: Kind, at_ms: float, task: int = 7, **changed: int) -> Event:
    fields = dict.fromkeys(Event._fields, 0) | {"time_ns": int(at_ms * MS), "task": task, "client_id": 1, "kind": kind}
    return Event(**{**fields, "bytes": 1000, "stage": 3, "request_id": 4711, "deadline_ns": 100 * MS, **changed})


def flows(*events: Event) -> list[Flow]:
    return list(Pairing("node-a").take(events, *NAMES))


def test_waiting_and_sending_are_reported_apart() -> None:
    (flow,) = flows(
        event(Kind.SUBMIT, 10), event(Kind.PERMIT, 40, wire_class=6), event(Kind.COMPLETE, 130, direction=1)
    )
    assert (flow.waited_s, flow.took_s, flow.late_s) == (0.03, 0.09, 0.03)
    assert (flow.node, flow.process, flow.nic, flow.incoming) == ("node-a", "vllm", "mlx5_0", True)
    assert (flow.stage, flow.request_id, flow.wire_class, flow.end) == ("p2d", 4711, 6, "done")


def test_what_was_not_seen_is_not_made_up() -> None:
    (flow,) = flows(event(Kind.COMPLETE, 130, deadline_ns=0, request_id=0))
    assert (flow.waited_s, flow.took_s, flow.late_s, flow.wire_class, flow.request_id) == (None,) * 5
    (bypassed,) = flows(event(Kind.SUBMIT, 10), event(Kind.BYPASS, 40))
    assert (bypassed.end, bypassed.waited_s, bypassed.took_s) == ("bypassed", 0.03, None)


def test_tasks_are_not_mixed_up_and_a_slot_is_used_again() -> None:
    found = flows(
        event(Kind.SUBMIT, 0, task=1),
        event(Kind.SUBMIT, 1, task=2),
        event(Kind.PERMIT, 2, task=2),
        event(Kind.COMPLETE, 3, task=2),
        event(Kind.PERMIT, 4, task=1),
        event(Kind.DROP, 5, task=1),
        event(Kind.COMPLETE, 6, task=1),
    )
    assert [(f.end, f.waited_s) for f in found] == [("done", 0.001), ("dropped", 0.004), ("done", None)]


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (Filter(), True),
        (Filter(stages=frozenset({"p2d", "reuse"})), True),
        (Filter(stages=frozenset({"reuse"})), False),
        (Filter(request_id=4711), True),
        (Filter(request_id=1), False),
        (Filter(port="mlx5_0"), True),
        (Filter(port="mlx5_0/out"), True),
        (Filter(port="mlx5_0/in"), False),
        (Filter(node="node-b"), False),
        (Filter(process="vl"), True),
        (Filter(slow_s=0.12), True),
        (Filter(slow_s=0.121), False),
    ],
)
def test_filters(wanted: Filter, matches: bool) -> None:
    (flow,) = flows(event(Kind.SUBMIT, 10), event(Kind.PERMIT, 40), event(Kind.COMPLETE, 130))
    assert wanted.wants(flow) is matches
