"""Weights and swapped KV that move while requests are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, moves_study, point, policies, serve, settings, study
from bench.sim.cluster import Config, ConfigError
from bench.sim.engine import Simulation
from bench.sim.point import Point
from mfsd.policy.types import Stage

REQUESTS, SHARE = 24, 0.3
FEW = ("--share", "0.05")
"""Moves enough to be measured, and a quarter of those that studies have."""


def asked(policy: str, share: float = SHARE, classes: int = 8, **config: Any) -> Point:
    base = settings.base_of("fan-in", "dbrx", "qwen-a", REQUESTS, classes)
    changed = msgspec.structs.replace(base.config, moves_share=share, moves_gb_per_nic=0.2, **config)
    return msgspec.structs.replace(base, config=changed, policy=policy, rate=0.1)


_FINISHED: dict[bytes, Simulation] = {}
"""Points that were run, for all tests that look at them."""


def finished(one: Point) -> Simulation:
    key = msgspec.json.encode(one)
    if key not in _FINISHED:
        cluster, requests = point.prepare(one)
        scheduler = serve.scheduler("fcfs", cluster)
        _FINISHED[key] = Simulation(cluster, requests, policies.find(one.policy), scheduler, one.reuse)
        _FINISHED[key].run()
    return _FINISHED[key]


@pytest.mark.parametrize("policy", ["mfs", "static", "dscp", "dscp-size", "fs", "nocont"])
def test_all_that_begins_ends_and_takes_the_share_that_is_asked_for(policy: str) -> None:
    simulation = finished(asked(policy))
    moves, cluster = simulation.moves, simulation.cluster
    assert moves is not None and len(moves.took_s) == len(moves.begun) > 50
    assert all(state.finish_s >= 0 for state in simulation.states)
    last_s = moves.begun[-1].posted_s
    moved = sum(move.message_bytes for move in moves.begun)
    assert moved / (cluster.topology.prefill_nics * cluster.link * last_s) == pytest.approx(SHARE, rel=0.25)


def test_every_policy_meets_the_same_moves() -> None:
    mine, other = (finished(asked(policy)).moves for policy in ("mfs", "fs"))
    assert mine is not None and other is not None
    both = min(len(mine.begun), len(other.begun))
    assert [move.posted_s for move in mine.begun[:both]] == [move.posted_s for move in other.begun[:both]]


@pytest.mark.parametrize("classes", [0, 8])
def test_in_the_background_class_they_leave_collectives_as_they_are_and_unmarked_they_do_not(classes: int) -> None:
    def collective_s(policy: str, share: float) -> float:
        return float(point.measure(finished(asked(policy, share, classes)), 8)["cct_s"]["mean"])

    assert collective_s("mfs", SHARE) <= 1.01 * collective_s("mfs", 0.0)
    assert collective_s("fs", SHARE) > 1.05 * collective_s("fs", 0.0)


@pytest.mark.parametrize("policy", ["mfs", "dscp-size"])
def test_marked_as_loads_they_are_faster_at_the_requests_cost(policy: str) -> None:
    behind, among = (point.measure(finished(asked(policy, moves_as=mark)), 8) for mark in ("background", "load"))
    assert among["moves"]["mean_s"] < behind["moves"]["mean_s"]
    assert among["ttft_s"]["mean"] > behind["ttft_s"]["mean"]


def test_a_sender_names_their_deadline_in_the_background_only() -> None:
    for mark, stage in (("background", Stage.BACKGROUND), ("load", Stage.REUSE)):
        simulation = finished(asked("mfs", moves_as=mark))
        assert simulation.moves is not None
        move = simulation.moves.begun[0]
        alone_s = move.message_bytes / move.path.isolated_rate
        assert move.deadline_s == pytest.approx(move.posted_s + 4 * alone_s)
        named = int(move.deadline_s * 1e9) if stage is Stage.BACKGROUND else 0
        assert simulation.network._facts(move) == (stage, 0, 0, named)  # type: ignore[attr-defined]


def test_a_point_without_moves_is_described_as_before_there_were_any() -> None:
    assert not any(name.startswith("moves") for name in point.described(asked("mfs", 0.0))["config"])
    assert point.described(asked("mfs"))["config"]["moves_share"] == SHARE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"moves_share": 0.95}, "moves_share 0.95: use 0 to 0.9"),
        ({"moves_share": float("nan")}, "moves_share nan: use 0 to 0.9"),
        ({"moves_gb_per_nic": 0.0}, "moves_gb_per_nic 0: use a number above 0"),
        ({"moves_due": float("inf")}, "moves_due inf: use a number above 0"),
        ({"moves_as": "collective"}, "moves_as collective: use background or load"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**given)


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_page_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "moves.md"
    page.write_text(f"{study.BEGIN}\nold\n{study.END}\n")
    given = ["moves", str(tmp_path / "points.jsonl"), "--setting", "base", "--requests", "12", "--seeds", "2", *FEW]
    monkeypatch.setattr(moves_study, "POLICIES", ("mfs",))
    assert command.main([*given, "--page", str(page)]) == 0
    assert "| `mfs`, moves as background | " in page.read_text() and "old" not in page.read_text()
    rows = json.loads((tmp_path / "moves-results.json").read_text())["rows"]
    assert set(rows) == {"`mfs`, moves as background", "`mfs`, moves as load"}
    assert 0 <= rows["`mfs`, moves as background"]["base"]["in_time"] <= 100


@pytest.mark.usefixtures("short_past")
def test_capacity_is_held_against_the_same_policy_without_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, points = tmp_path / "moves.md", tmp_path / "points.jsonl"
    page.write_text(f"{study.BEGIN}\nold\n{study.END}\n")
    monkeypatch.setattr(moves_study, "POLICIES", ("dscp-size",))
    given = ["moves", str(points), "--setting", "base,egress", "--requests", "9", "--seeds", "2", "--page", str(page)]
    carriers = ["--capacity-policy", "dscp-size", "--capacity-seeds", "1", "--capacity-setting", "egress"]
    assert command.main([*given, *carriers, *FEW]) == 0
    data = json.loads((tmp_path / "moves-results.json").read_text())
    assert list(data["capacity"]) == ["egress"]
    carried = data["capacity"]["egress"]
    assert list(carried) == [f"`dscp-size`, {how}" for how in ("no moves", "moves as background", "moves as load")]
    assert carried["`dscp-size`, no moves"]["ratio"] == 1 and carried["`dscp-size`, moves as load"]["ratio"] > 0
    assert data["what"]["capacity_seeds"] == [791] and "are met, seed 791 alone: " in page.read_text()
    assert f"| `dscp-size`, no moves | {carried['`dscp-size`, no moves']['load']:.2f} |" in page.read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--seeds", "2", "--capacity-seeds", "3"], "--capacity-seeds 3: use 1 to 2, the seeds that run"),
        (["--capacity-policy", "fs"], "--capacity-policy fs: use mfs, dscp-size"),
        (["--capacity-setting", "hot"], "--capacity-setting hot: use base, fan-in, egress"),
    ],
)
def test_capacity_of_what_is_not_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert command.main(["moves", str(tmp_path / "points.jsonl"), *given]) == 2
    assert capsys.readouterr().err == f"bench sim: {message}\n"


def test_the_study_asks_for_at_least_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["moves", str(tmp_path / "points.jsonl"), "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "bench sim: --seeds 0: use at least 1\n"
