"""Claims: the page says what the rows say, and the command's status what the verdicts are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.requests import ablations, claims, claims_joint, page
from bench.requests import point as points
from bench.requests.ablations import Ablation
from bench.requests.claim import NOT_RUN, REFUTED, SHOWN, Claim, Measured, Row
from bench.requests.lab import QUICK, Lab
from bench.requests.point import Point
from mfsd.policy.serve import ServeConfig

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs/results"


def test_the_page_is_what_the_rows_say() -> None:
    rows = claims.complete(claims.load(RESULTS / "claims-results.json"))
    tables = ablations.load(RESULTS / "claims-ablations.json")
    written = (RESULTS / "claims.md").read_text()
    assert written == page.text(rows, tables), "write it again: claims --page docs/results/claims.md"
    for row in rows:
        assert row.measured in written and row.bar in written


def test_every_claim_of_the_plan_is_there() -> None:
    assert {"q1", "q2", "q3", "q4", "q5", "q6", "a1", "a2", "h2", "j1", "j2", "j3", "j4", "j5", "j6", "j7"} <= {
        claim.id for claim in claims.CLAIMS
    }
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS)


def fake(name: str, holds: bool | None) -> Claim:
    return Claim(name, "joint", "here", "says", "bar", lambda lab: Measured(holds, "1.0", "why"))


@pytest.mark.parametrize(("holds", "verdict", "status"), [(True, SHOWN, 0), (False, REFUTED, 1), (None, NOT_RUN, 0)])
def test_the_status_is_that_of_the_verdicts(
    holds: bool | None, verdict: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLAIMS", (fake("x1", True), fake("x2", holds)))
    out, runs = tmp_path / "c.json", tmp_path / "runs.jsonl"
    text = tmp_path / "c.md"
    assert claims.main(["--json", str(out), "--runs", str(runs), "--page", str(text)]) == status
    rows = json.loads(out.read_text())
    assert [set(row) for row in rows] == [{"id", "system", "where", "claim", "measured", "bar", "verdict", "note"}] * 2
    assert rows[1]["verdict"] == verdict and "1.0 (why)" in text.read_text()
    assert claims.main(["--json", str(out), "--runs", str(runs), "--claim", "x1"]) == status, "other rows are kept"


def test_a_claim_without_a_row_is_not_run() -> None:
    rows = claims.complete([])
    assert {row.verdict for row in rows} == {NOT_RUN} and len(rows) == len(claims.CLAIMS)


def test_text_of_a_row_cannot_break_the_table() -> None:
    row = Row("a|b", "s", "w", "c", "m", "b", SHOWN)
    assert "a\\|b" in page.text([row], [])


def test_runs_are_measured_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Point] = []

    def run(point: Point) -> dict[str, object]:
        ran.append(point)
        return {"violations": {"all": 0.0 if point.qps <= 2 else 1.0, "important": 0.25}}

    monkeypatch.setattr(points, "run", run)
    file = tmp_path / "runs.jsonl"
    lab = Lab(file, QUICK)
    assert lab.capacity(lab.tiers("edf", 1.0, 0)) == pytest.approx(2.0, abs=QUICK.step)
    assert lab.late(lab.tiers("edf", 3.0, 0), of="important") == 0.25
    first = len(ran)
    again = Lab(file, QUICK)
    again.capacity(again.tiers("edf", 1.0, 0))
    assert len(ran) == first
    assert all(p.settings.batch_ttlt_s == 75.0 for p in ran), "short runs have deadlines shortened alike"


def test_published_ablations_are_of_the_defaults_that_ship() -> None:
    published = ablations.load(ROOT / "docs/results/claims-ablations.json")
    assert published
    for one in published:
        assert one.default == float(getattr(ServeConfig(), one.name)), one.name


def test_ablations_halve_and_double_what_the_request_tier_has() -> None:
    for group in ablations.GROUPS:
        for name in group.names:
            half, default, twice = ablations.values_of(name)
            assert default == getattr(ServeConfig(), name)
            assert half <= default <= twice or 1 - half <= 1 - default <= 1 - twice, "what is forgotten"
            for value in (half, twice):
                assert getattr(msgspec.convert({name: value}, ServeConfig), name) == value
    assert not set(QUICK.ablation_seeds) & set(QUICK.seeds)
    text = page.text([], [Ablation("chunk_min", "% late", 128, (64, 128, 256), (1.5, 1.0, 2.25))])
    assert "| `chunk_min` | 128 | % late | 1.50 | 1.00 | 2.25 |" in text


def test_ablations_say_how_far_seeds_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others the distance to the default counts, seed by seed: seeds differ more than values do."""
    late = {(0.55, 1): 0.03, (0.55, 2): 0.07, (1.1, 1): 0.01, (1.1, 2): 0.05, (2.2, 1): 0.01, (2.2, 2): 0.07}

    def run(point: Point) -> dict[str, Any]:
        return {"violations": {"all": late[point.settings.serve.get("pace_margin", 1.1), point.seed]}}

    monkeypatch.setattr(points, "run", run)
    lab = Lab(None, msgspec.structs.replace(QUICK, ablation_seeds=(1, 2)))
    found = ablations.one(lab, ablations.GROUPS[0], "pace_margin")
    assert found.results == pytest.approx((5.0, 3.0, 4.0)) and found.errors == pytest.approx((0.0, 2.0, 1.0))
    assert "| 5.00 (+2.00±0.00) | 3.00±2.00 | 4.00 (+1.00±1.00) |" in page.text([], [found])


def test_a_number_is_judged_beside_what_its_setting_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither takes the other's place: relegation by projection stays on while its budget is halved."""
    ran: list[Point] = []
    monkeypatch.setattr(points, "run", lambda point: ran.append(point) or {"violations": {"all": 0.0}})
    lab = Lab(None, QUICK)
    (group,) = [g for g in ablations.GROUPS if "drop_budget" in g.names and "important" not in g.measure]
    ablations.one(lab, group, "drop_budget")
    assert [point.settings.serve for point in ran] == [
        {"relegation": "projection", "drop_budget": 0.025},
        {"relegation": "projection"},
        {"relegation": "projection", "drop_budget": 0.1},
    ]


def test_bytes_of_lost_requests_are_held_against_those_of_the_same_seeds() -> None:
    def rows(*sizes: int) -> list[dict[str, Any]]:
        return [{"lost": {"fetched_bytes": size, "shipped_bytes": 100}} for size in sizes]

    assert claims_joint.lost_bytes(rows(100, 300), rows(300, 500)) == (pytest.approx(-40.0), pytest.approx(0.0))
    change, half = claims_joint.lost_bytes(rows(100, 500), rows(300, 500))
    assert change == pytest.approx(-20.0) and half is not None and half > 100
    assert claims_joint.lost_bytes(rows(100), rows(100)) == (0.0, None)
