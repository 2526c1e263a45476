"""The testbed end to end, briefly: in every mode every request gets all its bytes, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.fabric.lab import missing
from bench.testbed.batches import shipped_bytes
from bench.testbed.build import PROGRAM
from bench.testbed.modes import MODES
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario, cluster_of, requests_of

ROOT = Path(__file__).resolve().parents[2]
DURATION_S = 2.0
EVERY_MODE_S = 1.25
"""Requests enough that each class a mode uses carries a megabyte."""

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def run_testbed(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench", "testbed", "--duration", str(DURATION_S), "--rate", "1.5", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left_behind() -> list[str]:
    """Workers and daemons of testbeds, and namespaces and queues that show outside."""
    found = [
        ns
        for ns in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.split()
        if "unit0r0" in ns
    ]
    found += [d for d in ("mfs1c", "mfs1c0") if Path(f"/sys/class/net/{d}").exists()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if command[0] == str(PROGRAM) or any("mfs-testbed-" in word for word in command):
            found.append(" ".join(command))
    return found


@pytest.mark.slow
def test_every_mode_serves_every_request_and_leaves_nothing(tmp_path: Path) -> None:
    program = run_testbed(
        *("--duration", str(EVERY_MODE_S), "--modes", ",".join(MODES)),
        *("--json", str(tmp_path / "result.json"), "--picture", str(tmp_path / "p.png")),
    )
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    results = json.loads((tmp_path / "result.json").read_text())["results"]
    scale = Scale()
    scenario = Scenario(rate=1.5, duration_s=EVERY_MODE_S / scale.time)
    cluster = cluster_of(scenario)
    requests = requests_of(scenario, cluster)
    shipped = sum(shipped_bytes(cluster, scale, r) for r in requests)
    fetched = cluster.model.layers * sum(scale.size(r.remote_tokens * cluster.kv_bytes) for r in requests)
    assert [r["mode"] for r in results] == list(MODES)
    for result in results:
        mode = MODES[result["mode"]]
        assert result["requests"] == len(requests) and result["kv_bytes"] == shipped
        assert 0 < result["ttft_s"]["p50"] <= result["ttft_s"]["p99"] and result["cct_s"]["mean"] > 0
        decoded = [result["port_bytes"][f"decode{d}"] for d in range(scenario.decode_hosts)]
        assert sum(map(sum, decoded)) >= shipped, "what the workers counted has crossed the switch"
        ranks = [result["port_bytes"][f"unit{u}r{r}"] for u in range(2) for r in range(2)]
        assert sum(map(sum, ranks)) >= fetched
        # Payload is far more than acknowledgements, so a class that holds a megabyte was used on purpose.
        used = {k for port in decoded for k, size in enumerate(port) if size > 1_000_000}
        if mode.scheduled:
            permits = result["permits"]
            assert permits["submitted"] == permits["permitted"] > 0 and permits["bypassed"] == 0
            assert result["mfs_cpu_s"] > 0
        else:
            assert used <= set(mode.lanes(3)) and (mode.by_size or used == {mode.p2d_class})
            assert result["mfs_cpu_s"] == 0
        assert sum(port[mode.collective_class] for port in ranks) > 1_000_000
    assert (tmp_path / "p.png").stat().st_size > 10_000
    assert "changes against fifo, seed by seed" in output
    assert not left_behind()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "scenario"),
    [
        (
            "--no-lanes --signals nccl --modes fifo,mfs",
            Scenario(rate=1.5, duration_s=DURATION_S / 2, lanes=False, signals="nccl"),
        ),
        (
            "--decode-hosts 2 --pool-hosts 3 --slow-owner 0.2 --signals nccl --modes fifo,mfs",
            Scenario(rate=1.5, duration_s=DURATION_S / 2, decode_hosts=2, pool_hosts=3, slow_owner=0.2, signals="nccl"),
        ),
    ],
)
def test_other_hosts_lanes_and_signals_serve_every_request(tmp_path: Path, options: str, scenario: Scenario) -> None:
    program = run_testbed(*options.split(), "--json", str(tmp_path / "result.json"))
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    content = json.loads((tmp_path / "result.json").read_text())
    wanted = {name: value for name, value in msgspec.to_builtins(scenario).items() if name != "seed"}
    assert content["config"]["scenario"] == wanted
    scale = Scale()
    cluster = cluster_of(scenario)
    requests = requests_of(scenario, cluster)
    shipped = sum(shipped_bytes(cluster, scale, r) for r in requests)
    for result in content["results"]:
        assert result["requests"] == len(requests) and result["kv_bytes"] == shipped
        assert result["permits"]["controls"] >= 2 * len(result["in_time"]), "each collective has its clear-to-send"
        ports = result["port_bytes"]
        assert set(ports) == set(scenario.hosts)
        for request in requests:
            assert sum(ports[f"decode{request.decode}"]) > 0
        if not scenario.lanes:
            assert all(sum(port[:-1]) < 100_000 for port in ports.values()), "all travels on one class"
        if result["mode"] == "mfs":
            assert result["permits"]["submitted"] == result["permits"]["permitted"] > 0
    assert not left_behind()


@pytest.mark.slow
def test_loads_that_queue_are_forecast_and_what_is_computed_again_ships_as_many_bytes(tmp_path: Path) -> None:
    """In a mode that chooses decode workers, too."""
    options = ["--fetch", "loaded", "--workload", "agent", "--kv-scale", "6", "--modes", "mfs+fit+cost+backlog"]
    options += ["--decode-hosts", "2"]
    program = run_testbed(*options, "--json", str(tmp_path / "result.json"))
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    content = json.loads((tmp_path / "result.json").read_text())
    (result,) = content["results"]
    scenario = Scenario(
        workload="agent", rate=1.5, duration_s=DURATION_S / 2, fetch="loaded", kv_scale=6.0, decode_hosts=2
    )
    wanted = {name: value for name, value in msgspec.to_builtins(scenario).items() if name != "seed"}
    assert content["config"]["scenario"] == wanted
    cluster = cluster_of(scenario)
    requests = requests_of(scenario, cluster)
    reused = sum(r.remote_tokens > 0 for r in requests)
    assert result["requests"] == len(requests)
    assert result["kv_bytes"] == sum(shipped_bytes(cluster, Scale(), r) for r in requests)
    assert reused > 5 and len(result["loads"]) + result["recomputed"] == reused
    assert all(expected is not None and expected > 0 and took > 0 for expected, took in result["loads"])
    assert result["permits"]["submitted"] > 0 and result["permits"]["bypassed"] == 0
    placed = result["placed"]
    assert placed["known"] + placed["unknown"] == len(requests) and placed["known"] > 0
    assert not left_behind()


@pytest.mark.slow
def test_ctrl_c_ends_everything_and_keeps_finished_legs(tmp_path: Path) -> None:
    program = run_testbed("--modes", "fifo,dscp", "--seed", "1,2,3,4,5,6", "--json", str(tmp_path / "result.json"))
    assert program.stdout is not None
    for line in program.stdout:
        if "fifo" in line and "seed 1" in line:
            break
    program.send_signal(2)
    output = program.stdout.read()
    assert program.wait(100) == 130, output
    assert "stopped" in output
    assert json.loads((tmp_path / "result.json").read_text())["results"][0]["mode"] == "fifo"
    assert not left_behind()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    program = run_testbed("--modes", "fifo", "--link", "fast")
    output, _ = program.communicate(timeout=200)
    assert program.returncode == 2
    assert output == "bench testbed: --link fast: write a number and kbit, mbit or gbit, for example 300mbit\n"


@pytest.mark.slow
def test_the_fallback_comes_to_a_verdict(tmp_path: Path) -> None:
    """Whether MFS wins there depends on the machine; that both programs run with it and without does not."""
    command = [
        sys.executable,
        "-m",
        "bench.testbed.fallback",
        "--repetitions",
        "1",
        "--json",
        str(tmp_path / "out.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("It holds" if done.returncode == 0 else "It does NOT hold")
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["alone_s"] > 0.2, "16 MiB at 1 Gbit/s"
    assert result["slower_without"] > 1 and 0 < result["bulk_share"] <= 1.1


def test_the_demo_says_why_it_falls_back(tmp_path: Path) -> None:
    """A kernel that makes no network namespaces, as some containers have it."""
    command = 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$0" -m bench.testbed.demo --json "$1" --picture "$2"'
    files = [str(tmp_path / "demo.json"), str(tmp_path / "demo.png")]
    program = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "sh", "-c", command, sys.executable, *files],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    output = ""
    for line in program.stdout:
        output += line
        if "Instead:" in line:
            break
    assert "cannot make hosts of its own: needs root or user namespaces" in " ".join(output.split())
    while program.poll() is None:  # the fallback may not have come up yet, and then not know what to do with Ctrl-C
        os.killpg(program.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(1)
    assert program.returncode != 0
