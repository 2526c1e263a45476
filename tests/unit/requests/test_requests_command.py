"""python -m bench requests as its users meet it: rows, resuming, interrupting, one line for every mistake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.requests import command
from bench.requests import point as points
from bench.requests.lab import QUICK, Lab
from bench.requests.point import Point
from bench.requests.settings import Settings
from bench.sim import sweep

ROOT = Path(__file__).parents[3]
SMALL = ["run", "--seconds", "30", "--qps", "2"]
TIERS = {
    "policy", "seed", "qps", "requests", "violations", "ttft_s", "tbt_s", "ttlt_s", "goodput_qps", "relegated",
    "paused", "evicted", "chunk_tokens", "step_error", "plan_us", "kv", "cpu_s", "over_time", "source",
}  # fmt: skip
LATENCIES = {"mean", "p50", "p90", "p99"}


def test_rows_have_the_promised_keys_and_a_second_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--policy", "fcfs,qoserve", "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    assert set(written) == {"config", "results"} and len(written["results"]) == 2
    for row in written["results"]:
        assert set(row) >= TIERS
        assert set(row["violations"]) >= {"all", "important", "tiers", "short", "long"}
        assert set(row["ttft_s"]) >= LATENCIES and set(row["tbt_s"]) >= LATENCIES and set(row["ttlt_s"]) >= LATENCIES
        assert set(row["step_error"]) >= {"mape", "over"} and set(row["plan_us"]) >= {"p50", "p99"}
        assert "generated" in row["source"]
    assert "[2/2]" in capsys.readouterr().err
    ran: list[Point] = []
    original = points.run
    monkeypatch.setattr(points, "run", lambda p: ran.append(p) or original(p))
    assert command.main([*SMALL, "--policy", "fcfs,edf,qoserve", "--json", str(out)]) == 0
    assert [p.policy for p in ran] == ["edf"], "only what is missing runs"
    assert command.main([*SMALL, "--set", "ttft_s=3", "--json", str(out)]) == 2
    assert "another configuration" in capsys.readouterr().err


def test_programs_and_drift_add_their_measures(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ["--what", "programs", "--policy", "fcfs,plas", "--seconds", "20", "--qps", "0.3"]
    assert command.main(["run", *arguments, "--json", str(out)]) == 0
    for row in json.loads(out.read_text())["results"]:
        assert set(row) >= {"latency_s", "per_token_s", "hit_rate"} and set(row["hit_rate"]) >= {"short", "long"}
    out = tmp_path / "d.json"
    arguments = ["--what", "drift", "--set", "phase_s=20", "--seconds", "60", "--policy", "fcfs,hmas"]
    assert command.main(["run", *arguments, "--json", str(out)]) == 0
    measures = {"goodput_rate", "esg", "ttft_ok", "tpot_ok", "mismatch", "cv", "recovery", "switches"}
    assert all(set(row) >= measures for row in json.loads(out.read_text())["results"])


def test_figures_are_drawn_beside_the_file(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--policy", "fcfs", "--json", str(out), "--figure"]) == 0
    assert out.with_suffix(".png").stat().st_size > 1000 and "<svg" in out.with_suffix(".svg").read_text()


def test_equal_points_give_equal_rows() -> None:
    def measured(seed: int) -> dict[str, object]:
        row = points.run(Point(qps=3.0, seconds=30.0, seed=seed))
        return {name: value for name, value in row.items() if name not in ("cpu_s", "plan_us")}

    assert measured(4) == measured(4) != measured(5)


def test_prefill_and_decode_are_apart_where_it_is_asked_for() -> None:
    def measured(**given: object) -> dict[str, object]:
        settings = Settings(replicas=3, router="least-loaded", **given)  # type: ignore[arg-type]
        row = points.run(Point(policy="fit", qps=6.0, seconds=30.0, settings=settings))
        return {name: value for name, value in row.items() if name not in ("cpu_s", "plan_us")}

    both, slow, fast = measured(), measured(prefill=2, kv_rate_gbit=5.0), measured(prefill=2)
    assert measured(prefill=0, kv_rate_gbit=5.0) == both and "moves" not in both
    for row in (slow, fast):
        assert row["unfinished"] == 0 and row["requests"] == both["requests"]
        assert row["moves"]["calls"] <= row["requests"] and set(row["moves"]["ports_s"]) == LATENCIES  # type: ignore
    assert slow["moves"]["ports_s"]["p50"] > 15 * fast["moves"]["ports_s"]["p50"] > 0  # type: ignore[index]


def test_models_share_a_node_where_it_is_asked_for() -> None:
    def measured(**given: object) -> dict[str, Any]:
        settings = Settings(replicas=2, **given)  # type: ignore[arg-type]
        return points.run(Point(policy="fit", qps=1.0, seconds=120.0, settings=settings))

    one, few, many, asleep = measured(), measured(models=2), measured(models=4), measured(models=4, host_gb=64)
    assert asleep["models"]["loads"] == 4 and asleep["models"]["wakes"] > 4 and many["models"]["wakes"] == 0
    assert asleep["models"]["waited_s"]["mean"] < many["models"]["waited_s"]["mean"]
    assert "models" not in one and few["models"]["loads"] == 2 < many["models"]["loads"]
    assert many["models"]["loading_s"] / many["models"]["loads"] == pytest.approx(20 + 16 / 20 + 16 / 3)
    assert one["requests"] == few["requests"] == many["requests"] and many["unfinished"] == 0
    programs = Point(
        what="programs", workload="chat", policy="plas", qps=0.3, seconds=60.0, settings=Settings(models=3)
    )
    row = points.run(programs)
    assert row["models"]["loads"] > 3 and row["unfinished"] == 0


def test_ray_gives_what_is_given_here(tmp_path: Path) -> None:
    """Runs, and a capacity and a mean over seeds as claims are made of."""
    pytest.importorskip("ray")
    here, spread = tmp_path / "here.json", tmp_path / "ray.json"
    arguments = [*SMALL, "--policy", "fcfs,qoserve", "--json"]
    assert command.main([*arguments, str(here)]) == 0
    scale = msgspec.structs.replace(QUICK, tiers_s=60.0, deadlines=1 / 240, step=3.0, seeds=(11, 12))

    def of_seeds(engine: str) -> tuple[float, float, dict[str, object]]:
        runs = tmp_path / f"{engine}.jsonl"
        lab = Lab(runs, scale, engine=engine)
        point = lab.tiers("fcfs", 2.0, 0)
        found = lab.capacity(point), lab.late(msgspec.structs.replace(point, qps=7.0))
        rows = [json.loads(line) for line in runs.read_text().splitlines()]
        return *found, {json.dumps(row["point"], sort_keys=True): row["violations"] for row in rows}

    with sweep.cluster("ray"):
        assert command.main([*arguments, str(spread), "--engine", "ray"]) == 0
        assert of_seeds("ray") == of_seeds("local")

    def rows(path: Path) -> list[tuple[object, ...]]:
        found = json.loads(path.read_text())["results"]
        return sorted((row["policy"], row["violations"]["all"], row["ttft_s"]["mean"]) for row in found)

    assert rows(spread) == rows(here) and len(rows(here)) == 2


def test_ctrl_c_keeps_finished_rows(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    seeds = ",".join(str(n) for n in range(1, 2000))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", "requests", *SMALL, "--policy", "fcfs", "--seed", seeds, "--json", str(out)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[2/"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(30) == 130
    assert "resumes from there" in rest and "Traceback" not in rest
    assert 2 <= len(json.loads(out.read_text())["results"]) < 1999


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--policy", "best"], ["--policy best", "qoserve", "fcfs"]),
        (["run", "--workload", "chat"], ["--workload chat", "azure-code"]),
        (["run", "--what", "programs", "--policy", "qoserve"], ["--policy qoserve", "--what programs", "plas"]),
        (["run", "--qps", "fast"], ["--qps fast", "numbers"]),
        (["run", "--qps", "0"], ["--qps 0", "above 0"]),
        (["run", "--qps", "nan"], ["--qps nan", "above 0"]),
        (["run", "--qps", "1e-9"], ["--qps 1e-09", "nothing arrives"]),
        (["run", "--seed", "one"], ["--seed one", "numbers"]),
        (["run", "--seconds", "0"], ["--seconds 0", "above 0"]),
        (["run", "--requests", "0"], ["--requests 0", "at least 1"]),
        (["run", "--requests", "5", "--seconds", "5"], ["--requests 5", "--seconds 5", "one of them"]),
        (["run", "--set", "ttft_s"], ["--set ttft_s", "NAME=VALUE"]),
        (["run", "--set", "speed=9"], ["speed=9", "ttft_s", "slots"]),
        (["run", "--set", "ttft_s=-1"], ["ttft_s is -1", "0.001 to 86400"]),
        (["run", "--set", "tbt_s=fast"], ["tbt_s", "float"]),
        (["run", "--set", "low_share=NaN"], ["low_share"]),
        (["run", "--set", "batch_ttlt_s=86401"], ["batch_ttlt_s is 86401", "86400"]),
        (["run", "--set", "mix_interactive=0", "--set", "mix_batch=0", "--set", "mix_background=0"], ["at least one"]),
        (["run", "--set", "cost=gpt-9"], ["cost is gpt-9", "llama3-8b-a100"]),
        (["run", "--set", "serve.policy=best"], ["serve", "best"]),
        (["run", "--set", "serve.alpha_low_s=-1"], ["alpha_low_s is -1"]),
        (["run", "--set", "serve.speed=1"], ["speed"]),
        (["run", "--set", "kv_tokens=2000"], ["kv_tokens=2000", "tokens of KV"]),
        (["run", "--policy", "silo"], ["replicas=1", "at least 3"]),
        (["run", "--set", "prefill=1"], ["prefill=1", "which are 1", "replicas="]),
        (["run", "--set", "replicas=4", "--set", "prefill=4"], ["prefill=4", "which are 4"]),
        (["run", "--set", "prefill=-1"], ["prefill is -1", "0 to 999"]),
        (["run", "--set", "kv_rate_gbit=-25"], ["kv_rate_gbit is -25", "0.001 to"]),
        (["run", "--set", "kv_rate_gbit=NaN"], ["kv_rate_gbit"]),
        (["run", "--set", "replicas=3", "--set", "prefill=1", "--policy", "silo"], ["prefill=1", "silo", "another"]),
        (["run", "--what", "agents", "--set", "prefill=1", "--policy", "store"], ["prefill=1", "a store", "use 0"]),
        (["run", "--what", "workflows", "--set", "prefill=1"], ["prefill=1", "workflows", "use 0"]),
        (["run", "--set", "models=-1"], ["models is -1", "0 to 1000"]),
        (["run", "--set", "weights_gb=-1"], ["weights_gb is -1", "0 to"]),
        (["run", "--set", "host_gb=-1"], ["host_gb is -1", "0 to"]),
        (
            ["run", "--set", "models=3", "--set", "replicas=2", "--set", "prefill=1"],
            ["models=3", "prefill=1", "one of"],
        ),
        (["run", "--set", "models=3", "--set", "router=prefix"], ["models=3", "prefix", "use 0"]),
        (["run", "--what", "workflows", "--set", "models=2"], ["models=2", "workflows", "use 0"]),
        (["run", "--traces", "/nowhere"], ["--traces /nowhere", "azure2023_code", "generated"]),
        (["run", "--what", "drift", "--traces", "/nowhere"], ["--traces /nowhere", "--workload replay"]),
        (["run", "--figure"], ["--figure", "--json"]),
        (["capacity", "--step", "9"], ["--step 9", "below"]),
        (["capacity", "--requests", "9"], ["--requests 9", "--seconds"]),
        (["claims", "--claim", "q9"], ["--claim q9", "q1"]),
        (["claims", "--claim", "q1", "--system", "hmas"], ["q1", "hmas", "no claim"]),
        (["claims", "--page", "x.md"], ["--page x.md", "--json"]),
        (["serve"], ["serve", "run", "capacity"]),
    ],
)
def test_mistakes_get_one_line_with_the_remedy(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("bench requests "), error
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"input_length": 900}', ["line 2", "output"]),
        ('{"input_length": -3, "output_length": 2}', ["line 2", "input length is -3"]),
        ('{"input_length": 1, "output_length": "many"}', ["line 2", "output length is 'many'"]),
        ("[]", ["line 2", "expected an object"]),
        ("{", ["line 2", "not JSON"]),
    ],
)
def test_a_trace_that_cannot_be_used_names_the_row(
    row: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "azure2023_code.jsonl").write_text('{"input_length": 9, "output_length": 2}\n' + row + "\n")
    assert command.main([*SMALL, "--traces", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "azure2023_code.jsonl" in error and all(word in error for word in words), error


def test_a_trace_without_outputs_names_its_first_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "azure2023_code.jsonl").write_text('{"input_length": 9}\n{"input_length": 8}\n')
    assert command.main([*SMALL, "--traces", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "azure2023_code.jsonl line 1" in error and "output_length" in error, error


def test_an_empty_trace_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "azure2023_code.jsonl").write_text("")
    assert command.main([*SMALL, "--traces", str(tmp_path)]) == 2
    assert "the trace is empty" in capsys.readouterr().err


def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"mine": 1}')
    for arguments in ([*SMALL, "--json"], ["claims", "--quick", "--claim", "h2", "--json"]):
        assert command.main([*arguments, str(other)]) == 2
        assert "name another file" in capsys.readouterr().err
        assert other.read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", [*command.COMMANDS])
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "replay":
        pytest.importorskip("mfsd.serve.records")
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m bench requests {name}" in capsys.readouterr().out
