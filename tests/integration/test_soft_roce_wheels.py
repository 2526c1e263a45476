"""Published wheels, unmodified, on the soft RoCE device: NCCL's own InfiniBand transport, Mooncake's engine.

Wheels are downloaded once into build/wheels. MFS_TEST_NCCL_VERSIONS lists the versions of NCCL to test, with
commas between them.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build/wheels"
NCCL_VERSIONS = os.environ.get("MFS_TEST_NCCL_VERSIONS", "2.28.9").split(",")
MOONCAKE = "0.3.13.post1"

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64")


def unpacked(project: str, version: str, *members: str) -> Path:
    """The folder with the wheel's files, or with those of its members whose names end like one given."""
    folder = WHEELS / f"{project}-{version}"
    if folder.is_dir():
        return folder
    name = project.replace("-", "_")
    if not list(WHEELS.glob(f"{name}-{version}-*.whl")):
        download = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")
        subprocess.run([*download, "-d", str(WHEELS), f"{project}=={version}"], check=True)
    (wheel,) = WHEELS.glob(f"{name}-{version}-*.whl")
    partial = folder.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if not members or member.endswith(members):
                archive.extract(member, partial)
    partial.rename(folder)
    return folder


def symbol_offset(library: Path, name: str, *options: str) -> str:
    """Where the library has the symbol; ``nm`` knows local ones, too."""
    for line in subprocess.run(
        ["nm", *options, str(library)], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        offset, _, found = line.rpartition(" ")
        if found.split("@")[0] == name:
            return offset.split()[0]
    raise LookupError(f"{library} has no symbol {name}")


@pytest.mark.slow
@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_nccl_internal_net(soft_roce, native, version):
    library = next(unpacked("nvidia-nccl-cu12", version, "libnccl.so.2").rglob("libnccl.so.2"))
    offsets = symbol_offset(library, "ncclNetIb"), symbol_offset(library, "ncclGetVersion", "-D")
    environment = {"NCCL_IB_GID_INDEX": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    program = native("nccl_net", "-ldl")
    for messages, size, multi in ((400, 131072, 1), (100, 40000, 4), (20, 4 << 20, 1), (400, 1, 8)):
        shape = map(str, (messages, size, multi))
        output = soft_roce.run(program, library, *offsets, *shape, env=environment).stdout
        assert f"{messages} messages" in output


@pytest.mark.slow
def test_mooncake_transfers(soft_roce, tmp_path):
    wheel = unpacked("mooncake-transfer-engine-non-cuda", MOONCAKE)
    topology = tmp_path / "topology.json"
    topology.write_text('{"cpu:0": [["mfs0"], []]}')
    environment = {
        "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT)]),
        "MC_GID_INDEX": "0",
        "MC_CUSTOM_TOPO_JSON": str(topology),
        "MC_WORKERS_PER_CTX": "1",
        "MC_LOG_LEVEL": "WARNING",
    }
    script = Path(__file__).with_name("mooncake_peers.py")
    output = soft_roce.run(sys.executable, script, env=environment, timeout_s=120).stdout
    assert "verified 20 sizes and 4 batches" in output
