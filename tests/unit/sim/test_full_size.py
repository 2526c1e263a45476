"""Policies at the size of real clusters: here a small one with the same command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.sim import command, full_size, study
from bench.sim.capacity import Capacity
from bench.sim.cluster import FETCH
from bench.sim.point import described


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_size, "GPUS", 128)


@pytest.mark.usefixtures("small", "short_past")
def test_the_page_gets_p99_marks_on_classes_and_capacity(tmp_path: Path) -> None:
    page = tmp_path / "full.md"
    parts = {fetch: full_size.marks(fetch) for fetch in ("loaded", "batch")}
    page.write_text("".join(f"{begin}\nold {fetch}\n{end}\n" for fetch, (begin, end) in parts.items()))
    given = ["full-size", str(tmp_path / "points.jsonl"), "--setting", "egress", "--load", "0.5,0.7", "--seeds", "2"]
    asked = ["--requests", "12", "--capacity-policy", "mfs,dscp-size", "--capacity-seeds", "1", "--page", str(page)]
    assert command.main([*given, *asked]) == 0
    text = page.read_text()
    assert (
        "old loaded" not in text
        and "old batch" in text
        and "| | egress, 0.5 | egress, 0.7 |" in text
        and "seed 11 alone" in text
    )
    data = json.loads((tmp_path / "full-results.json").read_text())["loaded"]
    assert list(data["columns"]) == ["egress, 0.5", "egress, 0.7"]
    rows = data["columns"]["egress, 0.7"]["rows"]
    assert list(rows) == ["`static`", "`nocont`", "`mfs`", "`dscp-size` on 8 classes"]
    assert all(one["p99_s"] >= one["ttft_s"] > 0 for one in rows.values())
    assert list(data["capacity"]["egress"]) == ["`static`", "`mfs`", "`dscp-size` on 8 classes"]
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    classes = {(one["policy"], one["point"]["config"]["fabric_classes"]) for one in points}
    assert classes == {("static", 0), ("nocont", 0), ("mfs", 0), ("dscp-size", 8)}


def test_its_clusters_have_2048_gpus_and_half_as_many_requests_come_before() -> None:
    point = described(full_size.base_of("fan-in", 1024, "batch"))
    assert (point["config"]["gpus"], point["config"]["decode_nics"]) == (2048, 42)
    assert (point["requests"], point["warmup"], point["workload"]) == (1024, 512, "qwen-a")
    assert point["config"]["fetch"] == "batch"
    assert (point["config"]["cache"], point["config"]["decode_choice"]) == ("first-owner", "random")


@pytest.mark.usefixtures("small", "short_past")
def test_tables_of_reuse_that_a_batch_waits_for_stand_beside_the_others(tmp_path: Path) -> None:
    page = tmp_path / "full.md"
    page.write_text("".join(f"{begin}\nold\n{end}\n" for begin, end in map(full_size.marks, ("loaded", "batch"))))
    given = ["full-size", str(tmp_path / "points.jsonl"), "--setting", "egress", "--load", "0.5", "--seeds", "1"]
    for fetch in ("loaded", "batch"):
        assert command.main([*given, "--requests", "12", "--fetch", fetch, "--page", str(page)]) == 0
    text = page.read_text()
    assert "old" not in text and FETCH["loaded"] in text and FETCH["batch"] in text
    both = json.loads((tmp_path / "full-results.json").read_text())
    assert [both[fetch]["what"]["fetch"] for fetch in both] == ["loaded", "batch"]


def test_where_static_carries_nothing_there_is_no_ratio() -> None:
    assert study.capacity_cell(Capacity(0.5, 0.0, None), itself=False) == "0.50"
    assert study.capacity_cell(Capacity(0.5, 1.25, None), itself=False) == "0.50 (x1.25)"
    assert study.capacity_cell(Capacity(0.5, 1.25, 0.1), itself=False) == "0.50 (x1.25±0.10)"
    assert study.capacity_cell(Capacity(0.4, 1.0, 0.0), itself=True) == "0.40"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--setting", "base"], "--setting base: use hot, fan-in, egress, bursts"),
        (["--load", "0.6,much"], "--load 0.6,much: use numbers above 0, separated by commas"),
        (["--load", "-1"], "--load -1: use numbers above 0, separated by commas"),
        (["--capacity-policy", "edf"], "--capacity-policy edf: use static, nocont, mfs, dscp-size"),
        (["--seeds", "0"], "--seeds 0: use at least 1"),
        (["--seeds", "2", "--capacity-seeds", "3"], "--capacity-seeds 3: use 1 to 2, the seeds that run"),
    ],
)
def test_what_cannot_be_run_gets_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert command.main(["full-size", str(tmp_path / "points.jsonl"), *given]) == 2
    assert capsys.readouterr().err == f"bench sim: {message}\n"
