"""The search for a capacity finds that of something whose capacity is known."""

from __future__ import annotations

import pytest

from bench.requests import capacity
from bench.requests import point as points
from bench.requests.capacity import STEP, Search, bisect, search
from bench.requests.point import Point


@pytest.mark.parametrize("known", [0.02, 0.5, 1.3, 3.99, 7.9])
def test_the_capacity_of_a_known_server_is_found(known: float) -> None:
    found = bisect(lambda qps: max(0.0, qps - known) / qps, 8.0, 0.05)
    carried = known / 0.99  # 1 % late
    assert carried - 0.05 < found.qps <= carried
    assert len(found.tried) <= 8, "each step halves the bracket"


def test_nothing_is_found_where_all_is_late_and_the_top_where_nothing_is() -> None:
    assert bisect(lambda _: 1.0, 8.0, 0.05).qps == 0.0
    assert bisect(lambda _: 0.0, 8.0, 0.05).qps >= 8.0 - 0.05


def test_the_bound_itself_is_met() -> None:
    assert bisect(lambda qps: 0.01 if qps <= 4 else 0.02, 8.0, 0.05).qps >= 3.95


def test_a_row_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(point: Point) -> dict[str, object]:
        return {"violations": {"all": 0.0 if point.qps <= 3.0 else 0.5}, "cpu_s": 1.0}

    monkeypatch.setattr(points, "run", fake)
    row = search(Search(Point(policy="edf", seed=7), 8.0, STEP))
    assert set(row) >= {"policy", "workload", "seed", "capacity_qps"}
    assert 3.0 - STEP <= row["capacity_qps"] <= 3.0 and not row["reached_highest"]
    assert {t["qps"] for t in row["tried"] if t["late"] == 0} == {t["qps"] for t in row["tried"] if t["qps"] <= 3.0}
    assert row["cpu_s"] == len(row["tried"])
    monkeypatch.setattr(points, "run", lambda p: {"violations": {"all": 0.0}, "cpu_s": 1.0})
    assert search(Search(Point(), 8.0, STEP))["reached_highest"]
    assert capacity.LATE == 0.01
