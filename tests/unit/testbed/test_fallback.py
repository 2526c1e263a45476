"""The arithmetic of the demo's fallback, on calls whose answers are known by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.testbed import fallback
from bench.testbed.fallback import Call, ProgramError

S = 1_000_000_000


def calls(number: int, *spans_s: tuple[float, float]) -> list[Call]:
    return [{"start_ns": int(a * S), "end_ns": int(b * S), "bytes": 8, "round": number} for a, b in spans_s]


def test_a_round_runs_from_the_last_start_to_the_last_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "ROUNDS", 2)
    warm_up = calls(-1, (0.0, 9.0), (0.0, 9.0))
    rounds = calls(0, (0.0, 2.0), (0.5, 1.5)) + calls(1, (3.0, 3.5), (3.0, 4.0))
    assert fallback.round_s(warm_up + rounds) == pytest.approx((1.5 + 1.0) / 2)


def test_calls_are_read_up_to_a_number_or_to_the_end() -> None:
    lines = [json.dumps({"ready": True}), *(json.dumps(call) for call in calls(0, (0, 1), (1, 2), (2, 3)))]
    command = [sys.executable, "-c", f"print({chr(10).join(lines)!r})"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert len(fallback.read_calls(process, 2)) == 2 and len(fallback.read_calls(process)) == 1
        with pytest.raises(ProgramError, match="printed 0 of 1 calls"):
            fallback.read_calls(process, 1)


def test_the_verdict_needs_a_faster_collective_and_the_link_for_the_other() -> None:
    good = {"slower_without": 4.0, "slower_with": 2.0, "bulk_share": 0.95}
    assert fallback.holds(good)
    assert not fallback.holds({**good, "slower_with": 4.0}) and not fallback.holds({**good, "bulk_share": 0.8})
