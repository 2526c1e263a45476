"""One engine's side of the request tier: facts in, plans out, and nothing that a request says can break it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mfsd.policy.serve import Policy, Relegation, ServeConfig, Service, StepLoad, plan_step
from mfsd.policy.serve.deadlines import next_token_due_s
from mfsd.policy.serve.fence import held_tokens
from mfsd.serve.engine import FAILURES_MAX, Engine
from mfsd.serve.promise import NAME_MAX, Words
from mfsd.serve.records import replay
from mfsd.serve.requests import Fact
from mfsd.serve.settings import Record, Settings, Tier
from mfsd.serve.status import status_of
from mfsd.serve.steps import OBSERVED_MAX

TIERS = Settings(
    default=Tier(ttft_ms=4000),
    tiers={"chat": Tier(ttft_ms=500, tbt_ms=50, importance=1), "batch": Tier(ttlt_ms=60_000, importance=-1)},
    tenants={"acme": 4.0},
)


class World:
    """An engine whose time stands where it is put, with the warnings that it gave."""

    def __init__(self, settings: Settings = TIERS, config: ServeConfig | None = None, plan: Any = plan_step) -> None:
        self.now_s = 100.0
        self.warnings: dict[str, list[str]] = {}
        self.engine = Engine(settings, config or settings.serve, self.warn, "e", lambda: self.now_s, plan)

    def warn(self, kind: str, text: str) -> None:
        self.warnings.setdefault(kind, []).append(text)

    def arrived(self, name: str, prompt: int = 100, age_s: float = 0.0, **words: Any) -> Any:
        return self.engine.arrived(name, Words(**words), age_s, prompt, 64)

    def step(self, names: list[str], load: StepLoad, seconds: float) -> None:
        key = object()
        self.engine.step_began(load, tuple(names), key)
        self.now_s += seconds
        self.engine.step_ended(key)

    def learned(self) -> None:
        """A decode step takes 10 ms, a prompt token 0.1 ms."""
        for tokens in (0, 100, 200, 400, 800, 1600):
            for decodes in (1, 4, 16):
                self.step([], StepLoad(tokens, tokens, decodes, 0, 0.0), 0.01 + 1e-4 * tokens)
        self.engine.plan([], [])


@pytest.fixture
def world() -> World:
    return World()


def test_a_tier_gives_what_a_request_does_not_say(world: World) -> None:
    chat = world.arrived("a", tier="chat", tenant="acme").wanted
    assert (chat.ttft_s, chat.tbt_s, chat.ttlt_s, chat.importance, chat.weight) == (0.5, 0.05, None, 1, 4.0)
    own = world.arrived("b", tier="chat", ttft_ms=200, importance="low").wanted
    assert (own.ttft_s, own.tbt_s, own.importance) == (0.2, 0.05, -1)
    assert world.arrived("c").wanted.ttft_s == 4.0
    assert not world.warnings


@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, "soon", "", True, [], 86_400_000, 10**400])
@pytest.mark.parametrize("word", ["ttft", "tbt", "ttlt"])
def test_an_slo_that_cannot_be_is_none_with_a_warning_and_counted(world: World, word: str, value: Any) -> None:
    wanted = world.arrived("a", tier="chat", **{f"{word}_ms": value}).wanted
    assert getattr(wanted, f"{word}_s") is None, "not the tier's either: the request has said something else"
    (warning,) = world.warnings[f"serve-{word}"]
    assert warning.startswith(f"{word}_slo_ms is ") and "\n" not in warning
    assert world.engine.reader.unusable == {word: 1}


def test_a_number_as_text_is_a_number(world: World) -> None:
    assert world.arrived("a", ttft_ms="250").wanted.ttft_s == 0.25


def test_a_token_time_below_a_decode_step_is_that_step(world: World) -> None:
    assert world.arrived("early", tbt_ms=0.001).wanted.tbt_s == 1e-6, "nothing was measured yet"
    world.learned()
    wanted = world.arrived("a", tbt_ms=1).wanted
    assert wanted.tbt_s == pytest.approx(0.01, rel=0.2)
    assert "nothing is faster" in world.warnings["serve-tbt"][0]


@pytest.mark.parametrize("value", ["urgent", 1.5, math.nan, True, [], 10**6, "99999999999", "²"])
def test_an_unknown_importance_is_the_tiers_and_counted(world: World, value: Any) -> None:
    assert world.arrived("a", tier="chat", importance=value).wanted.importance == 1
    assert world.engine.reader.unusable == {"importance": 1}


@pytest.mark.parametrize(("said", "expected"), [(7, 7), ("7.5", 7.5), (2000, 64), (None, 40), ("", 40)])
def test_what_a_request_says_of_its_output_goes_before_history(world: World, said: Any, expected: float) -> None:
    """And never beyond its own limit."""
    ended = world.arrived("a", application="ide")
    world.engine.lengths.ended(ended.wanted, 100, 40, 40.0)
    assert world.arrived("b", application="ide", expected_output_tokens=said).expected == expected
    assert not world.engine.reader.unusable


@pytest.mark.parametrize("value", [0, -1, math.nan, "inf", "many", True, [5], 10**400])
def test_an_output_that_cannot_be_is_unknown_and_counted(world: World, value: Any) -> None:
    wanted = world.arrived("a", expected_output_tokens=value).wanted
    assert wanted.expected_output_tokens == 0.0
    assert world.engine.reader.unusable == {"expected_output_tokens": 1}


@pytest.mark.parametrize("value", ["gold", 7, ["chat"], "CHAT"])
def test_an_unknown_tier_is_the_default_and_counted(world: World, value: Any) -> None:
    wanted = world.arrived("a", tier=value).wanted
    assert (wanted.tier, wanted.ttft_s) == ("default", 4.0)
    assert world.engine.reader.unusable == {"tier": 1}
    assert "chat, batch" in world.warnings["serve-tier"][0]


@pytest.mark.parametrize("value", [["a"], {"a": 1}, True, 1.5])
def test_an_unknown_role_is_none_and_counted(world: World, value: Any) -> None:
    assert world.arrived("a", role=value).wanted.role == ""
    assert world.engine.reader.unusable == {"role": 1}


def test_a_session_of_any_size_and_kind_is_one_short_printable_line(world: World) -> None:
    long = "s" * 10_240
    names = [
        world.arrived(f"r{i}", session=text).wanted.session for i, text in enumerate((long, long + "t", "a\nb\x1b"))
    ]
    assert all(len(name) <= NAME_MAX and name.isprintable() for name in names)
    assert len(set(names)) == 3, "still different"
    assert len(world.warnings["serve-session"]) == 3


def test_sub_sessions_belong_to_their_parents_program(world: World) -> None:
    world.arrived("a", session="main")
    assert world.arrived("b", session="sub", parent="main").program == "main"
    assert world.arrived("c", session="subsub", parent="sub").program == "main"
    assert world.arrived("d", session="sub").program == "main", "said once"


def test_an_unknown_parent_and_a_cycle_are_roots(world: World) -> None:
    assert world.arrived("a", session="one", parent="two").program == "one"
    assert world.engine.reader.unusable == {"parent": 1}
    assert world.arrived("b", session="two", parent="one").program == "one"
    assert world.arrived("c", session="one", parent="two").program == "one"
    assert world.arrived("d", session="self", parent="self").program == "self"


def test_a_program_inherits_what_its_ended_calls_had(world: World) -> None:
    world.arrived("a", session="s")
    world.step(["a"], StepLoad(100, 100, 0, 0, 0.0), 2.0)
    world.engine.ended("a")
    assert world.arrived("b", session="s").inherited.service_s == 2.0


@pytest.mark.parametrize(("programs", "had_s"), [(Service.PLAS, 5.0), (Service.ATLAS, 3.0)])
def test_what_a_program_has_had_is_a_sum_or_its_longest_chain(programs: Service, had_s: float) -> None:
    """Two calls side by side, of 2 and 3 s: the longest chain has 3."""
    world = World(msgspec.structs.replace(TIERS, programs=programs))
    for name, seconds in (("a", 2.0), ("b", 3.0)):
        world.arrived(name, session="s").service_s = seconds
    (shown,) = status_of(world.engine, 1, 0.0).programs
    assert shown.service_s == had_s
    for name in "ab":
        world.engine.ended(name)
    assert world.arrived("c", session="s").inherited.service_s == had_s


def test_deadlines_decide_the_order(world: World) -> None:
    world.learned()
    world.arrived("late", 900, tier="batch")
    world.arrived("soon", 900, tier="chat")
    engine = Engine(TIERS, ServeConfig(step_tokens=900), world.warn, "f", lambda: world.now_s)
    for name, tier in (("late", "batch"), ("soon", "chat")):
        engine.arrived(name, Words(tier=tier), 0.0, 900, 64)
    decision = engine.plan([Fact("late", 0), Fact("soon", 0)], [])
    assert decision is not None
    assert decision.tokens == {"soon": 900}


def test_a_clock_that_goes_back_stands_still(world: World) -> None:
    world.arrived("a", ttft_ms=500)
    world.engine.plan([Fact("a", 0)], [])
    world.now_s = 50.0
    assert world.engine.clock() == 100.0
    assert world.arrived("b", ttft_ms=500).due_s == 100.5
    world.step(["a"], StepLoad(100, 100, 0, 0, 0.0), -5.0)
    assert world.engine.plan([Fact("b", 0)], [Fact("a", 100, 0, 1)]) is not None


@pytest.mark.parametrize("age_s", [-1e9, -1.0, math.nan, 1e9])
def test_an_age_that_cannot_be_is_none(world: World, age_s: float) -> None:
    assert world.arrived("a", age_s=age_s).arrival_s == 100.0


def test_a_plan_that_raises_makes_that_step_first_come_and_is_counted() -> None:
    broken = [True]

    def plan(*arguments: Any) -> Any:
        if broken[0]:
            raise ZeroDivisionError("by zero")
        return plan_step(*arguments)

    world = World(plan=plan)
    world.arrived("a")
    for _ in range(FAILURES_MAX - 1):
        assert world.engine.plan([Fact("a", 0)], []) is None
        world.step([], StepLoad(), 0.1)
    broken[0] = False
    assert world.engine.plan([Fact("a", 0)], []) is not None
    world.step(["a"], StepLoad(100, 100), 0.1)
    broken[0] = True
    for _ in range(FAILURES_MAX):
        assert not world.engine.gave_up, "they were not in a row"
        assert world.engine.plan([Fact("a", 0)], []) is None
        world.step([], StepLoad(), 0.1)
    assert world.engine.gave_up
    broken[0] = False
    assert world.engine.plan([Fact("a", 0)], []) is None, "until it starts again"
    assert world.engine.counts["failed_plans"] == 2 * FAILURES_MAX - 1
    assert "ZeroDivisionError: by zero" in world.warnings["serve-plan"][0]


def test_an_engine_that_makes_no_plans_any_more_keeps_few_steps(world: World) -> None:
    for _ in range(FAILURES_MAX):
        world.engine.failed(KeyError("a"))
    for _ in range(10 * OBSERVED_MAX):
        world.engine.first_come()
        world.step([], StepLoad(1, 1), 0.1)
    assert len(world.engine.steps.taken()) == OBSERVED_MAX


def test_a_plan_that_cannot_be_followed_counts_as_failed(world: World) -> None:
    world.arrived("a")
    for _ in range(FAILURES_MAX):
        assert world.engine.plan([Fact("a", 0)], []) is not None
        world.engine.failed(KeyError("a"))
        world.step([], StepLoad(), 0.1)
    assert world.engine.gave_up


def test_errors_beside_the_plans_are_counted_apart_and_stop_no_plan(world: World) -> None:
    world.arrived("a")
    for _ in range(FAILURES_MAX + 1):
        world.engine.erred(KeyError("a"))
    assert not world.engine.gave_up and world.engine.plan([Fact("a", 0)], []) is not None
    counts = world.engine.counts
    assert (counts["other_errors"], counts["failed_plans"], counts["first_come_steps"]) == (FAILURES_MAX + 1, 0, 0)
    assert "KeyError: 'a'" in world.warnings["serve-error"][0]


def test_a_request_that_never_arrived_is_served_without_words(world: World) -> None:
    decision = world.engine.plan([Fact("ghost", 0)], [])
    assert decision is not None
    assert list(decision.tokens) == ["ghost"]


def test_in_time_and_late_are_counted_by_tier(world: World) -> None:
    for name, seconds in (("in time", 0.4), ("late", 0.6)):
        world.arrived(name, tier="chat")
        world.step([name], StepLoad(100, 100), seconds)
        world.engine.produced(name, 1)
        world.engine.ended(name)
    world.arrived("slow", tier="chat")
    world.engine.produced("slow", 1)
    for _ in range(2):  # the first may come 0.5 s after the arrival, each other one 0.05 s after that
        world.now_s += 0.4
        world.engine.produced("slow", 1)
    world.engine.ended("slow")
    world.arrived("gone", tier="chat")
    world.engine.ended("gone", aborted=True)
    count = world.engine.tiers["chat"]
    assert (count.met, count.late, count.aborted, count.tokens) == (1, 2, 1, 5)
    assert not world.engine.entries


def test_a_request_that_ends_without_a_token_is_judged_by_its_end(world: World) -> None:
    for name, seconds in (("in time", 0.4), ("late", 0.6)):
        world.arrived(name, tier="chat")
        world.now_s += seconds
        world.engine.ended(name)
    count = world.engine.tiers["chat"]
    assert (count.met, count.late) == (1, 1)


def test_a_request_whose_kv_was_dropped_is_not_lost(world: World) -> None:
    world.learned()
    entry = world.arrived("a", 100, tier="chat")
    world.engine.plan([Fact("a", 0)], [])
    world.engine.produced("a", 1)
    world.now_s += 10.0
    decision = world.engine.plan([Fact("a", 0, 0, 20, again_tokens=120)], [])
    assert decision is not None
    assert decision.tokens == {"a": 120}
    assert decision.plan.lost == ()
    assert (entry.due_s, entry.first_due_s) == (world.now_s + 0.5, entry.arrival_s + 0.5)
    world.now_s += 10.0
    assert world.engine.plan([Fact("a", 0, 0, 30, again_tokens=130)], []) is not None
    assert entry.due_s == world.now_s + 0.5, "its budget is that of its arrival, however often it is renewed"


def test_tokens_after_a_drop_of_kv_are_due_when_they_were(world: World) -> None:
    """Only the request's place in the queue is renewed."""
    entry = world.arrived("a", 100, tier="chat")
    world.engine.produced("a", 1)
    world.now_s += 40.0
    assert world.engine.plan([Fact("a", 0, 0, 1, again_tokens=101)], []) is not None
    assert entry.shown is not None
    assert next_token_due_s(world.engine.config, entry.shown) == pytest.approx(100.55)
    for late in (1, 2):
        world.now_s += 0.05
        world.engine.produced("a", 1)
        assert entry.late_tokens == late
    world.engine.ended("a")
    assert (world.engine.tiers["chat"].met, world.engine.tiers["chat"].late) == (0, 1)


def test_outputs_of_a_request_whose_kv_was_dropped_take_memory_once(world: World) -> None:
    entry = world.arrived("a", 100, tier="chat")
    entry.expected_max = 60.0
    queued, back = Fact("a", 0, 0, 50, again_tokens=150), Fact("a", 150, 0, 55)
    for waiting, running in (([queued], []), ([], [back])):
        assert world.engine.plan(waiting, running) is not None
        (shown,) = (*world.engine._view.waiting, *world.engine._view.running)
        assert (shown.num_prompt_tokens, shown.num_folded_tokens, held_tokens(shown)) == (150, 50, 160)


def test_a_request_whose_kv_was_dropped_queues_with_its_budget_from_then_on(world: World) -> None:
    world.learned()
    world.arrived("dropped", 100, tier="chat")
    world.engine.produced("dropped", 1)
    world.now_s += 10.0
    world.arrived("before", 100, tier="chat", age_s=0.1)
    facts = [Fact("before", 0), Fact("dropped", 0, 0, 20, again_tokens=120)]
    assert world.engine.plan(facts, []) is not None
    world.now_s += 0.1
    world.arrived("after", 100, tier="chat")
    decision = world.engine.plan([Fact("after", 0), *facts], [])
    assert decision is not None and decision.plan.lost == ()
    assert list(decision.tokens) == ["before", "dropped", "after"]


def test_step_times_are_learned_also_of_an_engine_that_runs_ahead(world: World) -> None:
    first, second = object(), object()
    world.engine.step_began(StepLoad(decodes=1), (), first)
    world.now_s += 0.2
    world.engine.step_began(StepLoad(decodes=2), (), second)
    world.now_s += 0.3
    world.engine.step_ended(first)
    world.now_s += 0.1
    world.engine.step_ended(second)
    assert [round(o.seconds, 3) for o in world.engine.steps.taken()] == [0.5, 0.1]
    world.engine.step_ended(object())
    assert world.engine.steps.taken() == ()


@pytest.mark.parametrize("policy", list(Policy))
def test_every_policy_plans_records_and_replays_to_the_bit(policy: Policy, tmp_path: Path) -> None:
    config = ServeConfig(policy=policy, relegation=Relegation.PROJECTION, step_tokens=256)
    world = World(Settings(serve=config, tiers=TIERS.tiers, record=Record(str(tmp_path))), config)
    world.learned()
    for i in range(12):
        world.arrived(f"r{i}", 50 + 40 * i, tier=("chat", "batch")[i % 2], session=f"s{i % 3}", tenant=f"t{i % 2}")
    computed = dict.fromkeys(world.engine.entries, 0)
    for _ in range(30):
        facts = {name: Fact(name, done, 0, max(0, done - 490)) for name, done in computed.items()}
        decision = world.engine.plan(
            [fact for fact in facts.values() if fact.num_computed_tokens == 0],
            [fact for fact in facts.values() if fact.num_computed_tokens],
            20_000,
            sum(computed.values()),
        )
        assert decision is not None
        for name, tokens in decision.tokens.items():
            computed[name] += tokens
        world.step(list(decision.tokens), decision.plan.load, 0.02)
    world.engine.close()
    replayed = replay(tmp_path)
    assert (replayed.steps, replayed.differing, replayed.equal) == (31, 0, True)


def test_the_order_of_the_queue_names_all_that_wait_and_what_is_set_aside_comes_last(world: World) -> None:
    """Unlike the plan, which names what a step has room for."""
    assert world.engine.queue_order() == ([], frozenset())
    world.learned()
    for name, tier in (("late", "batch"), ("b", ""), ("soon", "chat"), ("a", "")):
        world.arrived(name, 600, tier=tier)
    lost = world.arrived("lost", 6000, tier="chat", age_s=30.0)
    names = ["late", "b", "soon", "a", "lost"]
    decision = world.engine.plan([Fact(name, 0) for name in names], [])
    assert decision is not None and decision.plan.lost == (lost.number,)
    order, relegated = world.engine.queue_order()
    dues = [world.engine.entries[name].due_s for name in order if name != "lost"]
    assert order[-1] == "lost" and dues == sorted(dues) and sorted(order) == sorted(names)
    assert relegated == frozenset()
    world.engine.ended("b")
    assert "b" not in world.engine.queue_order()[0]
