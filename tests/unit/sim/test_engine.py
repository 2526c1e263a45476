"""The engine against closed forms and the rules a run must obey."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

import mfsd.policy as rules
from bench.sim import policies
from bench.sim.batching import batches_before
from bench.sim.cluster import Cluster, Config, Request
from bench.sim.engine import Simulation
from bench.sim.point import Point, prepare, run
from bench.sim.policies import Policy, pack
from bench.sim.policies.mfs import Mfs
from bench.sim.profile import A100, MODELS
from bench.sim.states import Batch, Flow, State

SMALL = Config(model="dbrx", gpus=128, hot_fraction=0.5, kv_scale=8.0, fetch="batch", cache="first-owner")


def point(**changes: object) -> Point:
    return msgspec.structs.replace(Point(config=SMALL, rate=0.15, requests=40, warmup=15), **changes)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [("mixtral-8x22b", 4.61), ("dbrx", 10.95), ("grok-2", 10.13), ("qwen3-coder", 13.06)],
)
def test_calibrated_layer_times(name: str, milliseconds: float) -> None:
    """2,048 tokens in every attention group: the values the roofline was fitted to give."""
    model = MODELS[name]
    seconds = model.attention_s(A100, [(2048, 0)]) + model.expert_s(A100, 2048 * model.groups)
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("new,context,remote", [(700, 0, 0), (900, 3000, 3000), (20_000, 5000, 5000)])
def test_a_request_alone_takes_its_isolated_time(name: str, new: int, context: int, remote: int) -> None:
    """The closed form that deadlines rest on is what the event loop does where each layer waits for its own reuse,
    chunks included; under every network."""
    model = MODELS[name]
    cluster = Cluster(Config(model=name, gpus=4 * model.instance_gpus, fetch="batch"))
    owner = cluster.group_nics(1, 0)
    request = Request(
        number=0, arrival_s=1.0, new_tokens=new, context_tokens=context, unit=0, group=-1, decode=0,
        owners=tuple((nic, 1 / len(owner)) for nic in owner) if remote else (), remote_tokens=remote,
    )  # fmt: skip
    request.isolated_s = cluster.isolated_s(request)
    request.deadline_s = 1.0 + 3 * request.isolated_s
    for policy in ("nocont", "static", "mfs"):
        simulation = Simulation(cluster, [msgspec.structs.replace(request)], policies.find(policy))
        simulation.run()
        took = simulation.states[0].finish_s - 1.0
        if policy == "nocont":
            assert took == pytest.approx(request.isolated_s, rel=1e-6)
        else:  # its own stages may still meet on its own NICs
            assert request.isolated_s * (1 - 1e-6) <= took <= 1.3 * request.isolated_s


def test_what_stays_in_a_server_uses_no_link() -> None:
    """Also where the shares of its groups add up to all but 1e-16."""
    cluster, rng = Cluster(Config(model="dbrx", gpus=128)), random.Random(1)
    groups = cluster.model.groups
    for _ in range(200):
        few = [rng.randrange(1, 3000) for _ in range(3)]
        for path in cluster.collective_paths(0, [*few, *[0] * (groups - len(few))], 1):
            assert min(path.shares.values()) > 1e-6


EVERY_POLICY = [(name, 0) for name in policies.names()]
WITH_CLASSES = [(name, 4) for name in ("static", "karuna", "paper", "mfs", "mfs-sent", "mfs-admitted")]


@pytest.mark.parametrize(("policy", "classes"), EVERY_POLICY + WITH_CLASSES)
def test_every_policy_finishes_every_request_and_moves_every_byte(policy: str, classes: int) -> None:
    cluster, requests = prepare(point(config=msgspec.structs.replace(SMALL, fabric_classes=classes)))
    simulation = Simulation(cluster, requests, policies.find(policy))
    simulation.run()
    for state in simulation.states:
        assert state.finish_s >= state.request.arrival_s + state.request.isolated_s * (1 - 1e-6)
        assert state.p2d_posted == pytest.approx(state.p2d_total)
        assert state.fetched == state.cluster.model.layers and state.computed
    assert not simulation.active and not simulation.shipping and all(b is None for b in simulation.running)


EARLY = ("queued", "loaded")


@pytest.mark.parametrize("fetch", EARLY)
@pytest.mark.parametrize(("policy", "classes"), EVERY_POLICY + WITH_CLASSES)
def test_reuse_that_comes_before_the_batch_comes_whole(policy: str, classes: int, fetch: str) -> None:
    """Every request finishes with every byte, and `loaded` lets none into a batch before its reuse is there."""
    config = msgspec.structs.replace(SMALL, fabric_classes=classes, fetch=fetch, batch_tokens=1024)
    simulation = Simulation(*prepare(point(config=config, rate=0.2)), policies.find(policy))
    moved: dict[State, float] = {}
    began_with: list[int] = []
    send, began = simulation.network.send, simulation.policy.batch_began

    def count(flow: Flow, size: float) -> None:
        if flow.stage == 1 and flow.state is not None:
            moved[flow.state] = moved.get(flow.state, 0.0) + size
        send(flow, size)

    def note(batch: Batch) -> None:
        began_with.extend(batch.layers - chunk.state.fetched for chunk in batch.chunks)
        began(batch)

    simulation.network.send = count  # type: ignore[method-assign]
    simulation.policy.batch_began = note  # type: ignore[method-assign]
    simulation.run()
    for state in simulation.states:
        assert state.finish_s >= state.request.arrival_s + state.request.isolated_s * (1 - 1e-6)
        assert state.p2d_posted == pytest.approx(state.p2d_total) and state.computed
        assert state.fetched == state.cluster.model.layers and state.reuse is None
        whole = state.request.remote_tokens * state.cluster.kv_bytes * state.cluster.model.layers
        assert moved.get(state, 0.0) == pytest.approx(whole)
    assert not simulation.active and not simulation.shipping and not any(simulation.queues)
    assert any(began_with) == (fetch == "queued")


@pytest.mark.parametrize("fetch", EARLY)
def test_fetching_early_is_paired_deterministic_and_below_no_contention(fetch: str) -> None:
    config = msgspec.structs.replace(SMALL, fetch=fetch)
    names = ("nocont", "alone", "fs", "static", "mfs", "paper")
    results = {name: run(point(policy=name, rate=0.2, config=config))["ttft_s"] for name in names}
    assert all(result["mean"] >= results["nocont"]["mean"] * (1 - 1e-6) for result in results.values())
    assert run(point(policy="mfs", rate=0.2, config=config))["ttft_s"] == results["mfs"]
    assert results["mfs"] != run(point(policy="mfs", rate=0.2))["ttft_s"]


@pytest.mark.parametrize("policy", ["nocont", "static", "mfs", "fs"])
def test_fetching_while_queued_costs_a_request_alone_nothing(policy: str) -> None:
    """Idle units begin at once; only `loaded` waits, for all of the reuse instead of its first layer."""
    took = {}
    for fetch in ("batch", *EARLY):
        config = msgspec.structs.replace(SMALL, fetch=fetch)
        simulation = Simulation(*prepare(point(config=config, rate=0.001)), policies.find(policy))
        simulation.run()
        took[fetch] = [state.finish_s - state.request.arrival_s for state in simulation.states]
    assert took["queued"] == pytest.approx(took["batch"])
    assert all(a >= b * (1 - 1e-6) for a, b in zip(took["loaded"], took["batch"], strict=True))


def test_batches_that_run_before_a_queued_prompt() -> None:
    """First come first served up to the budget; a prompt above it fills batches of its own first."""
    assert batches_before([], 100) == []
    assert batches_before([60, 40, 1, 99, 1], 100) == [0, 0, 1, 1, 2]
    assert batches_before([250, 50, 1], 100) == [0, 2, 3]
    assert batches_before([10, 250, 50, 60], 100) == [0, 1, 3, 4]


@pytest.mark.parametrize("policy", ["fs", "mfs"])
@pytest.mark.parametrize("classes", [0, 8])
def test_same_seed_same_result_to_the_bit(policy: str, classes: int) -> None:
    chosen = point(policy=policy, config=msgspec.structs.replace(SMALL, fabric_classes=classes))
    a, b = run(chosen), run(chosen)
    for volatile in ("wall_s", "cpu_s"):
        del a[volatile], b[volatile]
    assert a == b
    assert run(msgspec.structs.replace(chosen, seed=2))["ttft_s"] != a["ttft_s"]


@pytest.mark.parametrize("classes", [0, 8])
def test_thresholds_order_nothing_in_mfs(classes: int) -> None:
    """E, U and the number of levels are the paper's: mfs orders last stages by deadline, whatever they are."""
    results = []
    for changed in ({}, {"threshold_base": 2.0}, {"threshold_top": 0.125}, {"levels": 1}):
        config = msgspec.structs.replace(SMALL, fabric_classes=classes, policy=changed)
        results.append(run(point(config=config, policy="mfs", rate=0.2))["ttft_s"])
    assert results == results[:1] * 4


def test_policies_are_compared_on_identical_work() -> None:
    first = prepare(point(policy="fs"))[1]
    before = [msgspec.structs.replace(request) for request in first]
    assert run(point(policy="fs"))["requests"] and first == before, "a run works on requests of its own"
    assert prepare(point(policy="mfs"))[1] == before


@pytest.mark.parametrize("fabric", ["nic-only", "fat-tree"])
def test_a_collective_moves_only_what_crosses_servers(fabric: str) -> None:
    """All tokens on one group: its server's NICs send nothing to themselves, every other NIC gets the
    same."""
    cluster = Cluster(Config(model="dbrx", gpus=128, fabric=fabric))
    dispatch, combine = cluster.collective_paths(0, [100] + [0] * 15, 0)
    nics = cluster.topology.nics
    assert {nic: dispatch.shares.get(nic, 0.0) for nic in range(4)} == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0, 3: 0.0})
    ingress = [dispatch.shares.get(nics + nic, 0.0) for nic in range(32)]
    assert ingress[:8] == pytest.approx([0.0] * 8) and ingress[8:] == pytest.approx([1 / 24] * 24)
    assert [combine.shares.get(nic, 0.0) for nic in range(32)] == pytest.approx(ingress)


def test_contention_costs_and_no_policy_beats_no_contention() -> None:
    """Sharing one hot NIC fairly must hurt; the upper reference is one."""
    results = {name: run(point(policy=name, rate=0.2)) for name in ("nocont", "fs", "static", "mfs")}
    best = results.pop("nocont")
    assert results["fs"]["ttft_s"]["mean"] > 1.05 * best["ttft_s"]["mean"]
    for result in results.values():
        assert result["ttft_s"]["mean"] >= best["ttft_s"]["mean"] * (1 - 1e-6)
        assert result["slo_attainment"] <= best["slo_attainment"] + 1e-9


def test_a_fat_tree_of_few_spines_is_slower_than_nics_alone() -> None:
    """Collectives stay in their rack of 32 NICs; KV between racks meets on the uplinks."""
    base = point(policy="fs", config=msgspec.structs.replace(SMALL, hot_fraction=0.0, kv_scale=16.0))
    tree = msgspec.structs.replace(base.config, fabric="fat-tree", oversubscription=16.0)
    nic_only, oversubscribed = run(base), run(msgspec.structs.replace(base, config=tree))
    assert oversubscribed["ttft_s"]["mean"] > nic_only["ttft_s"]["mean"] * 1.1


def test_kv_of_small_batches_spreads_over_the_unit() -> None:
    """Batches of one request must not all use the same group's NICs: ties between idle groups rotate."""
    cluster, requests = prepare(point(config=Config(model="dbrx", gpus=128), rate=0.05))
    simulation = Simulation(cluster, requests, policies.find("static"))
    simulation.run()
    used = [state.request.group for state in simulation.states]
    assert max(used.count(group) for group in set(used)) <= len(used) / 4


def test_a_unit_alone_in_the_fabric_is_between_its_order_and_no_contention() -> None:
    """`alone` takes away what units do to each other, and leaves what a batch does to itself."""
    alone, static, free = (run(point(policy=name, rate=0.2)) for name in ("alone", "static", "nocont"))
    means = [result["ttft_s"]["mean"] for result in (free, alone, static)]
    assert means == sorted(means) and means[0] < means[1] < means[2]


def test_mfs_sizes_a_last_stage_by_the_port_it_leaves_from() -> None:
    """As a NIC's queue does, which knows of its own part alone: against reuse on that port nothing else compares. The
    time it takes alone stays that of the whole path."""
    cluster = Cluster(Config(model="llama3-8b", gpus=64))
    request = Request(
        number=0, arrival_s=0.0, new_tokens=900, context_tokens=0, unit=0, group=-1, decode=0,
        owners=(), remote_tokens=0,
    )  # fmt: skip
    request.isolated_s = cluster.isolated_s(request)
    request.deadline_s = 3 * request.isolated_s
    seen: list[tuple[int, int, float, float]] = []

    class Spy(Mfs):
        def last_stage(self, flow: Flow, state: State) -> rules.Flow:
            facts = super().last_stage(flow, state)
            whole = self.simulation.p2d_left(state)
            seen.append((facts.remaining_bytes, facts.rate_bytes_per_s, whole, whole / flow.path.isolated_rate))
            return facts

    Simulation(cluster, [request], Spy).run()
    assert seen
    for size, rate, whole, seconds in seen:
        assert size == pytest.approx(whole / 16, abs=1)  # of the unit's 16 NICs
        assert size / rate == pytest.approx(seconds, abs=1e-9)


def test_collectives_are_never_held_by_mfs() -> None:
    """As in production: a collective goes before every stage 1, whatever is smaller."""
    cluster, requests = prepare(point(rate=0.2))
    simulation = Simulation(cluster, requests, policies.find("mfs"))
    orders: dict[int, list[int]] = {1: [], 2: []}
    asked = simulation.policy.order

    def order(flow: Flow) -> int:
        answer = asked(flow)
        if flow.stage != 3 and not (flow.state and flow.state.pruned):
            orders[flow.stage].append(answer >> 14)  # without the sequence
        return answer

    simulation.policy.order = order  # type: ignore[method-assign]
    simulation.run()
    assert orders[1] and max(orders[2]) < min(orders[1])


def test_several_models_share_one_fabric() -> None:
    """Each has units, NICs and a workload of its own; decode NICs are shared by all, and so is contention there."""
    config = Config(model="dbrx,qwen3-coder", gpus=256, decode_nics=4, kv_scale=12.0)
    both = point(config=config, workload="qwen-a,qwen-b", rate=0.1, policy="fs")
    cluster, requests = prepare(both)
    first, second = cluster.parts
    assert (first.units, second.units, cluster.all_units) == (2, 2, 4)
    assert {cluster.of(r.unit).model.name for r in requests} == {"dbrx", "qwen3-coder"}
    assert [r.number for r in requests] == list(range(len(requests)))
    nics = [{nic for u in range(2) for g in range(part.model.groups)
             for nic in part.group_nics(part.first_unit + u, g)} for part in cluster.parts]  # fmt: skip
    assert nics[0] == set(range(64)) and nics[1] == set(range(64, 128))
    result = run(both)
    assert sum(m["requests"] for m in result["models"].values()) == both.requests
    alone = msgspec.structs.replace(
        both, config=msgspec.structs.replace(config, model="dbrx", gpus=128), workload="qwen-a",
        requests=both.requests // 2, warmup=both.warmup // 2,
    )  # fmt: skip
    assert result["models"]["0 dbrx"]["ttft_s"]["mean"] > 1.05 * run(alone)["ttft_s"]["mean"]
    simulation = Simulation(cluster, requests, policies.find("mfs"))
    simulation.run()
    for state in simulation.states:
        assert state.p2d_posted == pytest.approx(state.p2d_total) and state.fetched == state.cluster.model.layers


def test_caches_are_finite_and_the_router_prefers_who_holds_the_prefix() -> None:
    roomy = point(config=Config(model="dbrx", gpus=256), requests=150, rate=0.1)
    tight = msgspec.structs.replace(roomy, config=msgspec.structs.replace(roomy.config, cache_tokens_per_gpu=100))
    cached = [sum(r.context_tokens for r in prepare(p)[1]) for p in (roomy, tight)]
    assert 0 < cached[1] < 0.5 * cached[0], "blocks that left the cache are computed again"
    cluster, requests = prepare(roomy)
    holding = [r for r in requests if r.context_tokens]
    local = sum(r.remote_tokens < r.context_tokens for r in holding) / len(holding)
    assert local > 1.5 / cluster.units, "chance would find the prefix at one of so many units"


def test_a_request_scheduler_of_ones_own_forms_the_batches() -> None:
    class OneByOne:
        """The shortest prompt alone."""

        def plan(self, queue: Sequence[State], budget_tokens: int, now: float) -> list[tuple[State, int]]:
            chosen = min(queue, key=lambda s: s.request.new_tokens - s.done_tokens, default=None)
            return (
                [] if chosen is None else [(chosen, min(budget_tokens, chosen.request.new_tokens - chosen.done_tokens))]
            )

        def computed(self, unit: int, now: float) -> None:
            ended.append(unit)

    ended: list[int] = []
    cluster, requests = prepare(point(rate=0.2))
    sizes: dict[str, list[int]] = {"first come": [], "one by one": []}
    for name, scheduler in (("first come", None), ("one by one", OneByOne())):
        simulation = Simulation(
            cluster, [msgspec.structs.replace(r) for r in requests], policies.find("static"), scheduler
        )
        simulation.policy.batch_began = lambda batch, into=sizes[name]: into.append(len(batch.chunks))  # type: ignore[method-assign]
        simulation.run()
        assert all(state.finish_s > 0 for state in simulation.states)
    assert max(sizes["one by one"]) == 1 < max(sizes["first come"])
    assert len(ended) == len(sizes["one by one"]), "it is reported of every batch that ends"


def test_knobs_that_make_contention_do() -> None:
    base = point(policy="fs", config=Config(model="dbrx", gpus=128), rate=0.12)
    quiet = run(base)["ttft_s"]["mean"]
    for knob in (
        {"hot_fraction": 1.0, "kv_scale": 16.0},
        {"decode_nics": 2, "kv_scale": 16.0},
        {"expert_skew": 1.0},
        {"copies": 4.0},
    ):
        changed = msgspec.structs.replace(base, config=msgspec.structs.replace(base.config, **knob))
        assert run(changed)["ttft_s"]["mean"] > 1.05 * quiet, knob


class Backwards(Policy):
    """Stage 3 first, collectives last: as wrong as can be."""

    def order(self, flow: Flow) -> int:
        flow.wire_class = {3: 0, 1: 1, 2: 2}[flow.stage]
        return pack({3: 0, 1: 1, 2: 2}[flow.stage])


@pytest.mark.parametrize("classes", [0, 8])
def test_order_reaches_the_links(classes: int) -> None:
    """With plenty of KV, putting it first must slow collectives down more than putting it last."""
    config = msgspec.structs.replace(SMALL, hot_fraction=0.0, kv_scale=16.0, fabric_classes=classes)
    cluster, requests = prepare(point(config=config))
    means = {}
    for name, policy in (("backwards", Backwards), ("static", policies.find("static"))):
        simulation = Simulation(cluster, [msgspec.structs.replace(r) for r in requests], policy)
        simulation.run()
        means[name] = sum(d for _, d in simulation.collective_s) / len(simulation.collective_s)
    assert means["backwards"] > 1.2 * means["static"]


def test_pack_sorts_as_its_parts() -> None:
    keys = [
        (0, 0, 5.0),
        (1, 0, 0.5),
        (1, 0, 0.5 + 2e-6),
        (1, 3, 0.0),
        (1, 2047, 0.0),
        (2, 0, 1e4),
        (2, 0, 1e6),
        (3, 0, 0.0),
    ]
    packed = [pack(*key) for key in keys]
    assert packed == sorted(packed) and max(packed) < 2**64


def test_belief_error_changes_what_policies_do_but_not_the_truth() -> None:
    wrong = point(config=msgspec.structs.replace(SMALL, belief_error=0.5), policy="nocont", rate=0.2)
    assert run(wrong)["ttft_s"] == run(point(policy="nocont", rate=0.2))["ttft_s"]
