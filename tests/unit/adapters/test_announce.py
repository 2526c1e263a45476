"""What is announced of requests that queue: each once, withdrawn at once, and never more than there is room for."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.client import Waiting
from mooncake_adapter.session import STAGE_P2D, STAGE_REUSE
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.announce import ANNOUNCED_MAX, ANNOUNCED_PER_TICK, ASK_S, EVERY_S, Announcer, Source
from mooncake_adapter.vllm.ranks import RANK_MAX, Ranks
from mooncake_adapter.vllm.requests import Requests
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import WarnOnce
from tests.unit.adapters.test_reuse import request
from tests.unit.adapters.test_steps import blocks_of, output

TOKEN_BYTES = 1000


class Daemon:
    """Remembers what it knows, and how often it was announced."""

    def __init__(self) -> None:
        self.known: dict[int, Waiting] = {}
        self.calls: list[tuple[int, int]] = []
        self.broken = False

    def waiting_changed(self, requests: Any, gone: Any = ()) -> None:
        if self.broken:
            raise OSError("it is gone")
        self.calls.append((len(requests), len(gone)))
        for number in gone:
            del self.known[number]
        self.known |= {one.request_id: one for one in requests}


class World:
    def __init__(self, source: Source | None = None) -> None:
        self.now_s, self.daemon = 0.0, Daemon()
        self.requests = Requests(Defaults(), "tiny", WarnOnce())
        self.announcer = Announcer(
            self.daemon,
            self.requests,
            source or Source(TokenBytes(TOKEN_BYTES, TOKEN_BYTES), 3),
            WarnOnce(),
            lambda: self.now_s,
        )

    def tick(self) -> None:
        self.now_s += EVERY_S
        self.announcer.tick()

    def arrive(self, *names: str, tokens: int = 1000, **more: Any) -> None:
        for name in names:
            self.requests.arrived(request(name, tokens, **more))

    def run(self, **tokens: int) -> None:
        self.requests.chunks(output({name: (0, [1]) for name in tokens}, {}, **tokens))

    def known(self, name: str) -> Waiting | None:
        info = self.requests.arrived(request(name))
        return self.daemon.known.get(info.number)

    def in_order(self) -> list[int]:
        return [one.request_id for one in sorted(self.daemon.known.values(), key=lambda one: one.rank)]

    def numbers(self, *names: str) -> list[int]:
        return [self.requests.arrived(request(name)).number for name in names]


def test_a_request_is_announced_once_and_withdrawn_when_it_is_scheduled() -> None:
    world = World()
    world.arrive("a", "b", ttft_slo_ms=500)
    world.tick()
    assert world.in_order() == world.numbers("a", "b") and world.daemon.calls == [(2, 0)]
    announced = world.known("a")
    assert announced is not None and announced.tokens_left == 1000 and announced.deadline_ns and announced.flows == ()
    for _ in range(3):
        world.tick()
    assert world.daemon.calls == [(2, 0)], "nothing has changed"
    world.run(a=400)
    world.announcer.tick()
    assert world.in_order() == world.numbers("b") and world.daemon.calls == [(2, 0), (0, 1)]
    world.tick()
    assert world.daemon.calls == [(2, 0), (0, 1)], "those behind keep their ranks"


def test_the_session_is_asked_while_something_waits_and_never_else() -> None:
    """It looks for a daemon that is gone when it is used; the engine may have nothing new to say."""
    world = World()
    world.now_s += ASK_S
    world.announcer.tick()
    assert world.daemon.calls == []
    world.arrive("a")
    world.tick()
    world.now_s += ASK_S
    world.announcer.tick()
    world.announcer.tick()
    assert world.daemon.calls == [(1, 0), (0, 0)]


def test_one_that_is_aborted_leaves_without_another_step() -> None:
    world = World()
    world.arrive("a")
    world.tick()
    world.requests.ended("a")
    world.announcer.withdraw()
    assert world.daemon.known == {} and world.requests.left == []
    world.arrive("b")
    world.requests.ended("b")
    world.tick()
    assert world.daemon.calls == [(1, 0), (0, 1)], "b was never announced"


def test_what_it_will_fetch_is_announced_with_its_owners() -> None:
    world = World(Source(TokenBytes(TOKEN_BYTES / 8, TOKEN_BYTES), 3, ("10.0.0.1", "10.0.0.2")))
    world.arrive("a")
    world.requests.found("a", 900)
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.tokens_left == 100
    assert world.announcer.announced_bytes("a") == 450 * TOKEN_BYTES and world.announcer.announced_bytes("b") == 0
    assert [(f.stage, f.peer, f.size_bytes, f.nic, f.incoming) for f in announced.flows] == [
        (STAGE_REUSE, owner, 450 * TOKEN_BYTES, 3, True) for owner in ("10.0.0.1", "10.0.0.2")
    ]
    world.requests.loading(request("a"), blocks_of(1), 900)
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.tokens_left == 100 and len(announced.flows) == 2, (
        "still owed while it loads"
    )
    world.requests.found("a", 0)
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.flows == (), "it is computed again"


def test_what_a_prefill_instance_sends_counts_at_this_nodes_port_alone() -> None:
    world = World(Source(TokenBytes(TOKEN_BYTES, 8 * TOKEN_BYTES), 3, ("10.0.0.1",)))
    world.arrive("a", parameters={"do_remote_prefill": True})
    world.tick()
    announced = world.known("a")
    assert announced is not None and [(f.peer, f.size_bytes) for f in announced.flows] == [("", 1000 * TOKEN_BYTES)]
    assert announced.tokens_left == 0


DECODE = "10.0.0.7"


@pytest.mark.parametrize("words", [{}, {"decode_nic": DECODE}, {"mfs": {"decode_nic": DECODE}}])
def test_what_it_will_push_is_announced_until_it_runs(words: dict[str, Any]) -> None:
    world = World(Source(TokenBytes(TOKEN_BYTES, 8 * TOKEN_BYTES), 3, ("10.0.0.1",)))
    world.arrive("a", parameters={"do_remote_decode": True, **words})
    world.requests.found("a", 900)
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.tokens_left == 100
    assert [(f.stage, f.peer, f.size_bytes, f.nic, f.incoming) for f in announced.flows] == [
        (STAGE_REUSE, "10.0.0.1", 900 * 8 * TOKEN_BYTES, 3, True),
        (STAGE_P2D, DECODE if words else "", 1000 * TOKEN_BYTES, 3, False),
    ]
    assert world.announcer.announced_bytes("a") == 900 * 8 * TOKEN_BYTES, "of what it fetches"
    world.run(a=100)
    world.announcer.tick()
    assert world.daemon.known == {}, "now its batch says so"


def test_what_both_instances_were_told_counts_once() -> None:
    world = World()
    world.arrive("a", parameters={"do_remote_prefill": True, "decode_nic": DECODE})
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.flows == (), "the prefill instance counts it"


@pytest.mark.parametrize("wrong", ["decode-7", "10.0.0.7:14000", 7, "", [DECODE], True])
def test_what_is_no_address_of_a_decode_instance_is_reported_once(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.arrive("a", "b", parameters={"do_remote_decode": True, "decode_nic": wrong})
    world.arrive("c", parameters={"do_remote_prefill": True, "decode_nic": wrong})
    world.tick()
    assert {f.peer for one in world.daemon.known.values() for f in one.flows} == {""}
    assert all(one.flows for one in world.daemon.known.values()), "this node's port still counts it"
    assert caplog.text.count("is not the address of a NIC") == 1


def test_a_size_that_is_not_known_is_not_announced() -> None:
    world = World(Source(TokenBytes(0, 0)))
    world.arrive("a", parameters={"do_remote_decode": True})
    world.requests.found("a", 900)
    world.tick()
    announced = world.known("a")
    assert announced is not None and announced.flows == ()


def test_the_schedulers_order_holds_between_what_is_on_its_way_and_what_is_new() -> None:
    world = World()
    world.arrive("a", "b", "new", "c", "d")
    world.requests.loading(request("c"), blocks_of(1), 400)
    assert world.announcer.wants_order
    world.announcer.ordered(["d", "b", "a"], {"a"})
    world.announcer.tick()
    assert not world.announcer.wants_order
    assert world.in_order() == world.numbers("c", "d", "b", "a", "new")
    assert world.announcer.set_aside("a") and not world.announcer.set_aside("b")
    announced = world.known("a")
    assert announced is not None and announced.relegated
    assert world.requests.ahead_of("b") == (1000, 3), "loads are needed by the engine's own order, too"


def test_one_that_was_preempted_queues_again() -> None:
    world = World()
    world.arrive("a")
    world.tick()
    world.run(a=400)
    world.tick()
    assert world.daemon.known == {}
    world.requests.cached(request("a"), 0)
    world.tick()
    assert world.in_order() == world.numbers("a")


def test_a_tick_and_the_daemon_are_given_no_more_than_their_bounds() -> None:
    world = World()
    names = [f"r{at}" for at in range(ANNOUNCED_MAX + 100)]
    world.arrive(*names)
    world.tick()
    world.announcer.tick()
    assert world.daemon.calls == [(ANNOUNCED_PER_TICK, 0)], "the rest in a later tick"
    for _ in range(20):
        world.tick()
    assert world.in_order() == world.numbers(*names[:ANNOUNCED_MAX])
    world.run(r0=1)
    world.tick()
    assert world.in_order() == world.numbers(*names[1 : ANNOUNCED_MAX + 1])
    world.announcer.ordered(reversed(names))
    world.requests.changed = True
    for _ in range(20):
        world.tick()
    assert world.in_order() == world.numbers(*reversed(names[-ANNOUNCED_MAX:]))


def test_nothing_is_raised_into_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.daemon.broken = True
    world.arrive("a", "b")
    world.tick()
    world.requests.ended("a")
    world.announcer.withdraw()
    world.tick()
    assert len([r for r in caplog.records if "cannot announce" in r.message]) == 1


def test_without_an_announcer_nothing_is_kept_of_those_that_left() -> None:
    requests = Requests(Defaults(), "tiny", WarnOnce())
    requests.arrived(request("a"))
    requests.ended("a")
    assert requests.left is None and requests.waiting == {}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["arrive", "run", "end", "find", "ask", "order", "tick"]), st.integers(0, 7)))
)
def test_what_the_daemon_knows_is_what_waits(steps: list[tuple[str, int]]) -> None:
    """Every announcement has its withdrawal (Daemon raises on one too many), and none is left behind."""
    world, draw = World(), random.Random(1)
    alive: set[str] = set()
    for what, at in steps:
        name = f"r{at}"
        if what == "arrive":
            world.arrive(name)
            alive.add(name)
        elif name in alive and what == "run":
            world.run(**{name: 10})
        elif name in alive and what == "end":
            world.requests.ended(name)
            world.announcer.withdraw()
            alive.discard(name)
        elif name in alive and what == "find":
            world.requests.found(name, at * 100)
        elif name in alive and what == "ask":
            world.requests.cached(request(name), at)
        elif what == "order":
            world.announcer.ordered(draw.sample(sorted(alive), len(alive)))
        else:
            world.tick()
    world.tick()
    waiting = world.requests.waiting
    assert {one.info.number for one in waiting.values()} == world.daemon.known.keys()
    for one in waiting.values():
        assert sum(f.size_bytes for f in world.daemon.known[one.info.number].flows) == one.awaits()[0] * TOKEN_BYTES
    for name in list(alive):
        world.requests.ended(name)
    world.announcer.withdraw()
    assert world.daemon.known == {}


@given(st.lists(st.permutations(range(9)).flatmap(lambda p: st.integers(0, 9).map(lambda n: p[:n])), max_size=8))
def test_ranks_rise_with_the_order_whatever_it_was(orders: list[list[int]]) -> None:
    ranks = Ranks()
    for order in orders:
        names = [str(at) for at in order]
        found = ranks.arrange(names)
        assert list(found) == names
        assert all(a < b for a, b in itertools.pairwise(found.values()))
        assert all(0 <= rank <= RANK_MAX for rank in found.values())


def test_as_many_ranks_as_possible_stay() -> None:
    ranks = Ranks()
    before = dict(ranks.arrange(list("abcdef")))
    after = ranks.arrange(list("bcfdeg"))
    assert [name for name in "bcde" if after[name] != before[name]] == [] and after["f"] != before["f"]


def test_ranks_are_given_anew_where_there_is_no_room() -> None:
    ranks = Ranks()
    order = ["first", "last"]
    ranks.arrange(order)
    for at in range(40):  # always between the same two
        order.insert(1, str(at))
        found = ranks.arrange(order)
        assert list(found.values()) == sorted(set(found.values()))
    ranks.of["last"] = RANK_MAX
    found = ranks.arrange([*order, "behind"])
    assert max(found.values()) < RANK_MAX and list(found.values()) == sorted(set(found.values()))
