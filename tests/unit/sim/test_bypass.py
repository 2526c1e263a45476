"""Load that no daemon orders, and readings of the counters that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, point, policies, serve, settings, study
from bench.sim.bypass import BypassLoad
from bench.sim.cluster import Config, ConfigError
from bench.sim.engine import Simulation
from bench.sim.point import Point

NS = 1_000_000_000


def simulation(share: float = 0.0, policy: str = "mfs", **config: Any) -> Simulation:
    base = settings.base_of("egress", "dbrx", "qwen-a", 9, 8)
    changed = msgspec.structs.replace(base.config, bypass_share=share, **config)
    one = msgspec.structs.replace(base, config=changed, policy=policy, rate=0.1)
    cluster, requests = point.prepare(one)
    return Simulation(cluster, requests, policies.find(policy), serve.scheduler("fcfs", cluster), one.reuse)


def load_of(interval_s: float | None) -> BypassLoad:
    """At its first NIC it has been sending all the time."""
    load = BypassLoad(simulation(bypass_read_s=interval_s), 0.3, 0.05)
    load.sends[0] = True
    return load


def test_without_readings_nothing_is_known() -> None:
    assert load_of(None).rate(0, NS) == 0.0


def test_without_delay_it_is_known_as_it_is() -> None:
    load = load_of(0.0)
    assert load.rate(0, NS) == pytest.approx(0.6 * load.link)
    load.sends[0] = False
    assert load.rate(0, NS) == 0.0


def test_a_reading_covers_the_time_since_the_last_and_holds_until_the_next() -> None:
    load = load_of(0.1)
    load.simulation.now = 0.05
    assert load.rate(0, NS // 20) == 0.0, "not read yet"
    load.simulation.now = 0.1
    assert load.rate(0, NS // 10) == pytest.approx(0.6 * load.link)
    load.bytes[0], load.since[0], load.sends[0] = load.sent(0), 0.1, False
    load.simulation.now = 0.15
    assert load.rate(0, 3 * NS // 20) == pytest.approx(0.6 * load.link), "of the time before"
    load.simulation.now = 0.2
    assert load.rate(0, NS // 5) == 0.0


def test_it_takes_the_share_that_is_asked_for_and_every_request_ends() -> None:
    run = simulation(0.3, bypass_burst_s=0.005)
    run.run()
    assert run.unfinished == 0 and all(state.finish_s >= 0 for state in run.states)
    assert run.bypass is not None
    shares = [run.bypass.sent(nic) / (run.bypass.link * run.now) for nic in range(run.cluster.topology.nics)]
    assert sum(shares) / len(shares) == pytest.approx(0.3, abs=0.02)


def test_readings_change_no_work_and_points_without_bypass_are_described_as_before() -> None:
    plain = Point(config=Config())
    assert not [name for name in point.described(plain)["config"] if name.startswith("bypass")]
    with_it = msgspec.structs.replace(plain, config=Config(bypass_share=0.3, bypass_read_s=0.1))
    assert point.described(with_it)["config"]["bypass_read_s"] == 0.1


@pytest.mark.parametrize("wrong", [{"bypass_share": 1.0}, {"bypass_burst_s": 0.0}, {"bypass_read_s": -1.0}])
def test_values_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="--bypass"):
        Config(**wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_page_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "b.jsonl", tmp_path / "page.md"
    page.write_text(f"{study.BEGIN}\n{study.END}\n")
    file.with_suffix(".knees.json").write_text('{"dbrx qwen-a egress 9 loaded": 0.1}')
    arguments = ["bypass", str(file), "--setting", "egress", "--seeds", "2", "--requests", "9", "--burst-ms", "500"]
    assert command.main([*arguments, "--page", str(page)]) == 0
    points = file.read_text()
    assert len(points.splitlines()) == 2 * 6
    assert page.read_text().count("\n| `") == 6 and "`dscp-size`" in page.read_text()
    written = json.loads((tmp_path / "page-results.json").read_text())
    assert written["what"]["share"] == 0.3 and len(written["panels"]) == 1
    capsys.readouterr()
    assert command.main(arguments) == 0 and file.read_text() == points
