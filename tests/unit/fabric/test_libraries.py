"""The variables of libraries that mark their own packets, as `mfsctl host env` prints them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mfsd.cli.commands.host import host
from mfsd.fabric import link_layer
from mfsd.fabric.libraries import LIBRARIES, variables
from mfsd.fabric.policy import load_profile
from mfsd.policy.types import Stage


def printed(*options: str) -> str:
    result = CliRunner().invoke(host, ["env", *options])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("policy", ["rocev2-2-lossless", "rocev2-lossy-ecn", "paper-k8"])
def test_collectives_go_before_kv_whichever_library_moves_them(policy: str) -> None:
    profile = load_profile(policy)
    rank = {one.name: at for at, one in enumerate(profile.classes)}
    of_stage: dict[Stage, set[int]] = {}
    for variable in variables(profile):
        of_stage.setdefault(variable.library.stage, set()).add(rank[variable.class_name])
    assert of_stage[Stage.COLLECTIVE] == {0} and min(of_stage[Stage.P2D]) > 0


def test_infiniband_has_the_priorities_of_the_classes() -> None:
    profile = load_profile("paper-k8")
    priority = {one.name: str(one.priority) for one in profile.classes}
    levels = variables(profile, infiniband=True)
    assert [v.name for v in levels] == [one.service_level for one in LIBRARIES if one.service_level]
    assert all(v.value == priority[v.class_name] for v in levels)


def test_a_shell_keeps_what_is_set() -> None:
    lines = printed("--policy", "paper-k8", "--for", "shell")
    script = lines + 'echo "$NCCL_IB_TC $NVSHMEM_IB_TRAFFIC_CLASS"'
    done = subprocess.run(["sh", "-euc", script], env={"NCCL_IB_TC": "7"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7", str(56 << 2 | 2)]


def test_systemd_and_kubernetes_get_what_they_read() -> None:
    drop_in = printed("--policy", "paper-k8", "--for", "systemd").splitlines()
    assert drop_in[0] == "[Service]" and f"Environment=MC_IB_TC={24 << 2 | 2}" in drop_in
    listed = printed("--policy", "paper-k8", "--for", "kubernetes").splitlines()
    assert f'- {{name: MC_IB_TC, value: "{24 << 2 | 2}"}}' in listed and len(listed) == len(LIBRARIES)


def test_the_table_and_its_json() -> None:
    rows = {row["variable"]: row for row in json.loads(printed("--policy", "paper-k8", "--json"))}
    assert rows["NVSHMEM_IB_TRAFFIC_CLASS"] == {
        "variable": "NVSHMEM_IB_TRAFFIC_CLASS",
        "value": str(56 << 2 | 2),
        "class": "class-0",
        "stage": "collective",
        "library": "NVSHMEM and DeepEP",
        "seen": False,
    }
    assert printed("--policy", "paper-k8").splitlines()[0].split() == ["VARIABLE", "VALUE", "CLASS", "STAGE", "LIBRARY"]


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Gives this host's sysfs a port with a link layer."""
    monkeypatch.setattr(link_layer, "DEVICES", tmp_path)

    def make(device: str, layer: str) -> None:
        folder = tmp_path / device / "ports/1"
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(layer + "\n")

    return make


def test_nvshmems_class_is_left_out_beside_any_port_of_infiniband(port: Callable[[str, str], None]) -> None:
    port("mlx5_0", "Ethernet")
    command = ["env", "--policy", "paper-k8", "--for", "shell"]
    before = CliRunner().invoke(host, command)
    assert "NVSHMEM_IB_TRAFFIC_CLASS" in before.stdout and not before.stderr
    port("mlx5_1", "InfiniBand")
    result = CliRunner().invoke(host, command)
    assert "NVSHMEM" not in result.stdout and "export NCCL_IB_TC" in result.stdout
    assert len(result.stdout.splitlines()) == len(LIBRARIES) - 1
    assert result.stderr.startswith("NVSHMEM_IB_TRAFFIC_CLASS is left out: mlx5_1 port 1 of this host is InfiniBand")
    levels = CliRunner().invoke(host, [*command, "--infiniband"])
    assert "NVSHMEM_IB_SL" in levels.stdout and not levels.stderr


def test_an_unknown_profile_is_named() -> None:
    result = CliRunner().invoke(host, ["env", "--policy", "mine"])
    assert result.exit_code == 1 and "profiles.mine: no such profile" in result.output
