"""PlanCore gives, event by event, the plans of ReferenceCore, and its deltas add up to them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd._native import PlanCore
from mfsd.policy import Batch, Plan, PolicyConfig, Pruned, ReferenceCore, Request, Variant
from mfsd.policy.words import NO_DEADLINE

CAPACITY = {-3: 10**9, 0: 10**9, 7: 2 * 10**9, 9: 3, 2**70: 10**9}  # unequal, and names that are no indices
PORTS = sorted(CAPACITY)
Event = tuple[str, int, Batch, int]

configs = st.builds(
    PolicyConfig,
    variant=st.sampled_from(Variant),
    drop_budget=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    readmission_margin=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


class Told:
    """What a receiver of the deltas knows."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self.pruned: dict[int, Pruned] = {}

    def take(self, core: PlanCore) -> None:
        delta = core.delta()
        for gone in delta.departed:
            del self.ranks[gone]
        for number in delta.restored:
            del self.pruned[number]
        self.ranks |= dict(delta.moved)
        self.pruned |= {entry.request_id: entry for entry in delta.pruned}

    def check(self, plan: Plan) -> None:
        assert sorted(self.ranks, key=self.ranks.__getitem__) == [place.batch_id for place in plan.places]
        assert len(set(self.ranks.values())) == len(self.ranks)
        assert all(0 <= rank < 2**32 - 1 for rank in self.ranks.values())
        assert self.pruned == {entry.request_id: entry for entry in plan.pruned}


def drive(config: PolicyConfig, capacity: dict[int, int], events: list[Event], delta_every: int = 1) -> list[Plan]:
    """Both cores take the events; refusals must agree as well. The plans of the accepted ones."""
    core, reference, told, plans = PlanCore(config, capacity), ReferenceCore(config, capacity), Told(), []
    for step, (kind, batch_id, batch, now) in enumerate(events):
        item = batch_id if kind == "depart" else batch
        try:
            expected = getattr(reference, kind)(item, now)
        except ValueError as refusal:
            with pytest.raises(ValueError) as error:
                getattr(core, kind)(item, now)
            assert str(error.value) == str(refusal)
            continue
        plans.append(expected)
        assert getattr(core, kind)(item, now) == expected
        assert core.plan() == expected
        if step % delta_every == 0:
            told.take(core)
            told.check(expected)
    return plans


def loads(draw: st.DrawFn, ports: list[int], most: int) -> dict[int, int]:
    return draw(st.dictionaries(st.sampled_from(ports), st.integers(0, most), max_size=3))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Few numbers, so that ties, double arrivals, moved requests and departures of nobody are common."""
    events: list[Event] = []
    now = 1000
    for _ in range(draw(st.integers(1, 30))):
        now += draw(st.sampled_from([0, 0, 0, 1, 3, 20, 100, -50]))
        kind = draw(st.sampled_from(["arrive", "arrive", "arrive", "update", "depart"]))
        batch_id = draw(st.integers(1, 8))
        requests = []
        for i in range(draw(st.integers(1, 4))):
            number = draw(st.sampled_from([10 * batch_id + i] * 9 + [11]))
            deadline = draw(st.one_of(st.integers(now - 20, now + 250), st.sampled_from([now + 60, NO_DEADLINE])))
            requests.append(Request(number, deadline, loads(draw, PORTS, 60)))
        compute = draw(st.sampled_from([0, 0, 10, 50]))
        fixed = loads(draw, PORTS, 40) if draw(st.booleans()) else {}
        events.append((kind, batch_id, Batch(batch_id, tuple(requests), compute, fixed), now))
    return events


@settings(max_examples=400, deadline=None)
@given(configs, histories(), st.integers(1, 5))
def test_plans_equal_the_reference(config: PolicyConfig, events: list[Event], delta_every: int) -> None:
    drive(config, CAPACITY, events, delta_every)


def bulk(
    seed: int,
    *,
    ports: int,
    steps: int,
    active: int,
    room: float,
    dense: bool = False,
    fixed: bool = False,
    rates: int = 1,
) -> tuple[dict[int, int], list[Event]]:
    """A cluster in steady state. room: time until deadlines over the time that the load ahead takes."""
    rng = random.Random(seed)
    capacity = {100 + u: 10**9 * (1 + rng.randrange(rates)) for u in range(ports)}
    names = sorted(capacity)
    horizon = int(room * active * 2.5 * 50 * (2 if not dense else ports / 3) / ports) + 1
    alive: dict[int, Batch] = {}
    events: list[Event] = []
    now = number = 0

    def amounts() -> dict[int, int]:
        if dense and rng.random() < 0.8:
            start = rng.randrange(ports // 3 + 1)
            return {u: rng.randrange(100) for u in names[start : start + ports // 2]}
        return {u: rng.randrange(100) for u in rng.sample(names, min(ports, 2))}

    def batch(batch_id: int) -> Batch:
        nonlocal number
        requests = []
        for _ in range(rng.randrange(1, 5)):
            number += 1
            requests.append(Request(number, now + rng.randrange(horizon // 8, horizon + 1), amounts()))
        own = amounts() if fixed and rng.random() < 0.5 else {}
        return Batch(batch_id, tuple(requests), rng.randrange(horizon // 10 + 1), own)

    for step in range(steps):
        now += rng.randrange(2 * horizon // active + 2) - (horizon // 4 if rng.random() < 0.01 else 0)
        if len(alive) >= active and rng.random() < 0.55:
            gone = min(alive) if rng.random() < 0.7 else rng.choice(list(alive))
            del alive[gone]
            events.append(("depart", gone, Batch(gone, ()), now))
        elif alive and rng.random() < 0.2:
            some = rng.choice(list(alive))
            kept = rng.sample(alive[some].requests, rng.randrange(1, len(alive[some].requests) + 1))
            smaller = tuple(Request(r.request_id, r.deadline_ns, {u: a // 2 for u, a in r.loads.items()}) for r in kept)
            alive[some] = Batch(some, smaller, alive[some].compute_ns // 2, alive[some].fixed_loads)
            events.append(("update", some, alive[some], now))
        else:
            alive[step + 1] = batch(step + 1)
            events.append(("arrive", step + 1, alive[step + 1], now))
    return capacity, events


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("room", [3.0, 1.2, 0.6, 0.2])
@pytest.mark.parametrize(
    "shape",
    [
        {"ports": 12},
        {"ports": 12, "rates": 3, "fixed": True},
        {"ports": 40, "dense": True},
        {"ports": 40, "dense": True, "rates": 2, "fixed": True},
    ],
    ids=["few-ports", "unequal-fixed", "dense", "dense-unequal-fixed"],
)
def test_long_runs_equal_the_reference(variant: Variant, room: float, shape: dict[str, int]) -> None:
    capacity, events = bulk(7, steps=250, active=40, room=room, **shape)
    config = PolicyConfig(variant=variant, drop_budget=0.15)
    plans = drive(config, capacity, events, delta_every=3)
    assert plans
    if room <= 0.6:
        assert any(plan.pruned for plan in plans)
