"""Algorithm 1: order, feasibility, drop budget, readmission."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy import Batch, PolicyConfig, Pruned, Request, Variant, plan
from mfsd.policy.estimate import transfer_ns
from mfsd.policy.load import PromisedLoad
from mfsd.policy.pruning import drop_budget, sort_by_red

CAPACITY = {0: 10**9, 1: 10**9, 2: 2 * 10**9, 3: 10**9}  # 1 byte a nanosecond, port 2 twice as fast
NOW = 1000
MFS = PolicyConfig(drop_budget=0.3)
PAPER = PolicyConfig(drop_budget=0.3, variant=Variant.PAPER)

loads = st.dictionaries(st.sampled_from(sorted(CAPACITY)), st.integers(0, 60), max_size=3)
configs = st.builds(
    PolicyConfig,
    variant=st.sampled_from(Variant),
    drop_budget=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    readmission_margin=st.sampled_from([0.0, 0.05, 0.5]),
)


@st.composite
def clusters(draw: st.DrawFn, fixed: bool = True, hopeless: bool = True, horizon: int = 400) -> list[Batch]:
    """1..6 batches of 1..4 requests; deadlines from before now up to `horizon` after."""
    batches, number = [], 0
    for batch_id in range(draw(st.integers(1, 6))):
        compute = draw(st.integers(0, 100))
        earliest = -50 if hopeless else compute
        requests = []
        for _ in range(draw(st.integers(1, 4))):
            number += 1
            deadline = NOW + draw(st.integers(earliest, earliest + horizon))
            requests.append(Request(number, deadline, draw(loads)))
        batches.append(Batch(batch_id, tuple(requests), compute, draw(loads) if fixed else {}))
    return batches


def finishes(config: PolicyConfig, batches: list[Batch], gone: set[int]) -> dict[int, int]:
    """Finish of every batch, spelled out: all bytes of it and of those before it, on the slowest port, after its
    compute (paper) or beside it."""
    result, ahead = {}, dict.fromkeys(CAPACITY, 0)
    for _, batch in sort_by_red(batches):
        own = dict.fromkeys(CAPACITY, 0)
        for part in [batch.fixed_loads, *(r.loads for r in batch.requests if r.request_id not in gone)]:
            for port, amount in part.items():
                own[port] += amount
        slowest_ns = max(transfer_ns(ahead[u] + own[u], CAPACITY[u]) for u in CAPACITY)
        parts_ns = (batch.compute_ns, slowest_ns)
        result[batch.batch_id] = NOW + (sum(parts_ns) if config.variant is Variant.PAPER else max(parts_ns))
        ahead = {u: ahead[u] + own[u] for u in CAPACITY}
    return result


def gone(config: PolicyConfig, pruned: tuple[Pruned, ...], infeasible: tuple[int, ...]) -> set[int]:
    lost = set(infeasible) if config.variant is Variant.MFS else set()
    return {p.request_id for p in pruned} | lost


@given(configs, clusters())
def test_the_estimate_is_the_worst_port_over_everything_ahead(config: PolicyConfig, batches: list[Batch]) -> None:
    result = plan(config, batches, CAPACITY, NOW)
    expected = finishes(config, batches, gone(config, result.pruned, result.infeasible))
    assert {place.batch_id: place.finish_ns for place in result.places} == expected


@given(configs, clusters())
def test_order_is_by_red(config: PolicyConfig, batches: list[Batch]) -> None:
    result = plan(config, batches, CAPACITY, NOW)
    reds = [(place.red_ns, place.batch_id) for place in result.places]
    assert reds == sorted(reds)
    assert sorted(result.rank()) == sorted(b.batch_id for b in batches)


@given(configs, clusters(), st.randoms(use_true_random=False))
def test_a_permutation_of_the_input_gives_the_same_plan(
    config: PolicyConfig, batches: list[Batch], shuffler: random.Random
) -> None:
    def shuffled(loads: dict[int, int]) -> dict[int, int]:
        return dict(shuffler.sample(sorted(loads.items()), len(loads)))

    first = plan(config, batches, CAPACITY, NOW)
    other = [
        msgspec.structs.replace(
            batch,
            requests=tuple(
                msgspec.structs.replace(r, loads=shuffled(r.loads))
                for r in shuffler.sample(batch.requests, len(batch.requests))
            ),
            fixed_loads=shuffled(batch.fixed_loads),
        )
        for batch in shuffler.sample(batches, len(batches))
    ]
    assert plan(config, other, shuffled(CAPACITY), NOW) == first
    again = plan(config, batches, CAPACITY, NOW, first.pruned)
    before = shuffler.sample(first.pruned, len(first.pruned))
    assert plan(config, other, shuffled(CAPACITY), NOW, before) == again


@given(configs, clusters(), clusters())
def test_pruning_never_exceeds_the_budget(config: PolicyConfig, batches: list[Batch], earlier: list[Batch]) -> None:
    """Whatever was pruned before, by a plan of other batches with the same request numbers."""
    before = plan(msgspec.structs.replace(config, drop_budget=1.0), earlier, CAPACITY, NOW).pruned
    result = plan(config, batches, CAPACITY, NOW, before)
    active = [r.request_id for b in batches for r in b.requests]
    assert len(result.pruned) <= result.drop_budget == drop_budget(config, len(active))
    assert {p.request_id for p in result.pruned} <= set(active)


@given(configs, clusters(horizon=2000))
def test_a_feasible_set_is_never_pruned(config: PolicyConfig, batches: list[Batch]) -> None:
    result = plan(config, batches, CAPACITY, NOW)
    unpruned = finishes(config, batches, gone(config, (), result.infeasible))
    if all(unpruned[deadline.batch_id] <= deadline.loose_ns for deadline in result.places):
        assert result.pruned == ()


@given(configs, clusters(fixed=False, hopeless=False), clusters(fixed=False, hopeless=False))
def test_pruning_restores_feasibility_or_spends_the_budget(
    config: PolicyConfig, batches: list[Batch], earlier: list[Batch]
) -> None:
    """Where pruning can help at all: compute alone fits, and all load belongs to requests."""
    before = plan(config, earlier, CAPACITY, NOW).pruned
    for result in (plan(config, batches, CAPACITY, NOW), plan(config, batches, CAPACITY, NOW, before)):
        assert (
            all(place.finish_ns <= place.loose_ns for place in result.places)
            or len(result.pruned) == result.drop_budget
        )


@given(configs, clusters())
def test_what_is_left_infeasible_could_not_be_helped(config: PolicyConfig, batches: list[Batch]) -> None:
    """With load that pruning cannot remove and lost batches too: budget spent, or no candidate at the
    bottleneck, or (variant mfs) late even with every request of all pruned."""
    result = plan(config, batches, CAPACITY, NOW)
    if len(result.pruned) == result.drop_budget:
        return
    away = gone(config, result.pruned, result.infeasible)
    everything = finishes(config, batches, {r.request_id for b in batches for r in b.requests})
    by_id = {b.batch_id: b for b in batches}
    pool: list[Request] = []
    for place in result.places:
        pool += [r for r in by_id[place.batch_id].requests if r.request_id not in away]
        if place.finish_ns > place.loose_ns:
            no_candidate = place.bottleneck is None or all(r.loads.get(place.bottleneck, 0) == 0 for r in pool)
            hopeless = everything[place.batch_id] > place.loose_ns
            assert no_candidate or (hopeless and config.variant is Variant.MFS)


@given(configs, clusters())
def test_reasons_are_true(config: PolicyConfig, batches: list[Batch]) -> None:
    result = plan(config, batches, CAPACITY, NOW)
    owner = {r.request_id: (b.batch_id, r) for b in batches for r in b.requests}
    rank = result.rank()
    for p in result.pruned:
        batch_id, request = owner[p.request_id]
        assert p.batch_id == batch_id
        assert request.loads[p.resource] == p.amount > 0
        assert rank[p.batch_id] <= rank[p.for_batch]


@given(configs, clusters())
def test_repeated_runs_settle(config: PolicyConfig, batches: list[Batch]) -> None:
    """Nothing flaps: with nothing new, plans become constant at once or after giving back what greed
    overdid."""
    plans = [plan(config, batches, CAPACITY, NOW)]
    for _ in range(12):
        plans.append(plan(config, batches, CAPACITY, NOW, plans[-1].pruned))
    assert plans[-1] == plans[-2]


@given(configs, clusters(), st.data())
def test_with_a_full_budget_a_lost_batch_takes_nothing_from_others(
    config: PolicyConfig, batches: list[Batch], data: st.DataObject
) -> None:
    """Variant mfs: whatever load a request that cannot make it brings, all others keep place and estimate."""
    config = msgspec.structs.replace(config, variant=Variant.MFS, drop_budget=1.0)
    lost = Batch(99, (Request(999, NOW + 10, data.draw(loads)),), compute_ns=11)
    alone, beside = plan(config, batches, CAPACITY, NOW), plan(config, [*batches, lost], CAPACITY, NOW)
    assert beside.pruned == alone.pruned
    assert [p for p in beside.places if p.batch_id != 99] == list(alone.places)
    assert set(beside.infeasible) == {*alone.infeasible, 999}


@given(
    st.lists(st.tuples(st.booleans(), loads), max_size=12),
    loads,
)
@settings(max_examples=200)
def test_the_bottleneck_is_the_slowest_of_all_ports(
    steps: list[tuple[bool, dict[int, int]]], extra: dict[int, int]
) -> None:
    promised = PromisedLoad(CAPACITY)
    added: list[dict[int, int]] = []
    for remove, amounts in steps:
        if remove and added:
            promised.remove(added.pop())
        else:
            promised.add(amounts)
            added.append(amounts)
        total = {u: sum(a.get(u, 0) for a in [*added, extra]) for u in CAPACITY}
        time, port = max((-(-total[u] * 10**9 // CAPACITY[u]), -u) for u in CAPACITY)
        got = promised.bottleneck_with(extra)
        assert got.time_ns == time
        if time:
            assert got.resource == -port
            assert promised.amount(-port) == total[-port] - extra.get(-port, 0)


def one(batch_id: int, deadline: int, load: dict[int, int], compute: int = 0) -> Batch:
    """A batch of one request of the same number."""
    return Batch(batch_id, (Request(batch_id, NOW + deadline, load),), compute)


@pytest.mark.parametrize("config", [MFS, PAPER])
def test_the_heaviest_on_the_bottleneck_goes(config: PolicyConfig) -> None:
    """Port 0 is promised 110 bytes when batch 3 needs it within 100; the heaviest there is in an earlier
    batch, though another request is heavier elsewhere."""
    batches = [one(1, 90, {0: 50}), one(2, 95, {1: 80}), one(3, 100, {0: 40}), one(4, 120, {0: 20})]
    result = plan(config, batches, CAPACITY, NOW)
    assert result.pruned == ()
    batches[2] = one(3, 100, {0: 60})
    result = plan(config, batches, CAPACITY, NOW)
    assert result.pruned == (Pruned(3, 3, 3, 0, 60),)
    batches[0] = one(1, 90, {0: 70})
    result = plan(config, batches, CAPACITY, NOW)
    assert result.pruned == (Pruned(1, 1, 3, 0, 70),)
    assert [place.finish_ns - NOW for place in result.places] == [0, 80, 80, 80]


def test_equal_loads_take_the_least_urgent() -> None:
    result = plan(MFS, [one(1, 90, {0: 60}), one(2, 100, {0: 60})], CAPACITY, NOW)
    assert result.pruned == (Pruned(2, 2, 2, 0, 60),)


@pytest.mark.parametrize(
    ("share", "active", "budget"),
    [(0.05, 1, 1), (0.05, 20, 1), (0.05, 21, 2), (0.05, 60, 3), (0.0, 100, 0), (1.0, 7, 7)],
)
def test_drop_budget_is_a_share_rounded_up(share: float, active: int, budget: int) -> None:
    assert drop_budget(PolicyConfig(drop_budget=share), active) == budget


def test_a_hopeless_batch_spends_the_budget_only_in_the_paper_s_variant() -> None:
    """The batch's compute alone misses D^Lo (its one request could not be saved by pruning any other)."""
    batches = [one(1, 40, {0: 30}), one(2, 50, {0: 10}, compute=60), one(3, 300, {0: 10})]
    assert plan(MFS, batches, CAPACITY, NOW).pruned == ()
    assert plan(MFS, batches, CAPACITY, NOW).infeasible == (2,)
    assert [p.request_id for p in plan(PAPER, batches, CAPACITY, NOW).pruned] == [1]
    assert plan(PAPER, batches, CAPACITY, NOW).infeasible == ()  # bytes alone fit


def test_readmission_waits_for_a_margin() -> None:
    config = PolicyConfig(drop_budget=0.3, readmission_margin=0.1)
    tight = [one(1, 60, {0: 50}), one(2, 100, {0: 60}), one(3, 500, {})]
    pruned = plan(config, tight, CAPACITY, NOW).pruned
    assert [p.request_id for p in pruned] == [2]
    barely = [one(1, 60, {0: 35}), *tight[1:]]  # 95 of 100: feasible, 10 % not to spare
    assert plan(config, barely, CAPACITY, NOW, pruned).pruned == pruned
    assert plan(config, barely, CAPACITY, NOW).pruned == ()
    clearly = [one(1, 60, {0: 30}), *tight[1:]]  # 90 of 100
    assert plan(config, clearly, CAPACITY, NOW, pruned).pruned == ()


def test_readmission_cares_for_later_batches() -> None:
    config = PolicyConfig(drop_budget=0.3, readmission_margin=0.0)
    pruned = (Pruned(1, 1, 3, 0, 60),)
    batches = [one(1, 90, {0: 60}), one(2, 95, {1: 80}), one(3, 100, {0: 50})]
    assert plan(config, batches, CAPACITY, NOW, pruned).pruned == pruned
    lighter = [*batches[:2], one(3, 100, {0: 40})]
    assert plan(config, lighter, CAPACITY, NOW, pruned).pruned == ()


def test_a_batch_that_is_late_anyway_does_not_keep_others_out() -> None:
    """Batch 2 is late on port 1 whatever happens on port 0."""
    batches = [one(1, 90, {0: 60}), Batch(2, (Request(2, NOW + 100),), 0, {1: 150})]
    assert plan(PolicyConfig(), batches, CAPACITY, NOW, (Pruned(1, 1, 2, 0, 60),)).pruned == ()


def test_a_batch_that_pruning_cannot_save_prunes_no_other() -> None:
    """Batch 2 has 110 on port 0 that stays; the requests of batch 1 there could not make up for it."""
    batches = [one(1, 90, {0: 60}), Batch(2, (Request(2, NOW + 100),), 0, {0: 110})]
    assert plan(MFS, batches, CAPACITY, NOW).pruned == ()
    assert [p.request_id for p in plan(PAPER, batches, CAPACITY, NOW).pruned] == [1]


def test_a_smaller_budget_gives_the_most_urgent_back() -> None:
    config = PolicyConfig(drop_budget=0.5)
    batches = [one(i, 10 * i, {0: 10 * i}) for i in (1, 2, 3, 4)]
    pruned = tuple(Pruned(i, i, 4, 0, 10 * i) for i in (2, 3, 4))
    kept = plan(msgspec.structs.replace(config, readmission_margin=1.0), batches, CAPACITY, NOW, pruned).pruned
    assert [p.request_id for p in kept] == [3, 4]


def test_a_pruned_request_that_was_queued_again_is_reported_in_its_new_batch() -> None:
    config = PolicyConfig(drop_budget=1.0)
    before = (Pruned(1, 7, 7, 0, 200),)
    assert plan(config, [one(1, 250, {0: 200}), one(2, 100, {1: 1})], CAPACITY, NOW, before).pruned == ()
    kept = plan(config, [one(1, 205, {0: 200})], CAPACITY, NOW, before).pruned
    assert kept == (Pruned(1, 1, 7, 0, 200),)


def test_no_batches() -> None:
    result = plan(MFS, [], CAPACITY, NOW)
    assert (result.places, result.pruned, result.infeasible, result.drop_budget) == ((), (), (), 0)
