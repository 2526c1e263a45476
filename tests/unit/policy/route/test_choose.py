"""Which replica gets a call."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy.route import (
    Call,
    Choice,
    Load,
    QueueOrder,
    Refusal,
    Replica,
    Role,
    RouteConfig,
    Router,
    choose,
    queue_key,
)
from mfsd.policy.serve import ProgramTable

NAMES = ("a", "b", "c", "d")
counts = st.integers(0, 50)
sizes = st.integers(0, 1 << 33)


@st.composite
def clusters(draw: st.DrawFn) -> list[Replica]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    return [
        Replica(
            name=name,
            role=draw(st.sampled_from(Role)),
            models=draw(st.sampled_from([(), ("m",), ("m", "n")])),
            tiers=draw(st.sampled_from([(), ("chat",)])),
            healthy=draw(st.booleans()),
            waiting=draw(counts),
            running=draw(counts),
            waiting_tokens=draw(st.integers(0, 10_000)),
            wait_ns=draw(st.integers(0, 10**10)),
            token_ns=draw(st.integers(0, 10**6)),
            kv_free_share=draw(st.floats(0, 1)),
            kv_tokens=draw(st.none() | st.integers(0, 20_000)),
            requests_max=draw(st.none() | counts),
            cached_tokens=draw(st.integers(0, 10_000)),
            fetch_tokens=draw(st.integers(0, 10_000)),
            fetch_bytes=draw(sizes),
            port_rate_bytes_per_s=draw(st.sampled_from([0, 1, 50_000_000_000])),
            owed_bytes=draw(st.none() | sizes),
        )
        for name in names
    ]


calls = st.builds(
    Call,
    prompt_tokens=st.integers(0, 10_000),
    model=st.sampled_from(["", "m", "n", "x"]),
    program=st.sampled_from(["", "p"]),
    tier=st.sampled_from(["", "chat"]),
    kv_bytes=sizes,
)
routers = st.sampled_from(Router)
homes = st.sets(st.sampled_from(NAMES))


def table(names: set[str]) -> ProgramTable:
    made = ProgramTable()
    for name in sorted(names):
        made.call_arrived("p", name, 0.0)
    return made


def may_have(call: Call, replica: Replica, role: Role) -> bool:
    return (
        replica.role in (role, Role.BOTH)
        and (not call.model or not replica.models or call.model in replica.models)
        and (not replica.tiers or call.tier in replica.tiers)
        and (replica.kv_tokens is None or call.prompt_tokens <= replica.kv_tokens)
        and replica.healthy
        and (replica.requests_max is None or replica.requests < replica.requests_max)
    )


@given(routers, calls, clusters(), homes, st.sampled_from(Role), st.sampled_from(Load))
def test_a_call_gets_a_replica_that_may_have_it_whenever_there_is_one(
    router: Router, call: Call, replicas: list[Replica], at: set[str], role: Role, load: Load
) -> None:
    choice = choose(router, call, replicas, table(at), RouteConfig(load=load), role)
    usable = {replica.name for replica in replicas if may_have(call, replica, role)}
    assert (choice.replica in usable) if usable else choice.replica is None
    assert (choice.refused is None) == bool(usable)
    assert choice.reason


@given(routers, calls, clusters(), homes)
def test_the_order_of_the_replicas_says_nothing(
    router: Router, call: Call, replicas: list[Replica], at: set[str]
) -> None:
    shuffled = sorted(replicas, key=lambda replica: replica.name, reverse=True)
    assert choose(router, call, replicas, table(at)) == choose(router, call, shuffled, table(at))


@given(calls, clusters(), homes)
def test_a_program_stays_where_it_has_run(call: Call, replicas: list[Replica], at: set[str]) -> None:
    usable = {replica.name for replica in replicas if may_have(call, replica, Role.BOTH)}
    choice = choose(Router.STICKY, call, replicas, table(at))
    if call.program and usable & at:
        assert choice.replica in at
    else:
        assert choice.replica == choose(Router.LEAST_LOADED, call, replicas).replica


@given(calls, clusters(), homes)
def test_locality_is_least_loaded_below_the_bound_and_sticky_from_it_on(
    call: Call, replicas: list[Replica], at: set[str]
) -> None:
    """Agentix algorithm 2."""
    other = Router.LEAST_LOADED if call.prompt_tokens < 2048 else Router.STICKY
    choice = choose(Router.LOCALITY, call, replicas, table(at))
    assert choice.replica == choose(other, call, replicas, table(at)).replica


@given(clusters(), st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 3), st.integers(0, 9)), max_size=20))
def test_short_prompts_make_no_home_beside_that_of_the_long_ones(
    replicas: list[Replica], turns: list[tuple[int, int, int]]
) -> None:
    """A program that begins short and grows: its first long prompt settles where all that follow it go, whatever the
    loads are meanwhile."""
    free = [msgspec.structs.replace(r, role=Role.BOTH, healthy=True, requests_max=None, tiers=()) for r in replicas]
    free = [msgspec.structs.replace(r, models=(), kv_tokens=None) for r in free]
    programs, home = ProgramTable(), None
    for prompt_tokens, busy, running in turns:
        n = busy % len(free)
        free[n] = msgspec.structs.replace(free[n], running=running)
        at = choose(Router.LOCALITY, Call(prompt_tokens=prompt_tokens, program="p"), free, programs).replica
        assert at is not None
        if prompt_tokens >= 2048:
            home = home or at
            assert at == home
        programs.call_arrived("p", at, 0.0, prompt_tokens)


def test_the_first_long_prompt_goes_where_short_ones_have_run() -> None:
    """What they have in common is cached there."""
    replicas = [Replica(name="a"), Replica(name="b", running=1), Replica(name="c", running=2)]
    long = Call(prompt_tokens=3000, program="p")
    assert choose(Router.LOCALITY, long, replicas, table({"b", "c"})).replica == "b"


@given(clusters(), st.sampled_from(Load))
def test_the_least_loaded_has_least_of_what_counts(replicas: list[Replica], load: Load) -> None:
    measures = {
        Load.REQUESTS: lambda replica: replica.requests,
        Load.TOKENS: lambda replica: replica.waiting_tokens,
        Load.KV: lambda replica: 1 - replica.kv_free_share,
        Load.WAIT: lambda replica: replica.wait_ns,
    }
    free = [msgspec.structs.replace(r, role=Role.BOTH, healthy=True, requests_max=None, tiers=()) for r in replicas]
    chosen = choose(Router.LEAST_LOADED, Call(), free, None, RouteConfig(load=load)).replica
    by_name = {replica.name: measures[load](replica) for replica in free}
    assert by_name[str(chosen)] == min(by_name.values())


@given(clusters(), st.integers(0, 10**6))
def test_what_all_ports_owe_more_changes_no_choice_of_a_decode_worker(replicas: list[Replica], more_ms: int) -> None:
    def at(owed_ms: int) -> Choice:
        same = [
            msgspec.structs.replace(r, port_rate_bytes_per_s=10**9, owed_bytes=(i + owed_ms) * 10**6)
            for i, r in enumerate(replicas)
        ]
        return choose(Router.OWED, Call(), same, role=Role.DECODE)

    assert at(0) == at(more_ms)


def test_prefix_prefers_what_is_cached_until_the_wait_is_longer() -> None:
    call = Call(prompt_tokens=4000)
    cold = Replica(name="cold")
    assert choose(Router.PREFIX, call, [cold, Replica(name="warm", cached_tokens=3000, waiting_tokens=2999)]) == Choice(
        replica="warm", reason="fewest tokens until its prompt is computed"
    )
    assert choose(
        Router.PREFIX, call, [cold, Replica(name="warm", cached_tokens=3000, waiting_tokens=3001)]
    ).replica == ("cold")


def test_transfer_leaves_a_replica_whose_port_owes_more_than_the_others_wait() -> None:
    call = Call(prompt_tokens=1000)
    rate = 10**9
    owes = Replica(
        name="a", fetch_tokens=900, fetch_bytes=10**8, port_rate_bytes_per_s=rate, owed_bytes=2 * 10**9
    )  # 2.1 s
    waits = msgspec.structs.replace(owes, name="b", owed_bytes=0, wait_ns=1_900_000_000)  # 2.0 s
    assert choose(Router.TRANSFER, call, [owes, waits]).replica == "b"
    assert choose(Router.TRANSFER, call, [msgspec.structs.replace(owes, owed_bytes=10**9), waits]).replica == "a"
    has_it = Replica(name="c", cached_tokens=900, wait_ns=1_000_000_000, port_rate_bytes_per_s=rate, owed_bytes=0)
    assert choose(Router.TRANSFER, call, [owes, waits, has_it]).replica == "c"


def test_transfer_counts_what_must_be_computed_where_nothing_can_be_fetched() -> None:
    warm = Replica(name="b", cached_tokens=900, token_ns=10**6, wait_ns=800 * 10**6)
    cold = Replica(name="a", token_ns=10**6)
    assert choose(Router.TRANSFER, Call(prompt_tokens=1000), [cold, warm]).replica == "b"
    slower = msgspec.structs.replace(warm, wait_ns=901 * 10**6)
    assert choose(Router.TRANSFER, Call(prompt_tokens=1000), [cold, slower]).replica == "a"


def test_an_unknown_port_is_neither_preferred_nor_avoided() -> None:
    unknown = Replica(name="u", running=1)
    known = [
        Replica(name=n, port_rate_bytes_per_s=10**9, owed_bytes=o) for n, o in (("a", 0), ("b", 10**9), ("c", 10**10))
    ]
    assert choose(Router.OWED, Call(), [unknown, *known]).replica == "a"
    assert (
        choose(Router.OWED, Call(), [unknown, *known[2:]]).replica == "c"
    )  # as much as the only known: fewer requests
    assert choose(Router.OWED, Call(), [unknown, known[1], known[2]]).replica == "b"


def test_workers_whose_ports_owe_about_the_same_differ_by_load() -> None:
    def worker(name: str, owed_bytes: int, running: int) -> Replica:
        return Replica(name=name, role=Role.DECODE, port_rate_bytes_per_s=10**9, owed_bytes=owed_bytes, running=running)

    near = [worker("a", 0, 5), worker("b", 900_000, 4)]  # 0.9 ms
    assert choose(Router.OWED, Call(), near, role=Role.DECODE).replica == "b"
    far = [worker("a", 0, 5), worker("b", 1_100_000, 4)]
    assert choose(Router.OWED, Call(), far, role=Role.DECODE).replica == "a"


def test_every_refusal_has_its_reason() -> None:
    one = Replica(name="a", models=("m",), kv_tokens=100, requests_max=1)

    def refused(call: Call, **fields: object) -> Choice:
        return choose(Router.LEAST_LOADED, call, [msgspec.structs.replace(one, **fields)])

    assert refused(Call(model="other")).refused is Refusal.MODEL
    assert refused(Call(), role=Role.DECODE).refused is Refusal.MODEL
    assert refused(Call(), tiers=("chat",)).refused is Refusal.TIER
    too_long = refused(Call(prompt_tokens=101))
    assert (too_long.refused, too_long.limit) == (Refusal.TOO_LONG, 100)
    assert refused(Call(), healthy=False).refused is Refusal.UNHEALTHY
    assert refused(Call(), running=1).refused is Refusal.SATURATED
    assert choose(Router.STICKY, Call(), []).refused is Refusal.MODEL


def test_numbers_outside_their_range_name_the_field() -> None:
    with pytest.raises(ValueError, match="locality_tokens is -1"):
        RouteConfig(locality_tokens=-1)


def test_the_queue_goes_by_its_order() -> None:
    first = Call(arrival_ns=1)
    due = Call(arrival_ns=2, deadline_ns=50)
    sooner = Call(arrival_ns=3, deadline_ns=40)
    important = Call(arrival_ns=4, importance=1)
    queue = [important, sooner, first, due]

    def served(order: QueueOrder) -> list[Call]:
        return sorted(queue, key=lambda call: queue_key(order, call))

    assert served(QueueOrder.FCFS) == [first, due, sooner, important]
    assert served(QueueOrder.EDF) == [sooner, due, first, important]
    assert served(QueueOrder.PRIORITY) == [important, sooner, due, first]
