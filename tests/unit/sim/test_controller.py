"""The meta controller over units of the layer-level simulator, and workloads that drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, controller, drift, orders_study, point, study
from bench.sim.point import Point
from bench.sim.serve import SCHEDULERS, Planner, config_of
from bench.sim.workload import Row
from mfsd.policy.serve import Policy
from mfsd.policy.serve.meta import MetaConfig


def asked(scheduler: str, workload: str = "drift-rate", rate: float = 0.3) -> Point:
    base = orders_study.base_of(workload, 200)
    return msgspec.structs.replace(base, scheduler=scheduler, rate=rate)


def served(one: Point, config: MetaConfig | None = None) -> controller.Controllers:
    """Runs the point, with this configuration of the controller."""
    simulation, controllers = point.controlled(one, *point.prepare(one))
    assert controllers is not None
    if config is not None:
        for unit in controllers.units:
            unit.config = config
    simulation.run()
    assert all(state.finish_s >= 0 for state in simulation.states)
    return controllers


def test_the_pool_is_productions_without_what_needs_decoding_or_tenants() -> None:
    assert [order.value for order in controller.ORDERS] == ["srpf", "hybrid", "edf", "fcfs"]
    assert controller.config_of("meta-bandit-fit").pool == (Policy.FIT, *controller.ORDERS)


def test_it_switches_orders_and_loses_no_request() -> None:
    pool = (Policy.HYBRID, Policy.SRPF)
    config = msgspec.structs.replace(controller.TIMES, pool=pool, every_s=1.0, requests_min=5)
    controllers = served(asked("meta-rules"), config)
    assert controllers.switches > 0
    orders = controllers.orders()
    assert orders["hybrid"] > 0 and orders["srpf"] > 0 and sum(orders.values()) == pytest.approx(1)


def test_what_it_perceives_is_what_requests_experienced() -> None:
    """The window is longer than the run: its views are counts over all requests that a unit had."""
    controllers = served(asked("meta-rules"), msgspec.structs.replace(controller.TIMES, long_s=1e4))
    controllers.perceive(now_s := controllers.simulation.now + 1.0)
    for unit in controllers.units:
        own = [s for s in controllers.simulation.states if s.request.unit == unit.unit]
        view = unit.qos.views(now_s).long
        late = [s.finish_s > s.request.deadline_s for s in own]
        assert (view.arrived, view.evaluated) == (len(own), len(own))
        assert view.late_share == pytest.approx(sum(late) / len(late)) and 0 < view.late_share < 1
        assert not unit.waiting and not unit.undecided


def test_an_order_that_holds_gives_what_it_gives_without_a_controller_to_the_bit() -> None:
    """Of a pool of one order, the units follow it; a bypass cannot begin."""
    for name in ("hybrid", "edf"):
        fixed = point.simulation_of(asked(name), *point.prepare(asked(name)))
        fixed.run()
        one = msgspec.structs.replace(controller.TIMES, pool=(Policy(name),), bypass_share=1.0)
        switched = served(asked("meta-rules"), one).simulation
        assert [s.finish_s for s in switched.states] == [s.finish_s for s in fixed.states]


def test_a_unit_plans_by_its_own_order_and_learns_whatever_it_is() -> None:
    one = asked("meta-rules")
    cluster, _ = point.prepare(one)
    planner = Planner(cluster, config_of("fcfs"), switches=True)
    before = planner.prefill_s_per_token(0)
    assert before > 0, "first come first served alone has no profile"
    planner.use(1, SCHEDULERS["edf"][1])
    assert planner._of_unit[1].policy is Policy.EDF and 0 not in planner._of_unit
    assert planner._of_unit[1].step_tokens == cluster.config.batch_tokens


def test_equal_seeds_give_equal_results_to_the_bit() -> None:
    def result() -> dict[str, Any]:
        row = point.run(asked("meta-bandit", "drift-mix", 0.4))
        return {name: row[name] for name in row if name not in ("wall_s", "cpu_s")}

    assert result() == result()


# Workloads that drift


@pytest.mark.parametrize("name", drift.NAMES)
def test_a_drifting_run_has_the_mean_rate_that_is_asked(name: str) -> None:
    times = [at for at, _ in drift.arrivals(drift.segments(name), 6000, 20.0, 3)]
    assert times == sorted(times) and times[-1] == pytest.approx(300, rel=0.05)
    assert sum(one.length * one.factor for one in drift.segments(name)) == pytest.approx(1)


def test_the_rate_has_a_calm_a_surge_and_on_and_off() -> None:
    times = [at for at, _ in drift.arrivals(drift.segments("drift-rate"), 30_000, 100.0, 3)]
    calm, surge = (sum(low <= at < low + 100 for at in times) / 10_000 for low in (0.0, 100.0))
    assert (calm, surge) == (pytest.approx(0.6, abs=0.03), pytest.approx(1.4, abs=0.03))
    on = sum(at >= 200 and (at - 200) % 10 < 5 for at in times) / sum(at >= 200 for at in times)
    assert on == pytest.approx(0.9, abs=0.02)


def test_the_mix_goes_from_short_to_long_prompts_to_both_that_share_no_blocks() -> None:
    rows = drift.rows("drift-mix", 3000, 10.0, 5, 1.0)
    past, timed = [r for r in rows if r.arrival_s < 0], [r for r in rows if r.arrival_s >= 0]
    assert len(past) == 4000 and len(timed) == 3000

    def mean(low: float, high: float) -> float:
        tokens = [r.input_tokens for r in timed if low <= r.arrival_s < high]
        return sum(tokens) / len(tokens)

    short, long, both = (mean(100.0 * n, 100.0 * n + 100) for n in range(3))
    assert short < both < long and long > 2 * short
    first, second = (_blocks(past[n * 2000 : n * 2000 + 2000]) for n in range(2))
    assert first and second and not first & second


def _blocks(rows: list[Row]) -> set[int]:
    return {block for row in rows for block in row.blocks}


# The study and the command


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_table_and_leaves_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "batches.md"
    page.write_text(f"{study.BEGIN}\nof batches\n{study.END}\n{orders_study.BEGIN}\nold\n{orders_study.END}\n")
    monkeypatch.setattr(orders_study, "SWITCHED", ("meta-rules",))
    monkeypatch.setattr(drift, "NAMES", ("drift-rate",))
    given = ["orders", str(tmp_path / "points.jsonl"), "--requests", "40", "--seeds", "1", "--page", str(page)]
    assert command.main(given) == 0
    text = page.read_text()
    assert "| `meta-rules` | " in text and "of batches" in text and "old" not in text and "(best of the pool)" in text
    rows = json.loads((tmp_path / "orders-results.json").read_text())["rows"]
    assert set(rows["drift-rate"]) == {"hybrid", "srpf", "edf", "fcfs", "fit", "meta-rules"}
    assert rows["drift-rate"]["meta-rules"]["switches"] is not None


def test_the_study_asks_for_at_least_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["orders", str(tmp_path / "points.jsonl"), "--seeds", "0"]) == 2
    assert capsys.readouterr().err == "bench sim: --seeds 0: use at least 1\n"
