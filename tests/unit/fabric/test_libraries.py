"""The variables of libraries that mark their own packets, as `mfsctl host env` prints them."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from mfsd.cli.commands.host import host
from mfsd.fabric import link_layer
from mfsd.fabric.libraries import LIBRARIES, variables
from mfsd.fabric.library_files import set_in_files
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


def of_shell(lines: str, **before: str) -> dict[str, str]:
    script = lines + "env"
    clean = {"PATH": os.environ["PATH"], **before}
    done = subprocess.run(["sh", "-euc", script], env=clean, capture_output=True, text=True, check=True)
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def test_a_shell_knows_what_the_operator_has_not_set() -> None:
    lines = printed("--policy", "paper-k8", "--for", "shell")
    found = of_shell(lines, UCX_IB_TRAFFIC_CLASS="32")
    names = {one.traffic_class for one in LIBRARIES}
    assert set(found["MFS_SET_CLASSES"].split()) == names - {"UCX_IB_TRAFFIC_CLASS"}
    again = of_shell(lines, **found)
    assert {name: again[name] for name in (*names, "MFS_SET_CLASSES")} == {
        name: found[name] for name in (*names, "MFS_SET_CLASSES")
    }


def test_where_the_operator_has_set_nccls_class_gin_goes_by_it() -> None:
    found = of_shell(printed("--policy", "paper-k8", "--for", "shell"), NCCL_IB_TC="104")
    assert found["NCCL_IB_TC"] == "104" and "NCCL_GIN_IB_TC" not in found
    assert "NCCL" not in found["MFS_SET_CLASSES"]


def test_systemd_and_kubernetes_get_what_they_read() -> None:
    drop_in = printed("--policy", "paper-k8", "--for", "systemd").splitlines()
    comment, settings = drop_in[: drop_in.index("[Service]")], drop_in[drop_in.index("[Service]") + 1 :]
    assert all(line.startswith("# ") for line in comment) and "override the unit's own Environment=" in comment[0]
    assert f'Environment="MC_IB_TC={24 << 2 | 2}"' in settings and settings[-1].startswith(
        'Environment="MFS_SET_CLASSES=NCCL_IB_TC '
    )
    listed = yaml.safe_load(printed("--policy", "paper-k8", "--for", "kubernetes"))
    assert {"name": "MC_IB_TC", "value": str(24 << 2 | 2)} in listed and len(listed) == len(LIBRARIES) + 1
    assert listed[-1] == {"name": "MFS_SET_CLASSES", "value": " ".join(one["name"] for one in listed[:-1])}


def test_what_a_file_of_nccl_or_ucx_sets_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nccl.conf").write_text("# ours\nNCCL_IB_TC=104\n")
    (tmp_path / "ucx.conf").write_text("UCX_IB_TRAFFIC_CLASS=32\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setenv("UCX_CONFIG_DIR", str(tmp_path))
    result = CliRunner().invoke(host, ["env", "--policy", "paper-k8", "--for", "systemd"])
    assert "NCCL_IB_TC" not in result.stdout.partition("[Service]")[2] and "UCX" not in result.stdout
    assert result.stderr.splitlines() == [
        f"NCCL_IB_TC is left out: {tmp_path}/nccl.conf sets NCCL_IB_TC=104",
        f"NCCL_GIN_IB_TC is left out: {tmp_path}/nccl.conf sets NCCL_IB_TC=104, and NCCL's GIN and DeepEP V2 goes by "
        "that, too",
        f"UCX_IB_TRAFFIC_CLASS is left out: {tmp_path}/ucx.conf sets UCX_IB_TRAFFIC_CLASS=32",
    ]
    elsewhere = CliRunner().invoke(host, ["env", "--policy", "paper-k8", "--for", "kubernetes"])
    assert "NCCL_IB_TC" in elsewhere.stdout and not elsewhere.stderr, "a container has files of its own"


def test_which_file_goes_before_which(tmp_path: Path) -> None:
    """NCCL: the user's before the system's, NCCL_CONF_FILE in place of the user's. UCX: the system's, HOME,
    UCX_CONFIG_DIR, the folder of the start."""
    root, home, named, start = (tmp_path / name for name in ("root", "home", "named", "start"))
    for folder in (root / "etc/ucx", home, named, start):
        folder.mkdir(parents=True)
    (root / "etc/nccl.conf").write_text("NCCL_IB_TC=1\nNCCL_IB_SL=1\n")
    environ = {"HOME": str(home)}

    def found(name: str, **more: str) -> tuple[str, Path]:
        setting = set_in_files(environ | more, uid=2**31, root=root, folder=start)[name]
        return setting.value, setting.file

    assert found("NCCL_IB_TC") == ("1", root / "etc/nccl.conf")
    (home / ".nccl.conf").write_text("NCCL_IB_TC=2\n#NCCL_IB_SL=2\n")
    assert found("NCCL_IB_TC") == ("2", home / ".nccl.conf") and found("NCCL_IB_SL")[0] == "1"
    (named / "mine.conf").write_text("NCCL_GIN_IB_TC=3\n")
    assert found("NCCL_IB_TC", NCCL_CONF_FILE=str(named / "mine.conf"))[0] == "1"
    environ["UCX_CONFIG_DIR"] = str(named)
    for number, folder in enumerate((root / "etc/ucx", home, named, start)):
        (folder / "ucx.conf").write_text(f"[any]\n; one\nUCX_IB_SL = {number}\n")
        assert found("UCX_IB_SL") == (str(number), folder / "ucx.conf")


def test_nccls_home_is_that_of_the_users_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_TC=5\n")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    assert set_in_files({}, root=tmp_path, folder=tmp_path) == {"NCCL_IB_TC": ("5", tmp_path / ".nccl.conf")}


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
