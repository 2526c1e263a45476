"""python -m bench sim as its users meet it: results, resuming, interrupting, one line for every mistake."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.sim import command, figures, linearity, policies, sensitivity, study
from bench.sim import point as points
from bench.sim.point import Point

ROOT = Path(__file__).parents[3]
SMALL = ["--gpus", "128", "--requests", "12", "--warmup", "4", "--rate", "0.1,0.15", "--policy", "fs,nocont"]
KEYS = {
    "policy",
    "rate",
    "seed",
    "requests",
    "slo_attainment",
    "ttft_s",
    "cct_s",
    "earliness_s",
    "wall_s",
    "cpu_s",
    "flow_events",
}


def test_results_have_the_promised_shape_and_a_sweep_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    assert set(written) == {"config", "results"} and len(written["results"]) == 4
    for result in written["results"]:
        assert set(result) >= KEYS
        assert set(result["ttft_s"]) == {"mean", "p50", "p90", "p99"} and set(result["cct_s"]) == {
            "mean",
            "p99",
        }
        assert 0 <= result["slo_attainment"] <= 1 and result["flow_events"] > 0
    assert "[4/4]" in capsys.readouterr().err
    ran: list[Point] = []
    original = points.run
    monkeypatch.setattr(points, "run", lambda p: ran.append(p) or original(p))
    assert command.main([*SMALL[:-1], "fs,nocont,static", "--json", str(out)]) == 0
    assert [p.policy for p in ran] == ["static", "static"], "only what is missing runs"
    assert command.main([*SMALL, "--hot-fraction", "0.2", "--json", str(out)]) == 2
    assert "another configuration" in capsys.readouterr().err


def test_requests_that_never_end_are_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no TTFT: a policy whose network stands still had all of them in time."""
    stuck = tmp_path / "stuck.py"
    stuck.write_text(
        "from bench.sim.network import IsolatedNetwork\n"
        "from bench.sim.policies import Policy, register\n"
        "class Stuck(IsolatedNetwork):\n"
        "    def send(self, flow, size):\n"
        "        pass\n"
        '@register("stuck")\n'
        "class Stands(Policy):\n"
        "    def order(self, flow):\n"
        "        return 0\n"
        "    def network(self):\n"
        "        return Stuck()\n"
    )
    assert command.main([*SMALL[:-3], "0.1", "--policy", str(stuck)]) == 2
    assert "16 of 16 requests never end" in capsys.readouterr().err


def test_the_table_in_a_pipe_has_each_policy_by_its_whole_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SMALL[:-3], "0.1", "--policy", "mfs-collective-first,mfs-rank"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "fcfs" in line]
    assert [row[:3] for row in rows] == [[name, "fcfs", "0.1"] for name in ("mfs-collective-first", "mfs-rank")]


def test_ctrl_c_keeps_finished_points(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = [
        sys.executable,
        "-m",
        "bench",
        "sim",
        "--gpus",
        "128",
        "--requests",
        "40",
        "--warmup",
        "5",
        "--policy",
        "fs",
    ]
    seeds = ",".join(str(n) for n in range(1, 400))
    process = subprocess.Popen(
        [*arguments, "--seed", seeds, "--json", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[2/"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(30) == 130
    assert "resumes from there" in rest and "Traceback" not in rest
    assert 2 <= len(json.loads(out.read_text())["results"]) < 399


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "100"], ["--gpus 100", "multiple of 64"]),
        (["--rate", "50"], ["--rate 50", "queues only grow", "at most"]),
        (["--rate", "fast"], ["--rate fast", "numbers"]),
        (["--rate", "-1"], ["--rate -1", "above 0"]),
        (["--policy", "best"], ["--policy best", "mfs", "static"]),
        (["--trace", "/nowhere.jsonl"], ["/nowhere.jsonl", "no such file"]),
        (["--hot-fraction", "2"], ["--hot-fraction 2", "0 to 1"]),
        (["--fabric-classes", "1"], ["--fabric-classes 1", "2 to 8"]),
        (["--requests", "0"], ["--requests 0"]),
        (["--set", "threshold_base=1"], ["threshold_base", "above 1"]),
        (["--set", "speed=9"], ["speed"]),
        (["--arrivals", "trace"], ["--arrivals trace", "generated"]),
        (["--model", "gpt"], ["--model gpt", "dbrx"]),
        (["--model", "dbrx,mixtral-8x7b"], ["--model dbrx,mixtral-8x7b", "servers"]),
        (["--model", "dbrx,llama3-8b", "--gpus", "64"], ["--gpus 64", "multiple of 128", "each model"]),
        (["--workload", "chat"], ["--workload chat", "qwen-a"]),
        (["--workload", "qwen-a,qwen-b"], ["--workload qwen-a,qwen-b", "one for all"]),
        (["--link-gbps", "0"], ["--link-gbps 0", "above 0"]),
        (["--batch-tokens", "0"], ["--batch-tokens 0", "at least 1"]),
        (["--expert-skew", "-1"], ["--expert-skew -1", "at least 0"]),
        (["--belief-error", "1"], ["--belief-error 1", "below 1"]),
        (["--coordinator-delay-ms", "-1"], ["--coordinator-delay-ms -1"]),
    ],
)
def test_mistakes_get_one_line_with_the_remedy(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--gpus", "128", "--requests", "8", "--warmup", "2", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("bench sim: ")
    assert all(word in error for word in words), error


def test_a_trace_that_is_too_short_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [{"timestamp": 0.1 * n, "input_length": 900, "output_length": 3, "hash_ids": [0, n]} for n in range(10)]
    trace.write_text("\n".join(json.dumps(r) for r in rows))
    assert command.main(["--gpus", "128", "--trace", str(trace)]) == 2
    assert "10 requests" in capsys.readouterr().err
    at_once = tmp_path / "at-once.jsonl"
    at_once.write_text("\n".join(json.dumps({**r, "timestamp": 0.5}) for r in rows))
    few = ["--gpus", "128", "--requests", "6", "--warmup", "4", "--policy", "static", "--arrivals", "trace"]
    assert command.main([*few, "--trace", str(at_once)]) == 2
    assert "arrive at once" in capsys.readouterr().err
    short = [
        "--gpus",
        "128",
        "--trace",
        str(trace),
        "--requests",
        "6",
        "--warmup",
        "4",
        "--policy",
        "static",
        "--arrivals",
        "trace",
    ]
    assert command.main(short) == 0


def test_a_policy_of_the_users_own_is_one_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from bench.sim.policies import Policy, pack, register\n\n@register('mine')\nclass Mine(Policy):\n"
        "    def order(self, flow):\n        return pack(flow.stage)\n"
    )
    out = tmp_path / "r.json"
    assert (
        command.main(["--gpus", "128", "--requests", "8", "--warmup", "2", "--policy", str(mine), "--json", str(out)])
        == 0
    )
    assert json.loads(out.read_text())["results"][0]["policy"] == str(mine)
    with pytest.raises(LookupError, match="no such file"):
        policies.find(str(tmp_path / "other.py"))
    lacking = tmp_path / "lacking.py"
    lacking.write_text(
        "from bench.sim.policies import Policy, register\n\n@register('lacking')\nclass L(Policy):\n    ...\n"
    )
    with pytest.raises(LookupError, match=r"lacks order\(\)"):
        policies.find(str(lacking))


def test_ray_spreads_a_sweep_with_equal_results(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local, spread = tmp_path / "local.json", tmp_path / "ray.json"
    assert command.main([*SMALL, "--json", str(local)]) == 0
    assert command.main([*SMALL, "--json", str(spread), "--engine", "ray"]) == 0

    def met(path: Path) -> dict[tuple[str, float], float]:
        return {(r["policy"], r["rate"]): r["slo_attainment"] for r in json.loads(path.read_text())["results"]}

    assert met(local) == met(spread)


@pytest.mark.usefixtures("short_past")
def test_a_figure_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "KNEE_REQUESTS", 40)
    few = ["--requests", "20", "--seeds", "2", "--policy", "fs,nocont"]
    quick = ["figure", "9", "--quick", *few, "--out", str(tmp_path)]
    assert command.main(quick) == 0
    for ending in ("png", "svg", "json"):
        assert (tmp_path / f"figure-9-quick.{ending}").stat().st_size > 500
    assert (tmp_path / "figure-9-quick.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("short_past")
def test_sensitivity_compares_on_the_same_seeds_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file, page = tmp_path / "s.jsonl", tmp_path / "page.md"
    page.write_text(f"before\n{sensitivity.BEGIN}\nold\n{sensitivity.END}\nafter\n")
    file.with_suffix(".knees.json").write_text('{"dbrx qwen-a egress 9 loaded": 0.1}')
    arguments = ["sensitivity", str(file), "--what", "drop", "--setting", "egress", "--seeds", "1", "--requests", "9"]
    assert command.main(arguments) == 0
    first, points = capsys.readouterr().out, file.read_text()
    assert first.count("drop budget") == 3
    assert len(points.splitlines()) == 3 + 1 + 1 + 1  # three budgets and the default; static and nocont once
    assert command.main([*arguments, "--plot", str(tmp_path / "drawn"), "--page", str(page)]) == 0
    assert (capsys.readouterr().out, file.read_text()) == (first, points)
    assert (tmp_path / "drawn.png").read_bytes()[:4] == b"\x89PNG"
    assert "| drop budget 0.2 |" in page.read_text() and "old" not in page.read_text()
    assert page.read_text().startswith("before") and page.read_text().endswith("after\n")
    assert command.main(["sensitivity", str(file), "--what", "weather"]) == 2
    assert "--what weather: use k, e" in capsys.readouterr().err


@pytest.mark.usefixtures("short_past")
def test_a_study_writes_its_page_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "s.jsonl", tmp_path / "page.md"
    page.write_text(f"{study.BEGIN}\n{study.END}\n")
    file.with_suffix(".knees.json").write_text('{"dbrx qwen-a egress 9 loaded": 0.1}')
    arguments = ["study", str(file), "--setting", "egress", "--seeds", "2", "--requests", "9", "--policy", "fs,mfs"]
    assert command.main([*arguments, "--page", str(page)]) == 0
    points = file.read_text()
    assert len(points.splitlines()) == 2 * 5  # the three references as well
    assert page.read_text().count("\n| `") == 5 - 1 + 1 + 2
    written = json.loads((tmp_path / "page-results.json").read_text())
    assert written["what"]["simulated"] and written["what"]["seeds"] == [11, 12]
    stem = tmp_path / "drawn"
    assert command.main(["overview", str(tmp_path / "page-results.json"), "--out", str(stem)]) == 0
    assert stem.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert command.main(["overview", str(file), "--out", str(stem)]) == 2, "points are not what --page writes"
    figures = written["settings"]["egress"]["policies"]
    assert set(figures) == {"static", "alone", "nocont", "fs", "mfs"} and figures["static"]["gain"] == 0
    capsys.readouterr()
    assert command.main(arguments) == 0 and file.read_text() == points, "nothing runs twice"
    assert command.main(["study", str(file), "--setting", "home"]) == 2
    assert (
        "--setting home: use stress, node, tiers, qwen-b, served, contended for all of a group, or base, hot"
        in capsys.readouterr().err
    )
    file.write_text("not a point\n")
    assert command.main(arguments) == 2
    assert "name another file" in capsys.readouterr().err


def test_work_grows_with_the_number_of_flows_and_no_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(linearity, "FLOWS", (30_000, 90_000))
    monkeypatch.setattr(linearity, "INSTANCES", (2, 8))
    assert command.main(["linearity", "--out", str(tmp_path)]) == 0
    for rows in json.loads((tmp_path / "linearity.json").read_text()).values():
        few, many = (row["flows_visited"] / row["flows"] for row in rows)
        assert many < 1.5 * few
    assert (tmp_path / "linearity.png").read_bytes()[:4] == b"\x89PNG"
