"""Published wheels for tests, downloaded once into build/wheels, and how their programs are started.

MFS_TEST_NCCL_VERSIONS lists the NCCL versions to test, by commas.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build/wheels"
NCCL_VERSIONS = os.environ.get("MFS_TEST_NCCL_VERSIONS", "2.28.9").split(",")
NCCL_ENVIRONMENT = {"NCCL_IB_GID_INDEX": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
MOONCAKE = "0.3.13.post1"
NIXL = "1.5.1"


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


def nccl_net_arguments(version: str) -> list[str]:
    """The first arguments of tests/native/nccl_net.c for this NCCL version."""
    library = next(unpacked("nvidia-nccl-cu12", version, "libnccl.so.2").rglob("libnccl.so.2"))
    return [str(library), symbol_offset(library, "ncclNetIb"), symbol_offset(library, "ncclGetVersion", "-D")]


def mooncake_environment(folder: Path) -> dict[str, str]:
    """What the stock Mooncake wheel needs to run on the device mfs0."""
    topology = folder / "topology.json"
    topology.write_text('{"cpu:0": [["mfs0"], []]}')
    wheel = unpacked("mooncake-transfer-engine-non-cuda", MOONCAKE)
    return {
        "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT)]),
        "MC_GID_INDEX": "0",
        "MC_CUSTOM_TOPO_JSON": str(topology),
        "MC_WORKERS_PER_CTX": "1",
        "MC_LOG_LEVEL": "WARNING",
    }


def nixl_environment() -> dict[str, str]:
    """What the stock NIXL wheel needs to run on a soft RoCE device and on nothing else."""
    wheel = unpacked("nixl-cu12", NIXL)
    return {"PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT)]), "UCX_TLS": "rc_v"}
