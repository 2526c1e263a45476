"""Models that take turns in the memory of the layer-level simulator's units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import activations_study, command, moves_study, point, policies, settings, study
from bench.sim.cluster import Cluster, Config, ConfigError, Request
from bench.sim.engine import Simulation
from bench.sim.point import Point
from bench.sim.policies.dscp import DscpBySize
from bench.sim.routing import Arriving, ByModel
from bench.sim.states import Batch, Flow
from bench.sim.unit_models import UnitModels, model_of, profile_of
from bench.sim.workload import Row
from mfsd.policy.types import Stage
from mfsd.policy.workflow import HOLD_S

REQUESTS = 48
MODELS = UnitModels(count=12, running=1, skew=0.0)


def asked(policy: str, models: UnitModels | None = MODELS, classes: int = 8, **config: Any) -> Point:
    base = settings.base_of("fan-in", "dbrx", "qwen-a", REQUESTS, classes)
    changed = msgspec.structs.replace(base.config, unit_models=models, **config)
    return msgspec.structs.replace(base, config=changed, policy=policy, rate=0.1)


_FINISHED: dict[bytes, Simulation] = {}
"""Points that were run, for all tests that look at them."""


def simulated(one: Point) -> Simulation:
    key = msgspec.json.encode(one)
    if key not in _FINISHED:
        _FINISHED[key] = point.simulation_of(one, *point.prepare(one))
        _FINISHED[key].run()
    return _FINISHED[key]


# By hand


def cluster_of(**models: Any) -> Cluster:
    return Cluster(Config(model="dbrx", gpus=128, fetch="batch", unit_models=UnitModels(count=2, **models)))


def request(cluster: Cluster, number: int, model: int, arrival_s: float, slack: float = 3.0) -> Request:
    one = Request(
        number=number, arrival_s=arrival_s, new_tokens=700, context_tokens=0, unit=0, group=-1, decode=0, owners=(),
        remote_tokens=0, model=model,
    )  # fmt: skip
    one.isolated_s = cluster.isolated_s(one)
    one.deadline_s = arrival_s + slack * one.isolated_s
    return one


def served(cluster: Cluster, *requests: Request, policy: str = "nocont") -> Simulation:
    simulation = Simulation(cluster, requests, policies.find(policy))
    simulation.run()
    return simulation


def test_weights_are_those_of_the_whole_unit() -> None:
    """Sixteen groups of two GPUs have attention of 88.1 M a layer each, and share sixteen experts of 198.2 M."""
    assert cluster_of().model.weights_bytes == pytest.approx(2 * 40 * 16 * (88.1e6 + 198.2e6))


@pytest.mark.parametrize(("weights_from", "crossing"), [("units", True), ("host", False)])
def test_a_request_waits_for_its_model_by_hand(weights_from: str, crossing: bool) -> None:
    cluster = cluster_of(weights_from=weights_from)
    weights = cluster.model.weights_bytes
    simulation = served(cluster, one := request(cluster, 0, 1, 1.0))
    expected_s = 0.3 + weights / (32 * 20e9) + (weights / (32 * cluster.link) if crossing else 0.0)
    assert simulation.states[0].finish_s == pytest.approx(1.0 + expected_s + one.isolated_s)
    assert simulation.activations is not None
    assert [a.due_s is not None for a in simulation.activations.begun] == [crossing]


def test_two_models_take_turns_by_hand() -> None:
    """The second one comes while the first one computes, is loaded when that has ended, and the first one again."""
    cluster = cluster_of(weights_from="host")
    load_s = 0.3 + cluster.model.weights_bytes / (32 * 20e9)
    alone_s = cluster.isolated_s(request(cluster, 0, 0, 0.0))
    first_s = load_s + alone_s
    came = [0.0, load_s + alone_s / 2, 10.0]
    simulation = served(cluster, *(request(cluster, n, n % 2, at) for n, at in enumerate(came)))
    # It is stopped once it has computed; its last KV leaves a little later.
    ends = [state.finish_s for state in simulation.states]
    assert ends[0] == pytest.approx(first_s)
    assert ends[1] == pytest.approx(first_s + load_s + alone_s, rel=0.01)
    assert ends[2] == pytest.approx(10.0 + load_s + alone_s)
    measured = simulation.activations.measure(0.0, 20.0)  # type: ignore[union-attr]
    assert measured["count"] == 3 and measured["mean_s"] == pytest.approx(load_s) and measured["waiting"] == 1.0


def test_an_engine_that_has_waited_gets_the_memory_of_a_busy_one() -> None:
    """One model has a request in work without a pause; the other one gets its turn by the rule of `held_for`."""
    cluster = cluster_of(weights_from="host")
    alone_s = cluster.isolated_s(request(cluster, 0, 0, 0.0))
    busy = [request(cluster, n, 0, 0.9 * n * alone_s) for n in range(int(20 / alone_s))]
    late = request(cluster, len(busy), 1, 2.0)
    simulation = served(cluster, *sorted([*busy, late], key=lambda one: one.arrival_s))
    waited_s = max(at for state in simulation.states if state.request.model for at in [state.finish_s - 2.0])
    assert HOLD_S < waited_s < HOLD_S + 10
    assert all(state.finish_s >= 0 for state in simulation.states)


def test_weights_are_due_when_the_request_must_begin_and_else_as_moves_are() -> None:
    for slack, by_request in ((100.0, True), (3.0, False)):
        cluster = cluster_of()
        simulation = served(cluster, one := request(cluster, 0, 0, 1.0, slack), policy="mfs")
        assert simulation.activations is not None
        activation = simulation.activations.begun[0]
        alone_s = cluster.model.weights_bytes / (32 * cluster.link)
        begins_s = one.deadline_s - one.isolated_s - activation.after_s
        assert activation.due_s == pytest.approx(begins_s if by_request else 1.0 + 4 * alone_s)


class Watched(DscpBySize):
    """Knows which moves were sent, and with which batch."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.batches: list[Batch] = []
        self.moves: list[Any] = []

    def order_move(self, move: Any) -> int:
        self.moves.append(move)
        return super().order_move(move)

    def batch_began(self, batch: Batch) -> None:
        self.batches.append(batch)


@pytest.mark.parametrize(("mark", "stage"), [("background", Stage.BACKGROUND), ("load", Stage.REUSE)])
def test_each_group_gets_its_part_of_the_weights_from_the_same_group_of_another_unit(mark: str, stage: Stage) -> None:
    one = asked("dscp-size", moves_as=mark)
    cluster, requests = point.prepare(one)
    simulation = Simulation(cluster, requests, Watched)
    simulation.run()
    policy, activations = simulation.policy, simulation.activations
    assert isinstance(policy, Watched) and activations is not None
    assert len(policy.moves) == cluster.model.groups * len(activations.begun) > 0
    assert all(move.mark is stage for move in policy.moves)
    assert sum(move.message_bytes for move in policy.moves) == pytest.approx(
        cluster.model.weights_bytes * len(activations.begun)
    )
    for move in policy.moves:
        out = {nic for nic in move.path.shares if nic < cluster.topology.nics}
        into = {nic - cluster.topology.nics for nic in move.path.shares} - {nic - cluster.topology.nics for nic in out}
        width = cluster.model.instance_gpus
        assert {nic // width for nic in out} != {nic // width for nic in into}
        assert {nic % width for nic in out} == {nic % width for nic in into}


@pytest.mark.parametrize("running", [1, 3])
def test_no_batch_has_requests_of_two_models(running: int) -> None:
    one = asked("dscp-size", msgspec.structs.replace(MODELS, running=running))
    cluster, requests = point.prepare(msgspec.structs.replace(one, rate=0.3))
    simulation = Simulation(cluster, requests, Watched)
    simulation.run()
    assert isinstance(simulation.policy, Watched)
    batches = simulation.policy.batches
    assert max(len(batch.chunks) for batch in batches) > 1
    assert all(len({chunk.state.request.model for chunk in batch.chunks}) == 1 for batch in batches)


# Whole runs


@pytest.mark.parametrize("policy", ["mfs", "dscp", "dscp-size", "fs", "nocont"])
def test_under_every_policy_all_is_served_and_requests_go_to_the_same_units(policy: str) -> None:
    simulation = simulated(asked(policy))
    reference = point.prepare(asked("mfs"))[1]
    assert all(state.finish_s >= 0 for state in simulation.states)
    assert simulation.activations is not None and len(simulation.activations.begun) > 12
    assert not any(unit.loading for unit in simulation.activations.units)
    assert [(s.request.unit, s.request.model) for s in simulation.states] == [(r.unit, r.model) for r in reference]


def test_where_weights_come_from_changes_neither_requests_nor_their_units() -> None:
    host = msgspec.structs.replace(MODELS, weights_from="host")
    assert point.prepare(asked("mfs"))[1] == point.prepare(asked("mfs", host))[1]


def test_equal_seeds_give_equal_results_to_the_bit() -> None:
    def result() -> dict[str, Any]:
        row = point.run(asked("dscp-size"))
        return {name: row[name] for name in row if name not in ("wall_s", "cpu_s")}

    assert result() == result()


@pytest.mark.parametrize("classes", [0, 8])
def test_in_the_background_class_weights_leave_collectives_as_they_are(classes: int) -> None:
    def collectives(weights_from: str) -> float:
        models = msgspec.structs.replace(MODELS, weights_from=weights_from)
        return point.collective_slowdown(simulated(asked("mfs", models, classes)), 0.0, 1e9)

    assert collectives("units") == pytest.approx(collectives("host"), rel=0.005)


class WeightsFirst(Watched):
    """Weights before collectives, KV behind both."""

    def mark(self, flow: Flow) -> int:
        return 1 if flow.stage == 2 else 7

    def mark_move(self, move: Any) -> int:
        return 0


def test_collectives_behind_weights_take_longer() -> None:
    host = msgspec.structs.replace(MODELS, weights_from="host")
    slowdown = []
    for one in (asked("dscp-size"), asked("dscp-size", host)):
        simulation = Simulation(*point.prepare(one), WeightsFirst)
        simulation.run()
        slowdown.append(point.collective_slowdown(simulation, 0.0, 1e9))
    assert slowdown[0] > 1.1 * slowdown[1]


def test_by_size_a_class_is_kept_for_weights_in_the_background_only() -> None:
    def classes_of(one: Point) -> int:
        simulation = Simulation(*point.prepare(one), policies.find("dscp-size"))
        assert isinstance(simulation.policy, DscpBySize)
        return simulation.policy.marks.wire_class(Stage.BACKGROUND)

    assert classes_of(asked("dscp-size")) == 7


# Where requests go


def arriving(number: int, at_s: float, block: int, cluster: Cluster) -> Arriving:
    row = Row(at_s, 700, 1, (block,), 512)
    return Arriving(number, row, 700, 0, [0] * cluster.units, 0)


def test_a_request_goes_to_the_unit_that_runs_its_model_or_else_to_the_idle_one_used_the_longest_ago() -> None:
    models = UnitModels(count=4, running=1)
    cluster = Cluster(Config(model="dbrx", gpus=192, unit_models=models))
    assert cluster.units == 3
    router = ByModel(cluster, models)
    blocks = {model_of(models, Row(0.0, 700, 1, (block,), 512), cluster.seed): block for block in range(200)}
    sent = [
        router(arriving(n, 10.0 * n, blocks[model], cluster), lambda _: ({}, 0))
        for n, model in enumerate((0, 1, 2, 1, 0, 3, 2))
    ]
    assert sent[:3] == [0, 1, 2], "each its own"
    assert sent[3:5] == [1, 0], "they are there"
    assert sent[5] == 2, "idle, and used the longest ago"
    assert sent[6] == 1, "its unit runs the last one now"


def test_shares_of_models_go_by_their_popularity() -> None:
    models = UnitModels(count=3, skew=1.0)
    drawn = [model_of(models, Row(0.0, 700, 1, (block,), 512), 1) for block in range(4000)]
    assert [drawn.count(k) / 4000 for k in range(3)] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)


# Settings


def test_a_point_without_them_is_described_as_before() -> None:
    described = point.described(asked("mfs", None))["config"]
    assert not any("models" in name or name.startswith("moves") for name in described)
    described = point.described(asked("mfs"))["config"]
    assert described["unit_models"]["count"] == 12 and described["moves_as"] == "background"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 1}, "unit_models: count 1: use at least 2"),
        ({"running": 5}, "unit_models: running 5: use 1 to count, 4"),
        ({"skew": float("nan")}, "unit_models: skew nan: use a number of at least 0"),
        ({"weights_from": "disk"}, "unit_models: weights_from disk: use one of units, host"),
        ({"start_s": -1.0}, "unit_models: start_s -1: use a number of at least 0"),
        ({"host_bytes_per_s": 0}, "unit_models: host_bytes_per_s 0: use at least 1"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(unit_models=UnitModels(**given))


def test_what_does_not_go_with_them_is_refused() -> None:
    with pytest.raises(ConfigError, match="name one model, whose shape all of them have"):
        Config(model="dbrx,dbrx", unit_models=UnitModels())
    with pytest.raises(ConfigError, match="--gpus 64 have one; use more"):
        Config(gpus=64, unit_models=UnitModels())
    Config(gpus=64, unit_models=UnitModels(weights_from="host"))
    one = asked("mfs")
    routed = msgspec.structs.replace(one, reuse=msgspec.structs.replace(one.reuse, router="transfer"))
    with pytest.raises(ConfigError, match="--router transfer: with unit_models use locality"):
        point.run(routed)


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_table_and_leaves_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "moves.md"
    own = f"{activations_study.BEGIN}\nold\n{activations_study.END}\n"
    page.write_text(f"{study.BEGIN}\nof moves\n{study.END}\n{own}")
    given = ["activations", str(tmp_path / "points.jsonl"), "--setting", "base", "--requests", "24", "--seeds", "1"]
    monkeypatch.setattr(activations_study, "POLICIES", ("dscp-size",))
    assert command.main([*given, "--page", str(page)]) == 0
    text = page.read_text()
    assert "| `dscp-size`, over the network as load | " in text and "of moves" in text and "old" not in text
    rows = json.loads((tmp_path / "activations-results.json").read_text())["rows"]
    assert len(rows) == 4 and rows["`dscp-size`, weights in host memory"]["base"]["collective_ratio"] == 1.0
    assert moves_study.SETTINGS == activations_study.SETTINGS


def test_a_profile_has_the_weights() -> None:
    cluster = cluster_of()
    assert profile_of(cluster.model).weights_bytes == cluster.model.weights_bytes
