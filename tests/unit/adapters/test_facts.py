"""What plans know of vLLM's waiting requests: what is cached here, and what a store has."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any

from mfsd.policy.serve import ServeConfig, ServeState
from mfsd.serve.engine import Engine
from mfsd.serve.promise import Words
from mfsd.serve.requests import Fact
from mfsd.serve.settings import Settings
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.facts import CACHED_AGAIN_S, CACHED_ASKED_MAX, WaitingFacts
from mooncake_adapter.vllm.requests import Requests
from mooncake_adapter.warn_once import WarnOnce
from tests.unit.adapters.test_reuse import request as found_request
from tests.unit.adapters.test_steps import blocks_of
from tests.unit.policy.serve.test_plan import measured


class Cache:
    """A prefix cache that has so many tokens of every prompt."""

    def __init__(self, tokens: int = 0) -> None:
        self.tokens, self.asked = tokens, 0

    def __call__(self, request: Any) -> int:
        self.asked += 1
        return self.tokens


class World:
    def __init__(self, cached: int = 0) -> None:
        self.now_s = 100.0
        self.cache, self.known = Cache(cached), dict[str, int | None]()
        self.facts = WaitingFacts(self.cache, lambda name: self.known.get(name, 0), lambda: self.now_s)

    def of(self, *requests: Any) -> list[tuple[int, int, bool]]:
        found = self.facts.of(requests)
        return [(one.num_computed_tokens, one.num_cached_tokens, one.may_load) for one in found]


def waiting(name: str = "a", tokens: int = 1000, **more: Any) -> Any:
    usual = {"num_computed_tokens": 0, "num_output_tokens": 0, "num_preemptions": 0, "resumable": False}
    parameters = {"kv_transfer_params": None, "num_prompt_tokens": tokens, "num_tokens": tokens}
    return Thing(request_id=name, **{**usual, **parameters, **more})


def test_the_prefix_cache_is_asked_again_after_a_while_and_of_some_requests_a_step() -> None:
    world = World(cached=128)
    many = [waiting(str(number)) for number in range(CACHED_ASKED_MAX + 1)]
    assert world.of(*many) == [(128, 128, False)] * CACHED_ASKED_MAX + [(0, 0, False)]
    assert world.of(*many)[-1] == (128, 128, False) and world.cache.asked == CACHED_ASKED_MAX + 1
    world.cache.tokens, world.now_s = 256, world.now_s + CACHED_AGAIN_S
    assert world.of(many[0]) == [(256, 256, False)]
    for one in many:
        world.facts.ended(one.request_id)
    assert len(world.facts) == 0


def test_what_a_store_has_counts_as_cached_and_what_is_not_known_may_be_loaded() -> None:
    world = World(cached=128)
    world.known = {"unasked": None, "found": 896, "all": 1000, "less": 64}
    names = ("unasked", "found", "all", "less")
    assert world.of(*map(waiting, names)) == [(128, 128, True), (896, 896, False), (999, 999, False), (128, 128, False)]


def test_what_was_found_counts_for_the_first_time_alone_and_not_beside_what_is_computed() -> None:
    world = World()
    world.known = {"a": 896, "b": None}
    assert world.of(waiting("a", num_preemptions=1), waiting("b", num_preemptions=1)) == [(0, 0, False)] * 2
    assert world.of(waiting("a", num_computed_tokens=512)) == [(512, 512, False)]
    loads = waiting("a", kv_transfer_params={"do_remote_prefill": True})
    assert world.of(loads) == [(999, 999, False)]


def test_a_connectors_requests_know_what_was_found_from_the_answer_until_it_is_on_its_way() -> None:
    requests = Requests(Defaults(), "tiny", WarnOnce())
    one = found_request("a")
    assert requests.known("a") is None
    requests.arrived(one)
    assert requests.known("a") is None
    requests.cached(one, 128)
    requests.found("a", None)  # it is decided later
    assert requests.known("a") is None
    requests.found("a", 768)
    assert requests.known("a") == 896
    requests.loading(one, blocks_of(1), 768)
    assert requests.known("a") is None


def test_a_prompt_that_a_store_may_have_is_not_lost_before_it_was_asked_nor_when_it_has_it() -> None:
    """Computing takes 200 ms here, and 50 are left."""
    engine = Engine(Settings(), ServeConfig(), lambda kind, text: None, clock=lambda: 100.0)
    engine.state = ServeState(pace=measured())
    engine.arrived("a", Words(ttft_ms=50), 0.0, 2000, 10)

    def lost(*fact: Any) -> bool:
        decision = engine.plan([Fact("a", *fact)], [])
        assert decision is not None
        return bool(decision.plan.lost)

    assert lost(0)
    assert not lost(0, 0, 0, 0, True)
    assert lost(0)
    assert not lost(1900, 1900)
