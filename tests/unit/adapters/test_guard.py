"""What fails in MFS's part of vLLM's connector stays there."""

from __future__ import annotations

import logging

import pytest

from mooncake_adapter.vllm.guard import Guard
from mooncake_adapter.warn_once import WarnOnce


def half(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


def test_an_error_is_logged_once_for_each_call_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(WarnOnce(logging.getLogger("test-guard")))
    assert guard.asked(-1, half, 4) == 2
    assert [guard.asked(-1, half, number) for number in (3, 5)] == [-1, -1]
    guard(half, 7)
    assert [record.getMessage() for record in caplog.records] == [
        "half failed (ValueError: 3 is odd); its requests are not reported, the engine continues"
    ]


def test_where_calls_move_kv_an_error_reaches_the_engine() -> None:
    guard = Guard(WarnOnce())
    guard.strict = True
    with pytest.raises(ValueError, match="3 is odd"):
        guard(half, 3)
