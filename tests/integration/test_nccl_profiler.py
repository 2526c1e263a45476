"""Published NCCL wheels and the shim agree on a version of the profiler interface; what NCCL's own transport sends is
distinguished by it, to the byte.
"""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from nccl_shim.run import LIBRARY
from tests.conftest import WAIT_S, NativePrograms, SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually
from tests.support.wheels import NCCL_ENVIRONMENT, NCCL_VERSIONS, nccl_net_arguments, unpacked

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


@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_every_byte_of_nccls_transport_has_its_communicator(
    soft_roce: SoftRoce, native: NativePrograms, folder: Path, version: str
) -> None:
    """NCCL's transport, with the profiler called around it as its proxy thread does; four sends go as one message."""
    messages, size_bytes, multi = 50, 40000, 4
    shape = map(str, (messages, size_bytes, multi))
    program = [str(native("nccl_net", "-ldl")), *nccl_net_arguments(version), *shape, "profile"]
    with Daemon(folder) as daemon:
        process = soft_roce.start(*under_mfs(daemon.socket, *program), env=NCCL_ENVIRONMENT)
        (seen,) = eventually(
            lambda: [
                c
                for client in daemon.status().clients
                for c in client.communicators
                if c.sent_bytes
                and c.sent_bytes == client.posted_bytes.get("collective", 0)
                and c.sent_bytes >= messages * size_bytes * multi
            ],
            "every byte of stage 2 has a communicator",
        )
        assert (seen.name, seen.rank, seen.ranks) == ("tensor", 1, 2)
        assert set(seen.operation_bytes) == {"all-reduce"}
        assert seen.operations == 1
        daemon_side = daemon.status().clients
        assert all("background" not in client.posted_bytes for client in daemon_side)
        assert process.stdin is None
        process.terminate()
        process.wait(timeout=WAIT_S)
