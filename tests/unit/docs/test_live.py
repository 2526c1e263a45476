"""What pages say of vLLM beside MFS's scheduler is what the recorded pairs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECORDED = json.loads((ROOT / "docs" / "results" / "live-results.json").read_text())
SUMMARY = RECORDED["summary"]
LATE = f"{100 * SUMMARY['important_late_fcfs']:.0f} %"
SPEED = f"{SUMMARY['throughput_ratio_mean']:.3f} ± {SUMMARY['throughput_ratio_stderr']:.3f}"


@pytest.mark.parametrize(
    ("page", "quotes"),
    [
        ("README.md", [f"no important request late instead of {LATE}", "thirty pairs"]),
        ("docs/serve.md", [f"0 against {LATE}", SPEED, "thirty pairs"]),
        ("docs/requests.md", [SPEED, "thirty pairs"]),
    ],
)
def test_pages_quote_the_recorded_pairs(page: str, quotes: list[str]) -> None:
    assert RECORDED["config"]["pairs"] == 30 and SUMMARY["important_late_mfs"] == 0
    text = " ".join((ROOT / page).read_text().split())
    assert not [quote for quote in quotes if quote not in text]
