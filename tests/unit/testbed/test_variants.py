"""Other fabrics and signals on the testbed: which legs run, and what their table says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.testbed import kept as kept_module
from bench.testbed import variants
from bench.testbed.kept import Kept, measure
from bench.testbed.modes import Mode
from bench.testbed.plan import load_plan
from bench.testbed.scenario import Scenario
from bench.testbed.variants import BEGIN, END, KINDS, cases, tables, write


def result(mode: str, seed: int, in_time: float, ttft_s: float = 1.0) -> dict[str, Any]:
    spread = {"mean": ttft_s, "p99": 2 * ttft_s}
    return {
        "mode": mode, "seed": seed, "requests": 10, "slo_attainment": in_time, "ttft_s": spread, "cct_s": spread,
        "earliness_s": {"non_negative_mean": 0.5}, "permits": {},
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "v.json", KINDS)


def test_the_rate_is_the_plans_and_at_most_one_thing_is_different() -> None:
    planned, found = load_plan().workloads["conversation"].scenario, cases()
    assert found["as it is"].scenario == planned
    assert [(s.lanes, s.signals) for s in (case.scenario for case in found.values())] == [
        (True, "all"), (False, "all"), (True, "nccl"), (True, "all"),
    ]  # fmt: skip
    assert {case.scenario.rate for case in found.values()} == {planned.rate}


def test_only_legs_that_are_missing_run_and_each_is_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[bool, str, int]] = []

    def played(
        scenario: Scenario, seeds: list[int], modes: list[Mode], _: object, tell: object, keep: Callable[..., None],
        **more: object,
    ) -> None:  # fmt: skip
        for mode in modes:
            assert mode.apart is scenario.lanes, "without lanes nothing is kept apart on the wire"
            ran.append((scenario.lanes, mode.name, seeds[0]))
            keep(result(mode.name, seeds[0], 0.5), None)

    monkeypatch.setattr(kept_module, "run_rounds", played)
    kept.add("measured", "no-lanes", result("mfs", 1, 0.5))
    wanted = {"no-lanes": cases()["no-lanes"]}
    measure(Console(quiet=True), kept, wanted, [1, 2])
    every = {(False, mode, seed) for mode in ("fifo", "static", "mfs") for seed in (1, 2)}
    assert len(ran) == 5 and {*ran} == every - {(False, "mfs", 1)}
    ran.clear()
    measure(Console(quiet=True), Kept(kept.path, KINDS), wanted, [1, 2])
    assert not ran, "a run that was stopped goes on"


def test_the_table_holds_mfs_against_the_others_seed_by_seed(kept: Kept, tmp_path: Path) -> None:
    met = {"fifo": 0.4, "dscp-size": 0.5, "static": 0.5, "mfs": 0.6}
    for case, modes in (("as it is", met), ("no-lanes", {m: met[m] for m in ("fifo", "static", "mfs")})):
        for seed, more in ((1, 0.0), (2, 0.1)):
            for mode, share in modes.items():
                kept.add("measured", case, result(mode, seed, share + more))
                if case == "as it is":
                    kept.add("simulated", case, result(mode, seed, share, ttft_s=3.0))
    text = tables(kept, cases())
    as_it_is, no_lanes = text.split("### A fabric without classes")
    assert "| `mfs` | 1000 (3000) |" in as_it_is and "+10.0 against `dscp-size`" in as_it_is
    assert "| `mfs` | 1000 |" in no_lanes and "dscp" not in no_lanes and "Without static marking:" in no_lanes
    assert "leave out" not in no_lanes and "Not simulated: the simulator's fabric has classes." in no_lanes
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(text, page)
    assert page.read_text() == f"before\n{BEGIN}\n\n{text}\n\n{END}\nafter\n"


def test_the_page_shows_what_is_recorded() -> None:
    recorded = variants.PAGE.with_name("testbed-variants.json")
    if not recorded.exists():
        assert BEGIN not in variants.PAGE.read_text(), "a table without its figures"
        return
    text = tables(Kept(recorded, KINDS), cases())
    assert text in variants.PAGE.read_text(), "write it again: python -m bench.testbed.variants FILE --page"
