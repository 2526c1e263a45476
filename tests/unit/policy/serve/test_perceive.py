"""What is known of a request: the request itself, then history, then a prior; what cannot be read is unknown."""

from __future__ import annotations

import math

import pytest

from mfsd.policy.serve.perceive import Outputs, Source, cost_of


@pytest.fixture
def outputs() -> Outputs:
    history = Outputs()
    for _ in range(5):
        history.ended("acme", "chat", 100)
        history.ended("acme", "code", 300)
    return history


def test_the_request_comes_before_history_and_history_before_the_prior(outputs: Outputs) -> None:
    assert outputs.perceive("acme", "chat", 42, 256) == (42.0, Source.REQUEST, True)
    assert outputs.perceive("acme", "chat", None, 256) == (100.0, Source.HISTORY, True)
    assert outputs.perceive("acme", "other", None, 256)[1:] == (Source.PRIOR, False)
    assert outputs.perceive("other", "chat", None, 256)[1:] == (Source.PRIOR, False), "of another tenant"
    assert Outputs().perceive("acme", "chat", None, 256) == (256, Source.PRIOR, False)


@pytest.mark.parametrize("value", [-3, 0, math.nan, math.inf])
def test_what_cannot_be_read_is_unknown_and_gets_the_statistics_of_all(outputs: Outputs, value: float) -> None:
    found = outputs.perceive("acme", "chat", value, 256)
    assert (found.source, found.known) == (Source.PRIOR, False)
    assert 100 < found.output_tokens < 300


def test_a_request_without_application_is_never_specialised(outputs: Outputs) -> None:
    assert not outputs.perceive("acme", "", None, 256).known
    assert not outputs.perceive("acme", "", 42, 256).known


def test_the_oldest_history_is_forgotten() -> None:
    history = Outputs(keys_max=2)
    for name in ("a", "b", "a", "c"):
        history.ended("", name, 10)
    assert [history.perceive("", name, None, 256).known for name in ("a", "b", "c")] == [True, False, True]


def test_cost_is_equation_five() -> None:
    cost = cost_of(100.0, 1000, 50, 2.0, 0.1, 1e-3, 0.02, delay_s=101.0)
    assert cost == (pytest.approx(1.0 + 1.0), pytest.approx(107.0), pytest.approx(107.0 - 101.0 - 2.0))
