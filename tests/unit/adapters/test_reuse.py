"""Reuse that is loaded or computed again, as the scheduler's connector answers. On plain stand-ins for vLLM's objects;
the engine itself runs in tests/e2e."""

from __future__ import annotations

import time
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from mfsd.client.types import Waiting
from mfsd.policy.outlook import FarLoad, PortLoad, fetch_forecast
from mfsd.policy.serve.fetch import Choice, Decision, Reason, ReuseRule
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.announce import Announcer, Source
from mooncake_adapter.vllm.requests import Requests
from mooncake_adapter.vllm.reuse import UNKNOWN_IN_A_ROW, Parts, ReuseChoice, ReuseOptions, StepPace, options_of
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import WarnOnce
from tests.unit.adapters.test_steps import blocks_of, output

TOKEN_BYTES = 1000
SLO = ReuseOptions(ReuseRule.SLO)


class Store:
    """A store's connector by the contract of those in vLLM 0.32: it loads what it has found, all of it or none."""

    def __init__(self, tokens: int) -> None:
        self.found, self.promised, self.loads = tokens, -1, False

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        self.promised = self.found - computed
        return self.promised, True

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        assert tokens in (0, self.promised)
        self.loads = tokens > 0


class Times:
    """What a session expects of loads: None where it knows nothing of the own port; of an owner that it does not know,
    what the own port alone says."""

    def __init__(self, ns: int | None = None, by_owner: dict[str, int] | None = None, per_byte_ns: int = 0) -> None:
        self.ns, self.by_owner, self.per_byte_ns = ns, by_owner or {}, per_byte_ns
        self.asked: list[tuple[int, int | None, Any, bool, int]] = []

    def fetch_ns(
        self,
        size_bytes: int,
        peer: str | bytes = "",
        deadline_ns: int = 0,
        *,
        nic: int = 0,
        announced_bytes: int = 0,
        owner_bytes: int | None = None,
    ) -> int | None:
        self.asked.append((size_bytes, owner_bytes, peer, bool(deadline_ns), nic))
        if self.ns is None and not self.per_byte_ns:
            return None
        return self.per_byte_ns * size_bytes if self.per_byte_ns else self.by_owner.get(str(peer), self.ns)


class Network:
    """A port of an owner that owes what is announced there, 1 GB/s, for a session's questions and announcements."""

    def __init__(self, owed_bytes: int) -> None:
        self.owed_bytes, self.known = owed_bytes, dict[int, Waiting]()

    def waiting_changed(self, requests: Any, gone: Any = ()) -> None:
        for number in gone:
            del self.known[number]
        self.known |= {one.request_id: one for one in requests}

    def fetch_ns(
        self,
        size_bytes: int,
        peer: str | bytes = "",
        deadline_ns: int = 0,
        *,
        nic: int = 0,
        announced_bytes: int = 0,
        owner_bytes: int | None = None,
    ) -> int | None:
        owed = self.owed_bytes + sum(f.size_bytes for one in self.known.values() for f in one.flows if f.peer == peer)
        own, far = PortLoad(10**12), FarLoad(10**9, owed_ns=owed)
        found = fetch_forecast(size_bytes, own, far, announced_bytes=announced_bytes, far_bytes=owner_bytes)
        return found.time_ns if found is not None else None


def request(name: str, tokens: int = 1000, parameters: dict[str, Any] | None = None, **more: Any) -> Any:
    return Thing(
        request_id=name,
        num_prompt_tokens=tokens,
        num_tokens=tokens,
        kv_transfer_params=parameters or {},
        sampling_params=Thing(extra_args=more or None),
        arrival_time=time.time(),
        session_id=None,
    )


def made(times: Any, options: ReuseOptions = SLO, bytes_of_token: float = TOKEN_BYTES) -> ReuseChoice:
    """A token takes 0.1 ms here; the owners send eight times the bytes that come in by this NIC."""
    of_token = TokenBytes(bytes_of_token, 8 * bytes_of_token)
    choice = ReuseChoice(options, Requests(Defaults(), "tiny", WarnOnce()), times, of_token, 3, WarnOnce())
    choice.pace._spent_ns, choice.pace._spent_tokens = 1e8, 1000.0
    return choice


def asked(choice: ReuseChoice, one: Any, store: Any, computed: int = 0) -> tuple[int | None, bool]:
    """As MfsConnector asks, and vLLM then does."""
    choice._requests.cached(one, computed)
    answer = choice.answer(one, computed, store.get_num_new_matched_tokens(one, computed))
    if answer[0] is not None:
        store.update_state_after_alloc(one, None, answer[0])
        choice.allocated(one.request_id)
    return answer


def test_what_is_late_with_its_reuse_computes_again() -> None:
    """100 ms of computing are in time, a second of loading is not."""
    choice, store = made(Times(1_000_000_000)), Store(900)
    assert asked(choice, request("a", ttft_slo_ms=500), store) == (0, False)
    assert not store.loads and choice.counts == {"recompute": 1}
    assert choice.explanation("a") == "late with the reuse, in time without"
    assert choice.ended("a", {"x": 1}) == {"x": 1, "mfs_reuse": "computed again: late with the reuse, in time without"}
    assert choice.ended("a", None) is None and choice.explanation("a") == ""
    times = Times(300_000_000)
    loads = made(times)
    assert asked(loads, request("b", ttft_slo_ms=500), store, computed=100) == (800, True)
    assert store.loads and loads.counts == {"fetch": 1} and loads.ended("b", None) is None
    assert times.asked == [(800 * TOKEN_BYTES, 8 * 800 * TOKEN_BYTES, "", True, 3)]


@pytest.mark.parametrize(
    "choice",
    [
        made(Times(None)),
        made(Times(10**12), bytes_of_token=0.0),
        made(Times(None, {"10.0.0.2": 10**12}), ReuseOptions(ReuseRule.SLO, owners=("10.0.0.1", "10.0.0.2"))),
        made(Thing()),
        made(Times(-1)),
    ],
    ids=["unknown", "size unknown", "the own port unknown", "no such question", "no time"],
)
def test_what_is_not_known_is_loaded(choice: ReuseChoice) -> None:
    assert asked(choice, request("a", ttft_slo_ms=500), Store(900)) == (900, True)


def test_before_a_step_was_measured_all_is_loaded() -> None:
    choice = made(Times(10**12))
    choice.pace = StepPace()
    assert asked(choice, request("a", ttft_slo_ms=500), Store(900)) == (900, True)


def test_requests_without_a_deadline_are_loaded_by_slo_and_weighed_by_cost() -> None:
    assert asked(made(Times(10**12)), request("a"), Store(900)) == (900, True)
    by_cost = made(Times(10**12), ReuseOptions(ReuseRule.COST))
    assert asked(by_cost, request("a"), Store(900)) == (0, False)


def test_what_another_instance_keeps_is_always_loaded() -> None:
    """It would wait for a reader that never comes."""
    one = request("a", parameters={"do_remote_prefill": True}, ttft_slo_ms=500)
    assert asked(made(Times(10**12)), one, Store(900)) == (900, True)


@pytest.mark.parametrize("found", [(None, False), (0, False)])
def test_no_hit_and_no_answer_yet_are_passed_on(found: tuple[int | None, bool]) -> None:
    times = Times(10**12)
    assert made(times).answer(request("a", ttft_slo_ms=500), 0, found) == found and times.asked == []


def test_a_load_takes_as_long_as_from_the_slowest_owner() -> None:
    options = ReuseOptions(ReuseRule.SLO, owners=("10.0.0.1", "10.0.0.2"))
    for slow in options.owners:
        choice = made(Times(1000, {slow: 10**12}), options)
        assert asked(choice, request("a", ttft_slo_ms=500), Store(900)) == (0, False)


def test_of_an_owner_that_is_unknown_the_own_port_alone_says_it() -> None:
    options = ReuseOptions(ReuseRule.SLO, owners=("10.0.0.1", "10.0.0.2"))
    for own_ns, answer in ((1000, (900, True)), (10**12, (0, False))):
        assert (
            asked(made(Times(own_ns, {"10.0.0.1": 1000}), options), request("a", ttft_slo_ms=500), Store(900)) == answer
        )


def test_what_a_request_has_announced_itself_does_not_make_it_late() -> None:
    """vLLM asks again in each step while it has no memory for it, and announces it meanwhile. Its 0.3 s behind 0.1 s of
    others are in time, twice the 0.3 s would not be."""
    network, store, options = Network(10**8), Store(900), ReuseOptions(ReuseRule.SLO, owners=("10.0.0.1",))
    requests = Requests(Defaults(), "tiny", WarnOnce())
    of_token, now_s = TokenBytes(1, 333_333), 0.0
    choice = ReuseChoice(options, requests, network, of_token, 3, WarnOnce())
    choice.pace._spent_ns, choice.pace._spent_tokens = 1e8, 1000.0
    announcer = Announcer(network, requests, Source(of_token, 3, options.owners), WarnOnce(), lambda: now_s)
    choice.announced = announcer.announced_bytes
    one = request("a", ttft_slo_ms=500)
    for _ in range(4):
        requests.cached(one, 0)
        answer = choice.answer(one, 0, store.get_num_new_matched_tokens(one, 0))
        requests.found("a", answer[0])  # and no memory is found for it
        assert answer == (900, True)
        now_s += 1.0
        announcer.tick()
        assert [f.size_bytes for w in network.known.values() for f in w.flows] == [(900 * 333_333)]
    network.owed_bytes = 10**9
    assert choice.answer(one, 0, (900, True)) == (0, False), "what others announce counts"


def test_those_before_count_and_those_that_load_do_not() -> None:
    """Loading takes 460 ms of 500. Alone it is too late with 50 ms of computing; behind 4,500 tokens both are late."""
    choice = made(Times(460_000_000))
    assert asked(choice, request("a", ttft_slo_ms=500), Store(500)) == (0, False)
    behind = made(Times(460_000_000))
    behind._requests.arrived(request("before", 4500))
    assert asked(behind, request("a", ttft_slo_ms=500), Store(500)) == (500, True)
    passed = made(Times(460_000_000))
    passed._requests.loading(request("before", 4500), blocks_of(1), 10)
    assert asked(passed, request("a", ttft_slo_ms=500), Store(500)) == (0, False)


class Blocks:
    """A store's connector that knows KV by its blocks, as MooncakeStoreConnector: a shorter prompt has the same."""

    def __init__(self, tokens: int, block: int) -> None:
        self.found, self.block, self.promised = tokens, block, -1
        self.gone = False

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        ends = min(self.found, (request.num_tokens - 1) // self.block * self.block)
        self.promised = 0 if self.gone else max(0, ends - computed)
        return self.promised, True

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        assert tokens in (0, self.promised)


def in_parts(times: Times, store: Blocks, before_tokens: int) -> ReuseChoice:
    """Behind so many tokens of another prompt, 0.1 ms each."""
    choice = made(times)
    choice.parts = Parts(store.get_num_new_matched_tokens, store.block)
    choice._requests.arrived(request("before", before_tokens))
    return choice


def test_what_is_here_before_the_engine_could_begin_is_loaded_in_whole_blocks() -> None:
    """Loading takes 1 ms a token, and 300 tokens' time passes before this one can begin: 300 of 960, so 256."""
    store = Blocks(960, 128)
    choice = in_parts(Times(per_byte_ns=1000), store, 3000)
    one = request("a", ttft_slo_ms=500)
    assert asked(choice, one, store) == (256, True)
    assert choice.counts == {"part": 1}
    reported = "computed again in part: late with the reuse, in time without"
    assert choice.ended("a", None) == {"mfs_reuse": reported}
    for computed, loaded in ((128, 256), (100, 284)):  # from where the cache ends to the end of a block
        choice = in_parts(Times(per_byte_ns=1000), store, 3000)
        assert asked(choice, request("b", ttft_slo_ms=500), store, computed)[0] == loaded


def test_less_than_a_block_is_computed_again() -> None:
    store = Blocks(960, 128)
    choice = in_parts(Times(per_byte_ns=1000), store, 1000)
    assert asked(choice, request("a", ttft_slo_ms=500), store) == (0, False)
    assert choice.counts == {"recompute": 1}


def test_what_the_store_says_last_of_a_part_stands() -> None:
    """It may have lost a block since it was asked about the whole."""
    store = Blocks(960, 128)
    choice = in_parts(Times(per_byte_ns=1000), store, 3000)
    one = request("a", ttft_slo_ms=500)
    found = store.get_num_new_matched_tokens(one, 0)
    store.gone = True
    assert choice.answer(one, 0, found) == (0, True)
    store.update_state_after_alloc(one, None, 0)


def test_a_part_that_cannot_be_found_is_computed_again_with_the_rest() -> None:
    store = Blocks(960, 128)
    choice = in_parts(Times(per_byte_ns=1000), store, 3000)
    one = request("a", ttft_slo_ms=500)
    found = store.get_num_new_matched_tokens(one, 0)

    def fails(request: Any, computed: int) -> tuple[int | None, bool]:
        raise RuntimeError("the store's metadata is gone")

    choice.parts = Parts(fails, store.block)
    assert choice.answer(one, 0, found) == (0, False)
    choice.allocated("a")
    assert choice.counts == {"recompute": 1}


def test_a_load_that_would_outlive_its_lease_computes_again() -> None:
    choice = made(Times(ns=6_000_000_000), ReuseOptions(ReuseRule.COST))
    choice.pace._spent_ns, choice.pace._spent_tokens = 1e10, 1000.0  # computing is slower still
    one = request("0", tokens=1000)
    assert asked(choice, one, Store(900)) == (900, True)
    choice.lease_s = 5.0
    assert asked(choice, one, Store(900)) == (0, False)
    assert choice.explanation("0") == "the load would outlive its lease"
    choice.lease_s = 7.0
    assert asked(choice, one, Store(900)) == (900, True)


def test_the_decision_that_stands_is_counted_once() -> None:
    """vLLM asks again as long as it has no blocks, and tells of blocks again when a load has ended."""
    choice, store = made(Times(10**12)), Store(900)
    one = request("a", ttft_slo_ms=500)
    for _ in range(3):
        assert choice.answer(one, 0, store.get_num_new_matched_tokens(one, 0)) == (0, False)
    assert choice.counts == {}
    counted: list[Decision] = []
    choice.counted = counted.append
    choice.allocated("a")
    choice.allocated("a")
    assert choice.counts == {"recompute": 1}
    assert [(one.choice, one.reason) for one in counted] == [(Choice.RECOMPUTE, Reason.LATE_WITH_IT)]


def test_each_load_says_why() -> None:
    late = request("late", ttft_slo_ms=50)
    kept = request("kept", parameters={"do_remote_prefill": True}, ttft_slo_ms=500)
    for times, one, reason in (
        (Times(1000), request("soon", ttft_slo_ms=500), Reason.IN_TIME),
        (Times(10**12), late, Reason.LATE_EITHER_WAY),
        (Times(None), request("unknown", ttft_slo_ms=500), Reason.BACKLOG_UNKNOWN),
        (Times(1000), request("without"), Reason.NO_DEADLINE),
        (Times(1000), kept, Reason.KEPT_ELSEWHERE),
    ):
        choice = made(times)
        assert asked(choice, one, Store(900)) == (900, True)
        assert choice.explanation(one.request_id) == reason.value
        assert choice.ended(one.request_id, None) is None, "an answer says of what was computed again alone"
    choice = made(Times(1000))
    choice.pace = StepPace()
    asked(choice, request("first", ttft_slo_ms=500), Store(900))
    assert choice.explanation("first") == Reason.NOTHING_MEASURED.value


def test_a_network_that_says_nothing_for_long_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    times = Times(None)
    choice, one = made(times), request("a", ttft_slo_ms=500)

    def answers(count: int) -> None:
        for _ in range(count):
            choice.answer(one, 0, (900, True))

    answers(UNKNOWN_IN_A_ROW - 1)
    times.ns = 1000
    answers(1)
    times.ns = None
    answers(UNKNOWN_IN_A_ROW - 1)
    assert not caplog.records, "it knew once in between"
    answers(2 * UNKNOWN_IN_A_ROW)
    assert len(caplog.records) == 1 and f"{UNKNOWN_IN_A_ROW} decisions in a row" in caplog.text


def test_steps_are_measured_where_the_engine_went_on() -> None:
    now_ns, pace = 0, StepPace(lambda: now_ns)
    requests = Requests(Defaults(), "tiny", WarnOnce())
    for name in "abc":
        requests.arrived(request(name, 100))

    def planned(
        new: dict[str, tuple[int, list[int]]], cached: dict[str, tuple[int, list[int] | None]], **n: int
    ) -> None:
        pace.planned(requests.chunks(output(new, cached, **n)), requests.ready())

    planned({"a": (0, [1])}, {}, a=40)
    assert pace.seconds(1) is None
    now_ns = 40_000_000
    planned({}, {"a": (40, None)}, a=60)
    assert pace.seconds(100) == pytest.approx(0.1)
    requests.ended("a")
    now_ns = 10_000_000_000  # nothing to do in between: b and c came late
    requests.ended("b")
    requests.ended("c")
    requests.arrived(request("d", 100))
    planned({"d": (0, [2])}, {}, d=100)
    assert pace.seconds(100) == pytest.approx(0.1)


def test_the_configuration_is_read_and_what_cannot_be_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    once = WarnOnce()
    assert options_of(None, "MooncakeStoreConnector", once) == ReuseOptions()
    good = {"rule": "slo", "nic": "mlx5_0", "owners": ["10.0.0.1"]}
    assert options_of(good, "MooncakeStoreConnector", once) == ReuseOptions(ReuseRule.SLO, "mlx5_0", ("10.0.0.1",))
    assert not caplog.records
    for bad in ({"rule": "often"}, {"rules": "slo"}, "slo"):
        assert options_of(bad, "MooncakeStoreConnector", once) == ReuseOptions()
    assert [
        r.message for r in caplog.records if 'kv_connector_extra_config["reuse"]' in r.message and "often" in r.message
    ]
    for name in ("store-1", "10.0.0.1:17001", ""):
        caplog.clear()
        owners = {"rule": "slo", "owners": ["10.0.0.1", name]}
        assert options_of(owners, "MooncakeStoreConnector", WarnOnce()) == ReuseOptions()
        assert f"owners: {name!r} is not the address of a NIC" in caplog.text
    caplog.clear()
    assert options_of({"rule": "slo"}, "NixlConnector", once) == ReuseOptions()
    assert len(caplog.records) == 1 and "'NixlConnector' does not read from a store" in caplog.text


def test_a_part_is_loaded_where_that_is_asked_for_and_can_be(caplog: pytest.LogCaptureFixture) -> None:
    given = {"rule": "slo", "parts": True}
    assert options_of(given, "MooncakeStoreConnector", WarnOnce()) == ReuseOptions(ReuseRule.SLO, parts=True)
    assert not caplog.records and not ReuseOptions().parts
    assert options_of(given, "LMCacheConnectorV1", WarnOnce()) == ReuseOptions(ReuseRule.SLO)
    assert "'LMCacheConnectorV1' cannot load a part of what it has found" in caplog.text
