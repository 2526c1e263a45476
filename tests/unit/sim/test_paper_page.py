"""The page of the paper's figures has the points that are recorded beside the figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.sim import command, paper_page

ROOT = Path(__file__).resolve().parents[3]
FIGURES = ROOT / "docs/figures"


def test_the_tables_on_the_page_are_those_of_the_recorded_points(tmp_path: Path) -> None:
    page = tmp_path / "paper.md"
    shutil.copy(ROOT / "docs/results/paper.md", page)
    assert command.main(["paper", str(FIGURES), "--page", str(page)]) == 0
    assert page.read_text() == (ROOT / "docs/results/paper.md").read_text()


def test_a_column_has_the_means_of_its_seeds_at_the_knee() -> None:
    panel = paper_page.panels(FIGURES, "10-quick")[1]
    of = paper_page.at_knee(panel)["mfs"]
    assert [one["seed"] for one in of] == [11, 12, 13, 14, 15] and {one["rate"] for one in of} == {panel["rates"][1]}
    p99_ms = 1e3 * sum(one["ttft_s"]["p99"] for one in of) / len(of)
    row = next(line for line in paper_page.quick_table(FIGURES).splitlines() if line.startswith("| 10: DBRX, QwenA"))
    assert f" ms, {p99_ms:.0f} ms | " in row


def test_what_is_no_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "figure-9.json").write_text(json.dumps([1]))
    assert command.main(["paper", str(tmp_path)]) == 2
    assert "figure-9.json: not the file of a figure; make it with python -m bench sim figure" in capsys.readouterr().err
