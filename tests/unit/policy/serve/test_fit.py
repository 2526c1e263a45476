"""Passing over prompts that cannot fit changes nothing in who is chosen."""

from __future__ import annotations

from unittest import mock

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mfsd.policy.serve import Pace, Policy, Request, ServeConfig
from mfsd.policy.serve.fit import Step, fill
from mfsd.policy.serve.pace import Piece

TERM = st.floats(-0.02, 0.1)


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    """Mostly such as grow with tokens; the second piece may begin below the first one's end."""

    def piece() -> Piece:
        each, busy, pair = draw(TERM), draw(TERM), draw(st.sampled_from([0.0, 1e-3, -1e-4]))
        terms = (draw(st.floats(0.0, 0.03)), each, busy, 0.02, 1e-3, pair)
        return Piece(terms=terms, steps=5)

    return Pace(piece(), piece())


def queued(number: int, tokens: int, cached: int, due_s: float) -> Request:
    return Request(
        request_id=number,
        arrival_s=0.0,
        num_prompt_tokens=tokens + cached,
        num_computed_tokens=cached,
        num_cached_tokens=cached,
        due_s=due_s,
    )


prompts = st.lists(
    st.tuples(st.one_of(st.integers(1, 100), st.integers(1, 4000)), st.sampled_from([0, 500]), st.floats(0, 0.5)),
    min_size=2,
    max_size=12,
)


@given(paces(), prompts, st.integers(0, 600), st.floats(0.001, 0.3), st.booleans())
@settings(deadline=None, max_examples=150)
def test_what_cannot_fit_is_passed_over_without_a_change(
    pace: Pace, given_prompts: list[tuple[int, int, float]], decodes: int, limit_s: float, cut: bool
) -> None:
    config = msgspec.structs.replace(ServeConfig(policy=Policy.FIT), cut_prompts=cut)
    queue = [queued(n, *prompt) for n, prompt in enumerate(given_prompts)]
    shortest = min(request.prefill_left for request in queue)

    def chosen(tokens: int) -> tuple[list[object], list[int]]:
        asked: list[int] = []
        step = Step(pace, 1, config.pace_margin, decodes, decodes * 500)
        found = fill(
            config, queue, step, 2500, 0.0, lambda r: asked.append(r.request_id) or True, limit_s, True, tokens
        )
        return list(found), asked

    with mock.patch.object(Step, "exceeds", return_value=False):
        plain = chosen(1)
    assert chosen(1) == plain == chosen(shortest)


def test_a_step_with_no_room_for_the_shortest_is_full() -> None:
    grows = Pace(Piece((0.01, 0.1, 0.0, 0.0, 0.0, 0.0), steps=5), Piece((0.01, 0.1, 0.0, 0.0, 0.0, 0.0), steps=5))
    config = ServeConfig(policy=Policy.FIT)
    queue = [queued(0, 400, 0, 9.0), *(queued(n, 200, 0, 9.0) for n in range(1, 4))]
    step = Step(grows, 1, 1.0)
    assert [c.request.request_id for c in fill(config, queue, step, 2500, 0.0, lambda r: True, 0.052, True, 200)] == [0]
    assert step.full
    assert not step.exceeds(1, 0.1, 0.0) and step.exceeds(21, 0.052, 0.0)


def test_a_longer_prompt_joins_where_the_estimate_of_larger_steps_is_below() -> None:
    """And where an estimate falls with tokens: the second prompt does not fit, the third does."""

    def chosen(pace: Pace, lengths: tuple[int, ...], decodes: int, limit_s: float) -> list[int]:
        queue = [queued(n, tokens, 0, 9.0) for n, tokens in enumerate(lengths)]
        step, config = Step(pace, 1, 1.0, decodes), ServeConfig(policy=Policy.FIT)
        return [c.request.request_id for c in fill(config, queue, step, 4000, 0.0, lambda r: True, limit_s, True)]

    small, large = (Piece((fixed, each, 0.0, 0.0, 0.0, 0.0), steps=5) for fixed, each in ((0.05, 0.1), (0.01, 0.01)))
    assert chosen(Pace(small, large), (100, 80, 400), 300, 0.092) == [0, 2]
    falls = Piece((0.1, -0.01, 0.0, 0.0, 0.0, 0.0), steps=5)
    assert chosen(Pace(falls, falls), (600, 100, 2000), 0, 0.08) == [0, 2]
