"""A core takes events: its plan is that of Algorithm 1 over what is active, and bad events change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy import Batch, Plan, PolicyConfig, Request, plan
from tests.support.reference_core import ReferenceCore

CAPACITY = {0: 10**9, 1: 10**9}
CONFIG = PolicyConfig(drop_budget=0.3)


def batch(batch_id: int, *deadlines: int, load: int = 10, compute: int = 0) -> Batch:
    requests = tuple(Request(100 * batch_id + i, d, {0: load}) for i, d in enumerate(deadlines))
    return Batch(batch_id, requests, compute)


@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "update", "depart"]), st.integers(1, 5), st.integers(0, 300)),
        max_size=25,
    )
)
def test_events_give_the_plan_of_what_is_active(events: list[tuple[str, int, int]]) -> None:
    """Any sequence, with updates and departures of unknown batches and double arrivals in it."""
    core, expected = ReferenceCore(CONFIG, CAPACITY), Plan()
    active: dict[int, Batch] = {}
    for now, (event, batch_id, size) in enumerate(events):
        item = batch(batch_id, now + size, now + 2 * size, load=size // 2)
        legal = (event == "arrive") != (batch_id in active)
        try:
            got = core.depart(batch_id, now) if event == "depart" else getattr(core, event)(item, now)
        except ValueError:
            assert not legal
            continue
        assert legal
        if event == "depart":
            del active[batch_id]
        else:
            active[batch_id] = item
        expected = plan(CONFIG, active.values(), CAPACITY, now, expected.pruned)
        assert got == expected


def test_a_core_remembers_what_it_pruned() -> None:
    """95 of 100 would fit, but 10 % must be to spare before a pruned request comes back."""
    core = ReferenceCore(PolicyConfig(drop_budget=0.3, readmission_margin=0.1), CAPACITY)
    core.arrive(batch(1, 60, load=50), 0)
    assert [p.request_id for p in core.arrive(batch(2, 100, load=60), 0).pruned] == [200]
    assert [p.request_id for p in core.update(batch(1, 60, load=35), 0).pruned] == [200]
    assert core.update(batch(1, 60, load=30), 0).pruned == ()


def test_the_clock_may_jump_back() -> None:
    core = ReferenceCore(CONFIG, CAPACITY)
    core.arrive(batch(1, 500), now_ns=10**9)
    assert core.arrive(batch(2, 600), now_ns=0).places[0].finish_ns == 10


def test_a_deadline_in_the_past_is_lost_not_wrong() -> None:
    assert ReferenceCore(CONFIG, CAPACITY).arrive(batch(1, -(10**9)), now_ns=0).infeasible == (100,)


def test_a_batch_of_100_000_requests() -> None:
    requests = tuple(Request(i, 10**9 + i, {i % 2: 10}) for i in range(100_000))
    core = ReferenceCore(CONFIG, CAPACITY)
    result = core.arrive(Batch(1, requests), now_ns=0)
    assert result.drop_budget == 30_000
    assert result.places[0].finish_ns == 500_000


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (batch(1, 100), "batch 1 is active already: update it, or let it depart first"),
        (Batch(2, ()), "batch 2 has no requests: give at least one"),
        (batch(2, 100, compute=-1), "batch 2: compute_ns is -1: use 0 or more"),
        (batch(2, 100, load=-5), "batch 2: loads of request 200: -5 on resource 0: use 0 or more"),
        (
            Batch(2, (Request(5, 1, {9: 1}),)),
            "batch 2: loads of request 5: resource 9 is unknown: name one that",
        ),
        (Batch(2, (Request(5, 1),), 0, {1: -1}), "batch 2: fixed_loads: -1 on resource 1: use 0 or more"),
        (Batch(2, (Request(5, 1), Request(5, 2))), "batch 2: request 5 is in batch 2 already: name it once"),
        (Batch(2, (Request(100, 1),)), "batch 2: request 100 is in batch 1 already: name it once"),
    ],
)
def test_a_bad_arrival_is_refused_and_changes_nothing(bad: Batch, message: str) -> None:
    core = ReferenceCore(CONFIG, CAPACITY)
    core.arrive(batch(1, 100), 0)
    with pytest.raises(ValueError) as error:
        core.arrive(bad, 0)
    assert str(error.value).startswith(message)
    good = batch(2, 100)
    assert core.arrive(good, 0) == plan(CONFIG, [batch(1, 100), good], CAPACITY, 0)


def test_a_bad_update_keeps_the_batch() -> None:
    core = ReferenceCore(CONFIG, CAPACITY)
    core.arrive(batch(1, 100), 0)
    with pytest.raises(ValueError, match="compute_ns is -1"):
        core.update(batch(1, 100, compute=-1), 0)
    assert core.arrive(batch(2, 100), 0) == plan(CONFIG, [batch(1, 100), batch(2, 100)], CAPACITY, 0)


def test_departure_before_arrival_is_refused() -> None:
    with pytest.raises(ValueError, match="batch 3 is not active: it never arrived or has departed"):
        ReferenceCore(CONFIG, CAPACITY).depart(3, 0)


def test_an_update_of_an_unknown_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch 3 is not active"):
        ReferenceCore(CONFIG, CAPACITY).update(batch(3, 1), 0)


def test_a_resource_needs_a_capacity() -> None:
    with pytest.raises(ValueError, match="resource 1 has capacity 0: use at least 1 per second"):
        ReferenceCore(CONFIG, {0: 1, 1: 0})
