"""Where order has something to win on the testbed's cluster: at which rate, and what the tables say."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from bench.sim.cluster import ConfigError
from bench.testbed import headroom
from bench.testbed.headroom import BEGIN, END, MEASURED, Cell, cells, play, rate_of, tables, write
from bench.testbed.plan import load_plan
from bench.testbed.scenario import Scenario

RECORDED = headroom.PAGE.with_name("testbed-headroom.json")


def test_the_rate_is_where_fifo_meets_half_and_none_that_cannot_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def played(scenario: Scenario, *_: object) -> dict[str, float]:
        if scenario.rate > 2.5:
            raise ConfigError("queues only grow")
        return {"slo_attainment": 1.04 - 0.3 * scenario.rate}

    monkeypatch.setattr(headroom, "simulated", played)
    assert rate_of(Scenario(rate=2.0), [1, 2]) == pytest.approx(1.8)


def test_a_cell_plays_every_mode_on_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "SEEDS", (1101, 1102))
    short = Scenario(rate=2.0, duration_s=2.0)
    key, rows = play(Cell(MEASURED, "conversation", short, ("fifo", "exact", "nocont")))
    assert key == "measured, conversation"
    assert [(row["mode"], row["seed"]) for row in rows] == [
        (mode, seed) for seed in (1101, 1102) for mode in ("fifo", "exact", "nocont")
    ]
    ttft = {(row["mode"], row["seed"]): row["ttft_s"]["mean"] for row in rows}
    assert all(ttft["nocont", seed] < ttft["exact", seed] < ttft["fifo", seed] for seed in (1101, 1102))


def test_what_is_measured_is_what_the_plan_says() -> None:
    planned, found = load_plan().workloads, {cell.key: cell for cell in cells()}
    assert {name: found[f"{MEASURED}, {name}"].scenario for name in planned} == {
        n: p.scenario for n, p in planned.items()
    }
    as_it_is = found["**KV x1.8**, agent"].scenario
    assert msgspec.structs.replace(as_it_is, rate=planned["agent"].scenario.rate) == planned["agent"].scenario


def test_the_page_shows_what_is_recorded(tmp_path: Path) -> None:
    text = tables(json.loads(RECORDED.read_text()))
    assert text in headroom.PAGE.read_text(), "write it again: python -m bench.testbed.headroom FILE --page"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(text, page)
    assert page.read_text() == f"before\n{BEGIN}\n\n{text}\n\n{END}\nafter\n"
