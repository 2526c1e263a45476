"""KV beyond a replica's memory: read when a turn arrives, or before, and never in the way of who waits."""

from __future__ import annotations

import pytest

from bench.sim.serving import Call, Outcome, Program, ReplicaConfig, StoreConfig, chain, simulate
from bench.sim.serving.port import Port
from bench.sim.serving.prefixes import Prefixes
from mfsd.policy.serve import Policy, ServeConfig

SERVE = ServeConfig(policy=Policy.FCFS, step_tokens=2048, chunk_max=2048)
ROOM = 12_000


def agent(arrival_s: float, gap_s: float, turns: int = 8, tool: str = "tool") -> Program:
    """4,000 tokens, and 100 more each turn."""
    calls = tuple(
        Call(
            prompt_tokens=4000 + 100 * n,
            output_tokens=20,
            prefix_tokens=4000 + 100 * n - 80 if n else 0,
            gap_s=gap_s if n else 0.0,
            then=tool if n < turns - 1 else "person",
        )
        for n in range(turns)
    )
    return chain(arrival_s, calls)


def served(store: StoreConfig | None, work: list[Program], room: int = ROOM) -> Outcome:
    outcome = simulate(ReplicaConfig(serve=SERVE, kv_tokens=room, store=store), work)
    assert outcome.unfinished == 0
    assert all(r.produced == r.output_tokens for r in outcome.records)
    assert all(r.computed_tokens + r.cached_tokens >= r.prompt_tokens for r in outcome.records)
    assert outcome.replicas[0].kv_peak_tokens <= room
    return outcome


def mean_turn_s(outcome: Outcome) -> float:
    turns = [r.first_token_s - r.arrival_s for r in outcome.records if r.position and r.first_token_s is not None]
    return sum(turns) / len(turns)


FOUR = [agent(n * 2.0, 9.0) for n in range(4)]
"""Of which two fit: each comes back when the two others' KV has taken the place of its own."""


def test_what_the_cache_lost_is_read_and_not_computed_again() -> None:
    bare, store = served(None, FOUR), served(StoreConfig(), FOUR)
    computed = [sum(r.computed_tokens for r in o.records) for o in (bare, store)]
    assert computed[0] > 2 * computed[1], computed
    assert store.replicas[0].fetched_tokens > 50_000 and bare.replicas[0].fetched_tokens == 0
    assert mean_turn_s(store) < 0.5 * mean_turn_s(bare)


def test_a_store_slower_than_computing_is_not_read() -> None:
    assert served(StoreConfig(tokens_per_s=500.0), FOUR).replicas[0].fetched_tokens == 0


def test_tools_that_take_as_long_each_time_are_read_ahead_of() -> None:
    slow = 20_000.0
    plain = served(StoreConfig(tokens_per_s=slow), FOUR)
    ahead = served(StoreConfig(tokens_per_s=slow, retain=True, prefetch=True), FOUR)
    assert plain.replicas[0].ahead_tokens == 0 < ahead.replicas[0].ahead_tokens
    assert ahead.replicas[0].fetched_tokens < 0.5 * plain.replicas[0].fetched_tokens
    assert mean_turn_s(ahead) < 0.8 * mean_turn_s(plain)


def test_a_program_that_comes_back_soon_is_kept_before_one_used_later() -> None:
    """Least recently used drops the quick one's KV whenever both slow ones have had a turn since; here its tool's
    history keeps it."""
    quick, slow = [agent(0.0, 4.0, 30, "quick")], [agent(1.0 + n, 60.0, 4, "slow") for n in range(3)]
    bare = served(StoreConfig(), quick + slow)
    kept = served(StoreConfig(retain=True), quick + slow)
    assert kept.replicas[0].fetched_tokens < 0.6 * bare.replicas[0].fetched_tokens


def test_the_same_seed_gives_the_same() -> None:
    store = StoreConfig(retain=True, prefetch=True)
    assert served(store, FOUR).records == served(store, FOUR).records


def test_reading_ahead_never_delays_a_read_that_is_waited_for() -> None:
    port: Port[str, str] = Port(100.0)
    port.read_ahead("ahead", 100, 0.0)
    assert port.next_s() == 1.0
    port.read("call", 50, 0.5)
    assert port.next_s() == 1.0, "the call's, at once and at the full rate"
    assert port.ended(1.0) == (["call"], None)
    assert port.next_s() == pytest.approx(1.5), "half of it was here, and rested meanwhile"
    assert port.ended(1.5) == ([], "ahead") and port.next_s() is None


def test_reads_of_calls_end_in_their_order() -> None:
    port: Port[str, str] = Port(100.0)
    port.read("a", 100, 0.0)
    port.read("b", 100, 0.0)
    assert port.owed_s == 2.0
    assert port.ended(1.0).calls == ["a"] and port.ended(1.5).calls == [] and port.ended(2.0).calls == ["b"]


def test_a_pinned_prefix_stays_and_counts_with_the_room_for_the_rest() -> None:
    prefixes = Prefixes()
    for key in ("a", "b"):
        prefixes.hold(key)
        prefixes.release(key, 100)
    prefixes.pin("a", 300)
    assert (prefixes.tokens, prefixes.pinned) == (100, 300)
    assert list(prefixes.shrink(1000)) == ["b"] and prefixes.find("a") == 100
    prefixes.extend("a", 300)
    prefixes.hold("a")
    prefixes.unpin("a")
    assert (prefixes.tokens, prefixes.pinned) == (0, 0), "its memory is the call's that runs"
    prefixes.release("a", 320)
    assert (prefixes.tokens, prefixes.pinned) == (320, 0)


def test_an_order_decides_who_leaves_first() -> None:
    prefixes = Prefixes()
    for key in ("a", "b", "c"):
        prefixes.hold(key)
        prefixes.release(key, 10)
    left = {"a": 2.0, "b": 0.0, "c": 1.0}
    assert list(prefixes.shrink(15, left.__getitem__)) == ["b", "c"]
    assert [prefixes.find(key) for key in "abc"] == [10, 0, 5]
