"""Units chosen as requests arrive: by wait, expected fetch and what ports owe."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, outlook, router_study, settings
from bench.sim.cluster import Cluster, Config, ConfigError
from bench.sim.engine import Simulation
from bench.sim.online import OnlineRouter
from bench.sim.owed import OwedLoads
from bench.sim.point import Point, described, prepare, simulation_of
from bench.sim.reuse import ReuseConfig
from bench.sim.routing import Arrivals
from bench.sim.states import Batch, Flow, State
from bench.sim.topology import Path as Links
from bench.sim.workload import Row
from mfsd._native import FluidPath

BASE = Point(
    config=Config(model="dbrx", gpus=256, hot_fraction=0.5, kv_scale=8.0, cache="first-owner"),
    rate=0.2,
    requests=60,
    warmup=20,
    seed=3,
)
SMALL = ["--gpus", "128", "--requests", "12", "--warmup", "4", "--rate", "0.2", "--policy", "mfs"]


class Idle:
    """A cluster in which nothing runs but what a test puts there."""

    def __init__(self, kv_scale: float = 1.0) -> None:
        self.cluster = Cluster(Config(model="dbrx", gpus=256, kv_scale=kv_scale, cache="first-owner"))
        self.now = 0.0
        self.early_fetch = True
        self.queues: list[deque[State]] = [deque() for _ in range(self.cluster.units)]
        self.running: list[Batch | None] = [None] * self.cluster.units
        self.left: dict[State, float] = {}

    def next_group(self, unit: int) -> int:
        return 0

    def until_layer_s(self, batch: Batch, layer: int) -> float:
        return 0.0

    def reuse_left(self, state: State) -> float:
        return self.left[state]

    def router(self, *rows: Row, **config: Any) -> OnlineRouter:
        return OnlineRouter(self, ReuseConfig(router="transfer", **config), [rows], 1)

    def place(self, router: OnlineRouter, row: Row) -> State:
        """With anything for what static routing decided."""
        request = Arrivals(self.cluster, 1).arrive(row, lambda arriving, fetched: 0)
        request.deadline_s = 7.0
        state = State(request, self.cluster)
        router.place(state)
        return state


def row(*blocks: int, at: float = 0.0) -> Row:
    return Row(at, 64 * len(blocks), 1, blocks, 64)


def simulated(base: Point = BASE, policy: str = "mfs", **reuse: Any) -> Simulation:
    point = msgspec.structs.replace(base, policy=policy, reuse=ReuseConfig(**reuse))
    simulation = simulation_of(point, *prepare(point))
    simulation.run()
    return simulation


def ends(simulation: Simulation) -> list[tuple[float, int, int]]:
    return [(s.finish_s, s.request.unit, s.request.remote_tokens) for s in simulation.states]


SHARED = tuple(range(60))
FIRST, SECOND, OTHER = row(*SHARED), row(*SHARED, 100), row(*range(200, 260))


def test_an_idle_cluster_fetches_nothing() -> None:
    engine = Idle()
    router = engine.router(FIRST, SECOND)
    first, second = engine.place(router, FIRST), engine.place(router, SECOND)
    assert second.request.unit == first.request.unit and second.request.remote_tokens == 0
    assert second.request.context_tokens == 60 * 64 and second.request.deadline_s == 7.0
    assert second.request.isolated_s == engine.cluster.isolated_s(second.request)


def test_a_queue_that_is_longer_than_a_fetch_is_avoided_and_a_shorter_one_is_not() -> None:
    for kv_scale, leaves in ((1.0, True), (10_000.0, False)):
        engine = Idle(kv_scale)
        router = engine.router(FIRST, SECOND)
        first = engine.place(router, FIRST)
        engine.queues[first.request.unit].append(first)
        second = engine.place(router, SECOND)
        assert (second.request.unit != first.request.unit) is leaves
        assert (second.request.remote_tokens == 60 * 64) is leaves


@pytest.mark.parametrize(("outlook", "stays"), [("exact", True), ("none", False), ("local", False)])
def test_an_owner_whose_port_owes_much_keeps_its_prefix(outlook: str, stays: bool) -> None:
    """Where nothing is known of its port, the short queue there is avoided."""
    engine = Idle()
    third = row(*SHARED, 300)
    router = engine.router(FIRST, SECOND, third, outlook=outlook)
    first = engine.place(router, FIRST)
    owner = first.request.unit
    engine.queues[owner].append(first)
    second = engine.place(router, SECOND)
    second.request.group = 0
    second.batch = Batch(1, second.request.unit, [], engine.cluster)
    second.reuse = Flow(1, engine.cluster.reuse_path(second.request), second.batch, second, 1.0, 1)
    engine.left[second] = 1e12
    assert (engine.place(router, third).request.unit == owner) is stays


def test_a_unit_whose_port_has_much_to_receive_is_avoided() -> None:
    engine = Idle()
    router = engine.router(OTHER, outlook="local")
    busy = [unit for unit in range(engine.cluster.units) if unit != 2]
    for unit in busy:
        nics = {engine.cluster.topology.nics + nic: 1.0 for nic in engine.cluster.group_nics(unit, 0)}
        state = State(prepare(BASE)[1][0], engine.cluster)
        state.batch = Batch(1, unit, [], engine.cluster)
        state.reuse = Flow(1, path(nics), state.batch, state, 1.0, 1)
        engine.left[state] = 1e9
        router.owed.sent(state, {})
    assert engine.place(router, OTHER).request.unit == 2


def path(shares: dict[int, float]) -> Links:
    return Links(FluidPath(list(shares), list(shares.values())), shares, 1.0, 1.0, 0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.left = 100.0

    def reuse_left(self, state: State) -> float:
        return self.left


def test_what_is_known_is_old_but_for_what_was_sent_since() -> None:
    clock, cluster = Clock(), Cluster(BASE.config)
    old, current = OwedLoads(clock, 0.5), OwedLoads(clock, 0.0)
    state = State(prepare(BASE)[1][0], cluster)
    for owed in (old, current):
        owed.sent(state, {4: 90.0})
    state.batch = Batch(1, 0, [], cluster)
    state.reuse = Flow(1, path({4: 1.0}), state.batch, state, 1.0, 1)
    assert (old.known(), current.known()) == ({4: 90.0}, {4: 100.0})
    clock.now, clock.left = 0.1, 60.0
    assert (old.known(), current.known()) == ({4: 90.0}, {4: 60.0}), "nothing is told yet"
    clock.now, clock.left = 0.61, 20.0
    assert (old.known(), current.known()) == ({4: 60.0}, {4: 20.0})
    state.reuse = None
    assert (old.known(), current.known()) == ({4: 60.0}, {})
    clock.now = 2.0
    assert old.known() == {4: 20.0}
    clock.now = 3.0
    assert old.known() == {}


@pytest.mark.parametrize("policy", ["mfs", "dscp-size", "nocont"])
def test_every_request_is_served_as_late_as_it_may_be_wherever_it_goes(policy: str) -> None:
    before = prepare(BASE)[1]
    simulation = simulated(policy=policy, router="transfer")
    for state, static in zip(simulation.states, before, strict=True):
        now = state.request
        assert state.finish_s > 0 and state.fetched == state.cluster.model.layers
        assert (now.number, now.deadline_s, now.decode) == (static.number, static.deadline_s, static.decode)
        assert now.new_tokens + now.context_tokens == static.new_tokens + static.context_tokens
    assert any(s.request.unit != r.unit for s, r in zip(simulation.states, before, strict=True))
    assert ends(simulated(policy=policy, router="transfer")) == ends(simulation)


@pytest.mark.parametrize("policy", ["mfs", "dscp-size"])
def test_locality_as_requests_arrive_is_locality_before_the_run_to_the_bit(policy: str) -> None:
    assert ends(simulated(policy=policy, router="locality:0.1")) == ends(simulated(policy=policy))
    assert ends(simulated(policy=policy, router="locality:3")) != ends(simulated(policy=policy))


@pytest.mark.parametrize("router", ["nearest", "locality:", "locality:-1", "locality:inf", "transfer:1"])
def test_what_cannot_be_asked(router: str) -> None:
    with pytest.raises(ConfigError, match=f"^--router {router}: use "):
        ReuseConfig(router=router)


def test_locality_is_the_same_whatever_is_known() -> None:
    assert ends(simulated(outlook="coordinator", age_s=0.1)) == ends(simulated())
    assert ends(simulated(router="transfer", outlook="coordinator", age_s=0.0)) == ends(simulated(router="transfer"))
    assert ends(simulated(router="transfer", outlook="none")) != ends(simulated(router="transfer"))
    assert ends(simulated(router="transfer", error=100.0)) != ends(simulated(router="transfer"))


def test_several_models_have_routers_of_their_own() -> None:
    both = msgspec.structs.replace(
        BASE, config=msgspec.structs.replace(BASE.config, model="dbrx,qwen3-coder"), workload="qwen-a,qwen-b"
    )
    for state in simulated(both, router="transfer").states:
        assert state.finish_s > 0 and state.cluster.of(state.request.unit) is state.cluster


def test_points_without_a_router_are_described_as_before() -> None:
    assert "reuse" not in described(BASE)
    assert "router" not in described(msgspec.structs.replace(BASE, reuse=ReuseConfig(rule="slo")))["reuse"]
    assert (
        described(msgspec.structs.replace(BASE, reuse=ReuseConfig(router="transfer")))["reuse"]["router"] == "transfer"
    )


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--router", "transfer", "--fabric-classes", "8", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["config"]["reuse"]["router"] == "transfer"
    capsys.readouterr()
    assert command.main([*SMALL, "--router", "transfer", "--fetch", "batch"]) == 2
    printed = capsys.readouterr().err.strip()
    assert printed.startswith("bench sim: --router transfer --fetch batch: ") and "\n" not in printed


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = router_study.SECTIONS["known"].rows[:2]
    case = outlook.Case("small", "hot", knobs={"fabric_classes": 8})
    monkeypatch.setattr(router_study, "SECTIONS", {"small": outlook.Section("Small", (case,), rows, 3)})
    monkeypatch.setattr(outlook, "point_of", lambda results, case, requests: BASE)
    page = tmp_path / "page.md"
    page.write_text(f"{outlook.BEGIN}\n{outlook.END}\n")
    assert router_study.main([str(tmp_path / "p.jsonl"), "--seeds", "2", "--page", str(page)]) == 0
    text = page.read_text()
    assert "### Small" in text and "eight classes on the wire" in text and "| `mfs`, `transfer` | " in text
    kept = [json.loads(line)["point"] for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [(point["seed"], point.get("reuse", {}).get("router")) for point in kept] == [
        (771, None),
        (772, None),
        (771, "transfer"),
        (772, "transfer"),
    ]


@pytest.mark.usefixtures("short_past")
def test_the_study_finds_the_load_that_rows_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = router_study.SECTIONS["claim"].carriers
    case = outlook.Case("small", "hot", knobs={"fabric_classes": 8})
    small = outlook.Section("Small", (case,), rows[:1], 2, carriers=rows[2:])
    monkeypatch.setattr(router_study, "SECTIONS", {"small": small})
    monkeypatch.setattr(outlook, "point_of", lambda results, case, requests: BASE)
    page = tmp_path / "page.md"
    page.write_text(f"{outlook.BEGIN}\n{outlook.END}\n")
    assert router_study.main([str(tmp_path / "p.jsonl"), "--capacity-seeds", "1", "--page", str(page)]) == 0
    found = json.loads((tmp_path / "page-results.json").read_text())["sections"]["small"]
    carried = found["capacity"]["small"]
    assert found["capacity_seeds"] == [771] and list(carried) == [
        f"`dscp-size`, `{r}`" for r in ("locality", "transfer")
    ]
    assert "are met, seed 771 alone: " in page.read_text()
    assert f"| `dscp-size`, `locality` | {carried['`dscp-size`, `locality`']['load']:.2f} |" in page.read_text()
    with pytest.raises(ConfigError, match="--capacity-seeds -1: use 0 or more"):
        router_study.main([str(tmp_path / "p.jsonl"), "--capacity-seeds", "-1"])


def test_every_case_of_the_study_has_eight_classes() -> None:
    for section in router_study.SECTIONS.values():
        assert section.rows[0].reuse == ReuseConfig(), "the others are held against locality"
        for case in section.cases:
            base = settings.base_of(case.setting, case.model, case.workload, 10)
            assert msgspec.structs.replace(base.config, **case.knobs).fabric_classes == 8
