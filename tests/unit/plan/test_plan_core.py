"""PlanCore gives, event by event, the plans of ReferenceCore, and its deltas add up to them. Loads are nanoseconds: the
reference gets resources that move one unit in each."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd._native import PlanCore
from mfsd.policy import Batch, Plan, PolicyConfig, Pruned, Request, Variant
from mfsd.policy.types import NO_DEADLINE
from tests.support.reference_core import ReferenceCore

PORTS = 5
Event = tuple[str, int, Batch, int]

configs = st.builds(
    PolicyConfig,
    variant=st.sampled_from(Variant),
    drop_budget=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    readmission_margin=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def cores(config: PolicyConfig, ports: int = PORTS) -> tuple[PlanCore, ReferenceCore]:
    return PlanCore(config, ports), ReferenceCore(config, dict.fromkeys(range(ports), 10**9))


class Receiver:
    """What a receiver of the deltas knows."""

    def __init__(self) -> None:
        self.verdicts: dict[int, Pruned | None] = {}
        """None: infeasible."""

    def take(self, core: PlanCore) -> None:
        delta = core.delta()
        for number in delta.restored:
            del self.verdicts[number]
        self.verdicts |= {entry.request_id: entry for entry in delta.pruned}
        self.verdicts |= dict.fromkeys(delta.infeasible)

    def check(self, plan: Plan) -> None:
        assert self.verdicts == dict.fromkeys(plan.infeasible) | {entry.request_id: entry for entry in plan.pruned}


def drive(config: PolicyConfig, ports: int, events: list[Event], delta_every: int = 1) -> list[Plan]:
    """Both cores take the events; refusals must agree as well. The plans of the accepted ones."""
    (core, reference), receiver, plans = cores(config, ports), Receiver(), []
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
        getattr(core, kind)(item, now)
        assert core.plan() == expected
        if step % delta_every == 0:
            receiver.take(core)
            receiver.check(expected)
    return plans


def history(rng: random.Random) -> list[Event]:
    """Few numbers, so that ties, double arrivals, moved requests and departures of unknown batches are common."""
    events: list[Event] = []
    now = 1000

    def loads(most: int) -> dict[int, int]:
        return {port: rng.randint(0, most) for port in rng.sample(range(PORTS), rng.randint(0, 3))}

    for _ in range(rng.randint(1, 30)):
        now += rng.choice([0, 0, 0, 1, 3, 20, 100, -50])
        kind = rng.choice(["arrive", "arrive", "arrive", "update", "depart"])
        batch_id = rng.randint(1, 8)
        requests = []
        for i in range(rng.randint(1, 4)):
            number = rng.choice([10 * batch_id + i] * 9 + [11])
            deadline = rng.choice([rng.randint(now - 20, now + 250)] * 3 + [now + 60, NO_DEADLINE])
            requests.append(Request(number, deadline, loads(60)))
        fixed = loads(40) if rng.random() < 0.5 else {}
        events.append((kind, batch_id, Batch(batch_id, tuple(requests), rng.choice([0, 0, 10, 50]), fixed), now))
    return events


@settings(max_examples=300, deadline=None)
@given(configs, st.integers(0, 2**64), st.integers(1, 5))
def test_plans_equal_the_reference(config: PolicyConfig, seed: int, delta_every: int) -> None:
    drive(config, PORTS, history(random.Random(seed)), delta_every)


@settings(max_examples=150, deadline=None)
@given(configs, st.integers(0, 2**64), st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_held_events_are_evaluated_as_one(config: PolicyConfig, seed: int, groups: list[int]) -> None:
    """Groups of held events between single ones; the clock does not go back while they are held."""
    (core, reference), receiver, now = cores(config), Receiver(), 0
    events = history(random.Random(seed))
    while events:
        group, events = events[: groups[0]], events[groups[0] :]
        groups = [*groups[1:], 1 + groups[0] % 4]
        core.hold()
        reference.hold()
        for kind, batch_id, batch, at in group:
            now = max(now, at)
            item = batch_id if kind == "depart" else batch
            try:
                getattr(reference, kind)(item, now)
            except ValueError as refusal:
                with pytest.raises(ValueError, match=re.escape(str(refusal))):
                    getattr(core, kind)(item, now)
            else:
                getattr(core, kind)(item, now)
        core.release(now)
        assert core.plan() == reference.release(now)
        receiver.take(core)
        receiver.check(core.plan())


def bulk(
    seed: int,
    *,
    ports: int,
    steps: int,
    active: int,
    room: float,
    dense: bool = False,
    fixed: bool = False,
) -> list[Event]:
    """A cluster in steady state. room: time until deadlines over the time that the load ahead takes."""
    rng = random.Random(seed)
    names = range(ports)
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
    return events


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("room", [3.0, 1.2, 0.6, 0.2])
@pytest.mark.parametrize(
    "shape",
    [
        {"ports": 12},
        {"ports": 12, "fixed": True},
        {"ports": 40, "dense": True},
        {"ports": 40, "dense": True, "fixed": True},
        {"ports": 12, "fixed": True, "steps": 120, "active": 75},
    ],
    ids=["few-ports", "few-ports-fixed", "dense", "dense-fixed", "several-chunks"],
)
def test_long_runs_equal_the_reference(variant: Variant, room: float, shape: dict[str, Any]) -> None:
    events = bulk(7, room=room, **({"steps": 80, "active": 25} | shape))
    config = PolicyConfig(variant=variant, drop_budget=0.15)
    plans = drive(config, shape["ports"], events, delta_every=3)
    assert plans
    if room <= 0.6:
        assert any(plan.pruned for plan in plans)


def test_equal_loads_name_the_first_port() -> None:
    """The tie goes to the smaller resource, also where it came later."""
    one = Batch(1, (Request(1, 1000, {2: 2}),))
    two = Batch(2, (Request(2, 2000, {1: 2}),))
    assert drive(PolicyConfig(), 3, [("arrive", 1, one, 0), ("arrive", 2, two, 0)])[-1].places[-1].bottleneck == 1


def test_amounts_beyond_32_bits_and_sums_beyond_the_mantissa() -> None:
    rng = random.Random(3)
    events: list[Event] = []
    for number in range(1, 40):
        loads = {u: rng.randrange(2 ** rng.choice([3, 20, 50])) for u in range(24)}
        requests = tuple(Request(10 * number + i, rng.randrange(2**52), loads) for i in range(2))
        events.append(("arrive", number, Batch(number, requests, 0, loads), number))
    drive(PolicyConfig(drop_budget=0.3), 24, events)


REFUSED = [
    (Batch(2**64, (Request(2, 1),)), 0, "batch 18446744073709551616: use a number of 0 to"),
    (Batch(-1, (Request(2, 1),)), 0, "batch -1: use a number of 0 to"),
    (Batch(2, (Request(-1, 1),)), 0, "batch 2: request -1: use a number of 0 to"),
    (Batch(2, (Request(2, 2**62),)), 0, "batch 2: deadline_ns of request 2 is 4611686018427387904: use -2305843009"),
    (Batch(2, (Request(2, 1),), 2**62), 0, "batch 2: compute_ns is 4611686018427387904: use"),
    (
        Batch(2, (Request(2, 1, {0: 2**62}),)),
        0,
        "batch 2: loads of request 2: 4611686018427387904 on resource 0: use at",
    ),
    (
        Batch(2, (Request(2, 1, {0: 2**61}),)),
        0,
        "batch 2: more than 2305843009213693952 ns would be promised on one resource: use smaller loads",
    ),
    (Batch(2, (Request(2, 1, {5: 1}),)), 0, "batch 2: loads of request 2: resource 5 is unknown: use a number below 5"),
    (Batch(2, (Request(2, 1),), 0, {-1: 1}), 0, "batch 2: fixed_loads: resource -1 is unknown: use a number below 5"),
    (Batch(2, (Request(2, 1),)), 2**62, "now_ns is 4611686018427387904: use -2305843009213693952 to"),
]


@pytest.mark.parametrize(("bad", "now", "message"), REFUSED)
def test_numbers_beyond_the_native_range_are_refused_and_change_nothing(bad: Batch, now: int, message: str) -> None:
    core, reference = cores(PolicyConfig())
    first, good = Batch(1, (Request(1, 50, {0: 10}),)), Batch(2, (Request(2, 60, {2: 10}),))
    core.arrive(first, 0)
    assert core.plan() == reference.arrive(first, 0)
    with pytest.raises(ValueError) as error:
        core.arrive(bad, now)
    assert str(error.value).startswith(message)
    core.arrive(good, 1)
    assert core.plan() == reference.arrive(good, 1)


def test_what_is_not_a_number_is_refused() -> None:
    core = PlanCore(PolicyConfig(), PORTS)
    bad: object
    for bad in (float("nan"), 1.5, "9"):
        with pytest.raises(ValueError, match=r"batch 1: deadline_ns of request 1 is .*: use a whole number"):
            core.arrive(Batch(1, (Request(1, bad),)), 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"request 1: the load on resource 0 is .*: use a whole number"):
            core.arrive(Batch(1, (Request(1, 9, {0: bad}),)), 0)  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=r"batch 1: compute_ns is .*: use a whole number"):
            core.arrive(Batch(1, (Request(1, 9),), bad), 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"now_ns is .*: use a whole number"):
            core.arrive(Batch(1, (Request(1, 9),)), bad)  # type: ignore[arg-type]
    assert core.counts().batches == 0


def test_a_batch_of_100_000_requests() -> None:
    requests = tuple(Request(i, 10**9 + i, {0: 10, 3: 10}) for i in range(100_000))
    core = PlanCore(PolicyConfig(drop_budget=0.3), PORTS)
    core.arrive(Batch(1, requests), 0)
    assert core.plan().places[0].finish_ns == 1_000_000
    core.arrive(Batch(2, (Request(200_000, 900_000, {0: 1}),)), 0)
    assert [place.batch_id for place in core.plan().places] == [2, 1] and core.counts().drop_budget == 30_001
    core.update(Batch(1, tuple(Request(i, 900_001, {0: 10, 3: 10}) for i in range(100_000))), 0)
    assert core.counts().pruned == 10_000 and core.plan().places[-1].finish_ns == 900_001
    core.depart(1, 0)
    assert [place.batch_id for place in core.plan().places] == [2]


def test_a_delta_is_as_large_as_the_change() -> None:
    """10^4 batches, of which one prunes another's request, is changed in its place, and departs."""
    core = PlanCore(PolicyConfig(), PORTS)
    for number in range(10_000):
        core.arrive(Batch(number, (Request(number, 1000 * (number + 1), {1: 10}),)), 0)
    assert core.delta() == ([], [], [])
    core.arrive(Batch(20_000, (Request(20_000, 5_000_500, {0: 1, 1: 5_000_000}),)), 0)
    [pruned], *rest = core.delta()
    assert (pruned.request_id, pruned.batch_id, rest) == (20_000, 20_000, [[], []])
    core.update(Batch(20_000, (Request(20_000, 5_000_400, {0: 1, 1: 5_000_000}),)), 0)
    assert core.delta().restored == [] and core.counts().pruned == 1
    core.depart(20_000, 0)
    assert core.delta() == ([], [], [20_000])
