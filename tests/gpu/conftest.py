"""Where a GPU is at hand: NCCL ranks on it, over soft RoCE. Elsewhere these tests are skipped and say why."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import subprocess
from pathlib import Path

import pytest

from tests.support.wheels import NCCL_VERSIONS, unpacked


def gpu_missing() -> str | None:
    """Why no test with a GPU can run here, in words; None when one can."""
    if platform.machine() != "x86_64":
        return f"the NCCL wheel is for x86_64, this machine is {platform.machine()}"
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1): this machine has no NVIDIA GPU, or the container does not show it"
    count = ctypes.c_int()
    if (code := cuda.cuInit(0)) or (code := cuda.cuDeviceGetCount(ctypes.byref(count))):
        return f"the CUDA driver answers with error {code}"
    return None if count.value else "the CUDA driver finds no GPU"


@pytest.fixture(scope="session")
def nccl_library() -> Path:
    """libnccl.so.2: of the installed wheel, else of one that is downloaded."""
    if reason := gpu_missing():
        pytest.skip(reason)
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (library := Path(place) / "lib/libnccl.so.2").is_file():
            return library
    try:
        return next(unpacked("nvidia-nccl-cu12", NCCL_VERSIONS[0], "libnccl.so.2").rglob("libnccl.so.2"))
    except subprocess.CalledProcessError:
        pytest.skip("no NCCL: pip install nvidia-nccl-cu12, or let pip reach an index")
