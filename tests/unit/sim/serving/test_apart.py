"""Prefill and decode on replicas of their own: times by hand, and nothing is lost on the way."""

from __future__ import annotations

import msgspec
import pytest

from bench.sim.serving import (
    Apart,
    Call,
    Eviction,
    Expect,
    Outcome,
    Program,
    ReplicaConfig,
    StoreConfig,
    online,
    row,
    simulate,
)
from bench.sim.serving.cost import Linear
from bench.sim.serving.engine import Simulation
from bench.sim.serving.live import Live
from bench.sim.serving.replica import Replica
from bench.sim.serving.router import round_robin
from mfsd.policy.route import Role, Router
from mfsd.policy.serve import Policy, ServeConfig
from tests.unit.sim.serving.workloads import calls, fixed, programs

STEP = (0.1, 0.0, 0.001, 0.0, 0.0, 0.0)
"""Seconds of a step: 0.1, and 0.001 for each token of a prompt."""
PLAIN = ReplicaConfig(serve=fixed(Policy.FCFS), cost=Linear(small=STEP, large=STEP), kv_tokens=None)
SLOW = Apart(prefill=1, kv_bytes_per_token=1000, port_bytes_per_s=100_000.0)
"""100 tokens of KV a second."""
TWO = [
    Call(prompt_tokens=100, output_tokens=3, ttft_s=10.0),
    Call(prompt_tokens=50, output_tokens=2, ttft_s=5.0),
]


def times(outcome: Outcome) -> list[tuple[float | None, ...]]:
    return [(r.prefilled_s, r.moving_s, r.first_token_s, r.end_s) for r in outcome.records]


def near(*expected: tuple[float, ...]) -> list[object]:
    return [pytest.approx(one) for one in expected]


def test_two_calls_by_hand() -> None:
    """Both prompts are computed in one step. KV of the second goes first, for its prompt was due first."""
    outcome = simulate(PLAIN, TWO, replicas=2, apart=SLOW)
    assert times(outcome) == near((0.25, 0.25, 1.75, 1.95), (0.25, 0.25, 0.75, 0.85))
    assert [(r.replica, r.decoder, r.produced) for r in outcome.records] == [(0, 1, 3), (0, 1, 2)]
    assert [(t.prefill_tokens, t.decode_tokens) for t in outcome.replicas] == [(150, 0), (0, 3)]
    found = row(outcome)
    assert found["moves"]["calls"] == 2
    assert found["moves"]["ports_s"]["mean"] == pytest.approx(1.0) and found["moves"]["room_s"]["mean"] == 0.0
    assert found["ttft_s"]["mean"] == pytest.approx(1.25)


def test_kv_that_comes_during_a_step_joins_the_next_one() -> None:
    """The first call decodes from 0.7 s on, in steps of 0.1 s; KV of the second comes at 1.05 s."""
    work = [Call(prompt_tokens=40, output_tokens=5), Call(prompt_tokens=25, output_tokens=2, arrival_s=0.14)]
    fast = msgspec.structs.replace(SLOW, port_bytes_per_s=71_428.57142857142)  # 40 tokens in 0.56 s
    outcome = simulate(PLAIN, work, replicas=2, apart=fast)
    assert times(outcome) == near((0.14, 0.14, 0.7, 1.1), (0.265, 0.265, 1.05, 1.2))


def test_the_prompts_kv_is_held_until_it_has_moved() -> None:
    """The prefill replica has no room for the second prompt before 1.2 s."""
    tight = msgspec.structs.replace(PLAIN, kv_tokens=120)
    outcome = simulate([tight, PLAIN], TWO, apart=SLOW)
    assert times(outcome) == near((0.2, 0.2, 1.2, 1.4), (1.35, 1.35, 1.85, 1.95))
    assert outcome.records[1].begin_s == pytest.approx(1.2)


def test_kv_waits_for_room_where_it_decodes() -> None:
    """KV of the first call finds room when the second one has ended, at 0.85 s."""
    tight = msgspec.structs.replace(PLAIN, kv_tokens=120)
    outcome = simulate([PLAIN, tight], TWO, apart=SLOW)
    assert times(outcome) == near((0.25, 0.85, 1.85, 2.05), (0.25, 0.25, 0.75, 0.85))
    assert row(outcome)["moves"]["room_s"]["mean"] == pytest.approx(0.3)


def test_ports_of_both_ends_count_and_one_token_moves_nothing() -> None:
    """Two prompts of one prefill replica share its port though each goes to a decode replica of its own; a third has
    ended with its first token."""
    work = [*TWO, Call(prompt_tokens=50, output_tokens=1, ttft_s=1.0)]
    outcome = simulate(PLAIN, work, replicas=3, apart=SLOW)
    assert times(outcome) == [
        *near((0.3, 0.3, 1.8, 2.0), (0.3, 0.3, 0.8, 0.9)),
        (None, None, pytest.approx(0.3), pytest.approx(0.3)),
    ]
    assert [r.decoder for r in outcome.records] == [1, 2, -1]


def test_kv_goes_to_the_port_that_owes_least() -> None:
    """The first decode replica is idle, but its port has 900 tokens to receive."""
    work = [
        Call(prompt_tokens=900, output_tokens=2),
        Call(prompt_tokens=10, output_tokens=90, arrival_s=2.0),
        Call(prompt_tokens=10, output_tokens=2, arrival_s=3.0),
    ]
    apart = msgspec.structs.replace(SLOW, prefill=2)
    outcome = simulate(PLAIN, work, replicas=4, apart=apart)
    assert [(r.replica, r.decoder) for r in outcome.records] == [(0, 2), (1, 3), (0, 3)]


def run(config: ReplicaConfig, work: list[Call | Program], prefill: int, replicas: int, rate: float) -> Simulation:
    apart = Apart(prefill=prefill, port_bytes_per_s=rate)
    simulation = Simulation([config] * replicas, work, 1, round_robin(prefill), apart=apart)
    simulation.run(None)
    return simulation


@pytest.mark.parametrize("eviction", [Eviction.RECOMPUTE, Eviction.PREFIX, Eviction.SWAP])
@pytest.mark.parametrize("policy", [p.value for p in Policy])
def test_each_call_is_served_once_and_all_memory_is_free_in_the_end(policy: str, eviction: Eviction) -> None:
    """Little memory, slow ports, and outputs that are longer than expected."""
    work: list[Call | Program] = [*calls(60, 20.0, prompt=200, output=300), *programs(6, 1.0)]
    serve = ServeConfig(policy=Policy(policy), requests_max=24)
    config = ReplicaConfig(serve=serve, kv_tokens=6_000, eviction=eviction, expect=Expect.NONE)
    simulation = run(config, work, 2, 3, 1e9)
    records = simulation.records
    totals = [replica.totals for replica in simulation.replicas]
    assert all(r.end_s is not None and r.produced == r.output_tokens for r in records)
    assert totals[2].evictions > 0 and totals[0].evictions == totals[1].evictions == 0
    for r in records:
        assert (r.decoder == 2) == (r.output_tokens > 1) and r.replica in (0, 1)
        if r.decoder == 2:
            assert r.prefilled_s <= r.moving_s < r.first_token_s < r.end_s  # type: ignore[operator]
    assert any(r.moving_s > r.prefilled_s for r in records if r.moving_s is not None)  # type: ignore[operator]
    assert all(t.decode_tokens == 0 for t in totals[:2])
    later = sum(r.output_tokens - 1 for r in records)  # a prompt computed again makes one of them
    assert later - sum(r.evicted for r in records) <= totals[2].decode_tokens <= later
    for replica in simulation.replicas:
        assert replica.memory.held == replica.memory.parked == replica.coming == replica.wanted == 0
        assert replica.memory.free_tokens + replica.memory.prefixes.tokens == 6_000
        assert not (replica.waiting or replica.prompts or replica.decodes)
        list(replica.memory.prefixes.shrink(6_000))
        assert all(replica.memory.prefixes.find(f"program {n}") == 0 for n in range(6)), "nothing is in use any more"
        assert replica.totals.kv_peak_tokens <= 6_000


def test_memory_is_never_exceeded_while_kv_moves() -> None:
    used: list[int] = []
    work = calls(60, 20.0, prompt=400, output=300)
    config = ReplicaConfig(kv_tokens=6_000, expect=Expect.NONE)
    simulate(
        config,
        work,
        replicas=3,
        apart=Apart(prefill=1, port_bytes_per_s=1e9),
        journal=lambda view, *_: used.append((view.kv_tokens or 0) - view.kv_used_tokens),
    )
    assert 0 <= min(used) < 600


def test_kv_begins_to_move_behind_what_gave_way_and_within_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[int, int]] = []
    expect = Replica.expect

    def expected(self: Replica, live: Live) -> None:
        began.append((len(self.waiting), len(self.prompts) + len(self.decodes) + self.coming + 1))
        expect(self, live)

    monkeypatch.setattr(Replica, "expect", expected)
    config = ReplicaConfig(serve=ServeConfig(requests_max=16), kv_tokens=6_000, expect=Expect.NONE)
    simulation = run(config, [*calls(120, 20.0, prompt=200, output=300)], 1, 3, 1e9)
    assert sum(replica.totals.evictions for replica in simulation.replicas[1:]) > 0
    assert {waiting for waiting, _ in began} == {0} and max(slots for _, slots in began) == 16


@pytest.mark.parametrize("policy", [Policy.FCFS, Policy.EDF, Policy.HYBRID, Policy.FIT])
def test_kept_plans_are_the_asked_ones(policy: Policy) -> None:
    work = calls(120, 12.0, output=60)
    made = []
    for ask_always in (False, True):
        config = ReplicaConfig(serve=ServeConfig(policy=policy), kv_tokens=12_000, ask_always=ask_always)
        made.append(simulate(config, work, replicas=3, apart=Apart(prefill=2, port_bytes_per_s=2e9)).records)
    assert made[0] == made[1]


def test_the_same_seed_gives_the_same_to_the_bit() -> None:
    config = ReplicaConfig(noise=0.1)
    work: list[Call | Program] = [*calls(80, 6.0), *programs(5, 1.0)]
    a, b, c = (simulate(config, work, seed, replicas=3, apart=Apart(prefill=1)) for seed in (1, 1, 2))
    assert a.records == b.records != c.records


@pytest.mark.parametrize("router", [Router.LEAST_LOADED, Router.STICKY, Router.PREFIX, Router.LOCALITY])
def test_routers_choose_among_prefill_replicas(router: Router) -> None:
    """The cache of a prefill replica keeps what moved."""
    work: list[Call | Program] = [*calls(40, 10.0), *programs(20, 2.0)]
    outcome = simulate(
        ReplicaConfig(), work, replicas=4, router=online(router, 4, role=Role.PREFILL), apart=Apart(prefill=2)
    )
    assert outcome.unfinished == 0 and {r.replica for r in outcome.records} == {0, 1}
    assert {r.decoder for r in outcome.records} <= {-1, 2, 3}
    assert any(r.cached_tokens for r in outcome.records if r.position)


def test_a_prefill_replica_learns_how_long_outputs_are() -> None:
    """By which what has a deadline for the whole answer is due: the second call leaves room for 600 tokens."""
    work = [Call(prompt_tokens=10, output_tokens=600, tier="a", ttlt_s=900.0, arrival_s=at) for at in (0.0, 1.0, 200.0)]
    dues: list[float | None] = []
    config = msgspec.structs.replace(PLAIN, serve=ServeConfig(policy=Policy.EDF))
    simulate(
        config,
        work,
        replicas=2,
        apart=Apart(prefill=1),
        journal=lambda view, *_: dues.extend(r.due_s for r in view.waiting),
    )
    assert dues[-1] == pytest.approx(200.0 + 900.0 - 600 * 0.1)


@pytest.mark.parametrize(
    ("prefill", "config", "words"),
    [
        (2, PLAIN, "prefill is 2: use fewer than there are replicas, 2"),
        (1, msgspec.structs.replace(PLAIN, store=StoreConfig()), "store"),
        (1, msgspec.structs.replace(PLAIN, eviction=Eviction.PAUSE), "eviction is pause"),
    ],
)
def test_what_is_not_simulated_is_refused(prefill: int, config: ReplicaConfig, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate(config, TWO, replicas=2, apart=Apart(prefill=prefill))
    with pytest.raises(ValueError, match="control"):
        simulate(PLAIN, TWO, replicas=2, apart=SLOW, control=lambda now_s, seen: {})


def test_a_port_has_a_rate() -> None:
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"port_bytes_per_s is .*: use 1 or more"):
            Apart(prefill=1, port_bytes_per_s=rate)
    with pytest.raises(ValueError, match="prefill is 0: use 1 or more"):
        Apart(prefill=0)
