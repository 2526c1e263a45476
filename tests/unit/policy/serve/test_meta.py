"""The meta controller: it stays in its pool, its guards end, and what it decides follows from what is recorded."""

from __future__ import annotations

import json
import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy.serve import Policy, Relegation, ServeConfig
from mfsd.policy.serve.meta import (
    Decision,
    LongView,
    MetaConfig,
    MetaState,
    Qos,
    ShortView,
    Strategy,
    Views,
    adwin,
    bandit,
    configured,
    decide,
    llm,
    rules,
    table,
)

shares = st.floats(0, 1)
views = st.builds(
    Views,
    short=st.builds(ShortView, evaluated=st.integers(0, 60), late_share=shares, ttft_p99_s=st.floats(0, 100)),
    long=st.builds(
        LongView,
        arrived=st.integers(0, 5000),
        unknown_share=shares,
        service_cv=st.floats(0, 10),
        evaluated=st.integers(0, 5000),
        late_share=shares,
        late_short=shares,
        late_long=shares,
        late_tokens_share=shares,
        tenant_worst=shares,
        tenant_others=shares,
        in_time_share=shares,
    ),
    queued_s=st.floats(0, 1000),
    tightest_s=st.floats(0, 10),
)
configs = st.builds(
    MetaConfig,
    strategy=st.sampled_from(Strategy),
    pool=st.lists(st.sampled_from(Policy), min_size=1, max_size=8, unique=True).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(
    configs,
    st.lists(st.tuples(views, st.floats(0, 40), st.none() | st.sampled_from(Policy)), max_size=12),
)
def test_the_controller_never_leaves_its_pool(
    config: MetaConfig, ticks: list[tuple[Views, float, Policy | None]]
) -> None:
    state, now_s = MetaState(), 0.0
    for seen, gap_s, answer in ticks:
        now_s += gap_s
        decision, state = decide(config, state, seen, now_s, answer)
        assert decision.policy is config.pool[0] if decision.bypass else decision.policy in config.pool


@settings(max_examples=60, deadline=None)
@given(configs, st.lists(st.tuples(views, st.floats(0, 40)), min_size=1, max_size=8))
def test_a_decision_is_a_function_of_its_recorded_view(config: MetaConfig, ticks: list[tuple[Views, float]]) -> None:
    state, now_s = MetaState(), 0.0
    for seen, gap_s in ticks:
        now_s += gap_s
        config_again = msgspec.json.decode(msgspec.json.encode(config), type=MetaConfig)
        state_again = msgspec.json.decode(msgspec.json.encode(state), type=MetaState)
        seen_again = msgspec.json.decode(msgspec.json.encode(seen), type=Views)
        first = decide(config, state, seen, now_s)
        assert msgspec.json.encode(first) == msgspec.json.encode(decide(config_again, state_again, seen_again, now_s))
        state = first[1]


def test_a_time_limit_next_to_zero_is_a_finite_load() -> None:
    seen = Views(queued_s=1.0, tightest_s=5e-324)
    _, state = decide(MetaConfig(strategy=Strategy.DRIFT), MetaState(), seen, 0.0)
    assert msgspec.json.decode(msgspec.json.encode(state), type=MetaState) == state


# -- guards

ALL_LATE = Views(short=ShortView(evaluated=50, late_share=1.0, ttft_p99_s=9.0))
CALM = Views(short=ShortView(evaluated=50, late_share=0.1, ttft_p99_s=1.0))


def run(
    config: MetaConfig, state: MetaState, seen: Views, begin_s: int, end_s: int
) -> tuple[list[Decision], MetaState]:
    found = []
    for now_s in range(begin_s, end_s):
        decision, state = decide(config, state, seen, float(now_s))
        found.append(decision)
    return found, state


def test_the_bypass_begins_after_ten_seconds_and_ends_after_ten_calm_ones() -> None:
    config = MetaConfig()
    late, state = run(config, MetaState(), ALL_LATE, 0, 15)
    assert [d.bypass for d in late] == [False] * 10 + [True] * 5
    calm, _ = run(config, state, CALM, 15, 30)
    assert [d.bypass for d in calm] == [True] * 10 + [False] * 5


def test_a_short_peak_is_no_bypass() -> None:
    state = MetaState()
    for at in range(0, 100, 10):
        for seen, begin in ((ALL_LATE, at), (CALM, at + 9)):
            found, state = run(MetaConfig(), state, seen, begin, begin + (9 if seen is ALL_LATE else 1))
            assert not any(d.bypass for d in found)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_bypass_ends_even_where_all_stay_late(strategy: Strategy) -> None:
    config = MetaConfig(strategy=strategy)
    found, _ = run(config, MetaState(), ALL_LATE, 0, 400)
    longest = streak = 0
    for decision in found:
        streak = streak + 1 if decision.bypass else 0
        longest = max(longest, streak)
    assert 0 < longest <= config.bypass_max_s + 1
    assert sum(not d.bypass for d in found) >= 100, "the strategy has its turns"


def test_a_bypass_is_the_first_of_the_pool_without_any_cap() -> None:
    base = ServeConfig(policy=Policy.TWO_LANE, regulate=True, relegation=Relegation.LOST)
    free = configured(base, Decision(policy=Policy.FCFS, bypass=True))
    assert (free.policy, free.regulate, free.kv_margin, free.relegation) == (Policy.FCFS, False, 0.0, Relegation.LOST)
    assert configured(base, Decision(policy=Policy.EDF)) == msgspec.structs.replace(base, policy=Policy.EDF)


BLOCKED = Views(
    short=ShortView(evaluated=50, late_share=0.2, ttft_p99_s=2.0),
    long=LongView(evaluated=500, late_share=0.2, late_short=0.4, late_long=0.1),
)
POOL = (Policy.EDF, Policy.TWO_LANE)


def test_a_switch_that_makes_it_worse_is_taken_back_and_barred() -> None:
    config = MetaConfig(pool=POOL)
    (switch,), state = run(config, MetaState(), BLOCKED, 0, 1)
    assert switch.policy is Policy.TWO_LANE
    worse = msgspec.structs.replace(BLOCKED, short=ShortView(evaluated=50, late_share=0.5, ttft_p99_s=2.0))
    after, _ = run(config, state, worse, 1, 200)
    assert {d.policy for d in after[: int(config.barred_s)]} == {Policy.EDF}
    assert after[0].reason == "two-lane made it worse"
    assert Policy.TWO_LANE in {d.policy for d in after[int(config.barred_s) :]}, "tried again later"


@pytest.mark.parametrize(
    ("late", "ttft_s", "evaluated", "taken_back"),
    [(0.23, 2.0, 50, False), (0.25, 2.0, 50, True), (0.2, 2.5, 50, True), (1.0, 9.0, 5, False)],
)
def test_a_rollback_needs_growth_by_a_fifth_and_evidence(
    late: float, ttft_s: float, evaluated: int, taken_back: bool
) -> None:
    config = MetaConfig(pool=POOL)
    _, state = run(config, MetaState(), BLOCKED, 0, 1)
    seen = msgspec.structs.replace(BLOCKED, short=ShortView(evaluated=evaluated, late_share=late, ttft_p99_s=ttft_s))
    after, _ = run(config, state, seen, 1, 2)
    assert (after[0].policy is Policy.EDF) == taken_back


def test_a_switch_is_not_taken_back_after_the_window() -> None:
    config = MetaConfig(pool=POOL)
    _, state = run(config, MetaState(), BLOCKED, 0, 22)
    worse = msgspec.structs.replace(BLOCKED, short=ShortView(evaluated=50, late_share=0.5, ttft_p99_s=9.0))
    after, _ = run(config, state, worse, 22, 29)
    assert {d.policy for d in after} == {Policy.TWO_LANE}


# -- strategies


def long(**given: float) -> Views:
    return Views(long=msgspec.convert({"evaluated": 500, **given}, LongView))


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (long(evaluated=5, late_share=1.0, late_short=1.0), Policy.EDF),
        (long(late_share=0.01), Policy.EDF),
        (long(late_share=0.3, late_short=0.5, late_long=0.1), Policy.SRPF),
        (long(late_share=0.3, late_short=0.1, late_long=0.5), Policy.SRPF),
        (long(late_share=0.3, late_short=0.3, late_long=0.3, tenant_worst=0.9, tenant_others=0.1), Policy.WFQ),
    ],
)
def test_rules_go_by_the_failure_pattern(seen: Views, wanted: Policy) -> None:
    pool = (Policy.EDF, Policy.TWO_LANE, Policy.SRPF, Policy.WFQ)
    assert rules.choose(MetaConfig(pool=pool), seen, Policy.EDF)[0] is wanted


def test_unknown_requests_rule_out_orders_by_expected_outputs() -> None:
    blocked = {"late_share": 0.3, "late_short": 0.5, "late_long": 0.1}
    config = MetaConfig(pool=(Policy.EDF, Policy.TWO_LANE))
    assert rules.choose(config, long(**blocked), Policy.EDF)[0] is Policy.TWO_LANE
    assert rules.choose(config, long(unknown_share=0.8, **blocked), Policy.EDF)[0] is Policy.EDF


@pytest.mark.parametrize("strategy", Strategy)
def test_mostly_unknown_requests_are_never_served_by_expected_outputs(strategy: Strategy) -> None:
    config = MetaConfig(strategy=strategy, pool=tuple(Policy))
    seen = long(late_share=0.5, late_short=0.9, late_long=0.1, unknown_share=0.8)
    for answer in (None, Policy.TWO_LANE):
        decision, _ = decide(config, MetaState(), seen, 0.0, answer)
        assert decision.policy not in rules.BY_OUTPUT


def test_drift_detection_finds_a_step_and_no_change_in_noise() -> None:
    chance = random.Random(1)

    def first_cut(values: list[float]) -> int | None:
        window = adwin.Window()
        for number, value in enumerate(values):
            window, cut = adwin.added(window, value, 0.002)
            if cut:
                return number
        return None

    noise = [min(1.0, max(0.0, chance.gauss(0.3, 0.1))) for _ in range(1000)]
    assert first_cut(noise) is None
    found = first_cut([*noise[:300], *(v + 0.4 for v in noise[300:])])
    assert found is not None and 300 <= found < 330


def test_the_window_of_drift_detection_keeps_its_mean_and_stays_small() -> None:
    window, values = adwin.Window(), [0.5 + 0.1 * math.sin(n) for n in range(2000)]
    for value in values:
        window, _ = adwin.added(window, value, 1e-9)
    assert window.mean == pytest.approx(sum(values) / len(values))
    assert len(window.buckets) < 80


def test_drift_switches_only_where_the_requests_have_changed() -> None:
    config = MetaConfig(strategy=Strategy.DRIFT, pool=tuple(Policy))
    state = MetaState()
    for now_s in range(400):
        decision, state = decide(config, state, long(late_share=0.5), float(now_s))
        assert decision.policy is config.pool[0]


def gained(seen: Views, share: float) -> Views:
    return msgspec.structs.replace(seen, long=msgspec.structs.replace(seen.long, in_time_share=share))


@pytest.mark.parametrize(
    "ends",
    [msgspec.structs.replace(BLOCKED, short=ShortView(evaluated=50, late_share=0.8, ttft_p99_s=2.0)), ALL_LATE],
    ids=["a rollback", "a bypass"],
)
def test_the_bandit_credits_no_order_with_what_another_one_did(ends: Views) -> None:
    config = MetaConfig(pool=POOL, strategy=Strategy.BANDIT, bypass_after_s=1.0)
    start = MetaState(policy=Policy.EDF, arms=learned_of(Policy.EDF, BLOCKED))
    (switch,), state = run(config, start, BLOCKED, 0, 1)
    assert switch.policy is Policy.TWO_LANE and state.pulled is not None
    expected = bandit.learned(state.arms, state.pulled, 0.1)
    for now_s in range(1, 4):
        _, state = decide(config, state, gained(ends, 0.1), float(now_s))
    assert state.arms == expected and state.pulled is None, "what it did itself"
    for now_s in range(4, 300):
        decision, state = decide(config, state, gained(BLOCKED, 0.9), float(now_s))
        if decision.decided:
            break
    assert state.arms == expected, "what was served meanwhile was not its doing"


def learned_of(policy: Policy, seen: Views) -> dict[str, bandit.Arm]:
    """Enough of it that another order is worth a try."""
    arms: dict[str, bandit.Arm] = {}
    for _ in range(50):
        arms = bandit.learned(arms, bandit.Pulled(policy, bandit.context_of(seen)), 0.0)
    return arms


def test_the_bandit_learns_the_better_arm() -> None:
    config, seen = MetaConfig(pool=(Policy.EDF, Policy.SRPF), strategy=Strategy.BANDIT), long(late_share=0.3)
    state = MetaState()
    chosen: list[Policy] = []
    gain = {Policy.EDF: 0.2, Policy.SRPF: 0.9}
    for tick in range(60):
        last = chosen[-1] if chosen else Policy.EDF
        given = msgspec.structs.replace(seen, long=msgspec.structs.replace(seen.long, in_time_share=gain[last]))
        decision, state = decide(config, state, given, 30.0 * tick)
        chosen.append(decision.policy)
    assert set(chosen[:10]) == {Policy.EDF, Policy.SRPF}, "both are tried"
    assert set(chosen[-20:]) == {Policy.SRPF}


def test_the_inverse_of_the_bandit_is_one() -> None:
    chance = random.Random(2)
    rows: list[tuple[float, ...]] = []
    arms: dict[str, bandit.Arm] = {}
    for _ in range(20):
        x = tuple(chance.random() for _ in range(3))
        rows.append(x)
        arms = bandit.learned(arms, bandit.Pulled(Policy.EDF, x), chance.random())
    inverse = arms["edf"].inverse
    design = [[float(i == j) + sum(x[i] * x[j] for x in rows) for j in range(3)] for i in range(3)]
    product = [[sum(inverse[i][k] * design[k][j] for k in range(3)) for j in range(3)] for i in range(3)]
    assert product == [pytest.approx([float(i == j) for j in range(3)], abs=1e-9) for i in range(3)]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"edf", b'"edf"', b"{}", b'{"policy": "lifo"}', b'{"policy": "edf", "why": "x"}', b'{"policy": ["edf"]}',
        b'{"policy": "srtf"}', b'{"policy": null}', b'```json\n{"policy": "edf"}\n```', b"\xff\xfe", b" " * 5000,
    ],
)  # fmt: skip
def test_an_answer_of_another_form_is_none_and_the_rules_hold(raw: bytes) -> None:
    config = MetaConfig(pool=(Policy.EDF, Policy.TWO_LANE), strategy=Strategy.LLM)
    answer = llm.read_answer(config, raw)
    assert answer is None
    seen = msgspec.structs.replace(BLOCKED)
    ruled, _ = decide(MetaConfig(pool=config.pool), MetaState(), seen, 0.0)
    decision, _ = decide(config, MetaState(), seen, 0.0, answer)
    assert decision.policy is ruled.policy


def test_an_answer_of_the_form_holds() -> None:
    config = MetaConfig(pool=(Policy.EDF, Policy.SRPF), strategy=Strategy.LLM)
    answer = llm.read_answer(config, b'{"policy": "srpf"}')
    assert decide(config, MetaState(), Views(), 0.0, answer)[0].policy is Policy.SRPF
    asked = llm.question(config, Views(), Policy.EDF)
    assert "edf, srpf" in asked and json.loads(asked[asked.rindex("{") :]) == {"policy": "NAME"}


def test_every_regime_of_the_table_is_its_own_nearest_and_of_the_pool() -> None:
    assert table.TABLE
    for regime in table.TABLE:
        assert len(regime.features) == len(table.features(Views()))
        assert set(regime.best) <= set(MetaConfig().pool)
        assert min(table.TABLE, key=lambda r: math.dist(r.features, regime.features)).best == regime.best


# -- QoS agents


@pytest.mark.parametrize(("late_service_s", "worst"), [(1.0, 1.0), (9.0, 0.0)])
def test_a_tenant_is_wronged_if_its_short_requests_are_late_too(late_service_s: float, worst: float) -> None:
    qos = Qos(MetaConfig(requests_min=2))
    for n in range(40):
        qos.evaluated(1.0, "others" if n % 4 else "one", 1.0 if n % 4 else late_service_s, late=n % 4 == 0)
        qos.evaluated(1.0, "more", 2.0, late=False)
    seen = qos.views(1.0).long
    assert (seen.tenant_worst, seen.tenant_others) == (worst, 0.0), "long ones are late because they are long"


def test_windows_forget_and_count_what_they_are_given() -> None:
    qos = Qos(MetaConfig(short_s=5, long_s=100, requests_min=2))
    for now_s in range(200):
        late = now_s >= 150
        qos.arrived(now_s, 1.0 if now_s % 2 else 3.0, known=now_s % 4 != 0)
        qos.evaluated(now_s, "a" if now_s % 2 else "b", 1.0 if now_s % 2 else 3.0, late and now_s % 2 == 1)
        qos.first_token(now_s, float(now_s))
        qos.ended(now_s, not late, late)
    seen = qos.views(199.0, 4.0, 2.0)
    assert seen.load == 2.0
    assert (seen.short.evaluated, seen.short.ttft_p99_s) == (6, 199.0)
    assert seen.short.late_share == 0.5
    assert (seen.long.arrived, seen.long.service_mean_s, seen.long.service_cv) == (
        101,
        pytest.approx(2, rel=0.02),
        pytest.approx(0.5, rel=0.02),
    )
    assert seen.long.unknown_share == pytest.approx(0.25, abs=0.01)
    assert (seen.long.late_short, seen.long.late_long) == (
        pytest.approx(seen.long.late_share),
        0.0,
    ) or seen.long.late_long == 0.0
    assert seen.long.in_time_share == 0.75
    qos.decided()
    assert qos.views(199.0).long.in_time_share == 0.0
    empty = qos.views(1000.0)
    assert empty.long == LongView() and empty.short == ShortView()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("every_s", math.nan, "every_s is nan: use 0.1 to 86400"),
        ("bypass_share", 1.5, "bypass_share is 1.5: use 0 to 1"),
        ("pool", (), "pool is empty: name at least one policy"),
        ("short_s", 400.0, "short_s is 400.0: use at most long_s, 300.0"),
    ],
)
def test_a_wrong_configuration_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetaConfig(**{field: value})  # type: ignore[arg-type]
