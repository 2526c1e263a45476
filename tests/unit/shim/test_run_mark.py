"""mfs-run --mode mark: what it makes of a policy, and what it refuses."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.fabric.libraries import LIBRARIES
from mfsd.fabric.policy import class_dscps, load_profile
from mfsd.policy import Stage
from mfsd.policy.mark_text import parse_marks
from nccl_shim.mark import of_profile
from nccl_shim.run import LIBRARY
from tests.unit.shim.test_run import environment_of, run


@pytest.mark.parametrize("policy", ["rocev2-2-lossless", "rocev2-lossy-ecn", "paper-k8"])
def test_lanes_are_numbered_as_a_daemons_are_and_carry_the_same(policy: str) -> None:
    profile = load_profile(policy)
    marks = of_profile(profile)
    assert marks.dscp == class_dscps(profile)
    by_stage = [marks.dscp[marks.wire_class(stage)] for stage in (Stage.COLLECTIVE, Stage.REUSE, Stage.P2D)]
    ranks = [[c.dscp for c in profile.classes].index(dscp) for dscp in by_stage if dscp is not None]
    assert ranks == sorted(ranks) and ranks[0] == 0
    lowest = marks.dscp[marks.wire_class(Stage.BACKGROUND)]
    assert lowest == profile.classes[-1].dscp and lowest not in by_stage, "the lowest class is background's alone"


def test_a_lossless_fabric_carries_kv_in_its_lossless_classes() -> None:
    profile = load_profile("rocev2-2-lossless")
    marks = of_profile(profile)
    lossless = {c.dscp for c in profile.classes if c.lossless}
    assert {marks.dscp[k] for stage in (Stage.REUSE, Stage.P2D) for k in marks.stages[stage]} <= lossless


def test_the_environment_of_a_program_that_marks() -> None:
    seen = environment_of("--mode", "mark", "--policy", "rocev2-lossy-ecn")
    assert seen["LD_PRELOAD"] == str(LIBRARY) and seen["MFS_MODE"] == "mark"
    assert "MFS_SOCKET" not in seen and "NCCL_PROFILER_PLUGIN" not in seen
    of_stage = {Stage.COLLECTIVE: 46, Stage.P2D: 26}
    assert [seen[one.traffic_class] for one in LIBRARIES] == [str(of_stage[one.stage] << 2 | 2) for one in LIBRARIES]
    rules = parse_marks(seen["MFS_MARK"]).rules
    assert {rule.role: rule.dscp for rule in rules if rule.role != "any"} == dict.fromkeys(
        ("nccl-cts", "nccl-flush", "nccl-data"), 46
    )
    assert {rule.library: rule.dscp for rule in rules if rule.library.endswith(".so")} == {
        "engine.so": 26,
        "store.so": 34,
    }
    assert rules[-1].dscp is None, "what no rule knows keeps its class"


def test_classes_that_are_set_by_hand_stay() -> None:
    seen = environment_of("--mode", "mark", "--policy", "paper-k8", NCCL_IB_TC="106", MC_IB_TC="")
    assert (seen["NCCL_IB_TC"], seen["MC_IB_TC"]) == ("106", str(24 << 2 | 2))


def test_nccls_file_stays_and_gin_goes_by_nccls_class(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_TC=104\n")
    done = run("--mode", "mark", "--policy", "paper-k8", "--", "env", HOME=str(tmp_path))
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert not {"NCCL_IB_TC", "NCCL_GIN_IB_TC"} & set(seen) and seen["MC_IB_TC"] == str(24 << 2 | 2)
    assert "NCCL" not in seen["MFS_SET_CLASSES"]
    assert f"mfs-run: NCCL_IB_TC is left out: {tmp_path}/.nccl.conf sets NCCL_IB_TC=104\n" in done.stderr
    seen = environment_of("--policy", "paper-k8", "--socket", "/nowhere", NCCL_IB_TC="104")
    assert seen["NCCL_IB_TC"] == "104" and "NCCL_GIN_IB_TC" not in seen, "GIN would have gone by 104"
    seen = environment_of("--policy", "paper-k8", "--socket", "/nowhere", NCCL_IB_TC="104", NCCL_GIN_IB_TC="8")
    assert (seen["NCCL_IB_TC"], seen["NCCL_GIN_IB_TC"]) == ("104", "8")
    inner = environment_of(
        *("--policy", "paper-k8", "--socket", "/nowhere"), NCCL_IB_TC="226", MFS_SET_CLASSES="NCCL_IB_TC"
    )
    assert inner["NCCL_GIN_IB_TC"] == "226", "no operator has set that one"


def test_ucxs_file_stays(tmp_path: Path) -> None:
    (tmp_path / "ucx.conf").write_text("UCX_IB_TRAFFIC_CLASS=32\nUCX_IB_SL=1\n")
    seen = environment_of("--policy", "paper-k8", "--socket", "/nowhere", UCX_CONFIG_DIR=str(tmp_path))
    assert "UCX_IB_TRAFFIC_CLASS" not in seen and "NCCL_IB_TC" in seen
    seen = environment_of("--policy", "paper-k8", "--infiniband", "--socket", "/nowhere", UCX_CONFIG_DIR=str(tmp_path))
    assert "UCX_IB_SL" not in seen and "NCCL_IB_SL" in seen


def test_with_a_daemon_a_policy_sets_what_posts_past_the_shim() -> None:
    seen = environment_of("--policy", "paper-k8", "--socket", "/nowhere", NVSHMEM_IB_TRAFFIC_CLASS="104")
    assert (seen["NCCL_GIN_IB_TC"], seen["UCX_IB_TRAFFIC_CLASS"]) == (str(56 << 2 | 2), str(24 << 2 | 2))
    assert seen["NVSHMEM_IB_TRAFFIC_CLASS"] == "104", "what is set by hand stays"
    ours = seen["MFS_SET_CLASSES"].split()
    assert "NCCL_GIN_IB_TC" in ours and "NVSHMEM_IB_TRAFFIC_CLASS" not in ours
    assert (seen["MFS_MODE"], seen["MFS_SOCKET"]) == ("enforce", "/nowhere") and "MFS_MARK" not in seen
    assert seen["NCCL_PROFILER_PLUGIN"] == str(LIBRARY)
    assert "NCCL_GIN_IB_TC" not in environment_of("--socket", "/nowhere")


def test_infiniband_has_service_levels_in_place_of_classes() -> None:
    seen = environment_of("--policy", "paper-k8", "--infiniband", "--socket", "/nowhere", NCCL_IB_SL="3")
    priorities = {str(c.dscp): str(c.priority) for c in load_profile("paper-k8").classes}
    assert dict(one.split(":") for one in seen["MFS_SERVICE_LEVELS"].split(",")) == priorities
    assert (seen["NCCL_IB_SL"], seen["UCX_IB_SL"]) == ("3", priorities["24"]), "what is set by hand stays"
    assert not [one.traffic_class for one in LIBRARIES if one.traffic_class in seen], "NVSHMEM's is dangerous there"
    marked = environment_of("--mode", "mark", "--policy", "paper-k8", "--infiniband")
    assert (marked["MFS_SERVICE_LEVELS"], marked["NCCL_IB_SL"]) == (seen["MFS_SERVICE_LEVELS"], priorities["56"])
    assert parse_marks(marked["MFS_MARK"]).dscp == class_dscps(load_profile("paper-k8"))


WITH_PORTS = (
    "import sys; from pathlib import Path; from mfsd.fabric import link_layer; from nccl_shim.run import main;"
    "link_layer.DEVICES = Path(sys.argv.pop(1)); main()"
)


@pytest.mark.parametrize("mode", ["enforce", "mark"])
def test_nvshmems_class_is_left_out_beside_any_port_of_infiniband(tmp_path: Path, mode: str) -> None:
    def started(*options: str, **variables: str) -> tuple[dict[str, str], str]:
        command = [sys.executable, "-c", WITH_PORTS, str(tmp_path), "--mode", mode, "--policy", "paper-k8", *options]
        clean = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        done = subprocess.run([*command, "env"], capture_output=True, text=True, env={**clean, **variables}, check=True)
        return dict(line.partition("=")[::2] for line in done.stdout.splitlines()), done.stderr

    for device, layer in (("mlx5_0", "Ethernet"), ("mlx5_1", "InfiniBand")):
        folder = tmp_path / device / "ports/1"
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(layer)
        seen, output = started()
        assert ("NVSHMEM_IB_TRAFFIC_CLASS" in seen) is (layer == "Ethernet") and "NCCL_IB_TC" in seen
    assert "NVSHMEM_IB_TRAFFIC_CLASS is left out: mlx5_1 port 1 of this host is InfiniBand" in output
    assert "NVSHMEM_IB_TRAFFIC_CLASS" not in seen["MFS_SET_CLASSES"]
    seen, output = started(NVSHMEM_IB_TRAFFIC_CLASS="104")
    assert seen["NVSHMEM_IB_TRAFFIC_CLASS"] == "104", "what is set by hand stays"
    assert "warning: NVSHMEM_IB_TRAFFIC_CLASS=104 is set, unset it: mlx5_1 port 1" in output
    seen, output = started("--infiniband")
    assert "NVSHMEM_IB_SL" in seen and "NVSHMEM_IB_TRAFFIC_CLASS" not in output


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--infiniband"], "needs --policy"),
        (["--mode", "observe", "--infiniband"], "not for --mode observe"),
    ],
)
def test_service_levels_need_a_policy_and_a_mode_that_sets_them(options: list[str], what: str) -> None:
    ended = run(*options, "true")
    assert (ended.returncode, ended.stdout) == (125, "") and "--infiniband" in ended.stderr and what in ended.stderr


def test_rules_of_a_configuration_go_before_the_built_in_ones(tmp_path: Path) -> None:
    file = tmp_path / "mfsd.toml"
    file.write_text(
        '[wire]\nprofile = "paper-k8"\n'
        '[[rule]]\nlibrary = "libuct_ib"\nprocess = "decode"\naction = "hold"\nstage = "p2d"\n'
        '[[rule]]\ncommunicator = "expert, 0"\naction = "pass"\nclass = 1\n'
        '[[rule]]\npeer = "10.9.0.0/16"\naction = "pass"\n'
    )
    seen = environment_of("--mode", "mark", "--policy", "paper-k8", "--rules", str(file))
    marks = parse_marks(seen["MFS_MARK"])
    first, second, third = marks.rules[:3]
    assert (first.library, first.process, first.dscp) == (
        "libuct_ib",
        "decode",
        marks.dscp[marks.wire_class(Stage.P2D)],
    )
    assert (second.communicator, second.dscp) == ("expert, 0", 48)
    assert (third.peer, third.dscp) == ("10.9.0.0/16", None), "left alone"
    assert seen["NCCL_PROFILER_PLUGIN"] == str(LIBRARY), "NCCL tells whose a queue pair is"


def test_marks_of_the_environment_are_taken_as_they_are() -> None:
    outer = environment_of("--mode", "mark", "--policy", "paper-k8", "--sizes", "reuse=1mib")
    inner = environment_of(MFS_MODE="mark", MFS_MARK=outer["MFS_MARK"])
    assert inner["MFS_MARK"] == outer["MFS_MARK"] and "sizes=reuse:1048576;" in inner["MFS_MARK"]


def test_what_it_says_may_be_given_to_a_shell() -> None:
    """docs/guide.md has MFS_MARK set by hand where mfs-run is not: it has semicolons, and others have spaces."""
    done = run("--mode", "mark", "--policy", "paper-k8", "--", "env", LD_PRELOAD="libc.so.6")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    printed = dict(word.split("=", 1) for word in shlex.split(done.stderr.removeprefix("mfs-run: ")))
    assert {name: found[name] for name in printed} == printed
    assert {"MFS_MARK", "MFS_SET_CLASSES", "LD_PRELOAD"} <= printed.keys() and ";" in printed["MFS_MARK"]


def test_it_says_what_it_set_and_warns_of_no_daemon() -> None:
    done = run("--mode", "mark", "--policy", "paper-k8", "--", "true")
    assert "MFS_MODE=mark MFS_MARK='dscp=56," in done.stderr and "NCCL_IB_TC=226" in done.stderr
    assert "warning" not in done.stderr and "MFS_SOCKET" not in done.stderr


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--mode", "mark"], "--mode mark needs --policy NAME"),
        (["--mode", "mark", "--policy", "mine"], "profiles.mine: no such profile; there are rocev2-2-lossless,"),
        (["--mode", "mark", "--policy", "paper-k8", "--sizes", "1mib"], "write reuse or p2d, =, and sizes"),
        (["--mode", "mark", "--policy", "paper-k8", "--sizes", "collective=1mib"], "write reuse or p2d, =, and sizes"),
        (["--mode", "mark", "--policy", "paper-k8", "--sizes", "p2d=1"], "--sizes p2d=1: not a size"),
        (["--mode", "mark", "--policy", "paper-k8", "--sizes", "p2d=2mib,1mib"], "use rising sizes above 0"),
        (
            ["--mode", "mark", "--policy", "rocev2-2-lossless", "--sizes", "p2d=1mib"],
            "leave p2d out, or choose a profile with more",
        ),
        (
            ["--mode", "observe", "--policy", "paper-k8"],
            "--policy is only for --mode enforce and --mode mark, not for --mode obs",
        ),
        (["--policy-file", "RULES"], "--policy-file: needs --policy"),
        (["--sizes", "reuse=1mib"], "--sizes is only for --mode mark, not for --mode enforce"),
        (["--mode", "mark", "--policy", "paper-k8", "--rules", "RULES"], "rule[0].action"),
        (["--mode", "mark", "--policy", "mine", "--policy-file", "RULES"], "rule: unknown field"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(tmp_path: Path, options: list[str], why: str) -> None:
    (tmp_path / "rules.toml").write_text('[[rule]]\naction = "wait"\n')
    done = run(*[str(tmp_path / "rules.toml") if word == "RULES" else word for word in options], "--", "true")
    assert done.returncode == 125 and why in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_a_variable_that_is_wrong_is_named() -> None:
    done = run("--mode", "mark", "--", "true", MFS_MARK="dscp=99")
    assert done.returncode == 125
    assert done.stderr == ("mfs-run: MFS_MARK: '99' is not a whole number from 0 to 63; unset it and give --policy\n")
    done = run("--mode", "mark", "--sizes", "reuse=1mib", "--", "true", MFS_MARK="dscp=1;stages=background:0")
    assert "--sizes: needs --policy; without it MFS_MARK is used as it is" in done.stderr
