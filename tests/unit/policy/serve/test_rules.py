"""Each rule of the request tier by itself, against its equation or a closed form."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy.serve import (
    LaneCut,
    LengthBounds,
    Observed,
    Pace,
    Policy,
    ProgramTable,
    Relegation,
    Request,
    ServeConfig,
    ServeState,
    Service,
    StepLoad,
    StepView,
    TokenDeadline,
    again_due_s,
    learn,
    plan_step,
    prefill_due_s,
    read_slo,
)
from mfsd.policy.serve import pool as pools
from mfsd.policy.serve.chunk import chunk_tokens
from mfsd.policy.serve.conformal import bucket_of
from mfsd.policy.serve.deadlines import next_token_due_s, overdue_s
from mfsd.policy.serve.fence import Fence, held_tokens, left_tokens
from mfsd.policy.serve.fit import Chosen
from mfsd.policy.serve.keys import alpha_s, hybrid, tightest_budget_s
from mfsd.policy.serve.pace import Alone, alone
from mfsd.policy.serve.peak import Peak
from mfsd.policy.serve.programs import queue_of
from mfsd.policy.serve.regulate import Regulation, initial, regulated
from mfsd.policy.serve.relegate import drop_budget, set_aside

CONFIG = ServeConfig()
ALONE = Alone(0.0, 1.0)


def request(number: int = 0, **changes: object) -> Request:
    given = {"arrival_s": 0.0, "num_prompt_tokens": 100, "due_s": 1.0, **changes}
    return msgspec.convert({"request_id": number, **given}, Request)


# -- configuration


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("drop_budget", 1.5, "drop_budget is 1.5: use 0 to 1"),
        ("pace_margin", math.nan, "pace_margin is nan: use 0.1 to 10"),
        ("step_tokens", 0, "step_tokens is 0: use 1 to 1.67772e+07"),
        ("alpha_low_s", 0.5, "alpha_low_s is 0.5: use at most alpha_high_s, 0.008"),
    ],
)
def test_a_wrong_configuration_is_named(field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        ServeConfig(**{field: value})  # type: ignore[arg-type]


def test_a_configuration_from_outside_names_the_path() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$.policy"):
        msgspec.convert({"policy": "lifo"}, ServeConfig)
    with pytest.raises(msgspec.ValidationError, match="fitt"):
        msgspec.convert({"fitt": 1}, ServeConfig)


# -- deadlines


@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, 86_400, "fast", True, [1]])
def test_an_slo_that_cannot_be_is_none_and_says_so(value: object) -> None:
    slo = read_slo("ttft_s", value)
    assert slo.seconds is None and slo.complaint.startswith("ttft_s is ") and "\n" not in slo.complaint
    assert read_slo("ttft_s", None) == (None, "")
    assert read_slo("ttft_s", 2) == (2.0, "")
    assert read_slo("tbt_s", 0.001, at_least_s=0.02).seconds == 0.02


def test_deadlines_are_those_of_the_equations() -> None:
    assert prefill_due_s(CONFIG, 10.0, 6.0, None) == 16.0  # Eq 1
    assert prefill_due_s(CONFIG, 10.0, None, 600.0, 1000, 0.05) == 560.0  # Eq 3, less the decoding
    assert prefill_due_s(CONFIG, 10.0, None, 20.0, 1000, 0.05) == 10.0, "never before it arrived"
    assert prefill_due_s(CONFIG, 10.0, None, None) == 10.0 + CONFIG.ttft_unknown_s
    early = request(due_s=16.0, tbt_s=0.05, num_output_tokens=4, first_token_s=12.0)
    late = msgspec.structs.replace(early, first_token_s=20.0)
    assert next_token_due_s(CONFIG, early) == pytest.approx(16.2)  # Eq 2: token 5
    assert next_token_due_s(CONFIG, late) == pytest.approx(20.2)
    paper = ServeConfig(token_deadline=TokenDeadline.PAPER)
    assert next_token_due_s(paper, late) == pytest.approx(16.2)
    paced = ServeConfig(token_deadline=TokenDeadline.FIRST_TOKEN)
    assert next_token_due_s(paced, early) == pytest.approx(12.2), "an early first token is no credit"
    assert next_token_due_s(paced, late) == pytest.approx(20.2)
    assert next_token_due_s(CONFIG, request()) is None
    again = msgspec.structs.replace(early, due_s=again_due_s(16.0, 10.0, 50.0), first_due_s=16.0)
    assert again.due_s == 56.0 and next_token_due_s(CONFIG, again) == pytest.approx(16.2), "Eq 2 stays"
    assert overdue_s(CONFIG, again) == 56.0 + CONFIG.overdue_budgets * 16.0, "request() arrived at 0"
    assert tightest_budget_s([again]) == 16.0
    whole = request(ttlt_s=30.0, num_output_tokens=9, output_tokens=20, first_token_s=10.0)
    assert next_token_due_s(CONFIG, whole) == pytest.approx(20.0), "half of the tokens in half of the time"


# -- pace and chunk


def test_step_times_of_two_pieces_are_found_again() -> None:
    chance = random.Random(1)

    def truth(load: StepLoad) -> float:
        each = 5.9e-5 if load.tokens <= 512 else 2.7e-5
        start = 0.015 if load.tokens <= 512 else 0.03
        return start + each * load.tokens + 1e-7 * load.decode_context + 2e-9 * load.prefill_pairs

    def some() -> StepLoad:
        prefill = chance.choice((0, 100, 300, 900, 2000, 8000))
        decodes = chance.randint(0 if prefill else 1, 100)
        return StepLoad(
            prefill, prefill, decodes, decodes * chance.randint(10, 3000), prefill * chance.randint(0, 9000)
        )

    pace = learn(Pace(), [Observed(x, truth(x)) for x in (some() for _ in range(300))], 0.998)
    for load in (some() for _ in range(50)):
        assert pace.step_s(load) == pytest.approx(truth(load), rel=0.02)


def test_step_times_follow_a_change_and_survive_nonsense() -> None:
    load = StepLoad(1000, 1000)
    pace = learn(Pace(), [Observed(load, 0.1)] * 50, 0.95)
    assert pace.step_s(load) == pytest.approx(0.1, rel=0.01)
    assert learn(pace, [Observed(load, bad) for bad in (0.0, -1.0, math.nan, math.inf, 1e9)]) == pace
    pace = learn(pace, [Observed(load, 0.3)] * 100, 0.95)
    assert pace.step_s(load) == pytest.approx(0.3, rel=0.05)
    assert pace.step_s(StepLoad(1, 1)) > 0, "a piece that was never seen borrows from the other"


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 200), st.floats(1e-4, 100)), max_size=60))
@settings(deadline=None, max_examples=30)
def test_step_times_stay_finite(steps: list[tuple[int, int, float]]) -> None:
    pace = learn(Pace(), [Observed(StepLoad(p, p, d, 900 * d, 5e7), s) for p, d, s in steps], 0.9)
    assert all(math.isfinite(v) for piece in (pace.small, pace.large) for v in (*piece.terms, *piece.inverse))
    assert 0 < pace.step_s(StepLoad(512, 512, 3, 3000)) < math.inf


@given(st.integers(0, 9000), st.floats(0, 1), st.sampled_from([None, 100, 10**9]))
@settings(deadline=None, max_examples=60)
def test_a_chunk_is_the_largest_that_fits_the_slack(room: int, slack: float, free: int | None) -> None:
    def step_s(tokens: int) -> float:
        return 0.01 + 1e-4 * tokens

    config = ServeConfig(chunk_max=2500)
    chunk = chunk_tokens(config, room, slack, free, step_s)
    most = min(room, 2500, config.chunk_tight if free == 100 else 2500)
    assert min(config.chunk_min, most) <= chunk <= most
    if chunk > config.chunk_min:
        assert step_s(chunk) <= slack
    if chunk < most:
        assert step_s(chunk + config.chunk_block) > slack
    assert chunk_tokens(config, room, None, free, step_s) == most


# -- keys, pool


def test_alpha_rises_with_the_queue() -> None:
    assert [alpha_s(CONFIG, queued, 10.0) for queued in (0.0, 5.0, 10.0, 15.0, 99.0)] == pytest.approx(
        [0.001, 0.001, 0.0045, 0.008, 0.008]
    )
    short, long = request(0, due_s=9.0, num_prompt_tokens=10), request(1, due_s=8.0, num_prompt_tokens=1000)
    assert hybrid([short, long], 0.0) == [9.0, 8.0], "alpha 0 is EDF"
    assert hybrid([short, long], 0.008) == pytest.approx([9.08, 16.0])  # Eq 4


NOW = pools.Now(step=0, prefill_s_per_token=0.001, decode_step_s=0.03, lane_cut_s=1.0)
THREE = [
    request(0, arrival_s=0.0, due_s=9.0, num_prompt_tokens=3000, importance=1, program_service_s=5.0, tenant="b"),
    request(1, arrival_s=1.0, due_s=7.0, num_prompt_tokens=500, output_tokens=200.0, importance=0, tenant="b"),
    request(2, arrival_s=2.0, due_s=8.0, num_prompt_tokens=900, num_computed_tokens=700, importance=2, tenant="a",
            program_service_s=9.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy.FCFS, [0, 1, 2]),
        (Policy.EDF, [1, 2, 0]),
        (Policy.FIT, [1, 2, 0]),
        (Policy.LLF, [0, 1, 2]),  # slack 6.0, 6.5, 7.8
        (Policy.SJF, [2, 0, 1]),  # 0.9, 3.0, 6.5 s
        (Policy.SRTF, [2, 0, 1]),  # 0.2, 3.0, 6.5 s
        (Policy.SRPF, [2, 1, 0]),
        (Policy.HYBRID, [1, 2, 0]),
        (Policy.MLFQ, [1, 0, 2]),
        (Policy.LAS, [1, 0, 2]),
        (Policy.PRIORITY, [2, 0, 1]),
        (Policy.RR, [2, 0, 1]),
        (Policy.WFQ, [2, 0, 1]),
        (Policy.STRIDE, [2, 0, 1]),
        (Policy.CFS, [2, 0, 1]),
        (Policy.TWO_LANE, [2, 1, 0]),
    ],
)
def test_orders_of_the_pool(policy: Policy, expected: list[int]) -> None:
    config = ServeConfig(policy=policy)
    assert [r.request_id for r in pools.order(config, pools.Book(policy), THREE, NOW)] == expected


@pytest.mark.parametrize("policy", [Policy.WFQ, Policy.STRIDE, Policy.CFS, Policy.LOTTERY, Policy.RR])
def test_tenants_are_served_by_their_weights(policy: Policy) -> None:
    """Two tenants that always wait, weights 3 and 1, one request of 100 tokens a step."""
    config, book = ServeConfig(policy=policy), pools.Book(policy)
    served = {"a": 0, "b": 0}
    for step in range(400):
        queue = [request(2 * step, tenant="a", weight=3.0), request(2 * step + 1, tenant="b")]
        now = NOW._replace(step=step)
        first = next(iter(pools.order(config, book, queue, now)))
        served[first.tenant] += 1
        book = pools.charged(config, book, queue, [Chosen(first, 100, 0)], now)
    share = served["a"] / 400
    assert share == pytest.approx(0.5 if policy is Policy.RR else 0.75, abs=0.06)


def test_a_tenant_that_was_away_has_no_credit() -> None:
    config, book = ServeConfig(policy=Policy.WFQ), pools.Book(Policy.WFQ)
    for _ in range(50):
        queue = [request(0, tenant="a")]
        book = pools.charged(config, book, queue, [Chosen(queue[0], 100, 0)], NOW)
    first = []
    for _ in range(6):
        queue = [request(0, tenant="a"), request(1, tenant="b")]
        head = next(iter(pools.order(config, book, queue, NOW)))
        first.append(head.tenant)
        book = pools.charged(config, book, queue, [Chosen(head, 100, 0)], NOW)
    assert first.count("b") in (3, 4), "it does not catch up on fifty turns"


def test_lanes_share_four_to_one_and_lend() -> None:
    config, book = ServeConfig(policy=Policy.TWO_LANE), pools.Book(Policy.TWO_LANE)
    tokens = {"fast": 0, "slow": 0}
    for step in range(300):
        queue = [request(0, num_prompt_tokens=100), request(1, num_prompt_tokens=5000)]
        if step < 50:
            del queue[0]  # the slow lane alone: it is lent everything
        first = next(iter(pools.order(config, book, queue, NOW)))
        book = pools.charged(config, book, queue, [Chosen(first, 100, 0)], NOW)
        if step >= 50:
            tokens["slow" if first.request_id else "fast"] += 100
    assert tokens["fast"] / tokens["slow"] == pytest.approx(4.0, rel=0.1)
    cut = LaneCut(window=5)
    for value in (9.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        cut.arrived(value)
    assert cut.cut_s == 3.0


# -- relegation


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=60)
def test_the_projection_leaves_the_fewest_late(jobs: list[tuple[int, int]]) -> None:
    """Against every subset; one second a token."""
    queue = sorted(
        (request(n, num_prompt_tokens=t, due_s=float(due)) for n, (t, due) in enumerate(jobs)),
        key=lambda r: (r.due_s, r.request_id),
    )

    def all_in_time(kept: tuple[Request, ...]) -> bool:
        ends = itertools.accumulate(r.num_prompt_tokens for r in kept)
        return all(end <= r.due_s for end, r in zip(ends, kept, strict=True))

    best = max(
        len(kept) for size in range(len(queue) + 1) for kept in itertools.combinations(queue, size) if all_in_time(kept)
    )
    config = ServeConfig(relegation=Relegation.PROJECTION, drop_budget=1.0)
    aside = set_aside(config, queue, len(queue), 1.0, ALONE, 0.0)
    kept = tuple(r for r in queue if r.request_id not in aside.lost | aside.relegated)
    assert all_in_time(kept) and len(kept) == best


def test_lost_is_what_is_late_with_the_engine_to_itself() -> None:
    """On ranks that step together a prompt alone uses one: the others' share of the engine does not help it."""
    loads = [StepLoad(n * r, n, 0, 0, n * n / 2) for n in (100, 600, 2000, 4000) for r in (1, 4)]
    pace = learn(Pace(), [Observed(x, 0.01 + 1e-4 * x.busiest_tokens) for x in loads])
    assert alone(pace) == pytest.approx((0.01, 1e-4), rel=0.02)
    queue = [request(0, num_prompt_tokens=1000, due_s=0.12), request(1, num_prompt_tokens=1000, due_s=0.1)]
    begun = request(2, num_prompt_tokens=2000, num_computed_tokens=1000, due_s=0.1)
    assert set_aside(CONFIG, [*queue, begun], 3, 2.5e-5, alone(pace), 0.0).lost == {1}


def test_what_may_be_loaded_is_lost_only_when_that_is_late_too() -> None:
    queue = [
        request(n, num_prompt_tokens=1000, due_s=due_s, may_load=n != 1) for n, due_s in enumerate((2.0, 2.0, 0.5))
    ]
    assert ALONE.fixed_s + ALONE.per_token_s <= 2.0
    assert set_aside(CONFIG, queue, 3, 1.0, ALONE, 0.0).lost == {1, 2}


def test_the_least_important_go_first_and_the_network_shares_the_budget() -> None:
    queue = [request(n, num_prompt_tokens=10, due_s=25.0, importance=int(n != 2)) for n in range(4)]
    config = ServeConfig(relegation=Relegation.PROJECTION, drop_budget=0.5)
    assert drop_budget(config, 4) == 2
    assert set_aside(config, queue, 4, 1.0, ALONE, 0.0).relegated == {2, 3}
    assert set_aside(config, queue, 4, 1.0, ALONE, 0.0, pruned=(0, 1, 3)).relegated == {0, 1}


def test_a_relegated_request_comes_back_with_a_margin_only() -> None:
    config = ServeConfig(relegation=Relegation.PROJECTION, drop_budget=1.0, readmission_margin=0.1)
    tight, easy = request(0, num_prompt_tokens=95, due_s=100.0), request(0, num_prompt_tokens=80, due_s=100.0)
    assert set_aside(config, [tight], 1, 1.0, ALONE, 0.0).relegated == frozenset()
    assert set_aside(config, [tight], 1, 1.0, ALONE, 0.0, before=[0]).relegated == {0}
    assert set_aside(config, [easy], 1, 1.0, ALONE, 0.0, before=[0]).relegated == frozenset()
    begun = msgspec.structs.replace(tight, num_prompt_tokens=96, num_computed_tokens=1)
    assert set_aside(config, [begun], 1, 1.0, ALONE, 0.0, before=[0]).relegated == frozenset(), "was served"


# -- programs


def test_plas_sums_and_atlas_keeps_the_longest_chain() -> None:
    for service, expected in ((Service.PLAS, 6.0), (Service.ATLAS, 4.0)):
        table = ProgramTable(service)
        first = table.call_arrived("p", "e0", 0.0)
        table.call_ended("p", first, 1.0, 0.5, 1.0)
        left, right = table.call_arrived("p", "e0", 1.0), table.call_arrived("p", "e1", 1.0)
        table.call_ended("p", left, 2.0, 0.0, 3.0)
        table.call_ended("p", right, 3.0, 0.25, 4.0)
        assert table.call_arrived("p", "e0", 5.0) == (expected, 0.75)
        assert table.engines("p") == {"e0", "e1"}


def test_a_program_is_where_its_long_prompts_ran_too() -> None:
    table = ProgramTable()
    for engine, prompt_tokens in (("e0", 10), ("e1", 3000), ("e1", 10), ("e2", 2047)):
        table.call_arrived("p", engine, 0.0, prompt_tokens)
    assert table.engines("p") == {"e0", "e1", "e2"}
    assert (table.engines("p", 2048), table.engines("p", 3001), table.engines("q", 0)) == ({"e1"}, set(), set())


def test_programs_that_never_end_are_forgotten() -> None:
    table = ProgramTable(idle_s=10.0, programs_max=3)

    def call(program: str, now_s: float) -> None:
        table.call_ended(program, table.call_arrived(program, "e", now_s), 1.0, 0.0, now_s)

    call("old", 0.0)
    for n in range(3):
        call(f"p{n}", 5.0)
    assert len(table) == 3 and not table.engines("old"), "the one that was idle the longest"
    call("new", 15.5)
    assert len(table) == 1
    call("new", 3.0)
    assert len(table) == 1, "a clock that goes back forgets no request"


def test_a_program_with_a_call_is_not_idle() -> None:
    table = ProgramTable(idle_s=10.0, programs_max=2)
    busy = table.call_arrived("busy", "e0", 0.0)
    for now_s in (1.0, 50.0, 51.0):  # a call that takes longer than a program may be idle, and a full table
        table.call_ended(f"at {now_s}", table.call_arrived(f"at {now_s}", "e1", now_s), 1.0, 0.0, now_s)
        assert table.engines("busy") == {"e0"} and len(table) == 2
    table.call_ended("busy", busy, 50.0, 0.0, 52.0)
    assert table.call_arrived("busy", "e0", 53.0).service_s == 50.0
    all_busy = [table.call_arrived(f"p{n}", "e", 54.0) for n in range(3)]
    assert len(table) == 4, "a call is counted, however many there are"
    for n, inherited in enumerate(all_busy):
        table.call_ended(f"p{n}", inherited, 0.0, 0.0, 55.0)
    table.call_arrived("new", "e", 70.0)
    assert len(table) == 2 and table.engines("busy")


def test_queues_fall_with_service_and_starving_calls_rise() -> None:
    at = [queue_of(CONFIG, request(program_service_s=s)) for s in (0.0, 1.9, 2.0, 3.9, 4.0, 1e9)]
    assert at == [0, 0, 1, 1, 2, CONFIG.queues - 1]
    assert queue_of(CONFIG, request(program_service_s=9.0, service_s=1.0, program_wait_s=79.0)) == 3
    assert queue_of(CONFIG, request(program_service_s=9.0, service_s=1.0, program_wait_s=79.0, wait_s=1.0)) == 0


# -- bounds, fence, regulation


@pytest.mark.parametrize("epsilon", [0.2, 0.05])
def test_bounds_hold_for_all_but_epsilon(epsilon: float) -> None:
    chance, bounds, held = random.Random(2), LengthBounds(epsilon), []
    for n in range(4000):
        prompt, produced = chance.choice((100, 3000)), int(chance.lognormvariate(5, 1))
        if n > 500:
            held.append(produced <= bounds.bound(prompt, 150.0, 1e9))
        bounds.ended(prompt, 150.0, produced)
    assert sum(held) / len(held) == pytest.approx(1 - epsilon, abs=0.015)


def test_a_bound_is_the_limit_until_enough_was_seen() -> None:
    bounds = LengthBounds(0.05, window=30)
    for n in range(18):
        bounds.ended(10, 0.0, n)
        assert bounds.bound(10, 0.0, 4096.0) == 4096.0
    bounds.ended(10, 0.0, 99)
    assert bounds.bound(10, 0.0, 4096.0) == 99.0
    assert bounds.bound(5000, 0.0, 4096.0) == 4096.0, "of another bucket nothing is known"
    for _ in range(30):
        bounds.ended(10, 0.0, 7)
    assert bounds.bound(10, 0.0, 4096.0) == 7.0, "what left the window is forgotten"
    assert [bucket_of(n) for n in (0, 1, 256, 257, 512, 513, 10**9)] == [0, 0, 0, 1, 1, 2, 7]


def expecting(number: int, left: float, **more: object) -> Request:
    """A request of which `left` tokens of output are expected."""
    return request(number, output_tokens=left, output_tokens_max=left, **more)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), max_size=12),
    st.tuples(st.integers(0, 40), st.integers(0, 50)),
    st.integers(0, 30),
)
def test_the_peak_is_that_of_all_steps(rows: list[tuple[int, int]], one: tuple[int, int], always: int) -> None:
    """rows, one: tokens left, tokens held now."""

    def walked(rows: list[tuple[int, int]]) -> float:
        return max(always + sum(now + step for left, now in rows if step <= left) for step in range(42))

    whole = walked([*rows, one])
    peak = Peak(rows, always)
    assert [peak.fits_with(*one, whole - less) for less in (0, 1)] == [True, False]
    assert peak.tokens() == walked(rows) and peak.tokens_with(*one) == whole
    grown = Peak(rows[:2], always)
    for n, row in enumerate([*rows[2:], one], min(2, len(rows))):  # asked between, or not
        limit = walked([*rows, one][: n + 1])
        assert [grown.fits_with(*row, limit - less) for less in (0, 1)] == [True, False]
        grown.add(*row)
        peak.add(*row)
    assert grown.tokens() == whole and Peak([*rows, one], always).tokens() == whole
    assert peak.tokens() == walked([*rows, *rows[2:], one])


def test_the_fence_admits_what_fits_at_the_peak() -> None:
    config = ServeConfig(kv_margin=0.0)
    long = expecting(0, 500.0, num_prompt_tokens=100)
    fence = Fence(config, [long], 1000, 8)
    assert fence.admit(expecting(1, 100.0, num_prompt_tokens=400)), "it ends at 700, long before the other is at 600"
    assert not fence.admit(expecting(2, 100.0, num_prompt_tokens=201)) and fence.refused == [2]
    assert fence.admit(expecting(3, 100.0, num_prompt_tokens=200))
    assert not fence.admit(expecting(4, 100.0, num_prompt_tokens=1)), "at the peak all of the memory is held"
    assert fence.admit(expecting(5, 0.0, num_prompt_tokens=300)), "it has ended by then"


def test_the_fence_keeps_memory_to_the_bound_once_more_was_produced_than_expected() -> None:
    one = request(0, num_prompt_tokens=100, output_tokens=50.0, output_tokens_max=200.0)
    produced = (0, 49, 50, 199, 200, 300)
    lefts = [left_tokens(msgspec.structs.replace(one, num_output_tokens=n)) for n in produced]
    assert lefts == [50, 1, 150, 1, 0, 0]
    assert left_tokens(request(0, num_prompt_tokens=100, output_tokens=50.0)) == 0, "without a bound nothing is kept"


def test_the_fence_keeps_the_place_of_one_that_has_waited_too_long() -> None:
    config = ServeConfig(kv_margin=0.0)
    kept = expecting(1, 300.0, num_prompt_tokens=300)
    fence = Fence(config, [expecting(0, 100.0, num_prompt_tokens=200)], 1000, 3, kept)
    assert fence.admit(expecting(2, 100.0, num_prompt_tokens=200)), "700 now and a hundred more of each"
    assert not fence.admit(request(3, num_prompt_tokens=1)), "two slots are left, and one of them is kept"
    assert fence.admit(kept) and fence.kept_for([], 0) is None
    narrow = Fence(config, [expecting(0, 100.0, num_prompt_tokens=200)], 1000, 9, kept)
    assert not narrow.admit(expecting(2, 100.0, num_prompt_tokens=201)) and narrow.kept_for([], 0) == 1


def test_an_empty_engine_takes_what_can_be_computed_and_slots_count_too() -> None:
    config = ServeConfig(kv_margin=0.1)
    assert Fence(config, [], 1000, 8).admit(expecting(4, 9e9)), "alone it may"
    assert not Fence(config, [], 1000, 8).admit(request(5, num_prompt_tokens=1001))
    assert not Fence(config, [request(0)], None, 1).admit(request(6))
    assert Fence(config, [request(0)], None, 2).admit(expecting(6, 9e9)), "memory of which nothing is known"


def test_the_fence_keeps_what_is_promised() -> None:
    config = ServeConfig(kv_margin=0.1)
    fence = Fence(config, [], 1000, 8, None, 600.0)
    assert not fence.admit(request(1, num_prompt_tokens=301)), "the engine is not empty while KV is on its way"
    assert fence.admit(request(2, num_prompt_tokens=300))
    view = StepView(waiting=(request(1, num_prompt_tokens=301),), kv_tokens=1000, kv_promised_tokens=600.0)
    assert plan_step(view, ServeState(), config, 0.0)[0].held == (1,)


def test_the_fence_counts_outputs_that_are_computed_again_once() -> None:
    again = request(0, num_prompt_tokens=400, num_output_tokens=350, num_folded_tokens=300, output_tokens_max=320.0)
    assert held_tokens(again) == 100 + 350
    fence = Fence(ServeConfig(kv_margin=0.0), [again], 1000, 8)
    assert fence.admit(request(1, num_prompt_tokens=550)) and not fence.admit(request(2, num_prompt_tokens=1))


def test_regulation_moves_decodes_at_once_and_concurrency_when_it_lasts() -> None:
    config = ServeConfig(requests_max=256, regulate_window=4, decode_tokens_gain=512.0, requests_gain=8.0)
    state = initial(config)
    assert regulated(config, state, 0.8, 0.12) == Regulation(256.0, 256.0, (0.0,)), "inside the band nothing moves"
    for n in range(1, 5):
        state = regulated(config, state, 0.0, 1.02 * config.step_target_s)
        assert state.decode_tokens == pytest.approx(256 - 51.2 * n)
        assert state.requests == pytest.approx(256 if n < 4 else 256 - 0.8)
    for _ in range(999):
        state = regulated(config, state, 0.0, 2.0 * config.step_target_s)
    assert (state.decode_tokens, state.requests) == (config.decode_tokens_min, config.requests_min)
    for _ in range(9999):
        state = regulated(config, state, 0.1, 0.0)
    assert (state.decode_tokens, state.requests) == (256, 256)


def test_full_memory_lowers_concurrency_and_pauses_no_decode() -> None:
    config = ServeConfig(requests_max=256, regulate_window=4)
    state = initial(config)
    for _ in range(99):
        state = regulated(config, state, 1.0, 0.8 * config.step_target_s)
    assert state.requests < 256 and state.decode_tokens == 256, "a decode that pauses frees no memory"
    view = StepView(running=(request(0),), kv_tokens=1000, kv_used_tokens=1000)
    config = ServeConfig(regulate=True, regulate_window=1)
    assert plan_step(view, ServeState(), config, 0.0)[0].requests_max < config.requests_max
