"""Published NCCL wheels and the shim agree on a version of the profiler interface: the newest that the wheel looks for."""

from __future__ import annotations

import platform
import re
import subprocess

import pytest

from nccl_shim.run import LIBRARY
from tests.support.wheels import NCCL_VERSIONS, unpacked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
NEWEST = {"2.27": 4, "2.28": 5, "2.29": 6, "2.30": 6, "2.31": 7, "2.32": 7}
"""What each release looks for first, as read in its sources."""


def offered() -> set[int]:
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    return {int(version) for version in re.findall(r" ncclProfiler_v(\d+)$", symbols.stdout, re.MULTILINE)}


def test_versions_offered() -> None:
    assert offered() == {4, 5, 6, 7}


@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_the_newest_that_a_wheel_looks_for_is_offered(version: str) -> None:
    library = next(unpacked("nvidia-nccl-cu12", version, "libnccl.so.2").rglob("libnccl.so.2"))
    asked = {int(found) for found in re.findall(rb"\0ncclProfiler_v(\d+)\0", library.read_bytes())}
    assert max(asked) in offered()
    assert max(asked) == NEWEST[version.rpartition(".")[0]]
