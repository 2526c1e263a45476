"""What the vLLM connector tells: batches, layers, owners. On plain stand-ins for vLLM's objects; the engine itself runs
in tests/e2e."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from mooncake_adapter.metadata import Metadata, MetadataSources, request_number
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.owners import report_owners
from mooncake_adapter.vllm.requests import Requests, report_untested, supported_version
from mooncake_adapter.vllm.worker import Steps, layer_number, regions_of
from mooncake_adapter.warn_once import WarnOnce
from tests.support.scripted_session import ScriptedSession

BLOCK, BLOCKS = 4096, 16


class Cache:
    """The part of a tensor that the connector reads."""

    shape = (BLOCKS, 2)

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address

    def stride(self, dimension: int) -> int:
        return BLOCK // 2

    def element_size(self) -> int:
        return 2


CACHES = {f"model.layers.{n}.self_attn.attn": Cache(0x10000 + n * BLOCK * BLOCKS) for n in range(4)}


def address(layer: int, block: int) -> int:
    return 0x10000 + layer * BLOCK * BLOCKS + block * BLOCK


def request(name: str, tokens: int = 32, **more: Any) -> Any:
    parameters = {"transfer_id": f"x-{name}", "do_remote_decode": True}
    sampling = Thing(extra_args=more or None)
    return Thing(
        request_id=name,
        num_prompt_tokens=tokens,
        kv_transfer_params=parameters,
        sampling_params=sampling,
        arrival_time=time.time(),
        session_id=None,
    )


def output(
    new: dict[str, tuple[int, list[int]]], cached: dict[str, tuple[int, list[int] | None]], **tokens: int
) -> Any:
    return Thing(
        scheduled_new_reqs=[Thing(req_id=n, num_computed_tokens=c, block_ids=(b,)) for n, (c, b) in new.items()],
        scheduled_cached_reqs=Thing(
            req_ids=list(cached),
            num_computed_tokens=[c for c, _ in cached.values()],
            new_block_ids=[None if b is None else (b,) for _, b in cached.values()],
        ),
        num_scheduled_tokens=tokens,
    )


def blocks_of(*unhashed: int) -> Any:
    return Thing(get_unhashed_block_ids_all_groups=lambda: [[block] for block in unhashed])


@pytest.fixture
def session() -> ScriptedSession:
    return ScriptedSession()


@pytest.fixture
def steps(session: ScriptedSession) -> Steps:
    once = WarnOnce()
    made = Steps(session, MetadataSources(once), once, "P")  # type: ignore[arg-type]
    made.register(CACHES)
    return made


@pytest.fixture
def requests() -> Requests:
    return Requests(Defaults(), "tiny", WarnOnce())


def test_names_and_memory_of_layers() -> None:
    assert [layer_number(name) for name in CACHES] == [0, 1, 2, 3]
    assert layer_number("encoder", 7) == 7
    assert [(r.address, r.block_bytes, r.blocks, r.layer) for r in regions_of(CACHES)][1] == (0x20000, BLOCK, BLOCKS, 1)
    assert regions_of({"mamba": (1, 2)}) == []


def test_a_batch_has_its_requests_deadlines_and_every_layer_once(
    steps: Steps, requests: Requests, session: ScriptedSession
) -> None:
    for name, slo in (("a", 500), ("b", 100)):
        requests.arrived(request(name, ttft_slo_ms=slo, session="s"))
    steps.begin(requests.chunks(output({"a": (0, [1, 2]), "b": (0, [3])}, {}, a=32, b=16)))
    for layer in (0, 0, 1, 1, 2, 3, 4, 2):
        steps.layer(layer)
    reported, batch = session.batches[0]
    assert batch.layers == [0, 1, 2, 3, 4]
    assert reported["layers"] == 4
    a, b = reported["requests"]
    assert (a.request_id, b.request_id) == (request_number("x-a"), request_number("x-b"))
    assert 0 < b.deadline_ns - time.monotonic_ns() <= 100_000_000 < a.deadline_ns - time.monotonic_ns() <= 500_000_000
    assert reported["deadline_ns"] == b.deadline_ns
    assert a.budget_ns == 500_000_000
    assert a.program_id == request_number("s")
    assert [(f.stage, f.peer, f.size_bytes) for f in a.flows] == [(3, "", 2 * 4 * BLOCK)]


def test_a_batch_lasts_until_its_requests_have_sent(steps: Steps, requests: Requests, session: ScriptedSession) -> None:
    requests.arrived(request("a"))
    steps.begin(requests.chunks(output({"a": (0, [1])}, {}, a=16)))  # half of the prompt
    steps.end()
    assert session.batches[0][1].ended
    steps.begin(requests.chunks(output({}, {"a": (16, [2])}, a=16)))
    steps.end()
    assert not session.batches[1][1].ended
    metadata = steps.known("a")
    assert metadata is not None
    assert metadata.batch is session.batches[1][1]
    steps.finished({"a"}, ())
    assert not session.batches[1][1].ended
    steps.finished(set(), {"a"})
    assert session.batches[1][1].ended
    assert steps.known("a") is None


@pytest.mark.parametrize("named", ["x-a", "a"])
def test_a_batch_does_not_outlast_a_request_that_was_aborted(
    steps: Steps, requests: Requests, session: ScriptedSession, named: str
) -> None:
    """The inner connector never says that it has sent it: Mooncake's names the transfer, NIXL's the request."""
    requests.arrived(request("a"))
    steps.begin(requests.chunks(output({"a": (0, [1, 2])}, {}, a=32)))
    steps.end()
    steps.finished({"a"}, ())
    assert not session.batches[0][1].ended
    steps.aborted({request_number(named)})
    assert session.batches[0][1].ended
    assert steps.known("a") is None


def test_a_batch_names_the_decode_instance_that_the_router_has_named(
    steps: Steps, requests: Requests, session: ScriptedSession
) -> None:
    one = request("a")
    one.kv_transfer_params["decode_nic"] = "10.0.0.7"
    requests.arrived(one)
    steps.begin(requests.chunks(output({"a": (0, [1, 2])}, {}, a=32)))
    assert [(f.stage, f.peer) for f in session.batches[0][0]["requests"][0].flows] == [(3, "10.0.0.7")]


def test_layer_wise_flows_go_layer_by_layer(steps: Steps, requests: Requests, session: ScriptedSession) -> None:
    seen: list[Any] = []
    steps.pushes = Thing(begin=seen.append, layer_ended=lambda *what: seen.append(what))
    requests.arrived(request("a"))
    chunks = requests.chunks(output({"a": (0, [1, 2])}, {}, a=32))
    steps.begin(chunks)
    steps.layer_ended(0, "event")
    reported = session.batches[0][0]["requests"][0]
    assert [(f.layer, f.size_bytes) for f in reported.flows] == [(layer, 2 * BLOCK) for layer in range(4)]
    assert seen == [chunks, (0, "event")]
    assert session.batches[0][1].layers == [1]


def test_decode_steps_are_no_batch(steps: Steps, requests: Requests, session: ScriptedSession) -> None:
    requests.arrived(request("a", tokens=8))
    steps.begin(requests.chunks(output({}, {"a": (8, None)}, a=1)))
    steps.layer(1)
    steps.end()
    assert session.batches == []


def test_blocks_belong_to_their_request_and_layer(steps: Steps, requests: Requests) -> None:
    requests.arrived(request("a"))
    requests.arrived(request("b"))
    steps.begin(requests.chunks(output({"a": (0, [1, 2]), "b": (0, [5])}, {}, a=32, b=16)))
    found = steps.blocks.find(address(3, 2) + 100)
    assert found is not None
    assert (found.request_id, found.layer) == (request_number("x-a"), 3)
    assert steps.blocks.find(address(0, 9)) is None
    assert steps.blocks.find(5) is None
    steps.begin(requests.chunks(output({}, {"b": (16, [2])}, b=16)))  # the block goes to the next request
    moved = steps.blocks.find(address(1, 2))
    assert moved is not None
    assert moved.request_id == request_number("x-b")


def test_blocks_that_are_loaded_before_a_step_have_an_owner(
    steps: Steps, requests: Requests, session: ScriptedSession
) -> None:
    """An asynchronous load: named by its request, without a batch, which runs a step only later."""
    requests.loading(request("a"), blocks_of(4, 5), 16)
    assert steps.blocks.find(address(2, 4)) is None
    steps.begin(requests.chunks(output({}, {})))
    steps.load(requests.loads())
    found = [steps.blocks.find(address(layer, block)) for layer, block in ((2, 4), (0, 5))]
    assert [(f.request_id, f.layer, f.batch) for f in found if f] == [(request_number("x-a"), n, None) for n in (2, 0)]
    assert session.batches == [] and requests.loads() == []
    steps.finished(["a"], [])
    assert steps.blocks.find(address(2, 4)) is None


def test_a_load_must_be_there_in_time_for_the_tokens_that_follow_it(
    steps: Steps, requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the deadline less what tokens lately took: those before it that wait for no load, and its own."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr("mooncake_adapter.vllm.worker.time.monotonic_ns", lambda: now_ns)

    def needed(name: str, block: int, *, cached: int = 0, loaded: int = 0) -> tuple[int, int]:
        """(tokens to compute, when its blocks must be there)."""
        one = request(name, 100, ttft_slo_ms=500)
        requests.cached(one, cached)
        requests.loading(one, blocks_of(block), loaded)
        loads = requests.loads()
        steps.load(loads)
        found = steps.blocks.find(address(0, block))
        assert found is not None
        return loads[0].tokens, found.deadline_ns

    requests.arrived(request("a", 100))
    assert needed("b", 1, loaded=90) == (110, 0), "nothing is known before a step has ended"
    steps.begin(requests.chunks(output({"a": (0, [2])}, {}, a=40)))
    now_ns += 40_000_000  # a token takes a millisecond
    steps.end()
    tokens, needed_ns = needed("c", 3, cached=20, loaded=50)
    assert tokens == 60 + 30, "the rest of a, nothing of b, which loads, and its own"
    assert needed_ns == steps.metadata(requests.arrived(request("c"))).deadline_ns - 90_000_000
    steps.begin(requests.chunks(output({"b": (90, [1])}, {"a": (40, None)}, a=60, b=10)))
    assert needed("d", 4, loaded=99)[0] == 1, "what is in the step is computed by its end"
    now_ns += 210_000_000  # 70 tokens of three milliseconds
    steps.end()
    per_token_ns = (0.8 * 40 + 210) / (0.8 * 40 + 70) * 1e6
    tokens, needed_ns = needed("e", 5)
    assert needed_ns == steps.metadata(requests.arrived(request("e"))).deadline_ns - int(tokens * per_token_ns)
    steps.finished(["e"], [])
    assert steps.blocks.find(address(0, 5)) is None


def test_what_is_loaded_within_its_step_belongs_to_the_step(steps: Steps, requests: Requests) -> None:
    one = request("a", ttft_slo_ms=500)
    requests.loading(one, blocks_of(4), 16)
    steps.begin(requests.chunks(output({"a": (16, [4])}, {}, a=16)))
    assert requests.loads() == []
    found = steps.blocks.find(address(0, 4))
    assert found is not None and found.batch is not None
    steps.finished(["a"], ["a"])
    assert steps.blocks.find(address(0, 4)) is None


def test_metadata_of_an_ended_request_is_taken_as_unknown(steps: Steps, requests: Requests) -> None:
    reported = requests.arrived(request("a"))
    steps.begin(requests.chunks(output({"a": (0, [1])}, {}, a=32)))
    steps.end()
    assert requests.ended("a") == reported
    assert requests.ended("a") is None
    steps.finished({"a"}, {"a"})
    steps.finished({"a"}, {"a"})
    assert requests.chunks(output({}, {"a": (32, None)}, a=1)) == []
    assert steps.blocks.find(address(0, 1)) is None


def test_a_transfer_of_an_ended_request_is_reported_once_and_has_no_deadline(
    steps: Steps, requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    requests.arrived(request("a"))
    steps.begin(requests.chunks(output({"a": (0, [1])}, {}, a=32)))
    assert steps.metadata_at("a", 3).batch is not None
    steps.end()
    steps.finished({"a"}, {"a"})
    assert not caplog.records
    assert {steps.metadata_at("a", layer) for layer in range(4)} == {
        Metadata(request_number("a"), layer=layer) for layer in range(4)
    }
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'a' has ended" in caplog.text


def test_mooncakes_pointers_know_their_owners(steps: Steps, requests: Requests) -> None:
    """One call of vLLM's Mooncake worker mixes requests that share a block: each pointer counts for its own request."""
    for name in "ab":
        requests.arrived(request(name))
    steps.begin(requests.chunks(output({"a": (0, [1, 2]), "b": (0, [1, 3])}, {}, a=32, b=32)))
    blocks = {"a": [1, 2], "b": [1, 3]}

    class Worker:
        async def _build_transfer_params(self, ready: list[Any], *rest: Any) -> tuple[Any, ...]:
            addresses = [address(layer, block) for d, m in ready for layer in range(4) for block in blocks[m.p_req_id]]
            return addresses, [one + 1 for one in addresses], [BLOCK] * len(addresses), [], None

    worker = Worker()
    assert report_owners(Thing(connector_worker=worker), steps, WarnOnce())
    ready = [("da", Thing(p_req_id="a", transfer_id="x-a")), ("db", Thing(p_req_id="b", transfer_id="x-b"))]
    addresses, peers, lengths, failed, message = asyncio.run(worker._build_transfer_params(ready, None, None, None))
    assert len(addresses) == len(peers) == len(lengths) == len(addresses.owners) == 16
    assert [(o.request_id, o.layer) for o in addresses.owners] == [
        (request_number(f"x-{name}"), layer) for name in "ab" for layer in range(4) for _ in range(2)
    ]
    assert (failed, message) == ([], None)


def test_another_mooncake_worker_is_reported_by_blocks(steps: Steps, caplog: pytest.LogCaptureFixture) -> None:
    once = WarnOnce()
    for _ in range(2):
        assert not report_owners(Thing(connector_worker=Thing()), steps, once)
    assert len(caplog.records) == 1


def test_an_unknown_connector_is_reported_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    once = WarnOnce()
    for _ in range(3):
        report_untested("NewConnector", once)
    report_untested("MooncakeConnector", once)
    assert len(caplog.records) == 1
    assert "'NewConnector' was not tested" in caplog.text


def test_another_vllm_is_reported_once_and_runs_unscheduled(caplog: pytest.LogCaptureFixture) -> None:
    once = WarnOnce()
    assert supported_version("0.32.0+cpu", once)
    assert not any(supported_version("0.99.0", once) for _ in range(3))
    assert len(caplog.records) == 1
    assert "tested: 0.32.0" in caplog.text


def test_pruned_requests_are_reported() -> None:
    session = ScriptedSession()
    requests = Requests(Defaults(), "tiny", WarnOnce(), session.pruned)
    reported = requests.arrived(request("a"))
    assert not requests.is_pruned("a")
    session.pruned_requests.add(reported.number)
    assert requests.is_pruned("a")
    assert not requests.is_pruned("unknown")


@pytest.mark.parametrize("answer", [None, {}, {"do_remote_prefill": True}])
def test_the_answer_of_a_pruned_request_says_so(answer: dict[str, Any] | None) -> None:
    session = ScriptedSession()
    requests = Requests(Defaults(), "tiny", WarnOnce(), session.pruned)
    session.pruned_requests.add(requests.arrived(request("a")).number)
    requests.arrived(request("b"))
    assert requests.reported("a", answer) == {**(answer or {}), "mfs_pruned": True}
    assert requests.reported("b", answer) is answer
    assert requests.reported("a", answer) is answer  # it has ended


def test_a_finder_that_owns_nothing_costs_no_search() -> None:
    sources = MetadataSources(WarnOnce())
    assert not sources.any_owner()
    sources.ranges.add(1, 1, Metadata(1))
    assert sources.any_owner()
