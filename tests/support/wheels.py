"""Published wheels for tests, downloaded once into build/wheels, and how their programs are started.

MFS_TEST_NCCL_VERSIONS lists the NCCL versions to test, separated by commas.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.micro.nccl_wheel import nccl_net_arguments, unpacked

__all__ = ["NCCL_ENVIRONMENT", "NCCL_VERSIONS", "mooncake_environment", "nccl_net_arguments", "nixl_wheel", "unpacked"]

ROOT = Path(__file__).parents[2]
NCCL_VERSIONS = os.environ.get("MFS_TEST_NCCL_VERSIONS", "2.28.9").split(",")
NCCL_ENVIRONMENT = {"NCCL_IB_GID_INDEX": "0", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
MOONCAKE = "0.3.13.post1"
NIXL = "1.5.1"
NIXL_VERSIONS = ("1.4.1", NIXL)


def mooncake_environment(folder: Path) -> dict[str, str]:
    """Returns the variables with which the stock Mooncake wheel runs on the device mfs0."""
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


def nixl_environment(version: str = NIXL) -> dict[str, str]:
    """Returns the variables with which the stock NIXL wheel runs only on a soft RoCE device."""
    wheel = nixl_wheel(version)
    return {"PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT)]), "UCX_TLS": "rc_v", "MFS_NIXL": "1"}


def nixl_wheel(version: str = NIXL) -> Path:
    """Returns NIXL without torch, its dependency, which it imports only if the program has done so."""
    return unpacked("nixl-cu12", version)
