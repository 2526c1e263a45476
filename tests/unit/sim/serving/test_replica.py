"""The step-level replica: nothing is lost, memory holds, and first come first served is what a few lines say it is."""

from __future__ import annotations

import io
from collections import deque

import msgspec
import pytest

from bench.sim.serving import Call, Eviction, Expect, Program, Record, ReplicaConfig, chain, simulate
from bench.sim.serving.cost import Batch, Linear
from bench.sim.serving.replay import Recorder, differing
from mfsd.policy.serve import Policy, Relegation, ServeConfig, Service, StepView
from tests.unit.sim.serving.workloads import calls, fixed, programs

POLICIES = [fixed(Policy.FCFS), ServeConfig(policy=Policy.HYBRID), ServeConfig(policy=Policy.FIT)]
PROGRAMS = ServeConfig(policy=Policy.MLFQ, requests_max=8, relegation=Relegation.NONE, queue_first_s=0.2)


@pytest.mark.parametrize("policy", [p.value for p in Policy])
def test_every_call_ends_and_tokens_add_up(policy: str) -> None:
    work: list[Call | Program] = [*calls(40, 6.0), *programs(6, 1.0)]
    config = ReplicaConfig(serve=ServeConfig(policy=Policy(policy)), kv_tokens=60_000)
    outcome = simulate(config, work)
    records, totals = outcome.records, outcome.replicas[0]
    assert outcome.unfinished == 0
    assert len(records) == 40 + sum(len(p.calls) for p in work if isinstance(p, Program))
    assert all(r.produced == r.output_tokens for r in records)
    assert all(r.computed_tokens + r.cached_tokens == r.prompt_tokens for r in records)
    assert totals.prefill_tokens == sum(r.computed_tokens for r in records)
    assert totals.decode_tokens == sum(r.output_tokens - 1 for r in records)
    for r in records:
        assert r.begin_s is not None and r.first_token_s is not None and r.end_s is not None
        assert r.arrival_s <= r.begin_s < r.first_token_s <= r.end_s <= outcome.end_s
    assert any(r.cached_tokens for r in records)


def test_what_does_not_end_by_the_horizon_is_reported() -> None:
    work = calls(200, 20.0)
    whole, part = (simulate(ReplicaConfig(), work, until_s=until) for until in (None, 5.0))
    assert whole.unfinished == 0 < part.unfinished < 200 and part.end_s == 5.0
    for a, b in zip(whole.records, part.records, strict=True):
        assert b.end_s in (None, a.end_s)
    assert any(r.relegated and r.begin_s is None for r in part.records) or not any(r.relegated for r in whole.records)


def reference(work: list[Call], chunk: int) -> list[tuple[float, float]]:
    """First token and end of each, first come first served with so many tokens a step: written without the policy."""
    seconds, now, arriving = Linear().timer(), 0.0, deque(enumerate(work))
    queue: deque[list[int]] = deque()  # number, prompt tokens left
    decodes: dict[int, list[int]] = {}  # tokens held, made
    first, end = [0.0] * len(work), [0.0] * len(work)
    while arriving or queue or decodes:
        if not queue and not decodes:
            now = max(now, arriving[0][1].arrival_s)
        while arriving and arriving[0][1].arrival_s <= now:
            number, call = arriving.popleft()
            queue.append([number, call.prompt_tokens])
        room, taken, longest = chunk - len(decodes), [], 0
        for entry in queue:
            take = min(entry[1], room)
            if take == 0:
                break
            taken.append((entry, take))
            longest = max(longest, work[entry[0]].prompt_tokens - entry[1])
            room -= take
        tokens = sum(take for _, take in taken)
        now += seconds(Batch(tokens, len(decodes), sum(held for held, _ in decodes.values()), 0.0, longest, 0))
        for number, state in list(decodes.items()):
            state[0] += 1
            state[1] += 1
            if state[1] == work[number].output_tokens:
                end[number] = now
                del decodes[number]
        for entry, take in taken:
            entry[1] -= take
            if entry[1] == 0:
                number = entry[0]
                first[number] = now
                if work[number].output_tokens == 1:
                    end[number] = now
                else:
                    decodes[number] = [work[number].prompt_tokens, 1]
        while queue and queue[0][1] == 0:
            queue.popleft()
    return list(zip(first, end, strict=True))


@pytest.mark.parametrize("qps", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("ask_always", [True, False])
def test_first_come_first_served_is_what_a_few_lines_say(qps: float, ask_always: bool) -> None:
    work = calls(120, qps)
    config = ReplicaConfig(serve=fixed(Policy.FCFS), kv_tokens=None, ask_always=ask_always)
    outcome = simulate(config, work)
    assert [(r.first_token_s, r.end_s) for r in outcome.records] == reference(work, 256)


@pytest.mark.parametrize("eviction", Eviction)
@pytest.mark.parametrize("serve", POLICIES, ids=lambda serve: serve.policy.value)
def test_memory_holds_and_evictions_lose_no_token(eviction: Eviction, serve: ServeConfig) -> None:
    """Outputs are longer than expected: the fence lets in more than fits."""
    work = calls(60, 30.0, prompt=200, output=300)
    config = ReplicaConfig(serve=serve, kv_tokens=5_000, eviction=eviction, expect=Expect.NONE)
    used: list[int] = []
    outcome = simulate(config, work, journal=lambda view, *_: used.append(view.kv_used_tokens))
    totals = outcome.replicas[0]
    assert max(used) <= totals.kv_peak_tokens <= 5_000 and totals.kv_peak_tokens > 4_000
    assert outcome.unfinished == 0 and all(r.produced == r.output_tokens for r in outcome.records)
    stopped = sum(r.paused for r in outcome.records) if eviction is Eviction.PAUSE else totals.evictions
    assert stopped > 0
    again = sum(r.computed_tokens + r.cached_tokens - r.prompt_tokens for r in outcome.records)
    assert again > 0 if eviction in (Eviction.RECOMPUTE, Eviction.SWAP) and totals.evictions else again >= 0
    if eviction is Eviction.SWAP:  # one token each time: the one that the decode was about to compute
        prompts = sum(r.evicted for r in outcome.records if r.evicted)
        assert again <= prompts


@pytest.mark.parametrize("eviction", Eviction)
@pytest.mark.parametrize("regulate", [False, True], ids=["memory", "caps"])
def test_one_call_goes_on_where_the_other_gave_way(eviction: Eviction, regulate: bool) -> None:
    """Both fill the memory. The unimportant one goes; the important one sits steps out by then, since it is due later,
    or since it is over the cap on decodes. It has the memory from then on, and uses it."""
    serve = ServeConfig(policy=Policy.EDF)
    if regulate:
        serve = ServeConfig(
            policy=Policy.EDF, regulate=True, decode_tokens_min=1, regulate_window=1, step_target_s=1e-3
        )
    work = [
        Call(prompt_tokens=100, output_tokens=200, ttft_s=1.0, tbt_s=1.0, importance=0),
        Call(prompt_tokens=100, output_tokens=200, ttft_s=5.0, tbt_s=1.0, importance=1),
    ]
    config = ReplicaConfig(serve=serve, kv_tokens=400, eviction=eviction, expect=Expect.NONE)
    outcome = simulate(config, work)
    assert outcome.unfinished == 0 and [r.evicted for r in outcome.records] == [1, 0]
    assert outcome.replicas[0].kv_peak_tokens <= 400


@pytest.mark.parametrize("importance", [0, 2])
def test_a_prompt_is_not_kept_waiting_by_itself(importance: int) -> None:
    """A decode has grown into the memory that the rest of a prompt needs; whichever of them goes, the other goes on."""
    work = [
        Call(prompt_tokens=40, output_tokens=400, ttft_s=1.0, tbt_s=1.0, importance=1),
        Call(prompt_tokens=600, output_tokens=2, arrival_s=0.5, ttft_s=9.0, importance=importance),
    ]
    serve = ServeConfig(policy=Policy.EDF, chunk_min=1, chunk_block=1, chunk_max=2, chunk_tight=2)
    config = ReplicaConfig(serve=serve, kv_tokens=800, eviction=Eviction.PAUSE, expect=Expect.NONE)
    outcome = simulate(config, work)
    assert outcome.unfinished == 0 and all(r.produced == r.output_tokens for r in outcome.records)
    assert [r.evicted > 0 for r in outcome.records] == [importance > 1, importance < 1]


def test_a_call_that_gave_way_queues_with_its_budget_from_then_on() -> None:
    """As in a live engine: its tokens stay due when they were."""
    work = calls(60, 30.0, prompt=200, output=300)
    config = ReplicaConfig(serve=ServeConfig(policy=Policy.EDF), kv_tokens=5_000, expect=Expect.NONE)
    views: list[tuple[float, StepView]] = []
    outcome = simulate(config, work, journal=lambda view, state, serve, now_s, plan: views.append((now_s, view)))
    assert outcome.replicas[0].evictions > 0
    again = [(now_s, r) for now_s, view in views for r in view.waiting if r.num_folded_tokens]
    assert again
    for now_s, r in again:
        assert r.first_due_s is not None and r.num_folded_tokens == r.num_output_tokens
        assert r.first_due_s < r.due_s <= now_s + r.first_due_s - r.arrival_s
    assert all(r.first_due_s is None for _, view in views for r in view.running if not r.num_folded_tokens)


@pytest.mark.parametrize("eviction", Eviction)
def test_running_calls_give_their_slots_to_programs_that_had_less(eviction: Eviction) -> None:
    config = ReplicaConfig(serve=PROGRAMS, yield_every=8, eviction=eviction, kv_tokens=60_000)
    outcome = simulate(config, programs(40, 8.0))
    assert outcome.unfinished == 0 and all(r.produced == r.output_tokens for r in outcome.records)
    assert outcome.replicas[0].evictions > 0
    never = simulate(msgspec.structs.replace(config, yield_every=0), programs(40, 8.0))
    assert never.replicas[0].evictions == 0


@pytest.mark.parametrize("service", Service)
def test_a_programs_calls_come_in_their_order(service: Service) -> None:
    work = programs(30, 3.0)
    outcome = simulate(ReplicaConfig(serve=PROGRAMS, service=service), work, replicas=2)
    by_program: dict[int, list[Record]] = {}
    for record in outcome.records:
        by_program.setdefault(record.program, []).append(record)
    for number, program in enumerate(work):
        records = by_program[number]
        for call, record in zip(program.calls, records, strict=True):
            before = max((records[n].end_s or 0.0 for n in call.after), default=program.arrival_s)
            assert record.arrival_s == before + call.gap_s


def test_the_same_seed_gives_the_same_to_the_bit() -> None:
    config = ReplicaConfig(noise=0.1)
    work: list[Call | Program] = [*calls(80, 6.0), *programs(5, 1.0)]
    a, b, c = (simulate(config, work, seed) for seed in (1, 1, 2))
    assert a.records == b.records != c.records


def test_recorded_views_give_the_same_plans(tmp_path) -> None:
    """And a line that says otherwise is found."""
    for serve in POLICIES:
        file = io.BytesIO()
        simulate(ReplicaConfig(serve=serve), calls(30, 6.0), journal=Recorder(file))
        lines = file.getvalue().splitlines()
        assert len(lines) > 30 and differing(lines) == []
        lines[9] = lines[9].replace(b'"chunk_tokens":', b'"chunk_tokens":1')
        assert differing(lines) == [10]


def test_a_prefix_is_found_again_until_its_memory_is_needed() -> None:
    turn = Call(prompt_tokens=1000, output_tokens=10)
    second = Call(prompt_tokens=1500, output_tokens=10, prefix_tokens=1010, gap_s=5.0)
    chat = chain(0.0, (turn, second))
    other = Call(prompt_tokens=2000, output_tokens=10, arrival_s=2.0)
    roomy, tight = (simulate(ReplicaConfig(kv_tokens=n), [chat, other]).records[1] for n in (10_000, 2_500))
    assert (roomy.cached_tokens, roomy.computed_tokens) == (1009, 491)
    assert tight.cached_tokens == 2_500 - 2_009
    assert simulate(ReplicaConfig(prefix_cache=False), [chat]).records[1].cached_tokens == 0
    first, beside = (
        Call(prompt_tokens=800, output_tokens=1, shared="s", shared_tokens=500, arrival_s=t) for t in (0, 3)
    )
    assert [r.cached_tokens for r in simulate(ReplicaConfig(), [first, beside]).records] == [0, 500]


def test_impossible_work_is_refused() -> None:
    with pytest.raises(ValueError, match="call 0 needs 2010 tokens of KV: kv_tokens is 1000"):
        simulate(ReplicaConfig(kv_tokens=1000), [Call(prompt_tokens=2000, output_tokens=10)])
    with pytest.raises(ValueError, match="output_tokens is 0: use 1 or more"):
        Call(prompt_tokens=1, output_tokens=0)
    with pytest.raises(ValueError, match=r"calls\[0\].after is \(1,\)"):
        Program(arrival_s=0.0, calls=(Call(prompt_tokens=1, output_tokens=1, after=(1,)),) * 2)
