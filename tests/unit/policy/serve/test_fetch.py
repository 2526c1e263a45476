"""Fetch reuse or compute it again."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mfsd.policy.serve.fetch import EXTRA_SHARE, REASONS_AGAIN, Choice, Reason, ReuseRule, ReuseView, decide

seconds = st.floats(0, 1e4)
views = st.builds(
    ReuseView,
    fetch_s=seconds,
    queue_s=seconds,
    rest_s=seconds,
    whole_s=seconds,
    left_s=st.none() | st.floats(-1e4, 1e4),
    limit_s=st.none() | seconds,
    waiting=st.integers(0, 1000),
    before_s=st.none() | seconds,
    lease_s=st.none(),
)
whole_views = views.map(lambda view: view._replace(before_s=None))
"""Of reuse that is fetched whole or not at all."""
AGAIN = (Choice.RECOMPUTE, Choice.PART)
rules = st.sampled_from([ReuseRule.SLO, ReuseRule.COST])
BUSY = ReuseView(fetch_s=2.0, queue_s=0.1, rest_s=0.01, whole_s=0.2, left_s=0.5, limit_s=1.0)
"""Late with its reuse, in time without, and quicker by far more than it costs."""


@given(views)
def test_without_a_rule_everything_is_fetched(view: ReuseView) -> None:
    assert decide(ReuseRule.ALWAYS, view).choice is Choice.FETCH


@given(rules, views, st.sampled_from([None, math.nan, math.inf, -math.inf, -1.0]))
def test_what_is_unknown_or_no_time_is_fetched(rule: ReuseRule, view: ReuseView, fetch_s: float | None) -> None:
    decision = decide(rule, view._replace(fetch_s=fetch_s), recheck_s=0.01)
    assert decision.choice is Choice.FETCH and decision.fetched_s is None


@given(
    rules,
    st.sampled_from(["queue_s", "rest_s", "whole_s", "left_s", "limit_s", "before_s", "lease_s"]),
    st.sampled_from([math.nan, math.inf]),
)
def test_no_other_time_may_be_none_either(rule: ReuseRule, name: str, value: float) -> None:
    assert decide(rule, BUSY).choice is Choice.RECOMPUTE
    changed: dict[str, Any] = {name: value}
    assert decide(rule, BUSY._replace(**changed)).choice is Choice.FETCH


@given(views)
def test_slo_computes_again_only_what_that_brings_in_time(view: ReuseView) -> None:
    decision = decide(ReuseRule.SLO, view)
    if decision.choice in AGAIN:
        assert view.left_s is not None
        assert decision.recomputed_s is not None and decision.recomputed_s <= view.left_s
        assert decision.fetched_s is not None and decision.fetched_s > view.left_s
        assert view.limit_s is not None
        assert (1 - decision.share) * (view.whole_s - view.rest_s) <= EXTRA_SHARE * view.limit_s


@given(views)
def test_cost_computes_again_only_what_gains_more_than_all_others_lose(view: ReuseView) -> None:
    decision = decide(ReuseRule.COST, view)
    assert decision.fetched_s is not None and decision.recomputed_s is not None
    gained = decision.fetched_s - decision.recomputed_s
    taken = (1 - decision.share) * (view.whole_s - view.rest_s) * (1 + view.waiting)
    assert (decision.choice in AGAIN) == (gained > 0 and gained > taken)


@given(rules, views)
def test_a_part_is_what_is_here_before_the_engine_could_begin(rule: ReuseRule, view: ReuseView) -> None:
    """So it is never later than computing all again, and computes less."""
    decision, whole = decide(rule, view), decide(rule, view._replace(before_s=None))
    assert (decision.choice is Choice.PART) <= (0 < decision.share <= 1)
    assert whole.choice is not Choice.PART and whole.share == 0
    if decision.choice is Choice.PART:
        assert view.before_s is not None and view.fetch_s is not None
        here_s = view.before_s + decision.share * (view.fetch_s - view.before_s)
        assert here_s <= view.queue_s * (1 + 1e-9)
        assert decision.recomputed_s is not None and whole.recomputed_s is not None
        assert view.whole_s < view.rest_s or decision.recomputed_s <= whole.recomputed_s


@st.composite
def parted(draw: st.DrawFn) -> ReuseView:
    """The engine begins while the reuse comes, all of which is late."""
    positive = st.floats(0.01, 10)
    before_s, wait_s, more_s, rest_s = draw(positive), draw(positive), draw(st.floats(10, 100)), draw(positive)
    queue_s, whole_s = before_s + wait_s, rest_s + draw(st.floats(0.01, 4))
    return ReuseView(
        fetch_s=queue_s + more_s,
        queue_s=queue_s,
        rest_s=rest_s,
        whole_s=whole_s,
        left_s=queue_s + whole_s,
        limit_s=1e3,
        before_s=before_s,
    )


@given(rules, parted(), st.floats(0, 1))
def test_no_other_part_ends_earlier_by_the_estimate_that_chose_it(
    rule: ReuseRule, view: ReuseView, share: float
) -> None:
    """All and nothing among them. Up to the moment at which the engine could begin more of it costs nothing; beyond
    that the end moves by the same for each share, so that one of the two ends is the best."""
    decision = decide(rule, view)
    assert decision.choice is Choice.PART and decision.recomputed_s is not None

    def ends_s(share: float) -> float:
        assert view.fetch_s is not None and view.before_s is not None
        here_s = view.before_s + share * (view.fetch_s - view.before_s) if share else 0.0
        return max(view.queue_s, here_s) + view.whole_s - share * (view.whole_s - view.rest_s)

    assert math.isclose(decision.recomputed_s, ends_s(decision.share))
    for other in (share, 0.0, 1.0):
        assert decision.recomputed_s <= ends_s(other) * (1 + 1e-9)


def test_a_busy_engine_fetches_a_part_and_an_idle_one_does_not() -> None:
    """A second of the two is what goes before; the engine begins in one and a half."""
    busy = ReuseView(fetch_s=2.0, queue_s=1.5, rest_s=0.0, whole_s=0.4, left_s=1.8, limit_s=4.0, before_s=1.0)
    assert decide(ReuseRule.SLO, busy) == (Choice.PART, Reason.LATE_WITH_IT, 2.0, 1.7, 0.5)
    assert decide(ReuseRule.SLO, busy._replace(before_s=None)).reason is Reason.LATE_EITHER_WAY
    assert decide(ReuseRule.SLO, busy._replace(queue_s=0.5)).choice is Choice.RECOMPUTE
    assert decide(ReuseRule.COST, busy).choice is Choice.PART


@given(rules, whole_views, seconds)
def test_a_longer_backlog_never_makes_fetching_better(rule: ReuseRule, view: ReuseView, more_s: float) -> None:
    assert view.fetch_s is not None
    if decide(rule, view).choice is Choice.RECOMPUTE:
        assert decide(rule, view._replace(fetch_s=view.fetch_s + more_s)).choice is Choice.RECOMPUTE


@given(rules, whole_views, st.floats(0, 10))
def test_waiting_costs_nothing(rule: ReuseRule, view: ReuseView, recheck_s: float) -> None:
    """It is chosen in place of computing again alone, when that could not begin earlier and is in time until then."""
    decision, at_once = decide(rule, view, recheck_s), decide(rule, view)
    if decision.choice is Choice.WAIT:
        assert at_once.choice is Choice.RECOMPUTE
        assert 0 < recheck_s <= view.queue_s
        assert view.left_s is None or view.queue_s + view.whole_s <= view.left_s
    else:
        assert decision == at_once


@given(rules, views, st.floats(1e-3, 1e4))
def test_no_load_outlives_its_lease(rule: ReuseRule, view: ReuseView, lease_s: float) -> None:
    decision = decide(rule, view._replace(lease_s=lease_s))
    assert view.fetch_s is not None
    if view.fetch_s <= lease_s:
        assert decision == decide(rule, view)
        return
    assert decision.choice in AGAIN and decision.reason is Reason.OUTLIVES_LEASE
    if view.before_s is not None and decision.choice is Choice.PART:
        part_s = view.before_s + decision.share * (view.fetch_s - view.before_s)
        assert part_s <= min(lease_s, view.queue_s) * (1 + 1e-9)


@given(rules, views, st.none() | seconds, st.floats(0, 10))
def test_a_reason_belongs_to_one_answer(
    rule: ReuseRule, view: ReuseView, lease_s: float | None, recheck_s: float
) -> None:
    """A metric has them beside each other."""
    decision = decide(rule, view._replace(lease_s=lease_s), recheck_s)
    assert (decision.choice in AGAIN) == (decision.reason in REASONS_AGAIN)
    assert (decision.choice is Choice.WAIT) == (decision.reason is Reason.ENGINE_BUSY)


def test_each_decision_says_why() -> None:
    assert decide(ReuseRule.SLO, BUSY).reason is Reason.LATE_WITH_IT
    assert decide(ReuseRule.SLO, BUSY, recheck_s=0.05).choice is Choice.WAIT
    assert decide(ReuseRule.SLO, BUSY._replace(left_s=0.1)).reason is Reason.LATE_EITHER_WAY
    assert decide(ReuseRule.SLO, BUSY._replace(limit_s=0.7)).reason is Reason.TAKES_TOO_MUCH
    assert decide(ReuseRule.SLO, BUSY._replace(limit_s=0.7), extra_share=1.0).choice is Choice.RECOMPUTE
    assert decide(ReuseRule.SLO, BUSY._replace(left_s=None)).reason is Reason.NO_DEADLINE
    assert decide(ReuseRule.SLO, BUSY._replace(fetch_s=0.2)).reason is Reason.IN_TIME
    assert decide(ReuseRule.COST, BUSY).reason is Reason.GAINS_MORE
    assert decide(ReuseRule.COST, BUSY._replace(waiting=20)).choice is Choice.FETCH
    assert decide(ReuseRule.COST, BUSY._replace(fetch_s=None)).reason is Reason.BACKLOG_UNKNOWN
