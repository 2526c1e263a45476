"""plan_step: what holds for every queue, policy and configuration."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy.serve import (
    Observed,
    Pace,
    Policy,
    Preemption,
    Relegation,
    Request,
    ServeConfig,
    ServeState,
    StepLoad,
    StepPlan,
    StepView,
    learn,
    plan_step,
)
from mfsd.policy.serve.deadlines import next_token_due_s
from mfsd.policy.serve.fence import REST_STEPS
from mfsd.policy.serve.fit import Step

NOW = 1000.0


def measured(ranks: int = 1) -> Pace:
    """10 ms, 0.1 ms a prompt token, 0.2 ms a decode, and attention that grows."""
    loads = [
        StepLoad(tokens, -(-tokens // ranks), decodes, 1000 * decodes, tokens * context)
        for tokens in (1, 60, 200, 450, 900, 2000, 8000)
        for decodes in (0, 8, 64)
        for context in (0.0, 500.0, 4000.0)
    ]
    return learn(
        Pace(),
        [
            Observed(
                x, 0.01 + 1e-4 * x.prefill_tokens + 2e-4 * x.decodes + 1e-7 * x.decode_context + 1e-8 * x.prefill_pairs
            )
            for x in loads
        ],
    )


PACE = measured()


@st.composite
def requests(draw: st.DrawFn, number: int, running: bool, ranks: int) -> Request:
    arrival = NOW - draw(st.floats(0, 40))
    prompt = draw(st.integers(1, 12_000))
    cached = 0 if running else draw(st.integers(0, prompt - 1))
    decode = running and draw(st.booleans())
    computed = prompt if decode else draw(st.integers(0, prompt - 1)) if running else cached
    produced = draw(st.integers(1, 300)) if decode else 0
    ttft = draw(st.sampled_from([0.01, 1.0, 6.0, 60.0]))
    return Request(
        request_id=number,
        arrival_s=arrival,
        num_prompt_tokens=prompt,
        due_s=arrival + ttft,
        num_computed_tokens=computed + (produced if decode else 0),
        num_cached_tokens=cached,
        num_output_tokens=produced,
        ttft_s=ttft,
        tbt_s=draw(st.sampled_from([None, 0.02, 0.1, 1.0])),
        ttlt_s=draw(st.sampled_from([None, 30.0, 600.0])),
        first_token_s=NOW - 0.01 if decode else None,
        output_tokens=draw(st.sampled_from([0.0, 50.0, 400.0])),
        output_tokens_max=draw(st.sampled_from([0.0, 100.0, 4000.0])),
        importance=draw(st.integers(0, 2)),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        weight=draw(st.sampled_from([1.0, 4.0])),
        program_service_s=draw(st.sampled_from([0.0, 1.0, 9.0, 1000.0])),
        program_wait_s=draw(st.sampled_from([0.0, 90.0])),
        rank=draw(st.integers(-1, ranks - 1)) if not running else draw(st.integers(0, ranks - 1)),
    )


configs = st.builds(
    ServeConfig,
    policy=st.sampled_from(Policy),
    cut_prompts=st.booleans(),
    step_tokens=st.sampled_from([1, 512, 8192]),
    requests_max=st.sampled_from([1, 8, 1024]),
    ranks=st.sampled_from([1, 4]),
    relegation=st.sampled_from(Relegation),
    preemption=st.sampled_from(Preemption),
    drop_budget=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    regulate=st.booleans(),
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[StepView, ServeState, ServeConfig]:
    config = draw(configs)
    count = draw(st.integers(0, 24))
    all_ = [(n, draw(requests(n, draw(st.integers(0, 3)) == 0, config.ranks))) for n in range(count)]
    running = [r for _, r in all_ if r.begun or r.prefill_left <= 0]
    kept = tuple(draw(st.sets(st.integers(0, 23), max_size=4)))
    view = StepView(
        waiting=tuple(r for _, r in all_ if r not in running),
        running=tuple(running),
        observed=draw(st.sampled_from([(), (Observed(StepLoad(100, 100), 0.02),), (Observed(StepLoad(9, 9), 0.3),)])),
        kv_tokens=draw(st.sampled_from([None, 5_000, 40_000, 10_000_000])),
        kv_used_tokens=sum(r.num_computed_tokens for r in running),
        pruned=draw(st.sampled_from([(), (1, 2, 3)])),
        lane_cut_s=draw(st.sampled_from([None, 0.2])),
    )
    pace = draw(st.sampled_from([PACE, Pace()]))
    return view, ServeState(step=draw(st.integers(0, 20)), pace=pace, relegated=kept), config


@given(situations(), st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=60)
def test_the_order_of_requests_says_nothing(situation: tuple[StepView, ServeState, ServeConfig], seed: int) -> None:
    view, state, config = situation
    rng = random.Random(seed)
    shuffled = msgspec.structs.replace(
        view,
        waiting=tuple(rng.sample(view.waiting, len(view.waiting))),
        running=tuple(rng.sample(view.running, len(view.running))),
    )
    assert plan_step(shuffled, state, config, NOW) == plan_step(view, state, config, NOW)


class Record(msgspec.Struct, frozen=True):
    view: StepView
    state: ServeState
    config: ServeConfig
    now_s: float


@given(situations())
@settings(deadline=None, max_examples=60)
def test_a_plan_is_a_function_of_its_recorded_view(situation: tuple[StepView, ServeState, ServeConfig]) -> None:
    """Written as JSON and read back, it gives the same plan and the same state, to the bit."""
    view, state, config = situation
    plan, after = plan_step(view, state, config, NOW)
    read = msgspec.json.decode(msgspec.json.encode(Record(view, state, config, NOW)), type=Record)
    again, after_again = plan_step(read.view, read.state, read.config, read.now_s)
    assert msgspec.json.encode([again, after_again]) == msgspec.json.encode([plan, after])
    assert msgspec.json.decode(msgspec.json.encode(plan), type=StepPlan) == plan


@given(situations())
@settings(deadline=None, max_examples=60)
def test_a_plan_stays_within_its_bounds(situation: tuple[StepView, ServeState, ServeConfig]) -> None:
    view, state, config = situation
    plan, after = plan_step(view, state, config, NOW)
    of = {r.request_id: r for r in (*view.waiting, *view.running)}
    numbers = [s.request_id for s in plan.scheduled]
    assert len(set(numbers)) == len(numbers)
    assert sum(s.num_tokens for s in plan.scheduled) <= config.step_tokens
    for s in plan.scheduled:
        assert 1 <= s.num_tokens <= max(1, of[s.request_id].prefill_left)
        assert of[s.request_id].rank in (-1, s.rank)
        assert 0 <= s.rank < config.ranks
    assert set(plan.paused) == {r.request_id for r in view.running} - set(numbers)
    assert not set(plan.held) & set(numbers)
    new = [of[n] for n in numbers if of[n] not in view.running]
    assert len(new) <= max(0, plan.requests_max - len(view.running))
    assert after.step == state.step + 1
    assert set(plan.relegated) | set(plan.lost) <= {r.request_id for r in view.waiting} | {
        r.request_id for r in view.running if r.prefill_left > 0
    }


@given(situations())
@settings(deadline=None, max_examples=60)
def test_something_is_computed_whenever_something_can_be(situation: tuple[StepView, ServeState, ServeConfig]) -> None:
    view, state, config = situation
    plan, _ = plan_step(view, state, config, NOW)
    fits = [r for r in view.waiting if view.kv_tokens is None or r.num_prompt_tokens <= view.kv_tokens]
    if view.running or fits:
        assert plan.scheduled


def test_those_refused_do_not_stop_a_prompt_that_has_its_memory() -> None:
    """More of them than a step passes over are overdue, and go first."""
    config = ServeConfig(skips_max=4)
    overdue = [
        Request(request_id=n, arrival_s=NOW - 90.0, num_prompt_tokens=900, due_s=NOW - 89.0 + n / 100) for n in range(9)
    ]
    begun = Request(request_id=9, arrival_s=NOW, num_prompt_tokens=500, num_computed_tokens=100, due_s=NOW + 99.0)
    view = StepView(waiting=tuple(overdue), running=(begun,), kv_tokens=1000, kv_used_tokens=100)
    plan, _ = plan_step(view, ServeState(pace=PACE), config, NOW)
    assert [s.request_id for s in plan.scheduled] == [9] and len(plan.held) == 5


def test_a_deadline_for_the_whole_that_has_passed_binds_no_step() -> None:
    decode = Request(
        request_id=1, arrival_s=NOW - 50.0, num_prompt_tokens=100, num_computed_tokens=110, num_output_tokens=11,
        due_s=NOW - 40.0, first_token_s=NOW - 20.0, ttlt_s=40.0, output_tokens=20.0,
    )  # fmt: skip
    prompt = Request(request_id=2, arrival_s=NOW, num_prompt_tokens=5000, due_s=NOW + 60.0)
    view = StepView(waiting=(prompt,), running=(decode,))
    for policy in (Policy.FIT, Policy.EDF):
        late, _ = plan_step(view, ServeState(pace=PACE), ServeConfig(policy=policy), NOW)
        assert [s.num_tokens for s in late.scheduled] == [1, 5000]
        hasty = msgspec.structs.replace(view, running=(msgspec.structs.replace(decode, ttlt_s=51.0),))
        plan, _ = plan_step(hasty, ServeState(pace=PACE), ServeConfig(policy=policy), NOW)
        assert [s.num_tokens for s in plan.scheduled] == [1, 128]


@given(situations())
@settings(deadline=None, max_examples=60)
def test_relegation_stays_within_the_budget(situation: tuple[StepView, ServeState, ServeConfig]) -> None:
    view, state, config = situation
    plan, _ = plan_step(view, state, config, NOW)
    active = len(view.waiting) + len(view.running)
    assert len(plan.relegated) <= plan.drop_budget <= -(-active * round(config.drop_budget * 1e6) // 1_000_000)
    assert not set(plan.relegated) & set(plan.lost)
    of = {r.request_id: r for r in (*view.waiting, *view.running)}
    assert not any(of[n].begun for n in (*plan.lost, *(set(plan.relegated) - set(view.pruned))))
    if config.relegation is not Relegation.PROJECTION:
        assert not plan.relegated


@given(situations())
@settings(deadline=None, max_examples=60)
def test_fit_makes_no_request_of_the_step_late(situation: tuple[StepView, ServeState, ServeConfig]) -> None:
    """Each prompt that ends in the step, and each decode, was late by the estimate when it was chosen, or is in time by
    the estimate of the whole step. What comes first may always have chunk_min tokens: that is measured from."""
    view, state, config = situation
    config = msgspec.structs.replace(config, policy=Policy.FIT)
    plan, after = plan_step(view, state, config, NOW)
    of = {r.request_id: r for r in (*view.waiting, *view.running)}
    decodes = [of[s.request_id] for s in plan.scheduled if of[s.request_id].prefill_left <= 0]
    prompts = [s for s in plan.scheduled if of[s.request_id].prefill_left > 0]
    context = sum(r.num_computed_tokens for r in decodes)
    step = Step(after.pace, config.ranks, config.pace_margin, len(decodes), context)
    promised = [due for r in decodes if (due := next_token_due_s(config, r, NOW)) is not None]
    for number, s in enumerate(prompts):
        request = of[s.request_id]
        step.add(s.num_tokens, request.num_computed_tokens, s.rank)
        end = NOW + step.seconds()
        if number == 0 and s.num_tokens <= config.chunk_min:
            promised = [due for due in promised if due >= end]
        if s.num_tokens == request.prefill_left and end <= request.due_s:
            promised.append(request.due_s)
    assert step.seconds() == plan.step_s
    if prompts:
        assert all(NOW + plan.step_s <= due for due in promised)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("relegation", Relegation)
def test_no_request_starves(policy: Policy, relegation: Relegation) -> None:
    """A long prompt of no importance in a queue that always gets more than it can compute: it ends all the same."""
    config = ServeConfig(
        policy=policy, relegation=relegation, step_tokens=1000, drop_budget=0.3, overdue_budgets=2.0, overdue_every=10
    )
    state, now, number = ServeState(pace=PACE), 0.0, 1
    own = Request(
        request_id=0, arrival_s=0.0, num_prompt_tokens=5000, due_s=0.5, tenant="own", importance=0, weight=0.1,
        program_service_s=50.0,
    )  # fmt: skip
    queue = {0: own}
    for _ in range(600):
        for _ in range(3):
            queue[number] = Request(
                request_id=number, arrival_s=now, num_prompt_tokens=400, due_s=now + 0.4, importance=2,
                tenant=f"t{number % 3}", weight=10.0,
            )  # fmt: skip
            number += 1
        begun = tuple(r for r in queue.values() if r.begun)
        waiting = tuple(r for r in queue.values() if not r.begun)
        plan, state = plan_step(StepView(waiting=waiting, running=begun), state, config, now)
        for s in plan.scheduled:
            r = queue[s.request_id]
            queue[s.request_id] = msgspec.structs.replace(r, num_computed_tokens=r.num_computed_tokens + s.num_tokens)
            if queue[s.request_id].prefill_left == 0:
                del queue[s.request_id]
        now += plan.step_s
        if 0 not in queue:
            return
    raise AssertionError(f"{queue[0].num_computed_tokens} of 5000 tokens after {now:.0f} s")


OUTPUTS_MOST = 40
LONGEST_STEPS = OUTPUTS_MOST + 20
"""That memory is kept for one: until those that run have ended, and the step after."""


def memory_step(
    waiting: dict[int, Request], running: dict[int, Request], state: ServeState, config: ServeConfig, now: float
) -> tuple[ServeState, float]:
    """One step of an engine with memory for 10,000 tokens: the state after it, and when it ends."""
    used = sum(r.num_computed_tokens for r in running.values())
    view = StepView(
        waiting=tuple(waiting.values()), running=tuple(running.values()), kv_tokens=10_000, kv_used_tokens=used
    )
    plan, after = plan_step(view, state, config, now)
    for s in plan.scheduled:
        r = waiting.pop(s.request_id, None) or running[s.request_id]
        computed = r.num_computed_tokens + s.num_tokens
        output = r.num_output_tokens + (s.num_tokens >= r.prefill_left)
        running[s.request_id] = msgspec.structs.replace(r, num_computed_tokens=computed, num_output_tokens=output)
        if output == OUTPUTS_MOST - s.request_id % 30:
            del running[s.request_id]
    return after, now + plan.step_s


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("slots", [8, 1024])
def test_no_request_starves_for_memory_or_a_slot(policy: Policy, slots: int) -> None:
    """A prompt that needs most of the memory beside small ones that use up what becomes free: it begins all the same.
    With few slots, a small one."""
    relegation = Relegation.NONE if policy is Policy.FCFS else Relegation.LOST
    config = ServeConfig(
        policy=policy, relegation=relegation, overdue_every=10, overdue_budgets=2.0, requests_max=slots
    )
    state, now, number = ServeState(pace=PACE), 0.0, 1
    own = Request(request_id=0, arrival_s=0.0, num_prompt_tokens=8_000 if slots > 8 else 100, due_s=0.5)
    waiting, running = {0: own}, dict[int, Request]()
    for _ in range(600):
        while len(waiting) < 6:
            waiting[number] = Request(request_id=number, arrival_s=now, num_prompt_tokens=400, due_s=now + 0.4)
            number += 1
        state, now = memory_step(waiting, running, state, config, now)
        if 0 not in waiting:
            return
    raise AssertionError(f"not begun after {now:.0f} s; {number} others were")


@pytest.mark.parametrize("policy", [Policy.EDF, Policy.SRPF, Policy.FIT])
def test_memory_is_kept_in_few_steps_and_none_starves(policy: Policy) -> None:
    """Many long prompts that are overdue beside small ones that use up what becomes free: each begins, and of the steps
    those that kept memory, and so held others back, stay few."""
    config = ServeConfig(policy=policy, overdue_every=10, overdue_budgets=2.0)
    state, now, number = ServeState(pace=PACE), 0.0, 8
    waiting, running, kept_steps = dict[int, Request](), dict[int, Request](), 0
    for n in range(8):
        waiting[n] = Request(request_id=n, arrival_s=0.0, num_prompt_tokens=8_000, due_s=0.5 + 0.01 * n)
    for step in range(8_000):
        while sum(n >= 8 for n in waiting) < 6:
            waiting[number] = Request(request_id=number, arrival_s=now, num_prompt_tokens=400, due_s=now + 0.4)
            number += 1
        kept_steps += state.reserved is not None
        assert kept_steps <= step / (1 + REST_STEPS) + LONGEST_STEPS, step
        state, now = memory_step(waiting, running, state, config, now)
        if min(waiting) >= 8:
            assert kept_steps
            return
    raise AssertionError(f"{sum(n < 8 for n in waiting)} of 8 not begun after {now:.0f} s; {number} others were")


@pytest.mark.parametrize("tbt_s", [None, 0.05])
def test_no_decode_starves_under_a_cap(tbt_s: float | None) -> None:
    """More decodes than may run, some of them without a deadline: each gets tokens, and these take turns."""
    config = ServeConfig(step_tokens=4, overdue_every=10)
    state, now = ServeState(pace=PACE), 0.0
    running = {
        n: Request(
            request_id=n, arrival_s=0.0, num_prompt_tokens=10, num_computed_tokens=10, num_output_tokens=1, due_s=1.0,
            first_token_s=0.0, tbt_s=tbt_s if n < 6 else None,
        )
        for n in range(8)
    }  # fmt: skip
    for _ in range(400):
        plan, state = plan_step(StepView(running=tuple(running.values())), state, config, now)
        now += plan.step_s
        for s in plan.scheduled:
            r = running[s.request_id]
            running[s.request_id] = msgspec.structs.replace(
                r, num_computed_tokens=r.num_computed_tokens + 1, num_output_tokens=r.num_output_tokens + 1
            )
    made = [r.num_output_tokens for r in running.values()]
    assert min(made) > 30 and abs(made[6] - made[7]) <= 1, made


def test_a_change_of_policy_loses_no_request_and_begins_an_epoch() -> None:
    waiting = tuple(
        Request(request_id=n, arrival_s=NOW - n, num_prompt_tokens=100, due_s=NOW + n, tenant=str(n % 3))
        for n in range(9)
    )
    state, served = ServeState(pace=PACE), 0
    for epoch, policy in enumerate(Policy, start=1):
        config = ServeConfig(policy=policy, step_tokens=10_000)
        plan, state = plan_step(StepView(waiting=waiting), state, config, NOW)
        served = len(plan.scheduled)
        assert (served, state.book.epoch, state.book.policy) == (9, epoch, policy)
        _, state = plan_step(StepView(waiting=waiting), state, config, NOW)
        assert state.book.epoch == epoch


def test_fit_parts_a_short_prompt_from_the_long_one_that_would_make_it_late() -> None:
    """First come first served computes both together; fit gives the short one its step, and the long one a piece."""
    short = Request(request_id=0, arrival_s=NOW - 1, num_prompt_tokens=400, due_s=NOW + 0.1)
    long = Request(request_id=1, arrival_s=NOW - 1, num_prompt_tokens=7000, due_s=NOW + 9)
    view, state = StepView(waiting=(short, long)), ServeState(pace=PACE)
    together, _ = plan_step(view, state, ServeConfig(policy=Policy.EDF), NOW)
    apart, _ = plan_step(view, state, ServeConfig(policy=Policy.FIT), NOW)
    assert [s.num_tokens for s in together.scheduled] == [400, 7000]
    assert NOW + together.step_s > short.due_s >= NOW + apart.step_s
    assert [s.request_id for s in apart.scheduled] == [0, 1] and 0 < apart.scheduled[1].num_tokens < 500


def test_a_prompt_that_has_begun_goes_first_while_passing_it_over_would_make_it_late() -> None:
    begun = Request(request_id=0, arrival_s=NOW, num_prompt_tokens=9000, due_s=NOW + 0.6, num_computed_tokens=7000)
    short = Request(request_id=1, arrival_s=NOW, num_prompt_tokens=8000, due_s=NOW + 0.55)
    for preemption, first in ((Preemption.SELECTIVE, 0), (Preemption.ALWAYS, 1), (Preemption.OFF, 0)):
        config = ServeConfig(policy=Policy.EDF, preemption=preemption, relegation=Relegation.NONE)
        view = StepView(waiting=(short,), running=(begun,))
        plan, _ = plan_step(view, ServeState(step=1, pace=PACE), config, NOW)
        assert plan.scheduled[0].request_id == first
    easy = msgspec.structs.replace(begun, due_s=NOW + 60)
    config = ServeConfig(policy=Policy.EDF, relegation=Relegation.NONE)
    plan, _ = plan_step(StepView(waiting=(short,), running=(easy,)), ServeState(step=1, pace=PACE), config, NOW)
    assert [s.request_id for s in plan.scheduled] == [1, 0]
