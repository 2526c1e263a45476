"""Settings by name, how they are chosen, and what a table says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import choose, command, settings, study
from bench.sim.capacity import compare_capacity
from bench.sim.cluster import Cluster
from bench.sim.compare import CHOOSING_SEED, compare, half_width


def test_every_setting_can_be_built_and_none_but_stress_scales_kv() -> None:
    for name, setting in settings.SETTINGS.items():
        base = settings.base_of(name, "dbrx", "qwen-a", 30)
        cluster = Cluster(base.config)
        assert base.config.kv_scale == 1 or setting.group in ("stress", "tiers")
        if setting.group == "served":
            assert (base.config.cache, base.config.decode_choice, base.config.hot_fraction) == ("keep", "load", 0)
            assert cluster.link <= 25e9
    kinds = {Cluster(settings.base_of(f"{m}.qwen-a.100g", "", "", 30).config).kv_bytes for m in settings.SERVED}
    assert kinds == {4096.0, 16384.0, 1152.0}, "grouped queries, all heads, latent"


def test_groups_stand_for_their_settings() -> None:
    assert settings.named("node,hot,hot") == [*(n for n in settings.SETTINGS if n.startswith("node-")), "hot"]
    assert settings.named("qwen-b") == ["base-qwen-b"]
    base, short = (settings.base_of(name, "dbrx", "qwen-a", 30) for name in ("base", "base-qwen-b"))
    assert short == msgspec.structs.replace(base, workload="qwen-b"), "nothing but the prompts differs"
    assert len(settings.named("node")) == 6 and len(settings.named("stress")) == 7
    served = settings.named("served")
    assert len({n.split(".")[0] for n in served}) >= 3 and len({n.split(".")[1] for n in served}) >= 3
    assert set(settings.named("contended")) <= set(served)
    shipped = json.loads((Path(settings.__file__).parent / settings.CHOSEN).read_text())
    assert shipped["what"]["first_seed"] == CHOOSING_SEED and set(shipped["settings"]) <= set(served)


def test_choosing_runs_static_and_nocont_alone_on_seeds_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "CHOSEN", str(tmp_path / "chosen.json"))
    file = tmp_path / "c.jsonl"
    names = "llama3-8b-gpu.qwen-a.200g,llama3-8b-gpu.qwen-a.shared-100g"
    # As the search finds it, which would run five times as many points; the study of a recorded trace below searches.
    file.with_suffix(".knees.json").write_text(json.dumps({f"choose {name} 30": 7.09765 for name in names.split(",")}))
    arguments = ["choose", str(file), "--setting", names, "--requests", "30", "--write"]
    assert command.main(arguments) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {r["policy"] for r in rows} == {"static", "nocont"} and min(r["seed"] for r in rows) == CHOOSING_SEED
    written = json.loads((tmp_path / "chosen.json").read_text())["settings"]
    assert {name.split(".")[-1]: one["contended"] for name, one in written.items()} == {
        "200g": False,
        "shared-100g": True,
    }
    assert written[names.split(",")[1]]["nocont"] >= written[names.split(",")[1]]["static"] + 3
    capsys.readouterr()
    before = file.read_text()
    assert command.main(arguments) == 0 and file.read_text() == before, "nothing runs twice"
    assert "| contended |" in capsys.readouterr().out
    assert command.main(["choose", str(file), "--setting", "hot"]) == 2
    assert "names no model" in capsys.readouterr().err


def result(met: float, mean: float, p99: float) -> dict[str, Any]:
    return {
        "slo_attainment": met,
        "ttft_s": {"mean": mean, "p99": p99},
        "cct_s": {"mean": 1.0},
        "earliness_s": {"non_negative_mean": 1.0},
    }


def test_above_means_that_the_interval_is() -> None:
    other = [result(0.5, 2.0, 8.0)] * 3
    sure = compare([result(met, 1.0, 4.0) for met in (0.60, 0.61, 0.62)], other)
    unsure = compare([result(met, 1.0, 4.0) for met in (0.49, 0.61, 0.73)], other)
    assert sure.gain == pytest.approx(unsure.gain) == pytest.approx(11)
    assert sure.above and not unsure.above
    assert sure.gain_half == pytest.approx(4.30 * 1.0 / 3**0.5)
    assert (sure.ttft_ratio, sure.p99_ratio, sure.p99_s) == (0.5, 0.5, 4.0)
    one = compare(other[:1], other[:1])
    assert one.gain_half is None and not one.above and half_width([1.0]) is None


def test_capacity_is_paired() -> None:
    carried = compare_capacity([0.8, 0.9, 1.0], [0.4, 0.45, 0.5])
    assert carried.ratio == pytest.approx(2) and carried.above and carried.load == pytest.approx(0.9)
    assert not compare_capacity([0.8, 0.3], [0.4, 0.5]).above


def test_a_study_of_a_recorded_trace_says_what_each_policy_carries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, file = tmp_path / "mine.jsonl", tmp_path / "s.jsonl"
    rows = [
        {"timestamp": 0.1 * n, "input_length": 900 + 64 * (n % 7), "output_length": 3, "hash_ids": [n % 5, 10 + n]}
        for n in range(60)
    ]
    trace.write_text("\n".join(json.dumps(row) for row in rows))
    name = "llama3-8b-gpu.qwen-a.shared-100g"
    arguments = ["study", str(file), "--setting", name, "--trace", str(trace), "--policy", "dscp-size", "--seeds", "2"]
    assert command.main([*arguments, "--requests", "12", "--capacity", "--against", "static-exact"]) == 0
    text = capsys.readouterr().out
    assert "mine.jsonl" in text and str(tmp_path) not in text
    line = next(line for line in text.splitlines() if line.startswith("| `dscp-size`"))
    assert "cap x" in line and line.count(" x") == 3 and "±" in line
    assert "seeds 11-12" in text, "those of the capacities"
    workloads = {json.loads(line)["point"]["workload"] for line in file.read_text().splitlines()}
    assert workloads == {str(trace)}
    assert settings.SETTINGS[name].workload == "qwen-a"


def test_where_the_other_carries_nothing_a_capacity_is_relative_to_the_knee() -> None:
    figure = compare([result(0.9, 1.0, 2.0)], [result(0.8, 1.0, 2.0)])
    assert study.cell(figure, compare_capacity([0.5], [0.0])).endswith(" cap 0.50 of the knee")
    assert study.cell(figure, compare_capacity([0.5], [0.25])).endswith(" cap x2.00")


@pytest.mark.usefixtures("short_past")
def test_capacities_may_be_of_some_policies_and_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.jsonl"
    file.with_suffix(".knees.json").write_text('{"dbrx qwen-a egress 9 loaded": 0.1}')
    few = ["study", str(file), "--setting", "egress", "--requests", "9", "--seeds", "2", "--policy", "fs,mfs"]
    some = ["--capacity", "--capacity-policy", "mfs", "--capacity-seeds", "1"]
    assert command.main([*few, *some]) == 0
    text = capsys.readouterr().out
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `") and "share" not in line}
    assert "cap x" in rows["mfs"] and "cap" not in rows["fs"] and "cap" in rows["static"] and "seed 11 alone" in text
    tried = [json.loads(line) for line in file.read_text().splitlines()]
    assert {r["seed"] for r in tried} == {11, 12}
    elsewhere = [r for r in tried if r["rate"] != 0.1]
    assert {(r["policy"], r["seed"]) for r in elsewhere} == {("static", 11), ("mfs", 11)}
    assert command.main([*few, "--capacity", "--capacity-policy", "edf"]) == 2
    assert "--capacity-policy edf: use" in capsys.readouterr().err
    assert command.main([*few, "--capacity", "--capacity-seeds", "3"]) == 2
    assert "--capacity-seeds 3: use 1 to 2" in capsys.readouterr().err


@pytest.mark.usefixtures("short_past")
def test_a_study_leaves_out_a_setting_that_no_rate_is_right_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compute alone misses its deadlines, at any rate."""
    never, file = "deepseek-v3.qwen-a.bursts", tmp_path / "s.jsonl"
    base = settings.base_of(never, "", "", 9, 8, "loaded")
    file.with_suffix(".knees.json").write_text(json.dumps({study.knee_name(never, base): 0.0}))
    arguments = ["study", str(file), "--fabric-classes", "8", "--requests", "9", "--policy", "mfs", "--seeds", "1"]
    assert command.main([*arguments, "--setting", f"{never},egress"]) == 0
    text, log = capsys.readouterr()
    assert f"{never}: left out, no rate" in log and never not in text and "egress" in text
    assert command.main([*arguments, "--setting", never]) == 2
    assert f"--setting {never}: no rate meets 90 %" in capsys.readouterr().err
